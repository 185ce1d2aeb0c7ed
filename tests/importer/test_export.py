"""ONNX export: round trip of a graph in the newest form."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from gpuexec.errors import InputError
from gpuexec.importer import load_graph, run_oracle, to_model
from gpuexec.importer.schemas import newest_version
from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.operator import build, describe

X = np.linspace(-3, 3, 24, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize(
    ("body", "opset"),
    [
        ("{ y = Softmax <axis = 1> (x) }", 18),
        ("{ y = Softmax <axis = 1> (x) }", 11),
        ("{ y = Softmax (x) }", 9),
        ("{ a = LogSoftmax <axis = 0> (x) y = Exp (a) }", 11),
        ("{ y = Transpose <perm = [2, 0, 1]> (x) }", 18),
        ("{ y = Slice <starts = [1], ends = [3], axes = [2]> (x) }", 9),
        ("{ y, z = Split <axis = 2, split = [1, 3]> (x) }", 11),
        ("{ z, y = Split <axis = 2> (x) }", 11),
        ("{ s = Constant <value = int64[2] {2, 3}> () y = ConstantOfShape <value = float[1] {2.5}> (s) }", 18),
        ('{ y = Clip (x, "", m) }', 18),
        ("{ y = LeakyRelu <alpha = 0.25> (x) }", 18),
        ("{ t = Cast <to = 16> (x) y = Cast <to = 1> (t) }", 18),
    ],
)
def test_round_trip_computes_the_same(body: str, opset: int) -> None:
    head = f'<ir_version: 8, opset_import: ["": {opset}]> agraph (float[2, 3, 4] x) => (y) <float m = {{0.5}}>'
    model = parser.parse_model(f"{head} {body}")
    graph = load_graph(model).graph
    written = to_model(graph)
    expected, got = run_oracle(model, {"x": X})[1]["y"], run_oracle(written, {"x": X})[1]["y"]
    np.testing.assert_array_equal(got, expected)
    again = load_graph(written).graph
    assert len(again.constants) == len(graph.constants) or "axis" in body


def test_attributes_and_types_survive() -> None:
    text = "agraph (float16[n, 4] x) => (float16[n, 4] y) { t = LeakyRelu <alpha = 0.5> (x) y = Cast <to = 10> (t) }"
    graph = load_graph(parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')).graph
    again = load_graph(to_model(graph)).graph
    assert [describe(node.operator) for node in again.nodes] == [describe(node.operator) for node in graph.nodes]
    assert [value.declared for value in (*again.inputs, *again.outputs)] == [
        value.declared for value in (*graph.inputs, *graph.outputs)
    ]


def test_values_that_share_a_name_are_distinguished() -> None:
    x, first, second = Value("v", load_graph(_relu()).graph.inputs[0].declared), Value("v"), Value("v")
    nodes = (Node(build("Neg", {}), (x,), (first,), "a"), Node(build("Abs", {}), (first,), (second,), "b"))
    model = to_model(Graph((x,), (second,), nodes, {}, "g"))
    names = [model.graph.input[0].name, *(node.output[0] for node in model.graph.node)]
    assert len(set(names)) == 3
    (result,) = run_oracle(model, {"v": np.array([2.0], np.float32)})[1].values()
    assert result.tolist() == [2.0]


def test_input_without_type_is_refused() -> None:
    x, y = Value("x"), Value("y")
    with pytest.raises(InputError, match="Input %x has no declared type"):
        to_model(Graph((x,), (y,), (Node(build("Neg", {}), (x,), (y,), "n"),), {}, "g"))


def test_unwanted_output_of_split_is_written_with_a_name() -> None:
    text = "agraph (float[2, 4] x) => (float[2, 2] y) { y, z = Split <axis = 1, num_outputs = 2> (x) }"
    graph = load_graph(parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')).graph
    (node,) = graph.nodes
    alone = Graph(
        graph.inputs, graph.outputs, (Node(node.operator, node.inputs, (node.outputs[0], None), "n"),), graph.constants
    )
    (proto,) = to_model(alone).graph.node
    assert all(proto.output)


def _relu() -> onnx.ModelProto:
    return parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> agraph (float[1] x) => (float[1] y) { y = Relu (x) }'
    )


def test_a_domain_is_declared_in_the_version_that_has_its_operators() -> None:
    x = np.array([3, 1], np.int64)
    keys, values = np.array([1, 2]), np.array([0.5, 0.25])
    node = helper.make_node(
        "LabelEncoder",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        keys_tensor=numpy_helper.from_array(keys),
        values_tensor=numpy_helper.from_array(values),
    )
    info = [helper.make_tensor_value_info(name, code, [2]) for name, code in (("x", 7), ("y", 11))]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 4)]
    model = helper.make_model(helper.make_graph([node], "g", info[:1], info[1:]), opset_imports=opsets)
    saved = to_model(load_graph(model).graph)
    assert {entry.domain: entry.version for entry in saved.opset_import}["ai.onnx.ml"] == 4
    operators = [load_graph(each).graph.nodes[0].operator for each in (model, saved)]
    assert operators[0] == operators[1]
    assert operators[0].compute(x)[0].tolist() == [-0.0, 0.5]  # type: ignore[union-attr]


def test_a_deprecated_operator_is_declared_in_the_version_before() -> None:
    assert newest_version("TreeEnsembleClassifier", "ai.onnx.ml") == 3
    assert newest_version("TreeEnsemble", "ai.onnx.ml") == 5
    assert newest_version("Own", "own.domain") == 1
