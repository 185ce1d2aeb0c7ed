"""NumPy indexing of symbolic arrays: slices, integers, masks and index arrays.

An index is taken apart in this order: slices and plain positions (views), new axes, then arrays of positions. A mask is
the positions where it holds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.model.tracing.finding import count_name, nonzero_rows
from gpuexec.model.tracing.joining import concatenate
from gpuexec.model.tracing.promotion import BOOL, INT64, as_symbolic, cast
from gpuexec.model.tracing.shaping import (
    as_int,
    broadcast_arrays,
    broadcast_to,
    constant_ints,
    expand_dims,
    extent,
    ravel,
    reshape,
    shape_vector,
    squeeze,
    transpose,
)
from gpuexec.model.tracing.symbolic import SymbolicArray

__all__ = ["getitem", "narrow", "take", "take_along_axis"]

_LAST = 2**63 - 1


def getitem(a: Any, key: Any) -> SymbolicArray:
    """Return the elements an index of NumPy's kinds names: ints, slices, None, ..., arrays of ints, masks."""
    array = as_symbolic(a)
    mask = find_mask(array, key)
    if mask is not None:
        return _compress(array, mask)
    entries = read_key(array, key)
    if any(isinstance(entry, SymbolicArray) and entry.dims != () for entry in entries):
        # An integer beside index arrays is an array of rank 0.
        entries = [
            as_symbolic(np.int64(entry), None, array._tracer) if isinstance(entry, int) else entry for entry in entries
        ]
    array = _take_slices(array, entries)
    left: list[Any] = [entry for entry in entries if not isinstance(entry, int)]
    new_axes = [i for i, entry in enumerate(left) if entry is None]
    if new_axes:
        array = expand_dims(array, new_axes)
    places = [i for i, entry in enumerate(left) if isinstance(entry, SymbolicArray)]
    if not places:
        return array
    arrays = [left[i] for i in places]
    # Adjacent index arrays put their axes in their place; separated ones, in front.
    positions = [i for i, entry in enumerate(entries) if isinstance(entry, SymbolicArray)]
    is_joined = positions[-1] - positions[0] + 1 == len(positions)
    return _gather(array, places, arrays, is_joined)


def is_full(entry: Any) -> bool:
    """Return whether an entry of an index takes a whole axis as it is."""
    # Comparing slices would compare symbolic bounds.
    return isinstance(entry, slice) and entry.start is None and entry.stop is None and entry.step in (None, 1)


def find_mask(array: SymbolicArray, key: Any) -> SymbolicArray | None:
    """Return the index as a mask if it is one, over the array's first axes."""
    if isinstance(key, tuple) and len(key) == 1:
        (key,) = key
    is_mask = isinstance(key, (SymbolicArray, np.ndarray)) and key.dtype == BOOL and key.ndim > 0
    if is_mask or (isinstance(key, list) and key and all(isinstance(item, bool) for item in key)):
        mask = as_symbolic(key, BOOL, array._tracer)
        _check_mask(array, mask, 0)
        return mask
    return None


def _check_mask(array: SymbolicArray, mask: SymbolicArray, axis: int) -> None:
    covered = array._known_dims()[axis : axis + mask.ndim]
    given = mask._known_dims()
    pairs = zip(given, covered, strict=False)
    if len(covered) < len(given) or any(isinstance(m, int) and isinstance(d, int) and m != d for m, d in pairs):
        raise InputError(f"a mask {mask!r} does not fit {array!r} at axis {axis}.")


def _compress(array: SymbolicArray, mask: SymbolicArray) -> SymbolicArray:
    shape = array.shape[mask.ndim :]
    dims = array._known_dims()[mask.ndim :]
    flat = reshape(array, (-1, *shape)) if mask.ndim > 1 else array
    otherwise = [(array.dtype, (count_name(mask), *dims))]
    return array._tracer.apply("Compress", [flat, ravel(mask)], attributes={"axis": 0}, otherwise=otherwise)[0]


def read_key(array: SymbolicArray, key: Any) -> list[Any]:
    """Return an entry for each axis of array or result: a slice, an int, None, or an array of positions."""
    parts = list(key) if isinstance(key, tuple) else [key]
    taken = sum(_count_axes(part) for part in parts)
    dots = [i for i, part in enumerate(parts) if part is Ellipsis]
    if len(dots) > 1:
        raise InputError("an index can have a single ellipsis ('...').")
    if taken > array.ndim:
        raise InputError(f"{array!r} has {array.ndim} axes, got an index for {taken}.")
    fill = [slice(None)] * (array.ndim - taken)
    where_ = dots[0] if dots else len(parts)
    parts = [*parts[:where_], *fill, *parts[where_ + bool(dots) :]]
    entries: list[Any] = []
    axis = 0
    for part in parts:
        entries += _read_part(array, part, axis)
        axis += _count_axes(part)
    return entries


def _count_axes(part: Any) -> int:
    if part is None or part is Ellipsis:
        return 0
    if isinstance(part, (bool, np.bool_)):
        raise InputError("True and False are no index here; use None for a new axis, or gx.fn.where.")
    if isinstance(part, (list, tuple)):
        part = np.asarray(part)
    return int(part.ndim) if isinstance(part, (SymbolicArray, np.ndarray)) and part.dtype == BOOL else 1


def _read_part(array: SymbolicArray, part: Any, axis: int) -> list[Any]:
    if part is None or isinstance(part, slice):
        return [part]
    if isinstance(part, (list, tuple)):
        part = np.asarray(part, np.int64) if not len(part) else np.asarray(part)
    if isinstance(part, (int, np.integer)) or (isinstance(part, np.ndarray) and part.ndim == 0):
        return [_check_position(array, part, axis)]
    if not isinstance(part, (SymbolicArray, np.ndarray)) or part.dtype.kind not in "iub":
        raise InputError(f"{part!r} is no index; expected ints, slices, None, ..., arrays of ints, or masks.")
    if part.dtype == BOOL:
        if isinstance(part, np.ndarray):
            _check_mask(array, as_symbolic(part, None, array._tracer), axis)
            return [as_symbolic(row, INT64, array._tracer) for row in np.nonzero(part)]
        _check_mask(array, part, axis)
        return list(nonzero_rows(part))
    if isinstance(part, np.ndarray):
        for each in part.reshape(-1).tolist():
            _check_position(array, each, axis)
    return [as_symbolic(part, INT64, array._tracer)]


def _check_position(array: SymbolicArray, position: Any, axis: int) -> int:
    index, dim = as_int(position), array._known_dims()[axis]
    assert index is not None
    if isinstance(dim, int):
        if not -dim <= index < dim:
            raise InputError(f"index {index} is out of range at axis {axis} of {array!r}.")
        return index % dim
    return index


def _take_slices(array: SymbolicArray, entries: list[Any]) -> SymbolicArray:
    """Apply slices and integer positions; the axes of the latter are dropped."""
    array, entries = _turn_from_the_end(array, entries)
    tracer, axis = array._tracer, 0
    rows: list[tuple[Any, Any, int, int]] = []  # start, stop, axis, step
    dropped = []
    for entry in entries:
        if entry is None:
            continue
        if isinstance(entry, int):
            rows.append((entry, entry + 1 if entry != -1 else _LAST, axis, 1))
            dropped.append(axis)
        elif isinstance(entry, slice) and not is_full(entry):
            rows.append(_read_slice(array, entry, axis))
        axis += 1
    if rows:
        starts, stops, axes, steps = zip(*rows, strict=True)
        bounds = [shape_vector(tracer, row) for row in (starts, stops)]
        fixed = [constant_ints(tracer, row) for row in (axes, steps)]
        dims = tuple(None if i in axes else dim for i, dim in enumerate(array._known_dims()))
        inputs = [array, *bounds, *fixed]
        array = tracer.apply("Slice", inputs, otherwise=[(array.dtype, dims)])[0]
    return squeeze(array, dropped) if dropped else array


def _turn_from_the_end(array: SymbolicArray, entries: list[Any]) -> tuple[SymbolicArray, list[Any]]:
    """Cut axes of free extent before ``x[-3::-1]``: ONNX would begin with 0 if there are less than 3."""
    entries, axis = list(entries), 0
    for place, entry in enumerate(entries):
        if entry is None:
            continue
        if isinstance(entry, slice) and not isinstance(array._known_dims()[axis], int):
            start, step = entry.start, 1 if entry.step is None else as_int(entry.step)
            if isinstance(start, int) and start < -1 and entry.stop is None and step is not None and step < 0:
                array = array[(*[slice(None)] * axis, slice(None, start + 1))]
                entries[place] = slice(None, None, step)
        axis += 1
    return array, entries


def _read_slice(array: SymbolicArray, entry: slice, axis: int) -> tuple[Any, Any, int, int]:
    step = 1 if entry.step is None else as_int(entry.step)
    if not step:
        raise InputError(f"a slice step must be an integer other than 0 that is known while tracing, got {entry.step}.")
    length, bounds = array._known_dims()[axis], (entry.start, entry.stop)
    if isinstance(length, int) and not any(isinstance(bound, SymbolicArray) for bound in bounds):
        places = range(length)[entry]
        if not places:
            return 0, 0, axis, 1
        # Below 0 ONNX counts from the end.
        return places.start, places.stop if places.stop >= 0 else -_LAST, axis, step
    start = (0 if step > 0 else _LAST) if entry.start is None else entry.start
    stop = (_LAST if step > 0 else -_LAST) if entry.stop is None else entry.stop
    return start, stop, axis, step


def _gather(array: SymbolicArray, axes: list[int], indices: list[SymbolicArray], is_joined: bool) -> SymbolicArray:
    tracer = array._tracer
    dims = array._known_dims()
    if len(axes) == 1:
        otherwise = [(array.dtype, (*dims[: axes[0]], *(indices[0].dims or ()), *dims[axes[0] + 1 :]))]
        return tracer.apply("Gather", [array, indices[0]], attributes={"axis": axes[0]}, otherwise=otherwise)[0]
    spread = broadcast_arrays(*indices)
    rank = spread[0].ndim
    rest = [axis for axis in range(array.ndim) if axis not in axes]
    moved = transpose(array, [*axes, *rest])
    places = concatenate([expand_dims(each, rank) for each in spread], rank)
    otherwise = [(array.dtype, (*(spread[0].dims or ()), *(dims[axis] for axis in rest)))]
    (taken,) = tracer.apply("GatherND", [moved, places], otherwise=otherwise)
    if not is_joined:
        return taken
    before = sum(axis < axes[0] for axis in rest)
    order = [*range(rank, rank + before), *range(rank), *range(rank + before, taken.ndim)]
    return transpose(taken, order)


def take(a: Any, indices: Any, axis: int | None = None) -> SymbolicArray:
    """Take slices along an axis, or elements of the flattened array, by an array of positions."""
    array = as_symbolic(a)
    if axis is None:
        array, axis = ravel(array), 0
    return getitem(array, (*[slice(None)] * (axis % array.ndim), _as_positions(indices)))


def _as_positions(indices: Any) -> Any:
    return indices if isinstance(indices, SymbolicArray) else np.asarray(indices)


def take_along_axis(a: Any, indices: Any, axis: int) -> SymbolicArray:
    """Take one element for each listed position along an axis; the other coordinates stay."""
    array = as_symbolic(a)
    given = cast(as_symbolic(indices, None, array._tracer), INT64)
    axis %= array.ndim
    others = [i for i in range(array.ndim) if i != axis]
    if any(array._known_dims()[i] != given._known_dims()[i] for i in others):
        shape = [extent(given, i) if given._known_dims()[i] != 1 else extent(array, i) for i in range(array.ndim)]
        given = broadcast_to(given, (*shape[:axis], extent(given, axis), *shape[axis + 1 :]))
        wide = [extent(array, i) if array._known_dims()[i] != 1 else extent(given, i) for i in range(array.ndim)]
        array = broadcast_to(array, (*wide[:axis], extent(array, axis), *wide[axis + 1 :]))
    return array._tracer.apply("GatherElements", [array, given], attributes={"axis": axis})[0]


def narrow(a: Any, axis: int, start: Any, length: Any) -> SymbolicArray:
    """Keep a stretch of an axis; start and length may be symbolic."""
    array = as_symbolic(a)
    return array[(*[slice(None)] * (axis % array.ndim), slice(start, start + length))]
