"""LpNormalization against NumPy in double: onnx.reference forgets the absolute value for p=1."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpuexec.ops.nn.lp_norm  # noqa: F401  (registers the operator)
from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from tests.ops.harness import Array, Case, run_case

FLOATS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)


def sample(shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    return np.random.default_rng([*shape, 5]).normal(0, 1.5, shape).astype(dtype)


def case(id: str, x: Array, axis: int = -1, p: int = 2, opset: int = 22) -> Case:
    wide = x.astype(np.float64)
    norm = (np.abs(wide) ** p).sum(axis, keepdims=True) ** (1 / p)
    expected = np.divide(wide, norm, out=np.zeros_like(wide), where=norm != 0)
    attributes = {"axis": axis, "p": p}
    return Case(
        id, "LpNormalization", (x,), attributes, opset=opset, terms=x.shape[axis], expected=(expected.astype(x.dtype),)
    )


ALL = [
    *(case(f"{np.dtype(t).name}-p{p}", sample((3, 40), t), p=p) for t in FLOATS for p in (1, 2)),
    *(case(f"axis{axis}", sample((3, 4, 5)), axis) for axis in (0, 1, -2)),
    case("long-row", sample((2, 3000))),
    case("long-columns", sample((600, 5)), 0, 1),
    case("zero-norm", np.array([[0, -0.0], [3, 4]], np.float32)),
    case("zero-norm-p1", np.array([[0, 0], [3, -4]], np.float32), p=1),
    case("no-rows", np.zeros((0, 3), np.float32)),
    case("no-columns", np.zeros((3, 0), np.float32)),
    case("opset7", sample((3, 4)), opset=7),
    Case("defaults", "LpNormalization", (sample((3, 4)),), terms=4),
]


@pytest.mark.parametrize("each", ALL, ids=lambda each: each.id)
def test_lp_normalization(checks: str, each: Case) -> None:
    run_case(each, checks)


@pytest.mark.parametrize(("attributes", "message"), [({"p": 3}, "p 1 or 2"), ({"axis": 2}, "out of range")])
def test_infer_refuses(attributes: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build("LpNormalization", attributes).infer(TensorSpec((2, 3), np.dtype(np.float32)))
