"""Stream-ordered memory pool: freed blocks are reused only behind the work that may still use them.

A returned block names the streams whose work may still use it; without any it is idle, since its holder has waited. The
stream that is the only one named gets the block at once, because later work of that stream runs later. Any other stream
waits, on the device, for an event recorded on those named; the host gets the block once these events are done. The
events are recorded when the block is wanted, so returning one is an append to a queue: it takes no lock and calls no
driver, and a finalizer may do it anywhere, even in the middle of a call of the pool.

A pool serves one device alone: memory of the user's own allocators never comes here.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from gpuexec.devices.deferred_free import is_over
from gpuexec.devices.device import ByteArray, Event, Stream
from gpuexec.errors import GpuexecError, OutOfMemoryError
from gpuexec.ir.geometry import round_up

_FINEST, _COARSEST = 512, 2 << 20


class Source(Protocol):
    """Allocator under a pool: memory as the driver gives it and takes it back."""

    def round_up(self, nbytes: int) -> int:
        """Return the block size for so many bytes."""

    def allocate(self, nbytes: int) -> int:
        """Return the address of a new block.

        Raises:
            OutOfMemoryError: There is no room.
        """

    def release(self, address: int) -> None:
        """Return a block, which nothing uses any more, to the driver.

        Raises:
            GpuexecError: It can't be done now, as while a graph is captured.
        """


class StreamUse:
    """Pending work on a stream that may use a block; ``event`` is recorded behind it on demand."""

    __slots__ = ("event", "stream")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.event: Event | None = None


class PoolBlock:
    """A block of memory lent by a pool; its next holder must be ordered after ``uses``."""

    __slots__ = ("address", "nbytes", "uses")

    def __init__(self, address: int, nbytes: int) -> None:
        self.address, self.nbytes = address, nbytes
        self.uses: tuple[StreamUse, ...] = ()

    def note_stream(self, stream: Stream) -> None:
        """Note that work of a stream may still use the block when it is given back, however late it is issued."""
        if not any(is_same(use.stream, stream) for use in self.uses):
            self.uses = (*self.uses, StreamUse(stream))


class MemoryPool:
    """Free blocks by size. Thread-safe.

    Args:
        source: Where memory comes from when no block fits, and where it goes.
        create_event: Returns an event of the device.
        max_cached_nbytes: Limit of idle memory; more is released to the source.
    """

    def __init__(self, source: Source, create_event: Callable[[], Event], max_cached_nbytes: int) -> None:
        self._source, self._create_event, self._max_cached = source, create_event, max_cached_nbytes
        # By size, oldest first.
        self._free: dict[int, list[PoolBlock]] = {}
        self._returned: deque[PoolBlock] = deque()
        # Reentrant: garbage collection may run code that allocates in the middle of a call, and finds it busy.
        self._lock = threading.RLock()
        self._is_busy = False
        self._cached = 0

    @property
    def cached_nbytes(self) -> int:
        """Freed bytes kept in the pool."""
        self.settle()
        return self._cached

    def allocate(self, nbytes: int, stream: Stream | None = None) -> PoolBlock:
        """Return a block of at least ``nbytes``; its content is undefined.

        Args:
            nbytes: The bytes needed.
            stream: The one stream on which the block is used first, or which others wait for; None: it may be used
                anywhere at once.

        Raises:
            OutOfMemoryError: There is no room, even once all idle blocks are released to the source.
        """
        size = self._source.round_up(nbytes)
        found = None
        with self._lock:
            if not self._is_busy:
                self._is_busy = True
                try:
                    self._sort()
                    found = self._take(size, stream)
                finally:
                    self._is_busy = False
        self.settle()
        return found or PoolBlock(self._allocate_anew(size), size)

    def give_back(self, block: PoolBlock) -> None:
        """Return a block to the pool, from any thread or finalizer; only the work it notes still uses it."""
        self._returned.append(block)

    def settle(self) -> None:
        """Sort in returned blocks and release idle ones beyond the limit, unless another thread is doing so."""
        while self._returned and not self._is_busy:
            held: list[bool] = []
            try:
                held.extend(map(self._lock.acquire, (False,)))  # see `gpuexec.devices.latch`
                if not held[0]:
                    return
                self._is_busy = True
                self._sort()
                self._shrink(_is_unused)
            finally:
                if held and held[0]:
                    self._is_busy = False
                    self._lock.release()

    def trim(self, *, is_waiting: bool = False) -> int:
        """Release all idle blocks to the source; return their bytes.

        Args:
            is_waiting: Wait for the work that blocks note, and give these back too.
        """
        ready: list[PoolBlock] = []
        with self._lock:
            if not self._is_busy:
                self._is_busy = True
                try:
                    self._sort()
                    blocks = [block for rows in self._free.values() for block in rows]
                    ready += [block for block in blocks if (self._mark(block) if is_waiting else self._is_idle(block))]
                    for block in ready:
                        self._remove(block)
                finally:
                    self._is_busy = False
        # The lock is not held while this waits: the blocks are no longer in the pool.
        given = 0
        try:
            while ready:
                for use in ready[-1].uses:
                    if use.event is not None and not is_over(use.event):
                        use.event.synchronize()
                # Taken out first: an interrupt behind the release must not give the block back to the pool.
                block = ready.pop()
                if not self._release(block):
                    ready.append(block)
                    break
                given += block.nbytes
        finally:
            self._returned.extend(ready)
        return given

    def _sort(self) -> None:
        """Move returned blocks to the free lists."""
        while self._returned:
            self._keep(self._returned.popleft())

    def _keep(self, block: PoolBlock) -> None:
        self._free.setdefault(block.nbytes, []).append(block)
        self._cached += block.nbytes

    def _take(self, size: int, stream: Stream | None) -> PoolBlock | None:
        """Return a block that is idle, or one that ``stream`` was made to wait for."""
        rows = self._free.get(size, [])
        for block in reversed(rows):
            if not block.uses:
                return self._remove(block)
        for block in rows:
            if self._is_next(block, stream) or self._is_idle(block):
                return self._remove(block)
        if stream is not None and rows and not stream.is_capturing():
            for block in rows:
                if self._mark(block):
                    self._order(stream, block)
                    return self._remove(block)
        self._shrink(self._is_idle)
        return None

    @staticmethod
    def _is_next(block: PoolBlock, stream: Stream | None) -> bool:
        """Return whether only a stream's own work uses a block."""
        return stream is not None and all(is_same(use.stream, stream) for use in block.uses)

    def _is_idle(self, block: PoolBlock) -> bool:
        """Return whether all work that a block notes is done; never waits."""
        return not block.uses or (self._mark(block) and all(_is_done(use) for use in block.uses))

    def _mark(self, block: PoolBlock) -> bool:
        """Record the missing events of a block; return False, changing nothing, where a stream is captured or gone."""
        for use in block.uses:
            if use.event is None:
                try:
                    if use.stream.is_capturing():
                        return False
                    event = self._create_event()
                    use.stream.record(event)
                except GpuexecError:
                    return False
                use.event = event
        return True

    def _order(self, stream: Stream, block: PoolBlock) -> None:
        """Make a stream wait for all work that a block notes."""
        for use in block.uses:
            assert use.event is not None
            stream.wait(use.event)

    def _remove(self, block: PoolBlock) -> PoolBlock:
        rows = self._free[block.nbytes]
        rows.remove(block)
        if not rows:
            del self._free[block.nbytes]
        self._cached -= block.nbytes
        return block

    def _shrink(self, is_idle: Callable[[PoolBlock], bool]) -> None:
        """Release idle blocks until the pool is within its limit."""
        for rows in tuple(self._free.values()):
            for block in tuple(rows):
                if self._cached <= self._max_cached:
                    return
                if is_idle(block) and not self._release(self._remove(block)):
                    self._keep(block)
                    return

    def _release(self, block: PoolBlock) -> bool:
        try:
            self._source.release(block.address)
        except GpuexecError:
            return False
        return True

    def _allocate_anew(self, size: int) -> int:
        for is_waiting in (False, True):
            try:
                return self._source.allocate(size)
            except OutOfMemoryError:
                if not self.trim(is_waiting=is_waiting) and is_waiting:
                    raise
        return self._source.allocate(size)


class PooledMemory:
    """Device memory of a pool, returned when it is freed or no longer referenced."""

    __slots__ = ("__weakref__", "_block", "_pool", "address", "nbytes")
    array: ByteArray | None = None

    def __init__(self, pool: MemoryPool, nbytes: int, stream: Stream | None = None) -> None:
        self.nbytes, self._pool = nbytes, pool
        self._block: PoolBlock | None = pool.allocate(nbytes, stream)
        self.address = self._block.address

    def note_stream(self, stream: Stream) -> None:
        """See `gpuexec.devices.device.note_stream`."""
        if self._block is not None:
            self._block.note_stream(stream)

    def free(self) -> None:
        """Return the bytes to the pool. A second call does nothing."""
        block, self._block = self._block, None
        if block is not None:
            self._pool.give_back(block)
            self._pool.settle()

    def __del__(self) -> None:
        block = getattr(self, "_block", None)
        if block is not None:
            self._pool.give_back(block)


class PooledPinned:
    """Pinned host memory of a pool, returned when no view of its ``array`` is referenced any more."""

    def __init__(self, pool: MemoryPool, nbytes: int) -> None:
        self.nbytes, self._pool = nbytes, pool
        self._block = pool.allocate(nbytes)
        self.address = self._block.address
        self.array: ByteArray | None = view_bytes(self.address, nbytes, pool.give_back, self._block)

    def note_stream(self, stream: Stream) -> None:
        """See `gpuexec.devices.device.note_stream`."""
        self._block.note_stream(stream)

    def free(self) -> None:
        """Drop the reference to the bytes. A second call does nothing."""
        self.array = None
        self._pool.settle()


def view_bytes(address: int, nbytes: int, call: Callable[..., object], *arguments: object) -> ByteArray:
    """Return the bytes at an address as an array; ``call`` runs once no view of them is referenced any more."""
    buffer: Any = (ctypes.c_uint8 * max(nbytes, 1)).from_address(address)
    weakref.finalize(buffer, call, *arguments).atexit = False
    viewed: ByteArray = np.frombuffer(buffer, np.uint8, nbytes)
    return viewed


def round_to_class(nbytes: int) -> int:
    """Return the size of the block for so many bytes: a multiple of an eighth of their power of two, within bounds.

    So there are eight sizes for each doubling up to 16 MiB, and every 2 MiB beyond, as the driver divides memory.
    """
    power = 1 << max(nbytes - 1, 1).bit_length() - 1
    return round_up(max(nbytes, 1), min(max(power >> 3, _FINEST), _COARSEST))


def is_same(one: Stream, other: Stream) -> bool:
    """Return whether two objects are the same stream."""
    return one is other or (one.handle == other.handle and one.handle != 0)


def _is_unused(block: PoolBlock) -> bool:
    return not block.uses


def _is_done(use: StreamUse) -> bool:
    return use.event is not None and is_over(use.event)
