"""NonMaxSuppression, decomposed into SelectBoxes with an upper-bound output and a cut to the count.

On a device a block per batch and class sorts the boxes above the score threshold and goes through them: each box that
is kept suppresses those behind it that overlap it, all threads at once. The thresholds are read by the kernel; only
the number of boxes to keep bounds a shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.graphs import Node, Value
from gpuexec.ir.host_values import require_const
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32, int64
from gpuexec.ir.operator import Array, Derivative, Emitter, Operator, Out, Slots, Tolerance, decompose, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.lib.checks import check_dtype, require_ints
from gpuexec.ops.reduce.sort import sort_keys
from gpuexec.ops.reduce.topk import find_first
from gpuexec.ops.tensor.layout import read_ints
from gpuexec.ops.tensor.nonzero import add_up_counts, cut

SOURCE = "nms.cu"
_THREADS = 1024  # kThreads of nms.cu
_INDEX, _FLOAT = np.dtype(np.int64), np.dtype(np.float32)
# Boxes that the host compares at once: few at first, since the best suppress most of the others.
_FIRST_CHUNK, _LARGEST_CHUNK = 32, 512
_LEAST_SORTED, _SORTED_PER_BOX = 64, 4  # candidates that are sorted first, and so many more for each box to keep
instantiate(SOURCE, ["select_boxes", "write_rows"])


@dataclass(frozen=True, slots=True)
class BoxSelection(Operator):
    """Base of NonMaxSuppression and SelectBoxes: the attribute, the checks, and the search."""

    center_point_box: int = 0
    tolerance = Tolerance.EXACT
    flops_per_output = None

    def check(self, boxes: TensorSpec, scores: TensorSpec, *thresholds: TensorSpec | None) -> None:
        """Check shapes and types.

        Raises:
            InputError: One does not fit.
        """
        check_dtype(self.name, boxes, (_FLOAT,), "boxes")
        check_dtype(self.name, scores, (_FLOAT,), "scores")
        if boxes.rank != 3 or scores.rank != 3 or boxes.shape != (scores.shape[0], scores.shape[2], 4):
            raise InputError(
                f"{self.name} expects boxes [batches, boxes, 4] and scores [batches, classes, boxes], got {boxes} and "
                f"{scores}."
            )
        for role, spec in zip(("iou_threshold", "score_threshold"), thresholds, strict=False):
            if spec is not None and (spec.dtype != _FLOAT or spec.size != 1):
                raise InputError(f"{self.name} expects {role} to be one float32, got {spec}.")

    def limit_boxes(self, boxes: TensorSpec, limit: TensorSpec | None) -> int:
        """Return how many boxes may be kept for one batch and class."""
        given = () if limit is None else require_ints(limit, "max_output_boxes_per_class", 2)
        return _clamp(given, boxes.shape[1])

    def select(
        self, boxes: Array, scores: Array, max_boxes: int, iou_threshold: Array | None, score_threshold: Array | None
    ) -> Array:
        """Return the kept boxes as rows (batch, class, box)."""
        iou = np.float32(0) if iou_threshold is None else iou_threshold.reshape(())
        rows = [np.empty((0, 3), _INDEX)]
        for batch in range(scores.shape[0]):
            sides = _find_sides(boxes[batch], self.center_point_box)  # [5, boxes]
            for each in range(scores.shape[1]):
                kept = _keep(sides, scores[batch, each], max_boxes, iou, score_threshold)
                rows.append(np.stack([np.full_like(kept, batch), np.full_like(kept, each), kept], axis=1))
        return np.concatenate(rows)


@operator("NonMaxSuppression")
@dataclass(frozen=True, slots=True)
class NonMaxSuppression(BoxSelection):
    """Boxes of the highest scores that overlap no kept one, per batch and class; rows of three numbers.

    Overlap is intersection over union above ``iou_threshold``; boxes whose score is not above ``score_threshold`` are
    left out, if that is given. Without ``max_output_boxes_per_class`` none is kept.
    """

    example = "float32[1,6,4] float32[1,1,6] int64[1]=2"
    derivative = Derivative.PARTS

    def infer(
        self,
        boxes: TensorSpec,
        scores: TensorSpec,
        limit: TensorSpec | None = None,
        iou_threshold: TensorSpec | None = None,
        score_threshold: TensorSpec | None = None,
    ) -> tuple[TensorSpec, ...]:
        """Return the number of boxes, if the content is known."""
        self.check(boxes, scores, iou_threshold, score_threshold)
        max_boxes = self.limit_boxes(boxes, limit)
        arrays = [require_const(spec, role, i) for i, (spec, role) in enumerate([(boxes, "boxes"), (scores, "scores")])]
        iou, score = (
            None if spec is None else require_const(spec, role, i)
            for spec, role, i in [(iou_threshold, "iou_threshold", 3), (score_threshold, "score_threshold", 4)]
        )
        return (TensorSpec(self.select(arrays[0], arrays[1], max_boxes, iou, score).shape, _INDEX),)

    def compute(
        self,
        boxes: Array,
        scores: Array,
        limit: Array | None = None,
        iou_threshold: Array | None = None,
        score_threshold: Array | None = None,
        *,
        out: Out = None,
    ) -> tuple[Array, ...]:
        """Select the boxes by score."""
        max_boxes = _clamp(() if limit is None else read_ints(limit), boxes.shape[1])
        return (self.select(boxes, scores, max_boxes, iou_threshold, score_threshold),)


@operator("SelectBoxes", "gpuexec")
@dataclass(frozen=True, slots=True)
class SelectBoxes(BoxSelection):
    """Rows of NonMaxSuppression, then rows of zeros, and the number of rows that are kept."""

    has_blits = False

    def infer(
        self,
        boxes: TensorSpec,
        scores: TensorSpec,
        limit: TensorSpec | None = None,
        iou_threshold: TensorSpec | None = None,
        score_threshold: TensorSpec | None = None,
    ) -> tuple[TensorSpec, ...]:
        """Return specs with room for all rows that may be kept."""
        self.check(boxes, scores, iou_threshold, score_threshold)
        rows = scores.shape[0] * scores.shape[1] * self.limit_boxes(boxes, limit)
        return TensorSpec((rows, 3), _INDEX), TensorSpec((1,), _INDEX)

    def compute(
        self,
        boxes: Array,
        scores: Array,
        limit: Array | None = None,
        iou_threshold: Array | None = None,
        score_threshold: Array | None = None,
        *,
        out: Out = None,
    ) -> tuple[Array, ...]:
        """Select the boxes by score."""
        max_boxes = _clamp(() if limit is None else read_ints(limit), boxes.shape[1])
        kept = self.select(boxes, scores, max_boxes, iou_threshold, score_threshold)
        rows = np.zeros((scores.shape[0] * scores.shape[1] * max_boxes, 3), _INDEX)
        rows[: len(kept)] = kept
        return rows, np.array([len(kept)], _INDEX)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Select in blocks, add up, write."""
        boxes, scores, limit, iou_threshold, score_threshold = (*inputs, None, None, None)[:5]
        rows, count = outputs
        assert boxes is not None and scores is not None
        max_boxes = self.limit_boxes(boxes.spec, None if limit is None else limit.spec)
        classes, box_count = scores.shape[1:]
        lines = scores.shape[0] * classes
        scratch = emit.temp((lines, 2, box_count), _INDEX)
        selected, counts = emit.temp((lines, max_boxes), _INDEX), emit.temp((lines,), _INDEX)
        thresholds = [None if slot is None else emit.contiguous(slot) for slot in (iou_threshold, score_threshold)]
        scalars = (int64(classes), int64(box_count), int64(max_boxes), int32(bool(self.center_point_box)))
        emit.launch(
            Kernel(SOURCE, "select_boxes"),
            (max(1, lines), 1, 1),
            (_THREADS, 1, 1),
            [emit.contiguous(boxes), emit.contiguous(scores), *thresholds, scratch, selected, counts, *scalars],
            writes=[4, 5, 6],
        )
        total = emit.temp((1,), _INDEX) if count is None else count
        offsets = add_up_counts(emit, counts, total)
        if rows is not None:
            extents = (int64(lines), int64(max_boxes), int64(classes))
            grid = (max(1, ceil_div(lines * max_boxes, _THREADS)), 1, 1)
            arguments: list[Argument] = [selected, offsets, total, rows, *extents]
            emit.launch(Kernel(SOURCE, "write_rows"), grid, (_THREADS, 1, 1), arguments, writes=[3])


@decompose("NonMaxSuppression")
def size_selection(node: Node) -> tuple[Node, ...]:
    """Select, and cut to the count."""
    assert isinstance(node.operator, NonMaxSuppression)
    bound, count, y = Value(f"{node.name}.rows"), Value(f"{node.name}.count"), node.outputs[0]
    assert y is not None
    select = Node(SelectBoxes(node.operator.center_point_box), node.inputs, (bound, count), node.name)
    return (select, *cut(bound, count, y))


def _clamp(given: tuple[int, ...], boxes: int) -> int:
    if len(given) > 1:
        raise InputError(f"max_output_boxes_per_class must be one number, got {list(given)}.")
    return min(max(0, *given), boxes) if given else 0


def _keep(sides: Array, scores: Array, max_boxes: int, iou: Any, threshold: Array | None) -> Array:
    """Return the boxes of a class that are kept, by falling score; NaN stands last.

    Of many candidates the best alone are sorted at first. Of the others those go that overlap boxes kept so far, then
    the best are sorted again, twice as many.
    """
    is_above = scores == scores if threshold is None else scores > threshold.reshape(())
    is_whole = np.count_nonzero(is_above) == len(scores)
    if is_whole or threshold is None:
        places = np.arange(len(scores))
    else:
        places = np.flatnonzero(is_above)
        scores = scores[places]
    keys = sort_keys(scores)
    if threshold is None and not is_whole:
        keys[~is_above] = 0
    np.invert(keys, out=keys)
    kept, count = np.empty(0, _INDEX), _LEAST_SORTED + _SORTED_PER_BOX * max_boxes
    while len(places) and len(kept) < max_boxes:
        count = len(places) if 2 * count > len(places) else count
        first = find_first(keys, count)
        order = places[first]
        found = order[_suppress(sides[:, order], max_boxes - len(kept), iou)]
        kept = np.concatenate([kept, found])
        if count == len(places) or len(kept) == max_boxes:
            break
        is_left = np.ones(len(places), np.bool_)
        is_left[first] = False
        is_left[is_left] = ~_is_overlapped(sides[:, places[is_left]], sides[:, found], iou)
        places, keys, count = places[is_left], keys[is_left], 2 * count
    return kept


def _is_overlapped(sides: Array, kept: Array, threshold: Any) -> Array:
    """Return which boxes overlap any of those that are kept."""
    result = np.zeros(sides.shape[1], np.bool_)
    step = max(1, _LARGEST_CHUNK**2 // max(1, sides.shape[1]))
    for first in range(0, kept.shape[1], step):
        by = kept[:, first : first + step, None]
        result |= _overlap(sides[:, None, :], by, threshold).any(axis=0)
    return result


def _suppress(sides: Array, max_boxes: int, threshold: Any) -> Array:
    """Return the places of the boxes that are kept, at most so many, of boxes ``[5, candidates]`` sorted by score.

    Boxes are taken in chunks: first all kept boxes suppress those of the chunk, in one comparison, then the rest of the
    chunk is compared with itself, and only walking that table is done box by box.
    """
    kept = np.empty(0, _INDEX)
    start, size = 0, _FIRST_CHUNK
    while start < sides.shape[1] and len(kept) < max_boxes:
        chunk = np.arange(start, min(start + size, sides.shape[1]))
        start, size = start + size, min(2 * size, _LARGEST_CHUNK)
        for first in range(0, len(kept), _LARGEST_CHUNK):
            by = sides[:, kept[first : first + _LARGEST_CHUNK]]
            chunk = chunk[~_overlap(sides[:, None, chunk], by[:, :, None], threshold).any(axis=0)]
        own = sides[:, chunk]
        table = _overlap(own[:, None, :], own[:, :, None], threshold)  # [by, box]
        kept = np.concatenate([kept, chunk[_walk(table)]])
    return kept[:max_boxes]


def _walk(table: Array) -> list[int]:
    """Return which boxes of a chunk are kept, ``table[i, j]`` telling whether box i, if kept, suppresses a later j."""
    masks, nbytes = np.packbits(table, axis=1, bitorder="little").tobytes(), ceil_div(table.shape[1], 8)
    kept, suppressed = [], 0
    for place in range(len(table)):
        if not suppressed >> place & 1:
            kept.append(place)
            suppressed |= int.from_bytes(masks[place * nbytes : (place + 1) * nbytes], "little")
    return kept


def _find_sides(boxes: Array, is_centered: int) -> Array:
    """Return left, right, low, high and area of each box, ``[5, boxes]``; a corner may be any of the two."""
    with np.errstate(all="ignore"):
        if is_centered:
            x, y, width, height = boxes.T
            sides = [x - width / 2, x + width / 2, y - height / 2, y + height / 2]
        else:
            (y, x, y_end, x_end), sides = boxes.T, []
            for first, last in ((x, x_end), (y, y_end)):
                sides += [np.where(first >= last, last, first), np.where(first >= last, first, last)]
        left, right, low, high = sides
        return np.stack([*sides, (right - left) * (high - low)])


def _overlap(boxes: Array, kept: Array, threshold: Any) -> Array:
    """Return which boxes overlap kept ones, both broadcast; those without an area overlap with none."""
    (left, right, low, high, area), (kept_left, kept_right, kept_low, kept_high, kept_area) = boxes, kept
    with np.errstate(all="ignore"):
        common = np.minimum(right, kept_right)
        common -= np.maximum(left, kept_left)
        np.maximum(common, 0, out=common)
        height = np.minimum(high, kept_high)
        height -= np.maximum(low, kept_low)
        common *= height
        union = np.add(area, kept_area)
        union -= common
        # An intersection above 0 is at most each area, so areas and union are above 0 too; NaN stays NaN.
        is_real = common > 0
        common /= union
        is_real &= common > threshold
        return np.asarray(is_real)
