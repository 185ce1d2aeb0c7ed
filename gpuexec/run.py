"""A run: inputs bound, a plan found, its commands put on a stream. The engine under Worker owns the loop."""

from __future__ import annotations

import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuexec.command import HostCall
from gpuexec.errors import CancelledError, ClosedError, GpuexecError, InputError, PlanError, StaleError, StateError
from gpuexec.inputs import DeviceArray, GivenInput, HostArray, accept_inputs
from gpuexec.memory import Arena, Frame, Lease, align, weights_of
from gpuexec.model import Model
from gpuexec.plan import Plan, Port, Role, Segment, Variant
from gpuexec.planner.template import Template, plan_graph
from gpuexec.readback import Fence, ReadbackRequest, wait_in_loop
from gpuexec.runtime.backend import Backend
from gpuexec.runtime.device import Event, Memory, Recording, Region, Stream
from gpuexec.spec import TensorSpec
from gpuexec.tensor import Tensor

Array = np.ndarray[Any, Any]
_VARIANTS_KEPT = 256


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a run scheduled piece by piece: its number, the nodes it issued, whether it waits for the device."""

    index: int
    nodes: tuple[str, ...]
    waiting: bool


@dataclass(slots=True)
class Prepared:
    """A template with its recordings: made when first run, made again when the arena moves."""

    template: Template
    recordings: list[Recording] | None = None
    generation: int = -1
    current: Variant | None = None


@dataclass(slots=True)
class Choice:
    """What to run for inputs of given shapes: ``contents`` are those of the inputs that planning read."""

    prepared: Prepared
    variant: Variant
    contents: dict[str, bytes]


@dataclass(slots=True)
class Counters:
    """What an engine has done so far; times in milliseconds."""

    plans: int = 0
    variants: int = 0
    runs: int = 0
    plan_ms: float = 0.0
    compile_ms: float = 0.0
    compiled_kernels: int = 0


class Run:
    """One run in flight. Its outputs are Tensors at once; `wait`, `await`, or poll `is_done` for the work."""

    def __init__(self, engine: Engine, number: int) -> None:
        self._engine, self.number = engine, number
        self._fence = Fence()
        self._outputs: dict[str, Tensor] = {}
        self._keep: list[object] = []
        self._cancelled = False

    @property
    def outputs(self) -> dict[str, Tensor]:
        """The outputs by name."""
        return dict(self._outputs)

    def peek_output(self, name: str | None = None) -> Tensor:
        """Return an output (the first, without a name); it may be pending.

        Raises:
            InputError: There is no output of that name.
        """
        if name is None:
            return next(iter(self._outputs.values()))
        if name not in self._outputs:
            raise InputError(f"There is no output {name!r}; the model has {', '.join(self._outputs)}.", value=name)
        return self._outputs[name]

    def is_done(self) -> bool:
        """Return whether all work is done (or given up); never waits."""
        return self._cancelled or self._fence.is_done()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until done; False when the time ran out.

        Raises:
            CancelledError: The run was cancelled.
            GpuexecError: What the work raised.
        """
        if self._cancelled:
            raise CancelledError(f"Run {self.number} was cancelled.")
        return self._fence.synchronize(timeout_s)

    def cancel(self) -> bool:
        """Give the run up; False if its work is done or wholly on the stream already, where it can't be taken back."""
        if self._fence.is_issued() or self._cancelled:
            return False
        self._cancelled = True
        self._engine.drop(self)
        self._fence.issue((), CancelledError(f"Run {self.number} was cancelled."))
        return True

    def __await__(self) -> Generator[Any, None, Run]:
        yield from wait_in_loop(self._notify).__await__()
        self.wait()
        return self

    def _notify(self, callback: Callable[[Any], None]) -> None:
        def watch() -> None:
            if self._fence.events:
                self._engine.backend.completion.call(self._fence.events[0], callback)
            else:
                callback(None)

        self._fence.when_issued(watch)

    def __repr__(self) -> str:
        state = "cancelled" if self._cancelled else "done" if self._fence.is_done() else "pending"
        return f"Run({self.number}, {state})"


@dataclass(slots=True)
class _Issue:
    """What is left to do for a run: everything `submit` needs."""

    run: Run
    choice: Choice
    lease: Lease
    bindings: dict[int, Region]
    waits: list[Fence] = field(default_factory=list)
    uploads: Callable[[], None] | None = None
    requests: list[ReadbackRequest] = field(default_factory=list)
    finish: list[Callable[[Event], None]] = field(default_factory=list)
    position: int = 0


class Engine:
    """Runs one model on one backend: finds or makes plans, binds, submits. One caller at a time.

    Args:
        model: What to run.
        backend: Where.
        frames: Runs in flight before outputs are written again.
        stream: The caller's stream, or None for one of its own.
    """

    def __init__(self, model: Model, backend: Backend, frames: int, stream: Stream | None = None) -> None:
        if frames < 1:
            raise InputError(f"frames must be at least 1, got {frames}.")
        self.model, self.backend = model, backend
        self.stream = stream if stream is not None else backend.device.create_stream()
        self.counters = Counters()
        self._arena = Arena(backend)
        self._weights = weights_of(model, backend)
        self._frames = [Frame(backend) for _ in range(frames)]
        self._templates: list[Prepared] = []
        self._choices: OrderedDict[tuple[tuple[int, ...], ...], list[Choice]] = OrderedDict()
        self._kept: dict[str, GivenInput] = {}
        self._input_block: tuple[Memory, Event | None] | None = None
        self._busy = threading.Lock()
        self._driver: _Driver | None = None
        self._stepping: _Issue | None = None
        self._last_event: Event | None = None
        self._closed = False

    # ---- the caller's side

    def begin(self, inputs: object) -> _Issue:
        """Accept inputs, find the plan and bind everything; nothing is on the stream yet.

        Raises:
            InputError: An input is missing, misspelt or ill-typed; nothing has been done.
        """
        if self._closed:
            raise ClosedError("The Worker is closed.")
        self.backend.check_process()
        if not self._busy.acquire(blocking=False):
            raise StateError("Another thread is inside this Worker; make one Worker per thread (they share the model's weights).")
        try:
            self._abandon_step()
            given = accept_inputs(self.model, inputs, self._kept)
            choice = self._choose(given)
            return self._bind(given, choice)
        finally:
            self._busy.release()

    def schedule(self, inputs: object) -> Run:
        """Put a run on the stream and return."""
        issue = self.begin(inputs)
        if issue.requests or (self._driver is not None and self._driver.is_busy()):
            self._drive(issue)
        else:
            self._submit(issue)
        return issue.run

    def step(self, issue: _Issue) -> Generator[Step, None, None]:
        """Put a run on the stream layer by layer; yields after each."""
        self._stepping = issue
        segments = [s for s in issue.choice.prepared.template.plan.steps if isinstance(s, Segment)]
        (segment,) = segments
        layers = _layers(segment.origins)
        for index, (first, last) in enumerate(layers):
            if self._stepping is not issue:
                raise StaleError("A newer run has begun; this iterator can't go on.")
            self._submit(issue, first, last)
            yield Step(index, (segment.origins[first],), False)
        if not layers:
            self._submit(issue)
        if self._stepping is issue:
            self._stepping = None

    def count_layers(self, issue: _Issue) -> int:
        """Return how many steps `step` will make."""
        return sum(len(_layers(s.origins)) for s in issue.choice.prepared.template.plan.steps if isinstance(s, Segment))

    def drop(self, run: Run) -> None:
        """Forget a run that is not wholly on the stream."""
        if self._stepping is not None and self._stepping.run is run:
            self._stepping = None

    def prepare(self, inputs: Mapping[str, TensorSpec]) -> Plan:
        """Plan, compile and allocate for inputs of these specs, without running."""
        given: dict[str, GivenInput] = {name: HostArray(spec, None) for name, spec in inputs.items()}
        choice = self._choose(given)
        self._record(choice)
        for frame in self._frames:
            for port in choice.prepared.template.plan.outputs:
                assert port.buffer is not None
                frame.output(port.name, choice.prepared.template.plan.buffers[port.buffer].nbytes)
        return choice.prepared.template.plan

    def synchronize(self) -> None:
        """Wait for everything issued so far."""
        if self._driver is not None:
            self._driver.synchronize()
        event = self.backend.device.create_event()
        self.stream.record(event)
        event.synchronize()

    def notify(self, callback: Callable[[Any], None]) -> None:
        """Call back once everything issued so far is done."""
        event = self.backend.device.create_event()
        self.stream.record(event)
        self.backend.completion.call(event, callback)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans made so far."""
        return tuple(prepared.template.plan for prepared in self._templates)

    def memory_stats(self) -> dict[str, int]:
        """Return bytes held: arena, its lower bound, weights, frames, pinned staging."""
        plans = self.plans
        return {
            "arena": self._arena.nbytes,
            "arena_lower_bound": max((plan.layout.lower_bound for plan in plans), default=0),
            "weights": sum(array.nbytes for array in self.model.graph.constants.values())
            if not self.backend.device.target.has_kernels
            else self._weights.nbytes,
            "frames": sum(frame.nbytes for frame in self._frames),
            "pinned": self.backend.staging.nbytes,
        }

    def host_calls(self) -> list[HostCall]:
        """Return the host calls of plans for a device with kernels (on the CPU they are the ordinary way)."""
        return [call for plan in self.plans if plan.target != "cpu" for call in plan.host_calls()]

    def trim(self) -> None:
        """Wait for all work, and give back memory that no plan needs now."""
        self.synchronize()
        self._arena.release_retired()
        self.backend.staging.trim()

    def close(self) -> None:
        """Wait for all work, then give everything back. Twice is harmless."""
        if self._closed:
            return
        self._abandon_step()
        self._closed = True
        if self._driver is not None:
            self._driver.close()
        try:
            self.synchronize()
        except GpuexecError:
            # The run that failed has told whoever asked for it; closing must succeed all the same.
            pass
        for frame in self._frames:
            for event in frame.guards:
                event.synchronize()
            frame.free()
        self._arena.free()
        self._release_input_block(None)
        close = getattr(self.stream, "close", None)
        if close is not None:
            close()

    # ---- plans

    def _choose(self, given: Mapping[str, GivenInput]) -> Choice:
        """Return the plan and variant for these inputs, making them if they are new."""
        shapes = tuple(given[port.name].spec.shape for port in self.model.inputs)
        for choice in self._choices.get(shapes, ()):
            if all(_content(given[name]) == content for name, content in choice.contents.items()):
                self._choices.move_to_end(shapes)
                return choice
        start = time.perf_counter()
        specs = {name: item.spec.with_value(item.array) if isinstance(item, HostArray) else item.spec for name, item in given.items()}
        choice = self._specialise(specs) or self._plan(specs)
        self.counters.plan_ms += (time.perf_counter() - start) * 1e3
        self.counters.variants += 1
        self._choices.setdefault(shapes, []).insert(0, choice)
        if len(self._choices) > _VARIANTS_KEPT:
            self._choices.popitem(last=False)
        return choice

    def _specialise(self, specs: Mapping[str, TensorSpec]) -> Choice | None:
        for prepared in self._templates:
            if not prepared.template.covers(specs):
                continue
            try:
                variant = prepared.template.specialise(specs)
            except (PlanError, InputError):
                continue
            return Choice(prepared, variant, _contents(prepared.template.plan, specs))
        return None

    def _plan(self, specs: Mapping[str, TensorSpec]) -> Choice:
        template = plan_graph(self.model.graph, specs, self.backend.device.target, self.model.dims)
        variant = template.specialise(specs)
        start = time.perf_counter()
        self.backend.device.load(template.plan.kernels())
        self.counters.compile_ms += (time.perf_counter() - start) * 1e3
        prepared = Prepared(template)
        self._templates.insert(0, prepared)
        self.counters.plans += 1
        return Choice(prepared, variant, _contents(template.plan, specs))

    def _record(self, choice: Choice) -> list[Recording]:
        """Return the recordings of the choice's plan, set to its variant."""
        prepared = choice.prepared
        plan = prepared.template.plan
        memory = self._arena.reserve(plan.layout.nbytes)
        if prepared.recordings is None or prepared.generation != self._arena.generation:
            places = self._weights.place(plan.buffers, self.stream)
            places.update({b: Region(memory, offset, plan.buffers[b].nbytes) for b, offset in plan.layout.offsets})
            prepared.recordings = [self.backend.device.record(s, places) for s in plan.steps if isinstance(s, Segment)]
            prepared.generation, prepared.current = self._arena.generation, None
        if prepared.current is not choice.variant:
            for recording, commands in zip(prepared.recordings, choice.variant.segments, strict=True):
                recording.patch(commands)
            prepared.current = choice.variant
        return prepared.recordings

    # ---- binding

    def _bind(self, given: Mapping[str, GivenInput], choice: Choice) -> _Issue:
        plan = choice.prepared.template.plan
        frame = self._frames[self.counters.runs % len(self._frames)]
        lease = frame.begin(self.stream)
        run = Run(self, self.counters.runs)
        issue = _Issue(run, choice, lease, {})
        self.counters.runs += 1
        for port, spec in zip(plan.outputs, choice.variant.outputs, strict=True):
            assert port.buffer is not None
            region = frame.output(port.name, plan.buffers[port.buffer].nbytes)
            issue.bindings[port.buffer] = region
            run._outputs[port.name] = Tensor(port.name, spec, self.backend, region, run._fence, lease)
        self._bind_inputs(issue, plan.inputs, given, frame)
        return issue

    def _bind_inputs(self, issue: _Issue, ports: Sequence[Port], given: Mapping[str, GivenInput], frame: Frame) -> None:
        """Bind device arrays where they are; put host arrays one after the other into one pinned block, uploaded by one copy."""
        hosts: list[tuple[Port, HostArray]] = []
        for port in ports:
            item = given[port.name]
            if isinstance(item, DeviceArray):
                issue.run._keep.append(item.owner)
                if item.is_on(self.backend):
                    self._borrow(issue, port, item)
                    continue
                # Another device: its readback is awaited by the driver thread, never by the caller.
                assert item.tensor is not None
                request = item.tensor.readback_request()
                issue.requests.append(request)
                item = HostArray(item.spec, None, request)
            hosts.append((port, item))
        self._stage(issue, hosts, frame)
        self._kept = dict(given) | {port.name: item for port, item in hosts}

    def _borrow(self, issue: _Issue, port: Port, item: DeviceArray) -> None:
        if item.fence is not None:
            issue.waits.append(item.fence)
        if item.guard is not None:
            issue.finish.append(item.guard)
        if port.buffer is not None:
            issue.bindings[port.buffer] = item.region

    def _stage(self, issue: _Issue, hosts: Sequence[tuple[Port, HostArray]], frame: Frame) -> None:
        total = sum(align(item.spec.nbytes) for _, item in hosts)
        if not hosts:
            return
        block = self.backend.staging.take(max(total, 1))
        array = block.array
        assert array is not None
        on_host = not self.backend.device.target.has_kernels
        home = block if on_host else frame.input(total)
        offset = 0
        late: list[tuple[Array, ReadbackRequest]] = []
        for position, (port, item) in enumerate(hosts):
            nbytes = item.spec.nbytes
            window = array[offset : offset + nbytes].view(item.spec.dtype).reshape(item.spec.shape)
            if item.request is not None:
                late.append((window, item.request))
            elif item.array is not None:
                np.copyto(window, item.array)
            if port.buffer is not None:
                issue.bindings[port.buffer] = Region(home, offset, nbytes)
            hosts[position][1].array = window
            offset += align(nbytes)
        used = self.backend.device.create_event()
        stream = self.stream

        def upload() -> None:
            for window, request in late:
                np.copyto(window, request.view())
            if not on_host and total:
                stream.copy_to_device(home.address, array[:total])
                stream.record(used)

        issue.uploads = upload
        previous, self._input_block = self._input_block, (block, used)
        if previous is not None:
            issue.finish.append(lambda event: self.backend.staging.give_back(previous[0], event))

    def _release_input_block(self, event: Event | None) -> None:
        if self._input_block is not None:
            self.backend.staging.give_back(self._input_block[0], event)
            self._input_block = None

    # ---- submitting

    def _submit(self, issue: _Issue, first: int = 0, last: int | None = None) -> None:
        """Issue commands ``[first, last)`` of a run; the last part finishes it."""
        try:
            self._issue(issue, first, last)
        except BaseException as error:
            issue.run._fence.issue((), error)
            raise

    def _issue(self, issue: _Issue, first: int, last: int | None) -> None:
        stream, device = self.stream, self.backend.device
        recordings = self._record(issue.choice)
        total = len(issue.choice.variant.segments[0])
        if first == 0:
            for fence in issue.waits:
                for each in fence.events:
                    stream.wait(each)
            if issue.uploads is not None:
                issue.uploads()
        (recording,) = recordings
        recording.submit(stream, issue.bindings, first, last)
        if last is not None and last < total:
            return
        event = device.create_event()
        stream.record(event)
        self._last_event = event
        for finish in issue.finish:
            finish(event)
        issue.run._fence.issue((event, *(each for fence in issue.waits for each in fence.events)))

    def _drive(self, issue: _Issue) -> None:
        if self._driver is None:
            self._driver = _Driver(self._advance)
        self._driver.put(issue)

    def _advance(self, issue: _Issue) -> None:
        """On the driver thread: wait for what the run needs from elsewhere, then submit it."""
        if issue.run._cancelled:
            return
        try:
            for request in issue.requests:
                request.wait()
            with self._busy:
                self._submit(issue)
        except BaseException as error:
            issue.run._fence.issue((), error)

    def _abandon_step(self) -> None:
        """A newer run takes over from one scheduled piece by piece."""
        issue, self._stepping = self._stepping, None
        if issue is not None and not issue.run._fence.is_issued():
            issue.run._cancelled = True
            issue.run._fence.issue((), CancelledError(f"Run {issue.run.number} was given up for a newer one."))


class _Driver:
    """The thread that advances runs of one Worker that wait for something outside the stream, in order."""

    def __init__(self, advance: Callable[[_Issue], None]) -> None:
        self._advance = advance
        self._issues: queue.SimpleQueue[_Issue | None] = queue.SimpleQueue()
        self._open = 0
        self._changed = threading.Condition()
        threading.Thread(target=self._serve, name="gpuexec-driver", daemon=True).start()

    def put(self, issue: _Issue) -> None:
        """Add a run."""
        with self._changed:
            self._open += 1
        self._issues.put(issue)

    def is_busy(self) -> bool:
        """Return whether runs are waiting here; later ones must queue behind them."""
        return self._open > 0

    def synchronize(self) -> None:
        """Wait until no run is waiting here."""
        with self._changed:
            self._changed.wait_for(lambda: self._open == 0)

    def close(self) -> None:
        """End the thread once its runs are submitted."""
        self._issues.put(None)

    def _serve(self) -> None:
        while (issue := self._issues.get()) is not None:
            self._advance(issue)
            with self._changed:
                self._open -= 1
                self._changed.notify_all()


def _layers(origins: Sequence[str]) -> list[tuple[int, int]]:
    """Return the half-open ranges of commands that stem from one node each."""
    ranges: list[tuple[int, int]] = []
    for index, origin in enumerate(origins):
        if ranges and origins[ranges[-1][0]] == origin:
            ranges[-1] = (ranges[-1][0], index + 1)
        else:
            ranges.append((index, index + 1))
    return ranges


def _content(item: GivenInput) -> bytes | None:
    return item.array.tobytes() if isinstance(item, HostArray) and item.array is not None else None


def _contents(plan: Plan, specs: Mapping[str, TensorSpec]) -> dict[str, bytes]:
    """Return the content of the inputs that planning read."""
    contents = {}
    for read in plan.reads:
        value = specs[read.input].value
        assert value is not None
        contents[read.input] = value.array.tobytes()
    return contents


__all__ = ["Counters", "Engine", "Role", "Run", "Step"]
