"""The way into what belongs to one caller at a time: a second one is refused, not kept waiting."""

from __future__ import annotations

import threading

from gpuexec.errors import ClosedError, StateError
from gpuexec.runtime.backend import Backend


class Entrance:
    """Admits one caller at a time, as a context.

    Args:
        backend: Whose process the caller must be in.
        busy: What a second caller is told.
        closed: What a caller is told once `is_closed` is set.
    """

    __slots__ = ("_backend", "_busy", "_closed", "_lock", "is_closed")

    def __init__(self, backend: Backend, busy: str, closed: str) -> None:
        self._backend, self._busy, self._closed = backend, busy, closed
        self._lock = threading.Lock()
        self.is_closed = False

    def check_open(self) -> None:
        """Check that callers may come.

        Raises:
            StateError: The process was forked.
            ClosedError: It is closed.
        """
        self._backend.check_process()
        if self.is_closed:
            raise ClosedError(self._closed)

    def try_enter(self) -> bool:
        """Enter unless somebody is inside; who did must `leave`."""
        return self._lock.acquire(blocking=False)

    def leave(self) -> None:
        """Let the next caller in."""
        self._lock.release()

    def __enter__(self) -> None:
        """Enter.

        Raises:
            StateError: Another caller is inside, or the process was forked.
            ClosedError: It is closed.
        """
        self.check_open()
        if not self._lock.acquire(blocking=False):
            raise StateError(self._busy)
        if self.is_closed:  # meanwhile, by whoever was inside
            self._lock.release()
            raise ClosedError(self._closed)

    def __exit__(self, *_: object) -> None:
        self._lock.release()
