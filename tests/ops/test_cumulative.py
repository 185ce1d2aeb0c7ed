"""CumSum and CumProd against sums and products in double: onnx.reference computes halves in half."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from gpuexec.errors import InputError, NeedsHostValue
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.reduce.cumulative import CumProd, CumSum
from tests.ops.harness import Array, Case, run_case

INTEGERS = (np.int32, np.int64, np.uint32, np.uint64)
FLOATS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
FLAGS = [(exclusive, reverse) for exclusive in (0, 1) for reverse in (0, 1)]


def sample(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng([*shape, 7]).normal(0, 1.5, shape).astype(dtype)


def cumsum(id: str, x: Array, axis: int = -1, exclusive: int = 0, reverse: int = 0, **options: Any) -> Case:
    if x.dtype.kind not in "iu":
        options["expected"] = (add_in_double(x, axis, exclusive, reverse),)
    attributes = {"exclusive": exclusive, "reverse": reverse}
    name = f"{id}{'-exclusive' * exclusive}{'-reverse' * reverse}"
    inputs = (x, np.array(axis, np.int64))
    return Case(name, "CumSum", inputs, attributes, const=(1,), terms=max(1, x.shape[axis]), **options)


def add_in_double(x: Array, axis: int, exclusive: int, reverse: int) -> Array:
    order = -1 if reverse else 1
    with np.errstate(all="ignore"):
        sums = np.cumsum(np.moveaxis(x.astype(np.float64), axis, -1)[..., ::order], -1)
        if exclusive:
            sums = np.concatenate([np.zeros_like(sums[..., :1]), sums[..., :-1]], -1)
        return np.moveaxis(sums[..., ::order], -1, axis).astype(x.dtype)


def cumprod(id: str, x: Array, axis: int = -1, exclusive: int = 0, reverse: int = 0) -> Case:
    order = -1 if reverse else 1
    wide = x if x.dtype.kind in "iu" else x.astype(np.float64)
    with np.errstate(all="ignore"):
        folds = np.cumprod(np.moveaxis(wide, axis, -1)[..., ::order], -1, dtype=wide.dtype)
        if exclusive:
            folds = np.concatenate([np.ones_like(folds[..., :1]), folds[..., :-1]], -1)[..., : x.shape[axis]]
        expected = np.moveaxis(folds[..., ::order], -1, axis).astype(x.dtype)
    attributes = {"exclusive": exclusive, "reverse": reverse}
    name = f"product-{id}{'-exclusive' * exclusive}{'-reverse' * reverse}"
    terms = max(1, x.shape[axis])
    return Case(name, "CumProd", (x, np.array(axis)), attributes, (1,), expected=(expected,), terms=terms)


def near_one(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng([*shape, 9]).uniform(0.9, 1.1, shape).astype(dtype)


PRODUCTS = [
    *(cumprod(np.dtype(t).name, near_one(3, 40, dtype=t), -1, *flags) for t in FLOATS for flags in FLAGS),
    *(cumprod(np.dtype(t).name, (sample(3, 40) * 9).astype(np.int64).astype(t), -1, 1, 0) for t in INTEGERS),
    *(cumprod(f"axis{axis}", near_one(3, 4, 5), axis, *flags) for axis in (0, 1, -3) for flags in FLAGS),
    cumprod("long_row", near_one(2, 5000)),
    cumprod("long_column", near_one(2500, 3), 0, 1, 1),
    cumprod("zeros", np.array([[2, 0, 3], [0, -1, 5]], np.float32)),
    cumprod("not_finite", np.array([[2, np.inf, 0, 1], [np.nan, 1, 1, 1]], np.float32)),
    cumprod("empty", np.zeros((2, 0), np.float32), 1, 1),
    cumprod("strided", near_one(6, 8, 4)[::-2, ::3].T, 1),
]


CASES = [
    *(cumsum(np.dtype(t).name, sample(3, 40, dtype=t), -1, *flags) for t in FLOATS for flags in FLAGS),
    *(
        cumsum(np.dtype(t).name, (sample(3, 40) * 1e9).astype(np.int64).astype(t), -1, *flags)
        for t in INTEGERS
        for flags in FLAGS
    ),
    *(cumsum(f"axis{axis}", sample(3, 4, 5), axis, *flags) for axis in (0, 1, -2, -3) for flags in FLAGS),
    cumsum("long_rows", sample(2, 9000)),
    *(cumsum("long_row", sample(8200), -1, *flags) for flags in FLAGS if any(flags)),
    *(cumsum("long_column", sample(2500, 3), 0, *flags) for flags in FLAGS),
    *(cumsum(f"columns{columns}", sample(2, columns)) for columns in (1, 2, 15, 17, 255, 1023, 1025, 4096, 4097)),
    cumsum("wide_columns", sample(2, 7, 300), 1),
    cumsum("half_in_float", np.ones(5000, np.float16)),
    cumsum("half_overflows", np.full(4, 60000, np.float16)),
    cumsum("wraps", np.full(3, 2**31 - 1, np.int32)),
    cumsum(
        "not_finite", np.array([[1, np.inf, 2, -np.inf, 3], [1, np.nan, 2, 3, 4], [1, -np.inf, 2, 3, 4]], np.float32)
    ),
    *(
        cumsum(f"empty{shape}", np.zeros(shape, np.float32), axis)
        for shape, axis in [((0, 3), 1), ((3, 0), 1), ((0,), 0)]
    ),
    cumsum("empty_exclusive", np.zeros((2, 0), np.int32), 1, 1, 1),
    cumsum("strided", sample(6, 8, 4)[::-2, ::3].T, 1),
    cumsum("opset11", sample(3, 4), opset=11),
    Case("int32_axis", "CumSum", (sample(3, 4), np.array(-2, np.int32)), const=(1,), terms=3),
    Case("axis_of_rank_one", "CumSum", (sample(3, 4), np.array([1])), const=(1,), terms=4, oracle="onnxruntime"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_cumulative_sum(checks: str, case: Case) -> None:
    run_case(case, checks)


@pytest.mark.parametrize("case", PRODUCTS, ids=lambda case: case.id)
def test_cumulative_product(checks: str, case: Case) -> None:
    run_case(case, checks)


def test_attributes_are_those_of_the_standard() -> None:
    for cls in (CumSum, CumProd):
        attributes = onnx.defs.get_schema(cls.name).attributes
        assert {name: each.default_value.i for name, each in attributes.items()} == {"exclusive": 0, "reverse": 0}
        assert cls() == cls(exclusive=0, reverse=0)


@pytest.mark.parametrize(
    ("x", "axis", "message"),
    [
        (np.zeros((2, 3), np.float32), 2, "axis is out of range for rank 2"),
        (np.zeros((), np.float32), 0, "expected no axis at all"),
        (np.zeros(3, np.int8), 0, "CumSum expects input of type"),
        (np.zeros((2, 3), np.float32), [0, 1], "CumSum expects one axis, got"),
        (np.zeros((2, 3), np.float32), 0.0, "must be a one-dimensional integer tensor"),
    ],
)
def test_infer_refuses(x: Array, axis: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build("CumSum", {}).infer(TensorSpec.of(x), TensorSpec.of(np.array(axis)))


def test_infer_asks_for_the_axis() -> None:
    with pytest.raises(NeedsHostValue, match="axis"):
        build("CumSum", {}).infer(TensorSpec((3,), np.dtype(np.float32)), TensorSpec((), np.dtype(np.int64)))
