"""Worker thread of a simulated stream: delays, gates, and errors that end later work."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

from gpuexec.devices.latch import Latch
from gpuexec.devices.simulator.operations import Operation
from gpuexec.devices.work_thread import WorkThread


class StreamThread:
    """Thread that runs operations in order. It holds no stream, so that an unreferenced stream can end it.

    Args:
        lose: Called with an operation and the error that ended it.
        is_alive: Whether operations are still run; when not, they are skipped.
        delays: Source of the delays before operations.
        delay_s: The longest delay; 0: none.
    """

    def __init__(
        self,
        lose: Callable[[Operation, Exception], None],
        is_alive: Callable[[], bool],
        delays: random.Random,
        delay_s: float,
    ) -> None:
        self._lose, self._is_alive = lose, is_alive
        self._delays, self._delay_s = delays, delay_s
        self._gates: list[threading.Event] = []
        self._thread = WorkThread("gpuexec-stream")
        self.is_done, self.join, self.has_ended = self._thread.is_done, self._thread.join, self._thread.has_ended

    def put(self, item: Operation | Callable[[], Any]) -> None:
        """Queue an operation, or a plain call that is waited for and never skipped.

        Raises:
            ClosedError: The thread was stopped.
        """

        def work() -> None:
            if not isinstance(item, Operation):
                item()
            elif self._is_alive():
                self._run(item)

        self._thread.put(work)

    def mark(self, point: Latch | None = None) -> Latch:
        """Return an event, a new one unless given, that is set when all queued work is done."""
        point = Latch() if point is None else point
        if self.is_done():
            point.set()
        else:
            self._thread.put(lambda: point.set)
        return point

    def hold(self) -> threading.Event:
        """Queue a wait for the returned event."""
        gate = threading.Event()
        self._gates = [each for each in self._gates if not each.is_set()] + [gate]
        self.put(gate.wait)
        return gate

    def stop(self) -> None:
        """Release held work and let the thread end after it. A second call does nothing."""
        for gate in self._gates:
            gate.set()
        self._thread.stop()

    def _run(self, operation: Operation) -> None:
        if self._delay_s:
            time.sleep(self._delays.random() * self._delay_s)
        try:
            operation.run()
        except Exception as error:  # any error ends the device; every later call raises it
            self._lose(operation, error)
