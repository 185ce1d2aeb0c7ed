"""Profile of one run: rows written while it is submitted, timed by events on its stream.

Nothing is waited for. Each layer has an event before and one behind it; their times are read once they are done, and
the events are released then.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuexec.devices.device import Device, Stream, TimedEvent
from gpuexec.errors import GpuexecError
from gpuexec.execution.profiling.layers import Layer, PlanLayers
from gpuexec.execution.profiling.rows import HOST, EventRow, LayerRow, MemoryRow, RunRow

if TYPE_CHECKING:
    from gpuexec.execution.profiling.log import ProfileLog

_NOTHING = contextlib.nullcontext()
# Layers of one run whose events are kept before finished ones are read: a loop may have any number.
_LAPS_OPEN = 256


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

    # ---- recorded while the run is submitted

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
        """Hear that the host has computed a layer."""
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
        """Hear that a phase of the run begins; see `gpuexec.system.phases`."""
        return self.log.begin_phase(name, about, self.number)

    def end_phase(self, begun: object) -> None:
        """Hear that it is over."""
        self.log.end_phase(begun)

    def note_moment(self, name: str, about: str, nbytes: int, took_ms: float) -> None:
        """Record an event that is over."""
        self.log.note_moment(name, about, nbytes, took_ms, self.number)

    # ---- results

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

    # ---- parts

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
