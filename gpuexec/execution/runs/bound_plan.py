"""Plan bound to memory of its own, as calls that any thread may make; on devices that record calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from gpuexec.devices.device import CallRecording, Device, Region, Stream
from gpuexec.execution.runs.deferred_plans import Plans
from gpuexec.execution.runs.inputs import IN_PLACE_NBYTES
from gpuexec.execution.runs.plan_cache import PlannedVariant
from gpuexec.execution.runs.subgraph import Stage
from gpuexec.ir.graphs import Value
from gpuexec.ir.plan import Port
from gpuexec.ir.spec import TensorSpec, is_host_object

Array = np.ndarray[Any, Any]


class BoundPlan:
    """A planned variant whose inputs are written, and outputs read, where they lie between calls.

    Attributes:
        planned: What it is.
        inputs: The arrays of the graph's inputs, in order; None where a plan reads them elsewhere, or not at all.
        calls: What computes the outputs.
        outputs: The arrays of the graph's outputs, in order; None where a plan writes them elsewhere.
        nbytes: Of the memory of inputs and outputs.
        lent: The buffers of large inputs and outputs, which are elsewhere at each run: in what is lent for it.
        places: By buffer, where they are meanwhile.
    """

    def __init__(
        self,
        plans: Plans,
        stream: Stream,
        planned: PlannedVariant,
        recording: CallRecording,
        regions: tuple[Sequence[Region | None], Sequence[Region | None]],
        find_calls: Callable[[], Sequence[Callable[[], object]]],
        lent: Mapping[Value, int],
        places: dict[int, Region],
    ) -> None:
        self._plans, self._stream, self._recording, self._find_calls = plans, stream, recording, find_calls
        self._regions, self.lent, self.places = regions, lent, places
        self.inputs: tuple[Array | None, ...] = (None,) * len(regions[0])
        self.outputs: tuple[Array | None, ...] = (None,) * len(regions[1])
        self.nbytes = sum({id(each.memory): each.memory.nbytes for part in regions for each in part if each}.values())
        self._take(planned)

    @property
    def is_valid(self) -> bool:
        """Whether the memory is still that of the plan."""
        return self.planned.compiled.recording is self._recording

    def resize(self, planned: PlannedVariant) -> bool:
        """Take another size, and return whether the plan has it; the caller holds the lock for issuing."""
        if planned is self.planned:
            return True
        if planned.compiled is not self.planned.compiled or planned.stands_for is not None or planned.variant.reads:
            return False
        if self._plans.record(planned, self._stream) is not self._recording:
            return False
        self._take(planned)
        return True

    def _take(self, planned: PlannedVariant) -> None:
        """Make views and calls of a size, which the recording is set to."""
        self.planned = planned
        self.inputs = _view_all(self._regions[0], planned.variant.inputs, self.inputs)
        self.outputs = _view_all(self._regions[1], planned.variant.outputs, self.outputs)
        with np.errstate(all="ignore"):
            self.calls = self._find_calls()


def _view_all(
    regions: Sequence[Region | None], specs: Sequence[TensorSpec], known: tuple[Array | None, ...]
) -> tuple[Array | None, ...]:
    """Return arrays of these specs in regions, those known that have them; all of them: that very tuple."""
    views = [
        None if at is None else before if before is not None and before.shape == spec.shape else at.view(spec)
        for at, spec, before in zip(regions, specs, known, strict=True)
    ]
    return known if all(a is b for a, b in zip(views, known, strict=True)) else tuple(views)


def bind_plan(
    device: Device,
    stream: Stream,
    stage: Stage,
    planned: PlannedVariant | None,
    elsewhere: Mapping[Value, Region],
    lendable: Collection[str] = (),
) -> BoundPlan | None:
    """Bind a plan that has run; None where that gains nothing, or can't be.

    It is for brief plans over arrays of the host, of which no output is an input. The caller holds the lock for
    issuing.

    Args:
        device: What it runs on.
        stream: What it ran on.
        stage: Whose plan.
        planned: Its sizes.
        elsewhere: Where inputs and outputs lie that are no arrays of its own.
        lendable: The inputs and outputs that may be lent to each run, where they are large; others may not be large.
    """
    graph = stage.partition.ready
    if graph is None or stage.plans is None or planned is None or planned.stands_for is not None:
        return None
    recording, plan, variant = planned.compiled.recording, planned.compiled.plan, planned.variant
    if not isinstance(recording, CallRecording) or not recording.is_brief:
        return None
    if any(value in graph.inputs for value in graph.outputs):
        return None
    bindings: dict[int, Region] = {}

    def open_region(value: Value, port: Port) -> Region | None:
        """Return the bytes of a port, which its buffer is bound to; None: they are elsewhere, or nothing reads them."""
        if port.buffer is None or value in lent:
            return None
        if value in elsewhere:
            bindings[port.buffer] = elsewhere[value]
            return None
        region = bindings.get(port.buffer)
        if region is None:
            block = device.allocate(max(1, plan.buffers[port.buffer].nbytes))
            region = bindings[port.buffer] = Region(block, 0, block.nbytes)
        return region

    values, specs = (*graph.inputs, *graph.outputs), (*variant.inputs, *variant.outputs)
    buffers = [port.buffer for port in (*plan.inputs, *plan.outputs)]
    lent: dict[Value, int] = {}
    for value, spec, buffer in zip(values, specs, buffers, strict=True):
        if value in elsewhere:
            continue
        if is_host_object(spec.dtype):
            return None
        if spec.nbytes >= IN_PLACE_NBYTES and buffer is not None:
            if value.name not in lendable or buffers.count(buffer) > 1:
                return None
            lent[value] = buffer
    inputs = [open_region(value, port) for value, port in zip(graph.inputs, plan.inputs, strict=True)]
    outputs = [open_region(value, port) for value, port in zip(graph.outputs, plan.outputs, strict=True)]
    recorded = stage.plans.record(planned, stream)  # anew, where other plans have outgrown the arena
    if not isinstance(recorded, CallRecording):
        return None
    with np.errstate(all="ignore"):
        find_calls = recorded.bind(bindings)
        return BoundPlan(stage.plans, stream, planned, recorded, (inputs, outputs), find_calls, lent, bindings)
