"""Threads of NumPy's BLAS: one while work of ours runs, and as many as before behind it.

How many threads OpenBLAS takes is one number for the process. With more than one, each product waits for all of them,
and they spin: a product of 50 us takes 8 ms where another process has a core. So work of ours has it compute on the
thread that calls, and shares large products itself (`gpuexec.system.threads.share_work`).
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

# How OpenBLAS may call the two: by itself, and in the wheels of NumPy; with integers of 32 and 64 bits.
_SYMBOLS = [(prefix, suffix) for prefix in ("scipy_openblas", "openblas") for suffix in ("64_", "")]
# What `openblas_get_parallel` returns for threads of its own; with OpenMP the number belongs to each thread.
_OWN_THREADS = 1


class BlasLimit:
    """One thread for NumPy's products while anybody holds it; the number of before once nobody does.

    A number that somebody else set meanwhile is left as it is.

    Args:
        read: Returns how many threads the library takes.
        write: Sets it.
    """

    def __init__(self, read: Callable[[], int], write: Callable[[int], object]) -> None:
        self._read, self._write = read, write
        self._lock = threading.Lock()
        self._holders: set[int] = set()
        self._before = 1

    def hold(self, holder: int) -> None:
        """Have products run on one thread until `release` of this holder, who may hold it already."""
        with self._lock:
            if not self._holders:
                self._before = self._read()
                self._holders.add(holder)
                if self._before != 1:
                    self._write(1)
            else:
                self._holders.add(holder)

    def release(self, holder: int) -> None:
        """Release what `hold` began; once more does nothing, so it may be called wherever an interrupt came."""
        with self._lock:
            self._holders.discard(holder)
            if not self._holders and self._before != 1:
                if self._read() == 1:
                    self._write(self._before)
                self._before = 1

    def restart(self) -> None:
        """Release all: in a forked child, where whoever held it is not."""
        self._lock = threading.Lock()
        for holder in [*self._holders, 0]:
            self.release(holder)


def find_limit() -> BlasLimit | None:
    """Return the limit of the OpenBLAS that NumPy calls; None where it calls another library, or one with OpenMP."""
    for path in _list_libraries():
        library = ctypes.PyDLL(str(path))  # calls of a tenth of a microsecond keep the interpreter's lock
        for prefix, suffix in _SYMBOLS:
            names = [f"{prefix}_{what}{suffix}" for what in ("get_parallel", "get_num_threads", "set_num_threads")]
            if all(hasattr(library, name) for name in names):
                kind, read, write = (getattr(library, name) for name in names)
                write.restype = None
                return BlasLimit(read, write) if kind() == _OWN_THREADS else None
    return None


def _list_libraries() -> Iterator[Path]:
    """Yield the libraries to look into: NumPy's own, for symbols are found in what it was linked with, but on Windows.

    There they are looked for in the files beside NumPy.
    """
    package = Path(np.__file__).parent
    if sys.platform == "win32":
        yield from sorted((package.parent / "numpy.libs").glob("*openblas*.dll"))
    else:
        yield Path(np._core._multiarray_umath.__file__)  # type: ignore[attr-defined]


_limit: BlasLimit | None = None
_is_known = False


def own_limit() -> BlasLimit | None:
    """Return the limit of the process; None where there is none."""
    global _limit, _is_known
    if not _is_known:
        _limit, _is_known = find_limit(), True
    return _limit


def _restart() -> None:
    if _limit is not None:
        _limit.restart()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restart)
