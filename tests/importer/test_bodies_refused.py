"""Refused bodies: unsupported, or in contradiction to their nodes; with the place in the message."""

from __future__ import annotations

import pytest

from gpuexec.errors import ModelError, UnsupportedError
from gpuexec.importer import load_graph
from gpuexec.ir.graphs import bodies
from gpuexec.ops.control.control import SequenceMap
from tests.importer.bodies import load, names, node_of, parse

TWO = "else_branch = b () => (float[2] p) { p = Neg (x) }"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"y = If (c) <{TWO}>", "If 'y' lacks its body then_branch"),
        (
            f"y = If (c) <then_branch = a () => (float[2] p, float[2] x) {{ p = Abs (x) }}, {TWO}>",
            "If 'y': then_branch gives 2 values; by the node's outputs, expected 1",
        ),
        (f"y = If (c) <then_branch = a () => () {{ p = Abs (x) }}, {TWO}>", "then_branch gives 0 values"),
        (
            f"y = If (c) <then_branch = a (float[2] q) => (float[2] p) {{ p = Abs (q) }}, {TWO}>",
            "then_branch takes 1 values; by the node's inputs, expected 0",
        ),
        (
            f"y = If (c) <then_branch = a () => (float[2] p) {{ p = Abs (nowhere) }}, {TWO}>",
            "If 'y', then_branch: Abs 'p': input %nowhere is made by no node",
        ),
        (
            f"y = If (c) <then_branch = a () => (float[2] p) {{ q = Abs (x) }}, {TWO}>",
            "If 'y', then_branch: Output %p of the graph is made by no node",
        ),
        (
            f"y = If (c) <then_branch = a () => (float[2] p) {{ p = Abs (q) q = Neg (p) }}, {TWO}>",
            "If 'y', then_branch: 2 nodes wait in a circle",
        ),
        (
            "y = Loop (n, c, x) <body = b (int64 i, bool k) => (bool k, float[2] v) { v = Neg (x) }>",
            "Loop 'y': body takes 2 values; by the node's inputs, expected 3",
        ),
        (
            "y = Loop (n, c, x) <body = b (int64 i, bool k, float[2] v) => (float[2] w) { w = Neg (v) }>",
            "Loop 'y': body gives 1 values; by the node's outputs, expected 2",
        ),
        (
            'y = Loop (n, c, "") <body = b (int64 i, bool k, float[2] v) => (bool k, float[2] w) { w = Neg (v) }>',
            "Loop 'y' lacks its input 2",
        ),
        (
            "y = Loop (n, c, x, x) <body = b (int64 i, bool k, float[2] v, float[2] u) => (bool k, float[2] w) "
            "{ w = Neg (v) }>",
            "Loop 'y' carries 2 values, got 1 outputs",
        ),
        (
            "y = Scan <num_scan_inputs = 3, body = b (float v) => (float w) { w = Neg (v) }> (x)",
            "Scan 'y' needs num_scan_inputs from 1 to 1, its number of inputs, got 3",
        ),
        (
            "y = Scan <num_scan_inputs = 1, body = b (float v, float u) => (float w) { w = Neg (v) }> (x)",
            "Scan 'y': body takes 2 values; by the node's inputs, expected 1",
        ),
        (
            "y = Scan <num_scan_inputs = 1, body = b (float[2] s, float v) => () { w = Neg (v) }> (x, x)",
            "Scan 'y': body gives 0 values; by the node's outputs, expected 1",
        ),
    ],
)
def test_body_that_does_not_fit_its_node_is_refused(text: str, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        load(f"(float[2] x, bool c, int64 n) => (float[2] y) {{ {text} }}")
    assert message in str(caught.value)


def test_names_made_twice_in_a_body_are_refused_with_their_place() -> None:
    with pytest.raises(ModelError, match=r"If 'y', then_branch: Neg 'p': output %p is made by Abs 'p' already"):
        load(
            "(float[2] x, bool c) => (float[2] y) { y = If (c) "
            f"<then_branch = a () => (float[2] p) {{ p = Abs (x) p = Neg (x) }}, {TWO}> }}"
        )


def test_all_that_is_not_supported_in_bodies_is_reported_with_its_path() -> None:
    model = parse(
        """(float[2] x, bool c) => (float[2] y) {
          a = loc.Bar (x)
          y = If (c) <then_branch = t () => (float[2] p) { p = loc.Bar (x) },
                      else_branch = e () => (float[2] p) {
            p = Scan <num_scan_inputs = 1, body = s (float v) => (float w) { u = Nothing (v) w = loc.Bar (u) }> (x)
          }>
        }"""
    )
    model.graph.node[1].name = "choose"
    with pytest.raises(UnsupportedError) as caught:
        load_graph(model)
    text = str(caught.value)
    assert "operator Bar (loc 1): 3 (Bar_0, choose/then_branch/Bar_0, choose/else_branch/Scan_0/body/Bar_1)" in text
    assert "operator Nothing: 1 (choose/else_branch/Scan_0/body/Nothing_0)" in text


def test_sequences_carried_by_a_loop_are_declared() -> None:
    graph = load(
        """(seq(float[2]) x, bool c, int64 n) => (seq(float[2]) y) {
          y = Loop (n, c, x) <body = b (int64 i, bool k, seq(float[2]) v) => (bool k, seq(float[2]) w) {
            w = SequenceErase (v) }>
        }"""
    )
    body = bodies(node_of(graph, "Loop").operator)[0]
    assert str(body.inputs[2].declared) == "sequence(float32[2])"


def test_sequence_map_has_a_body_with_captures() -> None:
    graph = load(
        """(seq(float[2]) x, float[2] a, float[2] b) => (seq(float[2]) y) {
          y = SequenceMap (x, a) <body = f (float[2] v, float[2] w) => (float[2] z) { s = Add (v, w) z = Add (s, b) }>
        }"""
    )
    node = node_of(graph, "SequenceMap")
    assert isinstance(node.operator, SequenceMap)
    assert node.operator.given == 2
    assert names(node.inputs) == ["x", "a", "b"]
    assert names(node.operator.body.inputs) == ["v", "w", "b"]


@pytest.mark.parametrize(
    ("inputs", "body", "message"),
    [
        ("x", "(float[2] v, float[2] w) => (float[2] z)", "body takes 2 values; by the node's inputs, expected 1"),
        ("x, a", "(float[2] v, float[2] w) => (float[2] z, float[2] v)", "body gives 2 values"),
        ('x, ""', "(float[2] v, float[2] w) => (float[2] z)", "lacks its input 1"),
    ],
)
def test_sequence_map_of_another_form_is_refused(inputs: str, body: str, message: str) -> None:
    model = parse(
        f"""(seq(float[2]) x, float[2] a) => (seq(float[2]) y) {{
          y = SequenceMap ({inputs}) <body = f {body} {{ z = Neg (v) }}>
        }}"""
    )
    with pytest.raises(ModelError, match=message):
        load_graph(model)


def test_lengths_of_sequences_of_an_old_scan_are_reported() -> None:
    model = parse(
        """(int64[2] n, float[2, 3, 1] x) => (float[2, 3, 1] y) {
          y = Scan <num_scan_inputs = 1, body = s (float[1] v) => (float[1] w) { w = Neg (v) }> (n, x)
        }""",
        opset=8,
    )
    with pytest.raises(
        UnsupportedError, match=r"operator Scan: sequence_lens of opset 8 is not supported: 1 \(Scan_0\)"
    ):
        load_graph(model)
