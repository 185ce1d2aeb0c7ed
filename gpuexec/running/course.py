"""The course of a run: from one plan to the next, with what the host has to read and compute in between.

A generator does it. It yields after each layer it put on the stream, and wherever it has to wait; so the caller, the
driver thread and an iterator of the caller's all advance a run the same way, and nobody waits who did not ask to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from gpuexec.errors import OutOfMemoryError
from gpuexec.plan import Role
from gpuexec.planner.cut import Cut, HostRead
from gpuexec.resources.alignment import Move, find_alignment, is_aligned
from gpuexec.resources.pool import Lent
from gpuexec.running.bound import Bound
from gpuexec.running.comparing import Comparison
from gpuexec.running.crossing import Crossing
from gpuexec.running.held import Env, Held
from gpuexec.running.host_part import compute_nodes, count_layers
from gpuexec.running.inspection import Inspection
from gpuexec.running.loops import Looper
from gpuexec.running.pacing import Pacer
from gpuexec.running.part import Part, Stage
from gpuexec.running.plan_cache import Choice, describe_needs
from gpuexec.running.profiled import issue_by_layer, upload_inputs
from gpuexec.running.reading import read_values
from gpuexec.running.road import Road
from gpuexec.running.run import BETWEEN, Pause, Turn
from gpuexec.running.stopwatch import LayerTimes
from gpuexec.running.submission import Submission
from gpuexec.runtime.device import Event, Recording, Region
from gpuexec.spec import TensorSpec


class Course:
    """Takes one run along. ``pacer``: yield as it says instead of after each plan."""

    def __init__(self, road: Road, bound: Bound, pacer: Pacer | None) -> None:
        self._road, self._bound, self._pacer = road, bound, pacer
        self._site, self._stream = road.site, road.stream
        self._profile = bound.profile
        self._device = road.site.backend.device
        self._crossing = Crossing(road.site.backend, road.stream, road.pool, road.site.weights)
        model = road.site.model
        self._outputs = set(model.graph.outputs)
        # What memories become lies in no frame: it outlives the frame's next run.
        carried = {memory.output for memory in model.memories}
        self._framed = {value for value in model.graph.outputs if value.name not in carried}

    def follow(self) -> Iterator[Turn]:
        """Do all that is left of the run.

        Raises:
            GpuexecError: What any of it raised; names the node.
        """
        bound = self._bound
        with self._road.lock:
            if bound.caller is not None:
                bound.caller.lead(self._stream)
            bound.frame.readers.hold_back(self._stream, bound.write)
            for fence in bound.sources:
                if fence.failure is not None:
                    raise fence.failure
                for each in fence.events:
                    self._stream.wait(each)
            # Where an input lies is certain once the run that makes it is on its stream.
            for name, held, place in bound.borrowed:
                bound.locate(held, place)
                self._align_input(name, held)
            if self._profile is not None:
                self._profile.begin()
            if bound.upload is not None:
                if self._profile is None:
                    bound.upload()
                else:
                    upload_inputs(self._profile, self._stream, bound.list_uploaded(), bound.upload)
                bound.upload = None
            for held, request in bound.objects:
                held.array = request.view()
            if bound.carry is not None:
                bound.carry()
            if self._pacer is not None:
                bound.note_begun(self._device, self._stream)
        yield from self._follow(bound.stage, bound.choice, bound.env, is_main=True)
        with self._road.lock:
            self._copy_outputs()
        yield from self._end_step(0)

    def _follow_part(self, part: Part, env: Env) -> Iterator[Turn]:
        """Run a body; its outputs are in ``env`` then."""
        yield from self._follow(*self._choose(part, env), env, is_main=False)

    def _follow(self, stage: Stage, choice: Choice | None, env: Env, *, is_main: bool) -> Iterator[Turn]:
        while True:
            cut = stage.cut
            for value, array in (cut.constants or {}).items():
                if value not in env:
                    env[value] = Held(TensorSpec(array.shape, array.dtype), array=array, is_weight=True)
            if choice is not None:
                yield from self._issue(stage, choice, env, is_main=is_main)
            if cut.reads:
                yield from self._bring(cut, [(read, env[read.value]) for read in cut.reads])
            if cut.host_nodes:
                yield from compute_nodes(self._road, self._bound, self._pacer, stage, env)
            if cut.repeat is not None:
                # Trips without end may follow one another without a pause.
                yield Pause(lambda: False, lambda: None, is_work=True)
                locate, bring = self._crossing.locate, partial(self._bring, cut)
                looper = Looper(self._site, self._stream, self._road.pool, self._follow_part, locate, bring)
                yield from looper.repeat(cut.repeat, env)
            if stage.rest is None:
                return
            if is_main:
                self._forget(stage.rest, env)
            yield BETWEEN
            stage, choice = self._choose(stage.rest, env)

    def _choose(self, part: Part, env: Env) -> tuple[Stage, Choice | None]:
        specs = {value: env[value].describe() for value in part.graph.inputs}
        computed = {value for value in part.graph.inputs if env[value].is_computed}
        with self._road.lock:
            return part.choose(specs, computed, self._bound.exposure)

    def _forget(self, part: Part, env: Env) -> None:
        """Let go of what the rest of the run takes no more."""
        needed = {*part.graph.inputs, *self._outputs}
        for value in [value for value in env if value not in needed]:
            del env[value]

    # ---- memory of the caller's that starts where kernels can't read or write

    def _align_input(self, name: str, held: Held) -> None:
        """Copy an input on the stream to where it can be read, if it can't be where it lies."""
        region, alignment = held.region, find_alignment(self._device.target, held.spec.dtype)
        assert region is not None
        if is_aligned(region, alignment):
            return
        if self._bound.room is not None:
            held.region = self._bound.room(name, region.nbytes)
            self._bound.keep.append(held.region.memory)
        else:
            lent = held.owner = self._lend(region.nbytes)
            held.region = lent.region
        Move.of_input(name, region, held.region, alignment).issue(self._stream, self._road.syncs)

    def _copy_outputs(self) -> None:
        """Copy outputs on the stream from where the plans wrote them to the caller's bytes, where those are others."""
        frame, env = self._bound.frame, self._bound.env
        for value in self._framed:
            held = env[value]
            if held.region is None or not frame.is_aside(value.name, held.region):
                continue
            region = frame.output(value.name, held.spec.nbytes)
            alignment = find_alignment(self._device.target, held.spec.dtype)
            move = Move.of_output(value.name, held.region, region, alignment, held.spec.nbytes)
            move.issue(self._stream, self._road.syncs)
            env[value] = Held(held.spec, region, held.array, is_computed=held.is_computed)

    def _lend(self, nbytes: int) -> Lent:
        """Return a block of the pool, for which what nobody needs is given back where there is no room."""
        try:
            return self._road.pool.lend(nbytes)
        except OutOfMemoryError:
            self._trim()
            return self._road.pool.lend(nbytes)

    # ---- a plan

    def _issue(self, stage: Stage, choice: Choice, env: Env, *, is_main: bool) -> Iterator[Turn]:
        """Put a plan on the stream; ``env`` has its outputs then."""
        origins = choice.prepared.plan.segment.origins
        with self._road.lock:
            try:
                recording, bindings, made = self._place(stage, choice, env, is_main=is_main)
            except OutOfMemoryError:
                recording, bindings, made = self._place_again(stage, choice, env, is_main=is_main)
            submission = Submission(
                self._device,
                self._stream,
                recording,
                bindings,
                origins,
                is_synchronous=self._road.is_synchronous,
                comparison=self._open_comparison(stage, choice, {**env, **made}),
                takes_launches=self._profile is not None,
            )
            advance: Callable[[int], None] = submission.advance
            if self._profile is not None and stage.cut.ready is not None:
                advance = issue_by_layer(self._profile, choice, stage.cut.ready, env, advance)
            if self._pacer is None:
                advance(len(origins))
        if self._pacer is not None:
            yield from self._issue_layers(
                self._pacer, submission.layers, advance, choice.prepared.times, count_layers(stage.cut)
            )
        submission.finish()
        inspection = self._bound.run._inspection
        if inspection is not None and stage.exposed is not None:
            yield from self._inspect(inspection, stage, choice, made)
        env.update(made)
        if self._pacer is not None and self._pacer.is_full:
            yield from self._end_step(count_layers(stage.cut))

    def _place(
        self, stage: Stage, choice: Choice, env: Env, *, is_main: bool
    ) -> tuple[Recording, dict[int, Region], Env]:
        """Return the recording of a plan, where its inputs and outputs are, and what will be made there."""
        graph, plan = stage.cut.ready, choice.prepared.plan
        assert graph is not None and stage.plans is not None
        recording = stage.plans.record(choice, self._stream)
        bindings: dict[int, Region] = {}
        for value, port in zip(graph.inputs, plan.inputs, strict=True):
            if port.buffer is not None:
                bindings[port.buffer] = self._crossing.locate(env[value])
        made: Env = {}
        for value, port, spec in zip(graph.outputs, plan.outputs, choice.variant.outputs, strict=True):
            assert port.buffer is not None
            if plan.buffers[port.buffer].role is Role.STATE:
                # A memory that grows where it lies.
                made[value] = Held(spec, bindings[port.buffer])
                continue
            nbytes = plan.buffers[port.buffer].nbytes
            if is_main and value in self._framed:
                owner, region = (
                    None,
                    self._bound.frame.writable(value.name, nbytes, find_alignment(self._device.target, spec.dtype)),
                )
            else:
                owner = self._road.pool.lend(nbytes)
                region = owner.region
            bindings[port.buffer] = region
            held = made[value] = Held(spec, Region(region.memory, region.offset, spec.nbytes), owner=owner)
            if value in graph.inputs:  # passed on as it is: the host goes on knowing what it knew
                held.array, held.is_computed = env[value].array, env[value].is_computed
        return recording, bindings, made

    def _place_again(
        self, stage: Stage, choice: Choice, env: Env, *, is_main: bool
    ) -> tuple[Recording, dict[int, Region], Env]:
        """Place a plan once what nobody needs is given back.

        Raises:
            OutOfMemoryError: The device has no room all the same; tells what the plan needs.
        """
        self._trim()
        try:
            return self._place(stage, choice, env, is_main=is_main)
        except OutOfMemoryError as error:
            raise OutOfMemoryError(f"{error} {describe_needs(choice, self._site.weights)}") from error

    def _trim(self) -> None:
        """Give back what nobody needs, once the work on the stream is done."""
        self._road.syncs.note_wait(f"run {self._bound.run.number}", "the device was out of memory")
        self._stream.synchronize()
        self._road.pool.trim()
        if self._site.limit is None:
            self._site.arena.release_retired()
        else:
            self._site.arena.give_back()

    def _issue_layers(
        self,
        pacer: Pacer,
        layers: Sequence[tuple[str, int]],
        advance: Callable[[int], None],
        times: LayerTimes,
        later: int,
    ) -> Iterator[Turn]:
        """Put the layers of a plan on the stream; ``later`` nodes follow it."""
        for number, (origin, last) in enumerate(layers):
            left = len(layers) - number + later
            if not pacer.fits(times, number):
                yield pacer.take(left)
            with self._road.lock:
                start = pacer.begin()
                advance(last)
                pacer.end(start, times, number)
            pacer.add(origin, times, number)
            if pacer.is_full and number + 1 < len(layers):
                yield pacer.take(left - 1)

    def _end_step(self, left: int) -> Iterator[Turn]:
        """End the present step, if there is one and something is in it."""
        if self._pacer is not None and self._pacer.has_layers:
            yield self._pacer.take(left)

    def _open_comparison(self, stage: Stage, choice: Choice, held: Env) -> Comparison | None:
        comparer, prepared = self._road.comparer, choice.prepared
        if comparer is None or stage.exposed is None:
            return None
        return Comparison(comparer, stage.exposed, prepared.plan, prepared.plan.segment.commands, held)

    def _inspect(self, inspection: Inspection, stage: Stage, choice: Choice, made: Env) -> Iterator[Turn]:
        """Bring statistics to the host; what is watched for ends the run before anything follows from it.

        Raises:
            NonFiniteError: It was there, and the Worker is to raise.
        """
        assert stage.exposed is not None
        with self._road.lock:
            piece = inspection._take(stage.exposed, self._crossing, made, choice)
        if piece is not None and inspection._raises:
            yield from self._wait(stage.cut, piece.fetch.after)
            inspection._check(piece.find())

    # ---- the host's part

    def _bring(self, cut: Cut, values: Sequence[tuple[HostRead, Held]]) -> Iterator[Turn]:
        """Bring content to the host, where it is not there yet."""
        road, wait = self._road, partial(self._wait, cut)
        is_allowed = self._bound.run._allows_syncs
        return read_values(values, self._crossing, road.syncs, road.lock, wait, is_allowed=is_allowed)

    def _wait(self, cut: Cut, event: Event) -> Iterator[Turn]:
        """Wait for the device; a step ends before it, if it has to."""
        if not event.is_done():
            yield from self._end_step(count_layers(cut))
        yield Pause(event.is_done, event.synchronize)
        # Who only asked whether it is over has not been told what went wrong.
        event.synchronize()
