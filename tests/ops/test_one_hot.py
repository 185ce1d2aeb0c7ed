"""OneHot."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from gpuexec.errors import InputError, NeedsHostValue
from gpuexec.ir.spec import COMPUTED, TensorSpec, dtypes_of
from gpuexec.ops.tensor.one_hot import OneHot
from tests.ops.harness import Array, Case, run_case

INDICES = np.array([[0, 3, -1], [2, 7, -4]])
NUMBERS = dtypes_of("float", "int", "uint")


def one_hot(id: str, indices: Array, depth: Any, values: Any = (2.0, 5.0), axis: int = -1, **more: Any) -> Case:
    off_on = values if isinstance(values, np.ndarray) else np.array(values, np.float32)
    size = int(np.asarray(depth).reshape(()))
    if not more.get("opset"):
        whole = np.asarray(indices).astype(np.float64).astype(np.int64)
        eye = np.stack([(whole == d) | (whole == d - size) for d in range(size)], axis) if size else None
        shape = list(np.expand_dims(whole, axis).shape)
        shape[axis] = size
        more["expected"] = (np.zeros(shape, off_on.dtype) if eye is None else np.where(eye, off_on[1], off_on[0]),)
    return Case(id, "OneHot", (indices, np.asarray(depth), off_on), {"axis": axis}, const=(1,), **more)


CASES = [
    *(one_hot(f"axis{axis}", INDICES, 4, axis=axis) for axis in (0, 1, 2, -1, -2, -3)),
    *(one_hot(f"indices_{dtype.name}", np.abs(INDICES).astype(dtype), 4, axis=0) for dtype in NUMBERS),
    *(one_hot(f"depth_{dtype.name}", INDICES, np.array([4]).astype(dtype)) for dtype in NUMBERS),
    *(one_hot(f"values_{row.name}", INDICES, 4, np.array([0, 1]).astype(row.numpy)) for row in COMPUTED),
    one_hot("truncated", np.array([1.9, -1.9, 0.5, -0.5, 3.99], np.float32), 3),
    one_hot("depth_of_a_fraction", INDICES, np.array(3.7, np.float32)),
    one_hot("scalar_index", np.array(2), 5),
    one_hot("no_depth", INDICES, 0),
    one_hot("no_indices", np.zeros((2, 0), np.int64), 3),
    one_hot("strided", np.arange(24).reshape(4, 6)[::-1, ::2].T, 30, np.array([1, 2, 3, 4])[::2], axis=1),
    one_hot("special_values", INDICES, 4, np.array([-0.0, np.nan])),
    one_hot("old", INDICES, 4, axis=1, opset=9),
    one_hot("newer", INDICES, 4, axis=1, opset=11),
    Case(
        "not_finite",
        "OneHot",
        (np.array([np.nan, np.inf, -np.inf, 1e30], np.float32), np.array(2), np.array([0, 1], np.int8)),
        const=(1,),
        expected=(np.array([[1, 0], [0, 0], [0, 0], [0, 0]], np.int8),),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_one_hot(checks: str, case: Case) -> None:
    run_case(case, checks)


def test_attributes_are_those_of_the_standard() -> None:
    attributes = onnx.defs.get_schema("OneHot").attributes
    assert OneHot(**{name: each.default_value.i for name, each in attributes.items()}) == OneHot()


@pytest.mark.parametrize(
    ("indices", "depth", "values", "axis", "message"),
    [
        (np.zeros(2, np.bool_), 2, [0, 1], -1, "expects indices of type"),
        (np.zeros(2), [2, 3], [0, 1], -1, "depth to be one number"),
        (np.zeros(2), -1, [0, 1], -1, "a depth of 0 or more, got -1"),
        (np.zeros(2), np.nan, [0, 1], -1, "a depth of 0 or more, got nan"),
        (np.zeros(2), True, [0, 1], -1, "expects depth of type"),
        (np.zeros(2), 2, [0, 1, 2], -1, "two values, off and on"),
        (np.zeros(2), 2, [0, 1], 2, "axis is out of range"),
    ],
)
def test_infer_refuses(indices: Array, depth: Any, values: Any, axis: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        OneHot(axis).infer(*(TensorSpec.of(np.asarray(x)) for x in (indices, depth, values)))


def test_infer_asks_for_the_depth() -> None:
    specs = [TensorSpec.of(INDICES), TensorSpec((), np.dtype(np.int64)), TensorSpec.of(np.zeros(2))]
    with pytest.raises(NeedsHostValue, match="depth"):
        OneHot().infer(*specs)
