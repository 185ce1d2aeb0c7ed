"""The thread of a Worker that does, in order, what has to wait for something outside the stream."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class DriverThread:
    """Calls what it is given, one after the other. Starts with the first call; calls don't raise."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._open = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, call: Callable[[], None]) -> None:
        """Add a call."""
        with self._changed:
            self._open += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="gpuexec-driver", daemon=True)
                self._thread.start()
        self._calls.put(call)

    def is_busy(self) -> bool:
        """Return whether calls are waiting here; what must come after them has to queue behind."""
        return self._open > 0

    def is_current(self) -> bool:
        """Return whether this is the driver thread itself."""
        return threading.current_thread() is self._thread

    def synchronize(self) -> None:
        """Wait until no call is waiting here."""
        with self._changed:
            self._changed.wait_for(lambda: self._open == 0)

    def close(self) -> None:
        """End the thread once its calls are through."""
        self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # and what it holds, while nothing else comes
            with self._changed:
                self._open -= 1
                self._changed.notify_all()
