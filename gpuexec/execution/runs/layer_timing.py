"""Times of the layers of a plan before its first run: its commands run once over zeros, in memory lent for that."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from gpuexec.errors import GpuexecError
from gpuexec.execution.runs.deferred_plans import Plans
from gpuexec.execution.runs.execution_context import ExecutionContext
from gpuexec.execution.runs.plan_cache import PlannedVariant
from gpuexec.execution.runs.subgraph import Stage
from gpuexec.ir.plan import Role

# Inputs, outputs and memories that are worth lending for it.
_MOST_BYTES = 1 << 28
_LENT = frozenset({Role.INPUT, Role.OUTPUT, Role.STATE, Role.EXCHANGE})


def list_layers(origins: Sequence[str]) -> list[tuple[str, int]]:
    """Return the layers of commands: those in a row that stem from one node. Each is the node, and where they end."""
    return [(origin, end) for end, origin in enumerate(origins, 1) if end == len(origins) or origins[end] != origin]


def time_layers(context: ExecutionContext, stage: Stage, planned: PlannedVariant) -> None:
    """Time the layers of a plan where none is timed yet, and wait for that.

    What zeros make fail stays without a time, and so does a plan that takes up much memory from outside, or runs within
    a limit. Nothing of the caller's is read or written; the caller has seen to it that nothing is under way.

    Args:
        context: Of the engine.
        stage: Whose plan.
        planned: Its sizes.
    """
    buffers = planned.compiled.plan.buffers
    sizes = {number: buffer.nbytes for number, buffer in enumerate(buffers) if buffer.role in _LENT}
    is_new = planned.compiled.times.find(0) is None
    is_wanted = is_new and planned.stands_for is None and context.planning.limit is None
    if not is_wanted or stage.plans is None or sum(sizes.values()) > _MOST_BYTES:
        return
    with contextlib.suppress(GpuexecError):
        _run_over_zeros(context, stage.plans, planned, sizes)
    context.stopwatch.collect()
    context.pool.trim()


def _run_over_zeros(context: ExecutionContext, plans: Plans, planned: PlannedVariant, sizes: Mapping[int, int]) -> None:
    """Run the commands of a plan once, layer by layer, over blocks of the pool; return when they are done."""
    stream, stopwatch = context.stream, context.stopwatch
    lent = {number: context.pool.lend(nbytes) for number, nbytes in sizes.items()}
    bindings, first = {number: each.region for number, each in lent.items()}, 0
    with context.lock:
        recording = plans.record(planned, stream)
        stream.begin_run()
        for number, nbytes in sizes.items():
            if nbytes:
                stream.fill(bindings[number].address, b"\0", nbytes)
        for number, (_, last) in enumerate(list_layers(planned.compiled.plan.segment.origins)):
            start = stopwatch.mark()
            recording.submit(stream, bindings, first, last)
            stopwatch.expect(planned.compiled.times, number, start, stopwatch.mark())
            first = last
    stream.synchronize()
