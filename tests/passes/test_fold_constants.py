"""The pass fold_constants: constant folding at load."""

from __future__ import annotations

import numpy as np

from gpuexec.passes.fold_constants import FREE_NBYTES, FREE_NBYTES_IN_ALL, fold_constants
from tests.passes.harness import check_same, load, operators

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_node_of_constants_becomes_a_constant() -> None:
    graph = load(
        "agraph (float[2, 3] x) => (float[2, 3] y) <float[3] a = {1, 2, 3}, float[3] b = {4, 5, 6}> "
        "{ c = Mul (a, b) d = Neg (c) y = Add (x, d) }"
    )
    folded = fold_constants(graph)
    assert operators(folded) == ["Add"]
    (value,) = (value for value in folded.constants if value.name == "d")
    assert folded.constants[value].tolist() == [-4.0, -10.0, -18.0]
    check_same(graph, folded, x=X)


def test_folded_constants_are_dense_and_read_only() -> None:
    graph = load(
        "agraph (float[3, 2] x) => (float[3, 2] y) <float[2, 3] a = {1, 2, 3, 4, 5, 6}> "
        "{ b = Transpose <perm = [1, 0]> (a) y = Add (x, b) }"
    )
    folded = fold_constants(graph)
    assert operators(folded) == ["Add"]
    for array in folded.constants.values():
        assert array.flags.c_contiguous
        assert not array.flags.writeable
    check_same(graph, folded, x=X.reshape(3, 2))


def test_all_outputs_of_a_node_are_folded() -> None:
    graph = load(
        "agraph (float[2] x) => (float[2] y) <float[4] a = {1, 2, 3, 4}> "
        "{ b, c = Split <num_outputs = 2> (a) t = Add (x, b) y = Mul (t, c) }"
    )
    folded = fold_constants(graph)
    assert operators(folded) == ["Add", "Mul"]
    check_same(graph, folded, x=X[0, :2])


def test_graph_output_may_become_a_constant() -> None:
    graph = load("agraph (float[2] x) => (float[2] y, float[2] z) <float[2] a = {1, -2}> { y = Abs (x) z = Neg (a) }")
    folded = fold_constants(graph)
    assert operators(folded) == ["Abs"]
    assert folded.outputs == graph.outputs
    assert folded.constants[folded.outputs[1]].tolist() == [-1.0, 2.0]


def test_what_would_grow_large_is_left() -> None:
    elements = FREE_NBYTES // 4
    text = (
        "agraph (float[1] x) => (float[n] y) <int64[1] s = {%d}, float v = {1.0}> "
        "{ big = Expand (v, s) y = Add (x, big) }"
    )
    assert operators(fold_constants(load(text % (elements + 1)))) == ["Expand", "Add"]
    assert operators(fold_constants(load(text % elements))) == ["Add"]


def test_large_weight_may_be_converted() -> None:
    graph = load(
        "agraph (float[1] x) => (float[n] y) <float v = {1}, int64[1] s = {200000}> "
        "{ a = Expand (v, s) w = Cast <to = 11> (a) z = Cast <to = 1> (w) y = Add (x, z) }"
    )
    assert operators(fold_constants(graph)) == ["Add"]
    assert max(array.nbytes for array in fold_constants(graph).constants.values()) > FREE_NBYTES


def test_node_that_can_not_be_computed_is_left_for_planning_to_report() -> None:
    graph = load(
        "agraph (float[2] x) => (float[2] y) <float[2] a = {1, 2}, float[3] b = {1, 2, 3}> "
        "{ c = Add (a, b) y = Add (x, c) }"
    )
    assert operators(fold_constants(graph)) == ["Add", "Add"]


def test_node_without_constants_stays() -> None:
    graph = load("agraph (float[2, 3] x) => (float[2, 3] y) <float a = {2.0}> { y = Mul (x, a) }")
    assert operators(fold_constants(graph)) == ["Mul"]


def test_what_doubles_again_and_again_is_folded_only_so_far() -> None:
    body = " ".join(f"t{i + 1} = Concat <axis = 0> (t{i}, t{i})" for i in range(60))
    text = f"agraph (float[1] x) => (float[n] y) <float[1] t0 = {{1}}> {{ {body} y = Add (x, t60) }}"
    graph = fold_constants(load(text))
    held = sum(array.nbytes for array in graph.constants.values())
    assert FREE_NBYTES <= held <= FREE_NBYTES_IN_ALL
    assert graph.nodes[0].operator.name == "Concat", "the rest is left to the planner"
