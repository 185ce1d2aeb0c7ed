"""Exchange pool: device blocks for values that pass between the plans of a run."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import MemoryBlock, Region, Stream
from gpuexec.errors import OutOfMemoryError
from gpuexec.execution.resources.memory import Allocate
from gpuexec.system.phases import note

_SMALLEST = 256


class ExchangePool:
    """Device blocks of power-of-two sizes for one stream, lent and given back again and again.

    A block that is given back may be lent at once: what is issued later on the same stream comes after all that uses it
    now. ``allocate`` is what gives the pool memory; None: the device.
    """

    def __init__(self, backend: Backend, stream: Stream, allocate: Allocate | None = None) -> None:
        self._stream, self._revision = stream, backend.memory_revision
        self._allocate = allocate or (lambda nbytes: backend.device.allocate(nbytes, stream))
        self._free: dict[int, list[MemoryBlock]] = {}
        # Those that are lent too: a collection that finds holders of a block to be garbage must not find the block so.
        self._blocks: dict[int, MemoryBlock] = {}
        # Reentrant: a collection may give blocks back in the middle of a call.
        self._lock = threading.RLock()
        self._is_closed = False
        self.nbytes = 0

    def lend(self, nbytes: int, *, is_exact: bool = False) -> Lent:
        """Return a block of at least ``nbytes``, lent as long as somebody holds what is returned.

        Args:
            nbytes: What is needed.
            is_exact: Take no more than that: for what is large and held long.

        Raises:
            OutOfMemoryError: The device has no room, even once the blocks that nobody holds are freed.
        """
        size = max(_SMALLEST, nbytes) if is_exact else self.round_up(nbytes)
        with self._lock:
            # One of twice the size will do; more would starve those who need it.
            rows = self._free.get(size) or self._free.get(2 * size)
            if rows:
                lent = Lent(self, rows.pop(), nbytes)
                note("lend", "a block of the pool, used before", lent.memory.nbytes)
                return lent
        memory = self.allocate(size)
        with self._lock:
            self._blocks[id(memory)] = memory
            self.nbytes += size
            self._revision.number += 1
        note("lend", "a block of the pool, new", size)
        return Lent(self, memory, nbytes)

    def allocate(self, nbytes: int) -> MemoryBlock:
        """Return memory from where the pool has its own, to keep.

        Raises:
            OutOfMemoryError: The device has no room, even once the blocks that nobody holds are freed.
        """
        try:
            return self._allocate(nbytes)
        except OutOfMemoryError:
            self.trim()
            return self._allocate(nbytes)

    @staticmethod
    def round_up(nbytes: int) -> int:
        """Return the size of a block for so many bytes: the next power of two."""
        return max(_SMALLEST, 1 << max(nbytes - 1, 0).bit_length())

    def take_back(self, memory: MemoryBlock) -> None:
        """Take a block back; what is on the stream may use it still."""
        note("take back", "a block of the pool", memory.nbytes)
        with self._lock:
            if self._is_closed:
                # It is freed with its last holder, who may be a readback under way.
                self._blocks.pop(id(memory), None)
            else:
                self._free.setdefault(memory.nbytes, []).append(memory)

    def trim(self) -> None:
        """Free the blocks nobody holds, once the work that uses them is done."""
        free = self._take_free()
        if free:
            self._stream.synchronize()
        for memory in free:
            memory.free()

    def close(self) -> None:
        """Free the blocks; the caller has waited for all work."""
        self._is_closed = True
        for memory in self._take_free():
            memory.free()
        self.nbytes = 0
        self._revision.number += 1

    def _take_free(self) -> list[MemoryBlock]:
        """Return the blocks nobody holds; they are the pool's no more."""
        with self._lock:
            rows, self._free = self._free, {}
            free = [memory for row in rows.values() for memory in row]
            for memory in free:
                del self._blocks[id(memory)]
                self.nbytes -= memory.nbytes
            self._revision.number += 1
        return free


class Lent:
    """A block of a pool, given back when nobody holds this any more."""

    __slots__ = ("_pool", "memory", "region")

    def __init__(self, pool: ExchangePool, memory: MemoryBlock, nbytes: int) -> None:
        self.memory, self.region = memory, Region(memory, 0, nbytes)
        self._pool = pool

    def __del__(self, is_over: Callable[[], bool] = sys.is_finalizing) -> None:
        # What is left at the end of the process goes with it: modules may be gone already. A caller may have been
        # interrupted before this was made.
        pool = getattr(self, "_pool", None)
        if pool is not None and not is_over():
            pool.take_back(self.memory)
