"""Memory that passes between the plans of a run: values whose size only the run itself tells."""

from __future__ import annotations

import bisect
import threading

from gpuexec.errors import OutOfMemoryError
from gpuexec.runtime.backend import Backend
from gpuexec.runtime.device import Memory, Region, Stream

_SMALLEST = 256


class ExchangePool:
    """Device blocks of power-of-two sizes for one stream, lent and given back again and again.

    A block that is given back may be lent at once: what is issued later on the same stream comes after all that uses it
    now.
    """

    def __init__(self, backend: Backend, stream: Stream) -> None:
        self._backend, self._stream = backend, stream
        self._free: list[tuple[int, int, Memory]] = []
        self._lock = threading.RLock()
        self._serial = 0
        self._is_closed = False
        self.nbytes = 0

    def lend(self, nbytes: int) -> Lent:
        """Return a block of at least ``nbytes``, lent as long as somebody holds what is returned.

        Raises:
            OutOfMemoryError: The device has no room, even once the blocks that nobody holds are freed.
        """
        size = max(_SMALLEST, 1 << max(nbytes - 1, 0).bit_length())
        with self._lock:
            position = bisect.bisect_left(self._free, (size, 0))
            # One up to twice the size will do; more would starve those who need it.
            if position < len(self._free) and self._free[position][0] <= 2 * size:
                return Lent(self, self._free.pop(position)[2], nbytes)
        try:
            memory = self._backend.device.allocate(size)
        except OutOfMemoryError:
            self.trim()
            memory = self._backend.device.allocate(size)
        with self._lock:
            self.nbytes += size
        return Lent(self, memory, nbytes)

    def take_back(self, memory: Memory) -> None:
        """Take a block back; what is on the stream may use it still."""
        with self._lock:
            if self._is_closed:
                return  # it is freed with its last holder, who may be a readback under way
            self._serial += 1
            bisect.insort(self._free, (memory.nbytes, self._serial, memory), key=lambda row: row[:2])

    def trim(self) -> None:
        """Free the blocks nobody holds, once the work that uses them is done."""
        with self._lock:
            free, self._free = self._free, []
            self.nbytes -= sum(size for size, _, _ in free)
        if free:
            self._stream.synchronize()
        for _, _, memory in free:
            memory.free()

    def close(self) -> None:
        """Free the blocks; the caller has waited for all work."""
        with self._lock:
            self._is_closed = True
            free, self._free = self._free, []
        for _, _, memory in free:
            memory.free()
        self.nbytes = 0


class Lent:
    """A block of a pool, given back when nobody holds this any more."""

    __slots__ = ("_pool", "memory", "region")

    def __init__(self, pool: ExchangePool, memory: Memory, nbytes: int) -> None:
        self._pool, self.memory = pool, memory
        self.region = Region(memory, 0, nbytes)

    def __del__(self) -> None:
        self._pool.take_back(self.memory)
