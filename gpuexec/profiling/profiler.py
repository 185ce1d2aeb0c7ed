"""The profiler: timings and events of runs, collected while they are submitted.

Chosen when running, not when building or loading. Without a profiler, a run pays for a test for None.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuexec import phases
from gpuexec.errors import InputError
from gpuexec.profiling import tables, trace
from gpuexec.profiling.alignment import Alignment, Base
from gpuexec.profiling.backlog import Backlog
from gpuexec.profiling.layers import PlanLayers
from gpuexec.profiling.naming import Naming
from gpuexec.profiling.rows import EventRow, LayerRow, MemoryRow, RunRow, Summary
from gpuexec.profiling.run_profile import RunProfile
from gpuexec.profiling.summaries import find_total, summarise
from gpuexec.runtime.cuda_ranges import open_ranges
from gpuexec.runtime.device import Device, Stream

if TYPE_CHECKING:
    import pandas

_NOTHING = contextlib.nullcontext()
_RUNS_KEPT = 1000
_EVENTS_KEPT = 100_000
_SIZES_KEPT = 256
# Events that stand for an implicit host wait, by the names of `gpuexec.resources.syncs`.
SYNCS = ("host read", "host wait", "host call")


@dataclass(frozen=True, slots=True)
class _Begun:
    name: str
    about: str
    run: int
    start_ms: float


class Profiler:
    """A profiler of runs: time by layer, and events around them.

        with gx.Profiler() as profiler:
            worker.run(x)
        profiler.table()

    It records all runs scheduled in the context (a thread begun there has a context of its own), of any Worker or
    Method, but for those that have a profiler of their own (``Worker(model, profiler=...)``, ``Program.load_method``,
    ``Module``); but not a Replay's. A run that is profiled is put on its stream as launches, layer by layer, and not as
    a graph; what would run side by side runs one after the other. Nothing is waited for before rows are asked for. Any
    number of threads may use it.

    Args:
        keep_runs: How many runs are remembered, the last ones.
        memory: Whether to note at each layer what memory is held.
        nvtx: Whether to mark layers and phases for NVIDIA's profilers, by NVTX.
        clock: Clock of the host, in seconds.

    Raises:
        DeviceNotFoundError: ``nvtx``, and CuPy's NVTX is not there.
        InputError: ``keep_runs`` is below 1.
    """

    def __init__(
        self,
        *,
        keep_runs: int = _RUNS_KEPT,
        memory: bool = True,
        nvtx: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not isinstance(keep_runs, int) or isinstance(keep_runs, bool) or keep_runs < 1:
            raise InputError(f"keep_runs must be a whole number, at least 1, got {keep_runs!r}.")
        self._clock, self._has_memory = clock, memory
        self._ranges = open_ranges() if nvtx else None
        self._origin_s = clock()
        self._runs: deque[RunProfile] = deque(maxlen=keep_runs)
        self.backlog = Backlog(keep_runs)
        self._events: deque[EventRow] = deque(maxlen=_EVENTS_KEPT)
        self._count = self._plans = 0
        self._alignment = Alignment(self.read_ms)
        self._naming = Naming()
        # Layers by plan and size, and plan numbers; keys are kept alive, so no id is reused.
        self._sizes: OrderedDict[int, tuple[object, PlanLayers]] = OrderedDict()
        self._numbers: dict[int, tuple[object, int]] = {}
        # Reentrant: garbage collection may free memory, which is an event, in the middle of a call.
        self._lock = threading.RLock()

    def __enter__(self) -> Profiler:
        phases.enter(self)
        return self

    def __exit__(self, *_: object) -> None:
        phases.leave()

    def __repr__(self) -> str:
        return f"Profiler({self._count} runs)"

    # ---- results; all of these wait for the submitted runs

    def rows(self) -> tuple[LayerRow, ...]:
        """Return the layers of all runs, in the order they were issued."""
        return tuple(row for run in self._settle_all() for row in run.list_layers())

    def runs(self) -> tuple[RunRow, ...]:
        """Return the runs."""
        return tuple(run.row() for run in self._settle_all())

    def events(self) -> tuple[EventRow, ...]:
        """Return the package's events: phases, host reads and calls, transfers, allocations and frees."""
        transfers = [row for run in self._settle_all() for row in run.list_transfers()]
        with self._lock:
            rows = [*self._events, *transfers]
        return tuple(sorted(rows, key=lambda row: (row.start_ms is None, row.start_ms or 0.0)))

    def memory(self) -> tuple[MemoryRow, ...]:
        """Return the memory held at each layer."""
        return tuple(row for run in self._settle_all() for row in run.list_memory())

    def count_syncs(self) -> int:
        """Count implicit host waits, reads and computations; `events` names each."""
        return sum(row.name in SYNCS for row in self.events())

    def summarise(self, by: str = "layer", *, skip: int = 0) -> tuple[Summary, ...]:
        """Summarize layers or operators over runs: percentiles, the longest first.

        Args:
            by: ``"layer"`` or ``"operator"``.
            skip: Runs that are left out, the first ones.

        Raises:
            InputError: ``by`` is something else.
        """
        return summarise(self.rows(), by, skip)

    def find_total(self, prefix: str = "", *, skip: int = 0) -> Summary | None:
        """Return the total per run of all layers whose names begin with a prefix; None where there are none.

        The names exporters give are paths, so that a prefix denotes a module: ``"/encoder/layer.0/"``.
        """
        return find_total(self.rows(), prefix, skip)

    # ---- printed and exported

    def table(self, by: str = "layer", *, skip: int = 0, limit: int | None = 40) -> None:
        """Print the summary as a table by rich, up to ``limit`` rows (None: all)."""
        tables.print_summary(self.summarise(by, skip=skip), by, limit)

    def to_dataframe(self, by: str | None = None) -> pandas.DataFrame:
        """Return the layers of all runs, or a summary, as a DataFrame.

        Raises:
            InputError: pandas is not installed, or ``by`` is unknown.
        """
        return tables.make_dataframe(self.rows() if by is None else self.summarise(by))

    def save_tsv(self, path: str | os.PathLike[str], by: str | None = None) -> None:
        """Write the layers of all runs, or a summary, as a table of tab-separated values."""
        tables.write_tsv(path, self.rows() if by is None else self.summarise(by))

    def save_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write a trace that chrome://tracing and Perfetto open: threads, streams, and memory as counters."""
        trace.write_trace(path, self.rows(), self.events(), self.memory())

    # ---- called by the package

    def begin_phase(self, name: str, about: str, run: int = -1) -> object:
        """Record the begin of a phase; see `gpuexec.phases`."""
        if self._ranges is not None:
            self._ranges.push(f"{name} {about}" if about else name)
        return _Begun(name, about, run, self.read_ms())

    def end_phase(self, begun: object) -> None:
        """Record the end of a phase."""
        assert isinstance(begun, _Begun)
        if self._ranges is not None:
            self._ranges.pop()
        self._note(begun.name, begun.about, begun.run, 0, begun.start_ms, self.read_ms() - begun.start_ms)

    def hear(self, name: str, about: str, nbytes: int, took_ms: float, run: int = -1) -> None:
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
        """Return the layers of a plan at a size, computed by ``describe`` (of the plan's number) the first time."""
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
        """Return an event of a device whose time by the profiler's clock is known."""
        with self._lock:
            return self._alignment.find(device)

    def name_thread(self) -> str:
        """Return the unique name of the calling thread."""
        with self._lock:
            return self._naming.name_thread()

    def name_stream(self, device: Device, stream: Stream, kind: str) -> str:
        """Return the unique name of a stream for a kind of work."""
        with self._lock:
            return self._naming.name_stream(device, stream, kind)

    def read_ms(self) -> float:
        """Return the time since the profiler was made."""
        return (self._clock() - self._origin_s) * 1e3

    @contextlib.contextmanager
    def in_range(self, name: str) -> Iterator[None]:
        """Mark the context as a range for NVIDIA's profilers, if that was asked for."""
        if self._ranges is None:
            yield
            return
        self._ranges.push(name)
        try:
            yield
        finally:
            self._ranges.pop()

    def _settle_all(self) -> list[RunProfile]:
        with self._lock:
            runs = list(self._runs)
        self.backlog.settle_all(runs)
        return runs

    def _note(self, *row: Any) -> None:
        name, about, run, nbytes, start_ms, duration_ms = row
        with self._lock:
            place = self._naming.name_thread()
            self._events.append(EventRow(name, about, place, run, nbytes, start_ms, duration_ms))


def check_profiler(given: object) -> None:
    """Check that something is a profiler, or None.

    Raises:
        InputError: It is neither.
    """
    if not isinstance(given, Profiler | None):
        raise InputError(f"profiler takes a gpuexec.Profiler or None, got {given!r}.")


def find_profiler(own: Profiler | None) -> Profiler | None:
    """Return the profiler for what begins now: ``own``, else the context's, else None."""
    if own is not None:
        return own
    witness = phases.find_witness()
    if witness is None:
        return None
    if isinstance(witness, RunProfile):
        return witness.profiler
    return witness if isinstance(witness, Profiler) else None


def watching(profiler: Profiler | None, name: str) -> contextlib.AbstractContextManager[None]:
    """Return a context that reports a phase, and all events within it, to a profiler, if there is one."""
    return _NOTHING if profiler is None else _watch(profiler, name)


@contextlib.contextmanager
def _watch(profiler: Profiler, name: str) -> Iterator[None]:
    with phases.witnessed_by(profiler), phases.phase(name):
        yield
