"""Numeric gaps between computed and expected tensors: absolute, relative, SNR, ulp."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.spec import BFLOAT16, dtype_row
from gpuexec.system.html import Markup, draw_bar, make_fragment, make_table
from gpuexec.system.records import Record

Array = np.ndarray[Any, Any]
# Default tolerance: an error of at most ATOL + RTOL * |expected|, as in numpy.testing and torch.testing.
RTOL, ATOL = 1e-3, 1e-5
_SIGN_BITS = {2: (np.uint16, 15), 4: (np.uint32, 31), 8: (np.uint64, 63)}


@dataclass(frozen=True, slots=True)
class Gap(Record):
    """The gap between two arrays of one shape. Elements that are equal, or both NaN, have gap 0.

    Attributes:
        size: Elements compared.
        max_abs: Largest ``|got - expected|``; infinite where just one of the two is no finite number.
        max_rel: Largest ``|got - expected| / |expected|``, where expected is not 0.
        l1: Sum of ``|got - expected|``.
        mse: Mean of ``(got - expected)^2``.
        snr_db: ``10 log10(sum expected^2 / sum (got - expected)^2)``: infinite where there is no error, ``-inf`` where
            there is nothing but error.
        max_ulp: Largest distance counted in floating-point numbers of the dtype; of integers, the largest difference.
        share: The largest error as a share of the tolerance there, ``ATOL + RTOL * |expected|``: close up to 1.
        nonfinite: Elements that differ where one of the two is no finite number.
        mean_rel: Mean of ``|got - expected| / |expected|`` where expected is not 0.

    Example:
        >>> gap = gx.gap_of(np.float32([1, 2]), np.float32([1, 2.5]))
        >>> gap.max_abs, gap.max_rel, gap.is_close
        (0.5, 0.25, False)
    """

    size: int
    max_abs: float
    max_rel: float
    l1: float
    mse: float
    snr_db: float
    max_ulp: float
    share: float
    nonfinite: int
    mean_rel: float = 0.0
    _FOUND: ClassVar = ("is_close",)

    @property
    def is_close(self) -> bool:
        """True if every element is within the tolerance."""
        return self.share <= 1

    def __str__(self) -> str:
        return (
            f"max abs {self.max_abs:.3g}, max rel {self.max_rel:.3g}, mse {self.mse:.3g}, snr {self.snr_db:.1f} dB,"
            f" {self.max_ulp:.3g} ulp, {self.share:.3g} of the tolerance"
        )

    def _repr_html_(self) -> str:
        share = f"{self.share:.3g} of the tolerance"
        rows = [
            ("elements", f"{self.size:,}"),
            ("largest absolute error", f"{self.max_abs:.3g}"),
            ("largest relative error", f"{self.max_rel:.3g}"),
            ("mean relative error", f"{self.mean_rel:.3g}"),
            ("sum of absolute errors", f"{self.l1:.3g}"),
            ("mean squared error", f"{self.mse:.3g}"),
            ("signal to noise", f"{self.snr_db:.1f} dB"),
            ("largest distance", f"{self.max_ulp:.3g} ulp"),
            ("not finite in one of the two", f"{self.nonfinite:,}"),
            ("largest error beside the tolerance", Markup(f"{draw_bar(self.share, share)} {share}")),
        ]
        return make_fragment(f"Gap: {'within' if self.is_close else 'beyond'} the tolerance", make_table((), rows))


def gap_of(expected: Array, got: Array, *, rtol: float = RTOL, atol: float = ATOL) -> Gap:
    """Return the gap of ``got`` from ``expected``, computed in doubles.

    Where the dtypes differ (a compressed model may give another), ulps are those of the narrower float.

    Raises:
        InputError: The shapes differ.

    Example:
        >>> gx.gap_of(np.float32([1, 2]), np.float32([1, 2])).is_close
        True
    """
    if expected.shape != got.shape:
        raise InputError(f"A gap is between arrays of one shape, got {list(expected.shape)} and {list(got.shape)}.")
    size = expected.size
    if not size:
        return Gap(0, 0.0, 0.0, 0.0, 0.0, math.inf, 0.0, 0.0, 0)
    with np.errstate(all="ignore"):
        wide, other = expected.astype(np.float64), got.astype(np.float64)
        is_same = (expected == got) | (np.isnan(wide) & np.isnan(other))
        is_number = np.isfinite(wide) & np.isfinite(other)
        apart = _subtract(expected, got) if expected.dtype == got.dtype else np.abs(wide - other)
        error = np.where(is_same, 0.0, np.where(is_number, apart, np.inf))
        magnitude = np.where(np.isfinite(wide), np.abs(wide), 0.0)
        relative = np.where(error == 0, 0.0, error / np.where(magnitude == 0, np.nan, magnitude))
        share = np.where(error == 0, 0.0, error / (atol + rtol * magnitude))
        signal, noise = float(np.sum(magnitude * magnitude)), float(np.sum(error * error))
        l1 = float(np.sum(error))
    return Gap(
        size=size,
        max_abs=float(error.max()),
        max_rel=float(np.max(relative, initial=0.0, where=~np.isnan(relative))),
        l1=l1,
        mse=noise / size,
        snr_db=_decibels(signal, noise),
        max_ulp=_count_ulps(expected, got, error),
        share=float(share.max()),
        nonfinite=int(np.count_nonzero(~is_same & ~is_number)),
        mean_rel=float(np.mean(relative[~np.isnan(relative)])) if not np.isnan(relative).all() else 0.0,
    )


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    if signal == 0 or math.isinf(noise):
        return -math.inf
    return 10 * (math.log10(signal) - math.log10(noise))


def _subtract(one: Array, other: Array) -> Array:
    """Return ``|one - other|``, exact for 64-bit integers, whose digits a double does not hold."""
    if dtype_row(one.dtype).kind not in ("int", "uint"):
        return np.abs(one.astype(np.float64) - other.astype(np.float64))
    widest = np.uint64 if dtype_row(one.dtype).kind == "uint" else np.int64
    high, low = (end(one, other).astype(widest).view(np.uint64) for end in (np.maximum, np.minimum))
    return (high - low).astype(np.float64)


def _count_ulps(expected: Array, got: Array, error: Array) -> float:
    dtypes = {array.dtype for array in (expected, got) if dtype_row(array.dtype).kind == "float"}
    if np.isinf(error).any() or not dtypes:
        return float(error.max())
    # Of half and bfloat16 the one of fewer digits counts as narrower.
    dtype = min(dtypes, key=lambda each: (each.itemsize, each != BFLOAT16))
    apart = _distance(*(_place(array.astype(dtype)) for array in (expected, got)))
    return float(np.max(np.where(error == 0, 0.0, apart)))


def _place(array: Array) -> tuple[Array, Array]:
    """Return each element's distance from zero in representable numbers, and whether it is negative."""
    unsigned, sign_bit = _SIGN_BITS[array.dtype.itemsize]
    bits = np.ascontiguousarray(array).view(unsigned).astype(np.uint64)
    return (bits & np.uint64((1 << sign_bit) - 1)).astype(np.int64), (bits >> np.uint64(sign_bit)) == 1


def _distance(one: tuple[Array, Array], other: tuple[Array, Array]) -> Array:
    """Return the distance in representable numbers; exact on one side of zero, rounded to a double across it."""
    (near, is_near_negative), (far, is_far_negative) = one, other
    across = near.astype(np.float64) + far.astype(np.float64)
    return np.where(is_near_negative == is_far_negative, np.abs(near - far).astype(np.float64), across)
