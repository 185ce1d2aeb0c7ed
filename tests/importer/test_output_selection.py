"""Output selection at load: inner values too, in the order asked for, without unneeded nodes."""

from __future__ import annotations

import io

import numpy as np
import onnx
import pytest
from onnx import parser

import gpuexec as gx
from gpuexec.importer import load_graph
from gpuexec.ir.spec import DeclaredSpec

F32 = np.dtype(np.float32)
CHAIN = """<ir_version: 10, opset_import: ["": 18, "loc": 1]>
agraph (float[n, 3] x, float[3] z) => (float[n, 3] y, float[n, 3] odd) <float two = {2}> {
  a = Mul (x, two) b = Relu (a) y = Add (b, z) odd = loc.Odd (b)
}"""
BRANCHES = """<ir_version: 10, opset_import: ["": 18]>
agraph (float[2] x, bool c) => (float[2] y) {
  inner = Neg (x) direct = Exp (x) unused = Abs (x)
  y = If (c) <then_branch = t () => (float[2] p) { p = Relu (inner) }, else_branch = e () => (float[2] direct) {}>
  z = Neg (y) w = Neg (z)
}"""


def test_inner_values_become_outputs_in_the_order_given() -> None:
    graph = load_graph(parser.parse_model(CHAIN), outputs=["b", "x", "two", "a"]).graph
    assert [value.name for value in graph.outputs] == ["b", "x", "two", "a"]
    assert [value.declared for value in graph.outputs[:1]] == [DeclaredSpec(F32, ("n", 3))]
    assert [node.operator.name for node in graph.nodes] == ["Mul", "Relu"]
    assert [value.name for value in graph.inputs] == ["x", "z"]


def test_what_no_output_needs_may_be_unsupported() -> None:
    with pytest.raises(gx.UnsupportedError, match="Odd"):
        load_graph(parser.parse_model(CHAIN))
    assert len(load_graph(parser.parse_model(CHAIN), outputs=["y"]).graph.nodes) == 3


def test_what_branches_take_from_around_them_stays() -> None:
    graph = load_graph(parser.parse_model(BRANCHES), outputs=["z"]).graph
    assert [node.operator.name for node in graph.nodes] == ["Neg", "Exp", "If", "Neg"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["bee"], r"no value 'bee'; its outputs are y, odd; its last nodes make odd, y, b, a"),
        (["b", "a", "b"], "'b' is listed twice"),
        ([], "at least one"),
        ("b", "list of names"),
    ],
)
def test_outputs_that_can_not_be_are_refused(names: list[str], message: str) -> None:
    with pytest.raises(gx.InputError, match=message):
        load_graph(parser.parse_model(CHAIN), outputs=names)


def test_the_callers_model_is_left_as_it_was() -> None:
    model = parser.parse_model(CHAIN)
    before = model.SerializeToString()
    load_graph(model, outputs=["a"])
    assert model.SerializeToString() == before
    assert [p.name for p in gx.load(io.BytesIO(before), outputs=["a"]).outputs] == ["a"]


def test_types_in_the_file_are_kept() -> None:
    model = parser.parse_model(CHAIN)
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("b", 1, ["m", 3]))
    assert load_graph(model, outputs=["b"]).graph.outputs[0].declared == DeclaredSpec(F32, ("m", 3))
