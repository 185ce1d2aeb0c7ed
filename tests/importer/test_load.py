"""ONNX -> Graph: constants, inputs, names, attributes, old forms, and all that is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper, parser

from gpuexec.errors import InputError, ModelError, UnsupportedError
from gpuexec.importer import load_graph
from gpuexec.spec import STRING, DeclaredSpec

F32 = np.dtype(np.float32)


def parse(body: str, opset: int = 18, imports: str = "") -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}{imports}]> {body}')


def test_graph_has_nodes_inputs_outputs_and_declared_specs() -> None:
    graph = load_graph(
        parse("agraph (float[batch, 3, ?] x) => (float[batch, 3, n] y) { t = Relu (x) y = Exp (t) }")
    ).graph
    assert [node.operator.name for node in graph.nodes] == ["Relu", "Exp"]
    assert (graph.inputs[0].name, graph.inputs[0].declared) == ("x", DeclaredSpec(F32, ("batch", 3, None)))
    assert (graph.outputs[0].name, graph.outputs[0].declared) == ("y", DeclaredSpec(F32, ("batch", 3, "n")))
    assert graph.nodes[1].inputs == graph.nodes[0].outputs
    assert graph.name == "agraph"


def test_input_of_unknown_rank_has_no_dims() -> None:
    model = parse("agraph (float[1] x) => (float[1] y) { y = Relu (x) }")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    assert load_graph(model).graph.inputs[0].declared == DeclaredSpec(F32, None)


def test_input_without_type_is_refused() -> None:
    model = parse("agraph (float[1] x) => (float[1] y) { y = Relu (x) }")
    model.graph.input[0].ClearField("type")
    with pytest.raises(ModelError, match="Input %x declares no element type"):
        load_graph(model)


def test_info_tells_what_the_file_says() -> None:
    model = parse("agraph (float[1] x) => (float[1] y) { t = Relu (x) u = Relu (t) y = Exp (u) }", opset=17)
    model.producer_name, model.producer_version = "maker", "2.1"
    model.metadata_props.add(key="author", value="someone")
    info = load_graph(model)
    assert (info.opset, info.ir_version, info.producer, info.node_count) == (17, 10, "maker 2.1", 3)
    assert dict(info.metadata) == {"author": "someone"}
    assert list(info.operators.items()) == [("Relu", 2), ("Exp", 1)]


def test_name_may_be_given() -> None:
    assert load_graph(parse("agraph (float[1] x) => (float[1] y) { y = Relu (x) }"), name="mine").graph.name == "mine"


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array(3, np.int64),
        np.zeros((0, 4), np.float16),
        np.array([True, False]),
        np.array([1.5, -2.0], ml_dtypes.bfloat16),
    ],
    ids=lambda array: f"{array.dtype}{list(array.shape)}",
)
def test_initializer_becomes_read_only_constant(array: np.ndarray) -> None:
    model = parse("agraph (float[1] x) => (float[1] y) { y = Relu (x) }")
    model.graph.initializer.append(numpy_helper.from_array(array, "w"))
    ((value, got),) = load_graph(model).graph.constants.items()
    assert value.name == "w"
    assert (got.dtype, got.shape) == (array.dtype, array.shape)
    assert got.tobytes() == array.tobytes()
    assert not got.flags.writeable


def test_initializer_that_is_an_output_has_what_is_declared_of_it() -> None:
    model = parse("agraph (float[2] x) => (float[2] y, int64[3] w) <int64[3] w = {1, 2, 3}> { y = Relu (x) }")
    _, w = load_graph(model).graph.outputs
    assert (w.name, w.declared) == ("w", DeclaredSpec(np.dtype(np.int64), (3,)))


def test_initializer_that_is_also_an_input_is_a_constant() -> None:
    model = parse("agraph (float[2] x, float[2] w) => (float[2] y) { y = Add (x, w) }")
    model.ir_version = 3
    model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    graph = load_graph(model).graph
    assert [value.name for value in graph.inputs] == ["x"]
    assert [value.name for value in graph.constants] == ["w"]


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ("value = float[2] {1.0, 2.0}", np.array([1, 2], np.float32)),
        ("value_float = 2.5", np.array(2.5, np.float32)),
        ("value_floats = [1.0, 2.0]", np.array([1, 2], np.float32)),
        ("value_int = 7", np.array(7, np.int64)),
        ("value_ints = [7, 8]", np.array([7, 8], np.int64)),
    ],
)
def test_constant_node_becomes_constant(attribute: str, expected: np.ndarray) -> None:
    graph = load_graph(
        parse(f"agraph (float[2] x) => (float[2] y) {{ c = Constant <{attribute}> () y = Cast <to = 1> (c) }}")
    ).graph
    (array,) = graph.constants.values()
    assert [node.operator.name for node in graph.nodes] == ["Cast"]
    assert (array.dtype, array.shape, array.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


def test_empty_names_are_absent_inputs_and_outputs() -> None:
    graph = load_graph(parse('agraph (float[2] x, float m) => (float[2] y) { y = Clip (x, "", m) }')).graph
    assert graph.nodes[0].inputs == (graph.inputs[0], None, graph.inputs[1])
    trailing = load_graph(parse('agraph (float[2] x) => (float[2] y) { y = Clip (x, "", "") }')).graph
    assert trailing.nodes[0].inputs == trailing.inputs


def test_nodes_get_names_of_their_own() -> None:
    model = parse("agraph (float[1] x) => (float[1] d) { a = Relu (x) b = Relu (a) c = Exp (b) d = Exp (c) }")
    for node, name in zip(model.graph.node, ("same", "same", "", "Exp_2"), strict=True):
        node.name = name
    assert [node.name for node in load_graph(model).graph.nodes] == ["same", "same_2", "Exp_2_2", "Exp_2"]


def test_old_form_is_upgraded_with_constants_named_after_the_node() -> None:
    model = parse("agraph (float[1, 3] x) => (float[3] y) { y = Squeeze <axes = [0]> (x) }", opset=11)
    graph = load_graph(model).graph
    (node,) = graph.nodes
    assert [graph.constants[value].tolist() for value in node.inputs[1:] if value is not None] == [[0]]


@pytest.mark.parametrize(
    ("opset", "node"), [(7, "Upsample <scales = [1.0, 2.0]> (x)"), (9, "Upsample (x, s)"), (10, "Resize (x, s)")]
)
def test_operator_that_was_renamed_comes_under_its_new_name(opset: int, node: str) -> None:
    model = parse(f"agraph (float[2, 2] x) => (float[2, 4] y) <float[2] s = {{1, 2}}> {{ y = {node} }}", opset=opset)
    graph = load_graph(model).graph
    (resize,) = graph.nodes
    assert resize.operator.name == "Resize"
    arrays = {graph.inputs[0]: np.array([[1, 2], [3, 4]], np.float32), **graph.constants}
    (result,) = resize.operator.compute(*(None if value is None else arrays[value] for value in resize.inputs))
    assert result is not None
    assert result.tolist() == [[1, 1, 2, 2], [3, 3, 4, 4]]


def test_constant_of_an_upgrade_yields_to_a_name_of_the_file() -> None:
    model = parse("agraph (float[1, 3] x) => (float[3] y) { y = Squeeze <axes = [0]> (x) }", opset=11)
    ((taken, _),) = load_graph(model).graph.constants.items()
    model.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), taken.name))
    names = [value.name for value in load_graph(model).graph.constants]
    assert len(set(names)) == 2


@pytest.mark.parametrize("opset", [0, 29, 99])
def test_opset_out_of_range_is_refused(opset: int) -> None:
    with pytest.raises(ModelError, match=f"is of opset {opset}; expected 1 to 28"):
        load_graph(parse("agraph (float[1] x) => (float[1] y) { y = Relu (x) }", opset=opset))


def test_lacking_opset_is_refused() -> None:
    model = parse("agraph (float[1] x) => (float[1] y) { y = Relu (x) }")
    model.ClearField("opset_import")
    with pytest.raises(ModelError, match="no opset"):
        load_graph(model)


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
    assert len(lines) == 6


def test_many_nodes_of_one_problem_are_counted() -> None:
    body = " ".join(f"t{i + 1} = foo.Bar (t{i})" for i in range(9))
    model = parse(f"agraph (float[1] t0) => (float[1] t9) {{ {body} }}", imports=', "foo": 1')
    with pytest.raises(UnsupportedError, match=r"operator Bar \(foo 1\): 9 \(Bar_0, Bar_1, Bar_2, Bar_3, and 5 more\)"):
        load_graph(model)


def test_types_of_host_objects_are_declared() -> None:
    model = parse("agraph (string[n] x) => (string[n] y) { y = Identity (x) }")
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, ["n"])
    kinds = {
        "s": helper.make_sequence_type_proto(tensor),
        "o": helper.make_optional_type_proto(helper.make_sequence_type_proto(tensor)),
        "m": helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.STRING, tensor)),
    }
    model.graph.input.extend(helper.make_value_info(name, kind) for name, kind in kinds.items())
    assert [str(value.declared) for value in load_graph(model).graph.inputs] == [
        "string[n]",
        "sequence(float32[n])",
        "optional(sequence(float32[n]))",
        "sequence(map(string, float32[n]))",
    ]


def test_a_map_by_other_keys_than_integers_and_strings_is_refused() -> None:
    model = parse("agraph (float[n] x) => (float[n] y) { y = Identity (x) }")
    kind = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    kind.map_type.key_type = TensorProto.FLOAT
    model.graph.input.append(helper.make_value_info("m", kind))
    with pytest.raises(ModelError, match="%m: expected a map's keys to be integers or strings, got float32"):
        load_graph(model)


def test_strings_of_initializers_and_constants_are_text() -> None:
    model = parse(
        'agraph () => (string[2] y) <string[2] w = {"a", "b"}> '
        '{ c = Constant <value_strings = ["b", "c"]> () d = Constant <value_string = "d"> () '
        "y = Concat <axis = 0> (w, c, d) }"
    )
    model.graph.initializer[0].string_data[1] = "ü".encode()
    graph = load_graph(model).graph
    found = {value.name: array for value, array in graph.constants.items()}
    assert {name: (array.dtype, array.tolist()) for name, array in found.items()} == {
        "w": (STRING, ["a", "ü"]),
        "c": (STRING, ["b", "c"]),
        "d": (STRING, "d"),
    }
    assert all(not array.flags.writeable for array in found.values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"string_data": [b"a"]}, r"the content does not fill string\[2\]: expected 2 entries of string_data, got 1"),
        ({"raw_data": b"ab"}, "expected 2 entries of string_data, got 0"),
        ({"string_data": [b"a", b"\xff"]}, "is not text in UTF-8"),
    ],
    ids=["short", "raw", "no text"],
)
def test_broken_strings_are_refused(change: dict[str, Any], message: str) -> None:
    model = parse('agraph () => (string[2] y) <string[2] w = {"a", "b"}> { y = Identity (w) }')
    (tensor,) = model.graph.initializer
    del tensor.string_data[:]
    tensor.MergeFrom(TensorProto(**change))
    with pytest.raises(ModelError, match=message):
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


def test_unsorted_nodes_are_sorted() -> None:
    graph = load_graph(parse("agraph (float[2] x) => (float[2] y) { y = Exp (b) b = Relu (a) a = Abs (x) }")).graph
    assert [node.operator.name for node in graph.nodes] == ["Abs", "Relu", "Exp"]


def test_content_that_does_not_fill_its_shape_is_refused() -> None:
    model = parse("agraph (float[2] x) => (float[2] y) { y = Relu (x) }")
    tensor = numpy_helper.from_array(np.ones(3, np.float32), "w")
    tensor.dims[0] = 4
    model.graph.initializer.append(tensor)
    with pytest.raises(ModelError, match=r"Initializer %w: the content does not fill float32\[4\]"):
        load_graph(model)


def test_attribute_without_type_is_refused() -> None:
    model = parse("agraph (float[2] x) => (float[2] y) { y = foo.Bar (x) z = Relu (x) }", imports=', "foo": 1')
    model.graph.node[1].attribute.append(AttributeProto(name="odd"))
    with pytest.raises(ModelError, match="Relu 'z': attribute 'odd' has no type"):
        load_graph(model)


def test_output_may_be_an_input_or_a_constant() -> None:
    model = parse("agraph (float[2] x) => (float[2] x, float[2] w) { }")
    model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    graph = load_graph(model).graph
    assert graph.outputs[0] is graph.inputs[0]
    assert graph.outputs[1] in graph.constants


def test_source_of_another_kind_is_refused() -> None:
    with pytest.raises(InputError, match="Expected a path, bytes, a binary file or a ModelProto to load, got int"):
        load_graph(3)  # type: ignore[arg-type]


def test_outputs_left_out_at_the_end_are_absent() -> None:
    graph = load_graph(parse("agraph (float[5] x) => (float[2] y) <int64[1] k = {2}> { y = TopK (x, k) }")).graph
    assert [value and value.name for value in graph.nodes[0].outputs] == ["y", None]
