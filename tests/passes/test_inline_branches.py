"""The pass inline_branches: an If with a constant condition replaced by its branch."""

from __future__ import annotations

import numpy as np
import pytest

from gpuexec.ir.graphs import Graph, bodies, check
from gpuexec.ops.control.interpret import compute_graph
from gpuexec.passes import AT_LOAD, run_passes
from gpuexec.passes.fold_constants import fold_constants
from gpuexec.passes.inline_branches import inline_branches
from tests.model.control_models import X, flag
from tests.passes.harness import check_same, load, operators

BRANCHES = (
    "then_branch = a () => (float[3, 4] p) { p = Abs (x) }, else_branch = b () => (float[3, 4] p) { p = Neg (x) }"
)


@pytest.mark.parametrize(("content", "taken"), [("1", "Abs"), ("0", "Neg")])
def test_if_of_a_constant_condition_is_its_branch(content: str, taken: str) -> None:
    graph = load(f"agraph (float[3, 4] x) => (float[3, 4] y) <bool c = {{{content}}}> {{ y = If (c) <{BRANCHES}> }}")
    after = inline_branches(graph)
    assert operators(after) == [taken]
    check_same(graph, after, x=X)


def test_if_of_a_computed_condition_stays() -> None:
    graph = load(f"agraph (float[3, 4] x, bool c) => (float[3, 4] y) {{ y = If (c) <{BRANCHES}> }}")
    assert operators(inline_branches(graph)) == ["If"]


def test_condition_that_is_none_is_left_to_planning() -> None:
    graph = load(f"agraph (float[3, 4] x) => (float[3, 4] y) <bool[2] c = {{1, 0}}> {{ y = If (c) <{BRANCHES}> }}")
    assert operators(inline_branches(graph)) == ["If"]


def test_branch_in_a_branch_is_decided_by_what_follows_from_constants_there() -> None:
    graph = load(
        f"""agraph (float[3, 4] x) => (float[3, 4] y, float[3, 4] z) <bool c = {{1}}> {{
          y = If (c) <then_branch = t () => (float[3, 4] q) <int64 n = {{3}}, int64 m = {{4}}> {{
                d = Less (m, n)
                r = If (d) <{BRANCHES}>
                q = Exp (r)
              }}, else_branch = e () => (float[3, 4] q) {{ q = Identity (x) }}>
          z = Relu (y)
        }}"""
    )
    after = inline_branches(graph)
    assert operators(after) == ["Neg", "Exp", "Relu"]
    check_same(graph, after, x=X)


def test_ifs_of_equal_names_inside_keep_their_values_apart() -> None:
    graph = load(
        "agraph (float[3, 4] x) => (float[3, 4] z) <bool c = {1}> "
        f"{{ y = If (c) <{BRANCHES}> z = If (c) <{BRANCHES}> }}"
    )
    after = inline_branches(graph)
    check(after)
    assert operators(after) == ["Abs", "Abs"]


def test_all_load_passes_run_in_bodies() -> None:
    graph = load(
        """agraph (float[3, 4] x, bool c) => (float[3, 4] y) <float w = {2}, bool yes = {1}> {
          y = If (c) <
            then_branch = a () => (float[3, 4] p) <float k = {1}> {
              n = Neg (k)
              i = Identity (x)
              s = Mul (i, n)
              t = Mul (x, n)
              dead = Exp (x)
              p = Add (s, t)
            },
            else_branch = b () => (float[3, 4] p) <bool no = {0}> {
              p = If (no) <then_branch = d () => (float[3, 4] q) { q = Abs (x) },
                           else_branch = e () => (float[3, 4] q) { q = Mul (x, w) }>
            }>
        }"""
    )
    after = run_passes(graph, AT_LOAD)
    then, other = bodies(after.nodes[0].operator)
    assert operators(then) == ["Mul", "Add"]
    assert operators(other) == ["Mul"]
    for given in (flag(True), flag(False)):
        check_same(graph, after, x=X, c=given)


@pytest.mark.parametrize("name", ["fold_constants", "merge_common", "remove_noops"])
def test_disabled_pass_does_not_run_in_bodies(name: str) -> None:
    graph = load(
        """agraph (float[3, 4] x, bool c) => (float[3, 4] y) {
          y = If (c) <
            then_branch = a () => (float[3, 4] p) <float k = {1}> {
              n = Neg (k) i = Identity (x) s = Mul (i, n) t = Mul (i, n) p = Add (s, t)
            },
            else_branch = b () => (float[3, 4] p) { p = Abs (x) }>
        }"""
    )
    kept = {"fold_constants": ["Neg"], "merge_common": ["Mul", "Mul"], "remove_noops": ["Identity"]}[name]
    then, _ = bodies(run_passes(graph, AT_LOAD, disabled={name}).nodes[0].operator)
    assert [each for each in operators(then) if each in kept] == kept


LOOP = """agraph (float[3, 4] x) => (float[3, 4] y, float[3, 4] z) <int64 n = {3}, float w = {2}, float v = {2}> {
  k = Neg (w)
  y = Loop (n, "", x) <body = b (int64 i, bool c, float[3, 4] s) => (bool d, float[3, 4] t) {
    d = Identity (c) t = Mul (s, k) unused = Add (s, v)
  }>
  z = Loop (n, "", x) <body = b (int64 i, bool c, float[3, 4] s) => (bool d, float[3, 4] t) {
    d = Identity (c) t = Mul (s, k)
  }>
}"""


def test_constants_that_a_loop_takes_stay() -> None:
    graph = load(LOOP)
    after = run_passes(graph, AT_LOAD)
    assert operators(after) == ["Loop", "Loop"]
    assert [array.tolist() for array in after.constants.values()] == [3, -2]
    check_same(graph, after, x=X)


def test_loop_over_constants_is_not_computed_while_loading() -> None:
    graph = load(
        """agraph (float[1] x) => (float[1] y) <int64 n = {4611686018427387904}, float[1] w = {2}> {
          t = Loop (n, "", w) <body = b (int64 i, bool c, float[1] s) => (bool d, float[1] r) {
            d = Identity (c) r = Neg (s)
          }>
          y = Add (x, t)
        }"""
    )
    assert operators(fold_constants(graph)) == ["Loop", "Add"]


def _if_of_two(wanted: str) -> Graph:
    return load(
        f"""agraph (float[3, 4] x, float[3, 4] w, bool c) => (float[3, 4] {wanted}) {{
          y, z = If (c) <
            then_branch = a () => (float[3, 4] p, float[3, 4] q) {{ p = Abs (x) q = Add (p, w) }},
            else_branch = b () => (float[3, 4] p, float[3, 4] q) {{ p = Neg (x) q = Mul (x, w) }}>
        }}"""
    )


def test_output_of_an_if_that_nobody_reads_goes_with_what_makes_it() -> None:
    graph = _if_of_two("y")
    after = run_passes(graph, AT_LOAD)
    (node,) = after.nodes
    assert [value and value.name for value in node.outputs] == ["y"]
    assert [value and value.name for value in node.inputs] == ["c", "x"]
    assert [operators(body) for body in bodies(node.operator)] == [["Abs"], ["Neg"]]
    check_same(graph, after, x=X, w=X, c=flag(True))
    both = _if_of_two("z")
    (node,) = run_passes(both, AT_LOAD).nodes
    assert [operators(body) for body in bodies(node.operator)] == [["Abs", "Add"], ["Mul"]]


def test_scan_output_that_nobody_reads_goes_and_states_stay() -> None:
    graph = load(
        """agraph (float[3, 4] x, float[4] s) => (float[4, 3] z) {
          last, y, z = Scan <num_scan_inputs = 1, scan_output_axes = [0, 1], scan_output_directions = [0, 1],
            body = step (float[4] state, float[4] row) => (float[4] out, float[4] p, float[4] q) {
              out = Add (state, row) p = Exp (out) q = Neg (out)
            }> (s, x)
        }"""
    )
    after = run_passes(graph, AT_LOAD)
    (node,) = after.nodes
    assert [value and value.name for value in node.outputs] == [None, "z"]
    (body,) = bodies(node.operator)
    assert operators(body) == ["Add", "Neg"]
    for before_, after_ in zip(compute_graph(graph, [X, X[0]]), compute_graph(after, [X, X[0]]), strict=True):
        np.testing.assert_array_equal(before_, after_)
    check_same(graph, after, x=X, s=X[0])


def test_rows_of_a_loop_that_nobody_reads_go_and_its_condition_stays() -> None:
    graph = load(
        """agraph (float[3, 4] x, float limit) => (float[3, 4] y) <int64 n = {9}> {
          y, rows = Loop (n, "", x) <body = b (int64 i, bool c, float[3, 4] v) =>
            (bool d, float[3, 4] w, float[3, 4] row) {
              w = Add (v, v) row = Exp (v) m = ReduceMax <keepdims = 0> (w) d = Less (m, limit)
          }>
        }"""
    )
    after = run_passes(graph, AT_LOAD)
    (body,) = bodies(after.nodes[0].operator)
    assert operators(body) == ["Add", "ReduceMax", "Less"]
    check_same(graph, after, x=X, limit=np.array(20, np.float32))
