"""Six ONNX models of middle size, generated: no file from outside, seeded weights, float32, opset 21, fixed shapes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import gpuexec as gx
from gpuexec.importer.origin import ExternalData
from gpuexec.ir.plan import Plan
from gpuexec.ir.precision import STRICT
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.model.model import choose_precision
from gpuexec.passes import run_passes
from gpuexec.planner.partitioner import find_partition
from gpuexec.planner.template import Template, plan_graph

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class BenchModel:
    """A model's bytes with inputs for one run.

    Attributes:
        name: Its name in tables.
        data: The ONNX file.
        inputs: Content by input, of memories too: what they hold before the run.
        weights: Initializers that the bytes name and don't hold.
        state: Inputs by the output that is their next value, where a model is run with its cache as state.
        capacity: Rows there is room for in the cache.
        config: What the weights don't tell another engine: ``heads``, ``stages``.
        precision: What products and convolutions are computed in.
    """

    name: str
    data: bytes
    inputs: dict[str, Array]
    weights: dict[str, Array] = field(default_factory=dict)
    state: dict[str, str] = field(default_factory=dict)
    capacity: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    precision: str = STRICT

    def load(self) -> gx.Model:
        """Load the model with all its weights, and bind its state."""
        model = gx.load(self.data, external=ExternalData(tensors=self.weights) if self.weights else None)
        model = choose_precision(model, self.precision)
        return model.bind_state(self.state, capacity=self.capacity) if self.state else model

    def plan(self, target: Target, disabled: Collection[str] = ()) -> Plan:
        """Plan the model for a target without a device, with the commands of these inputs.

        Args:
            target: What to plan for.
            disabled: Passes that are left out.

        Raises:
            ValueError: It takes more than one plan.
        """
        return self.specialise(self.make_template(target, disabled))

    def specialise(self, template: Template) -> Plan:
        """Return the template's plan with the commands of these inputs."""
        plan = template.plan
        variant = template.specialise({port.name: TensorSpec.of(self.inputs[port.name]) for port in plan.inputs})
        return replace(plan, segment=replace(plan.segment, commands=variant.commands))

    def make_template(self, target: Target, disabled: Collection[str] = ()) -> Template:
        """Return what makes the plans for a target, without some passes; its graph has the weights.

        Raises:
            ValueError: The model takes more than one plan.
        """
        return make_template(self.load(), self.inputs, target, disabled)

    @property
    def feeds(self) -> dict[str, Array]:
        """Return the inputs of a run that are not state."""
        return {name: array for name, array in self.inputs.items() if name not in self.state.values()}

    @property
    def memories(self) -> dict[str, Array]:
        """Return what the state holds before the run, by input."""
        return {name: self.inputs[name] for name in self.state.values()}


def make_template(
    model: gx.Model, inputs: Mapping[str, Array], target: Target, disabled: Collection[str] = ()
) -> Template:
    """Return what makes a model's plans for a target.

    Args:
        model: The model.
        inputs: Content by input.
        target: The target.
        disabled: Names of passes to leave out, beside those that the model leaves out.

    Raises:
        ValueError: The model takes more than one plan.
    """
    specs = {value: TensorSpec.of(inputs[value.name]) for value in model.graph.inputs}
    partition = find_partition(model.graph, specs, target)
    if partition.ready is None or partition.reads or partition.host_nodes or partition.repeat or partition.rest:
        raise ValueError("it takes more than one plan")
    given = {value.name: specs[value] for value in partition.ready.inputs}
    graph = run_passes(partition.ready, model._plan_passes, {*model.disabled_passes, *disabled}, given)
    return plan_graph(graph, given, target, model.dims, grows=True)


class ModelBuilder:
    """Collects nodes and weights; every method returns the name of the value it made."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def constant(self, array: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self._constants)}"
        self._constants.append(
            numpy_helper.from_array(np.ascontiguousarray(array, dtype).reshape(np.shape(array)), name)
        )
        return name

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """Add random weights; without ``scale`` such that products keep the variance of what enters."""
        fan_in = prod(shape[1:]) if len(shape) > 2 else shape[0]
        return self.constant(self.random.standard_normal(shape) * (fan_in**-0.5 if scale is None else scale))

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{operator}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, list(inputs), [f"{name}.out"], name=name, **attributes))
        return f"{name}.out"

    def finish(self, name: str, shape: tuple[int, ...], output: str, output_shape: tuple[int, ...]) -> BenchModel:
        """Return the model of one input ``x`` and one output."""
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
        y = helper.make_tensor_value_info(output, TensorProto.FLOAT, output_shape)
        graph = helper.make_graph(self._nodes, name, [x], [y], self._constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        onnx.checker.check_model(model)
        content = self.random.standard_normal(shape).astype(np.float32)
        return BenchModel(name, model.SerializeToString(), {"x": content})


def make_mlp(batch: int = 64, width: int = 1024, layers: int = 4, classes: int = 1000) -> BenchModel:
    """Dense layers: all time goes into matrix products."""
    build, x = ModelBuilder(1), "x"
    for _ in range(layers):
        x = build.node("Relu", build.node("Gemm", x, build.weight(width, width), build.weight(width, scale=0.1)))
    x = build.node("Gemm", x, build.weight(width, classes), build.weight(classes, scale=0.1))
    return build.finish("mlp", (batch, width), build.node("Softmax", x, axis=-1), (batch, classes))


def make_resnet18(batch: int = 1, extent: int = 224) -> BenchModel:
    """The residual network of 18 layers, BatchNormalization still apart, as exporters write it."""
    build = ModelBuilder(2)

    def convolve(x: str, ins: int, outs: int, taps: int, stride: int, activate: bool = True) -> str:
        w = build.weight(outs, ins, taps, taps, scale=(2 / (ins * taps * taps)) ** 0.5)
        x = build.node("Conv", x, w, kernel_shape=[taps] * 2, strides=[stride] * 2, pads=[taps // 2] * 4)
        scale, bias = build.constant(np.ones(outs)), build.constant(np.zeros(outs))
        mean = build.constant(0.1 * build.random.standard_normal(outs))
        variance = build.constant(1 + build.random.random(outs))
        x = build.node("BatchNormalization", x, scale, bias, mean, variance, epsilon=1e-5)
        return build.node("Relu", x) if activate else x

    x = convolve("x", 3, 64, 7, 2)
    x = build.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    ins = 64
    for outs, first_stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for stride in (first_stride, 1):
            y = convolve(convolve(x, ins, outs, 3, stride), outs, outs, 3, 1, activate=False)
            if ins != outs:
                x = convolve(x, ins, outs, 1, stride, activate=False)
            x, ins = build.node("Relu", build.node("Add", x, y)), outs
    x = build.node("Flatten", build.node("GlobalAveragePool", x))
    x = build.node("Gemm", x, build.weight(512, 1000), build.weight(1000, scale=0.1))
    return build.finish("resnet18", (batch, 3, extent, extent), x, (batch, 1000))


def make_encoder(
    batch: int = 1, length: int = 128, width: int = 256, heads: int = 8, hidden: int = 1024, blocks: int = 6
) -> BenchModel:
    """A transformer encoder; GELU is spelled out by Erf, attention by MatMul and Softmax."""
    build, x = ModelBuilder(3), "x"
    split = build.constant([0, 0, heads, width // heads], np.int64)
    join = build.constant([0, 0, width], np.int64)

    def normalize(x: str) -> str:
        return build.node("LayerNormalization", x, build.constant(np.ones(width)), build.constant(np.zeros(width)))

    def project(x: str, ins: int, outs: int) -> str:
        return build.node("Add", build.node("MatMul", x, build.weight(ins, outs)), build.weight(outs, scale=0.02))

    def attend(x: str) -> str:
        q, k, v = (
            build.node("Transpose", build.node("Reshape", project(x, width, width), split), perm=axes)
            for axes in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        scores = build.node("Mul", build.node("MatMul", q, k), build.constant((width // heads) ** -0.5))
        mixed = build.node("MatMul", build.node("Softmax", scores, axis=-1), v)
        joined = build.node("Reshape", build.node("Transpose", mixed, perm=[0, 2, 1, 3]), join)
        return project(joined, width, width)

    def activate(x: str) -> str:
        bent = build.node("Add", build.node("Erf", build.node("Div", x, build.constant(2**0.5))), build.constant(1.0))
        return build.node("Mul", build.node("Mul", x, bent), build.constant(0.5))

    for _ in range(blocks):
        x = build.node("Add", x, attend(normalize(x)))
        x = build.node("Add", x, project(activate(project(normalize(x), width, hidden)), hidden, width))
    return build.finish("encoder", (batch, length, width), normalize(x), (batch, length, width))


def make_lstm(length: int = 128, batch: int = 16, width: int = 256, layers: int = 2) -> BenchModel:
    """Stacked LSTM layers: a chain of small matrix products."""
    build, x = ModelBuilder(4), "x"
    axes = build.constant([1], np.int64)
    for _ in range(layers):
        w, r = (build.weight(1, 4 * width, width, scale=width**-0.5) for _ in range(2))
        x = build.node("LSTM", x, w, r, build.weight(1, 8 * width, scale=0.1), hidden_size=width)
        x = build.node("Squeeze", x, axes)
    return build.finish("lstm", (length, batch, width), x, (length, batch, width))


def make_chain(size: int = 4_000_000) -> BenchModel:
    """Twenty elementwise nodes on one vector: bound by bandwidth unless they are fused."""
    build, x = ModelBuilder(5), "x"
    steps = "Mul Add Relu Sub Abs Sqrt Add Sigmoid Mul Tanh Neg Exp Div Clip Add Log Mul Max Sub Mul"
    for operator in steps.split():
        match operator:
            case "Clip":
                others = [build.constant(-0.9), build.constant(9.0)]
            case "Max":
                others = ["x"]
            case "Mul" | "Add" | "Sub" | "Div":
                others = [build.constant(1.25)]
            case _:
                others = []
        x = build.node(operator, x, *others)
    return build.finish("chain", (size,), x, (size,))


def make_unet_small(batch: int = 1, channels: int = 32, extent: int = 128) -> BenchModel:
    """A small U-net: convolutions, instance norms, a resize, a transposed convolution, concatenations."""
    build, c = ModelBuilder(6), channels

    def convolve(x: str, ins: int, outs: int, stride: int = 1) -> str:
        w, bias = build.weight(outs, ins, 3, 3, scale=(2 / (9 * ins)) ** 0.5), build.weight(outs, scale=0.01)
        x = build.node("Conv", x, w, bias, kernel_shape=[3, 3], strides=[stride] * 2, pads=[1] * 4)
        scale, shift = build.constant(np.ones(outs)), build.constant(np.zeros(outs))
        return build.node("LeakyRelu", build.node("InstanceNormalization", x, scale, shift), alpha=0.1)

    whole = convolve("x", 3, c)
    half = convolve(convolve(whole, c, 2 * c, 2), 2 * c, 2 * c)
    quarter = convolve(convolve(half, 2 * c, 4 * c, 2), 4 * c, 4 * c)
    scales = build.constant([1, 1, 2, 2])
    grown = build.node("Resize", quarter, "", scales, mode="linear", coordinate_transformation_mode="half_pixel")
    half = convolve(build.node("Concat", grown, half, axis=1), 6 * c, 2 * c)
    grown = build.node(
        "ConvTranspose", half, build.weight(2 * c, c, 2, 2, scale=0.1), kernel_shape=[2, 2], strides=[2, 2]
    )
    whole = convolve(build.node("Concat", grown, whole, axis=1), 2 * c, c)
    y = build.node("Sigmoid", build.node("Conv", whole, build.weight(1, c, 1, 1, scale=0.1), kernel_shape=[1, 1]))
    return build.finish("unet_small", (batch, 3, extent, extent), y, (batch, 1, extent, extent))


MODELS: dict[str, Callable[[], BenchModel]] = {
    "mlp": make_mlp,
    "resnet18": make_resnet18,
    "encoder": make_encoder,
    "lstm": make_lstm,
    "chain": make_chain,
    "unet_small": make_unet_small,
}
# The same, so small that even the simulator runs them: to see the benches themselves work.
SMALL_MODELS: dict[str, Callable[[], BenchModel]] = {
    "mlp": lambda: make_mlp(2, 16, 2, 10),
    "resnet18": lambda: make_resnet18(1, 32),
    "encoder": lambda: make_encoder(1, 4, 8, 2, 16, 1),
    "lstm": lambda: make_lstm(3, 2, 8, 1),
    "chain": lambda: make_chain(1000),
    "unet_small": lambda: make_unet_small(1, 2, 8),
}
