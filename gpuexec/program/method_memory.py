"""Memory of a Method: planned blocks of the user's, allocators for the rest, and the parts of the block for state."""

from __future__ import annotations

import threading

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import ByteArray, MemoryBlock, Region, Stream, align
from gpuexec.errors import InputError, OutOfMemoryError
from gpuexec.execution.resources.claims import Claim, claim, claim_part
from gpuexec.execution.resources.exchange_pool import ExchangePool
from gpuexec.execution.resources.frames import Frame, RunCounter
from gpuexec.execution.resources.memory import Allocate, Arena, BorrowedMemory
from gpuexec.execution.resources.syncs import SyncLog
from gpuexec.execution.results.arenas import allocate_by, refuse_by, take_memory
from gpuexec.execution.runs.memory_limit import MemoryLimit
from gpuexec.execution.runs.storage import Storage
from gpuexec.program.bounds import Bounds
from gpuexec.program.memory_manager import HierarchicalAllocator, MemoryManager
from gpuexec.program.method_inputs import InputSlot, MethodInputs
from gpuexec.program.method_meta import ACTIVATIONS, INPUTS, OUTPUTS, PURPOSES, STAGING, STATE, MethodMeta


class MethodMemory:
    """The memory that one Method runs in. It claims the user's bytes when it is opened, until it is released.

    ``is_planned`` says whether it is as large as the plan needs, and not larger; ``sharing`` is what Methods over the
    same planned memory share.

    Args:
        meta: The method's.
        bounds: Of its inputs.
        planned: Blocks for the planned buffers; None: it has its own, which grows where it must.
        manager: Allocators of the user's; None: the device.
        is_whole: Nothing but the planned memory and the allocators may be used.
        limit: On all of it together.

    Raises:
        InputError: Blocks are missing, or the method needs memory whose size no plan tells, and nothing gives it.
    """

    def __init__(
        self,
        meta: MethodMeta,
        bounds: tuple[Bounds, ...],
        planned: HierarchicalAllocator | None = None,
        manager: MemoryManager | None = None,
        is_whole: bool = False,
        limit: MemoryLimit | None = None,
    ) -> None:
        self._meta, self._bounds, self._planned = meta, bounds, planned
        self._manager, self._is_whole, self._limit = manager, is_whole, limit
        self.is_planned = planned is not None
        self.shared_use = None if planned is None else planned._shared_use
        self._claims: list[Claim] = []
        self._state: StateBlocks | None = None
        self._check()

    def open(self, backend: Backend, stream: Stream, syncs: SyncLog) -> Storage:
        """Claim the user's memory, and return the storage of an engine in it.

        Raises:
            InputError: A block is too small, lies elsewhere, can't be used, or overlaps what is in use.
        """
        manager, limit, shared_use = self._manager, self._limit, self.shared_use
        kept = self._choose(manager and manager.method_allocator, "method_allocator", backend, stream)
        temp = self._choose(manager and manager.temp_allocator, "temp_allocator", backend, stream)
        if limit is not None:
            kept, temp = limit.meter(kept), limit.meter(temp)
        more = temp if self.is_planned else kept
        blocks = self._take_blocks(backend, stream)
        state = self._take_state(backend, stream)
        if state is not None:
            blocks[STATE], part = state
            start, nbytes = self._meta._state_start, self._meta._state_nbytes
            self._state = StateBlocks(Region(blocks[STATE], start, nbytes - start), temp, part)
            temp = self._state.allocate
        frame = Frame(backend, kept, None if shared_use is None else shared_use.readers_on(backend))
        for name, region in self._place_outputs(blocks.get(OUTPUTS)).items():
            frame.give(name, region)
        shared_inputs = shared_use if self._planned is not None and self._planned._shares_inputs else None
        inputs = MethodInputs(backend, stream, syncs, kept, self._place_inputs(blocks), shared_inputs)
        storage = Storage(
            Arena(backend, more, blocks.get(ACTIVATIONS)),
            (frame,),
            ExchangePool(backend, stream, temp),
            inputs,
            RunCounter(backend, syncs, None if shared_use is None else shared_use.count, owner="Method"),
            limit,
            is_exact=self.is_planned,
        )
        if limit is not None:
            limit.watch(storage.arena, storage.frames, storage.pool, inputs)
        return storage

    def check_apart(self, region: Region, what: str) -> None:
        """Check that bytes are not among those claimed.

        Raises:
            InputError: They are.
        """
        for each in self._claims:
            each.check_apart(region.address, region.nbytes, what)

    def release(self) -> None:
        """Release the claims; that of the state once no state uses it."""
        for each in self._claims:
            each.release()
        self._claims.clear()
        if self._state is not None:
            self._state.close()

    def _check(self) -> None:
        """Check that the method can do with what it is given, before any of it is looked at."""
        meta, manager = self._meta, self._manager
        if self._planned is None:
            return
        wanted, got = meta.num_memory_planned_buffers, len(self._planned._buffers)
        if got < wanted:
            raise InputError(
                f"Method {meta.name!r} has {wanted} planned buffers ({', '.join(PURPOSES[:wanted])}), got {got} blocks."
            )
        is_open = manager is not None and manager.temp_allocator is not None
        if meta.gaps and self._is_whole and not is_open:
            raise InputError(
                f"Method {meta.name!r} needs memory whose size only a run knows: {'; '.join(meta.gaps)}. Give"
                " MemoryManager(temp_allocator=...), or load it without planned memory."
            )

    def _choose(self, allocator: object, name: str, backend: Backend, stream: Stream) -> Allocate:
        """Return what gives memory: the user's allocator, nothing, or the device."""
        if allocator is not None:
            return allocate_by(allocator, backend, stream, f"the {name}")
        if self._is_whole:
            return refuse_by(f"there is no {name} in the MemoryManager to ask for them")
        return backend.device.allocate

    def _take_blocks(self, backend: Backend, stream: Stream) -> dict[int, MemoryBlock]:
        """Return the memory of each planned buffer but that of state; one without bytes has no address."""
        blocks: dict[int, MemoryBlock] = {}
        if self._planned is None:
            return blocks
        buffers = self._meta.memory_planned_buffers
        for index in (ACTIVATIONS, INPUTS, OUTPUTS, STAGING):
            nbytes = buffers[index].nbytes if index < len(buffers) else 0
            if nbytes:
                what, is_host = self._describe(index), buffers[index].device == "host"
                found = take_memory(self._planned._buffers[index], backend, stream, nbytes, what, is_host=is_host)
                self._claims.append(claim(found.address, nbytes, what, (self._planned._shared_use, index)))
                blocks[index] = found
            elif index in (ACTIVATIONS, OUTPUTS) or (index == INPUTS and self._meta._has_planned_inputs):
                blocks[index] = BorrowedMemory(0, 0, None, np.empty(0, np.uint8))
        return blocks

    def _take_state(self, backend: Backend, stream: Stream) -> tuple[MemoryBlock, Claim] | None:
        """Return the part of the block for state that is this Method's alone; None where it needs none."""
        buffers, what = self._meta.memory_planned_buffers, self._describe(STATE)
        nbytes = buffers[STATE].nbytes if len(buffers) > STATE else 0
        if self._planned is None or not nbytes:
            return None
        # Parts of the block may be held for readbacks that are through.
        backend.deferred_free.prune()
        found = take_memory(self._planned._buffers[STATE], backend, stream, nbytes, what, is_host=False, takes_all=True)
        part = claim_part(found.address, found.nbytes, nbytes, what)
        start = part.address - found.address
        array = None if found.array is None else found.array[start : start + nbytes]
        return BorrowedMemory(part.address, nbytes, found.owner, array), part

    def _describe(self, index: int) -> str:
        return f"Planned buffer {index} ({PURPOSES[index]}) of method {self._meta.name!r}"

    def _place_outputs(self, memory: MemoryBlock | None) -> dict[str, Region]:
        """Return where outputs lie in the block planned for them, by name."""
        places: dict[str, Region] = {}
        for index, offset in enumerate(self._meta._output_offsets):
            tensor = self._meta.output_tensor_meta(index)
            if memory is not None and offset is not None and tensor.is_memory_planned:
                places[tensor.name] = Region(memory, offset, self._meta.output_nbytes(index))
        return places

    def _place_inputs(self, blocks: dict[int, MemoryBlock]) -> dict[str, InputSlot]:
        """Return where inputs lie in planned memory, those of memories too, by name."""
        places, windows = blocks.get(INPUTS), blocks.get(STAGING, blocks.get(INPUTS))
        slots = {}
        for each, offset in zip(self._bounds, self._meta._input_offsets, strict=True):
            if places is not None and windows is not None and offset is not None and each.largest is not None:
                nbytes = each.largest.nbytes
                slots[each.name] = InputSlot(Region(places, offset, nbytes), Region(windows, offset, nbytes))
        state = blocks.get(STATE)
        if state is not None:
            for name, (start, nbytes) in self._meta._state_places.items():
                place = Region(state, start, nbytes)
                slots[name] = InputSlot(place, place)
        return slots


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
        size = align(max(nbytes, 1))
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
            rows = sorted([*self._free, (first, first + align(max(nbytes, 1)))])
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
    """A part of the block for state."""

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
