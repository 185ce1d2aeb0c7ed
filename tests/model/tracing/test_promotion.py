"""Weak scalar promotion: Python numbers, and extents with the results of operators on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.model.tracing.tracing import check, compute, trace

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float16)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * (x.shape[0] / 2),
        lambda x: x.sum() * (1.0 / x.shape[0]),
        lambda x: x * (x.shape[0] // 2.0),
        lambda x: x * x.shape[0] ** 0.5,
        lambda x: x * x.shape[0] ** -1,
        lambda x: x * -x.shape[0] % 3,
        lambda x: x * divmod(x.shape[1], 3)[1],
        lambda x: x * (x.size - 1),
        lambda x: x * np.sqrt(x.shape[0]),
        lambda x: x * np.maximum(x.shape[0], 1),
        lambda x: np.where(x > 0, x.shape[0], 1),
    ],
)
def test_extents_promote_as_pythons_numbers_do(function: Callable[..., Any]) -> None:
    check(function, X, rtol=2e-3)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_integers_at_the_ends_of_their_type_are_divided_as_in_numpy(dtype: Any) -> None:
    ends = np.iinfo(dtype)
    row = np.array([ends.min, ends.min + 1, -7, -1, 1, 7, ends.max - 1, ends.max], dtype)
    x, y = (each.ravel().copy() for each in np.meshgrid(row, row))
    x, y = x[(x != ends.min) | (y != -1)], y[(x != ends.min) | (y != -1)]
    for got, wanted in zip(compute(trace(lambda x, y: (x // y, x % y), x, y), x, y), (x // y, x % y), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_logarithms_of_powers_are_exact() -> None:
    for dtype in (np.float32, np.float64):
        twos, tens = 2.0 ** np.arange(-20, 60, dtype=dtype), 10.0 ** np.arange(0, 30, dtype=dtype)
        got = compute(trace(lambda x, y: (np.log2(x), np.log10(y)), twos, tens), twos, tens)
        np.testing.assert_array_equal(got[0], np.arange(-20, 60))
        np.testing.assert_array_equal(got[1], np.arange(0, 30))
