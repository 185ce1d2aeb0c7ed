"""Plans whose kernels are compiled in the background, and the unfused plans that run in their place until then.

Both are plans of one graph, with the same inputs and outputs, and give the same bits; which one a run takes is decided
when it is bound. Memory is reserved for the larger of the two from the beginning, so that nothing is allocated when the
fused one takes over.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping

from gpuexec.devices.device import Recording, Stream
from gpuexec.errors import OutOfMemoryError
from gpuexec.execution.runs.background_compiler import BackgroundCompiler
from gpuexec.execution.runs.plan_cache import CompiledPlan, PlanCache, PlannedVariant
from gpuexec.execution.runs.planning_context import PlanningContext
from gpuexec.execution.runs.size_traces import Shapes
from gpuexec.ir.graphs import Graph
from gpuexec.ir.spec import TensorSpec
from gpuexec.passes import GENERATING

_log = logging.getLogger("gpuexec")
_STAND_INS_KEPT = 256


class DeferredPlans:
    """Finds, makes and records plans of a graph as `PlanCache` does, without waiting for kernels of generated text.

    Args:
        graph: What is planned.
        planning: Model and device.
        compiler: Compiles in the background.
        grows: As for `PlanCache`.
    """

    def __init__(
        self, graph: Graph, planning: PlanningContext, compiler: BackgroundCompiler, *, grows: bool = False
    ) -> None:
        self._planning, self._compiler = planning, compiler
        disabled = planning.model.disabled_passes
        self._fused = PlanCache(graph, planning, grows=grows, compiler=compiler)
        self._unfused = PlanCache(graph, planning, grows=grows, disabled=disabled | GENERATING, is_stand_in=True)
        # By what they stand for.
        self._stand_ins: dict[PlannedVariant, PlannedVariant] = {}
        self.caches = self._fused.caches

    def find(self, shapes: Shapes) -> PlannedVariant | None:
        """Return nothing: what is chosen depends on which kernels are there."""

    def choose(self, specs: Mapping[str, TensorSpec]) -> PlannedVariant:
        """Return the plan and variant for inputs of these specs: the fused one where its kernels are there.

        Raises:
            InputError: The inputs don't fit the graph; names the node.
            NeedsHostValue: A shape depends on content that is not on the host.
        """
        try:
            return self._choose(specs)
        finally:
            # Not before a stand-in has its kernels, which are wanted first.
            self._compiler.begin()

    def _choose(self, specs: Mapping[str, TensorSpec]) -> PlannedVariant:
        planned = self._fused.choose(specs)
        compiled = planned.compiled
        if compiled.compilation is None or self._take_up(compiled):
            return planned
        stand_in = self._stand_ins.get(planned)
        if stand_in is None:
            try:
                found = self._unfused.choose(specs)
            except OutOfMemoryError:
                return self._wait_for(planned)
            if len(self._stand_ins) >= _STAND_INS_KEPT:
                self._stand_ins.clear()
            stand_in = self._stand_ins[planned] = PlannedVariant(found.compiled, found.variant, stands_for=planned)
        return stand_in

    def admit(self, planned: PlannedVariant, input_nbytes: int) -> PlannedVariant:
        """Check that a run stays within the limit there is, and return what it runs by; see `PlanCache.admit`.

        Where there is no room for a fused plan and its stand-in, the kernels are waited for.
        """
        fused = planned.stands_for
        if fused is None:
            return self._fused.admit(planned, input_nbytes)
        try:
            self._unfused.check_beside(planned.compiled, fused.compiled, input_nbytes)
            return planned
        except OutOfMemoryError:
            del self._stand_ins[fused]
            return self._fused.admit(self._wait_for(fused), input_nbytes)

    def reserve(self, planned: PlannedVariant, stream: Stream) -> Recording:
        """Return the recording of a planned variant's plan; see `PlanCache.reserve`."""
        self._make_room(planned, stream)
        return self._find_cache(planned).reserve(planned, stream)

    def record(self, planned: PlannedVariant, stream: Stream) -> Recording:
        """Return the recording of a planned variant, set to its sizes; see `PlanCache.record`."""
        self._make_room(planned, stream)
        return self._find_cache(planned).record(planned, stream)

    def _wait_for(self, planned: PlannedVariant) -> PlannedVariant:
        """Wait for the kernels of a fused plan, and load them.

        Raises:
            GpuexecError: They can't be compiled.
        """
        if planned.compiled.compilation is not None:
            self._compiler.begin()
            planned.compiled.compilation.wait()
            self._fused.load(planned.compiled)
        return planned

    def _take_up(self, compiled: CompiledPlan) -> bool:
        """Load the kernels of a fused plan if they are compiled; where they can't be, say so once."""
        compilation = compiled.compilation
        assert compilation is not None
        if not compilation.is_done():
            return False
        if compilation.error is None:
            self._fused.load(compiled)
            return True
        if not compiled.is_refused:
            compiled.is_refused = True
            reason = str(compilation.error)
            self._planning.counters.uncompiled.append(reason)
            _log.info("a plan of %s goes on unfused: %s", self._planning.model.graph.name, reason)
            warnings.warn(
                f"A plan of {self._planning.model.graph.name!r} goes on unfused, since its kernels were not compiled:"
                f" {reason}",
                RuntimeWarning,
                stacklevel=2,
            )
        return False

    def _make_room(self, planned: PlannedVariant, stream: Stream) -> None:
        """Reserve the arena of the fused plan together with that of its stand-in; drop stand-ins that nobody needs."""
        fused = planned.stands_for
        if fused is not None:
            plan, arena = fused.compiled.widest.plan, self._planning.arena
            arena.reserve(plan.layout.nbytes)
            arena.reserve_counters(plan.counters_nbytes, plan.layout.nbytes, stream)
        elif self._unfused.has_recordings and not self._fused.is_waiting:
            self._unfused.drop_recordings()

    def _find_cache(self, planned: PlannedVariant) -> PlanCache:
        return self._fused if planned.stands_for is None else self._unfused


# What plans a graph: at once, or in the background.
Plans = PlanCache | DeferredPlans


def open_plans(graph: Graph, planning: PlanningContext, *, grows: bool = False) -> Plans:
    """Return what plans a graph, as the engine compiles."""
    if planning.compiler is None:
        return PlanCache(graph, planning, grows=grows)
    return DeferredPlans(graph, planning, planning.compiler, grows=grows)
