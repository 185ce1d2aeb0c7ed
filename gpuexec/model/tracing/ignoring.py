"""NaN-ignoring reductions."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuexec.model.tracing.elementwise import choose, divide, isnan
from gpuexec.model.tracing.promotion import FLOAT64, as_symbolic, cast
from gpuexec.model.tracing.reducing import Axes, all, count_nonzero, max, min, sum
from gpuexec.model.tracing.symbolic import SymbolicArray

__all__ = ["nanmax", "nanmean", "nanmin", "nansum"]


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
    return _choose(max, -np.inf, a, axis, keepdims)


def nanmin(a: Any, axis: Axes = None, keepdims: bool = False) -> SymbolicArray:
    """Return the smallest element that is not NaN; where there is none, NaN."""
    return _choose(min, np.inf, a, axis, keepdims)


def _choose(function: Any, least: float, a: Any, axis: Axes, keepdims: bool) -> SymbolicArray:
    array = as_symbolic(a)
    if array.dtype.kind in "iub":
        return function(array, axis, keepdims)  # type: ignore[no-any-return]
    is_none = isnan(array)
    found = function(choose(is_none, least, array), axis, keepdims)
    return choose(all(is_none, axis, keepdims), np.nan, found)
