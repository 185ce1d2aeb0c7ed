"""Storage of a Method: planned memory of the user, allocators for the rest, or its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import MemoryBlock, Region, Stream
from gpuexec.errors import InputError
from gpuexec.execution.resources.claims import Claim, claim, claim_part
from gpuexec.execution.resources.frames import Frame, RunCounter
from gpuexec.execution.resources.memory import Allocate, Arena, BorrowedMemory
from gpuexec.execution.resources.pool import ExchangePool
from gpuexec.execution.resources.syncs import SyncLog
from gpuexec.execution.results.arenas import allocate_by, refuse_by, take_memory
from gpuexec.execution.runs.memory_limit import MemoryLimit
from gpuexec.execution.runs.storage import OpenStorage, Storage
from gpuexec.program.bounds import Bounds
from gpuexec.program.memory_manager import HierarchicalAllocator, MemoryManager
from gpuexec.program.method_inputs import MethodInputs
from gpuexec.program.method_meta import ACTIVATIONS, INPUTS, OUTPUTS, PURPOSES, STAGING, STATE, MethodMeta
from gpuexec.program.method_places import InputPlaces, InputSlot
from gpuexec.program.method_state import StateBlocks
from gpuexec.program.slot_binder import SlotBinder


@dataclass(frozen=True, slots=True, eq=False)
class MethodMemory:
    """Memory that a Method runs in.

    Attributes:
        planned: Blocks for the planned buffers; None: it has its own, which grows where it must.
        manager: Allocators of the user's; None: the device.
        is_whole: Nothing but the planned memory and the allocators may be used.
        limit: On all of it together.
    """

    planned: HierarchicalAllocator | None = None
    manager: MemoryManager | None = None
    is_whole: bool = False
    limit: MemoryLimit | None = None


def check_memory(meta: MethodMeta, memory: MethodMemory) -> None:
    """Check that a method can do with the memory it is given, before any of it is looked at.

    Raises:
        InputError: Blocks are missing, or the method needs memory whose size no plan tells, and nothing gives it.
    """
    if memory.planned is None:
        return
    wanted, got = meta.num_memory_planned_buffers, len(memory.planned._buffers)
    if got < wanted:
        raise InputError(
            f"Method {meta.name!r} has {wanted} planned buffers ({', '.join(PURPOSES[:wanted])}), got {got} blocks."
        )
    is_open = memory.manager is not None and memory.manager.temp_allocator is not None
    if meta.gaps and memory.is_whole and not is_open:
        raise InputError(
            f"Method {meta.name!r} needs memory whose size only a run knows: {'; '.join(meta.gaps)}. Give"
            " MemoryManager(temp_allocator=...), or load it without planned memory."
        )


class MethodClaims:
    """Claims of a Method on the user's memory, held until it is closed."""

    def __init__(self) -> None:
        self._claims: list[Claim] = []
        self._state: StateBlocks | None = None

    def add(self, claim: Claim) -> None:
        """Keep a claim."""
        self._claims.append(claim)

    def divide(self, state: StateBlocks) -> None:
        """Keep what gives out the parts of the state."""
        self._state = state

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


def open_method_storage(
    meta: MethodMeta, bounds: tuple[Bounds, ...], memory: MethodMemory, claims: MethodClaims
) -> OpenStorage:
    """Return a function that opens the storage of a Method and claims the user's memory.

    Raises, when it is called:
        InputError: A block is too small, lies elsewhere, can't be used, or overlaps what is in use.
    """

    def open_storage(backend: Backend, stream: Stream, syncs: SyncLog) -> Storage:
        manager, planned, limit = memory.manager, memory.planned, memory.limit
        kept = _choose(manager and manager.method_allocator, "method_allocator", backend, stream, memory.is_whole)
        temp = _choose(manager and manager.temp_allocator, "temp_allocator", backend, stream, memory.is_whole)
        if limit is not None:
            kept, temp = limit.meter(kept), limit.meter(temp)
        more = temp if planned is not None else kept
        blocks = {} if planned is None else _take_blocks(meta, planned, backend, stream, claims)
        sharing = None if planned is None else planned._sharing
        state = _take_state(meta, planned, backend, stream)
        if state is not None:
            blocks[STATE], claim = state
            held = Region(blocks[STATE], meta._state_start, meta._state_nbytes - meta._state_start)
            parts = StateBlocks(held, temp, claim)
            claims.divide(parts)
            temp = parts.allocate
        frame = Frame(backend, kept, None if sharing is None else sharing.readers_on(backend))
        for index, region in _outputs(meta, blocks):
            frame.give(meta.output_tensor_meta(index).name, region)
        shared_inputs = sharing if planned is not None and planned._shares_inputs else None
        places = InputPlaces(kept, _slots(meta, bounds, blocks))
        binder = SlotBinder(MethodInputs(backend, stream, syncs, places, shared_inputs))
        storage = Storage(
            Arena(backend, more, blocks.get(ACTIVATIONS)),
            (frame,),
            ExchangePool(backend, stream, temp),
            binder,
            RunCounter(backend, syncs, None if sharing is None else sharing.count, owner="Method"),
            limit,
            is_exact=planned is not None,
        )
        if limit is not None:
            limit.watch(storage.arena, storage.frames, storage.pool, binder)
        return storage

    return open_storage


def planned_output(meta: MethodMeta, index: int, memory: MemoryBlock | None) -> Region | None:
    """Return where an output lies in the block planned for outputs; None where it is not planned."""
    offset, tensor = meta._output_offsets[index], meta.output_tensor_meta(index)
    if memory is None or offset is None or not tensor.is_memory_planned:
        return None
    return Region(memory, offset, meta.output_nbytes(index))


def _choose(allocator: object, name: str, backend: Backend, stream: Stream, is_whole: bool) -> Allocate:
    if allocator is not None:
        return allocate_by(allocator, backend, stream, f"the {name}")
    if is_whole:
        return refuse_by(f"there is no {name} in the MemoryManager to ask for them")
    return backend.device.allocate


def _take_blocks(
    meta: MethodMeta, planned: HierarchicalAllocator, backend: Backend, stream: Stream, claims: MethodClaims
) -> dict[int, MemoryBlock]:
    """Return the memory of each planned buffer but that of state; one without bytes has no address."""
    blocks: dict[int, MemoryBlock] = {}
    buffers = meta.memory_planned_buffers
    for index in (ACTIVATIONS, INPUTS, OUTPUTS, STAGING):
        nbytes = buffers[index].nbytes if index < len(buffers) else 0
        if nbytes:
            what, is_host = _describe(meta, index), buffers[index].device == "host"
            found = take_memory(planned._buffers[index], backend, stream, nbytes, what, is_host=is_host)
            claims.add(claim(found.address, nbytes, what, (planned._sharing, index)))
            blocks[index] = found
        elif index in (ACTIVATIONS, OUTPUTS) or (index == INPUTS and meta._has_planned_inputs):
            blocks[index] = BorrowedMemory(0, 0, None, np.empty(0, np.uint8))
    return blocks


def _take_state(
    meta: MethodMeta, planned: HierarchicalAllocator | None, backend: Backend, stream: Stream
) -> tuple[MemoryBlock, Claim] | None:
    """Return the part of the block for state that is this Method's alone; None where it needs none."""
    buffers, what = meta.memory_planned_buffers, _describe(meta, STATE)
    nbytes = buffers[STATE].nbytes if len(buffers) > STATE else 0
    if planned is None or not nbytes:
        return None
    # Parts of the block may be held for readbacks that are through.
    backend.deferred_free.prune()
    found = take_memory(planned._buffers[STATE], backend, stream, nbytes, what, is_host=False, takes_all=True)
    part = claim_part(found.address, found.nbytes, nbytes, what)
    start = part.address - found.address
    array = None if found.array is None else found.array[start : start + nbytes]
    return BorrowedMemory(part.address, nbytes, found.owner, array), part


def _describe(meta: MethodMeta, index: int) -> str:
    return f"Planned buffer {index} ({PURPOSES[index]}) of method {meta.name!r}"


def _outputs(meta: MethodMeta, blocks: dict[int, MemoryBlock]) -> list[tuple[int, Region]]:
    rows = [(index, planned_output(meta, index, blocks.get(OUTPUTS))) for index in range(meta.num_outputs)]
    return [(index, region) for index, region in rows if region is not None]


def _slots(meta: MethodMeta, bounds: tuple[Bounds, ...], blocks: dict[int, MemoryBlock]) -> dict[str, InputSlot]:
    places, windows = blocks.get(INPUTS), blocks.get(STAGING, blocks.get(INPUTS))
    slots = {}
    for each, offset in zip(bounds, meta._input_offsets, strict=True):
        if places is not None and windows is not None and offset is not None and each.largest is not None:
            nbytes = each.largest.nbytes
            slots[each.name] = InputSlot(Region(places, offset, nbytes), Region(windows, offset, nbytes))
    state = blocks.get(STATE)
    if state is not None:
        for name, (start, nbytes) in meta._state_places.items():
            place = Region(state, start, nbytes)
            slots[name] = InputSlot(place, place)
    return slots
