"""Indexing as NumPy has it, and assignment as a function.

An index is taken apart in this order: slices and plain positions (views), new axes, then arrays of positions. A mask is
the positions where it holds. Assignment numbers the elements, indexes the numbers, and scatters; so it can do all that
indexing can.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuexec.array_program.elementwise import choose
from gpuexec.array_program.finding import count_name, nonzero_rows
from gpuexec.array_program.joining import concatenate
from gpuexec.array_program.promotion import BOOL, INT64, as_symbolic, cast
from gpuexec.array_program.shaping import (
    as_int,
    broadcast_arrays,
    broadcast_to,
    constant_ints,
    expand_dims,
    extent,
    ravel,
    reshape,
    shape_vector,
    size,
    squeeze,
    transpose,
)
from gpuexec.array_program.symbolic import SymbolicArray
from gpuexec.errors import InputError

_LAST = 2**63 - 1


def getitem(a: Any, key: Any) -> SymbolicArray:
    """Return the elements an index of NumPy's kinds names: ints, slices, None, ..., arrays of ints, masks."""
    array = as_symbolic(a)
    mask = _single_mask(array, key)
    if mask is not None:
        return _compress(array, mask)
    entries = _read_key(array, key)
    if any(isinstance(entry, SymbolicArray) and entry.dims != () for entry in entries):
        # A position beside arrays is an array of none.
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
    # Arrays side by side put their axes where they stand; apart, in front.
    positions = [i for i, entry in enumerate(entries) if isinstance(entry, SymbolicArray)]
    is_joined = positions[-1] - positions[0] + 1 == len(positions)
    return _gather(array, places, arrays, is_joined)


def setitem(a: Any, key: Any, values: Any, reduction: str = "none") -> SymbolicArray:
    """Return an array with the elements that an index names replaced by values, or joined with them."""
    array = as_symbolic(a)
    mask = _single_mask(array, key)
    new = as_symbolic(values, array.dtype, array._tracer)
    if mask is not None and reduction == "none" and new.dims == ():
        return choose(expand_dims(mask, list(range(mask.ndim, array.ndim))), new, array)
    if reduction == "none":
        placed = _place_block(array, key, new)
        if placed is not None:
            return placed
    count = size(array)
    if isinstance(count, int) and _is_plain(key):
        numbers = as_symbolic(np.arange(count).reshape(array.shape)[key], INT64, array._tracer)
    else:
        numbers = getitem(_number_elements(array), key)
    if new.ndim > numbers.ndim:
        new = squeeze(new, list(range(new.ndim - numbers.ndim)))
    spread = ravel(broadcast_to(new, numbers.shape))
    flat = ravel(array)
    if array.dtype == BOOL and reduction != "none":
        raise InputError(f"elements of {array!r} can't be changed by {reduction!r}; convert by astype.")
    inputs = [flat, ravel(numbers), spread]
    (changed,) = array._tracer.apply("ScatterElements", inputs, attributes={"axis": 0, "reduction": reduction})
    return reshape(changed, array.shape)


def _is_plain(key: Any) -> bool:
    parts = key if isinstance(key, tuple) else (key,)
    return not any(
        isinstance(part, SymbolicArray)
        or (isinstance(part, slice) and any(isinstance(b, SymbolicArray) for b in (part.start, part.stop, part.step)))
        for part in parts
    )


def _is_full(entry: Any) -> bool:
    # Comparing slices would compare symbolic bounds.
    return isinstance(entry, slice) and entry.start is None and entry.stop is None and entry.step in (None, 1)


def _number_elements(array: SymbolicArray) -> SymbolicArray:
    tracer = array._tracer
    count = as_symbolic(size(array), INT64, tracer)
    zero, one = (tracer.add_constant(np.int64(n)) for n in (0, 1))
    (row,) = tracer.apply("Range", [zero, count, one], otherwise=[(INT64, (None,))])
    return reshape(row, array.shape)


def _place_block(array: SymbolicArray, key: Any, new: SymbolicArray) -> SymbolicArray | None:
    """Return the array with a block along one axis of fixed extent replaced, by joining; None where it is no block."""
    if not _is_plain(key):
        return None
    entries = _read_key(array, key)
    cut = [i for i, entry in enumerate(entries) if not _is_full(entry)]
    if len(cut) != 1 or len(entries) != array.ndim:
        return None
    axis, entry, length = cut[0], entries[cut[0]], array._known_dims()[cut[0]]
    if not isinstance(length, int) or not isinstance(entry, (int, slice)):
        return None
    whole = entry if isinstance(entry, slice) else slice(entry, entry + 1)
    start, stop, step = whole.indices(length)
    if step != 1:
        return None
    stop = max(start, stop)
    before, after = array.shape[:axis], array.shape[axis + 1 :]
    block = (*before, *after) if isinstance(entry, int) else (*before, stop - start, *after)
    if new.ndim > len(block):
        new = squeeze(new, list(range(new.ndim - len(block))))
    new = broadcast_to(new, block)
    parts = [expand_dims(new, axis) if isinstance(entry, int) else new]
    front = [slice(None)] * axis
    if start:
        parts.insert(0, array[(*front, slice(0, start))])
    if stop < length:
        parts.append(array[(*front, slice(stop, None))])
    return concatenate(parts, axis)


def _single_mask(array: SymbolicArray, key: Any) -> SymbolicArray | None:
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


def _read_key(array: SymbolicArray, key: Any) -> list[Any]:
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
    """Apply slices and plain positions; the axes of the latter go."""
    tracer, axis = array._tracer, 0
    rows: list[tuple[Any, Any, int, int]] = []  # start, stop, axis, step
    dropped = []
    for entry in entries:
        if entry is None:
            continue
        if isinstance(entry, int):
            rows.append((entry, entry + 1 if entry != -1 else _LAST, axis, 1))
            dropped.append(axis)
        elif isinstance(entry, slice) and not _is_full(entry):
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


def _read_slice(array: SymbolicArray, entry: slice, axis: int) -> tuple[Any, Any, int, int]:
    step = 1 if entry.step is None else as_int(entry.step)
    if not step:
        raise InputError(f"a slice step must be an integer other than 0 that is known while tracing, got {entry.step}.")
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
    """Take slices along an axis, or elements of all in a row, by an array of positions."""
    array = as_symbolic(a)
    if axis is None:
        array, axis = ravel(array), 0
    return getitem(array, (*[slice(None)] * (axis % array.ndim), _as_positions(indices)))


def _as_positions(indices: Any) -> Any:
    return indices if isinstance(indices, SymbolicArray) else np.asarray(indices)


def take_along_axis(a: Any, indices: Any, axis: int) -> SymbolicArray:
    """Take one element for each position listed, all else equal."""
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


def put_along_axis(a: Any, indices: Any, values: Any, axis: int, reduction: str = "none") -> SymbolicArray:
    """Return the array with one element for each position listed replaced, or joined with a value."""
    array = as_symbolic(a)
    given = cast(as_symbolic(indices, None, array._tracer), INT64)
    new = broadcast_to(as_symbolic(values, array.dtype, array._tracer), given.shape)
    attributes = {"axis": axis % array.ndim, "reduction": reduction}
    return array._tracer.apply("ScatterElements", [array, given, new], attributes=attributes)[0]


def narrow(a: Any, axis: int, start: Any, length: Any) -> SymbolicArray:
    """Keep a stretch of an axis; start and length may be symbolic."""
    array = as_symbolic(a)
    return array[(*[slice(None)] * (axis % array.ndim), slice(start, start + length))]
