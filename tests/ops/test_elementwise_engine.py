"""Blockwise elementwise computation on the host: large arrays give the same result."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpuexec.ir.operator import build
from gpuexec.ir.prepared_calls import BLOCK, Bindable, prepare_step
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.elementwise.elementwise_engine import ROW, Extreme, apply
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
    x, choose = np.resize(special, 70003), Extreme(function)
    for bound in special:
        for part in (x, x[: 2 * ROW], x[::2], x[:3], x[:4].reshape(2, 2), x[: 4 * ROW].reshape(2, -1)):
            made = np.empty(part.shape, dtype)
            choose(part, bound, made)
            np.testing.assert_array_equal(to_bits(made), to_bits(function(part, bound)))


@pytest.mark.parametrize("size", [5, 2 * ROW, BLOCK + 5])
@pytest.mark.parametrize("name", ["Relu", "Sigmoid", "Clip", "Div", "Gelu"])
def test_calls_that_are_bound_once_give_the_bits_of_the_function(name: str, size: int) -> None:
    """Again and again, for operands that change in between; those that are said not to change do not."""
    count = {"Clip": 3, "Div": 2}.get(name, 1)
    specs = [TensorSpec((size,), np.dtype(np.float32)), *[TensorSpec((), np.dtype(np.float32))] * (count - 1)]
    form = build(name, {}).as_pointwise(specs)
    assert form is not None and isinstance(form.function, Bindable)
    x, y = np.zeros((1, size), np.float32), np.empty((1, size), np.float32)
    low, high = np.array(0.0, np.float32), np.array(2.0, np.float32)
    operands = [x, low, high][:count]
    changing = prepare_step(form.function, operands, y)
    fixed = prepare_step(form.function, [x, low.copy(), high.copy()][:count], y, [False, True, True])
    rng = np.random.default_rng(0)
    for bounds in ((0.0, 2.0), (-0.0, np.inf), (-3.0, -1.0), (np.nan, 1.0)):
        x[:] = rng.standard_normal((1, size)) * 60
        x.flat[:4] = np.nan, -200, -0.0, np.inf
        for calls, (low[()], high[()]) in ((changing, bounds), (fixed, (0.0, 2.0))):
            expected = np.empty_like(x)
            with np.errstate(all="ignore"):
                form.function(*operands, out=expected)
                for call in calls:
                    call()
            np.testing.assert_array_equal(to_bits(y), to_bits(expected))
    in_place = prepare_step(form.function, operands, x)
    with np.errstate(all="ignore"):
        form.function(*operands, out=y)
        for call in in_place:
            call()
    np.testing.assert_array_equal(to_bits(x), to_bits(y))
