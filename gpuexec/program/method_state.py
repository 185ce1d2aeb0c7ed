"""Planned memory for state: the bytes that memories need, and blocks given out for them."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from gpuexec.devices.device import ByteArray, MemoryBlock, Region, align
from gpuexec.errors import OutOfMemoryError
from gpuexec.execution.resources.claims import Claim
from gpuexec.execution.resources.memory import Allocate
from gpuexec.execution.resources.pool import ExchangePool
from gpuexec.ir.spec import TensorSpec
from gpuexec.model.state_spec import Memory

# What a run starts from, what it leaves, and what one before it left, which is kept until the next is sure.
_SWAPPED = 3
# What grows where it lies, and what takes its place after a reset while work still reads it.
_GROWN = 2


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """The bytes of a memory at its largest: dense ones that runs exchange, or such as it grows in."""

    name: str
    nbytes: int
    grows: bool

    @property
    def held_nbytes(self) -> int:
        """Bytes of all blocks it takes."""
        if self.grows:
            return _GROWN * _align(self.nbytes)
        return _SWAPPED * _align(ExchangePool.round_up(self.nbytes))


def find_need(memory: Memory, start: TensorSpec, end: TensorSpec | None) -> MemoryNeed:
    """Return what a memory needs that starts so, and is left so by the largest run."""
    if memory.capacity is not None and memory.axis is not None:
        whole = (*start.shape[: memory.axis], memory.capacity, *start.shape[memory.axis + 1 :])
        return MemoryNeed(memory.input, start.with_shape(whole).nbytes, True)
    return MemoryNeed(memory.input, max(start.nbytes, 0 if end is None else end.nbytes), False)


def lay_out_state(needs: tuple[MemoryNeed, ...], *, has_kernels: bool) -> tuple[dict[str, tuple[int, int]], int, int]:
    """Return where what the host gives a memory is brought (offset, bytes), where the blocks begin, and all bytes."""
    places, end = {}, 0
    for need in needs if has_kernels else ():
        places[need.name] = (end, need.nbytes)
        end += _align(need.nbytes)
    return places, end, end + sum(need.held_nbytes for need in needs)


class StateBlocks:
    """Gives parts of one block of the user's, and takes them back when nobody holds them any more.

    Args:
        region: The block.
        more: What gives memory once it is used up.
        claim: On the block; released once it is closed and all parts are back.
    """

    def __init__(self, region: Region, more: Allocate, claim: Claim | None = None) -> None:
        self._region, self._more, self._claim = region, more, claim
        self._is_closed = False
        self._lock = threading.RLock()
        # Free ranges [first, last), in order and apart.
        self._free = [(0, region.nbytes)]

    def allocate(self, nbytes: int) -> MemoryBlock:
        """Return memory that lives as long as somebody holds it."""
        size = _align(nbytes)
        with self._lock:
            for index, (first, last) in enumerate(self._free):
                if last - first >= size:
                    self._free[index : index + 1] = [(first + size, last)] if last - first > size else []
                    return _Block(self, first, nbytes)
        try:
            return self._more(nbytes)
        except OutOfMemoryError as error:
            raise OutOfMemoryError(
                f"{error} The memory planned for state has {self._region.nbytes} bytes; a snapshot or fork that goes"
                " its own way needs a temp_allocator."
            ) from error

    def take_back(self, first: int, nbytes: int) -> None:
        """Take a part back; what is on the stream may use it still, and comes before what does next."""
        with self._lock:
            rows = sorted([*self._free, (first, first + _align(nbytes))])
            merged = rows[:1]
            for start, end in rows[1:]:
                if start == merged[-1][1]:
                    merged[-1] = (merged[-1][0], end)
                else:
                    merged.append((start, end))
            self._free = merged
            self._release()

    def close(self) -> None:
        """Release the block once no part of it is held."""
        with self._lock:
            self._is_closed = True
            self._release()

    def _release(self) -> None:
        is_whole = len(self._free) == 1 and self._free[0][1] - self._free[0][0] >= self._region.nbytes
        if self._is_closed and is_whole and self._claim is not None:
            self._claim.release()

    def view(self, first: int, nbytes: int) -> tuple[int, ByteArray | None]:
        """Return the address of a part, and its bytes where the host may touch them."""
        start, array = self._region.offset + first, self._region.memory.array
        return self._region.memory.address + start, None if array is None else array[start : start + nbytes]


class _Block:
    """A part of a block."""

    def __init__(self, blocks: StateBlocks, first: int, nbytes: int) -> None:
        self._blocks: StateBlocks | None = blocks
        self._first, self.nbytes = first, nbytes
        self.address, self.array = blocks.view(first, nbytes)

    def free(self) -> None:
        """Free the bytes. Twice is harmless."""
        blocks, self._blocks = self._blocks, None
        if blocks is not None:
            blocks.take_back(self._first, self.nbytes)
            self.array = None

    def __del__(self) -> None:
        self.free()


def _align(nbytes: int) -> int:
    return align(max(nbytes, 1))
