"""Completion callbacks: one thread per device waits on events in order and calls back.

No thread per request, no polling by sleep, no host function on a stream.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable

from gpuexec.devices.device import Event
from gpuexec.devices.working_here import sleep_only
from gpuexec.system.threads import start_thread

Callback = Callable[[BaseException | None], None]


class WatcherThread(threading.Thread):
    """A thread that waits for events and reports them.

    Having seen an event orders nothing for other threads, which must check events themselves.
    """


class Completion:
    """Calls ``callback(error)`` once an event is done; callbacks run on the completion thread and must be short."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: queue.SimpleQueue[tuple[Event, Callback] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def call(self, event: Event, callback: Callback) -> None:
        """Schedule ``callback`` with None, or with the error that the work raised.

        Raises:
            OutOfMemoryError: The thread can't be started; the callback will not be called.
        """
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = WatcherThread(target=self._serve, name=f"gpuexec-completion-{self._name}", daemon=True)
                start_thread(self._thread)
        self._waiting.put((event, callback))

    def close(self) -> None:
        """End the thread once all events given are done."""
        with self._lock:
            if self._thread is not None:
                self._waiting.put(None)
                self._thread = None

    def _serve(self) -> None:
        sleep_only()  # callbacks of other events must not wait for queued work, which may wait for them
        while (row := self._waiting.get()) is not None:
            event, callback = row
            error: BaseException | None = None
            try:
                event.synchronize()
            except BaseException as raised:
                error = raised
            try:
                callback(error)
            except BaseException:
                # The other callbacks must still be called; this exception is reported like that of a thread.
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
            # Release all references while waiting for the next event.
            del row, event, callback, error
