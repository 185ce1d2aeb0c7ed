"""Functional assignment to an indexed part of an array.

Elements are numbered, the numbers indexed, and values scattered, so all of indexing is supported. Simple cases take a
shorter way: one value by a mask, a whole array, a block.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.model.tracing.elementwise import choose
from gpuexec.model.tracing.indexing import find_mask, getitem, is_full, read_key
from gpuexec.model.tracing.joining import concatenate
from gpuexec.model.tracing.promotion import BOOL, INT64, as_symbolic, cast
from gpuexec.model.tracing.shaping import broadcast_to, expand_dims, ravel, reshape, size, squeeze
from gpuexec.model.tracing.symbolic import SymbolicArray

__all__ = ["put_along_axis", "setitem"]


def setitem(a: Any, key: Any, values: Any, reduction: str = "none") -> SymbolicArray:
    """Return an array with the elements that an index names replaced by values, or joined with them."""
    array = as_symbolic(a)
    mask = find_mask(array, key)
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


def put_along_axis(a: Any, indices: Any, values: Any, axis: int, reduction: str = "none") -> SymbolicArray:
    """Return the array with one element for each position listed replaced, or joined with a value."""
    array = as_symbolic(a)
    given = cast(as_symbolic(indices, None, array._tracer), INT64)
    new = broadcast_to(as_symbolic(values, array.dtype, array._tracer), given.shape)
    attributes = {"axis": axis % array.ndim, "reduction": reduction}
    return array._tracer.apply("ScatterElements", [array, given, new], attributes=attributes)[0]


def put_in_place(arr: Any, indices: Any, values: Any, axis: int | None) -> None:
    """Replace one element for each position listed, as numpy.put_along_axis does: in the array itself."""
    if not isinstance(arr, SymbolicArray):
        raise InputError(f"put_along_axis changes its array in place, got one that is not symbolic: {arr!r}.")
    if axis is None:
        arr[...] = reshape(put_along_axis(ravel(arr), indices, values, 0), arr.shape)
    else:
        arr[...] = put_along_axis(arr, indices, values, axis)


def _is_plain(key: Any) -> bool:
    parts = key if isinstance(key, tuple) else (key,)
    return not any(
        isinstance(part, SymbolicArray)
        or (isinstance(part, slice) and any(isinstance(b, SymbolicArray) for b in (part.start, part.stop, part.step)))
        for part in parts
    )


def _number_elements(array: SymbolicArray) -> SymbolicArray:
    tracer = array._tracer
    count = as_symbolic(size(array), INT64, tracer)
    zero, one = (tracer.add_constant(np.int64(n)) for n in (0, 1))
    (row,) = tracer.apply("Range", [zero, count, one], otherwise=[(INT64, (None,))])
    return reshape(row, array.shape)


def _place_block(array: SymbolicArray, key: Any, new: SymbolicArray) -> SymbolicArray | None:
    """Return the array with all of it, or a block along one axis of fixed extent, replaced; None where it is no block.

    A block is put in its place by joining.
    """
    if not _is_plain(key):
        return None
    entries = read_key(array, key)
    cut = [i for i, entry in enumerate(entries) if not is_full(entry)]
    if not cut:
        return broadcast_to(squeeze(new, list(range(max(0, new.ndim - array.ndim)))), array.shape)
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
