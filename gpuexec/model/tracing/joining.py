"""Joining, splitting, repeating, flipping and padding of arrays."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.model.tracing.nodes import add_node
from gpuexec.model.tracing.promotion import as_symbolic, kind_of, promote, unify
from gpuexec.model.tracing.shaping import (
    atleast_1d,
    atleast_2d,
    atleast_3d,
    constant_ints,
    expand_dims,
    extent,
    find_axis,
    ravel,
    reshape,
    shape_vector,
    squeeze,
)
from gpuexec.model.tracing.symbolic import SymbolicArray
from gpuexec.model.tracing.tracer import find_tracer

__all__ = [
    "append", "array_split", "column_stack", "concat", "concatenate", "dstack", "flip", "flip_lr", "flip_ud", "fliplr",
    "flipud", "hstack", "meshgrid", "pad", "repeat", "roll", "split", "split_sizes", "stack", "tile", "tri_l", "tri_u",
    "tril", "triu", "unstack", "vstack",
]  # fmt: skip

_PAD_MODES = {"constant": "constant", "edge": "edge", "reflect": "reflect", "wrap": "wrap"}


def concatenate(arrays: Sequence[Any], axis: int | None = 0) -> SymbolicArray:
    """Join arrays along an axis they have; None joins all their elements."""
    given = list(unify(*arrays))
    if axis is None:
        given, axis = [ravel(array) for array in given], 0
    axis = find_axis(given[0], axis)
    for array in given:
        if array.ndim != given[0].ndim or any(
            isinstance(ours, int) and isinstance(theirs, int) and ours != theirs
            for i, (ours, theirs) in enumerate(zip(array._known_dims(), given[0]._known_dims(), strict=True))
            if i != axis
        ):
            raise InputError(f"{given[0]!r} and {array!r} can't be joined along axis {axis}.")
    if len(given) == 1:
        return given[0].copy()
    return given[0]._tracer.apply("Concat", given, attributes={"axis": axis})[0]


concat = concatenate


def stack(arrays: Sequence[Any], axis: int = 0) -> SymbolicArray:
    """Join arrays along a new axis."""
    return concatenate([expand_dims(array, axis) for array in unify(*arrays)], axis)


def vstack(arrays: Sequence[Any]) -> SymbolicArray:
    """Stack arrays vertically; arrays of one axis are rows."""
    return concatenate([atleast_2d(array) for array in unify(*arrays)], 0)


def hstack(arrays: Sequence[Any]) -> SymbolicArray:
    """Stack arrays horizontally: along the second axis, or the first of those with one."""
    given = [atleast_1d(array) for array in unify(*arrays)]
    return concatenate(given, 0 if given[0].ndim == 1 else 1)


def column_stack(arrays: Sequence[Any]) -> SymbolicArray:
    """Stack arrays as columns; matrices are joined side by side."""
    given = unify(*arrays)
    return concatenate([expand_dims(array, 1) if array.ndim == 1 else array for array in given], 1)


def append(a: Any, values: Any, axis: int | None = None) -> SymbolicArray:
    """Join two arrays along an axis, or all their elements in a row."""
    return concatenate([a, values], axis)


def dstack(arrays: Sequence[Any]) -> SymbolicArray:
    """Stack arrays along the third axis."""
    return concatenate([atleast_3d(array) for array in unify(*arrays)], 2)


def split(a: Any, sections: int | Sequence[int], axis: int = 0) -> list[SymbolicArray]:
    """Split an array into a number of equal parts, or before the positions listed."""
    array = as_symbolic(a)
    axis = find_axis(array, axis)
    if isinstance(sections, int):
        dim = array._known_dims()[axis]
        if sections < 1 or (isinstance(dim, int) and dim % sections):
            raise InputError(f"{array!r} can't be taken apart into {sections} equal parts along axis {axis}.")
        attributes = {"axis": axis, "num_outputs": sections}
        return list(array._tracer.apply("Split", [array], count=sections, attributes=attributes))
    key = [slice(None)] * axis
    bounds = [None, *sections, None]
    return [array[(*key, slice(low, high))] for low, high in itertools.pairwise(bounds)]


def split_sizes(a: Any, sizes: Sequence[int], axis: int = 0) -> list[SymbolicArray]:
    """Split an array into parts of the sizes listed."""
    array = as_symbolic(a)
    vector = constant_ints(array._tracer, sizes)
    attributes = {"axis": find_axis(array, axis)}
    return list(array._tracer.apply("Split", [array, vector], count=len(sizes), attributes=attributes))


def array_split(a: Any, sections: int | Sequence[int], axis: int = 0) -> list[SymbolicArray]:
    """Split an array into parts; where they can't be equal, the first are larger by one."""
    array = as_symbolic(a)
    dim = array._known_dims()[find_axis(array, axis)]
    if isinstance(sections, int) and isinstance(dim, int):
        sizes = [dim // sections + (index < dim % sections) for index in range(sections)]
        return split_sizes(array, sizes, axis)
    if isinstance(sections, int):
        raise InputError(f"{array!r} can't be taken apart into {sections} parts: the extent of axis {axis} is free.")
    return split(array, sections, axis)


def flip(a: Any, axis: int | Sequence[int] | None = None) -> SymbolicArray:
    """Turn axes around: those named, or all."""
    array = as_symbolic(a)
    axes = range(array.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    turned = {find_axis(array, each) for each in axes}
    return array[tuple(slice(None, None, -1) if i in turned else slice(None) for i in range(array.ndim))]


def fliplr(a: Any) -> SymbolicArray:
    """Turn the second axis around."""
    return flip(a, 1)


def flipud(a: Any) -> SymbolicArray:
    """Turn the first axis around."""
    return flip(a, 0)


flip_lr, flip_ud = fliplr, flipud


def roll(a: Any, shift: int | Sequence[int], axis: int | Sequence[int] | None = None) -> SymbolicArray:
    """Roll elements along axes by fixed numbers of places; those shifted out at one end re-enter at the other."""
    array = as_symbolic(a)
    if axis is None:
        return roll(ravel(array), shift, 0).reshape(array.shape)
    axes = [axis] if isinstance(axis, int) else list(axis)
    shifts = [shift] * len(axes) if isinstance(shift, int) else list(shift)
    for each, places in zip(axes, shifts, strict=True):
        front = [slice(None)] * find_axis(array, each)
        length = extent(array, each)
        if isinstance(length, int):
            cut: Any = -places % length if length else 0
        else:
            cut = (-places) % length
        array = concatenate([array[(*front, slice(cut, None))], array[(*front, slice(None, cut))]], len(front))
    return array


def tile(a: Any, reps: Any) -> SymbolicArray:
    """Repeat the whole array along each axis, counts given from the last axis."""
    counts = list(reps) if isinstance(reps, (list, tuple)) else [reps]
    array = as_symbolic(a)
    if len(counts) > array.ndim:
        array = expand_dims(array, list(range(len(counts) - array.ndim)))
    counts = [1] * (array.ndim - len(counts)) + counts
    otherwise = [(array.dtype, (None,) * array.ndim)]
    return array._tracer.apply("Tile", [array, shape_vector(array._tracer, counts)], otherwise=otherwise)[0]


def repeat(a: Any, repeats: Any, axis: int | None = None) -> SymbolicArray:
    """Repeat each element along an axis, all the same number of times."""
    array = as_symbolic(a)
    if axis is None:
        array, axis = ravel(array), 0
    if not isinstance(repeats, (int, SymbolicArray)):
        counts = np.asarray(repeats)
        return array.take(np.repeat(np.arange(counts.size), counts), axis)
    axis = find_axis(array, axis)
    wide = tile(expand_dims(array, axis + 1), [1] * (axis + 1) + [repeats] + [1] * (array.ndim - axis - 1))
    shape = list(array.shape)
    shape[axis] = shape[axis] * repeats
    return reshape(wide, tuple(shape))


def pad(a: Any, pad_width: Any, mode: str = "constant", constant_values: Any = 0) -> SymbolicArray:
    """Pad an array with a value, its edge, or its inside mirrored or wrapped."""
    array = as_symbolic(a)
    if mode not in _PAD_MODES:
        raise InputError(f"pad has modes {', '.join(_PAD_MODES)}, got {mode!r}.")
    try:
        widths = np.broadcast_to(np.asarray(pad_width), (array.ndim, 2))
    except ValueError as error:
        raise InputError(f"pad widths {pad_width} don't fit {array!r}: {error}.") from error
    pads = constant_ints(array._tracer, [*widths[:, 0].tolist(), *widths[:, 1].tolist()])
    value = as_symbolic(constant_values, array.dtype, array._tracer) if mode == "constant" else None
    return array._tracer.apply("Pad", [array, pads, value], attributes={"mode": mode})[0]


def tril(a: Any, k: int = 0) -> SymbolicArray:
    """Keep the lower triangle of the last two axes, the rest is 0."""
    array = as_symbolic(a)
    return add_node("Trilu", array, array._tracer.add_constant(np.int64(k)), upper=0)


def triu(a: Any, k: int = 0) -> SymbolicArray:
    """Keep the upper triangle of the last two axes, the rest is 0."""
    array = as_symbolic(a)
    return add_node("Trilu", array, array._tracer.add_constant(np.int64(k)), upper=1)


tri_l, tri_u = tril, triu


def meshgrid(*arrays: Any, indexing: str = "xy") -> list[SymbolicArray]:
    """Spread rows over a grid, an axis each."""
    from gpuexec.model.tracing.shaping import broadcast_arrays

    rows = [ravel(as_symbolic(array, promote(kind_of(array)), find_tracer(*arrays))) for array in arrays]
    count = len(rows)
    order = [1, 0, *range(2, count)] if indexing == "xy" and count > 1 else list(range(count))
    placed = [expand_dims(row, [axis for axis in range(count) if axis != order[i]]) for i, row in enumerate(rows)]
    return list(broadcast_arrays(*placed))


def unstack(a: Any, axis: int = 0) -> list[SymbolicArray]:
    """Unstack an array along an axis of fixed extent, which is dropped."""
    array = as_symbolic(a)
    dim = array._known_dims()[find_axis(array, axis)]
    if not isinstance(dim, int):
        raise InputError(f"{array!r} can't be unstacked along axis {axis}: its extent is free.")
    return [squeeze(part, axis) for part in split(array, dim, axis)] if dim else []
