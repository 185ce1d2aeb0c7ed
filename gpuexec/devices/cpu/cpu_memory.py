"""Memory of the CPU device; large blocks are used again."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np

from gpuexec.devices.device import ALIGNMENT, ByteArray
from gpuexec.errors import OutOfMemoryError

# From this size on glibc maps each block afresh, whatever was freed (M_MMAP_THRESHOLD at its most), so the system
# clears all its pages anew: a tenth of twenty steps over 12,000,000 floats (Xeon, November 2026).
LARGE_NBYTES = 32 << 20
_MOST_IDLE_NBYTES = 1 << 28


class CpuMemory:
    """Bytes of the process, aligned to 256.

    Args:
        nbytes: How many.
        idle: Where they may come from, and go once no array over them is left.
    """

    __slots__ = ("__weakref__", "_block", "address", "array", "nbytes")

    def __init__(self, nbytes: int, idle: IdleBlocks | None = None) -> None:
        is_large = idle is not None and nbytes >= LARGE_NBYTES
        try:
            block = idle.lend(nbytes + ALIGNMENT) if idle is not None and is_large else _allocate(nbytes + ALIGNMENT)
        except (MemoryError, ValueError) as error:
            raise OutOfMemoryError(f"The host refused {nbytes} bytes.") from error
        self._block: ByteArray = block
        start = -block.ctypes.data % ALIGNMENT
        self.array: ByteArray = block[start : start + nbytes]
        self.address: int = block.ctypes.data + start
        self.nbytes = nbytes

    def free(self) -> None:
        """Drop the bytes; views others hold keep them alive."""
        self._block = self.array = _allocate(0)


class _Lent(np.ndarray[Any, Any]):
    """A lent block. NumPy keeps it as the base of all arrays over it, since it is of another class than they are."""


class IdleBlocks:
    """Large blocks that no array is over any more. Thread-safe."""

    def __init__(self) -> None:
        self._blocks: list[ByteArray] = []
        # Reentrant: garbage collection may return blocks in the middle of a call.
        self._lock = threading.RLock()

    @property
    def nbytes(self) -> int:
        """Bytes of them all."""
        with self._lock:
            return sum(block.nbytes for block in self._blocks)

    def lend(self, nbytes: int) -> ByteArray:
        """Return a block of so many bytes, which comes back by itself.

        Raises:
            MemoryError: There is no room, without the idle blocks either.
        """
        block = self._find(nbytes)
        if block is None:
            try:
                block = _allocate(nbytes)
            except MemoryError:
                self.trim()
                block = _allocate(nbytes)
        lent = block.view(_Lent)
        weakref.finalize(lent, self._take_back, block).atexit = False
        return lent[:nbytes].view(np.ndarray)

    def trim(self) -> int:
        """Free the blocks; return their bytes."""
        with self._lock:
            blocks, self._blocks = self._blocks, []
        return sum(block.nbytes for block in blocks)

    def _find(self, nbytes: int) -> ByteArray | None:
        """Take out a block that is large enough, by an eighth at most too large."""
        with self._lock:
            for position, block in enumerate(self._blocks):
                if nbytes <= block.nbytes <= nbytes + nbytes // 8:
                    return self._blocks.pop(position)
        return None

    def _take_back(self, block: ByteArray) -> None:
        """Keep a block, and let go of the oldest of too many."""
        with self._lock:
            self._blocks.append(block)
            while self.nbytes > _MOST_IDLE_NBYTES:
                self._blocks.pop(0)


def _allocate(nbytes: int) -> ByteArray:
    return np.empty(nbytes, np.uint8)
