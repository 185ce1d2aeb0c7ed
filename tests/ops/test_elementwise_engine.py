"""Blockwise elementwise computation on the host: large arrays give the same result."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpuexec.ops.elementwise.elementwise_engine import BLOCK, apply

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
