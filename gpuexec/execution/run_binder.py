"""Run binder: plan, reserved memory, frame, inputs, memories and outputs of a run that begins.

Nothing here is put on a stream but weights that are not there yet. `gpuexec.execution.engine` says when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gpuexec.errors import ImplicitSyncError, OutOfMemoryError
from gpuexec.execution.resources.frames import Frame, Lease, ReservedOutput
from gpuexec.execution.results.content import Content
from gpuexec.execution.results.place import Place
from gpuexec.execution.results.tensor import Tensor
from gpuexec.execution.runs.execution_context import ExecutionContext
from gpuexec.execution.runs.input_binding import count_copied_bytes, count_host_bytes
from gpuexec.execution.runs.inputs import DeviceArray, GivenInput, HostArray, check_sources, with_room
from gpuexec.execution.runs.inspection import Inspection
from gpuexec.execution.runs.plan_cache import CompiledPlan, PlannedVariant, describe_memory_needs
from gpuexec.execution.runs.prepared_run import PreparedRun
from gpuexec.execution.runs.run import Run
from gpuexec.execution.runs.storage import Storage
from gpuexec.execution.runs.subgraph import Stage, Subgraph
from gpuexec.execution.state.binding import HeldContents, StateBinder
from gpuexec.ir.graphs import Value
from gpuexec.ir.spec import TensorSpec


class RunBinder:
    """Binds the runs of an engine, one at a time.

    Args:
        context: Plans, stream and lock of the engine.
        storage: The memory it runs in.
        states: Binds memories.
        give_up: Called by a run that its caller gives up.
        trim: Called where the device is out of memory: waits for all work, and gives back what no plan needs.
    """

    def __init__(
        self,
        context: ExecutionContext,
        storage: Storage,
        states: StateBinder,
        give_up: Callable[[Run], bool],
        trim: Callable[[], None],
    ) -> None:
        self._planning, self._storage, self._states = context.planning, storage, states
        self._stream, self._lock, self._syncs = context.stream, context.lock, context.syncs
        self._under_way = context.under_way
        self._give_up, self._trim = give_up, trim
        # Without kernels, runs read inputs where the host has them.
        self._has_kernels = context.planning.backend.device.target.has_kernels
        self.adopt()

    def adopt(self) -> None:
        """Take up the model that the planning context has now, and its memories."""
        self._graph = self._planning.model.graph
        self._inputs = {value.name: value for value in self._graph.inputs}
        self._unknown: dict[Value, TensorSpec] = dict.fromkeys(self._graph.inputs, TensorSpec((), np.dtype(np.bool_)))
        self._subgraph = Subgraph(self._graph, self._planning, grows=True)
        # Names of inputs, all of the host, and the inputs as they are at the upper end of a plan's class.
        self._roomy: tuple[CompiledPlan | None, tuple[str, ...], Mapping[str, GivenInput]] = None, (), {}

    def choose(self, given: Mapping[str, GivenInput], held: HeldContents = ()) -> tuple[Stage, PlannedVariant | None]:
        """Return the first stage of a run of these inputs, and its planned variant, made if it is new.

        Args:
            given: Inputs by name.
            held: What memories hold that are not among them.
        """
        specs = dict(self._unknown)  # in the order of the graph's inputs
        if held:
            self._states.add_specs(specs, held)
        for name, item in given.items():
            value = self._inputs[name]
            content = item.array if isinstance(item, HostArray) and value not in self._states.inputs else None
            specs[value] = item.spec if content is None else item.spec.with_value(content)
        return self._subgraph.choose(specs, frozenset(), self._planning.inspector.exposure)

    def check_limit(
        self, stage: Stage, planned: PlannedVariant | None, given: Mapping[str, GivenInput]
    ) -> PlannedVariant | None:
        """Check that the run can stay within the limit of memory, before anything is allocated; return its plan."""
        if self._planning.limit is not None and planned is not None and stage.plans is not None:
            target = self._planning.backend.device.target
            from_host = count_host_bytes(given) if target.has_kernels else 0
            return stage.plans.admit(planned, from_host + count_copied_bytes(target, given))
        return planned

    def reserve(
        self, stage: Stage, planned: PlannedVariant | None, given: Mapping[str, GivenInput], held: HeldContents = ()
    ) -> dict[Value, ReservedOutput]:
        """Reserve the memory of a run: arena, weights, room for inputs, and the outputs, which are returned.

        Raises:
            OutOfMemoryError: The device has no room, even once what nobody needs was given back; tells what is needed.
        """
        try:
            return self._reserve(stage, planned, given, held)
        except OutOfMemoryError:
            self._syncs.note_wait(f"run {self._storage.run_counter.number}", "the device was out of memory")
            self._trim()
            if self._planning.limit is not None:
                self._give_back()
            try:
                return self._reserve(stage, planned, given, held)
            except OutOfMemoryError as error:
                needs = describe_memory_needs(planned, self._planning.weights, len(self._storage.frames))
                raise OutOfMemoryError(f"{error.message} {needs}", node=error.node, value=error.value) from error

    def _reserve(
        self, stage: Stage, planned: PlannedVariant | None, given: Mapping[str, GivenInput], held: HeldContents
    ) -> dict[Value, ReservedOutput]:
        frame, reserved = self._next_frame(), {}
        for item in given.values():
            # With one frame, an input may be what the run before made: its own outputs need other bytes then.
            if isinstance(item, DeviceArray) and item.place.is_known:
                frame.take_out(item.place.region.memory)
        for carried, _ in held:
            # Rows that are appended to lie in no frame.
            for region in carried.regions or () if carried.caches is None else ():
                frame.take_out(region.memory)
        if planned is not None and stage.plans is not None:
            with self._lock:
                stage.plans.reserve(planned, self._stream)
            reserved = self._reserve_outputs(frame, stage, planned)
        if self._has_kernels:
            if planned is not None and self._planning.limit is None:
                given = self._add_room(given, planned.compiled.widest)
            self._storage.binder.reserve(frame, given)
        return reserved

    def _add_room(self, given: Mapping[str, GivenInput], widest: CompiledPlan) -> Mapping[str, GivenInput]:
        """Return the inputs with room for any size of a plan's class: mostly those of the run before."""
        names, ends = (*given,), widest.template.ends
        known, found, roomy = self._roomy
        if known is not widest or found != names:
            roomy = with_room(given, ends)
            is_fixed = all(isinstance(item, HostArray) and name in ends for name, item in given.items())
            self._roomy = widest if is_fixed else None, names, roomy
        return roomy

    def reserve_all(self, stage: Stage, planned: PlannedVariant, *, records: bool) -> None:
        """Reserve for runs of a plan: outputs in all frames, and with ``records`` arena, weights and recording.

        Raises:
            OutOfMemoryError: The device has no room.
        """
        try:
            self._reserve_all(stage, planned, records=records)
        except OutOfMemoryError:
            if self._planning.limit is None or not records:
                raise
            self._trim()
            self._give_back()
            self._reserve_all(stage, planned, records=True)

    def _reserve_all(self, stage: Stage, planned: PlannedVariant, *, records: bool) -> None:
        assert stage.plans is not None
        for frame in self._storage.frames:
            self._reserve_outputs(frame, stage, planned)
        if records:
            with self._lock:
                stage.plans.record(planned, self._stream)

    def _give_back(self) -> None:
        """Free memory that other sizes took; the caller has waited."""
        with self._lock:
            self._storage.arena.give_back()
            for frame in self._storage.frames:
                frame.give_back()
            self._storage.binder.give_back()

    def bind(
        self,
        given: Mapping[str, GivenInput],
        held: HeldContents,
        stage: Stage,
        planned: PlannedVariant | None,
        reserved: Mapping[Value, ReservedOutput],
    ) -> PreparedRun:
        """Prepare a run: take the next frame, and bind inputs, memories and outputs."""
        run_counter, frames = self._storage.run_counter, self._storage.frames
        number = run_counter.number
        frame = frames[number % len(frames)]
        run = Run(number, self._planning.backend, self._give_up)
        inspector = self._planning.inspector
        if inspector.exposure.watches or inspector.exposure.taps:
            run._inspection = Inspection(run._fence, self._planning.backend.completion, inspector, self._graph.inputs)
        prepared = PreparedRun(run, stage, planned, frame, exposure=inspector.exposure)
        # From here on others may come to wait for it: it is ended, whatever interrupts this.
        self._under_way[id(prepared)] = prepared
        try:
            self._storage.binder.bind(prepared, [self._inputs[name] for name in given], given)
            # The run reads them now: who begins to write them later waits, who began before has made them stale.
            check_sources(given)
        except BaseException:
            prepared.reading.issue(())
            del self._under_way[id(prepared)]
            raise
        with run_counter.lock:
            # A reader that finds its output not stale comes before this write.
            prepared.write = frame.announce(prepared.reading)
            number = run_counter.advance()
        specs = dict(stage.partition.foreseen or {})
        if planned is not None and stage.partition.ready is not None:
            specs.update(zip(stage.partition.ready.outputs, planned.variant.outputs, strict=True))
        if self._states.outputs:
            self._states.bind(prepared, given, held, specs)
        bounds = stage.partition.bounds or {}
        for value in self._planning.framed:
            # While more is to come, an output may yet be moved by a plan that has more room.
            region = reserved[value].final if value in reserved and stage.rest is None else None
            place = Place(value.name, specs.get(value), region, bounds.get(value))
            # Each has its own: one may be exported, and others not.
            lease = Lease(self._planning.backend, frame, run_counter, number)
            content = Content(value.name, self._planning.backend, place, run._fence, lease, self._stream)
            run._outputs[value.name] = Tensor(content)
        return prepared

    def _reserve_outputs(self, frame: Frame, stage: Stage, planned: PlannedVariant) -> dict[Value, ReservedOutput]:
        """Return the bytes of those outputs of the model that a plan makes."""
        assert stage.partition.ready is not None
        outputs, specs = stage.partition.ready.outputs, planned.variant.outputs
        return frame.reserve_outputs(planned.compiled.widest.plan, outputs, specs, self._planning.framed)

    def _next_frame(self) -> Frame:
        return self._storage.frames[self._storage.run_counter.number % len(self._storage.frames)]


def check_strict(stage: Stage) -> None:
    """Check that nothing has to be read or computed on the host.

    Raises:
        ImplicitSyncError: It has; names the nodes.
    """
    if stage.partition.reads or stage.partition.host_calls:
        rows = [f"{read.value} for {read.reader} ({read.role})" for read in stage.partition.reads]
        calls = [f"{node}" for node in stage.partition.host_calls]
        raise ImplicitSyncError(
            "strict=True refuses what the host would have to read"
            f" ({', '.join(rows) or 'nothing'}) or compute ({', '.join(calls) or 'nothing'})."
        )
