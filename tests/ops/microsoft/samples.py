"""Random arrays for cases, fixed by shape and seed; and cases of operators that no file has."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuexec.ir.spec import BFLOAT16
from tests.ops.harness import Case

Array = np.ndarray[Any, Any]
SINGLE, HALF = np.dtype(np.float32), np.dtype(np.float16)
NARROW = (SINGLE, HALF, BFLOAT16)


def sample(*shape: int, dtype: Any = np.float32, seed: int = 0, scale: float = 1.0) -> Array:
    """Return numbers of a normal distribution."""
    rng = np.random.default_rng([seed, *shape])
    return (rng.standard_normal(shape) * scale).astype(dtype)


def flags(*shape: int, seed: int = 0) -> Array:
    """Return zeros and ones of int32, with a one in each row."""
    made = (np.random.default_rng([seed, *shape]).random(shape) > 0.4).astype(np.int32)
    made[..., 0] = 1
    return made


def ints(*numbers: Any) -> Array:
    """Return an array of int32."""
    return np.array(numbers, np.int32)


def ours(name: str, op: str, inputs: tuple[Array | None, ...], expected: tuple[Array, ...], **more: Any) -> Case:
    """Return a case of an operator of ours, with what shall come out."""
    return Case(name, op, inputs, expected=expected, outputs=(True,) * len(expected), domain="gpuexec", opset=1, **more)
