"""Array creation: constants, ranges, filled and identity arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.model.tracing.elementwise import maximum, minimum, power
from gpuexec.model.tracing.promotion import INT64, as_symbolic, cast, kind_of, promote
from gpuexec.model.tracing.shaping import as_dims, broadcast_to, expand_dims, extent, moveaxis
from gpuexec.model.tracing.symbolic import SymbolicArray
from gpuexec.model.tracing.tracer import find_tracer

__all__ = [
    "arange", "array", "as_strided", "asarray", "astype", "clone", "diag", "diagonal", "empty", "empty_like", "eye",
    "full", "full_like", "identity", "linspace", "logspace", "ones", "ones_like", "trace", "tri", "vander", "zeros",
    "zeros_like",
]  # fmt: skip


def asarray(a: Any, dtype: Any = None) -> SymbolicArray:
    """Convert numbers, arrays or nests of them to a symbolic array."""
    return as_symbolic(a, dtype)


def array(a: Any, dtype: Any = None) -> SymbolicArray:
    """Convert numbers, arrays or nests of them to a symbolic array of its own."""
    return as_symbolic(a, dtype).copy()


def astype(a: Any, dtype: Any) -> SymbolicArray:
    """Convert the elements, in an array of its own."""
    return as_symbolic(a, dtype).copy()


def clone(a: Any) -> SymbolicArray:
    """Return an array of its own, which assignments to the other do not change."""
    return as_symbolic(a).copy()


def full(shape: Any, fill_value: Any, dtype: Any = None) -> SymbolicArray:
    """Fill an array with one value; extents may be symbolic, the value too."""
    tracer = find_tracer(shape, fill_value)
    value = as_symbolic(fill_value, dtype, tracer)
    return broadcast_to(value, shape if isinstance(shape, (tuple, list, SymbolicArray)) else (shape,))


def zeros(shape: Any, dtype: Any = np.float64) -> SymbolicArray:
    """Return an array of zeros."""
    return full(shape, 0, dtype)


def ones(shape: Any, dtype: Any = np.float64) -> SymbolicArray:
    """Return an array of ones."""
    return full(shape, 1, dtype)


empty = zeros


def full_like(a: Any, fill_value: Any, dtype: Any = None) -> SymbolicArray:
    """Fill an array of another's shape and dtype with one value."""
    given = as_symbolic(a)
    return full(given.shape, as_symbolic(fill_value, dtype or given.dtype, given._tracer))


def zeros_like(a: Any, dtype: Any = None) -> SymbolicArray:
    """Return zeros of another array's shape and dtype."""
    return full_like(a, 0, dtype)


def ones_like(a: Any, dtype: Any = None) -> SymbolicArray:
    """Return ones of another array's shape and dtype."""
    return full_like(a, 1, dtype)


empty_like = zeros_like


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> SymbolicArray:
    """Count from start to before stop by steps, any of them symbolic."""
    if stop is None:
        start, stop = 0, start
    tracer = find_tracer(start, stop, step)
    if not any(isinstance(each, SymbolicArray) for each in (start, stop, step)):
        return tracer.add_constant(np.arange(start, stop, step, dtype=dtype))
    counted = promote(*(kind_of(each) for each in (start, stop, step)))
    kind = np.dtype(dtype or counted)
    wide = kind if kind.kind not in "iub" else INT64
    if kind == np.float16 or kind.name == "bfloat16":
        wide = np.dtype(np.float32)
    bounds = [as_symbolic(each, wide, tracer) for each in (start, stop, step)]
    return cast(tracer.apply("Range", bounds, otherwise=[(wide, (None,))])[0], kind)


def linspace(start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None) -> SymbolicArray:
    """Return evenly spaced numbers, the last at ``stop`` if ``endpoint``; start and stop may be symbolic."""
    tracer = find_tracer(start, stop)
    if num < 0:
        raise InputError(f"linspace gives 0 numbers or more, got num={num}.")
    if not any(isinstance(each, SymbolicArray) for each in (start, stop)):
        return tracer.add_constant(np.linspace(start, stop, num, endpoint, dtype=dtype))
    counted = promote(kind_of(start), kind_of(stop), float)
    first, last = (as_symbolic(each, counted, tracer) for each in (start, stop))
    weights = np.linspace(0.0, 1.0, num, endpoint).reshape(-1, *[1] * max(first.ndim, last.ndim))
    row = first + (last - first) * weights.astype(counted)
    if endpoint and num > 1:
        row = row.at[-1].set(last)
    return row if dtype is None else cast(row, dtype)


def logspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, base: float = 10.0, dtype: Any = None
) -> SymbolicArray:
    """Return powers of ``base`` with evenly spaced exponents."""
    row = power(base, linspace(start, stop, num, endpoint))
    return row if dtype is None else cast(row, dtype)


def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = np.float64) -> SymbolicArray:
    """Return a matrix of ones on a diagonal, zeros elsewhere."""
    return find_tracer().add_constant(np.eye(N, M, k, dtype))


identity = eye


def tri(N: int, M: int | None = None, k: int = 0, dtype: Any = np.float64) -> SymbolicArray:
    """Return a matrix of ones on and below a diagonal, zeros elsewhere."""
    return find_tracer().add_constant(np.tri(N, M, k, dtype))


def as_strided(a: Any, shape: Any, strides: Any, offset: int = 0) -> SymbolicArray:
    """View by strides: element (i, j, ...) is at ``offset`` plus i, j, ... strides of *elements*.

    The elements are numbered in the array's own order, dense.
    """
    given = as_symbolic(a)
    if not all(isinstance(dim, int) for dim in as_dims(shape)) or len(shape) != len(strides):
        raise InputError(f"as_strided takes fixed extents and as many strides, got {shape} and {strides}.")
    places = np.full(tuple(int(extent) for extent in shape), offset, np.int64)
    for axis, stride in enumerate(strides):
        ramp = np.arange(places.shape[axis]) * stride
        places += ramp.reshape(-1, *[1] * (places.ndim - axis - 1))
    return given.ravel()[places]


def diag(a: Any, k: int = 0) -> SymbolicArray:
    """Return the diagonal of a matrix, or the matrix that has a row on its diagonal."""
    given = as_symbolic(a)
    if given.ndim == 2:
        return diagonal(given, k)
    length = extent(given, 0)
    places = _count_up(length)
    blank = zeros((length + abs(k), length + abs(k)), given.dtype)
    return blank.at[places + max(-k, 0), places + max(k, 0)].set(given)


def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> SymbolicArray:
    """Return the diagonals over two axes, as the last axis."""
    given = moveaxis(as_symbolic(a), (axis1, axis2), (-2, -1))
    rows, columns = extent(given, -2) + min(offset, 0), extent(given, -1) - max(offset, 0)
    if isinstance(rows, int) and isinstance(columns, int):
        length: Any = max(0, min(rows, columns))
    else:
        length = maximum(0, minimum(rows, columns))
    places = _count_up(length)
    return given[..., places + max(-offset, 0), places + max(offset, 0)]


def _count_up(length: Any) -> Any:
    return arange(length) if isinstance(length, SymbolicArray) else np.arange(length)


def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> SymbolicArray:
    """Add up the diagonals of two axes."""
    return diagonal(a, offset, axis1, axis2).sum(-1)


def vander(x: Any, N: int, increasing: bool = False) -> SymbolicArray:
    """Return the Vandermonde matrix of a row, a column for each power."""
    exponents = np.arange(N) if increasing else np.arange(N)[::-1]
    given = as_symbolic(x)
    return expand_dims(given, 1) ** as_symbolic(exponents.copy(), given.dtype, given._tracer)
