"""A queue and the thread that works it off: what a stream of a device on the host is made of."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from gpuexec.errors import ClosedError

Work = Callable[[], Callable[[], Any] | None]


class WorkThread:
    """Does work in order on a thread that starts with the first and sleeps when there is none.

    Knows no stream, so that a stream forgotten by all can end it. Work must not raise.

    Args:
        name: The thread's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._issued = self._finished = 0
        # Reentrant: a collection of garbage may stop a thread in the middle of its own bookkeeping.
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._is_stopped = False

    def put(self, work: Work) -> None:
        """Queue work; what it returns is called once the work counts as done.

        Raises:
            ClosedError: The thread was stopped.
        """
        with self._lock:
            if self._is_stopped:
                raise ClosedError("The stream is closed.")
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                self._thread.start()
            self._issued += 1
            self._queue.put(work)

    def is_done(self) -> bool:
        """Return whether the queue is empty and the last work finished."""
        return self._finished == self._issued

    def stop(self) -> None:
        """Let the thread end after what is queued. Twice is harmless."""
        with self._lock:
            if not self._is_stopped:
                self._is_stopped = True
                self._queue.put(None)

    def join(self) -> None:
        """Wait for the end of a stopped thread."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def has_ended(self) -> bool:
        """Return whether it was stopped and nothing is left to do."""
        return self._is_stopped and (self._thread is None or not self._thread.is_alive())

    def _serve(self) -> None:
        while (work := self._queue.get()) is not None:
            announce = work()
            del work  # and what it holds, while nothing else comes
            self._finished += 1
            if announce is not None:
                announce()
                del announce
