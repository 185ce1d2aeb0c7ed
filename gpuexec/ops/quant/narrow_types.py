"""Conversion to and from storage-only element types: narrow floats and integers, one byte per element.

NumPy here and `narrow_types.cuh` on a device agree to the bit. To a narrow float a value is
rounded once, whatever type it comes from: wider ones pass through a float32 whose last bit says if any were cut off.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.operator import Array
from gpuexec.ir.spec import dtype_row

DType = np.dtype[Any]

# Floats of 8 bits with sign and mantissa, which ONNX takes where it takes no other narrow type.
FLOAT8 = tuple(dtype_row(f"float8{name}").numpy for name in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz"))

_SATURATES = 1  # kSaturates of narrow_types.cuh
_ROUNDINGS = {"up": 0, "down": 2, "nearest": 4}  # kRoundsDown, kRoundsToNearest
_POWER = np.dtype(ml_dtypes.float8_e8m0fnu)
_NAN = 0xFF  # of float8e8m0


def is_narrow(dtype: DType) -> bool:
    """Return whether nothing but conversions computes with a type."""
    return dtype_row(dtype).is_narrow


def check_rounding(name: str, round_mode: str) -> None:
    """Check the rounding mode of float8e8m0.

    Raises:
        InputError: It is none of those that ONNX has.
    """
    if round_mode not in _ROUNDINGS:
        raise InputError(f"{name} expects round_mode {', '.join(map(repr, _ROUNDINGS))}, got {round_mode!r}.")


def pack_mode(saturate: int, round_mode: str) -> np.int32:
    """Return the kernel's overflow mode."""
    return np.int32((_SATURATES if saturate else 0) + _ROUNDINGS[round_mode])


def limits(dtype: DType) -> tuple[int, int]:
    """Return the least and the largest value of an integer type, narrow ones too."""
    info = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    return int(info.min), int(info.max)


def widen(x: Array) -> Array:
    """Return a narrow array as float32, which has every value of every narrow type."""
    row = dtype_row(x.dtype)
    if row.width < 8 and row.kind == "narrow float":
        # ml_dtypes decides about unused bits.
        x = np.asarray(x.view(np.uint8) & np.uint8((1 << row.width) - 1)).view(x.dtype)
    return x.astype(np.float32)


def to_narrow_float(x: Array, to: DType, saturate: int = 1, round_mode: str = "up") -> Array:
    """Return numbers of any type as a narrow float, rounded once.

    Args:
        x: Of any type but strings and complex numbers.
        to: The narrow float.
        saturate: Whether numbers beyond the largest become that, else infinity or NaN.
        round_mode: Rounding to float8e8m0: "up", "down" or "nearest"; others round to nearest even.
    """
    with np.errstate(all="ignore"):
        wide = _to_odd_float(x)
        if to == _POWER:
            return _round_to_power(wide, saturate, round_mode)
        if saturate:
            # NOTE: np.clip keeps NaN.
            largest = np.float32(ml_dtypes.finfo(to).max)  # type: ignore[no-untyped-call]
            wide = np.clip(wide, -largest, largest)
        rounded = np.asarray(wide.astype(to))
        if dtype_row(to).width == 8:
            return rounded
        # In a type without NaN it becomes -0, whatever its sign, which processors may change.
        minus_zero = np.uint8(1 << (dtype_row(to).width - 1))
        return np.where(wide != wide, minus_zero, rounded.view(np.uint8)).view(to)


def to_narrow_integer(whole: Array, to: DType) -> Array:
    """Return the low bits of integers as a narrow integer."""
    mask = np.uint8((1 << dtype_row(to).width) - 1)
    return np.asarray(whole.astype(np.uint8) & mask).view(to)


def _to_odd_float(x: Array) -> Array:
    """Return float32, rounded to odd: between two numbers, the one whose last bit is set.

    So rounding it further, to 16 bits of mantissa or fewer, rounds as the exact number would.
    """
    if x.dtype.itemsize < 4 or x.dtype == np.float32:
        return x.astype(np.float32)
    nearest = np.atleast_1d(x.astype(np.float32))
    if x.dtype == np.float64:
        difference = np.sign(np.abs(nearest.astype(np.float64)) - np.abs(np.atleast_1d(x)))
    else:
        magnitude = _magnitude(np.atleast_1d(x))
        is_beyond = np.abs(nearest) >= 2.0**64
        back = np.where(is_beyond, 0, np.abs(nearest)).astype(np.uint64)
        difference = np.where(is_beyond | (back > magnitude), 1, np.where(back < magnitude, -1, 0))
    is_above, is_inexact = difference > 0, (difference > 0) | (difference < 0)
    bits = nearest.view(np.uint32)
    odd = (bits - is_above.astype(np.uint32)) | np.uint32(1)
    return np.asarray(np.where(is_inexact, odd, bits).view(np.float32).reshape(x.shape))


def _magnitude(x: Array) -> Array:
    bits = x.astype(np.int64).view(np.uint64) if x.dtype.kind == "i" else x.astype(np.uint64)
    return np.asarray(np.where(x < 0, np.uint64(0) - bits, bits))


def _round_to_power(x: Array, saturate: int, round_mode: str) -> Array:
    """Return powers of two, by magnitude; ONNX leaves negative numbers undefined."""
    bits = np.asarray(x, np.float32).view(np.uint32) & np.uint32(0x7FFFFFFF)
    # Below 2**-126 the first bit of the mantissa stands for the number itself.
    is_small = bits < 0x00800000
    first = np.where(is_small, 0x00400000, bits & np.uint32(0x7F800000))
    half, rest = np.where(is_small, 0x00200000, 0x00400000), bits.astype(np.int64) - first
    is_next = {"up": rest > 0, "nearest": rest >= half, "down": np.zeros(bits.shape, np.bool_)}[round_mode]
    code = (bits >> np.uint32(23)).astype(np.int64) + is_next
    code = np.where(code > 0xFE, 0xFE if saturate else _NAN, code)
    code = np.where(bits < 0x00400000, 0 if saturate else _NAN, code)
    return np.where(bits > 0x7F800000, _NAN, code).astype(np.uint8).view(_POWER)
