"""Unique and its component operators."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from gpuexec.errors import InputError, NeedsHostValue
from gpuexec.ir.operator import build
from gpuexec.ir.spec import COMPUTED, TensorSpec
from gpuexec.ops.reduce.unique import FindUnique, Unique
from tests.ops.decomposed import check_parts, list_launches
from tests.ops.harness import Array, Case, run_case

ALL = (True,) * 4
SPECIAL = np.array([0.5, np.nan, -0.0, np.inf, 0.0, -np.nan, -np.inf, 0.5, np.nan, -0.0, 1e-45], np.float32)


def sample(*shape: int, dtype: Any = np.float32, values: int = 4) -> Array:
    return np.random.default_rng([*shape, 11]).integers(0, values, shape).astype(dtype)


def unique(id: str, x: Array, axis: int | None = None, sorted: int = 1, **more: Any) -> Case:
    attributes = {"sorted": sorted, **({} if axis is None else {"axis": axis})}
    more = {"outputs": ALL, "oracle": "reference" if sorted or not axis else "onnxruntime", **more}
    return Case(f"{id}{'' if sorted else '_unsorted'}", "Unique", (x,), attributes, **more)


def by_hand(*outputs: Any, dtype: Any = np.float32) -> tuple[Array, ...]:
    return (np.array(outputs[0], dtype), *(np.array(each, np.int64) for each in outputs[1:]))


ROWS_WITH_NAN = np.array([[1, np.nan], [0, 2], [1, np.nan], [0, 2], [1, 0]], np.float32)
CASES = [
    *(unique(row.name, sample(20, dtype=row.numpy), sorted=n) for row in COMPUTED for n in (1, 0)),
    *(unique(f"special_{np.dtype(t)}", SPECIAL.astype(t)) for t in (np.float32, np.float64, np.float16)),
    unique(
        "special_bfloat16",
        SPECIAL[:9].astype(ml_dtypes.bfloat16),
        expected=by_hand(
            [-np.inf, -0.0, 0.5, np.inf, np.nan],
            [6, 2, 0, 3, 1],
            [2, 4, 1, 3, 1, 4, 0, 2, 4],
            [1, 2, 2, 1, 3],
            dtype=ml_dtypes.bfloat16,
        ),
    ),
    unique(
        "special",
        SPECIAL[:9],
        sorted=0,
        expected=by_hand(
            [0.5, np.nan, -0.0, np.inf, -np.inf], [0, 1, 2, 3, 6], [0, 1, 2, 3, 2, 1, 4, 0, 1], [2, 3, 2, 1, 1]
        ),
    ),
    *(unique(f"rows{axis}", sample(6, 5, 2, values=2), axis, n) for axis in (0, 1, 2) for n in (1, 0)),
    unique("negative_axis", sample(3, 40, values=2), -1),
    unique("along_a_vector", sample(20), 0),
    *(
        unique(f"rows_with_nan_{np.dtype(t)}", ROWS_WITH_NAN.astype(t), 0, expected=(each.astype(t), *numbers))
        for t in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16)
        for each, *numbers in [np.unique(ROWS_WITH_NAN, True, True, True, axis=0)]
    ),
    unique("columns_with_zeros", np.array([[0.0, -0.0, 1.0], [-0.0, 0.0, 2.0]], np.float32), 1),
    unique("words", np.array([[2**63, 1], [1, 2**63], [2**63, 1]], np.uint64), 0),
    unique("scalar", np.array(3.0, np.float32)),
    *(unique(f"length{n}", sample(n, values=n // 2 + 1), sorted=s) for n in (1, 1024, 1025, 9000) for s in (1, 0)),
    unique("many_rows", sample(3000, 2, values=30), 0),
    unique("all_equal", np.ones(40, np.int32)),
    unique("all_different", np.arange(40, dtype=np.int32)[::-1].copy()),
    unique("strided", sample(6, 8, 4)[::-2, ::3].T, 1),
    *(unique(f"empty{shape}", np.zeros(shape, np.float32)) for shape in [(0,), (3, 0)]),
    unique("no_rows", np.zeros((0, 3), np.float32), 0, expected=by_hand(np.zeros((0, 3)), [], [], [])),
    unique("empty_rows", np.zeros((3, 0), np.float32), 0, expected=by_hand(np.zeros((1, 0)), [0], [0, 0, 0], [3])),
    *(unique(f"output{i}", sample(12), outputs=tuple(k == i for k in range(4))) for i in range(4)),
    unique("old", sample(3, 4), opset=11),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_operator_and_parts(case: Case) -> None:
    check_parts(case)


def find(id: str, x: Array, axis: int | None = None, sorted: int = 1, outputs: tuple[bool, ...] = (True,) * 5) -> Case:
    y, firsts, inverse, counts = np.unique(x, True, True, True, axis=axis)
    rest = np.zeros(len(inverse.reshape(-1)) - len(firsts), np.int64)
    if not sorted:
        order = np.argsort(firsts)
        y, firsts, counts = np.take(y, order, axis or 0), firsts[order], counts[order]
        inverse = np.argsort(order)[inverse]
    filler = np.zeros_like(np.take(y, [0] * len(rest), axis or 0)) if y.size else y
    lists = (np.concatenate([firsts, rest]), inverse.reshape(-1), np.concatenate([counts, rest]))
    expected = (np.concatenate([y, filler], axis or 0), *lists, np.array([len(firsts)]))
    attributes = {"sorted": sorted, **({} if axis is None else {"axis": axis})}
    return Case(f"{id}_{sorted}", "gpuexec.FindUnique", (x,), attributes, outputs=outputs, expected=expected)


PARTS = [
    *(find(f"{row.name}", sample(4, 5, dtype=row.numpy), sorted=n) for row in COMPUTED for n in (1, 0)),
    *(find(f"axis{axis}", sample(4, 5, 3, values=2), axis, n) for axis in (0, 1, -1) for n in (1, 0)),
    find("strided", sample(6, 8, 4)[::-2, ::3].T, 1),
    find("empty", np.zeros((3, 0), np.float32)),
    find("largest", np.array([2**64 - 1, 1, 2**64 - 1], np.uint64)),
    find("merged", sample(9000, values=3000), sorted=0),
    *(find(f"output{i}", sample(12), outputs=tuple(k == i for k in range(5))) for i in range(5)),
]


@pytest.mark.parametrize("case", PARTS, ids=lambda case: case.id)
def test_parts(checks: str, case: Case) -> None:
    run_case(case, checks)


def test_launches_are_the_same_for_every_size() -> None:
    for attributes in ({}, {"sorted": 0}, {"axis": 0}):
        op = FindUnique(**attributes)
        found = [list_launches(op, [sample(n)]) for n in (0, 1, 3000)]
        assert found[0] == found[1] == found[2]


def test_attributes_are_those_of_the_standard() -> None:
    attributes = onnx.defs.get_schema("Unique").attributes
    assert set(attributes) == {"axis", "sorted"} and not attributes["axis"].required
    assert Unique() == Unique(axis=None, sorted=attributes["sorted"].default_value.i)


def test_infer_asks_for_the_content() -> None:
    with pytest.raises(NeedsHostValue, match="X"):
        build("Unique", {}).infer(TensorSpec((3,), np.dtype(np.float32)))


@pytest.mark.parametrize("op", ["Unique", "gpuexec.FindUnique"])
def test_infer_refuses_an_axis_out_of_range(op: str) -> None:
    with pytest.raises(InputError, match="axis is out of range for rank 2"):
        build(op, {"axis": 2}).infer(TensorSpec.of(np.zeros((2, 3))))
