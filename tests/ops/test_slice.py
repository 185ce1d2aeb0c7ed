"""Slice and Split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import gpuexec as gx
from gpuexec.errors import InputError, NeedsHostValue
from gpuexec.ir.operator import build
from gpuexec.ir.spec import COMPUTED, TensorSpec
from tests.ops.harness import Case, run_case

FAR = 2**63 - 1


def arange(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


def ints(*values: int, dtype: Any = np.int64) -> np.ndarray[Any, Any]:
    return np.array(values, dtype).reshape(-1)


def cut(id: str, x: tuple[int, ...], *bounds: tuple[int, ...] | None) -> Case:
    lists = tuple(None if values is None else ints(*values) for values in bounds)
    return Case(f"slice_{id}", "Slice", (arange(*x), *lists), const=(1, 2, 3, 4))


def parts(
    id: str, x: tuple[int, ...], split: tuple[int, ...] | None, count: int, opset: int = 24, **attributes: Any
) -> Case:
    inputs: tuple[Any, ...] = (arange(*x),) if split is None else (arange(*x), ints(*split))
    return Case(f"split_{id}", "Split", inputs, attributes, const=(1,), outputs=(True,) * count, opset=opset)


CASES = [
    cut("plain", (20, 10, 5), (0, 0), (3, 10), (0, 1), (1, 1)),
    cut("no_axes", (20, 10, 5), (0, 0, 3), (20, 10, 4)),
    cut("axes_without_steps", (20, 10), (2,), (9,), (-1,)),
    cut("steps_without_axes", (20, 10), (2, 1), (9, 8), None, (2, 3)),
    cut("ends_beyond", (5, 4), (1,), (1000,), (0,)),
    cut("far_end", (5, 4), (1,), (FAR,), (0,)),
    cut("negative_bounds", (5, 4), (-3,), (-1,), (0,)),
    cut("reversed", (5, 4), (-1,), (-FAR,), (0,), (-1,)),
    cut("reversed_by_two", (7, 4), (FAR, 3), (0, -FAR - 1), (0, 1), (-2, -3)),
    cut("reversed_along_eight_axes", (3,) * 8, (-1,) * 8, (-4,) * 8, tuple(range(8)), (-2,) * 8),
    cut("start_beyond", (5, 4), (7,), (9,), (0,)),
    cut("start_after_end", (5, 4), (3,), (1,), (0,)),
    cut("huge_step", (5, 4), (1,), (5,), (0,), (FAR,)),
    cut("of_empty", (0, 4), (0,), (3,), (0,)),
    cut("nothing", (), (), ()),
    Case("slice_int32", "Slice", (arange(5), *(ints(v, dtype=np.int32) for v in (1, 4, 0, 2))), const=(1, 2, 3, 4)),
    Case("slice_strided", "Slice", (arange(6, 4)[::-1, ::2], ints(1), ints(5)), const=(1, 2)),
    Case("slice_old", "Slice", (arange(5, 4),), {"starts": [1], "ends": [-1], "axes": [1]}, opset=9),
    Case("slice_old_no_axes", "Slice", (arange(5, 4),), {"starts": [1, 0], "ends": [9, 2]}, opset=7),
    parts("equal", (6, 2), None, 3, num_outputs=3),
    parts("last_smaller", (7, 2), None, 3, num_outputs=3),
    parts("negative_axis", (2, 7), None, 4, num_outputs=4, axis=-1),
    parts("given", (6, 2), (1, 0, 5), 3),
    parts("given_axis", (2, 6), (2, 4), 2, axis=1),
    parts("empty", (0,), (0, 0, 0), 3),
    parts("equal_13", (6,), None, 2, opset=13),
    parts("given_13", (6,), (2, 4), 2, opset=13),
    Case("split_old", "Split", (arange(2, 6),), {"split": [2, 4], "axis": 1}, outputs=(True, True), opset=11),
    Case("split_old_equal", "Split", (arange(4),), outputs=(True, True), opset=7),
    Case("split_one_wanted", "Split", (arange(4), ints(1, 3)), const=(1,), outputs=(False, True)),
]
CASES += [
    case
    for row in COMPUTED
    for x in [arange(4, 3).astype(row.numpy)]
    for case in [
        Case(f"slice_{row.name}", "Slice", (x, ints(3), ints(0)), const=(1, 2), expected=(x[:0],)),
        Case(f"back_{row.name}", "Slice", (x, *map(ints, (3, 0, 0, -2))), const=(1, 2, 3, 4), expected=(x[3:0:-2],)),
        Case(f"split_{row.name}", "Split", (x,), {"num_outputs": 2}, outputs=(True, True), expected=(x[:2], x[2:])),
    ]
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_slice(checks: str, case: Case) -> None:
    run_case(case, checks)


def spec(*shape: int) -> TensorSpec:
    return TensorSpec(shape, np.dtype(np.float32))


def known(*values: int) -> TensorSpec:
    return TensorSpec.of(ints(*values))


@pytest.mark.parametrize(
    ("op", "attributes", "specs", "message"),
    [
        ("Slice", {}, (spec(5), known(0), known(3), known(0), known(0)), "steps must not hold 0"),
        ("Slice", {}, (spec(5), known(0, 1), known(3)), "equally long, got lengths 2, 1"),
        ("Slice", {}, (spec(5), known(0), known(3), known(1)), "axes is out of range"),
        ("Slice", {}, (spec(5, 5), known(0, 0), known(3, 3), known(0, -2)), "name each axis once"),
        ("Split", {}, (spec(5),), "got neither"),
        ("Split", {"num_outputs": 2}, (spec(5), known(2, 3)), "got both"),
        ("Split", {}, (spec(5), known(2, 2)), "add up to 5, the extent of axis 0"),
        ("Split", {}, (spec(5), known(6, -1)), "add up to 5"),
        ("Split", {"num_outputs": 2, "axis": 1}, (spec(5),), "axis is out of range"),
    ],
)
def test_infer_refuses(op: str, attributes: dict[str, Any], specs: tuple[TensorSpec, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(op, attributes).infer(*specs)


@pytest.mark.parametrize("lacking", [1, 2, 3, 4])
def test_slice_asks_for_content_it_lacks(lacking: int) -> None:
    specs = [spec(5), known(0), known(3), known(0), known(1)]
    specs[lacking] = TensorSpec((1,), np.dtype(np.int64))
    with pytest.raises(NeedsHostValue) as caught:
        build("Slice", {}).infer(*specs)
    assert caught.value.index == lacking


@pytest.mark.parametrize("backend", [gx.BackendType.CPU, gx.BackendType.SIMULATOR])
@pytest.mark.parametrize("count", [2, 4])
def test_split_into_more_or_fewer_parts_than_outputs_is_refused(count: int, backend: gx.BackendType) -> None:
    outputs = [f"y{i}" for i in range(count)]
    node = helper.make_node("Split", ["x", "parts"], outputs, name="cut")
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in outputs]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [6])
    graph = helper.make_graph([node], "g", [x], made, [numpy_helper.from_array(ints(2, 2, 2), "parts")])
    model = gx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
    with gx.Worker(model, backend=backend) as worker:
        with pytest.raises(InputError, match=rf"Split 'cut'.* 3 .*got {count}") as caught:
            worker.run(np.zeros(6, np.float32))
        assert caught.value.node == "cut"
