"""Arena of an engine, and borrowed memory of other owners."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import ALIGNMENT, ByteArray, MemoryBlock, Region, Stream

Array = np.ndarray[Any, Any]
# Returns device memory of at least so many bytes, or raises OutOfMemoryError.
Allocate = Callable[[int], MemoryBlock]


class BorrowedMemory:
    """Somebody else's bytes, kept alive by a reference to their owner."""

    __slots__ = ("address", "array", "nbytes", "owner")

    def __init__(self, address: int, nbytes: int, owner: object, array: ByteArray | None = None) -> None:
        self.address, self.nbytes, self.owner, self.array = address, nbytes, owner, array

    @staticmethod
    def of(array: Array) -> BorrowedMemory:
        """Wrap a contiguous NumPy array."""
        raw = array.reshape(-1).view(np.uint8)
        return BorrowedMemory(raw.ctypes.data, raw.nbytes, array, raw)

    def free(self) -> None:
        """Release the owner."""
        self.owner = self.array = None


class Arena:
    """The one block an engine's temporaries lie in. Grows to the largest plan; ``generation`` changes when it moves.

    Beside it are the counters of plans, which take turns. Every launch leaves them at 0, so they are set to 0 when they
    get their memory; at the end of memory of the user's, which others may write, they are so ahead of each plan.

    Args:
        backend: Where.
        allocate: What gives it memory; None: the device.
        memory: What it starts with, of the user's; used as long as no plan needs more.
    """

    def __init__(self, backend: Backend, allocate: Allocate | None = None, memory: MemoryBlock | None = None) -> None:
        self._allocate, self._revision = allocate or backend.device.allocate, backend.memory_revision
        self._memory = self._given = memory
        self._retired: list[MemoryBlock] = []
        self._counters: Region | None = None
        self.generation = 0

    @property
    def nbytes(self) -> int:
        """Bytes held now, outgrown blocks included."""
        return sum(memory.nbytes for memory in self._blocks())

    def reserve(self, nbytes: int) -> MemoryBlock:
        """Return a block of at least ``nbytes``. An outgrown one stays for now: work on a stream may use it."""
        if self._memory is None or self._memory.nbytes < nbytes:
            grown = self._allocate(max(nbytes, 1))
            if self._memory is not None:
                self._retired.append(self._memory)
            self._memory = grown
            self._note_change()
        return self._memory

    def reserve_counters(self, nbytes: int, beside: int, stream: Stream) -> Region | None:
        """Return where counters of so many bytes lie, 0 for what comes next on a stream; None for none.

        Args:
            nbytes: Of the counters.
            beside: Bytes of the temporaries, for which there is room.
            stream: What uses the arena.
        """
        if not nbytes:
            return None
        held, given = self._counters, self._given
        if held is not None and held.nbytes >= nbytes and (held.memory is not given or held.offset >= beside):
            return held
        start = 0 if given is None else (given.nbytes - nbytes) // ALIGNMENT * ALIGNMENT
        if given is not None and given is self._memory and start >= beside:
            counters = Region(given, start, nbytes)
        else:
            counters = Region(self._allocate(nbytes), 0, nbytes)
            _clear(counters, stream)
        self._counters = counters
        if held is not None and held.memory is not given:
            self._retired.append(held.memory)
        self._note_change()
        return self._counters

    def clear_counters(self, stream: Stream) -> None:
        """Set counters to 0 where others may have written: ahead of each plan."""
        if self._counters is not None and self._counters.memory is self._given:
            _clear(self._counters, stream)

    def release_retired(self) -> None:
        """Free outgrown blocks; the caller has waited for the work that used them."""
        for memory in self._retired:
            memory.free()
        self._retired.clear()
        self._revision.number += 1

    def give_back(self) -> None:
        """Free everything but memory of the user's; plans are recorded anew. The caller has waited."""
        if any(memory is not self._given for memory in self._blocks()):
            self.free()

    def free(self) -> None:
        """Free everything; the caller has waited."""
        self.release_retired()
        blocks = list(self._blocks())
        for memory in blocks:
            memory.free()
        self._memory = self._counters = None
        if blocks:
            self._note_change()

    def _note_change(self) -> None:
        self.generation += 1
        self._revision.number += 1

    def _blocks(self) -> Iterator[MemoryBlock]:
        yield from self._retired
        if self._memory is not None:
            yield self._memory
        if self._counters is not None and self._counters.memory is not self._memory:
            yield self._counters.memory


def _clear(counters: Region, stream: Stream) -> None:
    stream.fill(counters.address, bytes(1), counters.nbytes)
