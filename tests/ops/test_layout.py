"""Reshape, Flatten, Squeeze, Unsqueeze, Transpose, Expand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuexec.ops.tensor.layout  # noqa: F401 (registers the operators)
from gpuexec.errors import InputError, NeedsHostValue
from gpuexec.ir.operator import build
from gpuexec.ir.spec import COMPUTED, TensorSpec
from tests.ops.harness import Case, run_case


def arange(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


def ints(*values: int, dtype: Any = np.int64) -> np.ndarray[Any, Any]:
    return np.array(values, dtype).reshape(-1)


def reshape(id: str, x: tuple[int, ...], shape: tuple[int, ...], **attributes: Any) -> Case:
    return Case(f"reshape_{id}", "Reshape", (arange(*x), ints(*shape)), attributes, const=(1,))


def with_axes(op: str, id: str, x: tuple[int, ...], axes: tuple[int, ...], opset: int = 24) -> Case:
    name = f"{op.lower()}_{id}"
    if opset < 13:
        return Case(name, op, (arange(*x),), {"axes": axes}, opset=opset)
    return Case(name, op, (arange(*x), ints(*axes)), const=(1,), opset=opset)


def expand(id: str, x: tuple[int, ...], shape: tuple[int, ...]) -> Case:
    return Case(f"expand_{id}", "Expand", (arange(*x), ints(*shape)), const=(1,))


CASES = [
    reshape("joined", (2, 3, 4), (6, 4)),
    reshape("divided", (6, 4), (2, 3, 2, 2)),
    reshape("rest", (2, 3, 4), (4, -1)),
    reshape("copied", (2, 3, 4), (0, -1)),
    reshape("to_scalar", (1, 1), ()),
    reshape("of_scalar", (), (1, -1)),
    Case("reshape_empty_copied", "Reshape", (arange(0, 3, 4), ints(0, -1)), const=(1,), expected=(arange(0, 12),)),
    reshape("empty_allowzero", (0, 3, 4), (3, 4, 0), allowzero=1),
    Case("reshape_old", "Reshape", (arange(2, 3), ints(3, -1)), const=(1,), opset=7),
    Case("reshape_strided", "Reshape", (arange(4, 6)[::2, ::3], ints(4)), const=(1,)),
    Case("reshape_int32", "Reshape", (arange(2, 3), ints(3, 2, dtype=np.int32)), const=(1,), expected=(arange(3, 2),)),
    *(Case(f"flatten_{axis}", "Flatten", (arange(2, 3, 4),), {"axis": axis}) for axis in range(-3, 4)),
    Case("flatten_default", "Flatten", (arange(2, 3, 4),)),
    Case("flatten_scalar", "Flatten", (arange(),), {"axis": 0}),
    Case("flatten_empty", "Flatten", (arange(2, 0, 4),), opset=7),
    with_axes("Squeeze", "one", (1, 3, 1), (0,)),
    with_axes("Squeeze", "negative", (1, 3, 1), (-1,)),
    with_axes("Squeeze", "none_given", (1, 3, 1), ()),
    with_axes("Squeeze", "old", (1, 3, 1), (0, 2), opset=11),
    with_axes("Squeeze", "older", (1, 3, 1), (0,), opset=7),
    Case("squeeze_all", "Squeeze", (arange(1, 3, 1, 0, 1),)),
    Case("squeeze_all_old", "Squeeze", (arange(1, 3, 1),), opset=9),
    Case("squeeze_to_scalar", "Squeeze", (arange(1),)),
    with_axes("Unsqueeze", "one", (3, 4), (1,)),
    with_axes("Unsqueeze", "negative_unsorted", (3, 4), (-1, 0, 2)),
    with_axes("Unsqueeze", "scalar", (), (0, 1)),
    with_axes("Unsqueeze", "old", (3, 0), (0, 3), opset=7),
    Case("unsqueeze_scalar_axis", "Unsqueeze", (arange(3), np.array(1)), const=(1,), expected=(arange(3, 1),)),
    Case("transpose_default", "Transpose", (arange(2, 3, 4),)),
    Case("transpose_perm", "Transpose", (arange(2, 3, 4, 5),), {"perm": [0, 3, 1, 2]}),
    Case("transpose_strided", "Transpose", (arange(4, 6)[::-2, 1:],), {"perm": [1, 0]}),
    Case("transpose_scalar", "Transpose", (arange(),)),
    Case("transpose_empty", "Transpose", (arange(2, 0),), opset=7),
    expand("stretched", (3, 1), (2, 1, 6)),
    expand("both_ways", (3, 1), (1, 4)),
    expand("kept", (2, 3), (1,)),
    expand("scalar", (), (2, 2)),
    expand("by_nothing", (2,), ()),
    expand("to_empty", (3, 1), (3, 0)),
]
CASES += [
    Case(f"{op.lower()}_{row.name}", op, inputs, attributes, const=(1,), expected=(expected,))
    for row in COMPUTED
    for x in [arange(2, 3).astype(row.numpy)]
    for op, inputs, attributes, expected in [
        ("Transpose", (x,), {"perm": (1, 0)}, x.T),
        ("Reshape", (x, ints(-1)), {}, x.ravel()),
        ("Expand", (x, ints(2, 1, 1)), {}, np.stack([x, x])),
    ]
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_layout(checks: str, case: Case) -> None:
    run_case(case, checks)


def spec(*shape: int) -> TensorSpec:
    return TensorSpec(shape, np.dtype(np.float32))


@pytest.mark.parametrize(
    ("op", "attributes", "specs", "message"),
    [
        ("Reshape", {}, (spec(2, 3), TensorSpec.of(ints(4, -1))), "expected 6 elements to divide by 4"),
        ("Reshape", {}, (spec(2, 3), TensorSpec.of(ints(5))), "expects 6 elements, got 5"),
        ("Reshape", {}, (spec(2, 3), TensorSpec.of(arange(2))), "must be a one-dimensional integer tensor"),
        ("Flatten", {"axis": 4}, (spec(2, 3),), "axis is out of range"),
        ("Squeeze", {}, (spec(2, 3), TensorSpec.of(ints(1))), "got axis 1 of shape"),
        ("Squeeze", {}, (spec(1, 3), TensorSpec.of(ints(0, -2))), "name each axis once"),
        ("Unsqueeze", {}, (spec(2, 3), TensorSpec.of(ints(4))), "axes is out of range"),
        ("Transpose", {"perm": (0, 0)}, (spec(2, 3),), "perm must hold each axis"),
        ("Expand", {}, (spec(2, 3), TensorSpec.of(ints(4, 3))), "do not broadcast"),
        ("Expand", {}, (spec(2, 3), TensorSpec.of(ints(-1, 3))), "extents of 0 or more"),
    ],
)
def test_infer_refuses(op: str, attributes: dict[str, Any], specs: tuple[TensorSpec, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(op, attributes).infer(*specs)


@pytest.mark.parametrize("op", ["Reshape", "Squeeze", "Unsqueeze", "Expand"])
def test_infer_asks_for_content_it_lacks(op: str) -> None:
    with pytest.raises(NeedsHostValue) as caught:
        build(op, {}).infer(spec(2, 3), TensorSpec((2,), np.dtype(np.int64)))
    assert caught.value.index == 1


def test_compute_returns_views() -> None:
    x = arange(2, 3, 4)
    for op, more in [("Reshape", (ints(4, 6),)), ("Transpose", ()), ("Expand", (ints(5, 1, 1, 1),)), ("Flatten", ())]:
        assert np.shares_memory(build(op, {}).compute(x, *more)[0], x), op
