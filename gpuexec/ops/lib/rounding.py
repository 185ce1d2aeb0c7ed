"""Rounding of floats to types of fewer bits, kept as floats, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.operator import Array
from gpuexec.ir.spec import BFLOAT16

_FLOAT = np.dtype(np.float32)
# tf32 has 10 bits of mantissa of float's 23.
_TF32_CUT, _TF32_HALF, _INFINITY = np.uint32(0x1FFF), np.uint32(0x1000), np.uint32(0x7F800000)


def round_to_half(x: Array) -> Array:
    """Return floats rounded to float16, to nearest even; what is beyond it becomes infinite."""
    with np.errstate(all="ignore"):
        return np.asarray(x.astype(np.float16).astype(_FLOAT))


def round_to_bfloat16(x: Array) -> Array:
    """Return floats rounded to bfloat16, to nearest even."""
    with np.errstate(all="ignore"):
        return np.asarray(x.astype(BFLOAT16).astype(_FLOAT))


def round_to_tf32(x: Array) -> Array:
    """Return floats rounded to 10 bits of mantissa, to nearest and ties away from zero, as ``cvt.rna.tf32`` does."""
    bits = np.ascontiguousarray(x, _FLOAT).view(np.uint32)
    is_number = (bits & _INFINITY) != _INFINITY
    rounded = np.where(is_number, (bits + _TF32_HALF) & ~_TF32_CUT, bits)
    return rounded.astype(np.uint32).view(_FLOAT).reshape(x.shape)


_FUNCTIONS = {"fp16": round_to_half, "bf16": round_to_bfloat16, "tf32": round_to_tf32}


def round_to(x: Array, precision: str) -> Array:
    """Return floats rounded to a precision, as floats.

    Raises:
        InputError: The precision rounds no single number.
    """
    function: Any = _FUNCTIONS.get(precision)
    if function is None:
        raise InputError(f"Numbers are rounded to one of {', '.join(_FUNCTIONS)}, got {precision!r}.")
    return np.asarray(function(x))
