"""SwiGLU against its formula in double."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.apply import infer_specs
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.nn.swiglu import SwiGLU
from tests.ops.harness import Array, Case, run_case

FLOATS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)


def sample(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    return np.asarray(np.random.default_rng([*shape, seed]).normal(0, 2, shape)).astype(dtype)


def swiglu(id: str, a: Array, b: Array, alpha: float = 1.0) -> Case:
    wide, factor = a.astype(np.float64), float(np.float32(alpha))
    with np.errstate(all="ignore"):
        expected = wide / (1 + np.exp(-factor * wide)) * b.astype(np.float64)
        return Case(id, "SwiGLU", (a, b), {"alpha": alpha}, opset=28, expected=(expected.astype(a.dtype),), terms=8)


SPECIAL = np.array([np.nan, np.inf, 0, -0.0, 200, -200, 1, -1], np.float32)
CASES = [
    *(swiglu(np.dtype(t).name, sample(5, 33, dtype=t), sample(5, 33, dtype=t, seed=1)) for t in FLOATS),
    *(swiglu(f"alpha{alpha}", sample(5, 7), sample(5, 7, seed=1), alpha) for alpha in (1.702, 0.0, -2.0)),
    swiglu("rank8", sample(2, 1, 3, 2, 2, 2, 2, 2), sample(2, 1, 3, 2, 2, 2, 2, 2, seed=1)),
    swiglu("scalar", sample(), sample(seed=1)),
    swiglu("empty", np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32)),
    swiglu("special", SPECIAL, np.full(8, 2, np.float32)),
    swiglu("strided", sample(9, 14)[::-2, ::3], sample(5, 5, seed=1).T),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_swiglu(checks: str, case: Case) -> None:
    run_case(case, checks)


def test_attributes_are_those_of_the_standard() -> None:
    attributes = onnx.defs.get_schema("SwiGLU").attributes
    assert {name: each.default_value.f for name, each in attributes.items()} == {"alpha": SwiGLU().alpha}


def test_infer_refuses() -> None:
    floats, halves = (TensorSpec((2, 3), np.dtype(t)) for t in (np.float32, np.float16))
    with pytest.raises(InputError, match=r"one shape, got float32\[2,3\] and float32\[3\]"):
        build("SwiGLU", {}).infer(floats, TensorSpec((3,), np.dtype(np.float32)))
    with pytest.raises(InputError, match="inputs of one type"):
        build("SwiGLU", {}).infer(floats, halves)
    with pytest.raises(InputError, match="SwiGLU expects inputs a, b, got 1"):
        infer_specs(build("SwiGLU", {}), (floats,))
