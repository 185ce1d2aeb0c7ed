"""Executor of a run: one plan after the other, with host reads and host nodes between them.

It is a generator: it yields after each layer it put on the stream, and wherever it has to wait. So the caller, the
driver thread and an iterator of the caller's all advance a run the same way, and nobody waits who did not ask to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from gpuexec.devices.device import Event, Recording, Region
from gpuexec.errors import OutOfMemoryError
from gpuexec.execution.resources.alignment import Move, find_alignment, is_aligned
from gpuexec.execution.resources.pool import Lent
from gpuexec.execution.runs.comparing import Comparison
from gpuexec.execution.runs.execution_context import ExecutionContext
from gpuexec.execution.runs.host_part import compute_nodes, count_layers
from gpuexec.execution.runs.host_transfers import HostTransfers
from gpuexec.execution.runs.inspection import Inspection
from gpuexec.execution.runs.loops import LoopExecutor
from gpuexec.execution.runs.pacing import Pacer
from gpuexec.execution.runs.plan_cache import PlannedVariant, describe_needs
from gpuexec.execution.runs.prepared_run import PreparedRun
from gpuexec.execution.runs.profiled import issue_by_layer, upload_inputs
from gpuexec.execution.runs.reading import read_values
from gpuexec.execution.runs.run import CANCELLATION_POINT, MustWait, RunProgress
from gpuexec.execution.runs.stopwatch import LayerTimes
from gpuexec.execution.runs.subgraph import Stage, Subgraph
from gpuexec.execution.runs.submission import Submission
from gpuexec.execution.runs.value_location import RunValues, ValueLocation
from gpuexec.ir.plan import Role
from gpuexec.ir.spec import TensorSpec
from gpuexec.planner.partition import HostRead, Partition


class RunExecutor:
    """Executes one run. ``pacer``: yield at its step ends instead of after each plan."""

    def __init__(self, context: ExecutionContext, prepared: PreparedRun, pacer: Pacer | None) -> None:
        self._context, self._prepared, self._pacer = context, prepared, pacer
        self._planning, self._stream = context.planning, context.stream
        self._profile = prepared.profile
        self._device = context.planning.backend.device
        self._transfers = HostTransfers(
            context.planning.backend, context.stream, context.pool, context.planning.weights
        )
        model = context.planning.model
        self._outputs = set(model.graph.outputs)
        # Outputs that become memories lie in no frame: they outlive its next run.
        carried = {memory.output for memory in model.memories}
        self._framed = {value for value in model.graph.outputs if value.name not in carried}

    def execute(self) -> Iterator[RunProgress]:
        """Execute the run; yields its progress.

        Raises:
            GpuexecError: What any of it raised; names the node.
        """
        prepared = self._prepared
        with self._context.lock:
            if prepared.caller is not None:
                prepared.caller.order_before(self._stream)
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
                prepared.carry()
            if self._pacer is not None:
                prepared.note_begun(self._device, self._stream)
        yield from self._execute(prepared.stage, prepared.planned, prepared.values, is_main=True)
        with self._context.lock:
            self._copy_outputs()
        yield from self._end_step(0)

    def _execute_body(self, subgraph: Subgraph, values: RunValues) -> Iterator[RunProgress]:
        """Execute a loop body; its outputs are in ``values`` then."""
        yield from self._execute(*self._choose(subgraph, values), values, is_main=False)

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
                yield from compute_nodes(self._context, self._prepared, self._pacer, stage, values)
            if partition.repeat is not None:
                # Trips without end may follow one another without a pause.
                yield MustWait(lambda: False, lambda: None, is_work=True)
                locate, read_to_host = self._transfers.locate, partial(self._read_to_host, partition)
                executor = LoopExecutor(
                    self._planning, self._stream, self._context.pool, self._execute_body, locate, read_to_host
                )
                yield from executor.repeat(partition.repeat, values)
            if stage.rest is None:
                return
            if is_main:
                self._forget(stage.rest, values)
            yield CANCELLATION_POINT
            stage, planned = self._choose(stage.rest, values)

    def _choose(self, subgraph: Subgraph, values: RunValues) -> tuple[Stage, PlannedVariant | None]:
        specs = {value: values[value].describe() for value in subgraph.graph.inputs}
        computed = {value for value in subgraph.graph.inputs if values[value].is_computed}
        with self._context.lock:
            return subgraph.choose(specs, computed, self._prepared.exposure)

    def _forget(self, subgraph: Subgraph, values: RunValues) -> None:
        """Drop values that the rest of the run does not read."""
        needed = {*subgraph.graph.inputs, *self._outputs}
        for value in [value for value in values if value not in needed]:
            del values[value]

    # ---- memory of the caller's that starts where kernels can't read or write

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
        for value in self._framed:
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

    # ---- a plan

    def _issue(
        self, stage: Stage, planned: PlannedVariant, values: RunValues, *, is_main: bool
    ) -> Iterator[RunProgress]:
        """Put a planned variant on the stream; ``values`` has its outputs then."""
        origins = planned.compiled.plan.segment.origins
        with self._context.lock:
            try:
                recording, bindings, made = self._place(stage, planned, values, is_main=is_main)
            except OutOfMemoryError:
                recording, bindings, made = self._place_again(stage, planned, values, is_main=is_main)
            submission = Submission(
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
                self._pacer, submission.layers, advance, planned.compiled.times, count_layers(stage.partition)
            )
        submission.finish()
        inspection = self._prepared.run._inspection
        if inspection is not None and stage.exposed is not None:
            yield from self._inspect(inspection, stage, planned, made)
        values.update(made)
        if self._pacer is not None and self._pacer.is_full:
            yield from self._end_step(count_layers(stage.partition))

    def _place(
        self, stage: Stage, planned: PlannedVariant, values: RunValues, *, is_main: bool
    ) -> tuple[Recording, dict[int, Region], RunValues]:
        """Return the recording of a plan, where its inputs and outputs are, and what will be made there."""
        graph, plan = stage.partition.ready, planned.compiled.plan
        assert graph is not None and stage.plans is not None
        recording = stage.plans.record(planned, self._stream)
        bindings: dict[int, Region] = {}
        for value, port in zip(graph.inputs, plan.inputs, strict=True):
            if port.buffer is not None:
                bindings[port.buffer] = self._transfers.locate(values[value])
        made: RunValues = {}
        for value, port, spec in zip(graph.outputs, plan.outputs, planned.variant.outputs, strict=True):
            assert port.buffer is not None
            if plan.buffers[port.buffer].role is Role.STATE:
                # A memory that grows where it lies.
                made[value] = ValueLocation(spec, bindings[port.buffer])
                continue
            nbytes = plan.buffers[port.buffer].nbytes
            if is_main and value in self._framed:
                owner, region = (
                    None,
                    self._prepared.frame.writable(value.name, nbytes, find_alignment(self._device.target, spec.dtype)),
                )
            else:
                owner = self._context.pool.lend(nbytes)
                region = owner.region
            bindings[port.buffer] = region
            location = made[value] = ValueLocation(spec, Region(region.memory, region.offset, spec.nbytes), owner=owner)
            if value in graph.inputs:  # passed on as it is: the host goes on knowing what it knew
                location.array, location.is_computed = values[value].array, values[value].is_computed
        return recording, bindings, made

    def _place_again(
        self, stage: Stage, planned: PlannedVariant, values: RunValues, *, is_main: bool
    ) -> tuple[Recording, dict[int, Region], RunValues]:
        """Place a plan once more, after a trim.

        Raises:
            OutOfMemoryError: The device has no room all the same; tells what the plan needs.
        """
        self._trim()
        try:
            return self._place(stage, planned, values, is_main=is_main)
        except OutOfMemoryError as error:
            raise OutOfMemoryError(f"{error} {describe_needs(planned, self._planning.weights)}") from error

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

    # ---- the host's part

    def _read_to_host(
        self, partition: Partition, values: Sequence[tuple[HostRead, ValueLocation]]
    ) -> Iterator[RunProgress]:
        """Read values back, where the host does not have them yet."""
        context, wait = self._context, partial(self._wait, partition)
        is_allowed = self._prepared.run._allows_syncs
        return read_values(values, self._transfers, context.syncs, context.lock, wait, is_allowed=is_allowed)

    def _wait(self, partition: Partition, event: Event) -> Iterator[RunProgress]:
        """Wait for the device; a step ends before it, if it has to."""
        if not event.is_done():
            yield from self._end_step(count_layers(partition))
        yield MustWait(event.is_done, event.synchronize)
        # A poll does not raise what went wrong.
        event.synchronize()
