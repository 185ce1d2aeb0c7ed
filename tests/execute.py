"""Runs a plan on a device, with memory of its own: what a Worker does, reduced to a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpuexec.plan import Plan, Role, Segment, Variant
from gpuexec.planner.template import Template, plan_graph
from gpuexec.runtime.cpu import CpuDevice
from gpuexec.runtime.device import Device, Memory, Region
from gpuexec.spec import TensorSpec

Array = np.ndarray[Any, Any]
_POISON = 0xA5


def specs_of(arrays: Mapping[str, Array], on_host: bool = False) -> dict[str, TensorSpec]:
    """Return the specs of arrays, with content if they are said to be on the host."""
    return {name: TensorSpec.of(a) if on_host else TensorSpec(a.shape, a.dtype) for name, a in arrays.items()}


def run_graph(graph: Any, arrays: Mapping[str, Array], device: Device | None = None) -> list[Array]:
    """Plan a graph, run it on the CPU, and return its outputs."""
    device = device or CpuDevice()
    template = plan_graph(graph, specs_of(arrays), device.target)
    return run_template(template, graph, arrays, device)


def run_template(template: Template, graph: Any, arrays: Mapping[str, Array], device: Device) -> list[Array]:
    """Specialise a template and run it."""
    variant = template.specialise(specs_of(arrays))
    constants = {value.name: array for value, array in graph.constants.items()}
    return run_plan(template.plan, arrays, constants, device, variant)


def run_plan(
    plan: Plan,
    arrays: Mapping[str, Array],
    constants: Mapping[str, Array],
    device: Device,
    variant: Variant | None = None,
) -> list[Array]:
    """Run a plan of one segment and return its outputs. Memory is poisoned first, so that stale bytes show."""
    (segment,) = plan.steps
    assert isinstance(segment, Segment)
    arena = _allocate(device, plan.layout.nbytes)
    memory: dict[int, Region] = {b: Region(arena, offset, plan.buffers[b].nbytes) for b, offset in plan.layout.offsets}
    bindings: dict[int, Region] = {}
    for buffer in plan.buffers:
        if buffer.role is Role.TEMP:
            continue
        block = _allocate(device, buffer.nbytes)
        (memory if buffer.role is Role.CONSTANT else bindings)[buffer.id] = Region(block, 0, buffer.nbytes)
        assert block.array is not None
        if buffer.role is Role.CONSTANT:
            content = np.frombuffer(buffer.data, np.uint8) if buffer.data is not None else raw(constants[buffer.name])
            block.array[:] = content
        elif buffer.role is Role.INPUT:
            content = raw(arrays[buffer.name])
            block.array[: content.nbytes] = content
    recording = device.record(segment, memory)
    if variant is not None:
        recording.patch(variant.segments[0])
    stream, event = device.create_stream(), device.create_event()
    recording.submit(stream, bindings)
    stream.record(event)
    event.synchronize()
    stream.close()  # type: ignore[attr-defined]
    outputs = []
    specs = [port.spec for port in plan.outputs] if variant is None else variant.outputs
    for port, spec in zip(plan.outputs, specs, strict=True):
        assert port.buffer is not None
        block = bindings[port.buffer].memory.array
        assert block is not None
        outputs.append(block[: spec.nbytes].view(spec.dtype).reshape(spec.shape).copy())
    return outputs


def raw(array: Array) -> Array:
    """Return the bytes of an array."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _allocate(device: Device, nbytes: int) -> Memory:
    memory = device.allocate(nbytes)
    assert memory.array is not None
    memory.array[:] = _POISON
    return memory
