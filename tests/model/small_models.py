"""Small models for tests of public objects, and an operator that waits until it is released."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from onnx import TensorProto, helper

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from gpuexec.devices.cpu.cpu_stream import CpuStream
from gpuexec.devices.recorder.tracer import TracerDevice
from gpuexec.ir.operator import Operator, Tolerance, operator
from gpuexec.ir.spec import TensorSpec

Array = np.ndarray[Any, Any]
DOMAIN = "gpuexec.test"
CPU = gx.BackendType.CPU


class Gates:
    """Gates by number: a Gate node that has begun sets ``entered`` and waits for ``open``."""

    def __init__(self) -> None:
        self.entered: dict[int, threading.Event] = {}
        self.open: dict[int, threading.Event] = {}
        self.failures: dict[int, Exception] = {}

    def new(self) -> int:
        number = len(self.open)
        self.entered[number], self.open[number] = threading.Event(), threading.Event()
        return number


GATES = Gates()


@operator("Gate", DOMAIN)
@dataclass(frozen=True, slots=True)
class Gate(Operator):
    """Passes its input on once the gate is open; fails where the gate says so."""

    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    number: int = 0

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        return (x.with_shape(x.shape),)

    def compute(self, x: Array, *, out: Sequence[Array | None] | None = None) -> tuple[Array, ...]:
        GATES.entered[self.number].set()
        GATES.open[self.number].wait()
        failure = GATES.failures.pop(self.number, None)
        if failure is not None:
            raise failure
        return (x.copy(),)


def make_model(
    nodes: Sequence[Any],
    inputs: dict[str, Any],
    outputs: dict[str, Any],
    dtype: int = TensorProto.FLOAT,
    **constants: Array,
) -> gx.Model:
    """Return a model of these nodes; inputs and outputs are shapes (strings: free dimensions).

    Operators on elements and products of one value stay layers of their own, since tests count layers.
    """
    graph = helper.make_graph(
        list(nodes),
        "small",
        [helper.make_tensor_value_info(name, dtype, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, dtype, shape) for name, shape in outputs.items()],
        [
            helper.make_tensor(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape, a.tobytes(), raw=True)
            for name, a in constants.items()
        ],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    data = helper.make_model(graph, opset_imports=opsets).SerializeToString()
    return gx.load(data, disabled_passes=("fuse_rows", "fuse_regions", "merge_products"))


def affine(shape: Sequence[int | str] = ("n", 3)) -> gx.Model:
    """y = relu(2 * x) + 1, in three layers."""
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["a"], name="double"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Add", ["b", "one"], ["y"], name="add"),
    ]
    return make_model(nodes, {"x": shape}, {"y": shape}, two=np.float32(2), one=np.float32(1))


def expect_affine(x: Array) -> Array:
    return np.maximum(2 * x, 0) + np.float32(1)


def two_inputs() -> gx.Model:
    """sum = left + right, difference = left - right."""
    nodes = [
        helper.make_node("Add", ["left", "right"], ["sum"], name="add"),
        helper.make_node("Sub", ["left", "right"], ["difference"], name="subtract"),
    ]
    shape = ("n", 3)
    return make_model(nodes, {"left": shape, "right": shape}, {"sum": shape, "difference": shape})


def two_layers() -> gx.Model:
    """y = relu(x @ first) @ second, which needs room for what lies between."""
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("MatMul", ["b", "second"], ["y"], name="second"),
    ]
    return make_model(nodes, {"x": ("n", 3)}, {"y": ("n", 2)}, first=ramp(3, 5), second=ramp(5, 2))


def three_products() -> gx.Model:
    """y = x @ w @ w @ w: three layers that stay layers."""
    names = ["x", "a", "b", "y"]
    nodes = [
        helper.make_node("MatMul", [before, "w"], [after], name=f"product_{after}")
        for before, after in itertools.pairwise(names)
    ]
    return make_model(nodes, {"x": ("n", 3)}, {"y": ("n", 3)}, w=ramp(3, 3))


def gated(shape: Sequence[int | str] = ("n", 3)) -> tuple[gx.Model, int]:
    """y = x + 1, behind a gate; and the gate's number."""
    number = GATES.new()
    nodes = [
        helper.make_node("Gate", ["x"], ["a"], name="gate", domain=DOMAIN, number=number),
        helper.make_node("Add", ["a", "one"], ["y"], name="add"),
    ]
    return make_model(nodes, {"x": shape}, {"y": shape}, one=np.float32(1)), number


def make_tracer(**costs: float) -> Backend:
    """Return the tracer as a backend of its own, with given launch costs."""
    device = TracerDevice()
    device.launch_costs = replace(device.launch_costs, **costs)
    return Backend(device, gx.BackendType.GPU_COMPUTE, "for a test")


def ramp(*shape: int) -> Array:
    """Return distinct values of both signs."""
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape) - np.float32(2)


def hold(stream: Any) -> threading.Event:
    """Hold back what is issued on a stream of the CPU or the simulator later, until the event returned is set."""
    if not isinstance(stream, CpuStream):
        gate: threading.Event = stream.hold()
        return gate
    gate = threading.Event()

    def wait() -> None:
        gate.wait()

    stream.begin_run()
    stream.run(wait)
    return gate


def hold_worker(
    model: gx.Model, backend: Backend | None = None, **options: object
) -> tuple[gx.Worker, threading.Event]:
    """Return a Worker, on the CPU by default, whose stream is held."""
    backend = backend or open_backend(CPU)
    stream = backend.device.create_stream()
    return gx.Worker(model, backend=backend, stream=stream, **options), hold(stream)  # type: ignore[arg-type]


def trace(backend: Backend) -> list[object]:
    assert isinstance(backend.device, TracerDevice)
    return [row[0] for row in backend.device.log]
