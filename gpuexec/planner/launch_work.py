"""Work of commands: by the closed form of their kernel, else by their slots and a table of instructions by source.

Kernels without a closed form read and write each element of their slots once, a few elements to a thread. What they
issue for an element is in `_SOURCES`, from the machine code for sm_90; few of them are bound by that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from gpuexec.ir.command import Command, Copy, Fill, HostCall, Launch, LibraryCall, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.work import WARP, Work, count_slot_bytes, count_warps, find_form

_AROUND = 40  # instructions of a thread apart from those for its elements
_TOGETHER = 4  # loads of a thread that are under way at once
_COPY_BLOCK_BYTES, _COPY_THREADS, _VECTOR_BYTES = 8192, 256, 16  # of a copy by the driver, about


@dataclass(frozen=True, slots=True)
class SourceRow:
    """What the kernels of a file do for an element: instructions of a thread, and operations."""

    instructions: float
    flops: int = 0


_OTHER = SourceRow(40, 1)
_SOURCES: Mapping[str, SourceRow] = {
    "elementwise_binary.cu": SourceRow(14, 1),
    "elementwise_cast.cu": SourceRow(14),
    "elementwise_pow.cu": SourceRow(45, 1),
    "elementwise_select.cu": SourceRow(16, 1),
    "elementwise_unary.cu": SourceRow(24, 1),
    "elementwise_variadic.cu": SourceRow(20, 1),
    "batch_norm.cu": SourceRow(37, 2),
    "cumulative.cu": SourceRow(20, 1),
    "generate.cu": SourceRow(10),
    "lrn.cu": SourceRow(40, 7),
    "pad.cu": SourceRow(30),
    "quantize.cu": SourceRow(25, 2),
    "reduce.cu": SourceRow(10, 1),
    "resize.cu": SourceRow(260, 8),
    "rotary.cu": SourceRow(40, 3),
    "swiglu.cu": SourceRow(40, 5),
}


@dataclass(frozen=True, slots=True)
class CommandGrid:
    """Blocks of a command, and what a multiprocessor gives each of them: threads, and dynamic shared memory."""

    blocks: int
    threads: int
    shared_nbytes: int = 0


def find_grid(command: Command) -> CommandGrid:
    """Return the grid of a command; of a copy or fill, about that of the driver's kernel; of other calls, none."""
    match command:
        case Launch():
            return CommandGrid(prod(command.grid), prod(command.block), command.shared_bytes)
        case Copy() | Fill():
            return CommandGrid(max(1, ceil_div(command.destination.spec.nbytes, _COPY_BLOCK_BYTES)), _COPY_THREADS)
        case LibraryCall() | HostCall():
            return CommandGrid(0, 0)


def describe_work(command: Command) -> Work:
    """Return what a command does. What a host call does is unknown, and counts as nothing.

    Of a call of a library, operations and bytes are known, and no instructions.
    """
    match command:
        case Launch():
            form = find_form(command.kernel)
            return _describe_by_slots(command) if form is None else form(command)
        case Copy() | Fill():
            nbytes = command.destination.spec.nbytes
            moved = nbytes * (2 if isinstance(command, Copy) else 1)
            return Work(instructions=8 * ceil_div(nbytes, _VECTOR_BYTES * WARP), l2_nbytes=moved)
        case LibraryCall():
            return Work(flops=command.problem.flops)
        case HostCall():
            return Work()


def list_operands(command: Command, work: Work) -> list[tuple[Slot, bool, int]]:
    """Return each slot of a command with whether it is written, and the bytes that are touched of it."""
    if isinstance(command, LibraryCall):  # how much of its workspace is used is not known
        used = [*((slot, False) for slot in command.reads_from()), (command.arguments[-2], True)]
        return [(slot, is_written, count_slot_bytes(slot)) for slot, is_written in used if slot is not None]
    if not isinstance(command, Launch):
        slots = [*((slot, False) for slot in command.reads_from()), *((slot, True) for slot in command.writes_to())]
        return [(slot, is_written, count_slot_bytes(slot)) for slot, is_written in slots]
    return [
        (slot, position in command.writes, work.operand_nbytes.get(position, count_slot_bytes(slot)))
        for position, slot in enumerate(command.arguments)
        if isinstance(slot, Slot)
    ]


def _describe_by_slots(launch: Launch) -> Work:
    row = _SOURCES.get(launch.kernel.source, _OTHER)
    slots = [slot for slot in launch.arguments if isinstance(slot, Slot)]
    elements = max((prod(e for e, s in zip(slot.shape, slot.strides) if s) for slot in slots), default=0)
    results = max((slot.spec.size for slot in launch.writes_to()), default=0)
    own = elements / max(1, prod(launch.grid) * prod(launch.block))
    return Work(
        flops=row.flops * max(results, elements),
        instructions=count_warps(launch) * (_AROUND + own * row.instructions),
        l2_nbytes=sum(map(count_slot_bytes, slots)),
        rounds=max(1, ceil_div(int(own), _TOGETHER)),
    )
