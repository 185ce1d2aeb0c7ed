"""The pass merge_common: common-subexpression elimination."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuexec.ir.graphs import Value
from gpuexec.passes.merge_common import merge_common
from gpuexec.passes.remove_dead import remove_dead
from tests.passes.harness import check_same, load, operators

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


def test_nodes_with_bodies_are_not_merged() -> None:
    graph = load(
        """agraph (float[2] x, bool c) => (float[2] y) {
          t = If (c) <then_branch = a () => (float[2] p) { p = Abs (x) },
                      else_branch = b () => (float[2] p) { p = Neg (x) }>
          y = Add (t, t)
        }"""
    )
    choose, add = graph.nodes
    again = replace(choose, outputs=(Value("again"),), name="again")
    both = replace(graph, nodes=(choose, again, replace(add, inputs=(*choose.outputs, *again.outputs))))
    assert operators(merge_common(both)) == ["If", "If", "Add"]


def test_equal_chains_are_merged() -> None:
    graph = load(
        "agraph (float[2, 3] x) => (int64 y) <int64 i = {1}, int64 j = {1}> "
        "{ s = Shape (x) a = Gather (s, i) t = Shape (x) b = Gather (t, j) y = Add (a, b) }"
    )
    after = merge_common(graph)
    assert operators(after) == ["Shape", "Gather", "Add"]
    assert len(remove_dead(after).constants) == 1
    check_same(graph, after, x=X)


def test_different_attributes_inputs_and_operators_stay() -> None:
    graph = load(
        "agraph (float[2, 3] x) => (float[2, 3] y) <float i = {1}, float j = {2}> "
        "{ a = LeakyRelu <alpha = 0.1> (x) b = LeakyRelu <alpha = 0.2> (x) c = Add (a, i) d = Add (b, i) "
        "e = Add (a, j) f = Neg (c) g = Abs (c) y = Sum (d, e, f, g) }"
    )
    assert operators(merge_common(graph)) == operators(graph)


def test_sign_of_a_zero_attribute_counts() -> None:
    graph = load(
        "agraph (float[2, 3] x) => (float[2, 3] y) "
        "{ a = LeakyRelu <alpha = 0.0> (x) b = LeakyRelu <alpha = -0.0> (x) c = Reciprocal (a) "
        "d = Reciprocal (b) y = Max (c, d) }"
    )
    assert len(merge_common(graph).nodes) == 5


def test_constants_of_other_type_or_shape_stay() -> None:
    graph = load(
        "agraph (float[2, 3] x) => (float[2, 3] y) "
        "<float i = {1}, float[1] j = {1}, float k = {-0.0}, float l = {0.0}> "
        "{ a = Add (x, i) b = Add (a, j) c = Add (b, k) y = Add (c, l) }"
    )
    assert len(remove_dead(merge_common(graph)).constants) == 4


def test_graph_outputs_stay() -> None:
    graph = load(
        "agraph (float[2, 3] x) => (float[2, 3] y, float[2, 3] z, float w) <float w = {1}, float v = {1}> "
        "{ y = Neg (x) z = Neg (x) a = Add (x, w) b = Add (x, v) }"
    )
    after = merge_common(graph)
    assert operators(after)[:2] == ["Neg", "Neg"]
    check_same(graph, after, x=X)


def test_value_that_is_no_output_merges_into_one_that_is() -> None:
    graph = load("agraph (float[2, 3] x) => (float[2, 3] y, float[2, 3] z) { y = Neg (x) a = Neg (x) z = Abs (a) }")
    after = merge_common(graph)
    assert operators(after) == ["Neg", "Abs"]
    check_same(graph, after, x=X)


def test_outputs_wanted_by_either_are_made() -> None:
    graph = remove_dead(
        load(
            "agraph (float[2, 4] x) => (float[2, 2] y) "
            "{ a, b = Split <axis = 1, num_outputs = 2> (x) "
            "c, d = Split <axis = 1, num_outputs = 2> (x) y = Sub (a, d) }"
        )
    )
    after = merge_common(graph)
    assert operators(after) == ["Split", "Sub"]
    check_same(graph, after, x=np.arange(8, dtype=np.float32).reshape(2, 4))
