"""Exact products of integers in floats: pieces, slabs, and products too large for any float."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuexec.ops.linalg import exact_product
from gpuexec.ops.linalg.exact_product import multiply_exactly
from tests.ops.harness import Array

INT32, INT64 = np.dtype(np.int32), np.dtype(np.int64)


def draw(dtype: Any, *shape: int, largest: int | None = None) -> Array:
    limits = np.iinfo(dtype)
    low, high = (limits.min, limits.max) if largest is None else (max(limits.min, -largest), largest)
    return np.random.default_rng(shape).integers(low, high, shape, dtype, endpoint=True)


def multiply_by_loop(a: Array, b: Array, dtype: np.dtype[Any]) -> Array:
    with np.errstate(all="ignore"):
        return np.matmul(a.astype(dtype), b.astype(dtype))


@pytest.mark.parametrize("largest", [1, 127, 5000, 2**20, 2**31 - 1])
@pytest.mark.parametrize("inner", [1, 130, 1100])
def test_sums_are_exact_and_wrap_whatever_float_they_are_made_in(largest: int, inner: int) -> None:
    a, b = draw(np.int32, 9, inner, largest=largest), draw(np.int32, inner, 11, largest=largest)
    np.testing.assert_array_equal(multiply_exactly(a, b, INT32), multiply_by_loop(a, b, INT32))


def test_the_largest_sums_of_bytes_are_exact_where_a_piece_ends() -> None:
    a, b = np.full((40, 2000), 255, np.uint8), np.full((2000, 3), 255, np.uint8)
    assert (multiply_exactly(a, b, INT32) == 2000 * 255 * 255).all()


def test_products_beyond_every_float_are_those_of_the_integers() -> None:
    a, b = draw(np.int64, 40, 130), draw(np.int64, 130, 3)
    np.testing.assert_array_equal(multiply_exactly(a, b, INT64), multiply_by_loop(a, b, INT64))


@pytest.mark.parametrize(
    ("left", "right"),
    [((3, 2, 5, 70), (70, 9)), ((3, 1, 5, 70), (2, 70, 9)), ((5, 70), (3, 2, 70, 9)), ((1, 5, 70), (4, 3, 70, 9))],
    ids=str,
)
def test_slabs_of_batches_broadcast_as_matmul_does(
    left: tuple[int, ...], right: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact_product, "_SLAB", 100)
    monkeypatch.setattr(exact_product, "_FEW", 0)
    a, b = draw(np.uint8, *left), draw(np.int8, *right)
    rows, column = draw(np.uint8, *left[:-1], 1), draw(np.int8, *right[:-2], 1, right[-1])
    expected = multiply_by_loop(a.astype(INT32) - rows, b.astype(INT32) - column, INT32)
    np.testing.assert_array_equal(multiply_exactly(a, b, INT32, rows, column), expected)


def test_no_product_and_nothing_to_add_up() -> None:
    assert multiply_exactly(np.empty((5000, 0), np.int8), np.empty((0, 7), np.int8), INT32).sum() == 0
    assert multiply_exactly(np.empty((0, 3), np.int8), np.empty((3, 7), np.int8), INT32).shape == (0, 7)


def test_a_product_of_many_integers_is_left_to_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    matmul = np.matmul

    def note(a: Array, b: Array, **more: Any) -> Any:
        used.append(a.dtype)
        return matmul(a, b, **more)

    monkeypatch.setattr(np, "matmul", note)
    multiply_exactly(draw(np.uint8, 64, 64), draw(np.int8, 64, 64), INT32)
    multiply_exactly(draw(np.int32, 64, 64, largest=99999), draw(np.int32, 64, 64, largest=99999), INT32)
    assert used == [np.float32, np.float64]
