"""Launches, copies and fills as operations of the simulator: checked beforehand, arguments copied."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace

from gpuexec.devices.arguments import NodeArguments, PackedArguments
from gpuexec.devices.simulator.context import SimulatorContext
from gpuexec.devices.simulator.counts import LaunchCounts
from gpuexec.devices.simulator.library import AllowedRange, ArgumentCopy, WithheldRange, load_runtime
from gpuexec.devices.simulator.module import SimulatorFunction
from gpuexec.devices.simulator.operations import Access, Operation
from gpuexec.errors import InputError
from gpuexec.ir.command import Launch, LaunchConfig, Slot
from gpuexec.ir.work import find_form

_PATTERNS = (1, 2, 4, 8)


def make_launch(
    context: SimulatorContext,
    function: SimulatorFunction,
    config: LaunchConfig,
    arguments: PackedArguments | NodeArguments,
    copied: ArgumentCopy | None = None,
) -> Operation:
    """Return a launch; ``arguments`` may be changed afterwards.

    Args:
        context: Of the device.
        function: The kernel.
        config: Its launch configuration.
        arguments: What it is passed, and by which slots it is known what it may use.
        copied: What it was passed before and is passed again; None: a copy of the arguments.

    Raises:
        KernelError: The launch does not fit the kernel's signature or the device.
    """
    function.check_launch(config, context.target)
    if config.cooperative:
        function.check_residency(config, context.target)
    copied, origin, command = copied or function.copy_arguments(arguments), arguments.origin, arguments.command
    ranges = _find_ranges(arguments) if function.mode == "check" else None

    accesses = _find_accesses(context, arguments)

    def run(before: tuple[Access, ...] | None = None) -> None:
        schedule, counts = context.next_schedule(), list[LaunchCounts]()
        withheld = None
        if before is not None and function.mode != "count":
            schedule = replace(schedule, seed=context.next_seed())  # any order: which blocks begin early is random
            withheld = _withhold(before, accesses)
        function.run(config, copied.address, schedule, context.target, ranges=ranges, counts=counts, withheld=withheld)
        context.counts += [replace(each, origin=origin, needed_multiply_adds=_count_needed(command)) for each in counts]

    name = _name(f"launch of {function}", origin)
    context.check_not_freed(arguments, name)
    return Operation(name, run, accesses, origin)


def make_copy(
    context: SimulatorContext,
    destination: int,
    source: int,
    nbytes: int,
    on_device: tuple[int, ...],
    keep: object = None,
    origin: str = "",
) -> Operation:
    """Return a copy of bytes.

    Args:
        context: Of the device whose memory is touched.
        destination: Address.
        source: Address.
        nbytes: How many.
        on_device: Which of the two addresses are the device's.
        keep: Objects that must stay alive until the copy has run.
        origin: The node it stems from.

    Raises:
        DeviceError: A range lies in no allocation of the device.
    """
    name = f"copy of {nbytes} bytes"
    for address in on_device:
        context.check_range(address, nbytes, name)

    def run(_keep: object = keep) -> None:
        for address in on_device:  # once more: it may have been freed since
            context.check_range(address, nbytes, name, is_running=True)
        ctypes.memmove(destination, source, nbytes)

    return Operation(
        _name(name, origin), run, _drop_empty(Access(source, nbytes, False), Access(destination, nbytes, True)), origin
    )


def make_fill(context: SimulatorContext, address: int, pattern: bytes, count: int, origin: str = "") -> Operation:
    """Return a fill with ``pattern``, ``count`` times, for the node ``origin``.

    Raises:
        InputError: The pattern has not 1, 2, 4 or 8 bytes.
        DeviceError: The range lies in no allocation of the device.
    """
    if len(pattern) not in _PATTERNS:
        raise InputError(f"A fill pattern must have 1, 2, 4 or 8 bytes, got {len(pattern)}.")
    nbytes = len(pattern) * count
    name = f"fill of {nbytes} bytes"
    context.check_range(address, nbytes, name)

    def run() -> None:
        context.check_range(address, nbytes, name, is_running=True)
        load_runtime().gpuexec_fill(address, pattern, len(pattern), count)

    return Operation(_name(name, origin), run, _drop_empty(Access(address, nbytes, True)), origin)


def _find_accesses(context: SimulatorContext, arguments: PackedArguments | NodeArguments) -> tuple[Access, ...]:
    """Return the accesses of a launch: its command's slots, or else its pointers' allocations, as if written."""
    command = arguments.command
    if command is None:
        kinds = enumerate(arguments.kinds())
        found = [context.find_block(arguments.pointer(position)) for position, kind in kinds if kind == "P8"]
        return tuple(Access(start, size, True) for start, size in filter(None, found) if size)
    accesses = []
    for position, slot in enumerate(command.arguments):
        if isinstance(slot, Slot):
            low, high = slot.byte_range()
            start = arguments.pointer(position) + low - slot.offset_bytes
            accesses.append(Access(start, high - low, position in command.writes, *slot.byte_rows()))
    if isinstance(arguments, NodeArguments):
        accesses.append(Access(arguments.given, arguments.given_nbytes, False))
    return _drop_empty(*accesses)


def _find_ranges(arguments: PackedArguments | NodeArguments) -> list[AllowedRange] | None:
    """Return the byte range of each slot of a launch; None where only addresses are known."""
    command = arguments.command
    if command is None:
        return None
    ranges = []
    for position, slot in enumerate(command.arguments):
        if isinstance(slot, Slot):
            low, high = slot.byte_range()
            start = arguments.pointer(position) - slot.offset_bytes
            ranges.append(AllowedRange(start + low, start + high, position, position in command.writes))
    if isinstance(arguments, NodeArguments):
        end = arguments.given + arguments.given_nbytes
        ranges.append(AllowedRange(arguments.given, end, len(command.arguments) - 1, False))
    return ranges


def _count_needed(command: Launch | None) -> int | None:
    """Return the multiply-adds that a launch needs by the closed form of its kernel, None where there is none."""
    form = None if command is None else find_form(command.kernel)
    return None if form is None or command is None else form(command).needed_multiply_adds


def _withhold(before: Sequence[Access], own: Sequence[Access]) -> list[WithheldRange]:
    """Return what a launch must not use before its wait, given the writes of launches before it and its own accesses.

    Its outputs are hidden as well, so that any early write shows, unless it reads those bytes itself.
    """
    rows = [WithheldRange(each.address, each.address + each.nbytes, True, False) for each in dict.fromkeys(before)]
    for access in own:
        if access.is_write:
            first, end = access.address, access.address + access.nbytes
            is_read = any(
                not each.is_write and each.address < end and first < each.address + each.nbytes for each in own
            )
            rows.append(WithheldRange(first, end, not is_read, True))
    return rows


def _drop_empty(*accesses: Access) -> tuple[Access, ...]:
    return tuple(access for access in accesses if access.nbytes)


def _name(what: str, origin: str) -> str:
    return f"{what} for {origin!r}" if origin else what
