"""Search and selection by content: nonzero, sorting, top-k, unique, non-maximum suppression."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.model.tracing import reducing
from gpuexec.model.tracing.elementwise import choose, isnan
from gpuexec.model.tracing.nodes import add_node
from gpuexec.model.tracing.promotion import BOOL, FLOAT32, FLOAT64, INT64, as_symbolic, cast
from gpuexec.model.tracing.shaping import (
    constant_ints,
    expand_dims,
    extent,
    find_axis,
    ravel,
    reshape,
    shape_vector,
    squeeze,
    swapaxes,
)
from gpuexec.model.tracing.symbolic import SymbolicArray

__all__ = [
    "argsort", "argwhere", "compress", "flatnonzero", "median", "nms", "non_zero", "nonzero", "one_hot", "searchsorted",
    "sort", "top_k", "topk", "unique",
]  # fmt: skip

_NARROW = {np.dtype(np.bool_): np.uint8, np.dtype(np.int16): np.int32, np.dtype(np.uint16): np.uint32}


def nonzero_rows(condition: SymbolicArray) -> tuple[SymbolicArray, ...]:
    """Return for each axis the positions of the elements that are not 0."""
    places = argwhere_columns(condition)
    return tuple(places[axis] for axis in range(condition.ndim))


def count_name(condition: SymbolicArray) -> str:
    """Return the name of a dimension: how many elements of an array are not 0."""
    return f"count({condition._value.name})"


def argwhere_columns(condition: SymbolicArray) -> SymbolicArray:
    """Return the positions of the elements that are not 0, a column each."""
    otherwise = [(INT64, (condition.ndim, count_name(condition)))]
    return condition._tracer.apply("NonZero", [condition], otherwise=otherwise)[0]


def nonzero(a: Any) -> tuple[SymbolicArray, ...]:
    """Find the elements that are not 0: their positions, axis by axis."""
    return nonzero_rows(as_symbolic(a))


non_zero = nonzero


def argwhere(a: Any) -> SymbolicArray:
    """Find the elements that are not 0: their positions, a row each."""
    return swapaxes(argwhere_columns(as_symbolic(a)), 0, 1)


def flatnonzero(a: Any) -> SymbolicArray:
    """Find the elements that are not 0: their positions in a row of all."""
    return nonzero_rows(ravel(a))[0]


def topk(a: Any, k: Any, axis: int = -1, largest: bool = True) -> tuple[SymbolicArray, SymbolicArray]:
    """Return the ``k`` largest or smallest of an axis, in order, and their positions; of equals the first first."""
    array = as_symbolic(a)
    axis = find_axis(array, axis)
    narrow = _NARROW.get(array.dtype)
    given = array if narrow is None else cast(array, narrow)
    count = shape_vector(array._tracer, [k])
    dims = tuple(None if i == axis else dim for i, dim in enumerate(array._known_dims()))
    attributes = {"axis": axis, "largest": int(largest)}
    otherwise = [(given.dtype, dims), (INT64, dims)]
    values, places = array._tracer.apply("TopK", [given, count], count=2, attributes=attributes, otherwise=otherwise)
    return cast(values, array.dtype), places


top_k = topk


def sort(a: Any, axis: int | None = -1) -> SymbolicArray:
    """Sort along an axis, or all elements in a row."""
    array = as_symbolic(a)
    if axis is None:
        array, axis = ravel(array), 0
    return topk(array, extent(array, axis), axis, largest=False)[0]


def argsort(a: Any, axis: int | None = -1, kind: str | None = None, stable: bool = True) -> SymbolicArray:
    """Return the positions that sort an axis; equals stay in their order."""
    array = as_symbolic(a)
    if axis is None:
        array, axis = ravel(array), 0
    return topk(array, extent(array, axis), axis, largest=False)[1]


def median(a: Any, axis: int | None = None, keepdims: bool = False) -> SymbolicArray:
    """Return the median: the middle one of the sorted elements, or the mean of the two. A NaN makes it NaN."""
    array = as_symbolic(a)
    array = cast(array, FLOAT64) if array.dtype.kind in "iub" else array
    rank = array.ndim
    row, place = (ravel(array), 0) if axis is None else (array, find_axis(array, axis))
    count, ordered = extent(row, place), sort(row, place)
    front = [slice(None)] * place
    middle = [ordered[(*front, position)] for position in ((count - 1) // 2, count // 2)]
    found = (middle[0] + middle[1]) / 2
    found = choose(reducing.any(isnan(row), place), np.nan, found)
    if not keepdims:
        return found
    return reshape(found, (1,) * rank) if axis is None else expand_dims(found, place)


def unique(a: Any) -> SymbolicArray:
    """Return the distinct elements, sorted."""
    array = as_symbolic(a)
    otherwise = [(array.dtype, (None,))]
    return array._tracer.apply("Unique", [array], attributes={"sorted": 1}, otherwise=otherwise)[0]


def compress(condition: Any, a: Any, axis: int | None = None) -> SymbolicArray:
    """Keep the slices of an axis, or the elements, where a row of conditions holds."""
    array = as_symbolic(a)
    kept = as_symbolic(condition, BOOL, array._tracer)
    dims: tuple[Any, ...] = (None,)
    if axis is not None:
        axis = find_axis(array, axis)
        dims = tuple(None if i == axis else dim for i, dim in enumerate(array._known_dims()))
    return array._tracer.apply("Compress", [array, kept], attributes={"axis": axis}, otherwise=[(array.dtype, dims)])[0]


def one_hot(a: Any, num_classes: Any, axis: int = -1, dtype: Any = np.int64) -> SymbolicArray:
    """Encode numbers as rows with 1 at the number's place and 0 elsewhere."""
    array = as_symbolic(a)
    values = array._tracer.add_constant(np.array([0, 1], dtype))
    depth = shape_vector(array._tracer, [num_classes])
    dims = list(array._known_dims())
    dims.insert(axis if axis >= 0 else len(dims) + 1 + axis, None)
    inputs = [array, squeeze(depth, 0), values]
    return array._tracer.apply("OneHot", inputs, attributes={"axis": axis}, otherwise=[(values.dtype, tuple(dims))])[0]


def nms(
    boxes: Any,
    scores: Any,
    iou_threshold: float = 0.5,
    score_threshold: float | None = None,
    max_output: int | None = None,
) -> SymbolicArray:
    """Keep of overlapping boxes the one that scores best.

    Args:
        boxes: float32 [boxes, 4] of corners, or [batch, boxes, 4].
        scores: float32 [boxes], or [batch, classes, boxes].
        iou_threshold: Overlap from which on two boxes are taken for one.
        score_threshold: Boxes that score less are left out.
        max_output: Boxes to keep at most, of each class; None: all.

    Returns:
        int64: positions of the boxes kept [kept], or rows of batch, class and box [kept, 3].
    """
    given, ranks = as_symbolic(boxes, FLOAT32), as_symbolic(scores, FLOAT32)
    if (given.ndim, ranks.ndim) not in ((2, 1), (3, 3)):
        raise InputError(
            f"nms takes boxes [boxes, 4] with scores [boxes], or [batch, boxes, 4] with [batch, classes, boxes]; "
            f"got {given!r} and {ranks!r}."
        )
    tracer, is_plain = given._tracer, given.ndim == 2
    max_boxes = extent(given, -2) if max_output is None else max_output
    if is_plain:
        given, ranks = expand_dims(given, 0), expand_dims(ranks, [0, 1])
    limits = [tracer.add_constant(np.array([iou_threshold], np.float32))]
    if score_threshold is not None:
        limits.append(tracer.add_constant(np.array([score_threshold], np.float32)))
    inputs = [given, ranks, shape_vector(tracer, [max_boxes]), *limits]
    (kept,) = tracer.apply("NonMaxSuppression", inputs, otherwise=[(INT64, (None, 3))])
    return kept[:, 2] if is_plain else kept


def searchsorted(a: Any, v: Any, side: str = "left") -> SymbolicArray:
    """Return the positions at which values would be inserted into a sorted row."""
    row, values = as_symbolic(a), as_symbolic(v)
    name = {"left": "Less", "right": "LessOrEqual"}.get(side)
    if name is None:
        raise InputError(f"searchsorted has sides left and right, got {side!r}.")
    wide = expand_dims(values, values.ndim)
    is_before = row < wide if side == "left" else row <= wide
    return add_node("ReduceSum", cast(is_before, INT64), constant_ints(row._tracer, [-1]), keepdims=0)
