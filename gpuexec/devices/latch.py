"""Interruptible waiting: latches that stay usable when KeyboardInterrupt ends a wait at any instruction.

`threading.Condition` and `threading.Event` acquire and release a lock in methods written in Python, so an interrupt in
between leaves the lock held, and the thread that wants to notify blocks for ever. Here every waiter has a lock of its
own; what is shared is a deque, whose operations are single instructions.

A lock of `threading` itself is safe where ``with`` takes it: no interrupt comes between. Where it is only tried, it is
taken and noted in one instruction, ``held.extend(map(lock.acquire, (False,)))``, within the ``try`` that releases it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable

# The longest sleep before a waiter checks its condition itself. On Windows, and for an exception that another thread
# raises in it (`_thread.interrupt_main`), an interrupt is delivered only then.
_LONGEST_SLEEP_S = 0.2


class Wakeup:
    """A condition variable without a lock. Change the shared state first, then call `notify`."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: deque[threading.Lock] = deque()

    def has_waiters(self) -> bool:
        """Return whether a thread is waiting."""
        return bool(self._waiters)

    def notify(self) -> None:
        """Wake all waiting threads; each checks its own condition."""
        while self._waiters:
            try:
                waiter = self._waiters.popleft()
            except IndexError:
                return
            waiter.release()

    def wait_for(self, is_over: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until ``is_over`` returns True; False when the time ran out."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while not is_over():
            left = _LONGEST_SLEEP_S if end is None else end - time.monotonic()
            if left <= 0:
                return False
            waiter = threading.Lock()
            waiter.acquire()
            self._waiters.append(waiter)
            try:
                # A change before this waiter was registered did not wake it.
                if not is_over():
                    waiter.acquire(timeout=min(left, _LONGEST_SLEEP_S))
            finally:
                with contextlib.suppress(ValueError):
                    self._waiters.remove(waiter)
        return True


class Latch(Wakeup):
    """An event that is set once."""

    __slots__ = ("_is_set",)

    def __init__(self) -> None:
        super().__init__()
        self._is_set = False

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and wake all waiting threads. A second call does nothing."""
        self._is_set = True
        self.notify()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is set; False when the time ran out."""
        return self._is_set or self.wait_for(self.is_set, timeout_s)
