"""What a run begins with: its plan found, memory reserved, a frame taken, inputs, memories and outputs bound.

Nothing here is put on a stream but weights that are not there yet. `gpuexec.engine` says when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpuexec.errors import ImplicitSyncError, OutOfMemoryError
from gpuexec.graphs import Value
from gpuexec.resources.alignment import find_alignment
from gpuexec.resources.frames import Frame, Lease
from gpuexec.results.content import Content
from gpuexec.results.place import Place
from gpuexec.results.tensor import Tensor
from gpuexec.running.binding import count_copied_bytes, count_host_bytes
from gpuexec.running.bound import Bound
from gpuexec.running.inputs import DeviceArray, GivenInput, HostArray, check_sources, with_room
from gpuexec.running.inspection import Inspection
from gpuexec.running.part import Part, Stage
from gpuexec.running.plan_cache import Choice, describe_needs
from gpuexec.running.road import Road
from gpuexec.running.run import Run
from gpuexec.running.storage import Storage
from gpuexec.runtime.device import Region
from gpuexec.state.binding import StateBinder


class RunBinder:
    """Binds the runs of an engine, one at a time.

    Args:
        road: Where plans are made, what runs go on, and who may put work there or change recordings.
        storage: The memory it runs in.
        states: What binds memories.
        give_up: Called by a run that its caller gives up.
        trim: Called where the device is out of memory: waits for all work, and gives back what no plan needs.
    """

    def __init__(
        self,
        road: Road,
        storage: Storage,
        states: StateBinder,
        give_up: Callable[[Run], bool],
        trim: Callable[[], None],
    ) -> None:
        self._site, self._storage, self._states = road.site, storage, states
        self._stream, self._lock, self._syncs = road.stream, road.lock, road.syncs
        self._under_way = road.under_way
        self._give_up, self._trim = give_up, trim
        self.adopt()

    def adopt(self) -> None:
        """Begin with the graph that the model of the site has now, and with what the states are bound to."""
        self._graph = self._site.model.graph
        self._part = Part(self._graph, self._site, grows=True)
        # What callers see: memories stay with the state.
        self._outputs = dict.fromkeys(value for value in self._graph.outputs if value not in self._states.outputs)

    def choose(self, given: Mapping[str, GivenInput]) -> tuple[Stage, Choice | None]:
        """Return how a run of these inputs begins, and the plan for that, which is made if it is new."""
        specs = {}
        for value in self._graph.inputs:
            item = given[value.name]
            content = item.array if isinstance(item, HostArray) and value not in self._states.inputs else None
            specs[value] = item.spec if content is None else item.spec.with_value(content)
        return self._part.choose(specs, frozenset(), self._site.inspector.exposure)

    def check_limit(self, stage: Stage, choice: Choice | None, given: Mapping[str, GivenInput]) -> None:
        """Check that the run can stay within the limit of memory, before anything is allocated."""
        if self._site.limit is not None and choice is not None and stage.plans is not None:
            target = self._site.backend.device.target
            from_host = count_host_bytes(given) if target.has_kernels else 0
            stage.plans.admit(choice, from_host + count_copied_bytes(target, given))

    def reserve(self, stage: Stage, choice: Choice | None, given: Mapping[str, GivenInput]) -> dict[Value, Region]:
        """Make what a run needs: arena, weights, room for inputs, and the outputs, which are returned.

        Raises:
            OutOfMemoryError: The device has no room, even once what nobody needs was given back; tells what is needed.
        """
        try:
            return self._reserve(stage, choice, given)
        except OutOfMemoryError:
            self._syncs.note_wait(f"run {self._storage.turns.number}", "the device was out of memory")
            self._trim()
            if self._site.limit is not None:
                self._give_back()
            try:
                return self._reserve(stage, choice, given)
            except OutOfMemoryError as error:
                needs = describe_needs(choice, self._site.weights, len(self._storage.frames))
                raise OutOfMemoryError(f"{error.message} {needs}", node=error.node, value=error.value) from error

    def _reserve(self, stage: Stage, choice: Choice | None, given: Mapping[str, GivenInput]) -> dict[Value, Region]:
        frame, regions = self._next_frame(), {}
        for item in given.values():
            # With one frame, an input may be what the run before made: its own outputs need other bytes then.
            if isinstance(item, DeviceArray) and item.place.is_known:
                frame.take_out(item.place.region.memory)
        if choice is not None and stage.plans is not None:
            with self._lock:
                stage.plans.reserve(choice, self._stream)
            regions = self._reserve_outputs(frame, stage, choice)
        if choice is not None and self._site.limit is None:
            given = with_room(given, choice.prepared.template.ends)
        self._storage.binder.reserve(frame, given)
        return regions

    def reserve_all(self, stage: Stage, choice: Choice, *, records: bool) -> None:
        """Make what runs of a plan need: outputs in all frames, and with ``records`` arena, weights and recording.

        Raises:
            OutOfMemoryError: The device has no room.
        """
        try:
            self._reserve_all(stage, choice, records=records)
        except OutOfMemoryError:
            if self._site.limit is None or not records:
                raise
            self._trim()
            self._give_back()
            self._reserve_all(stage, choice, records=True)

    def _reserve_all(self, stage: Stage, choice: Choice, *, records: bool) -> None:
        assert stage.plans is not None
        for frame in self._storage.frames:
            self._reserve_outputs(frame, stage, choice)
        if records:
            with self._lock:
                stage.plans.record(choice, self._stream)

    def _give_back(self) -> None:
        """Give back what other sizes took; the caller has waited."""
        with self._lock:
            self._storage.arena.give_back()
            for frame in self._storage.frames:
                frame.give_back()
            self._storage.binder.give_back()

    def bind(
        self,
        given: Mapping[str, GivenInput],
        stage: Stage,
        choice: Choice | None,
        regions: Mapping[Value, Region],
    ) -> Bound:
        """Begin a turn: take the next frame, and bind inputs, memories and outputs."""
        turns, frame = self._storage.turns, self._next_frame()
        run = Run(turns.number, self._site.backend, self._give_up)
        inspector = self._site.inspector
        if inspector.exposure.has_statistics:
            run._inspection = Inspection(run._fence, self._site.backend.completion, inspector, self._graph.inputs)
        bound = Bound(run, stage, choice, frame, exposure=inspector.exposure)
        # From here on others may come to wait for it: it is ended, whatever interrupts this.
        self._under_way[id(bound)] = bound
        try:
            self._storage.binder.bind(bound, self._states.list_given(given), given)
            # The run reads them now: who begins to write them later waits, who began before has made them stale.
            check_sources(given)
        except BaseException:
            bound.reading.issue(())
            del self._under_way[id(bound)]
            raise
        with turns.lock:
            # Who finds the turn not over is a reader before this write.
            bound.write = frame.announce(bound.reading)
            turns.advance()
            lease = Lease(self._site.backend, frame, turns)
        specs = dict(stage.cut.foreseen or {})
        if choice is not None and stage.cut.ready is not None:
            specs.update(zip(stage.cut.ready.outputs, choice.variant.outputs, strict=True))
        self._states.bind(bound, given, specs)
        for value in self._outputs:
            spec, region = specs.get(value), regions.get(value)
            if spec is not None and region is not None:
                region = Region(region.memory, region.offset, spec.nbytes)
            # While more is to come, an output may yet be moved by a plan that has more room.
            place = Place(value.name, spec, region if stage.rest is None else None, (stage.cut.bounds or {}).get(value))
            content = Content(value.name, self._site.backend, place, run._fence, lease, self._stream)
            run._outputs[value.name] = Tensor(content)
        return bound

    def _reserve_outputs(self, frame: Frame, stage: Stage, choice: Choice) -> dict[Value, Region]:
        """Return the bytes of those outputs of the model that a plan makes."""
        regions = {}
        assert stage.cut.ready is not None
        plan = choice.prepared.plan
        for value, port in zip(stage.cut.ready.outputs, plan.outputs, strict=True):
            assert port.buffer is not None
            if value in self._outputs:
                nbytes = plan.buffers[port.buffer].nbytes
                frame.writable(value.name, nbytes, find_alignment(self._site.backend.device.target, port.spec.dtype))
                regions[value] = frame.output(value.name, nbytes)
        return regions

    def _next_frame(self) -> Frame:
        return self._storage.frames[self._storage.turns.number % len(self._storage.frames)]


def check_strict(stage: Stage) -> None:
    """Check that nothing has to be read or computed on the host.

    Raises:
        ImplicitSyncError: It has; names the nodes.
    """
    if stage.cut.reads or stage.cut.host_calls:
        rows = [f"{read.value} for {read.reader} ({read.role})" for read in stage.cut.reads]
        calls = [f"{node}" for node in stage.cut.host_calls]
        raise ImplicitSyncError(
            "strict=True refuses what the host would have to read"
            f" ({', '.join(rows) or 'nothing'}) or compute ({', '.join(calls) or 'nothing'})."
        )
