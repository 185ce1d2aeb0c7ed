"""Bodies of If, Loop and Scan: closed graphs, and name look-up from inner to outer scopes."""

from __future__ import annotations

import numpy as np
import pytest

from gpuexec.importer import load_graph, run_oracle
from gpuexec.ir import operator
from gpuexec.ir.graphs import bodies, check
from gpuexec.ops.control.control import Loop, Scan
from gpuexec.ops.control.interpret import compute_graph
from tests.importer.bodies import load, names, node_of, parse
from tests.model.control_models import MODELS, X, flag


def test_what_branches_take_from_outside_becomes_inputs_of_node_and_branches() -> None:
    graph = load(
        """(float[3] x, float[3] z, bool c) => (float[3] y) {
          t = Neg (x)
          y = If (c) <then_branch = a () => (float[3] p) { q = Add (t, z) p = Sub (q, t) },
                      else_branch = b () => (float[3] q) { q = Mul (x, z) }>
        }"""
    )
    node = node_of(graph, "If")
    assert names(node.inputs) == ["c", "t", "z", "x"]
    then, other = bodies(node.operator)
    assert names(then.inputs) == names(other.inputs) == ["t", "z", "x"]
    assert names(other.outputs) == ["q"]
    assert then.inputs[1].declared == graph.inputs[1].declared
    assert not set(then.values()) & set(graph.values())


def test_value_of_two_levels_up_is_handed_down() -> None:
    graph = MODELS["loop_in_if_in_scan"].parse()
    scan = node_of(load_graph(graph).graph, "Scan")
    assert names(scan.inputs) == ["start", "x", "limit", "scale", "three", "yes"]
    (walk,) = bodies(scan.operator)
    choose = node_of(walk, "If")
    assert names(choose.inputs) == ["is_small", "scale", "s", "three", "yes", "row"]
    repeat = node_of(bodies(choose.operator)[0], "Loop")
    assert names(repeat.inputs) == ["three", "yes", "row", "scale", "s"]
    assert isinstance(repeat.operator, Loop) and repeat.operator.carried == 1
    assert names(bodies(repeat.operator)[0].inputs) == ["i", "c", "v", "scale", "s"]


def test_absent_inputs_of_a_loop_keep_their_place() -> None:
    text = """(int64 n, float k) => (float[m] y) {
      y = Loop (n) <body = b (int64 i, bool c) => (bool d, float row) { d = Identity (c) row = Neg (k) }>
    }"""
    assert names(node_of(load(text, opset=18), "Loop").inputs) == ["n", None, "k"]
    text = text.replace("Neg (k)", "Cast <to = 1> (i)")
    assert names(node_of(load(text), "Loop").inputs) == ["n", None]


def test_scan_knows_how_many_states_it_has() -> None:
    op = node_of(load_graph(MODELS["scan_along_axes_and_back"].parse()).graph, "Scan").operator
    assert isinstance(op, Scan)
    assert (op.states, op.num_scan_inputs, op.scan_input_axes, op.scan_output_directions) == (1, 2, (1, 0), (1, 0))


def test_name_inside_hides_the_one_outside() -> None:
    text = """(float[2] x, bool c) => (float[2] y) {
      t = Neg (x)
      y = If (c) <then_branch = a () => (float[2] p) { p = Abs (t) t = Exp (x) },
                  else_branch = b () => (float[2] p) { p = Abs (t) }>
    }"""
    graph = load(text)
    then, other = bodies(node_of(graph, "If").operator)
    assert [node.operator.name for node in then.nodes] == ["Exp", "Abs"]
    for body in (then, other):
        check(body)
        assert len(set(names(body.inputs))) == 2
    x = np.array([-1, 1], np.float32)
    np.testing.assert_allclose(compute_graph(graph, [x, flag(True)])[0], np.exp(x), rtol=1e-6)
    np.testing.assert_array_equal(compute_graph(graph, [x, flag(False)])[0], np.abs(x))


def test_nodes_are_sorted_by_what_their_bodies_take_too() -> None:
    model = parse(
        """(float[2] x, bool c) => (float[2] y) {
          t = Neg (x)
          y = If (c) <then_branch = a () => (float[2] p) {
            p = If (c) <then_branch = e () => (float[2] p) { p = Neg (t) },
                        else_branch = f () => (float[2] p) { p = Identity (q) }>
            q = Exp (x)
          }, else_branch = b () => (float[2] p) { p = Identity (x) }>
        }"""
    )
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    graph = load_graph(model).graph
    assert [node.operator.name for node in graph.nodes] == ["Neg", "If"]
    assert [node.operator.name for node in bodies(graph.nodes[1].operator)[0].nodes] == ["Exp", "If"]


def test_initializers_constants_and_upgrades_of_a_body_are_its_own() -> None:
    graph = load(
        """(float[1, 2] x, bool c) => (float[2] y) {
          y = If (c) <then_branch = a () => (float[2] p) <float w = {2}> {
            q = Squeeze <axes = [0]> (x) p = Mul (q, w)
          },
                      else_branch = b () => (float[2] p) { p = Constant <value = float[2] {1, 2}> () }>
        }""",
        opset=11,
    )
    then, other = bodies(node_of(graph, "If").operator)
    assert sorted(array.tolist() == [0] for array in then.constants.values()) == [False, True]
    assert names(other.outputs) == ["p"] and list(other.constants) == list(other.outputs)
    assert not graph.constants


def test_output_of_a_body_may_come_from_outside() -> None:
    graph = load(
        """(float[2] x, bool c) => (float[2] y) {
          y = If (c) <then_branch = a () => (float[2] x) { unused = Neg (x) },
                      else_branch = b () => (float[2] p) { p = Neg (x) }>
        }"""
    )
    then, _ = bodies(node_of(graph, "If").operator)
    assert then.outputs == then.inputs


def test_functions_in_bodies_and_bodies_in_functions_are_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "_OPERATORS", {k: v for k, v in operator._OPERATORS.items() if k != "Celu"})
    model = parse(
        "(float[3, 4] x, bool c) => (float[3, 4] y) { y = loc.choose (x, c) }",
        rest="""
        <domain: "loc", opset_import: ["": 18, "loc": 1]> choose (a, c) => (b) {
          b = If (c) <then_branch = t () => (u) { v = loc.twice (a) w = Relu (v) u = Celu (w) },
                      else_branch = e () => (u) { u = loc.twice (a) }>
        }
        <domain: "loc", opset_import: ["": 18]> twice (a) => (b) { b = Add (a, a) }""",
    )
    graph = load_graph(model).graph
    (node,) = graph.nodes
    then, other = bodies(node.operator)
    assert [each.operator.name for each in then.nodes][:2] == ["Add", "Relu"]
    assert [each.operator.name for each in other.nodes] == ["Add"]
    for given in (flag(True), flag(False)):
        (got,) = compute_graph(graph, [X, given])
        np.testing.assert_allclose(got, run_oracle(model, {"x": X, "c": given})[1]["y"], rtol=1e-6)


def test_operator_with_control_flow_in_its_body_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        operator, "_OPERATORS", {k: v for k, v in operator._OPERATORS.items() if k not in ("Range", "AffineGrid")}
    )
    model = parse(
        "(float[2, 2, 3] theta) => (y) { n = Constant <value_ints = [2, 1, 2, 3]> () y = AffineGrid (theta, n) }",
        opset=20,
    )
    theta = np.array([[[1, 0, 0.5], [0, 2, 0]]] * 2, np.float32)
    graph = load_graph(model).graph
    assert {"If", "Loop"} <= {node.operator.name for node in graph.nodes}
    (got,) = compute_graph(graph, [theta])
    np.testing.assert_allclose(got, run_oracle(model, {"theta": theta}, "reference")[1]["y"], rtol=1e-6)


def test_info_counts_nodes_in_bodies() -> None:
    info = load_graph(MODELS["loop_in_if_in_scan"].parse())
    assert dict(info.operators)["If"] == dict(info.operators)["Loop"] == dict(info.operators)["Mul"] == 1
    assert info.node_count == 11
