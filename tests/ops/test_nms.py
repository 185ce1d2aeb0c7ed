"""NonMaxSuppression and its component operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from gpuexec.errors import InputError, NeedsHostValue
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.vision.nms import NonMaxSuppression, SelectBoxes
from tests.ops.decomposed import check_parts, list_launches
from tests.ops.harness import Array, Case, run_case


def sample(batches: int, classes: int, boxes: int, levels: int = 1000) -> tuple[Array, Array]:
    rng = np.random.default_rng([batches, classes, boxes, 17])
    corners = rng.uniform(0, 3, (batches, boxes, 4)).astype(np.float32)
    return corners, (rng.integers(0, levels, (batches, classes, boxes)) / levels).astype(np.float32)


def scattered(boxes: int) -> tuple[Array, Array]:
    """Boxes of which most overlap with none."""
    corners, scores = sample(1, 1, boxes)
    places = np.random.default_rng(boxes).uniform(0, 200, (1, boxes, 2)).astype(np.float32)
    return corners + np.tile(places, 2), scores


def one(number: float | None, dtype: Any = np.float32) -> Array | None:
    return None if number is None else np.array([number], dtype)


def nms(
    id: str,
    boxes: Array,
    scores: Array,
    max_boxes: int | None = 100,
    iou: float | None = 0.3,
    score: float | None = None,
    **more: Any,
) -> Case:
    inputs = (boxes, scores, one(max_boxes, np.int64), one(iou), one(score))
    return Case(id, "NonMaxSuppression", inputs, {"center_point_box": more.pop("centered", 0)}, **more)


STACKED = np.array(
    [[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, -0.1, 1, 0.9], [0, 10, 1, 11], [0, 10.1, 1, 11.1], [0, 100, 1, 101]]],
    np.float32,
)
SCORES = np.array([[[0.9, 0.75, 0.6, 0.95, 0.5, 0.3]]], np.float32)
ODD = np.array(
    [[[0, 0, 0, 0], [1, 1, 1, 2], [0, 0, np.inf, 1], [0, 0, 2, 2], [0.1, 0, 2, 2], [2, 2, 0, 0]]], np.float32
)
CASES = [
    nms("stacked", STACKED, SCORES, 3, 0.5, 0.0),
    nms("flipped_corners", STACKED[..., [2, 3, 0, 1]], SCORES, 3, 0.5, 0.0),
    nms("half_flipped_corners", STACKED[..., [0, 3, 2, 1]], SCORES, 3, 0.5, 0.0),
    nms("fewer", STACKED, SCORES, 2, 0.5, 0.0),
    nms("one_kept", STACKED, SCORES, 1, 0.5),
    nms("score_threshold", STACKED, SCORES, 3, 0.5, 0.4),
    nms("score_at_threshold", STACKED, SCORES, 6, 0.99, float(np.float32(0.6))),
    nms("nothing_above", STACKED, SCORES, 3, 0.5, 1.0),
    nms("identical_boxes", np.tile(STACKED[:, :1], (1, 10, 1)), np.full((1, 1, 10), 0.9, np.float32), 3, 0.5, 0.0),
    nms("equal_scores", STACKED, np.full((1, 1, 6), 0.5, np.float32), 6, 0.5),
    nms("odd_boxes", ODD, SCORES, 6, 0.1),
    nms("odd_centered", ODD, SCORES, 6, 0.1, centered=1),
    nms("overlap_at_threshold", np.array([[[0, 0, 1, 2], [0, 0, 1, 1]]], np.float32), SCORES[..., :2], 9, 0.5),
    nms("threshold_zero", *sample(1, 1, 40), iou=0.0),
    nms("threshold_one", *sample(1, 1, 40), iou=1.0),
    nms("no_threshold", *sample(1, 2, 40), iou=None, oracle="onnxruntime"),
    nms("classes_and_batches", *sample(3, 4, 30), iou=0.2, score=0.3),
    nms("centered", *sample(2, 3, 50), iou=0.2, score=0.3, centered=1),
    nms("ties", *sample(2, 2, 60, levels=4), max_boxes=7),
    nms("more_than_there_are", *sample(1, 2, 20), max_boxes=2**40),
    nms("many_boxes", *sample(1, 2, 2500), max_boxes=40, score=0.1),
    nms("many_kept", *scattered(1500), max_boxes=1500, oracle="onnxruntime"),
    nms("zero", *sample(1, 2, 20), max_boxes=0),
    nms("negative", *sample(1, 2, 20), max_boxes=-3, oracle="onnxruntime"),
    nms("no_limit", *sample(1, 2, 20), max_boxes=None, expected=(np.zeros((0, 3), np.int64),)),
    nms("no_boxes", *sample(2, 2, 0), expected=(np.zeros((0, 3), np.int64),)),
    nms("no_classes", *sample(2, 0, 5), expected=(np.zeros((0, 3), np.int64),)),
    nms("no_batches", *sample(0, 2, 5), expected=(np.zeros((0, 3), np.int64),)),
    nms("strided", *(x[..., ::-1] for x in sample(2, 3, 30))),
    nms("opset10", STACKED, SCORES, 3, 0.5, 0.0, opset=10),
    Case(
        "nan_score_comes_last",
        "NonMaxSuppression",
        (STACKED, np.array([[[0.9, np.nan, 0.6, np.inf, -np.inf, 0.3]]], np.float32), one(9, np.int64), one(0.99)),
        expected=(np.array([[0, 0, i] for i in (3, 0, 2, 5, 4, 1)], np.int64),),
    ),
    Case(
        "scalars",
        "NonMaxSuppression",
        (STACKED, SCORES, np.array(3), np.array(0.5, np.float32), np.array(0, np.float32)),
        expected=(np.array([[0, 0, 3], [0, 0, 0], [0, 0, 5]], np.int64),),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_operator_and_parts(case: Case) -> None:
    check_parts(case)


def select(id: str, boxes: Array, scores: Array, max_boxes: int, score: float | None = None, **more: Any) -> Case:
    rows, capacity = [], min(max_boxes, boxes.shape[1])
    for batch in range(scores.shape[0]):
        for each in range(scores.shape[1]):
            kept: list[int] = []
            for box in sorted(range(boxes.shape[1]), key=lambda i: (-scores[batch, each, i], i)):
                is_wanted = score is None or scores[batch, each, box] > np.float32(score)
                if is_wanted and len(kept) < capacity and not any(overlap(boxes[batch], box, i) for i in kept):
                    kept.append(box)
            rows += [(batch, each, box) for box in kept]
    expected = np.zeros((scores.shape[0] * scores.shape[1] * capacity, 3), np.int64)
    expected[: len(rows)] = np.array(rows).reshape(-1, 3)
    inputs = (boxes, scores, one(max_boxes, np.int64), one(0.3), one(score))
    outputs = (True, True)
    return Case(
        id, "gpuexec.SelectBoxes", inputs, {}, (2,), outputs, expected=(expected, np.array([len(rows)])), **more
    )


def overlap(boxes: Array, a: int, b: int) -> bool:
    (y, x), (y_end, x_end) = (f(boxes[:, :2], boxes[:, 2:]).T for f in (np.minimum, np.maximum))
    width, height = (min(e[a], e[b]) - max(s[a], s[b]) for s, e in ((x, x_end), (y, y_end)))
    areas = [(x_end[i] - x[i]) * (y_end[i] - y[i]) for i in (a, b)]
    common = max(width, np.float32(0)) * max(height, np.float32(0))
    return bool(common / (areas[0] + areas[1] - common) > np.float32(0.3))


PARTS = [
    select("select_few", *sample(2, 3, 20), 4, 0.2),
    select("select_all", *sample(1, 2, 30), 30),
    select("select_tiles", *sample(1, 1, 1500), 20),
    select("select_at_threshold", np.array([[[0, 0, 1, 10], [0, 0, 1, 3]]], np.float32), SCORES[..., :2], 2),
    select("select_none", *sample(1, 2, 30), 0),
]


@pytest.mark.parametrize("case", PARTS, ids=lambda case: case.id)
def test_parts(checks: str, case: Case) -> None:
    run_case(case, checks)


@pytest.mark.parametrize("limit", [1, 12, 60])
@pytest.mark.parametrize("apart", [3.0, 40.0])
def test_host_keeps_of_many_boxes_what_one_after_the_other_keeps(limit: int, apart: float) -> None:
    rng = np.random.default_rng([limit, int(apart)])
    corners = rng.uniform(0, apart, (1, 700, 2)).astype(np.float32)
    boxes = np.concatenate([corners, corners + np.float32(2)], axis=2)
    scores = (rng.integers(0, 90, (1, 1, 700)) / 90).astype(np.float32)
    scores[..., ::50] = np.nan
    (got,) = NonMaxSuppression().compute(boxes, scores, one(limit, np.int64), one(0.2))
    kept: list[int] = []
    order = sorted(range(700), key=lambda place: (np.isnan(scores[0, 0, place]), -scores[0, 0, place], place))
    for place in order:
        if len(kept) < limit and not any(_overlap(boxes[0, place], boxes[0, other]) > 0.2 for other in kept):
            kept.append(place)
    assert got[:, 2].tolist() == kept


def _overlap(a: Array, b: Array) -> float:
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    common = float(np.prod(np.maximum(sides, 0)))
    return common / (8 - common)


def test_launches_are_the_same_for_every_size() -> None:
    expected = ["nms.cu:select_boxes", "nonzero.cu:add_up_counts", "nms.cu:write_rows"]
    for batches, classes, boxes in [(1, 1, 1), (2, 3, 1500), (0, 1, 1)]:
        inputs = [*sample(batches, classes, boxes), one(9, np.int64), one(0.5)]
        assert list_launches(SelectBoxes(), inputs, known=[2]) == expected


def test_attributes_are_those_of_the_standard() -> None:
    attributes = onnx.defs.get_schema("NonMaxSuppression").attributes
    assert set(attributes) == {"center_point_box"}
    assert NonMaxSuppression() == NonMaxSuppression(attributes["center_point_box"].default_value.i)


def test_selection_asks_for_the_limit_only() -> None:
    boxes, scores = (TensorSpec(x.shape, x.dtype) for x in sample(2, 3, 20))
    threshold = TensorSpec((1,), np.dtype(np.float32))
    limit = TensorSpec.of(np.array([4]))
    assert build("gpuexec.SelectBoxes", {}).infer(boxes, scores, limit, threshold, threshold)[0].shape == (24, 3)
    with pytest.raises(NeedsHostValue, match="max_output_boxes_per_class"):
        build("gpuexec.SelectBoxes", {}).infer(boxes, scores, TensorSpec((1,), np.dtype(np.int64)))


@pytest.mark.parametrize(
    ("boxes", "scores", "rest", "message"),
    [
        ((2, 5, 4), (1, 3, 5), (), r"boxes \[batches, boxes, 4\] and scores \[batches, classes, boxes\]"),
        ((1, 5, 3), (1, 3, 5), (), "boxes, 4"),
        ((1, 5, 4), (1, 3, 6), (), "got float32"),
        ((5, 4), (3, 5), (), "batches, boxes, 4"),
        ((1, 5, 4), (1, 3, 5), (np.array([1, 2]),), r"must be one number, got \[1, 2\]"),
        ((1, 5, 4), (1, 3, 5), (np.array([1]), np.zeros(2, np.float32)), "iou_threshold to be one float32"),
        ((1, 5, 4), (1, 3, 5), (np.array([1]), None, np.zeros(1)), "score_threshold to be one float32"),
    ],
)
def test_infer_refuses(boxes: tuple[int, ...], scores: tuple[int, ...], rest: tuple[Any, ...], message: str) -> None:
    specs = [TensorSpec.of(np.zeros(shape, np.float32)) for shape in (boxes, scores)]
    with pytest.raises(InputError, match=message):
        NonMaxSuppression().infer(*specs, *(None if x is None else TensorSpec.of(x) for x in rest))


def test_infer_refuses_doubles() -> None:
    with pytest.raises(InputError, match="expects boxes of type float32"):
        NonMaxSuppression().infer(*(TensorSpec.of(x.astype(np.float64)) for x in sample(1, 1, 2)))
