"""ONNX import: inputs, names, attributes and old forms."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import gpuexec as gx
from gpuexec.importer import load_graph
from gpuexec.ir.spec import DeclaredSpec

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


def test_info_reports_what_the_file_says() -> None:
    model = parse("agraph (float[1] x) => (float[1] y) { t = Relu (x) u = Relu (t) y = Exp (u) }", opset=17)
    model.producer_name, model.producer_version = "maker", "2.1"
    model.metadata_props.add(key="author", value="someone")
    info = load_graph(model)
    assert (info.opset, info.ir_version, info.producer, info.node_count) == (17, 10, "maker 2.1", 3)
    assert dict(info.metadata) == {"author": "someone"}
    assert list(info.operators.items()) == [("Relu", 2), ("Exp", 1)]


def test_name_may_be_given() -> None:
    assert load_graph(parse("agraph (float[1] x) => (float[1] y) { y = Relu (x) }"), name="mine").graph.name == "mine"


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


def test_unsorted_nodes_are_sorted() -> None:
    graph = load_graph(parse("agraph (float[2] x) => (float[2] y) { y = Exp (b) b = Relu (a) a = Abs (x) }")).graph
    assert [node.operator.name for node in graph.nodes] == ["Abs", "Relu", "Exp"]


def test_output_may_be_an_input_or_a_constant() -> None:
    model = parse("agraph (float[2] x) => (float[2] x, float[2] w) { }")
    model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    graph = load_graph(model).graph
    assert graph.outputs[0] is graph.inputs[0]
    assert graph.outputs[1] in graph.constants


def test_outputs_left_out_at_the_end_are_absent() -> None:
    graph = load_graph(parse("agraph (float[5] x) => (float[2] y) <int64[1] k = {2}> { y = TopK (x, k) }")).graph
    assert [value and value.name for value in graph.nodes[0].outputs] == ["y", None]


class Exported:
    """As torch.onnx.ONNXProgram: a model, and more."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.model_proto = proto


def test_exported_program_is_loaded_by_the_model_it_holds() -> None:
    proto = parse("g (float[n] x) => (float[n] y) { y = Abs (x) }")
    with gx.Worker(Exported(proto), backend="cpu") as worker:
        assert worker.run(np.float32([-2, 3]))[0].tolist() == [2, 3]
    with pytest.raises(gx.InputError, match="a ModelProto or an ONNXProgram to load, got Exported"):
        gx.load(Exported(None))  # type: ignore[arg-type]
