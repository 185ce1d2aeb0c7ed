"""The pass slice_gathers: one slice that a constant index picks is a view."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

import gpuexec as gx
from gpuexec.errors import InputError
from gpuexec.ir.command import Launch
from gpuexec.ir.target import Target
from gpuexec.passes.slice_gathers import slice_gathers
from gpuexec.planner.template import plan_graph
from tests.devices.execute import specs_of
from tests.model.small_models import CPU
from tests.passes.harness import check_same, load, operators

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def pick(axis: int, index: str, dtype: str = "float", rest: str = "") -> str:
    return f"agraph ({dtype}[2, 3, 4] x) => ({dtype} y) <int64{index}> {{ y = Gather <axis = {axis}> (x, i) {rest} }}"


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("index", [0, 1, -1, -2])
def test_a_scalar_index_is_a_view(axis: int, index: int) -> None:
    graph = load(pick(axis, f" i = {{{index}}}"))
    after = slice_gathers(graph)
    assert operators(after) == ["Slice", "Squeeze"]
    check_same(graph, after, x=X)


@pytest.mark.parametrize(
    "text",
    [
        pick(0, "[1] i = {1}"),
        pick(0, "[2] i = {1, 0}"),
        pick(0, " i = {1}", "int64"),
        "agraph (float[2, 3, 4] x, int64 i) => (float y) { y = Gather (x, i) }",
    ],
    ids=["list", "lists", "integers", "input"],
)
def test_others_stay(text: str) -> None:
    graph = load(text)
    assert slice_gathers(graph) is graph


@pytest.mark.parametrize("index", [2, -3])
def test_an_index_beyond_the_axis_is_refused(index: int) -> None:
    model = gx.load(parser.parse_model(f'<ir_version: 10, opset_import: ["": 18]> {pick(0, f" i = {{{index}}}")}'))
    with gx.Worker(model, backend=CPU) as worker, pytest.raises(InputError, match="Squeeze"):
        worker.run(X)


def test_a_classifier_reads_the_first_token_where_it_lies() -> None:
    text = (
        "agraph (float[2, 3, 4] x) => (float y) <int64 i = {0}, float[4, 5] w = {"
        + ", ".join(map(str, range(20)))
        + "}> { t = Relu (x) f = Gather <axis = 1> (t, i) y = MatMul (f, w) }"
    )
    graph = slice_gathers(load(text))
    plan = plan_graph(graph, specs_of({"x": X}), Target.named("sm_90")).plan
    sources = [each.kernel.source for each in plan.segment.commands if isinstance(each, Launch)]
    assert len(sources) == 2 and "gather.cu" not in sources
