"""Roundings that a plan leaves out, since all that read them round by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuexec.ir.apply import infer_specs
from gpuexec.ir.command import Launch
from gpuexec.ir.graphs import Graph, Value
from gpuexec.ir.operator import build
from gpuexec.ir.precision import STORED
from gpuexec.ir.provider import CUDNN
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ir.target import Target
from gpuexec.planner.own_rounding import leave_out_roundings
from gpuexec.planner.providers import NO_PROVIDERS, Providers
from gpuexec.planner.template import plan_graph
from tests.ir.graph_builder import GraphBuilder
from tests.ops.chains import chain

SHAPE = (1, 8, 6, 5)
ROUND = "gpuexec.RoundOperand"
RELU, ROUNDING = ("Relu", (), (-1,)), (ROUND, (("to", "tf32"),), (-1,))
FLOAT = np.dtype(np.float32)


class Builder(GraphBuilder):
    """Builder of graphs of images that are rounded in front of convolutions."""

    def rounded(self, x: Value, precision: str = "tf32") -> Value:
        return self.node(build(ROUND, {"to": precision}), x)

    def conv(self, x: Value, *steps: Any, precision: str = "tf32", **attributes: Any) -> Value:
        weight = self.constant(np.ones((8, 8 // attributes.get("group", 1), 3, 3), np.float32))
        attributes |= {"pads": (1,) * 4, "precision": precision}
        name = "gpuexec.FusedConv" if steps else "Conv"
        return self.node(build(name, attributes | (chain(steps) if steps else {})), x, weight)


def name_left(graph: Graph, target: str = "sm_80", shape: tuple[int, ...] = SHAPE) -> list[str]:
    """Return the names of the operators of what is left of a graph, with the steps of each."""
    specs = {value: TensorSpec(shape, FLOAT) for value in graph.inputs}
    specs |= {value: TensorSpec.of(array) for value, array in graph.constants.items()}
    for node in graph.nodes:
        made = infer_specs(node.operator, [None if value is None else specs[value] for value in node.inputs])
        specs |= {value: spec for value, spec in zip(node.outputs, made, strict=True) if value is not None}
    left = leave_out_roundings(graph, specs, Target.named(target))
    return [
        "+".join([node.operator.name, *(name for name, *_ in getattr(node.operator, "steps", ()))])
        for node in left.nodes
    ]


@pytest.mark.parametrize(
    ("target", "is_left_out"), [("sm_75", False), ("sm_80", True), ("sm_120", True), ("cpu", False)]
)
def test_convolutions_on_tensor_cores_need_no_rounding_in_front(target: str, is_left_out: bool) -> None:
    graph = Builder()
    x = graph.input("x", *SHAPE)
    made = graph.graph(graph.conv(graph.rounded(x)))
    assert name_left(made, target) == (["Conv"] if is_left_out else [ROUND, "Conv"])


def test_a_rounding_that_is_the_last_step_of_an_epilogue_is_no_step() -> None:
    graph = Builder()
    first = graph.conv(graph.rounded(graph.input("x", *SHAPE)), ROUNDING)
    second = graph.conv(first, RELU, ROUNDING)
    assert name_left(graph.graph(graph.conv(second))) == ["Conv", "gpuexec.FusedConv+Relu", "Conv"]


def test_what_stays_reads_what_was_rounded() -> None:
    graph = Builder()
    value = graph.node(build("Relu", {}), graph.input("x", *SHAPE))
    total = graph.node(build("Add", {}), graph.conv(graph.rounded(value)), value)
    assert name_left(graph.graph(total)) == ["Relu", "Conv", "Add"]


@pytest.mark.parametrize("reader", ["product", "depthwise", "float", "transposed", "result", "epilogue"])
def test_a_rounding_stays_for_others(reader: str) -> None:
    graph = Builder()
    x = graph.input("x", *SHAPE)
    rounded = graph.rounded(x)
    outputs = [graph.conv(rounded)]
    if reader == "product":
        outputs.append(graph.node(build("MatMul", {}), rounded, graph.constant(np.ones((5, 3), np.float32))))
    elif reader == "depthwise":
        outputs.append(graph.conv(rounded, group=8))
    elif reader == "float":
        outputs.append(graph.conv(rounded, precision=""))
    elif reader == "transposed":
        weight = graph.constant(np.ones((8, 8, 2, 2), np.float32))
        attributes = {"strides": (2, 2), "precision": "tf32"}
        outputs.append(graph.node(build("ConvTranspose", attributes), rounded, weight))
    elif reader == "result":
        outputs.append(rounded)
    else:
        steps = (("Add", (), (-1, 2)),)
        weight = graph.constant(np.ones((8, 8, 1, 1), np.float32))
        op = build("gpuexec.FusedConv", {"precision": "tf32", **chain(steps)})
        outputs.append(graph.node(op, x, weight, rounded))
    assert name_left(graph.graph(*outputs))[0] == ROUND


def test_a_rounding_to_another_precision_stays() -> None:
    graph = Builder()
    made = graph.graph(graph.conv(graph.rounded(graph.input("x", *SHAPE), "bf16")))
    assert name_left(made) == [ROUND, "Conv"]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize(
    ("channels", "target", "reader", "is_left_out"),
    [
        (3, "sm_80", "", True),
        (7, "sm_120", "", True),
        (8, "sm_80", "", False),
        (3, "sm_75", "", False),
        (3, "cpu", "", False),
        (3, "sm_80", "result", False),
        (3, "sm_80", "another", False),
    ],
)
def test_an_image_of_few_channels_is_read_as_floats(
    precision: str, channels: int, target: str, reader: str, is_left_out: bool
) -> None:
    graph = Builder()
    stored = dtype_row(STORED[precision]).numpy
    narrow = graph.node(build("Cast", {"to": dtype_row(stored).code}), graph.input("x", 1, channels, 6, 5))
    weight = graph.constant(np.ones((8, channels, 3, 3), stored))
    outputs = [graph.node(build("Conv", {"precision": precision}), narrow, weight)]
    if reader == "result":
        outputs.append(narrow)
    elif reader:
        outputs.append(graph.node(build("Relu", {}), narrow))
    assert ("Cast" not in name_left(graph.graph(*outputs), target, (1, channels, 6, 5))) is is_left_out


@pytest.mark.parametrize(("providers", "count"), [(NO_PROVIDERS, 0), (Providers((CUDNN,)), 1)])
def test_roundings_stay_where_a_library_may_read_them(providers: Providers, count: int) -> None:
    graph = Builder()
    made = graph.graph(graph.conv(graph.rounded(graph.input("x", *SHAPE))))
    plan = plan_graph(made, {"x": TensorSpec(SHAPE, FLOAT)}, Target.named("sm_90"), providers=providers).plan
    launches = [each.kernel.expression for each in plan.segment.commands if isinstance(each, Launch)]
    assert sum("RoundToTf32" in each for each in launches) == count


def test_a_convolution_beyond_the_numbers_of_its_kernel_takes_what_is_rounded() -> None:
    shape = (1, 8, 1 << 14, 1 << 14)
    op, weight = build("Conv", {"precision": "tf32"}), TensorSpec((8, 8, 3, 3), FLOAT)
    target = Target.named("sm_90")
    assert op.rounds_to(0, (TensorSpec(SHAPE, FLOAT), weight), target) == "tf32"
    assert op.rounds_to(0, (TensorSpec(shape, FLOAT), weight), target) == ""
    assert op.rounds_to(1, (TensorSpec(SHAPE, FLOAT), weight), target) == ""
