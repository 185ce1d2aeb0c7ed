"""The profiler: timings and events of runs, collected while they are submitted.

Chosen when running, not when building or loading. Without a profiler, a run pays for a test for None.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.execution.profiling import tables, trace
from gpuexec.execution.profiling.log import ProfileLog, RunProfile
from gpuexec.execution.profiling.rows import SYNCS, EventRow, LayerRow, MemoryRow, RunRow, Summary
from gpuexec.system import phases
from gpuexec.system.atomic_file import write_file
from gpuexec.system.records import encode

if TYPE_CHECKING:
    import pandas

_NOTHING = contextlib.nullcontext()
_RUNS_KEPT = 1000
_GROUP_KEYS: dict[str, Callable[[LayerRow], tuple[str, str]]] = {
    "layer": lambda row: (row.node, row.operator),
    "operator": lambda row: (row.operator, row.operator),
}


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

    Rows: `rows`, `runs`, `events`, `memory`, `count_syncs`, `summarise`, `find_total`; all of these wait for the
    submitted runs. Printed and exported: `table`, `to_dataframe`, `save_tsv`, `save_html`, `save_chrome_trace`.

    Args:
        keep_runs: How many runs are remembered, the last ones.
        memory: Whether to note at each layer what memory is held.
        nvtx: Whether to mark layers and phases for NVIDIA's profilers, by NVTX.
        clock: Clock of the host, in seconds.

    Raises:
        DeviceNotFoundError: ``nvtx``, and CuPy's NVTX is not there.
        InputError: ``keep_runs`` is below 1.

    Example:
        >>> with gx.Profiler() as profiler, gx.Worker(model, backend="cpu") as worker:
        ...     _ = worker.run(x)
        >>> sorted(row.name for row in profiler.summarise())[:2]      # the longest first, as they come
        ['head', 'layer1/conv+layer1/relu']
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
        self._log = ProfileLog(keep_runs, memory=memory, nvtx=nvtx, clock=clock)

    def __enter__(self) -> Profiler:
        phases.enter(self._log)
        return self

    def __exit__(self, *_: object) -> None:
        phases.leave()

    def __repr__(self) -> str:
        return f"Profiler({self._log.count} runs)"

    def _repr_html_(self) -> str:
        from gpuexec.execution.profiling.profile_page import make_profile_fragment

        return make_profile_fragment(self.runs(), self.rows(), self.events(), self.summarise())

    def rows(self) -> tuple[LayerRow, ...]:
        """Wait for all runs and return their layers, in the order they were issued."""
        return tuple(row for run in self._log.settle_all() for row in run.list_layers())

    def runs(self) -> tuple[RunRow, ...]:
        """Wait for all runs and return a row for each."""
        return tuple(run.row() for run in self._log.settle_all())

    def events(self) -> tuple[EventRow, ...]:
        """Wait for all runs and return what the package did: phases, host reads and calls, transfers, memory lent."""
        transfers = [row for run in self._log.settle_all() for row in run.list_transfers()]
        rows = [*self._log.events, *transfers]
        return tuple(sorted(rows, key=lambda row: (row.start_ms is None, row.start_ms or 0.0)))

    def memory(self) -> tuple[MemoryRow, ...]:
        """Wait for all runs and return what memory was held at each layer."""
        return tuple(row for run in self._log.settle_all() for row in run.list_memory())

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
        return _summarise_by(self.rows(), by, skip)

    def find_total(self, prefix: str = "", *, skip: int = 0) -> Summary | None:
        """Return the total per run of all layers whose names begin with a prefix; None where there are none.

        The names exporters give are paths, so that a prefix denotes a module: ``"/encoder/layer.0/"``.
        """
        return _sum_layers(self.rows(), prefix, skip)

    def table(self, by: str = "layer", *, skip: int = 0, limit: int | None = 40) -> None:
        """Print the summary as a table by rich, up to ``limit`` rows (None: all)."""
        tables.print_summary(self.summarise(by, skip=skip), by, limit)

    def to_dict(self, by: str = "layer", *, skip: int = 0) -> dict[str, Any]:
        """Wait for all runs and return them, their summary and the events around them as JSON data.

        Args:
            by: As for `summarise`.
            skip: As for `summarise`.

        Raises:
            InputError: ``by`` is something else.
        """
        return {
            "runs": encode([row for row in self.runs() if row.run >= skip]),
            "total": encode(self.find_total(skip=skip)),
            "by": by,
            "summary": encode(self.summarise(by, skip=skip)),
            "events": encode(self.events()),
            "syncs": self.count_syncs(),
        }

    def to_dataframe(self, by: str | None = None) -> pandas.DataFrame:
        """Return the layers of all runs, or a summary, as a DataFrame.

        Raises:
            InputError: pandas is not installed, or ``by`` is unknown.
        """
        return tables.make_dataframe(self.rows() if by is None else self.summarise(by))

    def save_tsv(self, path: str | os.PathLike[str], by: str | None = None) -> None:
        """Write the layers of all runs, or a summary, as a table of tab-separated values."""
        tables.write_tsv(path, self.rows() if by is None else self.summarise(by))

    def save_html(self, path: str | os.PathLike[str], *, runs: int = 1) -> None:
        """Write one HTML page that needs nothing else: segments, timeline, roofline, and the time of each layer.

        Segments are parts of a run that the device gets without the host in between; the page says what cut each.

        Args:
            path: Of the file.
            runs: How many runs the timeline shows, the last ones.

        Raises:
            InputError: ``runs`` is below 1.
            AccessError: The file can't be written.
        """
        if not isinstance(runs, int) or isinstance(runs, bool) or runs < 1:
            raise InputError(f"runs must be a whole number, at least 1, got {runs!r}.")
        # Drawn seldom, and every Worker imports this module.
        from gpuexec.execution.profiling.profile_page import make_profile_page

        page = make_profile_page(self.runs(), self.rows(), self.events(), self.summarise(), runs)
        write_file(path, page)

    def save_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write a trace that chrome://tracing and Perfetto open: threads, streams, launches, and memory as counters."""
        trace.write_trace(path, self.rows(), self.events(), self.memory())


def check_profiler(given: object) -> None:
    """Check that something is a profiler, or None.

    Raises:
        InputError: It is neither.
    """
    if not isinstance(given, Profiler | None):
        raise InputError(f"profiler takes a gpuexec.Profiler or None, got {given!r}.")


def find_log(own: Profiler | None) -> ProfileLog | None:
    """Return the log of who profiles what begins now: of ``own``, else of the context's profiler; mostly None."""
    if own is not None:
        return own._log
    receiver = phases.find_receiver()
    if receiver is None:
        return None
    if isinstance(receiver, RunProfile):
        return receiver.log
    return receiver if isinstance(receiver, ProfileLog) else None


def watching(log: ProfileLog | None, name: str) -> contextlib.AbstractContextManager[None]:
    """Return a context for a phase that a profiler's log, if there is one, gets, with all that is done in it."""
    return _NOTHING if log is None else _watch(log, name)


@contextlib.contextmanager
def _watch(log: ProfileLog, name: str) -> Iterator[None]:
    with phases.send_events_to(log), phases.phase(name):
        yield


@dataclass(slots=True)
class _Sum:
    """Times of a layer or operator: by run, and in all."""

    by_run: dict[int, float] = field(default_factory=dict)
    times: int = 0
    flops: int | None = 0
    nbytes: int = 0

    def add(self, row: LayerRow) -> None:
        assert row.duration_ms is not None
        self.by_run[row.run] = self.by_run.get(row.run, 0.0) + row.duration_ms
        self.times += 1
        self.flops = None if self.flops is None or row.flops is None else self.flops + row.flops
        self.nbytes += row.bytes_read + row.bytes_written


def _summarise_by(rows: Iterable[LayerRow], by: str, skip: int = 0) -> tuple[Summary, ...]:
    """Return a summary by ``"layer"`` or ``"operator"``, the longest first; ``skip`` runs are left out.

    Layers that failed, or are not done, are left out.

    Raises:
        InputError: ``by`` is something else.
    """
    if by not in _GROUP_KEYS:
        raise InputError(f"by takes {' or '.join(map(repr, _GROUP_KEYS))}, got {by!r}.")
    key = _GROUP_KEYS[by]
    sums: dict[tuple[str, str], _Sum] = {}
    for row in _list_done(rows, skip):
        sums.setdefault(key(row), _Sum()).add(row)
    whole = sum(sum(each.by_run.values()) for each in sums.values())
    found = [_summarise(name, operator, each, whole) for (name, operator), each in sums.items()]
    return tuple(sorted(found, key=lambda summary: -summary.total_ms))


def _sum_layers(rows: Sequence[LayerRow], prefix: str, skip: int = 0) -> Summary | None:
    """Return one summary of all layers whose names begin with a prefix; None where there are none."""
    total, whole = _Sum(), 0.0
    for row in _list_done(rows, skip):
        assert row.duration_ms is not None
        whole += row.duration_ms
        if row.node.startswith(prefix):
            total.add(row)
    return _summarise(prefix, "", total, whole) if total.times else None


def _list_done(rows: Iterable[LayerRow], skip: int) -> list[LayerRow]:
    return [row for row in rows if row.duration_ms is not None and row.run >= skip]


def _summarise(name: str, operator: str, total: _Sum, whole_ms: float) -> Summary:
    taken = np.array(list(total.by_run.values()))
    p10, p50, p90 = (float(each) for each in np.percentile(taken, (10, 50, 90)))
    runs, total_ms = len(taken), float(taken.sum())
    return Summary(
        name,
        operator,
        runs,
        total.times,
        total_ms,
        total_ms / whole_ms if whole_ms else 0.0,
        total_ms / runs,
        float(taken.min()),
        p10,
        p50,
        p90,
        float(taken.max()),
        None if total.flops is None else total.flops // runs,
        total.nbytes // runs,
    )
