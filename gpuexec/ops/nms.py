"""NonMaxSuppression, made of `SelectBoxes`, whose output has room for all that may be kept and is cut to what is.

On a device a block per batch and class sorts the boxes above the score threshold and goes through them: each box that
is kept suppresses those behind it that overlap it, all threads at once. The thresholds are read by the kernel; only
the number of boxes to keep bounds a shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.command import Argument, Kernel
from gpuexec.demands import require_const
from gpuexec.errors import InputError
from gpuexec.geometry import ceil_div
from gpuexec.graphs import Node, Value
from gpuexec.instances import instantiate
from gpuexec.operator import Array, Emitter, Operator, Tolerance, decompose, operator
from gpuexec.ops.checks import check_dtype, require_ints
from gpuexec.ops.layout import Slots, read_ints
from gpuexec.ops.nonzero import add_up_counts, cut
from gpuexec.ops.sort import sort_keys
from gpuexec.spec import TensorSpec

SOURCE = "nms.cu"
_THREADS = 1024  # kThreads of nms.cu
_INDEX, _FLOAT = np.dtype(np.int64), np.dtype(np.float32)
instantiate(SOURCE, ["select_boxes", "write_rows"])


@dataclass(frozen=True, slots=True)
class BoxSelection(Operator):
    """What NonMaxSuppression and SelectBoxes share: the attribute, the checks, and the search."""

    center_point_box: int = 0
    tolerance = Tolerance.EXACT

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

    def most(self, boxes: TensorSpec, limit: TensorSpec | None) -> int:
        """Return how many boxes may be kept for one batch and class."""
        given = () if limit is None else require_ints(limit, "max_output_boxes_per_class", 2)
        return _clamp(given, boxes.shape[1])

    def select(
        self, boxes: Array, scores: Array, most: int, iou_threshold: Array | None, score_threshold: Array | None
    ) -> Array:
        """Return the kept boxes as rows (batch, class, box)."""
        iou = np.float32(0) if iou_threshold is None else iou_threshold.reshape(())
        rows = [
            (batch, each, box)
            for batch in range(scores.shape[0])
            for each in range(scores.shape[1])
            for box in self._keep(boxes[batch], scores[batch, each], most, iou, score_threshold)
        ]
        return np.array(rows, _INDEX).reshape(-1, 3)

    def _keep(self, boxes: Array, scores: Array, most: int, iou: Any, score_threshold: Array | None) -> Sequence[int]:
        keys = np.where(scores == scores, sort_keys(scores), np.uint32(0))
        order = np.arange(len(scores))
        if score_threshold is not None:
            order = np.flatnonzero(scores > score_threshold.reshape(()))
        order = order[np.argsort(~keys[order], kind="stable")]
        sides = _find_sides(boxes[order], self.center_point_box)  # [4, candidates]
        kept: list[int] = []
        while order.size and len(kept) < most:
            kept.append(int(order[0]))
            is_left = ~_overlap(sides[:, 1:], sides[:, :1], iou)
            order, sides = order[1:][is_left], sides[:, 1:][:, is_left]
        return kept


@operator("NonMaxSuppression")
@dataclass(frozen=True, slots=True)
class NonMaxSuppression(BoxSelection):
    """Keep, for each batch and class, the boxes of the highest scores that overlap no kept one; rows of three numbers.

    Overlap is intersection over union above ``iou_threshold``; boxes whose score is not above ``score_threshold`` are
    left out, if that is given. Without ``max_output_boxes_per_class`` none is kept.
    """

    example = "float32[1,6,4] float32[1,1,6] int64[1]=2"

    def infer(
        self,
        boxes: TensorSpec,
        scores: TensorSpec,
        limit: TensorSpec | None = None,
        iou_threshold: TensorSpec | None = None,
        score_threshold: TensorSpec | None = None,
    ) -> tuple[TensorSpec, ...]:
        """Select, if the content is known."""
        self.check(boxes, scores, iou_threshold, score_threshold)
        most = self.most(boxes, limit)
        arrays = [require_const(spec, role, i) for i, (spec, role) in enumerate([(boxes, "boxes"), (scores, "scores")])]
        iou, score = (
            None if spec is None else require_const(spec, role, i)
            for spec, role, i in [(iou_threshold, "iou_threshold", 3), (score_threshold, "score_threshold", 4)]
        )
        return (TensorSpec(self.select(arrays[0], arrays[1], most, iou, score).shape, _INDEX),)

    def compute(
        self,
        boxes: Array,
        scores: Array,
        limit: Array | None = None,
        iou_threshold: Array | None = None,
        score_threshold: Array | None = None,
        out: Any = None,
    ) -> tuple[Array, ...]:
        """Go through the boxes by score."""
        most = _clamp(() if limit is None else read_ints(limit), boxes.shape[1])
        return (self.select(boxes, scores, most, iou_threshold, score_threshold),)


@operator("SelectBoxes", "gpuexec")
@dataclass(frozen=True, slots=True)
class SelectBoxes(BoxSelection):
    """Give the rows that NonMaxSuppression gives, then rows of zeros, and how many are kept."""

    def infer(
        self,
        boxes: TensorSpec,
        scores: TensorSpec,
        limit: TensorSpec | None = None,
        iou_threshold: TensorSpec | None = None,
        score_threshold: TensorSpec | None = None,
    ) -> tuple[TensorSpec, ...]:
        """Have room for as many as may be kept."""
        self.check(boxes, scores, iou_threshold, score_threshold)
        rows = scores.shape[0] * scores.shape[1] * self.most(boxes, limit)
        return TensorSpec((rows, 3), _INDEX), TensorSpec((1,), _INDEX)

    def compute(
        self,
        boxes: Array,
        scores: Array,
        limit: Array | None = None,
        iou_threshold: Array | None = None,
        score_threshold: Array | None = None,
        out: Any = None,
    ) -> tuple[Array, ...]:
        """Go through the boxes by score, and fill up."""
        most = _clamp(() if limit is None else read_ints(limit), boxes.shape[1])
        kept = self.select(boxes, scores, most, iou_threshold, score_threshold)
        rows = np.zeros((scores.shape[0] * scores.shape[1] * most, 3), _INDEX)
        rows[: len(kept)] = kept
        return rows, np.array([len(kept)], _INDEX)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Select in blocks, add up, write."""
        boxes, scores, limit, iou_threshold, score_threshold = (*inputs, None, None, None)[:5]
        rows, count = outputs
        assert boxes is not None and scores is not None
        most = self.most(boxes.spec, None if limit is None else limit.spec)
        classes, box_count = scores.shape[1:]
        lines = scores.shape[0] * classes
        scratch = emit.temp((lines, 2, box_count), _INDEX)
        selected, counts = emit.temp((lines, most), _INDEX), emit.temp((lines,), _INDEX)
        thresholds = [None if slot is None else emit.contiguous(slot) for slot in (iou_threshold, score_threshold)]
        scalars = (np.int64(classes), np.int64(box_count), np.int64(most), np.int32(bool(self.center_point_box)))
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
            extents = (np.int64(lines), np.int64(most), np.int64(classes))
            grid = (max(1, ceil_div(lines * most, _THREADS)), 1, 1)
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


def _find_sides(boxes: Array, is_centered: int) -> Array:
    """Return left, right, low and high of each box; a corner may be any of the two."""
    with np.errstate(all="ignore"):
        if is_centered:
            x, y, width, height = boxes.T
            return np.stack([x - width / 2, x + width / 2, y - height / 2, y + height / 2])
        (y, x, y_end, x_end), pairs = boxes.T, []
        for first, last in ((x, x_end), (y, y_end)):
            pairs += [np.where(first >= last, last, first), np.where(first >= last, first, last)]
        return np.stack(pairs)


def _overlap(boxes: Array, kept: Array, threshold: Any) -> Array:
    """Return which boxes overlap the kept one; those without an area overlap with none."""
    (left, right, low, high), (kept_left, kept_right, kept_low, kept_high) = boxes, kept
    with np.errstate(all="ignore"):
        width = np.where(kept_right < right, kept_right, right) - np.where(kept_left > left, kept_left, left)
        height = np.where(kept_high < high, kept_high, high) - np.where(kept_low > low, kept_low, low)
        common = width * height
        first, second = (right - left) * (high - low), (kept_right - kept_left) * (kept_high - kept_low)
        union = first + second - common
        is_real = ~(width <= 0) & ~(height <= 0) & ~(common <= 0) & ~(first <= 0) & ~(second <= 0) & ~(union <= 0)
        return np.asarray(is_real & (common / union > threshold))
