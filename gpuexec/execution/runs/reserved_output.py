"""Reserved outputs of a plan: bytes in a frame, found once and kept until the frame's memory changes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gpuexec.devices.device import Region
from gpuexec.execution.resources.alignment import find_alignment
from gpuexec.execution.resources.frames import Frame
from gpuexec.execution.runs.plan_cache import PlannedVariant
from gpuexec.ir.graphs import Graph, Value
from gpuexec.ir.plan import Role
from gpuexec.ir.target import Target

_PLANS_KEPT = 16


@dataclass(frozen=True, slots=True, eq=False)
class ReservedOutput:
    """Bytes of an output in a frame.

    Attributes:
        bound: What the plan's buffer is bound to: room for every size of the plan's class.
        written: As many of them as the variant writes.
        final: Where the output is when the run is done: ``written``, or bytes of the user's that kernels can't write.
    """

    bound: Region
    written: Region
    final: Region


def reserve_outputs(
    frame: Frame, graph: Graph, planned: PlannedVariant, framed: Collection[Value], target: Target
) -> dict[Value, ReservedOutput]:
    """Return the bytes of the outputs of a plan that lie in a frame.

    Args:
        frame: Of the run.
        graph: What is planned.
        planned: The plan and its size.
        framed: Outputs that lie in frames; others are passed between plans, or are memories.
        target: What the plan is made for.

    Raises:
        OutOfMemoryError: There is no room, or bytes of the user's are too few.
    """
    rows: dict[Value, ReservedOutput]
    generation, rows = frame.reserved.get(planned, (-1, {}))
    if generation == frame.generation:
        return rows
    generation, rows = frame.generation, {}
    plan = planned.compiled.plan
    for value, port, spec in zip(graph.outputs, plan.outputs, planned.variant.outputs, strict=True):
        assert port.buffer is not None
        if value not in framed or plan.buffers[port.buffer].role is Role.STATE:
            continue
        needed = plan.buffers[port.buffer].nbytes
        bound = frame.writable(value.name, needed, find_alignment(target, spec.dtype))
        final = frame.output(value.name, needed)
        rows[value] = ReservedOutput(bound, _first(bound, spec.nbytes), _first(final, spec.nbytes))
    if len(frame.reserved) >= _PLANS_KEPT:
        frame.reserved.clear()
    # An output that was exported meanwhile, by another thread, has changed the frame: the next run finds new bytes.
    frame.reserved[planned] = generation, rows
    return rows


def _first(region: Region, nbytes: int) -> Region:
    return Region(region.memory, region.offset, nbytes)
