"""The pass decompose: operators split into parts, by what they become and by results."""

from __future__ import annotations

import numpy as np
import pytest

from gpuexec.ir.graphs import check
from gpuexec.passes import AT_LOAD, run_passes
from gpuexec.passes.decompose import decompose
from tests.ir.graph_builder import compute_graph
from tests.passes.harness import load, operators

X = np.array([[1, 0, 2], [0, 0, 3]], np.float32)
KEPT = np.array([True, False, True])
BOXES = np.array([[[0, 0, 1, 1], [0, 0, 1, 0.9], [2, 2, 3, 3]]], np.float32)
SCORES = np.array([[[0.5, 0.9, 0.7]]], np.float32)
CUT = ["Constant", "Constant", "Slice"]
CASES = [
    (
        "(float[2, 3] x) => (int64[r, n] y) { y = NonZero (x) }",
        {"x": X},
        ["gpuexec.Compact", *CUT, "Shape", "gpuexec.Unravel"],
    ),
    (
        "(float[2, 3] x, bool[3] c) => (float[2, n] y) { y = Compress <axis = -1> (x, c) }",
        {"x": X, "c": KEPT},
        ["Shape", "Constant", "Slice", "gpuexec.Compact", *CUT, "Gather"],
    ),
    (
        "(float[2, 3] x, bool[3] c) => (float[n] y) { y = Compress (x, c) }",
        {"x": X, "c": KEPT},
        ["Constant", "Reshape", "Shape", "Constant", "Slice", "gpuexec.Compact", *CUT, "Gather"],
    ),
    (
        "(float[2, 3] x) => (float[n] y, int64[6] v) { y, i, v, c = Unique (x) }",
        {"x": X},
        ["gpuexec.FindUnique", *CUT * 3],
    ),
    (
        "(float[2, 3] x) => (float[2, n] y) { y = Unique <axis = -1, sorted = 0> (x) }",
        {"x": X},
        ["gpuexec.FindUnique", *CUT],
    ),
    (
        "(float[1, 3, 4] b, float[1, 1, 3] s) => (int64[n, 3] y) <int64[1] most = {5}, float[1] iou = {0.5}> "
        "{ y = NonMaxSuppression (b, s, most, iou) }",
        {"b": BOXES, "s": SCORES},
        ["gpuexec.SelectBoxes", *CUT],
    ),
]


@pytest.mark.parametrize(("text", "feeds", "expected"), CASES, ids=lambda item: item if isinstance(item, str) else "")
def test_operator_becomes_parts_that_compute_the_same(
    text: str, feeds: dict[str, np.ndarray], expected: list[str]
) -> None:
    graph = load(f"agraph {text}")
    after = decompose(graph)
    check(after)
    assert operators(after) == expected
    assert (after.inputs, after.outputs) == (graph.inputs, graph.outputs)
    for before, got in zip(compute_graph(graph, feeds), compute_graph(after, feeds), strict=True):
        assert got.dtype == before.dtype
        np.testing.assert_array_equal(got, before)


def test_values_are_named_after_their_node() -> None:
    graph = load("agraph (float[2, 3] x) => (int64[a, b] y, int64[c, d] z) { y = NonZero (x) z = NonZero (y) }")
    after = decompose(graph)
    names = [value.name for node in after.nodes for value in node.outputs if value is not None]
    assert len(set(names)) == len(names)
    first, second = (node.name for node in graph.nodes)
    assert {f"{node}.{part}" for node in (first, second) for part in ("bound", "count", "positions", "shape")} <= {
        *names
    }
    assert [node.name for node in after.nodes if node.operator.name == "gpuexec.Unravel"] == [first, second]


def test_other_operators_stay() -> None:
    graph = load("agraph (float[2, 3] x) => (float[2, 3] y) { a = Neg (x) y = Abs (a) }")
    assert decompose(graph) is graph


def test_parts_of_constants_are_folded() -> None:
    graph = load(
        "agraph (float[2] x) => (int64[2, 3] y, float[2] z) <float[2, 3] c = {1, 0, 2, 0, 0, 3}> "
        "{ y = NonZero (c) z = Neg (x) }"
    )
    after = run_passes(graph, AT_LOAD)
    assert operators(after) == ["Neg"]
    np.testing.assert_array_equal(after.constants[graph.outputs[0]], [[0, 0, 1], [0, 2, 2]])


def test_without_the_pass_the_operator_stays() -> None:
    graph = load("agraph (float[2, 3] x) => (int64[r, n] y) { y = NonZero (x) }")
    assert operators(run_passes(graph, AT_LOAD, disabled={"decompose"})) == ["NonZero"]
