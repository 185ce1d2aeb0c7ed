"""Operators over arrays at unaligned addresses, within buffers and as buffers."""

from __future__ import annotations

from itertools import zip_longest

import numpy as np

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Device, Region, Stream
from gpuexec.execution.images.transform import make_step
from gpuexec.execution.results.arenas import wrap_region
from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.operator import Array, Operator
from gpuexec.ir.spec import DeclaredSpec, TensorSpec
from tests.devices.opening import open_living
from tests.ir.graph_builder import GraphBuilder
from tests.ops.harness import Case
from tests.ops.odd import Inputs
from tests.ops.strided import Window


def run_shifted(name: str, case: Case, op: Operator, inputs: Inputs, known: set[int], shift: int) -> list[Array]:
    """Run a case as a replay over arrays that start ``shift`` elements past aligned ones; return the wanted outputs.

    Each input is a dense window that begins ``shift`` elements into a buffer, so that lowerings see it; that buffer,
    and each output, is given ``shift`` elements past aligned memory, so that the replay does.
    """
    device = open_living(name)
    backend, stream = Backend(device, gx.BackendType.SIMULATOR, "for a test"), device.create_stream()
    graph, wanted, arrays = _draw(case, op, inputs, known, shift)
    given = {name: _place(backend, stream, TensorSpec(x.shape, x.dtype), shift) for name, x in arrays.items()}
    made = {name: _place(backend, stream, spec, shift) for name, spec in wanted.items()}
    for name, x in arrays.items():
        if x.nbytes:
            stream.copy_to_device(given[name]._content.region.address, x.reshape(-1).view(np.uint8))
    try:
        with gx.Worker(make_step(graph), backend=backend) as worker:
            replay = worker.record({name: x.shape for name, x in arrays.items()})
            results = replay.submit(given, outputs=made, stream=stream)
            for name, y in made.items():
                assert results[name]._content.region.address == y._content.region.address
            return [results[name].readback_and_clone() for name in wanted]
    finally:
        stream.synchronize()


def _draw(
    case: Case, op: Operator, inputs: Inputs, known: set[int], shift: int
) -> tuple[Graph, dict[str, TensorSpec], dict[str, Array]]:
    """Return a graph of the operator, what it gives, and the memory of its inputs, by name."""
    build, values, arrays = GraphBuilder(), list[Value | None](), dict[str, Array]()
    for index, x in enumerate(inputs):
        if x is None or index in known:
            values.append(None if x is None else build.constant(np.array(x), f"x{index}"))
            continue
        dense, memory = np.array(x, order="C"), np.zeros(shift + x.size, x.dtype)
        memory[shift:] = dense.reshape(-1)
        arrays[f"x{index}"] = memory
        window = Window(x.shape, tuple(stride // x.itemsize for stride in dense.strides), shift)
        values.append(build.node(window, build.input(f"x{index}", *memory.shape, dtype=x.dtype)))
    given = build.graph()
    specs = op.infer(*[None if x is None else TensorSpec.of(x) for x in inputs])
    outputs = [
        Value(f"y{index}", DeclaredSpec(spec.dtype, spec.shape)) if is_wanted else None
        for index, (spec, is_wanted) in enumerate(zip_longest(specs, case.outputs, fillvalue=False))
    ]
    node = Node(op, tuple(values), tuple(outputs), case.id)
    made = tuple(value for value in outputs if value is not None)
    graph = Graph(given.inputs, made, (*given.nodes, node), given.constants, "test")
    specs_made = {y.name: TensorSpec(s.shape, s.dtype) for y, s in zip(outputs, specs, strict=True) if y is not None}
    return graph, specs_made, arrays


def _place(backend: Backend, stream: Stream, spec: TensorSpec, shift: int) -> gx.Tensor:
    """Return a tensor over memory of the caller's that starts some elements past an aligned address."""
    device: Device = backend.device
    start = shift * spec.dtype.itemsize
    return wrap_region(backend, Region(device.allocate(start + spec.nbytes + 1), start, spec.nbytes), spec, "", stream)
