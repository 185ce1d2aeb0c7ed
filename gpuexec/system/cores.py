"""The core that a thread runs on, as a number, and how a thread leaves it for another.

Linux may wake a thread on the core of the one that wakes it, though another core is idle: it looks for idle ones only
where cores that share a cache are not busy on average, which two cores are once one computes. The woken thread then
waits for the other, or takes its place, and comes back to that core each time.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable


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


def leave_core(core: int) -> None:
    """Move the calling thread from a core to another that it may run on; it may come back later.

    Nothing happens where it may run nowhere else, or the system refuses.
    """
    allowed = os.sched_getaffinity(0)
    others = allowed - {core}
    if not others:
        return
    try:
        os.sched_setaffinity(0, others)
        os.sched_setaffinity(0, allowed)
    except OSError:
        return  # a container's cores were changed meanwhile
