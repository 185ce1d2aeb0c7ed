"""Reductions in NumPy, over an accumulator type, with reduced axes kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from gpuexec.ir.geometry import Shape
from gpuexec.ir.operator import Array, PreparedCalls
from gpuexec.ir.prepared_calls import view_bytes
from gpuexec.ir.spec import TensorSpec, accumulator
from gpuexec.ops.elementwise.elementwise_cast import truncate
from gpuexec.ops.lib.plain import is_plain

Fold = Callable[[Array, tuple[int, ...]], Array]


def reduced_shape(shape: Shape, axes: tuple[int, ...], keepdims: int | bool) -> Shape:
    """Return the shape after a reduction."""
    if keepdims:
        return tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))
    return tuple(extent for axis, extent in enumerate(shape) if axis not in axes)


def fold(function: Fold, x: Array, axes: tuple[int, ...], keepdims: int | bool) -> Array:
    """Reduce with NumPy; half and bfloat16 in float, rounded once."""
    with np.errstate(all="ignore"):
        result = np.asarray(function(x.astype(accumulator(x.dtype), copy=False), axes))
        return result.astype(x.dtype, copy=False).reshape(reduced_shape(x.shape, axes, keepdims))


def fold_sum(x: Array, axes: tuple[int, ...]) -> Array:
    """Add up; integers wrap."""
    return np.asarray(np.add.reduce(x, axis=axes, dtype=x.dtype, keepdims=True))


def fold_mean(x: Array, axes: tuple[int, ...]) -> Array:
    """Average; the mean of nothing is NaN, or 0 for integers, which truncate."""
    total, terms = fold_sum(x, axes), prod(x.shape[axis] for axis in axes)
    if x.dtype.kind in "iu":
        return truncate(total.astype(np.float64) / np.float64(terms), x.dtype)
    return np.asarray(total / x.dtype.type(terms))


def fold_prod(x: Array, axes: tuple[int, ...]) -> Array:
    """Multiply; integers wrap."""
    return np.asarray(np.multiply.reduce(x, axis=axes, dtype=x.dtype, keepdims=True))


def fold_l1(x: Array, axes: tuple[int, ...]) -> Array:
    """Add up magnitudes."""
    return fold_sum(np.abs(x), axes)


def fold_l2(x: Array, axes: tuple[int, ...]) -> Array:
    """Take the root of the sum of squares; integers truncate."""
    total = fold_sum_square(x, axes)
    return truncate(np.sqrt(total.astype(np.float64)), x.dtype) if x.dtype.kind in "iu" else np.sqrt(total)


def fold_sum_square(x: Array, axes: tuple[int, ...]) -> Array:
    """Add up squares."""
    return fold_sum(np.multiply(x, x), axes)


def fold_log_sum(x: Array, axes: tuple[int, ...]) -> Array:
    """Take the logarithm of the sum; integers truncate."""
    total = fold_sum(x, axes)
    return truncate(np.log(total.astype(np.float64)), x.dtype) if x.dtype.kind in "iu" else np.asarray(np.log(total))


def fold_log_sum_exp(x: Array, axes: tuple[int, ...]) -> Array:
    """Take the logarithm of the sum of exponentials, shifted by the largest where it is finite; integers truncate."""
    if x.dtype.kind in "iu":
        return truncate(fold_log_sum_exp(x.astype(np.float64), axes), x.dtype)
    largest = np.maximum.reduce(x, axis=axes, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(largest), largest, x.dtype.type(0))
    return np.asarray(np.log(fold_sum(np.exp(x - shift), axes)) + shift)


def fold_max(x: Array, axes: tuple[int, ...]) -> Array:
    """Take the greatest; NaN wins, and 0 is greater than -0."""
    result = np.asarray(np.maximum.reduce(x, axis=axes, keepdims=True, initial=_bound(x.dtype, lowest=True)))
    return _settle_zeros(x, result, axes, greater=True)


def fold_min(x: Array, axes: tuple[int, ...]) -> Array:
    """Take the least; NaN wins, and -0 is less than 0."""
    result = np.asarray(np.minimum.reduce(x, axis=axes, keepdims=True, initial=_bound(x.dtype, lowest=False)))
    return _settle_zeros(x, result, axes, greater=False)


def count_scratch(function: Fold, x: TensorSpec, y: TensorSpec) -> list[int]:
    """Return the bytes of what `prepare_fold` works in: terms, and for one of its folds numbers and flags of rows."""
    if function is fold_log_sum_exp:
        return [x.nbytes, y.nbytes, y.size]
    return [x.nbytes] if function in _TERMS else []


def prepare_fold(
    function: Fold, x: Array, y: Array, axes: tuple[int, ...], scratch: Sequence[Array]
) -> PreparedCalls | None:
    """Return the calls of a fold; None: there are none.

    Args:
        function: The fold.
        x: What is folded.
        y: The result, with the reduced axes.
        axes: Those.
        scratch: Arrays of what `count_scratch` returned.
    """
    if function in (fold_max, fold_min):
        return _prepare_extremum(x, y, axes, greater=function is fold_max)
    if x.dtype == y.dtype and x.dtype.kind in "iu" and function in (fold_sum, fold_prod):
        return [partial(_REDUCERS[function], x, axes, x.dtype, y, True)]
    if not is_plain(x, y.dtype):
        return None
    if function is fold_log_sum_exp:
        return _prepare_log_sum_exp(x, y, axes, scratch) if len(scratch) > 2 else None
    calls: list[Callable[[], object]] = []
    terms = x
    if function in _TERMS:
        if not scratch:
            return None
        terms = view_bytes(scratch[0], x.shape, x.dtype)
        given = (x,) if function is fold_l1 else (x, x)
        calls.append(partial(_TERMS[function], *given, out=terms))
    calls.append(partial(_REDUCERS.get(function, np.add.reduce), terms, axes, x.dtype, y, True))
    if function is fold_mean:
        calls.append(partial(np.divide, y, np.array(prod(x.shape[axis] for axis in axes), y.dtype), out=y))
    elif function in _FINISHES:
        calls.append(partial(_FINISHES[function], y, out=y))
    return calls


_TERMS: Mapping[Fold, np.ufunc] = {fold_l1: np.absolute, fold_l2: np.multiply, fold_sum_square: np.multiply}
_REDUCERS: Mapping[Fold, Callable[..., Any]] = {fold_sum: np.add.reduce, fold_prod: np.multiply.reduce}
_FINISHES: Mapping[Fold, np.ufunc] = {fold_l2: np.sqrt, fold_log_sum: np.log}


def _prepare_extremum(x: Array, y: Array, axes: tuple[int, ...], *, greater: bool) -> PreparedCalls | None:
    """Return the calls of `fold_max` or `fold_min`."""
    if accumulator(x.dtype) != x.dtype or not x.size:
        return None
    reduce = np.maximum.reduce if greater else np.minimum.reduce
    calls: list[Callable[[], object]] = [partial(reduce, x, axes, None, y, True, _bound(x.dtype, lowest=greater))]
    if x.dtype.kind == "f":

        def settle() -> None:
            if np.count_nonzero(y) < y.size:
                y[...] = _settle_zeros(x, y, axes, greater)

        calls.append(settle)
    return calls


def _prepare_log_sum_exp(x: Array, y: Array, axes: tuple[int, ...], scratch: Sequence[Array]) -> PreparedCalls:
    """Return the calls of `fold_log_sum_exp` for floats."""
    terms, shift = view_bytes(scratch[0], x.shape, x.dtype), view_bytes(scratch[1], y.shape, x.dtype)
    is_finite = view_bytes(scratch[2], y.shape, np.dtype(np.bool_))
    return [
        partial(np.maximum.reduce, x, axes, None, y, True, -np.inf),
        partial(np.isfinite, y, out=is_finite),
        partial(shift.fill, 0),
        partial(np.copyto, shift, y, "same_kind", is_finite),
        partial(np.subtract, x, shift, out=terms),
        partial(np.exp, terms, out=terms),
        partial(np.add.reduce, terms, axes, None, y, True),
        partial(np.log, y, out=y),
        partial(np.add, y, shift, out=y),
    ]


def _bound(dtype: np.dtype[Any], lowest: bool) -> Any:
    """Return the identity of Max (``lowest``) or Min: an infinity, or the bound of an integer type."""
    if dtype.kind == "f":
        return dtype.type(-np.inf if lowest else np.inf)
    if dtype.kind == "b":
        return not lowest
    return np.iinfo(dtype).min if lowest else np.iinfo(dtype).max


def _settle_zeros(x: Array, result: Array, axes: tuple[int, ...], greater: bool) -> Array:
    """Set the sign of zeros as IEEE 754-2019 maximum and minimum do; NumPy's depends on the order of its reads."""
    if x.dtype.kind != "f" or not (is_zero := result == 0).any():
        return result
    wins = (x == 0) & (np.signbit(x) != greater)  # zeros of the winning sign
    is_positive = np.logical_or.reduce(wins, axis=axes, keepdims=True) == greater
    return np.where(is_zero, np.where(is_positive, x.dtype.type(0.0), x.dtype.type(-0.0)), result)
