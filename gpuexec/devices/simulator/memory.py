"""Device memory of the simulator: real addresses that the host may reach only by copies.

It is filled with 0xCD when allocated, followed by 8 GiB of inaccessible addresses, and inaccessible once freed: a
kernel that accesses it out of bounds or after free faults, as it may on a GPU, and does not reach the host's memory.
Pinned memory is host memory, and filled with 0xCD once freed.

Both come from a `MemoryPool` that keeps nothing idle. Memory freed while work of streams may still use it keeps its
history until that work is done, or until it is reused; nothing new may access it meanwhile.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gpuexec.devices.device import ByteArray, Stream
from gpuexec.devices.memory_pool import MemoryPool, PoolBlock
from gpuexec.devices.simulator.address_map import AddressMap
from gpuexec.devices.simulator.library import load_runtime
from gpuexec.devices.simulator.ordering import Ordering
from gpuexec.devices.simulator.timeline import Clock
from gpuexec.errors import OutOfMemoryError

_POISON = 0xCD


class SimulatorDeviceSource:
    """Device memory: host pages between inaccessible guard addresses."""

    def __init__(self, blocks: AddressMap, ordering: Ordering, limit: int | None) -> None:
        self._blocks, self._ordering, self._limit = blocks, ordering, limit

    def round_up(self, nbytes: int) -> int:
        """Return the bytes unchanged, so that an overrun is found."""
        return nbytes

    def allocate(self, nbytes: int) -> int:
        """Return the address of new memory, filled with 0xCD."""
        used = self._blocks.nbytes
        if self._limit is not None and used + nbytes > self._limit:
            raise OutOfMemoryError(f"The simulator can't allocate {nbytes} bytes: {used} of {self._limit} are in use.")
        address: int = load_runtime().gpuexec_allocate(nbytes)
        if not address:
            raise OutOfMemoryError(f"The simulator can't allocate {nbytes} bytes: the host has no memory left.")
        self._blocks.add(address, nbytes)
        return address

    def release(self, address: int) -> None:
        """Make memory inaccessible, and drop its access history."""
        self._ordering.free_later(address, is_checked=False)
        self._blocks.remove(address)
        load_runtime().gpuexec_release(address)


class SimulatorPinnedSource:
    """Pinned memory: arrays of the host, by address."""

    def __init__(self, blocks: AddressMap, ordering: Ordering) -> None:
        self._blocks, self._ordering = blocks, ordering
        self._arrays: dict[int, ByteArray] = {}

    def round_up(self, nbytes: int) -> int:
        """Return the bytes unchanged."""
        return nbytes

    def allocate(self, nbytes: int) -> int:
        """Return the address of new memory, filled with 0xCD."""
        try:
            array = np.full(nbytes, _POISON, np.uint8)
        except MemoryError as error:
            raise OutOfMemoryError(f"The host refused {nbytes} bytes of pinned memory.") from error
        address: int = array.ctypes.data
        self._arrays[address] = array
        self._blocks.add(address, nbytes)
        return address

    def release(self, address: int) -> None:
        """Drop memory and its access history: a later allocation at the address is not pinned."""
        self._ordering.free_later(address, is_checked=False)
        self._blocks.remove(address)
        del self._arrays[address]

    def array_at(self, address: int) -> ByteArray:
        """Return the array at an address."""
        return self._arrays[address]


class Pool(NamedTuple):
    """The allocator of one kind of memory."""

    blocks: AddressMap
    ordering: Ordering
    memory: MemoryPool


class DeviceMemory:
    """Bytes on the device. ``array`` is None: the host can't access them."""

    array: ByteArray | None = None

    def __init__(self, pool: Pool, nbytes: int, stream: Stream | None = None) -> None:
        self.nbytes, self._pool = nbytes, pool
        self._block: PoolBlock | None = pool.memory.allocate(nbytes, stream)
        self.address = self._block.address
        pool.blocks.renew(self.address)

    def note_stream(self, stream: Stream) -> None:
        """See `gpuexec.devices.device.note_stream`."""
        if self._block is not None:
            self._block.note_stream(stream)

    def free(self) -> None:
        """Free the bytes; later uses fault. A second call does nothing.

        Raises:
            OrderError: An operation uses them that need not be done, on no stream that was noted; they are not freed.
        """
        if self._block is not None:
            self._pool.ordering.free(self.address, list_marks(self._block))
        self._release()

    def _release(self) -> None:
        block, self._block = self._block, None
        if block is not None:
            give_back(self._pool, block)

    def __del__(self, is_over: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the end of the process, remaining memory goes with it: modules may be gone already.
        block = getattr(self, "_block", None)
        if block is not None and not is_over():
            if not block.uses:
                self._pool.ordering.free_later(self.address)
            self._release()


class PinnedMemory:
    """Host memory that copies read when they run, not when they are issued.

    Its bytes count as pinned until they are freed, or no view of them is referenced: a later allocation of the host at
    their address is ordinary memory.
    """

    def __init__(self, pool: Pool, nbytes: int, arrays: SimulatorPinnedSource) -> None:
        self.nbytes, self._pool = nbytes, pool
        self._block = pool.memory.allocate(nbytes)
        self.address = self._block.address
        pool.blocks.renew(self.address)
        # A view of an array of its own: its lifetime is independent of the array below.
        buffer: Any = memoryview(arrays.array_at(self.address).data)
        self.array: ByteArray | None = np.frombuffer(buffer, np.uint8, nbytes) if nbytes else np.empty(0, np.uint8)
        self._forget = weakref.finalize(self.array, give_back, pool, self._block)
        self._forget.atexit = False

    def check_host(self, offset: int, nbytes: int, *, is_write: bool) -> None:
        """Check that the host may read or write these bytes now.

        Raises:
            OrderError: An operation uses them that need not be done.
        """
        if self.array is not None:
            self._pool.ordering.check_host(self.address + offset, nbytes, is_write)

    def note_stream(self, stream: Stream) -> None:
        """See `gpuexec.devices.device.note_stream`."""
        self._block.note_stream(stream)

    def free(self) -> None:
        """Poison the bytes and release them. A second call does nothing.

        Raises:
            OrderError: An operation uses them that need not be done, on no stream that was noted; they are not freed.
        """
        if self.array is not None:
            self._pool.ordering.free(self.address, list_marks(self._block))
            if not self._block.uses:
                self.array[...] = _POISON
            self._forget()
            self.array = None


def list_marks(block: PoolBlock) -> list[Clock]:
    """Return the marks of the work that still uses a block."""
    return [use.stream.mark() for use in block.uses if hasattr(use.stream, "mark")]


def give_back(pool: Pool, block: PoolBlock) -> None:
    """Return a block to its pool; safe in a finalizer, since nothing here waits for a lock that is held long."""
    pool.blocks.retire(block.address)
    pool.memory.give_back(block)
    pool.memory.settle()
