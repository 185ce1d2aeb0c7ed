"""Bodies of If, Loop and Scan: closed graphs, names looked up inside out, errors with their place, and back to ONNX."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from gpuexec import operator
from gpuexec.errors import ModelError, UnsupportedError
from gpuexec.graphs import Graph, Node, bodies, check
from gpuexec.importer import load_graph, run_oracle, to_model
from gpuexec.ops.control import Loop, Scan, SequenceMap
from gpuexec.ops.interpret import compute_graph
from tests.control_models import MODELS, X, flag


def parse(text: str, opset: int = 18, rest: str = "") -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}, "loc": 1]> agraph {text} {rest}')


def load(text: str, opset: int = 18, rest: str = "") -> Graph:
    return load_graph(parse(text, opset, rest)).graph


def node_of(graph: Graph, operator_name: str) -> Node:
    (node,) = (node for node in graph.nodes if node.operator.name == operator_name)
    return node


def names(values: object) -> list[str | None]:
    return [None if value is None else value.name for value in values]  # type: ignore[attr-defined]


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


# ---------------------------------------------------------------- what is refused

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


# ---------------------------------------------------------------- and back


# onnx.reference stacks rows otherwise, counts trips otherwise, and walks along axis 0 only.
REFERENCE = ("if", "if_of_many_outputs", "loop_that_grows", "loop_in_if_in_scan")
# onnxruntime does not slice what is empty.
ROUND_TRIPS = [
    *((name, index, "onnxruntime") for name, model in MODELS.items() for index in range(len(model.inputs))),
    *((name, 0, "reference") for name in REFERENCE),
]
ROUND_TRIPS.remove(("scan_of_nothing", 1, "onnxruntime"))


@pytest.mark.parametrize(("name", "index", "engine"), ROUND_TRIPS)
def test_round_trip_computes_the_same(name: str, index: int, engine: str) -> None:
    graph, feeds = load_graph(MODELS[name].parse()).graph, MODELS[name].feeds()[index]
    _, got = run_oracle(to_model(graph, opset=18), feeds, engine)
    expected = compute_graph(graph, [feeds[value.name] for value in graph.inputs])
    for array, wanted in zip(got.values(), expected, strict=True):
        assert (array.dtype, array.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_allclose(array, wanted, rtol=1e-6, atol=1e-6)


def test_captures_are_written_as_names_of_the_graph_around() -> None:
    model = to_model(load_graph(MODELS["loop_in_if_in_scan"].parse()).graph)
    (scan,) = (node for node in model.graph.node if node.op_type == "Scan")
    assert list(scan.input) == ["start", "x"]
    (walk,) = (attribute.g for attribute in scan.attribute if attribute.name == "body")
    assert [info.name for info in walk.input] == ["s", "row"]
    assert {attribute.name for attribute in scan.attribute} == {"body", "num_scan_inputs"}
    (less,) = (node for node in walk.node if node.op_type == "Less")
    assert list(less.input) == ["size", "limit"]


def test_names_are_unique_across_bodies_when_written() -> None:
    graph = load(
        """(float[2] x, bool c) => (float[2] y) {
          t = Neg (x)
          y = If (c) <then_branch = a () => (float[2] p) { t = Exp (x) p = Abs (t) },
                      else_branch = b () => (float[2] p) { p = Abs (t) }>
        }"""
    )
    model = to_model(graph)
    made = [name for node in model.graph.node for name in node.output]
    for attribute in model.graph.node[1].attribute:
        made += [name for node in attribute.g.node for name in node.output]
    assert len(made) == len(set(made)) == 5
    onnx.checker.check_model(model, full_check=True)


def test_outputs_of_a_body_that_no_node_of_it_makes_are_written_as_identities() -> None:
    graph = load(
        """(float[2] x, bool c) => (float[2] y, float[2] z) {
          y, z = If (c) <then_branch = a () => (float[2] x, float[2] q) <float[2] q = {1, 2}> { p = Neg (x) },
                         else_branch = b () => (float[2] p, float[2] p) { p = Neg (x) }>
        }"""
    )
    model = to_model(graph)
    for attribute in model.graph.node[0].attribute:
        made = {name for node in attribute.g.node for name in node.output}
        assert {info.name for info in attribute.g.output} <= made
    x = np.array([3, 4], np.float32)
    assert [array.tolist() for array in run_oracle(model, {"x": x, "c": flag(True)})[1].values()] == [[3, 4], [1, 2]]
    assert [array.tolist() for array in run_oracle(model, {"x": x, "c": flag(False)})[1].values()] == [[-3, -4]] * 2


def test_weights_of_a_body_are_read_from_the_folder(tmp_path: Path) -> None:
    weight = np.arange(6, dtype=np.float32)
    model = parse(
        """(float[6] x, bool c) => (float[6] y) {
          y = If (c) <then_branch = a () => (float[6] p) { p = Add (x, w) },
                      else_branch = b () => (float[6] p) { p = Neg (x) }>
        }"""
    )
    (body,) = (attribute.g for attribute in model.graph.node[0].attribute if attribute.name == "then_branch")
    body.initializer.append(numpy_helper.from_array(weight, "w"))
    tensor = body.initializer[0]
    (tmp_path / "weights.bin").write_bytes(weight.tobytes())
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    onnx.save(model, str(tmp_path / "model.onnx"))
    (then, _) = bodies(load_graph(str(tmp_path / "model.onnx")).graph.nodes[0].operator)
    assert [array.tolist() for array in then.constants.values()] == [weight.tolist()]


def test_helper_makes_models_without_types_in_bodies() -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Neg", ["v"], ["w"])],
        "body",
        [helper.make_empty_tensor_value_info(name) for name in ("i", "c", "v")],
        [helper.make_empty_tensor_value_info(name) for name in ("d", "w")],
    )
    loop = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    infos = [
        helper.make_tensor_value_info("n", TensorProto.INT64, []),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
    ]
    model = helper.make_model(
        helper.make_graph([loop], "g", infos, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])]),
        opset_imports=[helper.make_opsetid("", 18)],
    )
    graph = load_graph(model).graph
    assert [value.declared for value in bodies(graph.nodes[0].operator)[0].inputs] == [None] * 3
    (got,) = compute_graph(graph, [np.array(3), np.array([1, 2], np.float32)])
    assert got.tolist() == [-1, -2]
