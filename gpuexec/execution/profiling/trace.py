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
class Span:
    """An interval in whole nanoseconds, so that begins and ends keep their order.

    ``flow`` is the number that a layer on a device shares with its submission by the host; None: there is no other.
    """

    process: str
    thread: str
    name: str
    kind: str
    start_ns: int
    end_ns: int
    about: dict[str, Any]
    flow: int | None = None


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
    placed = [(span, tracks.find(span.process, track)) for span, track in place_spans(list_spans(layers, events))]
    spans = [_trace_span(span, where) for span, where in placed]
    arrows = [_trace_arrow(span, where) for span, where in placed if span.flow is not None]
    moments = []
    for row in events:
        if row.start_ms is not None and not row.duration_ms:
            fields = {
                "s": "t",
                "name": row.name,
                "cat": "event",
                "ts": row.start_ms * 1e3,
                "args": _describe_event(row),
            }
            moments.append({"ph": "i", **fields, **tracks.find(*find_place(row))})
    found = [
        *spans,
        *arrows,
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


def list_spans(layers: Sequence[LayerRow], events: Sequence[EventRow]) -> list[Span]:
    """Return the intervals of layers, by the host and by the device, and of events that took time."""
    spans = [span for flow, row in enumerate(layers) for span in _trace_layer(row, flow)]
    for row in events:
        if row.start_ms is not None and row.duration_ms:
            place = find_place(row)
            spans.append(_make_span(*place, row.name, "event", row.start_ms, row.duration_ms, _describe_event(row)))
    return spans


def _describe_event(row: EventRow) -> dict[str, Any]:
    return {"about": row.about, "run": row.run, "bytes": row.nbytes}


def _trace_layer(row: LayerRow, flow: int) -> Iterator[Span]:
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
    if row.start_ms is None or row.duration_ms is None:
        yield _make_span(*where, row.node, "issue", row.issued_ms, row.issue_ms, {"run": row.run})
        return
    yield _make_span(*where, row.node, "issue", row.issued_ms, row.issue_ms, {"run": row.run}, flow)
    yield _make_span(row.device, row.stream, row.node, "layer", row.start_ms, row.duration_ms, about, flow)


def find_place(row: EventRow) -> tuple[str, str]:
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
    process: str,
    thread: str,
    name: str,
    kind: str,
    start_ms: float,
    duration_ms: float,
    about: dict[str, Any],
    flow: int | None = None,
) -> Span:
    return Span(process, thread, name, kind, round(start_ms * 1e6), round((start_ms + duration_ms) * 1e6), about, flow)


def place_spans(spans: Sequence[Span]) -> Iterator[tuple[Span, str]]:
    """Yield spans with their tracks, by start: each on the first of its thread where it nests with the open ones."""
    open_ends: dict[tuple[str, str], list[list[int]]] = {}
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)):
        beside = open_ends.setdefault((span.process, span.thread), [])
        number = next((n for n, ends in enumerate(beside) if _has_room(ends, span)), len(beside))
        if number == len(beside):
            beside.append([])
        beside[number].append(span.end_ns)
        yield span, f"{span.thread}, beside {number}" if number else span.thread


def _trace_span(span: Span, where: dict[str, int]) -> _Event:
    times = {"ts": span.start_ns / 1e3, "dur": (span.end_ns - span.start_ns) / 1e3}
    return {"ph": "X", "name": span.name, "cat": span.kind, **times, **where, "args": span.about}


def _trace_arrow(span: Span, where: dict[str, int]) -> _Event:
    """Return the end of an arrow from a layer's submission to its execution."""
    end = {"ph": "s"} if span.kind == "issue" else {"ph": "f", "bp": "e"}
    return {**end, "id": span.flow, "name": "launch", "cat": "launch", "ts": span.start_ns / 1e3, **where}


def _has_room(ends: list[int], span: Span) -> bool:
    """Return whether a span nests in all open spans of a track; ended ones are dropped."""
    while ends and ends[-1] <= span.start_ns:
        ends.pop()
    return not ends or span.end_ns <= ends[-1]
