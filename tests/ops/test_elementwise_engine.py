"""Blockwise elementwise computation on the host: large arrays give the same result."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpuexec.ops.elementwise.elementwise_engine import BLOCK, apply, choose_extreme
from tests.ops.tolerance import to_bits

Array = np.ndarray[Any, Any]
SIZE = 2 * BLOCK + 6


def compose(a: Array, b: Array, out: Array) -> None:
    np.subtract(2 * a, b * b, out=out)


def make(*shape: int, dtype: Any = np.float32) -> Array:
    return (np.arange(np.prod(shape)) % 97).reshape(shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((2, SIZE // 2), (2, SIZE // 2)),
        ((2, SIZE // 2), ()),
        ((SIZE,), (1, 1)),
        ((1, SIZE), (1, 1)),
        ((1, 1, 1), (SIZE,)),
        ((2, SIZE // 2), (SIZE // 2,)),
        ((2, 1), (2, SIZE // 2)),
    ],
    ids=str,
)
def test_blocks_give_what_the_whole_gives(a: tuple[int, ...], b: tuple[int, ...], dtype: Any) -> None:
    left, right = make(*a, dtype=dtype), make(*b, dtype=dtype) + np.asarray(1, dtype)
    wide = [x.astype(np.float64) for x in (left, right)]
    expected = (2 * wide[0] - wide[1] * wide[1]).astype(dtype)
    out = np.zeros(expected.shape, dtype)
    for offered in (None, [out]):
        found = apply(compose, (left, right), np.dtype(dtype), offered)
        assert found.shape == expected.shape
        np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))


def test_strided_arrays_are_not_walked_in_blocks() -> None:
    whole = make(SIZE, 2)
    out = np.zeros((SIZE, 2), np.float32)
    apply(compose, (whole[:, 1], whole[:, 0]), np.dtype(np.float32), [out[:, 0]])
    np.testing.assert_array_equal(out[:, 0], 2 * whole[:, 1] - whole[:, 0] ** 2)
    assert not out[:, 1].any()


@pytest.mark.parametrize("position", [0, 1])
def test_the_output_may_be_the_memory_of_an_input(position: int) -> None:
    arrays = (make(SIZE), make(SIZE) + 1)
    expected = 2 * arrays[0] - arrays[1] * arrays[1]
    apply(compose, arrays, np.dtype(np.float32), [arrays[position]])
    np.testing.assert_array_equal(arrays[position], expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("function", [np.maximum, np.minimum])
def test_extremes_beside_one_number_have_the_bits_of_a_call(function: np.ufunc, dtype: Any) -> None:
    special = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, -np.nan, 1e-45], dtype)
    x = np.resize(special, 70003)
    for bound in special:
        out = np.empty_like(x)
        assert choose_extreme(function, x, bound, out) is out
        np.testing.assert_array_equal(to_bits(out), to_bits(function(x, bound)))
        for odd in (x[::2], x[:3], x[:4].reshape(2, 2)):
            made = np.empty(odd.shape, dtype)
            choose_extreme(function, odd, bound, made)
            np.testing.assert_array_equal(to_bits(made), to_bits(function(odd, bound)))
