"""Replay: one recorded run, submitted again and again with other bytes.

    replay = worker.record({"x": x})
    y = replay.submit({"x": other}, stream=mine)["y"]

It has an arena, outputs and argument blocks of its own, so that it and the Worker's runs don't disturb each other. What
it does is one plan, which runs without the host: `submit` plans, compiles and waits for nothing.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Mapping

from gpuexec.devices.device import Event, Recording, Region, Stream, align
from gpuexec.devices.recording import LaunchRecording
from gpuexec.errors import GpuexecError, InputError, StateError, as_failure
from gpuexec.execution.engine import Engine
from gpuexec.execution.replay.bindings import ReplayBindings, Staged
from gpuexec.execution.replay.replayable import Replayable, make_replayable
from gpuexec.execution.replay.staged_inputs import InputHome
from gpuexec.execution.resources.caller_stream import check_not_capturing, open_stream
from gpuexec.execution.resources.exclusive_caller import ExclusiveCaller
from gpuexec.execution.resources.fence import Fence, settle_stream
from gpuexec.execution.resources.frames import Lease, RunCounter
from gpuexec.execution.resources.unclosed import warn_unless_closed
from gpuexec.execution.resources.weights import Share
from gpuexec.execution.results.content import Content
from gpuexec.execution.results.given import ArrayLike, Inputs
from gpuexec.execution.results.place import Place
from gpuexec.execution.results.tensor import Tensor
from gpuexec.execution.runs.inputs import describe_inputs
from gpuexec.execution.runs.plan_cache import record_plan
from gpuexec.system.pickling import not_picklable

_log = logging.getLogger("gpuexec")


@not_picklable("Send the Worker's model, and record anew there.")
class Replay:
    """A recorded run. Made by `Worker.record`.

    Inputs and outputs have the shapes they were recorded with; what a submission does not give stays as it was. Outputs
    lie in bytes of the replay's own, which the next submission writes again once their readers are through (the stream
    waits for them, the caller does not); exporting one gives it away, and the next submission allocates another. Host
    inputs go through pinned blocks of its own: two, and one more for each submission in flight beyond that.

    Arrays on the device may start anywhere: where kernels can't read or write, each submission copies them on its
    stream, in a capture too, from or to memory reserved when they are given (``device_copies`` of the Worker's report).

    A replay belongs to one caller at a time; a second one entering is refused. Closing its Worker closes it.

    Args:
        engine: Whose model, weights and device.
        recorded: What runs, for which sizes.
        given: Arrays by name, of those inputs that are there already.
        outputs: As for `submit`.
        stream: What `submit` takes where it is given no other.

    Example:
        >>> with gx.Worker(model, backend="cpu") as worker:
        ...     replay = worker.record(x)
        ...     logits = replay.submit({"image": x / 2})["logits"].readback_and_clone()
        >>> logits.shape
        (8, 10)
    """

    def __init__(
        self,
        engine: Engine,
        recorded: Replayable,
        given: Mapping[str, object],
        outputs: Mapping[str, object],
        stream: Stream,
    ) -> None:
        self._recorded, self._backend, self._syncs = recorded, engine.backend, engine.syncs
        self._default, self._name = stream, engine.model.graph.name
        device = self._backend.device
        self._run_counter = RunCounter(self._backend, self._syncs, owner="Replay")
        busy = "Another caller is inside this Replay; record one per thread (they share the weights)."
        self._exclusive = ExclusiveCaller(self._backend, busy, "The Replay, or its Worker, is closed.", "Replay")
        # What was put on a stream last, and where; to begin with: what the first submission needs.
        self._last_event, self._last_stream = device.create_event(), stream
        start, nbytes = align(recorded.plan.layout.nbytes), recorded.plan.counters_nbytes
        self._arena = device.allocate(max(start + nbytes, 1))
        counters = Region(self._arena, start, nbytes) if nbytes else None
        bound = self._bound = ReplayBindings(engine.model, self._backend, recorded, self._syncs)
        try:
            if counters is not None:
                stream.fill(counters.address, bytes(1), nbytes)
            accepted, taken = bound.accept(given, stream), bound.take_outputs(outputs, stream)
            recording = self._recording = record_plan(
                recorded.compiled, engine.planning, self._arena, counters, stream, None
            )
            recording.patch(recorded.commands)
            # They stay whatever weights the Worker goes on with.
            self._weights: Share | None = engine.planning.weights
            self._upload(stream, bound.bind(accepted, taken), self._last_event)
            if isinstance(recording, LaunchRecording):
                recording.prepare(bound.layout.regions)
        except BaseException:
            # The event may be what was interrupted.
            settle_stream(self._backend.device, stream)
            bound.free()
            raise
        # Neither a graph nor a pinned block goes back by being forgotten.
        self._finalizer = weakref.finalize(self, _release, recording, bound.home)
        self._finalizer.atexit = False
        engine.replays.add(self)
        self._unclosed = warn_unless_closed(self, f"A Replay of {engine.model.graph.name!r}", "close(), or use `with`")

    @property
    def has_graph(self) -> bool:
        """True where submissions are launched as one graph."""
        return isinstance(self._recording, LaunchRecording) and self._recording.has_graph

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that are its own: arena, inputs and outputs."""
        if self._exclusive.is_closed:
            return 0
        return self._arena.nbytes + self._bound.home.memory.nbytes + self._bound.frame.nbytes

    def submit(
        self,
        inputs: Inputs | None = None,
        *,
        outputs: Mapping[str, ArrayLike | None] | None = None,
        stream: object = None,
    ) -> dict[str, Tensor]:
        """Put the run on a stream, in the order of that stream, and return its outputs at once.

        Args:
            inputs: As for `Worker.schedule`: arrays, or Tensors, pending ones too. Those left out stay: a device array
                is read anew, content from the host is there still.
            outputs: Device memory by name that outputs are written to from now on; None for one: its own again. What
                your streams do with it is yours to order.
            stream: A stream of yours, or of the device; None: the one recorded with. One that is capturing gets the
                commands alone, over what was given before. A graph waits for nothing outside it: wait for what was
                submitted until then (to begin with, for the recording stream) before you launch it.

        Returns:
            The outputs by name, good until the next submission.

        Raises:
            InputError: An input or output is missing, misspelt, of another dtype or shape than recorded, or lies in the
                bytes of an output; nothing was done.
            StateError: The stream is capturing, and something is given, or was never: a graph could not repeat that.
        """
        with self._exclusive:
            target = self._default if stream is None else open_stream(self._backend, stream)
            if target.is_capturing():
                return self._capture(target, inputs, outputs)
            accepted = self._bound.accept(inputs, target)
            missing = self._bound.missing - accepted.keys()
            if missing:
                name = min(missing)
                raise InputError(
                    f"Input {name!r} ({self._recorded.inputs[name]}) has no content: it was recorded by its shape"
                    " alone, or its submission failed. Give it.",
                    value=name,
                )
            taken = self._bound.take_outputs(outputs or {}, target)
            submitted = self._issue(target, self._bound.bind(accepted, taken))
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("a replay of %s is on the stream", self._name)
        return submitted

    def is_done(self) -> bool:
        """Return whether all that was submitted is done; never waits."""
        return self._last_event.is_done()

    def _let_go(self) -> None:
        """Keep hold of no array given so far, once the work on it is done: the next submission gives all anew."""
        with self._exclusive:
            self._bound.let_go()

    def _bind_by_element(self) -> None:
        """Bind arrays at any element: the plan's kernels read and write one element at a time."""
        self._bound.by_element = True
        if isinstance(self._recording, LaunchRecording):
            self._recording.alignment = 1

    def close(self) -> None:
        """Wait for its work and give everything back; twice is harmless. Readbacks requested before stay readable."""
        if self._exclusive.is_closed:
            return
        # What an interrupt broke admits whoever closes it.
        self._exclusive.recover()
        with contextlib.nullcontext() if self._exclusive.is_broken else self._exclusive:
            self._exclusive.is_closed = True
            self._unclosed.detach()
            self._settle()
            self._bound.frame.readers.settle()
            self._run_counter.close()
            self._finalizer()
            self._bound.free()
            self._arena.free()
            self._weights = None

    def __repr__(self) -> str:
        inputs = ", ".join(f"{name} {spec}" for name, spec in self._recorded.inputs.items())
        return f"Replay({inputs or 'no inputs'}{', closed' if self._exclusive.is_closed else ''})"

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _issue(self, stream: Stream, staged: Staged | None) -> dict[str, Tensor]:
        fence, reading, event = Fence(), Fence(), self._backend.device.create_event()
        with self._run_counter.lock:
            write = self._bound.frame.readers.announce_write()
            self._run_counter.advance()
        try:
            self._wait(stream, write, reading)
            if staged is not None:
                self._bound.home.upload(stream, *staged)
            self._submit(stream)
        except BaseException as error:
            fence.issue((), as_failure(error, "The submission"))
            if staged is not None:
                self._bound.missing |= staged[1].keys()
            raise
        finally:
            # Whatever got there, what comes next comes after it; on a device that is lost nothing does.
            self._last_event, self._last_stream = event, stream
            try:
                stream.record(event)
            finally:
                reading.issue((event,))
                self._note_issued(event, staged)
        fence.issue((event,))
        return self._make_tensors(fence, stream)

    def _submit(self, stream: Stream) -> None:
        """Put the commands on a stream, between the copies of arrays that start where kernels can't read or write."""
        layout = self._bound.layout
        stream.begin_run()
        for move in layout.before:
            move.issue(stream, self._syncs)
        self._recording.submit(stream, layout.regions)
        for move in layout.behind:
            move.issue(stream, self._syncs)

    def _upload(self, stream: Stream, staged: Staged | None, event: Event) -> None:
        """Upload staged inputs ahead of any submission; ``event`` is done when they are there."""
        try:
            if staged is not None:
                self._bound.home.upload(stream, *staged)
        finally:
            try:
                stream.record(event)
            finally:
                self._note_issued(event, staged)

    def _note_issued(self, event: Event, staged: Staged | None) -> None:
        """See to it that what is on the stream outlives it, whoever lets go of the replay meanwhile."""
        bound = self._bound
        if staged is not None:
            bound.home.give_back(staged[0], event)
        held = [self._arena, bound.home, self._weights, *(region.memory for region in bound.layout.regions.values())]
        held += [region.memory for region in bound.layout.outputs.values()]
        self._backend.deferred_free.hold(event, *held, *[item.source for item in bound.borrowed])

    def _settle(self) -> None:
        """Wait for its work, however that ends."""
        with contextlib.suppress(GpuexecError):
            self._last_event.synchronize()

    def _wait(self, stream: Stream, write: int, reading: Fence) -> None:
        """Make the stream wait for uses of the same bytes that nothing orders before the run yet."""
        unissued = self._bound.frame.readers.list_unissued(write)
        if unissued:
            self._syncs.note_wait("outputs of a replay", "a reader of theirs was not on its stream yet")
            for reader in unissued:
                reader.wait_issued()
        self._bound.frame.readers.hold_back(stream, write)
        if not _is_same(stream, self._last_stream):
            self._wait_for(stream, self._last_event)
        for item in self._bound.borrowed:
            if item.fence.failure is not None:
                raise item.fence.failure
            maker = item.source._content.stream if isinstance(item.source, Tensor) else None
            if maker is None or not _is_same(stream, maker):
                for each in item.fence.events:
                    self._wait_for(stream, each)
            if item.readers is not None:
                item.readers.add(reading)

    def _wait_for(self, stream: Stream, event: Event) -> None:
        # On the CPU an event carries the error of its work, which a wait passes on.
        if not (self._backend.device.target.has_kernels and event.is_done()):
            stream.wait(event)

    def _make_tensors(self, fence: Fence, stream: Stream) -> dict[str, Tensor]:
        lease = Lease(self._backend, self._bound.frame, self._run_counter)
        tensors = {}
        for name, spec in self._recorded.outputs.items():
            region = self._bound.layout.outputs[name]
            place = Place(name, spec, Region(region.memory, region.offset, spec.nbytes))
            tensors[name] = Tensor(Content(name, self._backend, place, fence, lease, stream))
        return tensors

    def _capture(self, stream: Stream, inputs: object, outputs: object) -> dict[str, Tensor]:
        """Put the commands on a stream that is capturing, and nothing else: no event, no copy, no wait."""
        if inputs is not None or outputs is not None:
            raise StateError(
                "The stream is capturing: nothing can be given now. Give inputs and outputs to record() or to a"
                " submission before the capture, and write their bytes by work of your own."
            )
        if self._bound.missing:
            raise StateError(f"The stream is capturing, and {min(self._bound.missing)!r} was never given.")
        self._run_counter.advance()
        self._submit(stream)
        fence = Fence()
        fence.issue((), StateError("The run was captured: its data is there once the graph that holds it has run."))
        return self._make_tensors(fence, stream)


def _release(recording: Recording, home: InputHome) -> None:
    recording.close()
    home.unpin()


def _is_same(stream: Stream, other: Stream) -> bool:
    """Return whether two stand for one stream; handles tell where there are any."""
    return stream is other or (stream.handle != 0 and stream.handle == other.handle)


def record_replay(engine: Engine, inputs: object, outputs: Mapping[str, object], stream: object = None) -> Replay:
    """Record a run of an engine.

    Args:
        engine: Whose.
        inputs: Arrays, or shapes in place of those that the first submission gives.
        outputs: As for `Replay.submit`.
        stream: What `Replay.submit` takes where it is not told another one; None: the engine's.

    Raises:
        InputError: An input or output does not fit.
        ImplicitSyncError: The host has a say in the middle of the run; names the nodes.
        StateError: The engine finishes, compares or looks at each command, its model has memories, or the stream is
            capturing.
    """
    memories = engine.model.memories
    if memories:
        raise StateError(
            "A recording reads and writes the same bytes each time, and the memories of this model"
            f" ({', '.join(memory.input for memory in memories)}) move on. Use schedule(), which"
            " launches a plan that runs often as one graph; or record the model with its states as inputs and"
            " outputs, and have two device arrays take turns: submit({input: one}, outputs={output: other})."
        )
    given, arrays = describe_inputs(engine.input_reader, inputs)
    target = engine.stream if stream is None else open_stream(engine.backend, stream)
    if engine.is_synchronous:
        raise StateError("A Worker that is synchronous, or compares, records no replay: make one without.")
    if engine.planning.inspector.exposure:
        raise StateError("A Worker that watches or taps records no replay: make one without watch=, or end tap().")
    check_not_capturing(target)
    stage, planned = engine.choose(given)
    return Replay(engine, make_replayable(engine.model, stage, planned, given), arrays, outputs, target)
