"""Plan bound to memory of its own, as calls that any thread may make; on devices that record calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.devices.device import CallRecording, Device, MemoryBlock, Region, Stream
from gpuexec.execution.runs.inputs import IN_PLACE_NBYTES
from gpuexec.execution.runs.plan_cache import PlannedVariant
from gpuexec.execution.runs.subgraph import Stage
from gpuexec.ir.plan import Port
from gpuexec.ir.spec import TensorSpec, is_host_object

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class BoundPlan:
    """A planned variant whose inputs are written, and outputs read, where they lie between calls.

    Attributes:
        planned: What it is.
        recording: Whose calls they are; another one has other memory.
        inputs: The arrays of the graph's inputs, in order; None where a plan reads them elsewhere.
        calls: What computes the outputs.
        outputs: The arrays of the graph's outputs, in order.
        blocks: The memory of inputs and outputs.
    """

    planned: PlannedVariant
    recording: CallRecording
    inputs: tuple[Array | None, ...]
    calls: Sequence[Callable[[], object]]
    outputs: tuple[Array, ...]
    blocks: tuple[MemoryBlock, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of inputs and outputs."""
        return sum(block.nbytes for block in self.blocks)

    @property
    def is_valid(self) -> bool:
        """Whether the memory is still that of the plan."""
        return self.planned.compiled.recording is self.recording


def bind_plan(
    device: Device,
    stream: Stream,
    stage: Stage,
    planned: PlannedVariant | None,
    elsewhere: Mapping[int, Region] | None = None,
) -> BoundPlan | None:
    """Bind a plan that has run; None where that gains nothing, or can't be.

    It is for brief plans over small arrays of the host, of which no output is an input. The caller
    holds the lock for issuing.

    Args:
        device: What it runs on.
        stream: What it ran on.
        stage: Whose plan.
        planned: Its sizes.
        elsewhere: Where inputs lie, by position, that are no arrays of its own.
    """
    graph = stage.partition.ready
    if graph is None or stage.plans is None or planned is None or planned.stands_for is not None:
        return None
    recording, plan, variant = planned.compiled.recording, planned.compiled.plan, planned.variant
    if not isinstance(recording, CallRecording) or not recording.is_brief:
        return None
    if any(value in graph.inputs for value in graph.outputs):
        return None
    elsewhere = elsewhere or {}
    specs = [*[spec for place, spec in enumerate(variant.inputs) if place not in elsewhere], *variant.outputs]
    if any(is_host_object(spec.dtype) or spec.nbytes >= IN_PLACE_NBYTES for spec in specs):
        return None
    bindings: dict[int, Region] = {}
    blocks: list[MemoryBlock] = []

    def open_array(port: Port, spec: TensorSpec) -> Array:
        """Return the array of a port, in a block that its buffer is bound to."""
        region = None if port.buffer is None else bindings.get(port.buffer)
        if region is None:
            nbytes = max(1, spec.nbytes if port.buffer is None else plan.buffers[port.buffer].nbytes)
            block = device.allocate(nbytes)
            blocks.append(block)
            region = Region(block, 0, block.nbytes)
            if port.buffer is not None:
                bindings[port.buffer] = region
        return region.view(spec)

    inputs: list[Array | None] = []
    for place, (port, spec) in enumerate(zip(plan.inputs, variant.inputs, strict=True)):
        if place not in elsewhere:
            inputs.append(open_array(port, spec))
            continue
        inputs.append(None)
        if port.buffer is not None:
            bindings[port.buffer] = elsewhere[place]
    outputs = [open_array(port, spec) for port, spec in zip(plan.outputs, variant.outputs, strict=True)]
    with np.errstate(all="ignore"):
        stage.plans.record(planned, stream)
        calls = recording.bind(bindings)
    return BoundPlan(planned, recording, tuple(inputs), calls, tuple(outputs), tuple(blocks))
