"""The queue and the thread of a stream."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from gpuexec.errors import ClosedError
from gpuexec.runtime.simulator.operations import Operation


class StreamThread:
    """Runs operations in order on a thread that starts with the first and sleeps when there is none.

    Knows no stream, so that a stream forgotten by all can end it.

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
        self._queue: SimpleQueue[Operation | Callable[[], Any] | None] = SimpleQueue()
        self._gates: list[threading.Event] = []
        self._issued = self._finished = 0
        # Reentrant: a collection of garbage may stop a thread in the middle of its own bookkeeping.
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._is_stopped = False

    def put(self, item: Operation | Callable[[], Any]) -> None:
        """Queue an operation, or a plain call that others wait for and that is never skipped.

        Raises:
            ClosedError: The thread was stopped.
        """
        with self._lock:
            if self._is_stopped:
                raise ClosedError("The stream was closed.")
            self._issued += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="gpuexec-stream", daemon=True)
                self._thread.start()
            self._queue.put(item)

    def mark(self, point: threading.Event | None = None) -> threading.Event:
        """Return an event, a new one unless given, that is set when all that was queued is done."""
        point = threading.Event() if point is None else point
        if self.is_done():
            point.set()
        else:
            self.put(point.set)
        return point

    def hold(self) -> threading.Event:
        """Queue a wait for the event returned."""
        gate = threading.Event()
        self._gates = [each for each in self._gates if not each.is_set()] + [gate]
        self.put(gate.wait)
        return gate

    def is_done(self) -> bool:
        """Return whether the queue is empty and the last item finished."""
        with self._lock:
            return self._issued == self._finished

    def stop(self) -> None:
        """Let held work go; the thread ends after what is queued. Twice is harmless."""
        with self._lock:
            if self._is_stopped:
                return
            self._is_stopped = True
            for gate in self._gates:
                gate.set()
            self._queue.put(None)

    def join(self) -> None:
        """Wait for the end of a stopped thread."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def has_ended(self) -> bool:
        """Return whether it was stopped and nothing is left to do."""
        return self._is_stopped and (self._thread is None or not self._thread.is_alive())

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            if not isinstance(item, Operation):
                item()
            elif self._is_alive():
                self._run(item)
            item = None  # arguments and host arrays are let go of before the next wait
            with self._lock:
                self._finished += 1

    def _run(self, operation: Operation) -> None:
        if self._delay_s:
            time.sleep(self._delays.random() * self._delay_s)
        try:
            operation.run()
        except Exception as error:  # whatever went wrong ends the device; every later call says so
            self._lose(operation, error)
