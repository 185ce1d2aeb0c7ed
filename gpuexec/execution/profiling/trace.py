"""Trace Event Format export, for chrome://tracing and Perfetto.

One process stands for the host, with its threads, and one for each device, with its streams. Times are in microseconds.
Spans of a track lie in each other or apart, as the format wants it; one that would not has a track beside.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpuexec.execution.profiling.rows import HOST, EventRow, LayerRow, MemoryRow
from gpuexec.system.atomic_file import write_file

_Event = dict[str, Any]
_HOST_PID = 1
_ISSUING, _COMPUTING = "issuing layers", "host layers"


@dataclass(frozen=True, slots=True)
class _Span:
    """An interval in whole nanoseconds, so that begins and ends keep their order."""

    process: str
    thread: str
    name: str
    kind: str
    start_ns: int
    end_ns: int
    about: dict[str, Any]


class _Tracks:
    """Numbers of processes and threads, assigned on first use."""

    def __init__(self) -> None:
        self._pids: dict[str, int] = {HOST: _HOST_PID}
        self._tids: dict[tuple[str, str], int] = {}

    def find(self, process: str, thread: str) -> dict[str, int]:
        """Return an event's process and thread fields."""
        pid = self._pids.setdefault(process, len(self._pids) + _HOST_PID)
        return {"pid": pid, "tid": self._tids.setdefault((process, thread), len(self._tids) + 1)}

    def describe(self) -> Iterator[_Event]:
        """Yield the names of all processes and threads."""
        for process, pid in self._pids.items():
            yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": process}}
        for (process, thread), tid in self._tids.items():
            pid = self._pids[process]
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": thread}}


def make_trace(layers: Sequence[LayerRow], events: Sequence[EventRow], memory: Sequence[MemoryRow]) -> dict[str, Any]:
    """Return the trace as data."""
    tracks = _Tracks()
    spans = [each for row in layers for each in _trace_layer(row)]
    moments = []
    for row in events:
        if row.start_ms is None:
            continue
        place, about = _find_place(row), {"about": row.about, "run": row.run, "bytes": row.nbytes}
        if row.duration_ms:
            spans.append(_make_span(*place, row.name, "event", row.start_ms, row.duration_ms, about))
        else:
            fields = {"s": "t", "name": row.name, "cat": "event", "ts": row.start_ms * 1e3, "args": about}
            moments.append({"ph": "i", **fields, **tracks.find(*place)})
    found = [
        *_place_spans(spans, tracks),
        *moments,
        *(each for row in memory for each in _trace_memory(row, tracks)),
    ]
    # An enclosing span comes before those within it.
    found.sort(key=lambda event: (float(event["ts"]), -float(event.get("dur", 0.0))))
    return {"traceEvents": [*tracks.describe(), *found], "displayTimeUnit": "ms"}


def write_trace(
    path: str | os.PathLike[str],
    layers: Sequence[LayerRow],
    events: Sequence[EventRow],
    memory: Sequence[MemoryRow],
) -> None:
    """Write the trace to a file.

    Raises:
        AccessError: It can't be written.
    """
    write_file(path, json.dumps(make_trace(layers, events, memory)))


def _trace_layer(row: LayerRow) -> Iterator[_Span]:
    """Yield a layer twice: its submission by the host, and its execution by the device."""
    about = {
        "run": row.run,
        "plan": row.plan,
        "operator": row.operator,
        "commands": [str(command) for command in row.commands],
        "bytes read": row.bytes_read,
        "bytes written": row.bytes_written,
        "FLOP": row.flops,
    }
    if row.device == HOST:
        where = (HOST, f"{_COMPUTING} ({row.thread})")
        yield _make_span(*where, row.node, "layer", row.issued_ms, row.issue_ms, about)
        return
    where = (HOST, f"{_ISSUING} ({row.thread})")
    yield _make_span(*where, row.node, "issue", row.issued_ms, row.issue_ms, {"run": row.run})
    if row.start_ms is not None and row.duration_ms is not None:
        yield _make_span(row.device, row.stream, row.node, "layer", row.start_ms, row.duration_ms, about)


def _find_place(row: EventRow) -> tuple[str, str]:
    """Return the process and thread of an event."""
    device, _, stream = row.place.rpartition(" stream ")
    return (device, stream) if device else (HOST, row.place)


def _trace_memory(row: MemoryRow, tracks: _Tracks) -> Iterator[_Event]:
    """Yield the memory held by the runs of a stream, by kind, and the arena bytes in use."""
    counters = {"held": dict(row.held), "arena": {"in use": row.arena_used, "free": row.arena - row.arena_used}}
    for name, values in counters.items():
        where = tracks.find(row.device, row.stream) | {"tid": 0}
        yield {"ph": "C", "name": f"{name} ({row.stream})", "ts": row.at_ms * 1e3, **where, "args": values}


def _make_span(
    process: str, thread: str, name: str, kind: str, start_ms: float, duration_ms: float, about: dict[str, Any]
) -> _Span:
    return _Span(process, thread, name, kind, round(start_ms * 1e6), round((start_ms + duration_ms) * 1e6), about)


def _place_spans(spans: Sequence[_Span], tracks: _Tracks) -> Iterator[_Event]:
    """Yield spans as events, each on the first track of its thread where it nests with the open ones."""
    open_ends: dict[tuple[str, str], list[list[int]]] = {}
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)):
        beside = open_ends.setdefault((span.process, span.thread), [])
        number = next((n for n, ends in enumerate(beside) if _has_room(ends, span)), len(beside))
        if number == len(beside):
            beside.append([])
        beside[number].append(span.end_ns)
        yield {
            "ph": "X",
            "name": span.name,
            "cat": span.kind,
            "ts": span.start_ns / 1e3,
            "dur": (span.end_ns - span.start_ns) / 1e3,
            **tracks.find(span.process, f"{span.thread}, beside {number}" if number else span.thread),
            "args": span.about,
        }


def _has_room(ends: list[int], span: _Span) -> bool:
    """Return whether a span nests in all open spans of a track; ended ones are dropped."""
    while ends and ends[-1] <= span.start_ns:
        ends.pop()
    return not ends or span.end_ns <= ends[-1]
