"""Shape functions: shape queries, reshape, transpose, broadcasting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.geometry import normalize_axes, normalize_axis
from gpuexec.ir.spec import Dim
from gpuexec.model.tracing.nodes import add_node
from gpuexec.model.tracing.promotion import INT64, as_symbolic, cast
from gpuexec.model.tracing.symbolic import SymbolicArray
from gpuexec.model.tracing.tracer import Tracer

__all__ = [
    "at_least_1d", "at_least_2d", "at_least_3d", "atleast_1d", "atleast_2d", "atleast_3d", "broadcast_arrays",
    "broadcast_to", "expand_dims", "extent", "flatten", "matrix_transpose", "move_dim", "moveaxis", "ndim", "permute",
    "permute_dims", "ravel", "reshape", "shape", "size", "squeeze", "swapaxes", "transpose", "unsqueeze",
]  # fmt: skip


def shape(a: Any) -> tuple[Any, ...]:
    """Return the extents: ints, and symbolic scalars for free dimensions."""
    return as_symbolic(a).shape


def ndim(a: Any) -> int:
    """Return the number of axes."""
    return as_symbolic(a).ndim


def size(a: Any, axis: int | None = None) -> Any:
    """Return the number of elements, or the extent of an axis: an int, or a symbolic scalar."""
    array = as_symbolic(a)
    if axis is not None:
        return extent(array, axis)
    dims = array._known_dims()
    fixed = [dim for dim in dims if isinstance(dim, int)]
    if len(fixed) == len(dims):
        return int(np.prod(fixed, dtype=np.int64))
    return as_weak(add_node("Size", array, dtype=INT64))


def extent(array: SymbolicArray, axis: int) -> Any:
    """Return the extent of an axis: an int, or a symbolic scalar that is an int as far as promotion goes."""
    axis = normalize_axis(axis, array.ndim)
    dim = array._known_dims()[axis]
    if isinstance(dim, int):
        return dim
    (row,) = array._tracer.apply("Shape", [array], attributes={"start": axis, "end": axis + 1})
    return as_weak(squeeze(row, 0))


def as_weak(array: SymbolicArray) -> SymbolicArray:
    """Return an integer that is a Python int as far as promotion goes."""
    return SymbolicArray(array._tracer, array._value, array.dtype, array.dims, is_weak=True)


def find_axis(array: SymbolicArray, axis: int) -> int:
    """Return an axis counted from the front."""
    return normalize_axis(int(axis), array.ndim)


def constant_ints(tracer: Tracer, items: Sequence[int]) -> SymbolicArray:
    """Return a constant vector of int64."""
    return tracer.add_constant(np.array(items, np.int64))


def shape_vector(tracer: Tracer, items: Any) -> SymbolicArray:
    """Return extents as a vector of int64; they are ints, symbolic scalars, or a symbolic vector as a whole.

    Raises:
        InputError: They are something else.
    """
    if isinstance(items, SymbolicArray):
        return cast(items, INT64) if items.ndim else expand_dims(cast(items, INT64), 0)
    listed = list(items) if isinstance(items, (list, tuple, np.ndarray)) else [items]
    plain = [as_int(item) for item in listed]
    known = [item for item in plain if item is not None]
    if len(known) == len(plain):
        return constant_ints(tracer, known)
    pieces = []
    for item, number in zip(listed, plain, strict=True):
        piece = constant_ints(tracer, [number]) if number is not None else expand_dims(cast(item, INT64), 0)
        pieces.append(piece)
    return tracer.apply("Concat", pieces, attributes={"axis": 0})[0] if len(pieces) > 1 else pieces[0]


def as_int(item: Any) -> int | None:
    """Return an extent or position as an int, or None where it is a symbolic scalar known only at run time.

    Raises:
        InputError: It is no integer.
    """
    if isinstance(item, SymbolicArray):
        if item.dtype.kind not in "iu" or item.dims != ():
            raise InputError(f"expected an integer, got {item!r}.")
        content = item._tracer.content_of(item)
        return None if content is None else int(content)
    try:
        return int(np.asarray(item).__index__())
    except TypeError as error:
        raise InputError(f"expected an integer, got {item!r}.") from error


def as_dims(items: Any) -> tuple[Dim, ...]:
    """Return extents as dims, None for each that is known only at run time."""
    if isinstance(items, SymbolicArray):
        content = items._tracer.content_of(items)
        if content is None:
            length = items._known_dims()[0] if items.ndim else 1
            return (None,) * length if isinstance(length, int) else ()
        return tuple(int(item) for item in np.atleast_1d(content))
    return tuple(as_int(item) for item in (items if isinstance(items, (list, tuple, np.ndarray)) else [items]))


def reshape(a: Any, shape: Any, order: str = "C") -> SymbolicArray:
    """Reshape; one extent may be -1, any may be symbolic."""
    if order != "C":
        raise InputError(f"reshape works in order 'C', got {order!r}; transpose before and after it.")
    array = as_symbolic(a)
    dims = as_dims(shape)
    if array.dims is not None and dims == array.dims and all(isinstance(dim, int) and dim >= 0 for dim in dims):
        return array
    vector = shape_vector(array._tracer, shape)
    otherwise = [(array.dtype, tuple(None if dim == -1 else dim for dim in dims))]
    zero = 0 if -1 in dims else 1
    return array._tracer.apply("Reshape", [array, vector], attributes={"allowzero": zero}, otherwise=otherwise)[0]


def expand_dims(a: Any, axis: int | Sequence[int]) -> SymbolicArray:
    """Add axes of extent 1."""
    array = as_symbolic(a)
    axes = [axis] if isinstance(axis, int) else list(axis)
    wanted = normalize_axes(axes, array.ndim + len(axes))
    if not wanted:
        return array
    return array._tracer.apply("Unsqueeze", [array, constant_ints(array._tracer, wanted)])[0]


unsqueeze = expand_dims


def squeeze(a: Any, axis: int | Sequence[int] | None = None) -> SymbolicArray:
    """Drop axes of extent 1: those named, or all that are known to be."""
    array = as_symbolic(a)
    if axis is None:
        axes = tuple(i for i, dim in enumerate(array._known_dims()) if dim == 1)
    else:
        axes = normalize_axes([axis] if isinstance(axis, int) else list(axis), array.ndim)
    if not axes:
        return array
    left = tuple(dim for i, dim in enumerate(array._known_dims()) if i not in axes)
    vector = constant_ints(array._tracer, axes)
    wrong = [dim for i, dim in enumerate(array._known_dims()) if i in axes and isinstance(dim, int) and dim != 1]
    if wrong:
        raise InputError(f"{array!r} has an extent of {wrong[0]} at axes {axes}; expected 1 to squeeze.")
    return array._tracer.apply("Squeeze", [array, vector], otherwise=[(array.dtype, left)])[0]


def transpose(a: Any, axes: Sequence[int] | None = None) -> SymbolicArray:
    """Reorder the axes; without an order, reverse them."""
    array = as_symbolic(a)
    order = tuple(range(array.ndim))[::-1] if axes is None else normalize_axes(list(axes), array.ndim)
    if sorted(order) != list(range(array.ndim)):
        raise InputError(f"transpose of {array!r} expects each of its {array.ndim} axes once, got {axes}.")
    if order == tuple(range(array.ndim)):
        return array
    return array._tracer.apply("Transpose", [array], attributes={"perm": order})[0]


permute = permute_dims = transpose


def swapaxes(a: Any, axis1: int, axis2: int) -> SymbolicArray:
    """Exchange two axes."""
    array = as_symbolic(a)
    order = list(range(array.ndim))
    first, second = find_axis(array, axis1), find_axis(array, axis2)
    order[first], order[second] = second, first
    return transpose(array, order)


def matrix_transpose(a: Any) -> SymbolicArray:
    """Exchange the last two axes."""
    return swapaxes(a, -1, -2)


def moveaxis(a: Any, source: int | Sequence[int], destination: int | Sequence[int]) -> SymbolicArray:
    """Move axes to other places."""
    array = as_symbolic(a)
    pairs = [(axes,) if isinstance(axes, int) else tuple(axes) for axes in (source, destination)]
    sources, places = (normalize_axes(axes, array.ndim) for axes in pairs)
    if len(sources) != len(places):
        raise InputError(f"moveaxis expects as many destinations as sources, got {source} and {destination}.")
    order = [axis for axis in range(array.ndim) if axis not in sources]
    for place, axis in sorted(zip(places, sources, strict=True)):
        order.insert(place, axis)
    return transpose(array, order)


move_dim = moveaxis


def ravel(a: Any) -> SymbolicArray:
    """Flatten an array to one axis."""
    array = as_symbolic(a)
    return array if array.dims is not None and len(array.dims) == 1 else reshape(array, (-1,))


def flatten(a: Any) -> SymbolicArray:
    """Flatten an array to one axis, as a copy."""
    return ravel(a).copy()


def broadcast_to(a: Any, shape: Any) -> SymbolicArray:
    """Repeat along axes of extent 1, to a shape that may have symbolic extents."""
    array = as_symbolic(a)
    dims = as_dims(shape)
    if array.dims == dims and all(isinstance(dim, int) for dim in dims):
        return array
    for ours, theirs in zip(reversed(array.dims or ()), reversed(dims), strict=False):
        if isinstance(ours, int) and isinstance(theirs, int) and ours not in (1, theirs):
            raise InputError(f"{array!r} can't be broadcast to {list(dims)}.")
    if array.dims is not None and len(array.dims) > len(dims):
        raise InputError(f"{array!r} can't be broadcast to {list(dims)}: it has more axes.")
    vector = shape_vector(array._tracer, shape)
    return array._tracer.apply("Expand", [array, vector], otherwise=[(array.dtype, dims)])[0]


def broadcast_arrays(*arrays: Any) -> tuple[SymbolicArray, ...]:
    """Broadcast arrays against each other."""
    given = [as_symbolic(array) for array in arrays]
    common = broadcast_shape(given)
    return tuple(broadcast_to(array, common) for array in given)


def broadcast_shape(arrays: Sequence[SymbolicArray]) -> tuple[Any, ...]:
    """Return the shape arrays have in common: of free extents, the one that is not known to be 1."""
    rank = max(array.ndim for array in arrays)
    shape: list[Any] = []
    for axis in range(-rank, 0):
        chosen: Any = 1
        for array in arrays:
            dim = array._known_dims()[axis] if array.ndim >= -axis else 1
            if dim != 1 and (not isinstance(chosen, int) or chosen == 1):
                chosen = extent(array, axis)
        shape.append(chosen)
    return tuple(shape)


def atleast_1d(a: Any) -> SymbolicArray:
    """Add an axis to an array that has none."""
    array = as_symbolic(a)
    return array if array.ndim else expand_dims(array, 0)


def atleast_2d(a: Any) -> SymbolicArray:
    """Add axes in front of an array until it has two."""
    array = atleast_1d(a)
    return array if array.ndim > 1 else expand_dims(array, 0)


def atleast_3d(a: Any) -> SymbolicArray:
    """Add axes to an array until it has three; where it has two, the third comes last."""
    array = atleast_2d(a)
    return array if array.ndim > 2 else expand_dims(array, 2)


at_least_1d, at_least_2d, at_least_3d = atleast_1d, atleast_2d, atleast_3d
