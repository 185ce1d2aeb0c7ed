"""Minimal execution of a plan on any device, with memory of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpuexec.devices.cpu.cpu import CpuDevice
from gpuexec.devices.device import Device, MemoryBlock, Recording, Region, Stream
from gpuexec.ir.graphs import Graph
from gpuexec.ir.plan import Buffer, Plan, Role, Segment, Variant
from gpuexec.ir.spec import TensorSpec
from gpuexec.planner.template import Template, plan_graph

Array = np.ndarray[Any, Any]
Record = Callable[[Device, Segment, Mapping[int, Region]], Recording]
POISON = b"\xa5"


def specs_of(arrays: Mapping[str, Array], on_host: bool = False) -> dict[str, TensorSpec]:
    """Return the specs of arrays, with content if they are said to be on the host."""
    return {name: TensorSpec.of(a) if on_host else TensorSpec(a.shape, a.dtype) for name, a in arrays.items()}


def run_graph(graph: Graph, arrays: Mapping[str, Array]) -> list[Array]:
    """Plan a graph, run it on the CPU, and return its outputs."""
    device = CpuDevice()
    return run_template(plan_graph(graph, specs_of(arrays), device.target), graph, arrays, device)


def run_template(
    template: Template, graph: Graph, arrays: Mapping[str, Array], device: Device, record: Record | None = None
) -> list[Array]:
    """Specialise a template for these inputs, run it once, and return its outputs."""
    constants = {value.name: array for value, array in graph.constants.items()}
    with LoadedPlan(template.plan, constants, device, record) as loaded:
        return loaded.run(arrays, template.specialise(specs_of(arrays)))


class LoadedPlan:
    """A plan of one segment with its memory on a device, recorded.

    Memory that nothing is uploaded to is poisoned, so that stale bytes show.

    Args:
        plan: What to run.
        constants: Content of the weights, by name.
        device: Where.
        record: Makes the recording; None: the device does, in stream form.
    """

    def __init__(
        self, plan: Plan, constants: Mapping[str, Array], device: Device, record: Record | None = None
    ) -> None:
        self.plan, self.device = plan, device
        self.stream: Stream = device.create_stream()
        self._memories: list[MemoryBlock] = []
        arena = self._allocate(plan.layout.nbytes)
        memory = {b: Region(arena, offset, plan.buffers[b].nbytes) for b, offset in plan.layout.offsets}
        self.bindings: dict[int, Region] = {}
        for buffer in plan.buffers:
            if buffer.role is Role.CONSTANT:
                memory[buffer.id] = self._place(buffer, constants)
            elif buffer.role is Role.COUNTERS:
                block = self._allocate(buffer.nbytes, is_poisoned=False)
                self.stream.fill(block.address, bytes(1), buffer.nbytes)
                memory[buffer.id] = Region(block, 0, buffer.nbytes)
            elif buffer.role is not Role.TEMP:
                block = self._allocate(buffer.nbytes, is_poisoned=buffer.role is not Role.INPUT)
                self.bindings[buffer.id] = Region(block, 0, buffer.nbytes)
        if plan.kernels():
            device.load(plan.kernels())
        segment = plan.segment
        self.recording = record(device, segment, memory) if record else device.record(segment, memory)

    def run(self, arrays: Mapping[str, Array], variant: Variant | None = None) -> list[Array]:
        """Upload inputs, run, wait, and return the outputs."""
        if variant is not None:
            self.recording.patch(variant.commands)
        for port in self.plan.inputs:
            if port.buffer is not None:
                self._upload(self.bindings[port.buffer], arrays[port.name])
        self.recording.submit(self.stream, self.bindings)
        specs = [port.spec for port in self.plan.outputs] if variant is None else variant.outputs
        return self.download(specs)

    def download(self, specs: Sequence[TensorSpec]) -> list[Array]:
        """Return the outputs as they are once all work is done."""
        outputs = [np.empty(spec.shape, spec.dtype) for spec in specs]
        for port, array in zip(self.plan.outputs, outputs, strict=True):
            assert port.buffer is not None
            if array.nbytes:
                self.stream.copy_to_host(raw(array), self.bindings[port.buffer].address)
        self.stream.synchronize()
        return outputs

    def close(self) -> None:
        """Wait, and give all memory back."""
        self.stream.synchronize()
        self.stream.close()  # type: ignore[attr-defined]
        for memory in self._memories:
            memory.free()

    def __enter__(self) -> LoadedPlan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _allocate(self, nbytes: int, *, is_poisoned: bool = True) -> MemoryBlock:
        memory = self.device.allocate(nbytes)
        self._memories.append(memory)
        if nbytes and is_poisoned:
            self.stream.fill(memory.address, POISON, nbytes)
        return memory

    def _place(self, buffer: Buffer, constants: Mapping[str, Array]) -> Region:
        region = Region(self._allocate(buffer.nbytes, is_poisoned=False), 0, buffer.nbytes)
        array = constants[buffer.name] if buffer.data is None else np.frombuffer(buffer.data, np.uint8)
        self._upload(region, array if buffer.form is None else buffer.form.pack(array))
        return region

    def _upload(self, region: Region, array: Array) -> None:
        if array.nbytes:
            self.stream.copy_to_device(region.address, raw(np.array(array, order="C")))


def raw(array: Array) -> Array:
    """Return the bytes of a dense array, as a view."""
    assert array.flags.c_contiguous
    return array.reshape(-1).view(np.uint8)
