"""Export of bodies to ONNX: captures are written as names of the enclosing graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from gpuexec.importer import load_graph, run_oracle, to_model
from gpuexec.ir.graphs import bodies
from gpuexec.ops.control.interpret import compute_graph
from tests.importer.bodies import load, parse
from tests.model.control_models import MODELS, flag

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
