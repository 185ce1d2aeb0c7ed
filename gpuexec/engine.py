"""The engine under a Worker: inputs accepted, a plan found, a frame bound, commands put on a stream.

A run whose inputs are there goes onto the stream within the call. One that waits for something outside the stream (an
input from another device, a run that is not scheduled yet) is advanced by the driver thread, and so are those that come
after it meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence

from gpuexec.binding import Bound, InputBinder, count_host_bytes
from gpuexec.content import Content
from gpuexec.errors import ClosedError, GpuexecError, OutOfMemoryError, StaleError, StateError
from gpuexec.fence import Fence
from gpuexec.frames import Frame, Lease, Turns
from gpuexec.inputs import Acceptor, GivenInput
from gpuexec.issuer import Issuer
from gpuexec.memory import Arena, weights_of
from gpuexec.model import Model
from gpuexec.plan import Plan
from gpuexec.plan_cache import Choice, PlanCache
from gpuexec.run import Run, Step
from gpuexec.runtime.backend import Backend
from gpuexec.runtime.device import Region, Stream
from gpuexec.runtime.transfers import close_stream
from gpuexec.tensor import Tensor


class Engine:
    """Runs one model on one backend. One caller at a time.

    Args:
        model: What to run.
        backend: Where.
        frames: Runs in flight before outputs are written again.
        stream: The caller's stream, or None for one of its own.
    """

    def __init__(self, model: Model, backend: Backend, frames: int, stream: Stream | None = None) -> None:
        self.model, self.backend = model, backend
        self.stream = stream if stream is not None else backend.device.create_stream()
        self.turns = Turns(backend)
        self.weights = weights_of(model, backend)
        self.arena = Arena(backend)
        self.plans = PlanCache(model, backend, self.weights, self.arena)
        self.frames = [Frame(backend) for _ in range(frames)]
        self._owns_stream = stream is None
        self._issuer = Issuer(backend, self.stream, self.plans)
        self._acceptor = Acceptor(model, backend, self.stream)
        self._binder = InputBinder(backend, self.stream)
        self._caller = threading.Lock()
        self._stepping: Bound | None = None
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def check_open(self) -> None:
        """Check that the Worker can be used.

        Raises:
            StateError: The process was forked.
            ClosedError: The Worker is closed.
        """
        self.backend.check_process()
        if self._closed:
            raise ClosedError("The Worker is closed.")

    @contextlib.contextmanager
    def entering(self) -> Iterator[None]:
        """Admit one caller at a time.

        Raises:
            StateError: Another thread is inside, the Worker is closed, or the process was forked.
        """
        self.check_open()
        if not self._caller.acquire(blocking=False):
            raise StateError(
                "Another caller is inside this Worker; make one Worker per thread (they share the model's weights)."
            )
        try:
            yield
        finally:
            self._caller.release()

    # ---- running

    def schedule(self, inputs: object, *, copy: bool) -> Run:
        """Put a run on the stream, or give it to the driver thread, and return."""
        bound = self._bind(inputs, copy=copy)
        if not self._issuer.put(bound) and not self._owns_stream:
            # What the caller puts on the stream next must come after the run.
            self.turns.syncs.append((f"run {bound.run.number}", "an input from elsewhere, on a stream of the caller's"))
            self._issuer.driver.synchronize()
        return bound.run

    def begin(self, inputs: object, *, copy: bool) -> tuple[Run, int, Iterator[Step]]:
        """Bind a run to be put on the stream layer by layer; return it, the number of layers, and the steps."""
        bound = self._bind(inputs, copy=copy)
        fence = bound.run._fence
        fence.stepper = threading.get_ident()
        self._stepping = bound
        layers = find_layers(bound.choice.prepared.segment.origins)
        return bound.run, len(layers), self._step(bound, layers)

    def give_up(self, run: Run) -> bool:
        """Give a run up unless it is wholly on the stream; False if it is."""
        with self._issuer.lock:
            stepping = self._stepping
            if stepping is None or stepping.run is not run:
                return self._issuer.cancel(run, f"Run {run.number} was cancelled.")
            self._drop_step("its caller")
            return True

    def prepare(self, given: Mapping[str, GivenInput]) -> Plan:
        """Plan, compile and allocate for these inputs, without running."""
        choice = self.plans.choose(given)
        for frame in self.frames:
            reserve_outputs(frame, choice.prepared.plan)
        with self._issuer.lock:
            # A run half scheduled keeps its recording as it is.
            if self._stepping is None:
                self.plans.record(choice, self.stream)
        return choice.prepared.plan

    # ---- waiting

    def mark(self) -> Fence:
        """Return a fence for all that was issued so far."""
        return self._issuer.mark()

    def trim(self) -> None:
        """Wait for all work, and give back memory that no plan needs now; a run half scheduled is given up."""
        self._drop_step("a trim")
        self._issuer.driver.synchronize()
        with self._issuer.lock:
            self._settle()
            self.arena.release_retired()
            for frame in self.frames:
                frame.release_dropped()
        self.backend.keeper.prune()
        self.backend.staging.trim()

    def close(self) -> None:
        """Wait for all work, then give everything back. Twice is harmless."""
        if self._closed:
            return
        self._drop_step("the Worker's end")
        self._closed = True
        self._issuer.driver.synchronize()
        self._issuer.driver.close()
        self._settle()
        self.turns.close()
        for frame in self.frames:
            frame.free()
        self.arena.free()
        self._binder.release()
        if self._owns_stream:
            close_stream(self.stream)

    def _settle(self) -> None:
        """Wait for the stream and all readers, however they end: who asked for a run that failed has been told."""
        with contextlib.suppress(GpuexecError):
            event = self.backend.device.create_event()
            self.stream.record(event)
            event.synchronize()
        for frame in self.frames:
            frame.readers.settle()

    # ---- binding

    def _bind(self, inputs: object, *, copy: bool) -> Bound:
        """Accept inputs, find the plan, and bind everything; nothing is on the stream yet.

        Raises:
            InputError: An input is missing, misspelt or ill-typed; nothing has been done.
            OutOfMemoryError: The device has no room, even after a `trim`.
        """
        given = self._acceptor.accept(inputs, self._binder.kept, copy=copy)
        choice = self.plans.choose(given)
        self._drop_step("a newer one")
        try:
            self._reserve(choice, given)
        except OutOfMemoryError:
            self.turns.syncs.append((f"run {self.turns.number}", "the device was out of memory"))
            self.trim()
            try:
                self._reserve(choice, given)
            except OutOfMemoryError as error:
                raise OutOfMemoryError(f"{error} {self._describe(choice)}") from error
        return self._take_frame(given, choice)

    def _reserve(self, choice: Choice, given: Mapping[str, GivenInput]) -> None:
        """Make what a run of the plan needs for the first time: arena, weights, outputs, room for inputs."""
        with self._issuer.lock:
            self.plans.record(choice, self.stream)
        frame = self._next_frame()
        reserve_outputs(frame, choice.prepared.plan)
        if self.backend.device.target.has_kernels:
            frame.input(count_host_bytes(given))

    def _take_frame(self, given: Mapping[str, GivenInput], choice: Choice) -> Bound:
        plan, frame = choice.prepared.plan, self._next_frame()
        run = Run(self.turns.number, self.backend, self.give_up)
        bound = Bound(run, choice, frame, frame.readers.announce_write(), {})
        try:
            self._binder.bind(bound, plan.inputs, given)
            bound.bindings.update(reserve_outputs(frame, plan))
        except BaseException:
            bound.reading.issue(())
            raise
        self.turns.advance()
        lease = Lease(self.backend, frame, self.turns)
        for port, spec in zip(plan.outputs, choice.variant.outputs, strict=True):
            assert port.buffer is not None
            region = Region(bound.bindings[port.buffer].memory, 0, spec.nbytes)
            content = Content(port.name, spec, self.backend, region, run._fence, lease, self.stream)
            run._outputs[port.name] = Tensor(content)
        return bound

    def _next_frame(self) -> Frame:
        return self.frames[self.turns.number % len(self.frames)]

    def _describe(self, choice: Choice) -> str:
        plan = choice.prepared.plan
        outputs = sum(plan.buffers[port.buffer].nbytes for port in plan.outputs if port.buffer is not None)
        return (
            f"The plan needs {plan.layout.nbytes} bytes of arena and {outputs} of outputs in each of"
            f" {len(self.frames)} frames, beside {self.weights.nbytes} of weights."
        )

    # ---- piece by piece

    def _step(self, bound: Bound, layers: Sequence[tuple[int, int]]) -> Generator[Step, None, None]:
        origins = bound.choice.prepared.segment.origins
        for index, (first, last) in enumerate(layers or [(0, 0)]):
            while not self._issue_layer(bound, None if last == len(origins) else last):
                yield Step(index, (), True)
            if layers:
                yield Step(index, (origins[first],), False)

    def _issue_layer(self, bound: Bound, last: int | None) -> bool:
        """Put a layer on the stream; False where it waits for something from elsewhere."""
        with self.entering():
            if self._stepping is not bound:
                raise StaleError("A newer run has begun, or this one was cancelled; this iterator can't go on.")
            if bound.position is None and not self._issuer.can_issue(bound):
                return False
            self._issuer.issue(bound, last)
            if last is None:
                self._stepping = None
            return True

    def _drop_step(self, reason: str) -> None:
        """Give up a run that is scheduled piece by piece."""
        with self._issuer.lock:
            bound, self._stepping = self._stepping, None
            if bound is not None:
                self._issuer.drop(bound, f"Run {bound.run.number} was given up for {reason}.")


def reserve_outputs(frame: Frame, plan: Plan) -> dict[int, Region]:
    """Return the bytes of a plan's outputs in a frame, by buffer."""
    regions = {}
    for port in plan.outputs:
        assert port.buffer is not None
        regions[port.buffer] = frame.output(port.name, plan.buffers[port.buffer].nbytes)
    return regions


def find_layers(origins: Sequence[str]) -> list[tuple[int, int]]:
    """Return the half-open ranges of commands that stem from one node each."""
    ranges: list[tuple[int, int]] = []
    for index, origin in enumerate(origins):
        if ranges and origins[ranges[-1][0]] == origin:
            ranges[-1] = (ranges[-1][0], index + 1)
        else:
            ranges.append((index, index + 1))
    return ranges
