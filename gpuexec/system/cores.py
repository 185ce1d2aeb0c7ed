"""The core that a thread runs on, as a number, and how threads that compute side by side stay off each other's.

Linux may wake a thread on the core of the one that wakes it, though another core is idle: it looks for idle ones only
where cores that share a cache are not busy on average, which two cores are once one computes. The woken thread then
waits for the other, or takes its place, and both may stay there for many milliseconds. Threads that compute wake each
other often: each time one lets go of the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Collection


def _find_call() -> Callable[[], int] | None:
    """Return the C library's call, which keeps the interpreter's lock (0.2 us); None on other systems than Linux."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    call: Callable[[], int] | None = getattr(ctypes.PyDLL(None), "sched_getcpu", None)
    return call


_read_core = _find_call()


def current_core() -> int | None:
    """Return the number of the core that runs the calling thread now; None where the system doesn't tell."""
    return None if _read_core is None else _read_core()


def stay_off(cores: Collection[int | None]) -> set[int] | None:
    """Move the calling thread off cores, and keep it off; return the cores that it might run on, for `return_to`.

    None, and nothing happens, where it may run nowhere else, or the system refuses.
    """
    allowed = os.sched_getaffinity(0)
    others = allowed.difference(cores)
    return allowed if others and others != allowed and _set_cores(others) else None


def return_to(cores: set[int] | None) -> None:
    """Let the calling thread run on cores again that `stay_off` returned."""
    if cores is not None:
        _set_cores(cores)


def _set_cores(cores: set[int]) -> bool:
    try:
        os.sched_setaffinity(0, cores)
    except OSError:
        return False  # a container's cores were changed meanwhile
    return True
