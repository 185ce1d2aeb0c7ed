"""Refusals at load: unsupported items by name, all reported together."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper, parser

from gpuexec.errors import InputError, ModelError, UnsupportedError
from gpuexec.importer import load_graph


def parse(body: str, opset: int = 18, imports: str = "") -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}{imports}]> {body}')


def test_input_without_type_is_refused() -> None:
    model = parse("agraph (float[1] x) => (float[1] y) { y = Relu (x) }")
    model.graph.input[0].ClearField("type")
    with pytest.raises(ModelError, match="Input %x declares no element type"):
        load_graph(model)


@pytest.mark.feature("S15")
@pytest.mark.parametrize("opset", [0, 29, 99])
def test_opset_out_of_range_is_refused(opset: int) -> None:
    with pytest.raises(ModelError, match=f"is of opset {opset}; expected 1 to 28"):
        load_graph(parse("agraph (float[1] x) => (float[1] y) { y = Relu (x) }", opset=opset))


def test_lacking_opset_is_refused() -> None:
    model = parse("agraph (float[1] x) => (float[1] y) { y = Relu (x) }")
    model.ClearField("opset_import")
    with pytest.raises(ModelError, match="no opset"):
        load_graph(model)


@pytest.mark.feature("B4", "S14", "E41")
def test_all_that_is_not_supported_is_reported_together() -> None:
    model = parse(
        "agraph (float[1] x, float[1] s) => (float[1] y) "
        "{ a = foo.Bar (x) b = foo.Bar (a) c = Nothing (b) d = Relu <speed = 3> (c) y = foo.Bar (d) }",
        imports=', "foo": 2',
    )
    for index, node in enumerate(model.graph.node):
        node.name = f"n{index}"
    model.graph.initializer.append(helper.make_tensor("q", TensorProto.COMPLEX64, [1], bytes(8), raw=True))
    model.graph.input[1].type.CopyFrom(helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [1]))
    with pytest.raises(UnsupportedError) as caught:
        load_graph(model)
    lines = str(caught.value).splitlines()
    assert lines[0] == "ModelProto (opset 18) uses what is not supported:"
    assert "  operator Bar (foo 2): 3 (n0, n1, n4)" in lines
    assert "  operator Nothing: 1 (n2)" in lines
    assert "  element type complex64: 1 (initializer %q)" in lines
    assert "  value type sparse tensor: 1 (input %s)" in lines
    assert any("Relu" in line and "speed" in line and "(n3)" in line for line in lines)
    assert len(lines) == 7 and "examples/snake.py" in lines[-1]


def test_many_nodes_of_one_problem_are_counted() -> None:
    body = " ".join(f"t{i + 1} = foo.Bar (t{i})" for i in range(9))
    model = parse(f"agraph (float[1] t0) => (float[1] t9) {{ {body} }}", imports=', "foo": 1')
    with pytest.raises(UnsupportedError, match=r"operator Bar \(foo 1\): 9 \(Bar_0, Bar_1, Bar_2, Bar_3, and 5 more\)"):
        load_graph(model)


def test_a_map_by_other_keys_than_integers_and_strings_is_refused() -> None:
    model = parse("agraph (float[n] x) => (float[n] y) { y = Identity (x) }")
    kind = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    kind.map_type.key_type = TensorProto.FLOAT
    model.graph.input.append(helper.make_value_info("m", kind))
    with pytest.raises(ModelError, match="%m: expected a map's keys to be integers or strings, got float32"):
        load_graph(model)


def test_graph_attribute_is_refused_by_name() -> None:
    model = parse("agraph (float[1] x) => (float[1] y) { y = Relu (x) }")
    body = helper.make_graph([], "body", [], [])
    model.graph.node[0].attribute.append(helper.make_attribute("body", body))
    model.graph.node[0].name = "n"
    with pytest.raises(UnsupportedError, match=r"operator Relu, attribute 'body': graph: 1 \(n\)"):
        load_graph(model)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{ y = Relu (z) }", "Relu 'y': input %z is made by no node"),
        ("{ y = Relu (x) y = Exp (x) }", "Exp 'y': output %y is made by Relu 'y' already"),
        ("{ x = Relu (x) y = Exp (x) }", "Relu 'x': output %x is made by an input or initializer already"),
        ("{ t = Relu (x) }", "Output %y of the graph is made by no node"),
        (
            "{ a = Add (x, c) b = Relu (a) c = Exp (b) y = Relu (c) }",
            "3 nodes wait in a circle, each for an output of the next: ",
        ),
        ("{ a = Add (x, a) y = Relu (a) }", "1 nodes wait in a circle, each for an output of the next: Add 'a'"),
        ("{ y = Relu (x, x) }", "Relu 'y' takes at most 1 inputs and 1 outputs, got 2 and 1"),
        ("{ y = Add (x) }", "Add 'y' lacks its input 1"),
        ('{ y = Add ("", x) }', "Add 'y' lacks its input 0"),
        ("{ y = Softmax <axis = 1.5> (x) }", "Softmax 'y': attribute 'axis' is of type INT, got FLOAT"),
    ],
)
def test_contradiction_is_refused(body: str, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        load_graph(parse(f"agraph (float[2] x) => (float[2] y) {body}"))
    assert message in str(caught.value)
    assert not isinstance(caught.value, UnsupportedError)


def test_cycle_names_its_nodes_and_no_others() -> None:
    body = "{ y = Relu (c) a = Add (x, c) b = Relu (a) c = Exp (b) }"
    with pytest.raises(ModelError) as caught:
        load_graph(parse(f"agraph (float[2] x) => (float[2] y) {body}"))
    text = str(caught.value)
    assert {name for name in ("Add 'a'", "Relu 'b'", "Exp 'c'") if name in text} == {"Add 'a'", "Relu 'b'", "Exp 'c'"}
    assert "Relu 'y'" not in text


def test_name_given_twice_is_refused() -> None:
    model = parse("agraph (float[2] x) => (float[2] y) { y = Relu (x) }")
    for _ in range(2):
        model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    with pytest.raises(ModelError, match="The name %w is given to an initializer and to another value"):
        load_graph(model)


def test_attribute_without_type_is_refused() -> None:
    model = parse("agraph (float[2] x) => (float[2] y) { y = foo.Bar (x) z = Relu (x) }", imports=', "foo": 1')
    model.graph.node[1].attribute.append(AttributeProto(name="odd"))
    with pytest.raises(ModelError, match="Relu 'z': attribute 'odd' has no type"):
        load_graph(model)


@pytest.mark.feature("S1")
def test_source_of_another_kind_is_refused() -> None:
    with pytest.raises(
        InputError, match="Expected a path, bytes, a binary file, a ModelProto or an ONNXProgram to load, got int"
    ):
        load_graph(3)  # type: ignore[arg-type]
