"""Blocking calls that do the work of streams themselves: waking the streams' threads is deferred meanwhile.

A call that puts work on a stream of the host and then waits for it need not wake the stream's thread (nor start it):
while it waits it runs the queued work, see `gpuexec.devices.work_thread.WorkThread.serve`. Whoever is about to sleep
for something else wakes the threads first, and so does the call at its end where work is left.

    with working_here(), waking_deferred():
        ...
"""

from __future__ import annotations

import contextlib
import threading
from contextlib import AbstractContextManager
from typing import Any, Protocol

from gpuexec.errors import OutOfMemoryError

# Queues that one thread serves within each other, where work of one waits for another; each takes some ten frames of
# its stack. Beyond that the other queue's thread is woken.
MAX_NESTED = 8
_NOTHING = contextlib.nullcontext()


class Sleeper(Protocol):
    """What a thread serves that may sleep."""

    def wake(self) -> None:
        """Have the thread do what is left; nothing is waited for."""

    def is_done(self) -> bool:
        """Return whether nothing is left."""


class Caller(threading.local):
    """What is noted of the present thread.

    Attributes:
        lock: Locked where wakes are deferred. The thread's own, so nobody waits for it.
        deferred: Whose wakes were.
        nested: Of how many queues it runs work, within each other.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.deferred: dict[Sleeper, None] = {}
        self.nested = 0


caller = Caller()


def working_here() -> AbstractContextManager[Any]:
    """Return a context in which work that this thread puts on streams of the host wakes no thread.

    NOTE: a lock, since ``with`` takes and releases it without an interrupt in between, as may come in a context manager
    written in Python: that would defer the wakes of later calls too.
    """
    lock = caller.lock
    return _NOTHING if lock.locked() else lock


class _Waking:
    """Context that wakes threads at its end."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, *_: object) -> None:
        wake_deferred()


_WAKING = _Waking()


def waking_deferred() -> AbstractContextManager[None]:
    """Return a context that ends with `wake_deferred`."""
    return _WAKING


def defer_wake(sleeper: Sleeper) -> bool:
    """Return whether this thread defers wakes, and note whose was; never in the middle of queued work."""
    if caller.nested or not caller.lock.locked():
        return False
    caller.deferred[sleeper] = None
    return True


def wake_deferred() -> None:
    """Wake the threads for whom something is left: before this thread sleeps."""
    deferred = caller.deferred
    while deferred:
        sleeper, _ = deferred.popitem()
        if not sleeper.is_done():
            # Where no thread can be started, whoever waits for the work does it.
            with contextlib.suppress(OutOfMemoryError):
                sleeper.wake()


def sleep_only() -> None:
    """Have this thread never run queued work where it waits."""
    caller.nested = MAX_NESTED
