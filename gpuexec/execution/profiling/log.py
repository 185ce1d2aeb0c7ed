"""The log of a profiler: what the package tells it while runs are put on their streams."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpuexec.devices.cuda.cuda_ranges import open_ranges
from gpuexec.devices.device import Device, Stream
from gpuexec.execution.profiling.alignment import Alignment, Base
from gpuexec.execution.profiling.backlog import Backlog
from gpuexec.execution.profiling.layers import PlanLayers
from gpuexec.execution.profiling.naming import Naming
from gpuexec.execution.profiling.rows import EventRow
from gpuexec.execution.profiling.run_profile import RunProfile

_EVENTS_KEPT = 100_000
_SIZES_KEPT = 256


@dataclass(frozen=True, slots=True)
class _Begun:
    name: str
    about: str
    run: int
    start_ms: float


class ProfileLog:
    """Runs and events of a profiler, as a `phases.Witness` and for `RunProfile`. Any number of threads may use it.

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
        # Reentrant: a collection of garbage may give memory back, which is heard of, in the middle of a call.
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
        """Hear that a phase begins; see `gpuexec.system.phases`."""
        if self._ranges is not None:
            self._ranges.push(f"{name} {about}" if about else name)
        return _Begun(name, about, run, self.read_ms())

    def end_phase(self, begun: object) -> None:
        """Hear that it is over."""
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
