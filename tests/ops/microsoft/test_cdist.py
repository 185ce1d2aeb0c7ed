"""CDist: by onnxruntime where it has the metric, else pair by pair in Python; and neighbours as skl2onnx writes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import gpuexec as gx
from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.microsoft.cdist import METRICS
from tests.ops.harness import Array, Case, run_case
from tests.ops.microsoft.composed import DOMAIN
from tests.ops.microsoft.samples import HALF, SINGLE, sample

DOUBLE = np.dtype(np.float64)


def measure(metric: str, a: list[float], b: list[float], p: float) -> float:
    """Return the distance of two points, by the metric's definition."""
    pairs = list(zip(a, b, strict=True))
    gaps = [abs(x - y) for x, y in pairs]
    lengths = math.hypot(*a) * math.hypot(*b)
    return {
        "sqeuclidean": lambda: math.fsum(gap * gap for gap in gaps),
        "euclidean": lambda: math.dist(a, b),
        "cityblock": lambda: math.fsum(gaps),
        "chebyshev": lambda: max(gaps, default=0.0),
        "minkowski": lambda: math.fsum(gap**p for gap in gaps) ** (1 / p),
        "canberra": lambda: math.fsum(abs(x - y) / (abs(x) + abs(y)) for x, y in pairs if x or y),
        "hamming": lambda: sum(x != y for x, y in pairs) / len(pairs) if pairs else math.nan,
        "braycurtis": lambda: (
            math.fsum(gaps) / total if (total := math.fsum(abs(x + y) for x, y in pairs)) else math.nan
        ),
        "cosine": lambda: 1 - math.fsum(x * y for x, y in pairs) / lengths if lengths else math.nan,
    }[metric]()


def cdist(id: str, a: Array, b: Array, metric: str, p: float | None = None) -> Case:
    """Return a case by the definition."""
    rows, others = a.astype(DOUBLE).tolist(), b.astype(DOUBLE).tolist()
    found = [[measure(metric, x, y, 2.0 if p is None else p) for y in others] for x in rows]
    y = np.array(found, a.dtype).reshape(len(a), len(b))
    fields = {"metric": metric} | ({} if p is None else {"p": p})
    return Case(id, "CDist", (a, b), fields, opset=1, expected=(y,), terms=max(4, 2 * a.shape[1]), domain=DOMAIN)


def beside(id: str, a: Array, b: Array, **fields: Any) -> Case:
    """Return a case by onnxruntime."""
    return Case(id, "CDist", (a, b), fields, opset=1, oracle="onnxruntime", terms=4 * a.shape[1], domain=DOMAIN)


DEFINED = (
    "sqeuclidean",
    "euclidean",
    "cityblock",
    "chebyshev",
    "minkowski",
    "canberra",
    "hamming",
    "braycurtis",
    "cosine",
)
# A coordinate that both lack, equal ones, and a row twice.
POINTS = np.round(sample(5, 7), 1)
POINTS[:, 3] = 0
OTHERS = np.concatenate([POINTS[1:3], np.round(sample(4, 7, seed=1), 1)])
OTHERS[3:, 3] = 0
WILD = np.array([[np.inf, 1], [np.nan, 1], [3e38, -3e38], [0, 1]], SINGLE)
CASES = [
    *(
        cdist(
            f"{metric}-{dtype}",
            POINTS.astype(dtype),
            OTHERS.astype(dtype),
            metric,
            3.0 if metric == "minkowski" else None,
        )
        for metric in DEFINED
        for dtype in (SINGLE, DOUBLE)
    ),
    *(cdist(f"{metric}-tiles", sample(70, 19), sample(67, 19, seed=1), metric, None) for metric in DEFINED),
    *(cdist(f"minkowski-p{p}", POINTS, OTHERS, "minkowski", p) for p in (0.5, 1.0, 1.5, 2.0, 4.0)),
    beside("default", sample(3, 4), sample(5, 4, seed=1)),
    *(
        beside(
            f"{metric}-{dtype}-{size}",
            sample(9, size).astype(dtype),
            sample(6, size, seed=1).astype(dtype),
            metric=metric,
        )
        for metric in ("euclidean", "sqeuclidean")
        for dtype in (SINGLE, DOUBLE)
        for size in (1, 8, 16, 33)
    ),
    cdist("one", np.array([[3]], SINGLE), np.array([[-1]], SINGLE), "euclidean"),
    cdist("row", sample(1, 17), sample(130, 17), "sqeuclidean"),
    cdist("column", sample(130, 17), sample(1, 17), "cityblock"),
    cdist("no-rows", sample(0, 3), sample(4, 3), "euclidean"),
    cdist("no-others", sample(4, 3), sample(0, 3), "euclidean"),
    *(cdist(f"no-coordinates-{metric}", sample(2, 0), sample(3, 0), metric) for metric in DEFINED),
    cdist("strided", sample(20, 30)[::-2, ::3].T, sample(10, 30, seed=1)[::-1, 3:23:2].T, "euclidean"),
    cdist("turned", sample(9, 5).T, sample(9, 80, seed=1).T, "chebyshev"),
    # Differences: the squares of lengths would cancel.
    cdist(
        "far-away",
        sample(4, 9) * SINGLE.type(1e-3) + 1000,
        sample(3, 9, seed=1) * SINGLE.type(1e-3) + 1000,
        "euclidean",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_cdist(checks: str, case: Case) -> None:
    run_case(case, checks)


@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean", "cityblock", "chebyshev"])
def test_infinities_and_nan(checks: str, metric: str) -> None:
    with np.errstate(all="ignore"):
        gaps = np.abs(WILD[:, None] - WILD[None])
        y = {
            "sqeuclidean": lambda: (gaps * gaps).sum(-1),
            "euclidean": lambda: np.sqrt((gaps * gaps).sum(-1)),
            "cityblock": lambda: gaps.sum(-1),
            "chebyshev": lambda: gaps.max(-1),
        }[metric]()
    run_case(Case("wild", "CDist", (WILD, WILD), {"metric": metric}, opset=1, expected=(y,), domain=DOMAIN), checks)


def test_names_of_one_metric_are_one() -> None:
    a, b = sample(3, 4), sample(2, 4)
    for names in (("euclidean", "l2"), ("cityblock", "manhattan", "l1"), ("minkowski", "p")):
        made = [build(f"{DOMAIN}.CDist", {"metric": name, "p": 3.0}).compute(a, b)[0] for name in names]
        for each in made:
            np.testing.assert_array_equal(each, made[0])
    (furthest,) = build(f"{DOMAIN}.CDist", {"metric": "minkowski", "p": math.inf}).compute(a, b)
    np.testing.assert_array_equal(furthest, build(f"{DOMAIN}.CDist", {"metric": "chebyshev"}).compute(a, b)[0])
    assert set(METRICS) == {*DEFINED, "l1", "l2", "manhattan", "p"}


def test_what_does_not_fit_is_refused() -> None:
    op, a = build(f"{DOMAIN}.CDist", {}), TensorSpec((2, 3), SINGLE)
    with pytest.raises(InputError, match=r"A \[rows, size\] and B \[others, size\]"):
        op.infer(a, TensorSpec((2, 4), SINGLE))
    with pytest.raises(InputError, match=r"A \[rows, size\] and B \[others, size\]"):
        op.infer(TensorSpec((3,), SINGLE), TensorSpec((3,), SINGLE))
    with pytest.raises(InputError, match="B of type float32"):
        op.infer(a, TensorSpec((2, 3), DOUBLE))
    with pytest.raises(InputError, match="A of type float32, float64"):
        op.infer(TensorSpec((2, 3), HALF), a)
    with pytest.raises(InputError, match=r"metric to be one of sqeuclidean, .* got 'yule'"):
        build(f"{DOMAIN}.CDist", {"metric": "yule"})
    with pytest.raises(InputError, match="p to be above 0"):
        build(f"{DOMAIN}.CDist", {"metric": "minkowski", "p": 0.0})


def neighbours(metric: str) -> onnx.ModelProto:
    """Return a classifier by nearest neighbours as skl2onnx writes it with ``optim="cdist"``: three of forty vote."""
    weights = [
        numpy_helper.from_array(sample(40, 4, seed=3), "training"),
        numpy_helper.from_array(np.array([3], np.int64), "k"),
        numpy_helper.from_array(np.arange(40, dtype=np.int64) % 3, "labels"),
        numpy_helper.from_array(np.array([-1, 3], np.int64), "shape"),
        numpy_helper.from_array(np.arange(3, dtype=np.int64).reshape(3, 1, 1), "classes"),
        numpy_helper.from_array(np.array([2], np.int64), "last"),
    ]
    nodes = [
        helper.make_node("CDist", ["X", "training"], ["distances"], domain=DOMAIN, metric=metric),
        helper.make_node("TopK", ["distances", "k"], ["nearest", "places"], axis=1, largest=0, sorted=1),
        helper.make_node("Flatten", ["places"], ["flat"], axis=1),
        helper.make_node("ArrayFeatureExtractor", ["labels", "flat_places"], ["found"], domain="ai.onnx.ml"),
        helper.make_node("Reshape", ["found", "shape"], ["votes"]),
        helper.make_node("Equal", ["classes", "votes"], ["hits"]),
        helper.make_node("Cast", ["hits"], ["counted"], to=onnx.TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["counted", "last"], ["sums"], keepdims=0),
        helper.make_node("Transpose", ["sums"], ["scores"], perm=[1, 0]),
        helper.make_node("ArgMax", ["scores"], ["label"], axis=1, keepdims=0),
    ]
    nodes.insert(3, helper.make_node("Reshape", ["flat", "row"], ["flat_places"]))
    weights.append(numpy_helper.from_array(np.array([1, -1], np.int64), "row"))
    graph = helper.make_graph(
        nodes,
        "neighbours",
        [helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, [None, 4])],
        [
            helper.make_tensor_value_info("label", onnx.TensorProto.INT64, [None]),
            helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, [None, 3]),
            helper.make_tensor_value_info("nearest", onnx.TensorProto.FLOAT, [None, 3]),
        ],
        weights,
    )
    opsets = [helper.make_opsetid(domain, version) for domain, version in (("", 18), ("ai.onnx.ml", 3), (DOMAIN, 1))]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
@pytest.mark.parametrize("backend", [gx.BackendType.CPU, gx.BackendType.SIMULATOR], ids=lambda backend: backend.name)
def test_nearest_neighbours_as_onnxruntime_finds_them(metric: str, backend: gx.BackendType) -> None:
    model = neighbours(metric).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    with gx.Worker(gx.load(model), backend=backend) as worker:
        for rows in (5, 1, 70):
            x = sample(rows, 4, seed=rows)
            label, scores, nearest = session.run(None, {"X": x})
            made = worker.run({"X": x})
            np.testing.assert_array_equal(made["label"], label)
            np.testing.assert_array_equal(made["scores"], scores)
            np.testing.assert_allclose(made["nearest"], nearest, rtol=1e-4, atol=1e-5)
