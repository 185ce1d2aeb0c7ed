"""Quantised integers on the host: zero points, scales and requantisation, as in ``requantize.cuh``.

A byte is signed or not, and counts from its zero point. A sum is kept, scaled to a float, or scaled and
rounded to a byte again; arithmetic on scales is in float, each operation rounded: the same bits on every device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Slot
from gpuexec.ir.kernel_values import pack_struct
from gpuexec.ir.operator import Array, Emitter
from gpuexec.ir.spec import BFLOAT16, TensorSpec
from gpuexec.ops.lib.checks import check_dtype

BYTES: tuple[np.dtype[Any], ...] = (np.dtype(np.uint8), np.dtype(np.int8))
INT32: np.dtype[Any] = np.dtype(np.int32)
FLOAT: np.dtype[Any] = np.dtype(np.float32)
SCALES: tuple[np.dtype[Any], ...] = (FLOAT, np.dtype(np.float16), BFLOAT16)  # by kind, as load_scale has them
_FURTHEST = 1024.0  # any addend saturates beyond this when rounded to a byte
_EXACT_IN_FLOAT = 1 << 24
LARGEST_PRODUCT = 255 * 255


@dataclass(frozen=True, slots=True)
class Quantized:
    """A tensor of bytes with its scale and zero point, each of which may be absent: specs, arrays or slots."""

    values: Any
    scale: Any = None
    zero: Any = None


def offset_of(dtype: np.dtype[Any]) -> int:
    """Return the offset that centres a byte for kernels: 128 for uint8, 0 for int8."""
    return 128 if dtype == BYTES[0] else 0


def pack_finish(alpha: float, dtype: np.dtype[Any], scale: np.dtype[Any] | None) -> bytes:
    """Return the bytes of ``Finish``: a factor of the scales, the type made, and the type of the scales."""
    return pack_struct("<f3i", alpha, offset_of(dtype), 0 if scale is None else SCALES.index(scale), 0)


def dense(emit: Emitter, slot: Slot | None) -> Slot | None:
    """Return a dense slot, or None of None."""
    return None if slot is None else emit.contiguous(slot)


def find_exact(inner: int) -> np.dtype[Any]:
    """Return a float type in which sums of ``inner`` products of differences of bytes are exact."""
    return FLOAT if inner * LARGEST_PRODUCT < _EXACT_IN_FLOAT else np.dtype(np.float64)


def subtract_zero(values: Array, zero: Array | None, inner: int) -> Array:
    """Return ``values - zero`` in a float type in which sums of ``inner`` products of such are exact."""
    dtype = find_exact(inner)
    wide: Array = values.astype(dtype)
    return wide if zero is None else np.asarray(wide - zero.astype(dtype))


def to_int32(sums: Array) -> Array:
    """Return whole floats as int32, modulo 2**32 as sums of integers are."""
    return np.asarray(sums.astype(np.int64).astype(INT32))


def round_to_bytes(values: Array, zero: Array | None, dtype: np.dtype[Any]) -> Array:
    """Return ``saturate(round(values) + zero)``, halves to even; NaN gives zero."""
    limits = np.iinfo(dtype)
    whole = np.nan_to_num(np.clip(np.rint(values), -_FURTHEST, _FURTHEST), nan=0.0).astype(INT32)
    if zero is not None:
        whole = whole + zero.astype(INT32)
    return np.asarray(np.clip(whole, limits.min, limits.max).astype(dtype))


def prepare_rounding(values: Array, zero: Array | None, y: Array, is_nan: Array) -> list[Callable[[], object]]:
    """Return calls that write ``saturate(round(values) + zero)`` to integers of 8 or 16 bits; NaN gives zero.

    Args:
        values: Floats, which are overwritten.
        zero: What broadcasts with them, in the type of ``y`` or of values; None: 0.
        y: Where the integers go.
        is_nan: Bools of the same shape, to work in.
    """
    low, high = (np.array(limit, values.dtype) for limit in (np.iinfo(y.dtype).min, np.iinfo(y.dtype).max))
    return [
        partial(np.rint, values, out=values),
        partial(np.isnan, values, out=is_nan),
        partial(np.copyto, values, np.array(0, values.dtype), where=is_nan),
        *([] if zero is None else [partial(np.add, values, zero, out=values)]),
        partial(np.maximum, values, low, out=values),
        partial(np.minimum, values, high, out=values),
        partial(np.copyto, y, values, casting="unsafe"),
    ]


def requantize(sums: Array, scale: Array, y_scale: Array, y_zero: Array | None, dtype: np.dtype[Any]) -> Array:
    """Return sums of products as bytes: ``round(sums * (scale / y_scale)) + y_zero``."""
    with np.errstate(all="ignore"):
        return round_to_bytes(sums.astype(FLOAT) * (scale / y_scale.astype(FLOAT)), y_zero, dtype)


def multiply_scales(alpha: float, *scales: Array | None) -> Array:
    """Return ``alpha * scale * scale`` in float, from left to right."""
    product = np.asarray(alpha, FLOAT)
    with np.errstate(all="ignore"):
        for scale in scales:
            if scale is not None:
                product = np.asarray(product * scale.astype(FLOAT))
    return product


def check_bytes(name: str, spec: TensorSpec | None, role: str) -> TensorSpec:
    """Return a spec of bytes.

    Raises:
        InputError: It is absent, or of another type.
    """
    return check_dtype(name, spec, BYTES, role)


def check_one(name: str, spec: TensorSpec | None, dtypes: Sequence[np.dtype[Any]], role: str) -> None:
    """Check a scale or zero point of a whole tensor.

    Raises:
        InputError: It is of another type, or of more than one element.
    """
    if spec is None:
        return
    check_dtype(name, spec, dtypes, role)
    if spec.size != 1:
        raise InputError(f"{name} expects {role} to be one number, got {spec}.")
