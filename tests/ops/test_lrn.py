"""LRN against sums in double: onnx.reference takes four axes only, and of them as many channels as there are images."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from tests.ops.harness import Array, Case, run_case

FLOATS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)


def sample(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng([*shape, 3]).normal(0, 2, shape).astype(dtype)


def lrn(id: str, x: Array, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, **more: Any) -> Case:
    wide, channels = x.astype(np.float64), x.shape[1]
    sums = np.zeros_like(wide)
    for c in range(channels):
        low, high = max(0, c - (size - 1) // 2), min(channels - 1, c + size // 2)
        sums[:, c] = (wide[:, low : high + 1] ** 2).sum(1)
    with np.errstate(invalid="ignore"):
        expected = (wide / (bias + alpha / size * sums) ** beta).astype(x.dtype)
    attributes = {"size": size, "alpha": alpha, "beta": beta, "bias": bias}
    return Case(id, "LRN", (x,), attributes, expected=(expected,), terms=size, **more)


CASES = [
    *(lrn(np.dtype(t).name, sample(2, 7, 3, 5, dtype=t), 3, 0.5, 0.75, 2.0) for t in FLOATS),
    *(lrn(f"size{size}", sample(2, 6, 2, 3), size, 1.5) for size in (1, 2, 4, 5, 6, 11, 12, 99)),
    lrn("no_space", sample(3, 5), 3, 0.5),
    lrn("one_axis", sample(2, 5, 4), 3, 0.5),
    lrn("three_axes", sample(1, 4, 2, 3, 2), 2, 0.5, 1.25),
    lrn("one_channel", sample(2, 1, 4), 5, 0.5),
    lrn("many", sample(3, 40, 17), 9, 0.5, 0.5, 0.25),
    lrn("empty", np.zeros((2, 0, 3), np.float32), 3),
    lrn("no_images", np.zeros((0, 4, 3), np.float32), 3),
    lrn("strided", sample(6, 8, 4)[::-2].transpose(2, 1, 0), 3, 0.5),
    lrn("opset1", sample(2, 5, 3, 3), 5, opset=1),
    Case("reference", "LRN", (sample(5, 5, 3, 3),), {"size": 3}, terms=3),
    Case("onnxruntime", "LRN", (sample(2, 5, 3, 3),), {"size": 3, "alpha": 0.5}, oracle="onnxruntime", terms=3),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_lrn(checks: str, case: Case) -> None:
    run_case(case, checks)


def test_nan_and_infinity_reach_their_neighbours_only(checks: str) -> None:
    x = np.ones((1, 6, 1), np.float32)
    x[0, 1], x[0, 5] = np.nan, np.inf
    run_case(lrn("not_finite", x, 3, 0.5), checks)


def test_attributes_are_those_of_the_standard() -> None:
    attributes = onnx.defs.get_schema("LRN").attributes
    op = build("LRN", {"size": 3})
    for name in ("alpha", "beta", "bias"):
        assert getattr(op, name) == pytest.approx(attributes[name].default_value.f, rel=1e-7)
    assert {name for name, attribute in attributes.items() if attribute.required} == {"size"}


@pytest.mark.parametrize(
    ("shape", "dtype", "size", "message"),
    [
        ((3,), "f4", 3, "rank 2 or more"),
        ((1, 3), "i4", 3, "LRN expects input of type"),
        ((1, 3), "f4", 0, "size of at least 1, got 0"),
    ],
)
def test_infer_refuses(shape: tuple[int, ...], dtype: str, size: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build("LRN", {"size": size}).infer(TensorSpec(shape, np.dtype(dtype)))
