"""Quantised tensors: 8-bit values with one scale and an optional zero point."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuexec.ir.command import Slot
from gpuexec.ir.operator import Array, Emitter
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.quant.integer import FLOAT, Quantized, check_bytes, check_one, round_to_bytes


def widen_bytes(x: Quantized) -> Array:
    """Return bytes dequantised by one scale and zero point."""
    zero = 0 if x.zero is None else x.zero.astype(np.int32).reshape(())
    with np.errstate(all="ignore"):
        return np.asarray((x.values.astype(np.int32) - zero).astype(FLOAT) * x.scale.reshape(()))


def narrow_numbers(numbers: Array, y: Quantized, dtype: np.dtype[Any]) -> Array:
    """Return the nearest bytes by one scale and zero point."""
    with np.errstate(all="ignore"):
        return round_to_bytes(numbers / y.scale.reshape(()), None if y.zero is None else y.zero.reshape(()), dtype)


def check_quantized(name: str, role: str, given: Quantized, dtype: np.dtype[Any] | None = None) -> TensorSpec:
    """Return the spec of bytes with one scale and zero point; ``dtype`` is of another's, which it must share.

    Raises:
        InputError: Types or sizes do not fit.
    """
    spec = check_bytes(name, given.values, role) if dtype is None else check_dtype(name, given.values, (dtype,), role)
    check_scale(name, role, given, spec.dtype)
    return spec


def check_scale(name: str, role: str, given: Quantized, dtype: np.dtype[Any]) -> None:
    """Check the scale and zero point of bytes of a type.

    Raises:
        InputError: Types or sizes do not fit.
    """
    check_dtype(name, given.scale, (FLOAT,), f"{role}_scale")
    check_one(name, given.scale, (FLOAT,), f"{role}_scale")
    check_one(name, given.zero, (dtype,), f"{role}_zero_point")


def scale_slots(emit: Emitter, given: Quantized, dtype: np.dtype[Any]) -> tuple[Slot, Slot]:
    """Return scale and zero point of bytes of a type; an absent zero point is 0."""
    return given.scale, emit.constant(np.zeros((), dtype)) if given.zero is None else given.zero
