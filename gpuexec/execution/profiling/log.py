"""Profile log: runs and events of a profiler, written while runs are submitted and timed by events on their streams.

Nothing is waited for. Each layer of a run has an event before and one behind it; their times are read once they are
done, and the events are released then.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuexec.devices.cuda.cuda_ranges import open_ranges
from gpuexec.devices.device import Device, Stream, TimedEvent
from gpuexec.errors import GpuexecError
from gpuexec.execution.profiling.alignment import Alignment, Base
from gpuexec.execution.profiling.layers import Layer, PlanLayers
from gpuexec.execution.profiling.rows import HOST, EventRow, LayerRow, MemoryRow, RunRow

_NOTHING = contextlib.nullcontext()
_EVENTS_KEPT = 100_000
_SIZES_KEPT = 256
# Layers of one run whose events are kept before finished ones are read: a loop may have any number.
_LAPS_OPEN = 256


class ProfileLog:
    """Runs and events of a profiler, as a `phases.EventReceiver` and for `RunProfile`. Thread-safe.

    Args:
        keep_runs: How many runs are remembered, the last ones.
        memory: Whether to note at each layer what memory is held.
        nvtx: Whether to mark layers and phases for NVIDIA's profilers, by NVTX.
        clock: Tells the host's time, in seconds.

    Raises:
        DeviceNotFoundError: ``nvtx``, and CuPy's NVTX is not there.
    """

    def __init__(self, keep_runs: int, *, memory: bool, nvtx: bool, clock: Callable[[], float]) -> None:
        self._clock, self._has_memory = clock, memory
        self._ranges = open_ranges() if nvtx else None
        self._origin_s = clock()
        self._runs: deque[RunProfile] = deque(maxlen=keep_runs)
        self.backlog = Backlog(keep_runs)
        self._events: deque[EventRow] = deque(maxlen=_EVENTS_KEPT)
        self._count = 0
        self._alignment = Alignment(self.read_ms)
        self._naming = Naming()
        # What is known of plans: the layers of a size, and the number of a plan; keys are held, so no id comes twice.
        self._sizes: OrderedDict[int, tuple[object, PlanLayers]] = OrderedDict()
        self._numbers: dict[int, tuple[object, int]] = {}
        # Reentrant: a collection of garbage may give memory back, which is recorded, in the middle of a call.
        self._lock = threading.RLock()

    @property
    def count(self) -> int:
        """How many runs there were."""
        return self._count

    @property
    def events(self) -> list[EventRow]:
        """Phases and moments, in the order they ended."""
        with self._lock:
            return list(self._events)

    def settle_all(self) -> list[RunProfile]:
        """Wait for the runs that are remembered, and return them."""
        with self._lock:
            runs = list(self._runs)
        self.backlog.settle_all(runs)
        return runs

    def begin_phase(self, name: str, about: str, run: int = -1) -> object:
        """Record that a phase begins; see `gpuexec.system.phases`."""
        if self._ranges is not None:
            self._ranges.push(f"{name} {about}" if about else name)
        return _Begun(name, about, run, self.read_ms())

    def end_phase(self, begun: object) -> None:
        """Record that it is over."""
        assert isinstance(begun, _Begun)
        if self._ranges is not None:
            self._ranges.pop()
        self._note(begun.name, begun.about, begun.run, 0, begun.start_ms, self.read_ms() - begun.start_ms)

    def note_moment(self, name: str, about: str, nbytes: int, took_ms: float, run: int = -1) -> None:
        """Record an event that is over."""
        self._note(name, about, run, nbytes, self.read_ms() - took_ms, took_ms)

    def open_run(
        self, model: str, device: Device, stream: Stream, read_memory: Callable[[], Mapping[str, int]]
    ) -> RunProfile:
        """Return the profile of a run that begins."""
        with self._lock:
            number, self._count = self._count, self._count + 1
        run = RunProfile(self, number, model, device, stream, read_memory if self._has_memory else None)
        self.backlog.settle_done()
        self.backlog.add(run)
        with self._lock:
            self._runs.append(run)
        return run

    def find_layers(self, size: object, plan: object, describe: Callable[[int], PlanLayers]) -> PlanLayers:
        """Return the layers of a size of a plan, found out by ``describe`` (of the plan's number) the first time."""
        with self._lock:
            found = self._sizes.get(id(size))
            if found is not None:
                self._sizes.move_to_end(id(size))
                return found[1]
            if id(plan) not in self._numbers:
                self._numbers[id(plan)] = (plan, len(self._numbers))
            number = self._numbers[id(plan)][1]
        layers = describe(number)
        with self._lock:
            self._sizes[id(size)] = (size, layers)
            if len(self._sizes) > _SIZES_KEPT:
                self._sizes.popitem(last=False)
        return layers

    def align(self, device: Device) -> Base:
        """Return an event of a device of which is known when it was by the profiler's clock."""
        with self._lock:
            return self._alignment.find(device)

    def name_thread(self) -> str:
        """Return the name of the calling thread; no other has it."""
        with self._lock:
            return self._naming.name_thread()

    def name_stream(self, device: Device, stream: Stream, kind: str) -> str:
        """Return the name of a stream for a kind of work; no other of the device has it."""
        with self._lock:
            return self._naming.name_stream(device, stream, kind)

    def read_ms(self) -> float:
        """Return the time since the profiler was made."""
        return (self._clock() - self._origin_s) * 1e3

    @contextlib.contextmanager
    def in_range(self, name: str) -> Iterator[None]:
        """Mark what is done in the context for NVIDIA's profilers, if that was asked for."""
        if self._ranges is None:
            yield
            return
        self._ranges.push(name)
        try:
            yield
        finally:
            self._ranges.pop()

    def _note(self, *row: Any) -> None:
        name, about, run, nbytes, start_ms, duration_ms = row
        with self._lock:
            place = self._naming.name_thread()
            self._events.append(EventRow(name, about, place, run, nbytes, start_ms, duration_ms))


@dataclass(slots=True, eq=False)
class Lap:
    """Work between two events; its times are set once it is settled, None where it failed."""

    start: TimedEvent | None
    end: TimedEvent | None
    start_ms: float | None = None
    duration_ms: float | None = None


@dataclass(slots=True, eq=False)
class LayerEntry:
    """A layer put on a stream, or computed by the host."""

    layer: Layer
    plan: int
    arena: int
    issued_ms: float
    issue_ms: float
    lap: Lap
    thread: str
    held: Mapping[str, int] = field(default_factory=dict)


class RunProfile:
    """The rows of one run.

    Args:
        log: Of the profiler whose run it is.
        number: Among the profiler's runs.
        model: Name of the model.
        device: Where.
        stream: The stream it is put on.
        read_memory: Returns the bytes held, by purpose; None: memory is not recorded.
    """

    def __init__(
        self,
        log: ProfileLog,
        number: int,
        model: str,
        device: Device,
        stream: Stream,
        read_memory: Callable[[], Mapping[str, int]] | None,
    ) -> None:
        self.log, self.number, self.model = log, number, model
        self.device_name = device.name
        self.stream_name = log.name_stream(device, stream, "compute")
        self._device, self._stream, self._read_memory = device, stream, read_memory
        self._base = log.align(device)
        self._issued_ms = log.read_ms()
        self._whole = Lap(None, None)
        self._entries: list[LayerEntry] = []
        self._transfers: list[tuple[str, str, str, int, Lap]] = []
        self._open: deque[Lap] = deque()
        self.is_over = False

    def begin(self) -> None:
        """Record that the run's work begins on its stream."""
        self._whole.start = self._mark(self._stream)

    def end(self) -> None:
        """Record that all of the run is on the stream, or that no more will come, and release its resources."""
        self._read_memory, self.is_over = None, True
        if self._whole.start is not None:
            self._whole.end = self._mark(self._stream)
            self._open.append(self._whole)

    def open_plan(self, plan: PlanLayers, advance: Callable[[int], None]) -> Callable[[int], None]:
        """Return the submitter of a plan's commands up to one, layer by layer, by ``advance``."""
        layers = iter(plan.layers)

        def advance_layers(last: int) -> None:
            done = None
            while done is None or done.last < last:
                done = next(layers, None)
                if done is None:
                    return
                self._issue(plan, done, advance)

        return advance_layers

    def add_host_layer(self, layer: Layer, took_ms: float) -> None:
        """Record that the host has computed a layer."""
        now = self.log.read_ms()
        lap = Lap(None, None, now - took_ms, took_ms)
        thread = self.log.name_thread()
        self._entries.append(LayerEntry(layer, -1, 0, now - took_ms, took_ms, lap, thread, self._read_held()))

    @contextlib.contextmanager
    def time_transfer(self, stream: Stream, name: str, about: str, nbytes: int) -> Iterator[None]:
        """Time a transfer put on a stream within the context."""
        if stream is self._stream:
            named = self.stream_name.replace("compute", name, 1)
        else:
            named = self.log.name_stream(self._device, stream, name)
        place = f"{self.device_name} stream {named}"
        start = self._mark(stream)
        yield
        lap = Lap(start, self._mark(stream))
        self._transfers.append((name, about, place, nbytes, lap))
        self._open.append(lap)
        # A readback may come any time after the run.
        self.log.backlog.add(self)

    def begin_phase(self, name: str, about: str) -> object:
        """Record that a phase of the run begins; see `gpuexec.system.phases`."""
        return self.log.begin_phase(name, about, self.number)

    def end_phase(self, begun: object) -> None:
        """Record that it is over."""
        self.log.end_phase(begun)

    def note_moment(self, name: str, about: str, nbytes: int, took_ms: float) -> None:
        """Record an event that is over."""
        self.log.note_moment(name, about, nbytes, took_ms, self.number)

    @property
    def is_waiting(self) -> bool:
        """True if times are still to be read."""
        return bool(self._open)

    def settle(self, *, waits: bool) -> None:
        """Read the times of finished work; with ``waits``, of all work issued so far."""
        while self._open:
            lap = self._open[0]
            assert lap.start is not None and lap.end is not None
            # Failed work has no time; the run raises its error.
            with contextlib.suppress(GpuexecError):
                if not waits and not lap.end.is_done():
                    return
                lap.end.synchronize()
                duration_ms = lap.end.elapsed_ms(lap.start)
                # Computed from the end: an event before a run's first command may carry the error of the run before.
                lap.start_ms = self._base.host_ms + lap.end.elapsed_ms(self._base.event) - duration_ms
                lap.duration_ms = duration_ms
            lap.start = lap.end = None
            self._open.popleft()

    def row(self) -> RunRow:
        """Return the run as a row."""
        whole = self._whole
        return RunRow(
            self.number,
            self.model,
            self.device_name,
            self._issued_ms,
            whole.start_ms,
            whole.duration_ms,
            len(self._entries),
            self.stream_name,
        )

    def list_layers(self) -> list[LayerRow]:
        """Return the layers, in the order they were issued."""
        return [
            LayerRow(
                self.number,
                self.model,
                entry.plan,
                entry.layer.node,
                entry.layer.operator,
                HOST if entry.plan < 0 else self.device_name,
                entry.layer.commands,
                entry.layer.bytes_read,
                entry.layer.bytes_written,
                entry.layer.flops,
                entry.issued_ms,
                entry.issue_ms,
                entry.lap.start_ms,
                entry.lap.duration_ms,
                self.stream_name,
                entry.thread,
            )
            for entry in list(self._entries)
        ]

    def list_transfers(self) -> list[EventRow]:
        """Return the copies to the device and back, by the device's clock."""
        return [
            EventRow(name, about, place, self.number, nbytes, lap.start_ms, lap.duration_ms)
            for name, about, place, nbytes, lap in list(self._transfers)
        ]

    def list_memory(self) -> list[MemoryRow]:
        """Return the memory held at each layer, where that was asked for."""
        return [
            MemoryRow(
                self.number,
                entry.plan,
                entry.layer.node,
                entry.issued_ms,
                entry.layer.arena_used,
                entry.arena,
                entry.layer.values,
                tuple(entry.held.items()),
                self.device_name,
                self.stream_name,
            )
            for entry in list(self._entries)
            if entry.held
        ]

    def _issue(self, plan: PlanLayers, layer: Layer, advance: Callable[[int], None]) -> None:
        start = self._mark(self._stream)
        with self.log.in_range(layer.node):
            issued_ms = self.log.read_ms()
            advance(layer.last)
            issue_ms = self.log.read_ms() - issued_ms
        lap = Lap(start, self._mark(self._stream))
        thread, held = self.log.name_thread(), self._read_held()
        self._entries.append(LayerEntry(layer, plan.number, plan.arena, issued_ms, issue_ms, lap, thread, held))
        self._open.append(lap)
        if len(self._open) > _LAPS_OPEN:
            self.log.backlog.settle(self)

    def _read_held(self) -> Mapping[str, int]:
        return {} if self._read_memory is None else self._read_memory()

    def _mark(self, stream: Stream) -> TimedEvent:
        event = self._device.create_timed_event()
        stream.record(event)
        return event


def timing(
    profile: RunProfile | None, stream: Stream, name: str, about: str, nbytes: int
) -> contextlib.AbstractContextManager[None]:
    """Return a context for a transfer on a stream, timed if the run is profiled."""
    return _NOTHING if profile is None else profile.time_transfer(stream, name, about, nbytes)


class Backlog:
    """Runs whose event times are read as they finish, so that events do not pile up while nobody asks.

    Args:
        max_runs: How many runs it keeps; older ones keep their events until they are forgotten or asked for.
    """

    def __init__(self, max_runs: int) -> None:
        self._max_runs = max_runs
        self._runs: dict[int, RunProfile] = {}
        # Reentrant, for the reason of the profiler's lock.
        self._lock = threading.RLock()
        self._settling = threading.Lock()

    def add(self, run: RunProfile) -> None:
        """Add a run that is about to have events, or has further ones."""
        with self._lock:
            self._runs[run.number] = run
            if len(self._runs) > self._max_runs:
                del self._runs[min(self._runs)]

    def settle_done(self) -> None:
        """Read the times of finished runs, up to the first unfinished one; waits for nothing."""
        with self._lock:
            runs = list(self._runs.values())
        for run in runs:
            self.settle(run)
            with self._lock:
                if run.is_waiting:
                    return
                if run.is_over:
                    self._runs.pop(run.number, None)

    def settle(self, run: RunProfile) -> None:
        """Read the times of a run's finished work, unless another thread is doing so; waits for nothing."""
        held: list[bool] = []
        try:
            held.extend(map(self._settling.acquire, (False,)))  # see `gpuexec.devices.latch`
            if held[0]:
                run.settle(waits=False)
        finally:
            if held and held[0]:
                self._settling.release()

    def settle_all(self, runs: Iterable[RunProfile]) -> None:
        """Wait for all issued work of runs, and read its times."""
        with self._settling:
            for run in runs:
                run.settle(waits=True)


class Naming:
    """Unique names: the first of a kind is named for the kind, later ones get a number.

    Names keep nothing alive. The caller holds a lock.
    """

    def __init__(self) -> None:
        self._threads: weakref.WeakKeyDictionary[threading.Thread, str] = weakref.WeakKeyDictionary()
        self._streams: dict[str, weakref.WeakKeyDictionary[Stream, str]] = {}
        self._taken: set[tuple[str, str]] = set()

    def name_thread(self) -> str:
        """Return a unique name of the calling thread: its own, if no other had it before."""
        thread = threading.current_thread()
        name = self._threads.get(thread)
        return self._threads.setdefault(thread, self._choose("", thread.name)) if name is None else name

    def name_stream(self, device: Device, stream: Stream, kind: str) -> str:
        """Return a unique name of a stream among those of its device for a kind of work."""
        streams = self._streams.setdefault(kind, weakref.WeakKeyDictionary())
        name = streams.get(stream)
        return streams.setdefault(stream, self._choose(device.name, kind)) if name is None else name

    def _choose(self, place: str, wanted: str) -> str:
        name, number = wanted, 1
        while (place, name) in self._taken:
            number += 1
            name = f"{wanted} {number}"
        self._taken.add((place, name))
        return name


@dataclass(frozen=True, slots=True)
class _Begun:
    name: str
    about: str
    run: int
    start_ms: float
