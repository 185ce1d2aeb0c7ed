"""Reductions over axes, with NumPy's dtypes; those that ignore NaN too."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.geometry import normalize_axes
from gpuexec.model.tracing.elementwise import choose, divide, isclose, isnan, sqrt, square
from gpuexec.model.tracing.nodes import add_node
from gpuexec.model.tracing.promotion import BOOL, FLOAT64, INT64, as_symbolic, cast, kind_of, promote
from gpuexec.model.tracing.shaping import broadcast_to, constant_ints, expand_dims, find_axis, ravel, reshape, size
from gpuexec.model.tracing.symbolic import SymbolicArray
from gpuexec.model.tracing.tracer import find_tracer

__all__ = [
    "all", "allclose", "amax", "amin", "any", "arg_max", "arg_min", "argmax", "argmin", "average", "count_nonzero",
    "cum_sum", "cumprod", "cumsum", "logsumexp", "max", "mean", "min", "nanmax", "nanmean", "nanmin", "nansum",
    "prod", "ptp", "reduce_l1", "reduce_l2", "reduce_log_sum", "reduce_log_sum_exp", "reduce_max", "reduce_mean",
    "reduce_min", "reduce_prod", "reduce_sum", "reduce_sum_square", "reduce_variance", "std", "sum", "var",
]  # fmt: skip

Axes = int | Sequence[int] | None
_WIDER = {
    np.dtype(np.bool_): np.dtype(np.uint8),
    np.dtype(np.int16): np.dtype(np.int32),
    np.dtype(np.uint16): np.dtype(np.uint32),
}


def reduce_node(
    name: str, array: SymbolicArray, axis: Axes, keepdims: bool, *, is_extreme: bool = False
) -> SymbolicArray:
    """Add a node that reduces over axes, all if None.

    Raises:
        InputError: An extreme over no elements is asked for, or an axis is not there.
    """
    if axis is not None and not isinstance(axis, int):
        axis = tuple(int(each) for each in axis)
    axes = (
        tuple(range(array.ndim))
        if axis is None
        else normalize_axes([axis] if isinstance(axis, int) else axis, array.ndim)
    )
    if is_extreme and builtins.any(array._known_dims()[each] == 0 for each in axes):
        raise InputError(f"{array!r} has no elements along axes {axes} to choose from.")
    if not axes:
        # Without axes ONNX's reductions reduce over all.
        return reduce_node(name, expand_dims(array, array.ndim), array.ndim, False)
    kept = [1 if i in axes else dim for i, dim in enumerate(array._known_dims()) if keepdims or i not in axes]
    vector = constant_ints(array._tracer, axes)
    otherwise = [(array.dtype, tuple(kept))]
    attributes = {"keepdims": int(keepdims)}
    return array._tracer.apply(name, [array, vector], attributes=attributes, otherwise=otherwise)[0]


def _for_sum(a: Any, dtype: Any) -> SymbolicArray:
    array = as_symbolic(a)
    if dtype is not None:
        return cast(array, dtype)
    kind = array.dtype.kind
    return cast(array, np.uint64 if kind == "u" else np.int64) if kind in "iub" else array


def sum(a: Any, axis: Axes = None, dtype: Any = None, keepdims: bool = False) -> SymbolicArray:
    """Add up. Integers are added as int64 or uint64."""
    return _sum_like("ReduceSum", a, axis, dtype, keepdims)


def prod(a: Any, axis: Axes = None, dtype: Any = None, keepdims: bool = False) -> SymbolicArray:
    """Multiply up. Integers are multiplied as int64 or uint64."""
    return _sum_like("ReduceProd", a, axis, dtype, keepdims)


def _sum_like(name: str, a: Any, axis: Axes, dtype: Any, keepdims: bool) -> SymbolicArray:
    array = _for_sum(a, dtype)
    if array.dtype.kind in "iu" and array.dtype.itemsize < 4:
        return cast(reduce_node(name, cast(array, np.int32), axis, keepdims), array.dtype)
    return reduce_node(name, array, axis, keepdims)


def mean(a: Any, axis: Axes = None, dtype: Any = None, keepdims: bool = False) -> SymbolicArray:
    """Average. Integers are averaged as float64."""
    array = as_symbolic(a)
    if dtype is None and array.dtype.kind in "iub":
        dtype = FLOAT64
    return reduce_node("ReduceMean", array if dtype is None else cast(array, dtype), axis, keepdims)


def max(a: Any, axis: Axes = None, keepdims: bool = False) -> SymbolicArray:
    """Return the largest element; a NaN is larger than all."""
    return _extreme("ReduceMax", a, axis, keepdims)


def min(a: Any, axis: Axes = None, keepdims: bool = False) -> SymbolicArray:
    """Return the smallest element; a NaN is smaller than all."""
    return _extreme("ReduceMin", a, axis, keepdims)


amax, amin = max, min


def _extreme(name: str, a: Any, axis: Axes, keepdims: bool) -> SymbolicArray:
    array = as_symbolic(a)
    wide = cast(array, _WIDER.get(array.dtype, array.dtype))
    return cast(reduce_node(name, wide, axis, keepdims, is_extreme=True), array.dtype)


def ptp(a: Any, axis: Axes = None, keepdims: bool = False) -> SymbolicArray:
    """Return the range from the smallest to the largest element."""
    return max(a, axis, keepdims) - min(a, axis, keepdims)


def any(a: Any, axis: Axes = None, keepdims: bool = False) -> SymbolicArray:
    """Test whether some element is not 0."""
    return _reduce_bool("ReduceMax", a, axis, keepdims)


def all(a: Any, axis: Axes = None, keepdims: bool = False) -> SymbolicArray:
    """Test whether no element is 0."""
    return _reduce_bool("ReduceMin", a, axis, keepdims)


def _reduce_bool(name: str, a: Any, axis: Axes, keepdims: bool) -> SymbolicArray:
    """Reduce bools as 0 and 1. An axis of no elements has none that holds, and none that does not."""
    array = cast(as_symbolic(a), BOOL)
    dims = array._known_dims()
    if all_fixed(dims) and 0 not in dims:
        return cast(reduce_node(name, cast(array, np.uint8), axis, keepdims), BOOL)
    held = array if name == "ReduceMax" else ~array
    count = reduce_node("ReduceSum", cast(held, INT64), axis, keepdims)
    return count > 0 if name == "ReduceMax" else count == 0


def all_fixed(dims: Sequence[Any]) -> bool:
    """Return whether no extent is free."""
    return len([dim for dim in dims if isinstance(dim, int)]) == len(dims)


def count_nonzero(a: Any, axis: Axes = None, keepdims: bool = False) -> SymbolicArray:
    """Count elements that are not 0."""
    return sum(cast(as_symbolic(a), BOOL), axis, keepdims=keepdims)


def _count_along(array: SymbolicArray, axis: Axes) -> Any:
    if axis is None:
        return size(array)
    count: Any = 1
    for each in [axis] if isinstance(axis, int) else axis:
        count = count * size(array, each)
    return count


def var(
    a: Any,
    axis: Axes = None,
    dtype: Any = None,
    ddof: float = 0,
    keepdims: bool = False,
    correction: float | None = None,
) -> SymbolicArray:
    """Return the variance: squared distances from the mean, added up and divided by their number less ``ddof``."""
    array = as_symbolic(a)
    if dtype is not None or array.dtype.kind in "iub":
        array = cast(array, dtype or FLOAT64)
    squares = square(array - mean(array, axis, keepdims=True))
    less = ddof if correction is None else correction
    if not less:
        return mean(squares, axis, keepdims=keepdims)
    return divide(sum(squares, axis, keepdims=keepdims), _count_along(array, axis) - less)


def std(
    a: Any,
    axis: Axes = None,
    dtype: Any = None,
    ddof: float = 0,
    keepdims: bool = False,
    correction: float | None = None,
) -> SymbolicArray:
    """Return the standard deviation, the root of the variance."""
    return sqrt(var(a, axis, dtype, ddof, keepdims, correction))


def argmax(a: Any, axis: int | None = None, keepdims: bool = False) -> SymbolicArray:
    """Return the position of the first largest element, without an axis that in the flattened array."""
    return _arg("ArgMax", a, axis, keepdims)


def argmin(a: Any, axis: int | None = None, keepdims: bool = False) -> SymbolicArray:
    """Return the position of the first smallest element, without an axis that in the flattened array."""
    return _arg("ArgMin", a, axis, keepdims)


arg_max, arg_min = argmax, argmin


def _arg(name: str, a: Any, axis: int | None, keepdims: bool) -> SymbolicArray:
    array = as_symbolic(a)
    wide = cast(array, np.uint8) if array.dtype == BOOL else array
    if axis is None:
        place = add_node(name, ravel(wide), dtype=INT64, axis=0, keepdims=0)
        return reshape(place, (1,) * array.ndim) if keepdims else place
    axis = find_axis(array, axis)
    kept = tuple(1 if i == axis else d for i, d in enumerate(array._known_dims()) if keepdims or i != axis)
    attributes = {"axis": axis, "keepdims": int(keepdims)}
    return array._tracer.apply(name, [wide], attributes=attributes, otherwise=[(INT64, kept)])[0]


def cumsum(a: Any, axis: int | None = None, dtype: Any = None) -> SymbolicArray:
    """Add up from the front of an axis, or of all elements in a row."""
    return _cumulate("CumSum", a, axis, dtype)


def cumprod(a: Any, axis: int | None = None, dtype: Any = None) -> SymbolicArray:
    """Multiply up from the front of an axis, or of all elements in a row."""
    return _cumulate("CumProd", a, axis, dtype)


cum_sum = cumsum


def _cumulate(name: str, a: Any, axis: int | None, dtype: Any) -> SymbolicArray:
    array = _for_sum(a, dtype)
    if axis is None:
        array, axis = ravel(array), 0
    place = array._tracer.add_constant(np.int64(find_axis(array, axis)))
    return array._tracer.apply(name, [array, place], otherwise=[(array.dtype, array.dims)])[0]


def logsumexp(a: Any, axis: Axes = None, keepdims: bool = False) -> SymbolicArray:
    """Return the logarithm of the sum of exponentials, without overflow."""
    array = as_symbolic(a)
    return reduce_node("ReduceLogSumExp", cast(array, FLOAT64) if array.dtype.kind in "iub" else array, axis, keepdims)


def average(a: Any, axis: Axes = None, weights: Any = None, keepdims: bool = False) -> SymbolicArray:
    """Average, by weights of the array's shape or, along one axis, a row of them."""
    if weights is None:
        return mean(a, axis, keepdims=keepdims)
    dtype = promote(kind_of(a), kind_of(weights))
    dtype = FLOAT64 if dtype.kind in "iub" else dtype
    tracer = find_tracer(a, weights)
    array, given = as_symbolic(a, dtype, tracer), as_symbolic(weights, dtype, tracer)
    if given.ndim == 1 and array.ndim > 1 and isinstance(axis, int):
        place = find_axis(array, axis)
        given = expand_dims(given, [i for i in range(array.ndim) if i != place])
    elif given.ndim != array.ndim:
        raise InputError(f"average of {array!r}: expected weights of its shape or a row along axis, got {given!r}.")
    weighed = broadcast_to(given, array.shape)
    return divide(sum(array * given, axis, keepdims=keepdims), sum(weighed, axis, keepdims=keepdims))


def allclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> SymbolicArray:
    """Test whether all elements are close, as `isclose` has it."""
    return all(isclose(a, b, rtol, atol, equal_nan))


def reduce_max(a: Any, axis: Axes = None, keepdims: bool = False) -> SymbolicArray:
    """Return the largest."""
    return max(a, axis, keepdims)


def reduce_min(a: Any, axis: Axes = None, keepdims: bool = False) -> SymbolicArray:
    """Return the smallest."""
    return min(a, axis, keepdims)


def reduce_l1(a: Any, axis: Axes = None, keepdims: bool = False) -> SymbolicArray:
    """Add up distances from zero."""
    return _sum_like("ReduceL1", a, axis, None, keepdims)


def reduce_l2(a: Any, axis: Axes = None, keepdims: bool = False) -> SymbolicArray:
    """Return the root of the sum of squares."""
    array = as_symbolic(a)
    return reduce_node("ReduceL2", cast(array, FLOAT64) if array.dtype.kind in "iub" else array, axis, keepdims)


def reduce_log_sum(a: Any, axis: Axes = None, keepdims: bool = False) -> SymbolicArray:
    """Return the logarithm of the sum."""
    return reduce_node("ReduceLogSum", as_symbolic(a), axis, keepdims)


def reduce_sum_square(a: Any, axis: Axes = None, keepdims: bool = False) -> SymbolicArray:
    """Add up squares."""
    return _sum_like("ReduceSumSquare", a, axis, None, keepdims)


reduce_log_sum_exp, reduce_mean, reduce_prod, reduce_sum, reduce_variance = logsumexp, mean, prod, sum, var


def nansum(a: Any, axis: Axes = None, dtype: Any = None, keepdims: bool = False) -> SymbolicArray:
    """Sum the elements that are not NaN."""
    array = as_symbolic(a)
    return sum(choose(isnan(array), 0, array), axis, dtype, keepdims)


def nanmean(a: Any, axis: Axes = None, dtype: Any = None, keepdims: bool = False) -> SymbolicArray:
    """Average the elements that are not NaN; where there are none, NaN."""
    array = as_symbolic(a)
    if dtype is not None or array.dtype.kind in "iub":
        array = cast(array, dtype or FLOAT64)
    count = count_nonzero(~isnan(array), axis, keepdims)
    return divide(nansum(array, axis, keepdims=keepdims), cast(count, array.dtype))


def nanmax(a: Any, axis: Axes = None, keepdims: bool = False) -> SymbolicArray:
    """Return the largest element that is not NaN; where there is none, NaN."""
    return _choose_not_nan(max, -np.inf, a, axis, keepdims)


def nanmin(a: Any, axis: Axes = None, keepdims: bool = False) -> SymbolicArray:
    """Return the smallest element that is not NaN; where there is none, NaN."""
    return _choose_not_nan(min, np.inf, a, axis, keepdims)


def _choose_not_nan(function: Any, lowest: float, a: Any, axis: Axes, keepdims: bool) -> SymbolicArray:
    array = as_symbolic(a)
    if array.dtype.kind in "iub":
        return function(array, axis, keepdims)  # type: ignore[no-any-return]
    is_none = isnan(array)
    found = function(choose(is_none, lowest, array), axis, keepdims)
    return choose(all(is_none, axis, keepdims), np.nan, found)
