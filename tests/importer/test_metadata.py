"""Metadata of a file: kept from load to save, through edits, but for source lines and what the importer notes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import gpuexec as gx
from gpuexec.importer.source_lines import STACK_TRACE


def props(proto: Any) -> dict[str, str]:
    return {entry.key: entry.value for entry in proto.metadata_props}


def find_branch(node: onnx.NodeProto) -> onnx.GraphProto:
    return next(each.g for each in node.attribute if each.name == "then_branch")


@pytest.fixture
def described() -> onnx.ModelProto:
    """A model with metadata and descriptions wherever ONNX has a place for them."""
    body = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["z"], name="inner")], "then", [], [helper.make_empty_tensor_value_info("z")]
    )
    other = helper.make_graph(
        [helper.make_node("Abs", ["x"], ["z"], name="other")], "else", [], [helper.make_empty_tensor_value_info("z")]
    )
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["scaled"], name="scale"),
        helper.make_node("If", ["c"], ["y"], name="choice", then_branch=body, else_branch=other),
        helper.make_node("Relu", ["scaled"], ["r"], name="relu"),
    ]
    graph = helper.make_graph(
        nodes,
        "described",
        [helper.make_tensor_value_info(*row) for row in (("x", TensorProto.FLOAT, ["n"]), ("c", TensorProto.BOOL, []))],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("y", "r")],
        [onnx.numpy_helper.from_array(np.float32([2]), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    model.domain, model.model_version, model.doc_string = "org.example", 7, "about the model"
    graph = model.graph
    graph.doc_string = "about the graph"
    for each in (model, graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        helper.set_model_props(each, {"of": getattr(each, "name", "") or "model", "ünicode": "é"})
    find_branch(graph.node[1]).node[0].metadata_props.add(key="of", value="inner")
    graph.node[0].metadata_props.add(key=STACK_TRACE, value='File "/home/ann/net.py", line 1, in f')
    return model


def test_metadata_comes_back_as_it_went(described: onnx.ModelProto, tmp_path: Path) -> None:
    gx.load(described.SerializeToString()).save(tmp_path / "again.onnx")
    again = onnx.load(tmp_path / "again.onnx")
    onnx.checker.check_model(again)
    assert (again.domain, again.model_version, again.doc_string) == ("org.example", 7, "about the model")
    assert again.graph.doc_string == "about the graph"
    for each in (
        again,
        again.graph,
        *again.graph.node,
        *again.graph.input,
        *again.graph.output,
        *again.graph.initializer,
    ):
        assert props(each) == {"of": getattr(each, "name", "") or "model", "ünicode": "é"}
    (inner,) = find_branch(again.graph.node[1]).node
    assert props(inner) == {"of": "inner"}


def test_metadata_survives_edits_of_other_nodes(described: onnx.ModelProto, tmp_path: Path) -> None:
    model = gx.load(described).rename({"x": "given"}).keep_outputs(["r"])
    model.save(tmp_path / "edited.onnx")
    edited = onnx.load(tmp_path / "edited.onnx").graph
    assert [(node.name, props(node)["of"]) for node in edited.node] == [("scale", "scale"), ("relu", "relu")]
    assert props(edited.input[0]) == {}  # it is another input by its name
    with gx.Worker(gx.load(tmp_path / "edited.onnx"), backend="cpu") as worker:
        np.testing.assert_array_equal(worker.run(np.float32([-1, 3]))[0], [0, 6])


def test_source_lines_are_written_on_demand_alone(described: onnx.ModelProto, tmp_path: Path) -> None:
    model = gx.load(described)
    for keeps in (False, True):
        model.save(tmp_path / "saved.onnx", keep_sources=keeps)
        assert (STACK_TRACE in props(onnx.load(tmp_path / "saved.onnx").graph.node[0])) == keeps
