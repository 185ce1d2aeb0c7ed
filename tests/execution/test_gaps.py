"""Numeric gaps, worked by hand, for every kind of element."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.execution.inspection.gaps import gap_of
from gpuexec.ir.spec import BFLOAT16, dtypes_of


def test_numbers_are_those_worked_by_hand() -> None:
    gap = gap_of(np.array([1.0, -2.0, 0.0, 4.0]), np.array([1.0, -2.5, 0.5, 3.0]))
    assert (gap.size, gap.max_abs, gap.max_rel, gap.l1, gap.mse) == (4, 1.0, 0.25, 2.0, 1.5 / 4)
    assert gap.snr_db == pytest.approx(10 * math.log10(21 / 1.5))
    assert gap.share == pytest.approx(0.5 / 1e-5)
    assert not gap.is_close


def test_equal_arrays_are_no_distance_apart_nan_and_infinity_included() -> None:
    x = np.array([1, np.nan, np.inf, -np.inf, -0.0], np.float32)
    gap = gap_of(x, x.copy())
    assert (gap.max_abs, gap.max_rel, gap.l1, gap.mse, gap.max_ulp, gap.share, gap.nonfinite) == (0,) * 7
    assert gap.snr_db == math.inf
    assert gap.is_close


@pytest.mark.parametrize(("expected", "got"), [(1.0, np.nan), (np.inf, 1.0), (np.inf, -np.inf), (np.nan, np.inf)])
def test_what_is_finite_on_one_side_alone_is_infinitely_far(expected: float, got: float) -> None:
    gap = gap_of(np.array([2.0, expected], np.float32), np.array([2.0, got], np.float32))
    assert (gap.max_abs, gap.max_ulp, gap.share, gap.nonfinite) == (math.inf, math.inf, math.inf, 1)
    assert gap.snr_db == -math.inf


@pytest.mark.parametrize("dtype", dtypes_of("float"))
def test_ulps_are_steps_of_the_dtype(dtype: np.dtype[Any]) -> None:
    one = np.array([1.0], dtype)
    bits = {2: np.uint16, 4: np.uint32, 8: np.uint64}[dtype.itemsize]
    third = (one.view(bits) + bits(3)).view(dtype)
    assert gap_of(one, third).max_ulp == 3
    smallest = np.array([1], bits).view(dtype)
    assert gap_of(smallest, -smallest).max_ulp == 2


def test_ulps_between_two_dtypes_are_those_of_the_narrower() -> None:
    wide = np.array([1.0 + 2.0**-9], np.float32)
    assert gap_of(wide, np.array([1.0], np.float16)).max_ulp == 2
    assert gap_of(np.array([1.0 + 2.0**-6], np.float16), np.array([1.0], BFLOAT16)).max_ulp == 2


def test_integers_beyond_the_digits_of_a_double_still_differ() -> None:
    for dtype in (np.int64, np.uint64):
        assert gap_of(np.array([2**60], dtype), np.array([2**60 + 1], dtype)).max_ulp == 1
    gap = gap_of(np.array([3, -9], np.int8), np.array([3, 127], np.int8))
    assert (gap.max_ulp, gap.max_abs) == (136, 136)


def test_the_share_of_the_tolerance_is_measured_where_the_error_is() -> None:
    gap = gap_of(np.array([1000.0, 0.0]), np.array([1000.5, 0.0]), rtol=1e-3, atol=0.0)
    assert gap.share == 0.5
    assert gap.is_close
    assert gap_of(np.array([True, False]), np.array([True, True])).share == pytest.approx(1e5)


def test_empty_arrays_have_no_gap_and_others_must_be_alike() -> None:
    assert gap_of(np.zeros((0, 3)), np.zeros((0, 3))).snr_db == math.inf
    with pytest.raises(gx.InputError, match=r"\[2\] and \[3\]"):
        gap_of(np.zeros(2), np.zeros(3))
