"""Memory of the simulated device: real addresses that the host must not touch but by copies.

It is full of 0xCD when allocated, ends near addresses that are kept inaccessible for 8 GiB, and is inaccessible once
freed: a kernel that goes too far or too late faults, as it may on a GPU, and does not reach what is the host's. Pinned
memory is the host's own, and full of 0xCD once freed.
"""

from __future__ import annotations

import bisect
import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from gpuexec.errors import OutOfMemoryError
from gpuexec.runtime.device import ByteArray
from gpuexec.runtime.simulator.library import load_runtime

if TYPE_CHECKING:
    from gpuexec.runtime.simulator.ordering import Ordering

_POISON = 0xCD
_NEAR_BYTES = 1 << 16
_REMEMBERED = 1024


class AddressMap:
    """The blocks of memory that are alive, by address. Thread-safe."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}
        self._freed: dict[int, int] = {}
        # Reentrant: a collection of garbage may remove a block in the middle of a call.
        self._lock = threading.RLock()

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks alive."""
        with self._lock:
            return sum(self._sizes.values())

    def add(self, address: int, nbytes: int) -> None:
        """Add a block."""
        with self._lock:
            bisect.insort(self._starts, address)
            self._sizes[address] = nbytes
            self._freed.pop(address, None)

    def remove(self, address: int) -> None:
        """Take a block out."""
        with self._lock:
            self._starts.pop(bisect.bisect_left(self._starts, address))
            self._freed[address] = self._sizes.pop(address)
            while len(self._freed) > _REMEMBERED:
                del self._freed[next(iter(self._freed))]

    def find(self, address: int, nbytes: int = 0) -> tuple[int, int] | None:
        """Return address and size of the block that a range lies in, if one holds all of it."""
        with self._lock:
            index = bisect.bisect_right(self._starts, address) - 1
            if index < 0:
                return None
            start = self._starts[index]
            size = self._sizes[start]
            return (start, size) if address + nbytes <= start + size else None

    def holds(self, address: int, nbytes: int) -> bool:
        """Return whether a range lies within one block."""
        return self.find(address, nbytes) is not None

    def describe(self, address: int) -> str:
        """Say where an address lies that can't be used."""
        with self._lock:
            for start, size in self._freed.items():
                if start <= address < start + size:
                    return f"address {address:#x} lies in {size} bytes that were freed"
            index = bisect.bisect_right(self._starts, address) - 1
            if index >= 0:
                start = self._starts[index]
                past = address - start - self._sizes[start]
                if past < 0:
                    return f"address {address:#x} is byte {address - start} of an allocation of {self._sizes[start]}"
                if past < _NEAR_BYTES:
                    return (
                        f"address {address:#x} lies {past} bytes past the end of an allocation of {self._sizes[start]}"
                    )
            return f"address {address:#x} lies in no allocation"


class DeviceMemory:
    """Bytes on the device. ``array`` is None: the host can't look at them."""

    def __init__(self, blocks: AddressMap, ordering: Ordering, nbytes: int, limit: int | None) -> None:
        if limit is not None and blocks.nbytes + nbytes > limit:
            raise OutOfMemoryError(
                f"The simulator can't allocate {nbytes} bytes: {blocks.nbytes} of {limit} are in use."
            )
        address = load_runtime().gpuexec_allocate(nbytes)
        if not address:
            raise OutOfMemoryError(f"The simulator can't allocate {nbytes} bytes: the host has no memory left.")
        self.address: int = address
        self.nbytes = nbytes
        self.array: ByteArray | None = None
        self._blocks: AddressMap | None = blocks
        self._ordering = ordering
        blocks.add(address, nbytes)

    def free(self) -> None:
        """Give the bytes back; whoever still uses them faults. Twice is harmless.

        Raises:
            OrderError: An operation uses them that need not be done; they are not freed.
        """
        if self._blocks is not None:
            self._ordering.free(self.address)
        self._release()

    def _release(self) -> None:
        blocks, self._blocks = self._blocks, None
        if blocks is not None:
            blocks.remove(self.address)
            load_runtime().gpuexec_release(self.address)

    def __del__(self, is_over: Callable[[], bool] = sys.is_finalizing) -> None:
        # What is left at the end of the process goes with it: modules may be gone already.
        if getattr(self, "_blocks", None) is not None and not is_over():
            self._ordering.free_later(self.address)
            self._release()


class PinnedMemory:
    """Host memory that copies read when they run, not when they are issued.

    Its bytes count as pinned until they are freed, or nobody holds a view of them: what the host puts at their address
    later is ordinary memory.
    """

    def __init__(self, blocks: AddressMap, ordering: Ordering, nbytes: int) -> None:
        self.array: ByteArray | None = np.full(nbytes, _POISON, np.uint8)
        self.address: int = self.array.ctypes.data
        self.nbytes = nbytes
        self._ordering = ordering
        blocks.add(self.address, nbytes)
        self._forget = weakref.finalize(self.array, _forget, blocks, ordering, self.address)
        self._forget.atexit = False

    def check_host(self, offset: int, nbytes: int, *, is_write: bool) -> None:
        """Check that the host may read or write these bytes now.

        Raises:
            OrderError: An operation uses them that need not be done.
        """
        if self.array is not None:
            self._ordering.check_host(self.address + offset, nbytes, is_write)

    def free(self) -> None:
        """Poison the bytes and let go of them. Twice is harmless.

        Raises:
            OrderError: An operation uses them that need not be done; they are not freed.
        """
        if self.array is not None:
            self._ordering.free(self.address)
            self._forget()
            self.array[...] = _POISON
            self.array = None


def _forget(blocks: AddressMap, ordering: Ordering, address: int) -> None:
    """Take out a pinned block that nobody holds, no operation either."""
    blocks.remove(address)
    ordering.free_later(address, is_checked=False)
