"""Dropout."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import gpuexec as gx
from gpuexec.errors import InputError
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.random.dropout import Dropout
from gpuexec.ops.random.random import FLOATS, RandomUniform
from tests.model.objects import run_reference
from tests.ops.harness import Case, run_case

X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(2, 3, 4)
NO = np.array(False)
RATIO = np.array(0.5, np.float32)

CASES = [
    Case("plain", "Dropout", (X,)),
    Case("seed", "Dropout", (X,), {"seed": 3}),
    Case("ratio", "Dropout", (X, RATIO)),
    Case("inference", "Dropout", (X, RATIO, NO), const=(2,)),
    Case("mask", "Dropout", (X, RATIO, NO), const=(2,), outputs=(True, True)),
    Case("mask_alone", "Dropout", (X,), outputs=(False, True), expected=(X, np.ones(X.shape, bool))),
    Case("half", "Dropout", (X.astype(np.float16),), outputs=(True, True)),
    Case("bf16", "Dropout", (X.astype(ml_dtypes.bfloat16),), expected=(X.astype(ml_dtypes.bfloat16),)),
    Case("double", "Dropout", (X.astype(np.float64),)),
    Case("scalar", "Dropout", (np.array(3, np.float32),), outputs=(True, True)),
    Case("empty", "Dropout", (X[:0],), outputs=(True, True)),
    Case("opset10", "Dropout", (X,), {"ratio": 0.25}, opset=10),
    Case("opset7", "Dropout", (X,), {"ratio": 0.25}, opset=7),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_dropout(checks: str, case: Case) -> None:
    run_case(case, checks)


YES = np.array(True)
KEY = np.array([11, 4], np.uint64)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("outputs", [(True, True), (True, False), (False, True)], ids=str)
def test_training_kernel_drops_the_same_elements(checks: str, dtype: Any, outputs: tuple[bool, bool]) -> None:
    x = np.linspace(-3, 3, 70, dtype=np.float32).reshape(7, 10).astype(dtype)
    y, mask = Dropout(stream=5).compute(x, RATIO, YES, KEY)
    assert y is not None and mask is not None
    attributes = {"stream": 5}
    case = Case("case", "Dropout", (x, RATIO, YES, KEY), attributes, (1, 2), outputs, expected=(y, mask))
    run_case(case, checks)


@pytest.mark.parametrize("outputs", [["y"], ["", "m"], ["y", "m"]], ids=str)
@pytest.mark.parametrize("backend", [gx.BackendType.CPU, gx.BackendType.SIMULATOR], ids=lambda each: each.value)
def test_training_gives_what_is_wanted_of_both(backend: gx.BackendType, outputs: list[str]) -> None:
    node = helper.make_node("Dropout", ["x", "", "t"], outputs)
    types = {"y": TensorProto.FLOAT, "m": TensorProto.BOOL}
    graph = helper.make_graph(
        [node],
        "dropout",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [70])],
        [helper.make_tensor_value_info(name, types[name], [70]) for name in outputs if name],
        [helper.make_tensor("t", TensorProto.BOOL, [], [True])],
    )
    x = np.linspace(1, 2, 70, dtype=np.float32)
    with gx.Worker(
        gx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])), backend=backend, seed=4
    ) as worker:
        worker.run(x)
        made = {name: worker.read_output(name) for name in outputs if name}
    y, mask = Dropout(stream=1).compute(x, None, YES, np.array([4, 0], np.uint64))
    for name, expected in {"y": y, "m": mask}.items():
        if name in made:
            np.testing.assert_array_equal(made[name], expected)


def test_training_keeps_what_draws_the_ratio_itself(checks: str) -> None:
    drawn = RandomUniform(shape=(70,), stream=5).compute(KEY)[0]
    ratio, x = drawn[33], np.ones(70, np.float32)
    y, mask = Dropout(stream=5).compute(x, np.array(ratio), YES, KEY)
    assert y is not None and mask is not None and mask[33]
    given = (x, np.array(ratio), YES, KEY)
    run_case(Case("case", "Dropout", given, {"stream": 5}, (1, 2), (True, True), expected=(y, mask)), checks)


def test_training_scales_what_stays() -> None:
    x = np.full((200, 50), 3, np.float32)
    y, mask = Dropout().compute(x, np.array(0.25, np.float32), YES, KEY)
    assert y is not None and mask is not None
    np.testing.assert_array_equal(y, np.where(mask, np.float32(4), np.float32(0)))
    # Six deviations: chance breaks it once in 10**9 times.
    assert abs(mask.mean() - 0.75) < 6 * math.sqrt(0.75 * 0.25 / x.size)
    halves, _ = Dropout().compute(x, None, YES, KEY)
    assert halves is not None and set(np.unique(halves)) == {0.0, 6.0}


def test_training_without_dropping_keeps_all(checks: str) -> None:
    case = Case("zero", "Dropout", (X, np.array(0.0, np.float32), YES), const=(1, 2), outputs=(True, True))
    run_case(case, checks)


@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype(ml_dtypes.float8_e5m2)], ids=str)
def test_seeded_training_draws_from_numpys_generator(dtype: Any) -> None:
    x = np.linspace(-2, 2, 24).astype(dtype).reshape(2, 3, 4)
    mask = np.random.RandomState(3).uniform(0, 1, x.shape) >= 0.25
    wide = np.float64 if dtype == np.float64 else np.float32
    expected = np.where(mask, x.astype(wide) * wide(1 / 0.75), wide(0)).astype(dtype)
    y, made = Dropout(seed=3, stream=1).compute(x, np.array(0.25, np.float32), YES, KEY)
    assert y is not None and made is not None and y.dtype == dtype
    np.testing.assert_array_equal(y.astype(np.float64), expected.astype(np.float64))
    np.testing.assert_array_equal(made, mask)


def test_seeds_differ_by_their_low_bits() -> None:
    x = np.ones(64, np.float32)
    masks = [Dropout(seed=seed).compute(x, RATIO, YES)[1] for seed in (0, 1, 2**24 + 1, -1, 2**32)]
    assert all(mask is not None for mask in masks)
    assert len({mask.tobytes() for mask in masks if mask is not None}) == 4  # 2**32 is 0


def test_seeded_training_with_nothing_dropped_or_not_wanted_stays_on_the_device(checks: str) -> None:
    zero = np.array(0.0, np.float32)
    ones = np.ones(X.shape, bool)
    for given in ((X, zero, YES), (X, RATIO, NO)):
        run_case(Case("case", "Dropout", given, {"seed": 3}, (1, 2), (True, True), expected=(X, ones)), checks)


@pytest.mark.parametrize("backend", [gx.BackendType.CPU, gx.BackendType.SIMULATOR], ids=lambda each: each.value)
@pytest.mark.parametrize("is_constant", [True, False], ids=["constant", "given"])
def test_seeded_training_is_the_evaluators_in_every_run(backend: gx.BackendType, is_constant: bool) -> None:
    node = helper.make_node("Dropout", ["x", "r", "t"], ["y", "m"], seed=5)
    x, ratio = np.linspace(1, 2, 70, dtype=np.float32), np.array(0.75, np.float32)
    more = [
        helper.make_tensor("r", TensorProto.FLOAT, [], [0.75]),
        helper.make_tensor("t", TensorProto.BOOL, [], [True]),
    ]
    infos = [helper.make_tensor_value_info(each.name, each.data_type, []) for each in more]
    graph = helper.make_graph(
        [node],
        "dropout",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [70]), *([] if is_constant else infos)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [70]), helper.make_tensor_value_info("m", 9, [70])],
        more if is_constant else [],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    feeds = {"x": x} if is_constant else {"x": x, "r": ratio, "t": YES}
    expected = run_reference(model, feeds)
    loaded = gx.load(model)
    assert [memory.name for memory in loaded.memories] == []  # nothing to count runs by
    with gx.Worker(loaded, backend=backend, seed=4) as worker:
        for _ in range(2):
            worker.run(feeds)
            for name, wanted in zip("ym", expected, strict=True):
                np.testing.assert_array_equal(worker.read_output(name), wanted)
        calls = [(row.operator, row.why) for row in worker.report().host_calls]
    own = [("Dropout", "with a seed it draws from NumPy's own generator")]
    assert calls == (own if backend is gx.BackendType.SIMULATOR else [])


@pytest.mark.parametrize("ratio", [1.0, -0.25, np.nan])
def test_ratio_outside_is_refused(ratio: float) -> None:
    with pytest.raises(InputError, match=r"a ratio of \[0, 1\), got"):
        Dropout().infer(TensorSpec.of(X), TensorSpec.of(np.array(ratio, np.float32)), TensorSpec.of(YES))


def test_training_of_integers_is_refused() -> None:
    spec = TensorSpec((2,), np.dtype(np.int32))
    with pytest.raises(InputError, match="Dropout expects input of type float32"):
        Dropout().infer(spec, None, TensorSpec.of(YES))
