"""Session profiles as ONNX Runtime writes them: a list of trace events, nodes in category Node."""

from __future__ import annotations

import json
import os
import time
from datetime import datetime
from typing import Any

from gpuexec.execution.profiling.profiler import Profiler
from gpuexec.system.atomic_file import write_file

# Longer sessions keep their last runs.
_RUNS_KEPT = 10_000


class SessionProfile:
    """Profile of a session's runs, written to a file once.

    Args:
        prefix: Prefix of the file's name.
        provider: The name of the provider that runs the nodes.
    """

    def __init__(self, prefix: str, provider: str) -> None:
        self.start_ns = time.time_ns()
        self.profiler = Profiler(keep_runs=_RUNS_KEPT, memory=False)
        self._prefix, self._provider = prefix, provider

    def write(self) -> str:
        """Write the file; return its path. Waits for the runs."""
        path = f"{self._prefix}_{datetime.now():%Y-%m-%d_%H-%M-%S_%f}.json"
        write_file(path, "[\n" + ",\n".join(json.dumps(event) for event in self._list_events()) + "\n]\n")
        return path

    def _list_events(self) -> list[dict[str, Any]]:
        runs = [
            _make_event("Session", "model_run", row.stream, row.start_ms, row.duration_ms, {"run": str(row.run)})
            for row in self.profiler.runs()
        ]
        nodes = [
            _make_event(
                "Node",
                f"{row.node}_kernel_time",
                row.stream,
                row.start_ms,
                row.duration_ms,
                {
                    "op_name": row.operator,
                    "provider": self._provider,
                    "device": row.device,
                    "run": str(row.run),
                    "bytes_read": str(row.bytes_read),
                    "bytes_written": str(row.bytes_written),
                },
            )
            for row in self.profiler.rows()
        ]
        events = sorted([*runs, *nodes], key=lambda event: (event["ts"], -event["dur"]))
        # Runs of several Workers are side by side, each on a track of its own.
        tracks = list(dict.fromkeys(event["tid"] for event in events))
        return [event | {"tid": tracks.index(event["tid"])} for event in events]


def _make_event(
    category: str, name: str, stream: str, start_ms: float | None, duration_ms: float | None, about: dict[str, str]
) -> dict[str, Any]:
    """Return a complete event of the Trace Event Format, in microseconds; a failed one has no duration."""
    begun_ms = start_ms or 0.0
    # Ends are rounded as beginnings are, so that nodes stay within their run.
    start, end = round(begun_ms * 1e3), round((begun_ms + (duration_ms or 0.0)) * 1e3)
    where = {"pid": os.getpid(), "tid": stream}
    return {"cat": category, **where, "dur": end - start, "ts": start, "ph": "X", "name": name, "args": about}
