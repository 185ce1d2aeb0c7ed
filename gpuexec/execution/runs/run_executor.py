"""Executor of a run: one plan after the other, with host reads and host nodes between them.

It is a generator: it yields after each layer it put on the stream, and wherever it has to wait. So the caller, the
driver thread and an iterator of the caller's all advance a run the same way, and nobody waits who did not ask to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from gpuexec.devices.device import Device, Event, Recording, Region, Stream
from gpuexec.errors import GpuexecError, OutOfMemoryError, locate
from gpuexec.execution.resources.aligned_copy import Move, find_alignment, is_aligned
from gpuexec.execution.resources.exchange_pool import Lent
from gpuexec.execution.runs.comparing import Comparison
from gpuexec.execution.runs.execution_context import ExecutionContext
from gpuexec.execution.runs.in_place import BoundPorts
from gpuexec.execution.runs.inspection import Inspection
from gpuexec.execution.runs.layer_timing import list_layers
from gpuexec.execution.runs.loops import LoopExecutor, Making, ReadToHost
from gpuexec.execution.runs.pacing import Pacer
from gpuexec.execution.runs.plan_cache import PlannedVariant, describe_memory_needs
from gpuexec.execution.runs.prepared_run import PreparedRun
from gpuexec.execution.runs.profiled import issue_by_layer, note_host_layer, upload_inputs
from gpuexec.execution.runs.run import CANCELLATION_POINT, MustWait, RunProgress
from gpuexec.execution.runs.stopwatch import LayerTimes
from gpuexec.execution.runs.subgraph import Stage, Subgraph
from gpuexec.execution.runs.value_location import RunValues, ValueLocation
from gpuexec.ir.plan import Role
from gpuexec.ir.spec import TensorSpec
from gpuexec.planner.evaluate import evaluate_node
from gpuexec.planner.partition import HostRead, Partition
from gpuexec.system.mapped import hold
from gpuexec.system.threads import computing


class RunExecutor:
    """Executes one run. ``pacer``: yield at its step ends instead of after each plan."""

    def __init__(self, context: ExecutionContext, prepared: PreparedRun, pacer: Pacer | None) -> None:
        self._context, self._prepared, self._pacer = context, prepared, pacer
        self._planning, self._stream, self._transfers = context.planning, context.stream, context.transfers
        self._profile = prepared.profile
        self._device = context.planning.backend.device
        # Whether a plan wrote an output beside the user's bytes.
        self._has_aside = False
        # Whether a plan stood for one whose kernels are not compiled yet.
        self._is_unfused = False
        # Whether a plan goes onto the stream in one call, for nobody looks at its commands or layers.
        self._is_whole = pacer is None and prepared.profile is None and not context.is_synchronous

    def execute(self) -> Iterator[RunProgress]:
        """Execute the run; yields its progress.

        Raises:
            GpuexecError: What any of it raised; names the node.
        """
        prepared = self._prepared
        with self._context.lock:
            if prepared.caller is not None:
                prepared.caller.order_before(self._stream)
            self._stream.begin_run()
            prepared.frame.readers.hold_back(self._stream, prepared.write)
            for fence in prepared.sources:
                if fence.failure is not None:
                    raise fence.failure
                for each in fence.events:
                    self._stream.wait(each)
            # The address of an input is certain once the run that makes it is on its stream.
            for name, location, place in prepared.borrowed:
                prepared.locate(location, place)
                self._align_input(name, location)
            if self._profile is not None:
                self._profile.begin()
            if prepared.upload is not None:
                if self._profile is None:
                    prepared.upload()
                else:
                    upload_inputs(self._profile, self._stream, prepared.list_uploaded(), prepared.upload)
                prepared.upload = None
            for location, request in prepared.objects:
                location.array = request.view()
            if prepared.carry is not None:
                prepared.carry(self._is_whole and prepared.stage.exposed is None)
            if self._pacer is not None:
                prepared.note_begun(self._device, self._stream)
        yield from self._execute(prepared.stage, prepared.planned, prepared.values, is_main=True)
        if self._has_aside:
            with self._context.lock:
                self._copy_outputs()
        if self._pacer is not None:
            yield from self._end_step(0)

    def _execute_body(self, subgraph: Subgraph, values: RunValues) -> Making[tuple[Stage, PlannedVariant | None]]:
        """Execute a loop body; its outputs are in ``values`` then. Returns its first stage, and that planned."""
        stage, planned = self._choose(subgraph, values)
        yield from self._execute(stage, planned, values, is_main=False)
        return stage, planned

    def _execute(
        self, stage: Stage, planned: PlannedVariant | None, values: RunValues, *, is_main: bool
    ) -> Iterator[RunProgress]:
        while True:
            partition = stage.partition
            for value, array in (partition.constants or {}).items():
                if value not in values:
                    values[value] = ValueLocation(TensorSpec(array.shape, array.dtype), array=array, is_weight=True)
            if planned is not None:
                yield from self._issue(stage, planned, values, is_main=is_main)
            if partition.reads:
                yield from self._read_to_host(partition, [(read, values[read.value]) for read in partition.reads])
            if partition.host_nodes:
                yield from self._compute_nodes(stage, values)
            if partition.repeat is not None:
                # Trips without end may follow one another without a pause.
                yield MustWait(lambda: False, lambda: None, is_work=True)
                loop = self._open_loop(partial(self._read_to_host, partition))
                yield from loop.repeat(partition.repeat, values)
            if stage.rest is None:
                return
            if is_main:
                self._forget(stage.rest, values)
            yield CANCELLATION_POINT
            stage, planned = self._choose(stage.rest, values)

    def _open_loop(self, read_to_host: ReadToHost) -> LoopExecutor:
        bodies = self._context.bodies if self._is_whole and not self._prepared.exposure else None
        return LoopExecutor(self._context, self._execute_body, read_to_host, bodies)

    def _choose(self, subgraph: Subgraph, values: RunValues) -> tuple[Stage, PlannedVariant | None]:
        specs = {value: values[value].describe() for value in subgraph.graph.inputs}
        computed = {value for value in subgraph.graph.inputs if values[value].is_computed}
        with self._context.lock:
            return subgraph.choose(specs, computed, self._prepared.exposure)

    def _forget(self, subgraph: Subgraph, values: RunValues) -> None:
        """Drop values that the rest of the run does not read."""
        needed = {*subgraph.graph.inputs, *self._planning.model.graph.outputs}
        for value in [value for value in values if value not in needed]:
            del values[value]

    def _align_input(self, name: str, location: ValueLocation) -> None:
        """Copy an input on the stream to where it can be read, if it can't be where it lies."""
        region, alignment = location.region, find_alignment(self._device.target, location.spec.dtype)
        assert region is not None
        if is_aligned(region, alignment):
            return
        if self._prepared.room is not None:
            location.region = self._prepared.room(name, region.nbytes)
            self._prepared.keep.append(location.region.memory)
        else:
            lent = location.owner = self._lend(region.nbytes)
            location.region = lent.region
        Move.of_input(name, region, location.region, alignment).issue(self._stream, self._context.syncs)

    def _copy_outputs(self) -> None:
        """Copy outputs on the stream from where the plans wrote them to the caller's bytes, where those are others."""
        frame, values = self._prepared.frame, self._prepared.values
        for value in self._planning.framed:
            location = values[value]
            if location.region is None or not frame.is_aside(value.name, location.region):
                continue
            region = frame.output(value.name, location.spec.nbytes)
            alignment = find_alignment(self._device.target, location.spec.dtype)
            move = Move.of_output(value.name, location.region, region, alignment, location.spec.nbytes)
            move.issue(self._stream, self._context.syncs)
            values[value] = ValueLocation(location.spec, region, location.array, is_computed=location.is_computed)

    def _lend(self, nbytes: int) -> Lent:
        """Return a block of the pool; trims first where the device is out of memory."""
        try:
            return self._context.pool.lend(nbytes)
        except OutOfMemoryError:
            self._trim()
            return self._context.pool.lend(nbytes)

    def _issue(
        self, stage: Stage, planned: PlannedVariant, values: RunValues, *, is_main: bool
    ) -> Iterator[RunProgress]:
        """Put a planned variant on the stream; ``values`` has its outputs then."""
        if self._is_whole and stage.exposed is None:
            with self._context.lock:
                recording, bindings, made = self._place_or_trim(stage, planned, values, is_main=is_main)
                recording.submit(self._stream, bindings)
            values.update(made)
            return
        origins = planned.compiled.plan.segment.origins
        with self._context.lock:
            recording, bindings, made = self._place_or_trim(stage, planned, values, is_main=is_main)
            submission = _Submission(
                self._device,
                self._stream,
                recording,
                bindings,
                origins,
                is_synchronous=self._context.is_synchronous,
                comparison=self._open_comparison(stage, planned, {**values, **made}),
                takes_launches=self._profile is not None,
            )
            advance: Callable[[int], None] = submission.advance
            if self._profile is not None and stage.partition.ready is not None:
                advance = issue_by_layer(self._profile, planned, stage.partition.ready, values, advance)
            if self._pacer is None:
                advance(len(origins))
        if self._pacer is not None:
            yield from self._issue_layers(
                self._pacer, list_layers(origins), advance, planned.compiled.times, count_layers(stage.partition)
            )
        submission.finish()
        inspection = self._prepared.run._inspection
        if inspection is not None and stage.exposed is not None:
            yield from self._inspect(inspection, stage, planned, made)
        values.update(made)
        if self._pacer is not None and self._pacer.is_full:
            yield from self._end_step(count_layers(stage.partition))

    def _place_or_trim(
        self, stage: Stage, planned: PlannedVariant, values: RunValues, *, is_main: bool
    ) -> tuple[Recording, dict[int, Region], RunValues]:
        """Place a plan as `_place` does, once more after a trim where the device has no room.

        Raises:
            OutOfMemoryError: It has none all the same; tells what the plan needs.
        """
        try:
            return self._place(stage, planned, values, is_main=is_main)
        except OutOfMemoryError:
            self._trim()
        try:
            return self._place(stage, planned, values, is_main=is_main)
        except OutOfMemoryError as error:
            raise OutOfMemoryError(f"{error} {describe_memory_needs(planned, self._planning.weights)}") from error

    def _place(
        self, stage: Stage, planned: PlannedVariant, values: RunValues, *, is_main: bool
    ) -> tuple[Recording, dict[int, Region], RunValues]:
        """Return the recording of a plan, where its inputs and outputs are, and what will be made there."""
        graph, plan = stage.partition.ready, planned.compiled.plan
        assert graph is not None and stage.plans is not None
        recording = stage.plans.record(planned, self._stream)
        if planned.stands_for is not None and not self._is_unfused:
            self._is_unfused = True
            self._planning.counters.unfused += 1
        in_place = self._prepared.in_place if is_main else None
        ports = BoundPorts.of(graph, plan, {}) if in_place is None else in_place.find_ports(graph, plan)
        bindings = dict(ports.bindings)
        for value, buffer in ports.inputs:
            location = values[value]
            region = location.region
            bindings[buffer] = self._transfers.locate(location) if region is None else region
        reserved = {}
        if is_main:
            reserved = self._prepared.frame.reserve_outputs(
                plan, graph.outputs, planned.variant.outputs, self._planning.framed
            )
        made: RunValues = {}
        for place, value, port in ports.outputs:
            assert port.buffer is not None
            spec = planned.variant.outputs[place]
            if value in reserved:
                bindings[port.buffer] = reserved[value].bound
                location = ValueLocation(spec, reserved[value].written)
                self._has_aside |= reserved[value].is_aside
            elif plan.buffers[port.buffer].role is Role.STATE:
                # A memory that grows where it lies.
                made[value] = ValueLocation(spec, bindings[port.buffer])
                continue
            else:
                owner = self._context.pool.lend(plan.buffers[port.buffer].nbytes)
                bindings[port.buffer] = owner.region
                location = ValueLocation(spec, Region(owner.region.memory, owner.region.offset, spec.nbytes))
                location.owner = owner
            if value in graph.inputs:  # passed on as it is: the host goes on knowing what it knew
                location.array, location.is_computed = values[value].array, values[value].is_computed
            made[value] = location
        return recording, bindings, made

    def _trim(self) -> None:
        """Wait for the stream, and free unused memory."""
        self._context.syncs.note_wait(f"run {self._prepared.run.number}", "the device was out of memory")
        self._stream.synchronize()
        self._context.pool.trim()
        if self._planning.limit is None:
            self._planning.arena.release_retired()
        else:
            self._planning.arena.give_back()

    def _issue_layers(
        self,
        pacer: Pacer,
        layers: Sequence[tuple[str, int]],
        advance: Callable[[int], None],
        times: LayerTimes,
        later: int,
    ) -> Iterator[RunProgress]:
        """Put the layers of a plan on the stream; ``later`` nodes follow it."""
        for number, (origin, last) in enumerate(layers):
            left = len(layers) - number + later
            if not pacer.fits(times, number):
                yield pacer.take(left)
            with self._context.lock:
                start = pacer.begin()
                advance(last)
                pacer.end(start, times, number)
            pacer.add(origin, times, number)
            if pacer.is_full and number + 1 < len(layers):
                yield pacer.take(left - 1)

    def _end_step(self, left: int) -> Iterator[RunProgress]:
        """End the present step, if there is one and something is in it."""
        if self._pacer is not None and self._pacer.has_layers:
            yield self._pacer.take(left)

    def _open_comparison(self, stage: Stage, planned: PlannedVariant, location: RunValues) -> Comparison | None:
        comparer, compiled = self._context.comparer, planned.compiled
        if comparer is None or stage.exposed is None:
            return None
        return Comparison(comparer, stage.exposed, compiled.plan, compiled.plan.segment.commands, location)

    def _inspect(
        self, inspection: Inspection, stage: Stage, planned: PlannedVariant, made: RunValues
    ) -> Iterator[RunProgress]:
        """Read statistics back; a value that a watch refuses ends the run before anything depends on it.

        Raises:
            NonFiniteError: It was there, and the Worker is to raise.
        """
        assert stage.exposed is not None
        with self._context.lock:
            piece = inspection._take(stage.exposed, self._transfers, made, planned)
        if piece is not None and inspection._raises:
            yield from self._wait(stage.partition, piece.fetch.after)
            inspection._check(piece.find())

    def _compute_nodes(self, stage: Stage, values: RunValues) -> Iterator[RunProgress]:
        """Compute the host nodes of a partition: nodes without a kernel here, which are layers, and light ones."""
        partition, profile, pacer = stage.partition, self._profile, self._pacer
        if partition.host_calls:
            yield MustWait(lambda: False, lambda: None, is_work=True)
        left = count_layers(partition)
        for node in partition.host_nodes:
            is_layer = node in partition.host_calls
            if is_layer:
                yield CANCELLATION_POINT
            if is_layer and pacer is not None and not pacer.fits(stage.times, node):
                yield pacer.take(left)
            specs = [None if value is None else _describe(values[value]) for value in node.inputs]
            start = time.perf_counter()
            with computing(self._planning.backend.threads):
                made = evaluate_node(node, specs)
            for value, spec in zip(node.outputs, made, strict=False):
                if value is None or spec is None or spec.value is None:
                    continue
                # An output that a light node made on the device too stays there.
                location = values.setdefault(value, ValueLocation(TensorSpec(spec.shape, spec.dtype)))
                location.array, location.is_computed = spec.value.array, True
            inspection = self._prepared.run._inspection
            if inspection is not None:
                rows = self._prepared.exposure.rows_of(node, node.outputs)
                inspection._take_host_node(node, rows, {value: location.array for value, location in values.items()})
            if not is_layer:
                continue
            computed_ms = (time.perf_counter() - start) * 1e3
            self._context.syncs.note_call(node, partition.host_calls[node], computed_ms)
            if profile is not None:
                note_host_layer(profile, node, values, computed_ms)
            if pacer is not None:
                pacer.add(node.name, stage.times, node)
                stage.times.note(node, computed_ms)
                left -= 1
                if pacer.is_full:
                    yield pacer.take(left)

    def _read_to_host(
        self, partition: Partition, values: Sequence[tuple[HostRead, ValueLocation]]
    ) -> Iterator[RunProgress]:
        """Read values back, where the host does not have them yet: only those bytes, in one copy, counted and named.

        Raises:
            ImplicitSyncError: The run may not wait without having been asked to.
        """
        rows = [(read, location) for read, location in values if location.array is None]
        if not rows:
            return
        syncs = self._context.syncs
        for read, _ in rows:
            is_allowed = self._prepared.run._allows_syncs
            syncs.check(read.value.name, f"{read.reader} ({read.role})", is_allowed=is_allowed)
        start = time.perf_counter()
        with self._context.lock:
            fetch = self._transfers.fetch([location for _, location in rows])
        try:
            yield from self._wait(partition, fetch.before)
            reached = time.perf_counter()
            yield from self._wait(partition, fetch.after)
            waited_ms, copied_ms = (reached - start) * 1e3, (time.perf_counter() - reached) * 1e3
            fetch.finish()
        finally:
            fetch.close()
        for read, location in rows:
            share = location.spec.nbytes / fetch.nbytes if fetch.nbytes else 0.0
            syncs.note_read(read, location.spec.nbytes, waited_ms, copied_ms * share)
            waited_ms = 0.0  # they were waited for together

    def _wait(self, partition: Partition, event: Event) -> Iterator[RunProgress]:
        """Wait for the device; a step ends before it, if it has to."""
        if not event.is_done():
            yield from self._end_step(count_layers(partition))
        yield MustWait(event.is_done, event.synchronize)
        # A poll does not raise what went wrong.
        event.synchronize()


class _Submission:
    """Commands of a plan on their way to a stream: by layer, or one at a time.

    Args:
        origins: The node that each command stems from.
        is_synchronous: Finish each command before the next, so that the one that fails is known.
        comparison: Compares the nodes whose commands are done.
        takes_launches: Never put the commands on the stream as one graph.
    """

    def __init__(
        self,
        device: Device,
        stream: Stream,
        recording: Recording,
        bindings: Mapping[int, Region],
        origins: Sequence[str],
        *,
        is_synchronous: bool = False,
        comparison: Comparison | None = None,
        takes_launches: bool = False,
    ) -> None:
        self._device, self._stream = device, stream
        self._recording, self._bindings, self._origins = recording, bindings, origins
        self._is_synchronous, self._comparison = is_synchronous, comparison
        self._takes_launches = takes_launches
        self._done = 0

    def advance(self, last: int) -> None:
        """Issue the commands up to ``last``, which is left out.

        Raises:
            GpuexecError: A command failed that was waited for; names the node.
            MismatchError: A node gave something else than what it is compared with.
        """
        first, self._done = self._done, last
        if not self._is_synchronous:
            end = None if last == len(self._origins) and not self._takes_launches else last
            self._recording.submit(self._stream, self._bindings, first, end)
            return
        for index in range(first, last):
            self._finish(index)
            if self._comparison is not None:
                self._comparison.advance(index + 1)

    def finish(self) -> None:
        """Finish: compare values that no command makes, too.

        Raises:
            MismatchError: As `advance`.
        """
        if self._comparison is not None:
            self._comparison.advance(len(self._origins))

    def _finish(self, index: int) -> None:
        """Issue one command and wait for its end."""
        self._recording.submit(self._stream, self._bindings, index, index + 1)
        try:
            # Whichever call comes after a fault reports it.
            event = self._device.create_event()
            self._stream.record(event)
            event.synchronize()
        except GpuexecError as error:
            origin = self._origins[index]
            raise (error if origin in error.message else locate(error, origin, origin)) from None


def count_layers(partition: Partition) -> int:
    """Return how many layers may follow the plan of a partition."""
    return len(partition.host_calls) + (0 if partition.rest is None else len(partition.rest.nodes))


def _describe(location: ValueLocation) -> TensorSpec:
    """Return the spec of an input, with its content; a weight that lies in a file is read once."""
    spec = location.describe()
    return spec.with_value(hold(location.array)) if location.is_weight and location.array is not None else spec
