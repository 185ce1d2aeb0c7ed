"""File calls that differ between operating systems: locks, and reads at an offset.

POSIX has flock and preadv. Windows has neither: there a byte of the file is locked, and a read moves the descriptor's
place, which no other thread may do meanwhile.
"""

from __future__ import annotations

import errno
import os
import sys
import threading

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

# The error of msvcrt after ten seconds without the lock.
_BUSY = (errno.EDEADLOCK, errno.EACCES)
_reading = threading.Lock()


def lock_file(file: int) -> None:
    """Wait for the lock of a file against other threads and processes; closing the descriptor releases it.

    Args:
        file: A descriptor, opened for this lock alone and never written to.

    Raises:
        OSError: The file system has no locks.
    """
    if sys.platform == "win32":
        while True:
            os.lseek(file, 0, os.SEEK_SET)
            try:
                msvcrt.locking(file, msvcrt.LK_LOCK, 1)
            except OSError as error:
                if error.errno not in _BUSY:
                    raise
            else:
                return
    else:
        fcntl.flock(file, fcntl.LOCK_EX)


def read_at(file: int, buffer: memoryview, offset: int) -> int:
    """Read bytes of a file at an offset into a buffer; return how many, 0 at its end.

    Raises:
        OSError: The file can't be read.
    """
    if hasattr(os, "preadv"):
        return os.preadv(file, [buffer], offset)
    with _reading:
        os.lseek(file, offset, os.SEEK_SET)
        content = os.read(file, buffer.nbytes)
    buffer.cast("B")[: len(content)] = content
    return len(content)
