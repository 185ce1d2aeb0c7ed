"""The memory of a Method: the user's where planned, what an allocator gives for the rest, or its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuexec.arenas import allocate_by, refuse_by, take_memory
from gpuexec.bounds import Bounds
from gpuexec.errors import InputError
from gpuexec.frames import Frame, Turns
from gpuexec.memory import Allocate, Arena, BorrowedMemory
from gpuexec.memory_manager import HierarchicalAllocator, MemoryManager
from gpuexec.method_inputs import Slot, SlotBinder
from gpuexec.method_meta import ACTIVATIONS, INPUTS, OUTPUTS, PURPOSES, STAGING, STATE, MethodMeta
from gpuexec.method_state import StateBlocks
from gpuexec.pool import ExchangePool
from gpuexec.runtime.backend import Backend
from gpuexec.runtime.device import Memory, Region, Stream
from gpuexec.storage import OpenStorage, Storage
from gpuexec.syncs import SyncLog


@dataclass(frozen=True, slots=True, eq=False)
class MethodMemory:
    """What a Method runs in.

    Attributes:
        planned: Blocks for the planned buffers; None: it has its own, which grows where it must.
        manager: Allocators of the user's; None: the device.
        is_whole: Nothing but the planned memory and the allocators may be used.
    """

    planned: HierarchicalAllocator | None = None
    manager: MemoryManager | None = None
    is_whole: bool = False


def check_memory(meta: MethodMeta, memory: MethodMemory) -> None:
    """Check that a method can do with the memory it is given, before any of it is looked at.

    Raises:
        InputError: Blocks are missing, or the method needs memory whose size no plan tells, and nothing gives it.
    """
    if memory.planned is None:
        return
    wanted, got = meta.num_memory_planned_buffers, len(memory.planned.buffers)
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


def open_method_storage(meta: MethodMeta, bounds: tuple[Bounds, ...], memory: MethodMemory) -> OpenStorage:
    """Return what opens the storage of a Method.

    Raises, when it is called:
        InputError: A block is too small, lies elsewhere, or can't be used.
    """

    def open_storage(backend: Backend, stream: Stream, syncs: SyncLog) -> Storage:
        manager, planned = memory.manager, memory.planned
        kept = _choose(manager and manager.method_allocator, "method_allocator", backend, stream, memory.is_whole)
        temp = more = _choose(manager and manager.temp_allocator, "temp_allocator", backend, stream, memory.is_whole)
        blocks = {} if planned is None else _take_blocks(meta, planned, backend, stream)
        sharing = None if planned is None else planned.sharing
        state = blocks.get(STATE)
        if state is not None:
            held = Region(state, meta.state_start, state.nbytes - meta.state_start)
            temp = StateBlocks(held, temp).allocate
        frame = Frame(backend, kept, None if sharing is None else sharing.readers_on(backend))
        for index, region in _outputs(meta, blocks):
            frame.give(meta.output_tensor_meta(index).name, region)
        shared_inputs = sharing if planned is not None and planned.shares_inputs else None
        binder = SlotBinder(backend, stream, syncs, kept, _slots(meta, bounds, blocks), shared_inputs)
        return Storage(
            Arena(backend, more if planned is not None else kept, blocks.get(ACTIVATIONS)),
            (frame,),
            ExchangePool(backend, stream, temp),
            binder,
            Turns(backend, syncs, None if sharing is None else sharing.count, owner="Method"),
            is_exact=planned is not None,
        )

    return open_storage


def planned_output(meta: MethodMeta, index: int, memory: Memory | None) -> Region | None:
    """Return where an output lies in the block planned for outputs; None where it is not planned."""
    offset, tensor = meta.output_offsets[index], meta.output_tensor_meta(index)
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
    meta: MethodMeta, planned: HierarchicalAllocator, backend: Backend, stream: Stream
) -> dict[int, Memory]:
    """Return the memory of each planned buffer; one without bytes has none."""
    blocks: dict[int, Memory] = {}
    for index, purpose in enumerate(PURPOSES):
        buffers = meta.memory_planned_buffers
        nbytes = buffers[index].nbytes if index < len(buffers) else 0
        if nbytes:
            what = f"Planned buffer {index} ({purpose}) of method {meta.name!r}"
            is_host = buffers[index].device == "host"
            blocks[index] = take_memory(planned.buffers[index], backend, stream, nbytes, what, is_host=is_host)
        elif index in (ACTIVATIONS, OUTPUTS):
            blocks[index] = BorrowedMemory(0, 0, None, np.empty(0, np.uint8))
    return blocks


def _outputs(meta: MethodMeta, blocks: dict[int, Memory]) -> list[tuple[int, Region]]:
    rows = [(index, planned_output(meta, index, blocks.get(OUTPUTS))) for index in range(meta.num_outputs)]
    return [(index, region) for index, region in rows if region is not None]


def _slots(meta: MethodMeta, bounds: tuple[Bounds, ...], blocks: dict[int, Memory]) -> dict[str, Slot]:
    places, windows = blocks.get(INPUTS), blocks.get(STAGING, blocks.get(INPUTS))
    slots = {}
    for each, offset in zip(bounds, meta.input_offsets, strict=True):
        if places is not None and windows is not None and offset is not None and each.largest is not None:
            nbytes = each.largest.nbytes
            slots[each.name] = Slot(Region(places, offset, nbytes), Region(windows, offset, nbytes))
    state = blocks.get(STATE)
    if state is not None:
        for name, (start, nbytes) in meta.state_places.items():
            place = Region(state, start, nbytes)
            slots[name] = Slot(place, place)
    return slots
