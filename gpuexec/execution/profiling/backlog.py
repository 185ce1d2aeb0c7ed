"""Unreleased timing events of runs that were submitted and not read since."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from gpuexec.execution.profiling.run_profile import RunProfile


class Backlog:
    """Runs whose event times are read as they finish, so that events do not pile up while nobody asks.

    Args:
        most: How many runs it knows; older ones keep their events until they are forgotten or asked for.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._runs: dict[int, RunProfile] = {}
        # Reentrant, for the reason of the profiler's lock.
        self._lock = threading.RLock()
        self._settling = threading.Lock()

    def add(self, run: RunProfile) -> None:
        """Add a run that is about to have events, or has further ones."""
        with self._lock:
            self._runs[run.number] = run
            if len(self._runs) > self._most:
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
