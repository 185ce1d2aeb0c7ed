"""The pass remove_dead: dead-code elimination."""

from __future__ import annotations

import numpy as np

from gpuexec.passes.remove_dead import remove_dead
from tests.passes.harness import check_same, load, operators

X = np.arange(4, dtype=np.float32)


def test_nodes_and_constants_nobody_reads_go() -> None:
    graph = load(
        "agraph (float[4] x) => (float[4] y) <float a = {2.0}, float b = {3.0}> "
        "{ y = Mul (x, a) u = Mul (x, b) v = Neg (u) }"
    )
    after = remove_dead(graph)
    assert operators(after) == ["Mul"]
    assert [value.name for value in after.constants] == ["a"]
    check_same(graph, after, x=X)


def test_inputs_stay() -> None:
    graph = load("agraph (float[4] x, float[4] unused) => (float[4] y) { y = Neg (x) }")
    assert remove_dead(graph).inputs == graph.inputs


def test_outputs_nobody_reads_become_none() -> None:
    graph = load("agraph (float[4] x) => (float[2] y) { a, b = Split <num_outputs = 2> (x) y = Neg (b) }")
    (split, _) = remove_dead(graph).nodes
    assert split.outputs == (None, graph.nodes[0].outputs[1])
    check_same(graph, remove_dead(graph), x=X)


def test_graph_without_anything_dead_keeps_its_nodes() -> None:
    graph = load("agraph (float[4] x) => (float[2] a, float[2] c) { a, b = Split <num_outputs = 2> (x) c = Neg (b) }")
    assert remove_dead(graph).nodes == graph.nodes


def test_constant_output_stays() -> None:
    graph = load("agraph (float[4] x) => (float w) <float w = {2.0}> { y = Neg (x) }")
    after = remove_dead(graph)
    assert operators(after) == []
    assert [value.name for value in after.constants] == ["w"]
