"""Unpacked plan, within the planner: buffers without offsets, groups of commands without edges.

    UnpackedPlan = buffers: UnpackedBuffer*, groups: Group*, placed: {buffer: (host buffer, byte offset)}

A group holds the commands of one node, the store of one host value, the copy to one output, or the one that sets the
counters of all nodes to 0.
Buffers and groups have the same numbers and keys at every size of a class, so that one size can be compared with
another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any

import numpy as np

from gpuexec.ir.command import Command, Copy, Fill, HostCall, Launch, LibraryCall, Slot
from gpuexec.ir.geometry import contiguous_strides
from gpuexec.ir.plan import Role
from gpuexec.ir.provider import Offer
from gpuexec.ir.spec import HostValue, TensorSpec
from gpuexec.ir.weight_forms import PackedForm

Array = np.ndarray[Any, Any]
# What a group is for ("zeros", "node", "format", "store", "output"), and the node's position, the buffer, or the
# output's position. A "format" group transposes a value: its buffer is the result.
GroupKey = tuple[str, int]
# A buffer whose bytes hold another's, and the byte offset within it.
BufferOffset = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class UnpackedBuffer:
    """A buffer without a place. ``content`` is a host value to be stored; ``data`` a table made while planning.

    ``is_zeroed``: its bytes are 0 when a run begins, and when it ends. ``packed`` are the buffer of a weight, perhaps
    packed itself, and the form that this one holds it in.
    """

    role: Role
    nbytes: int
    name: str = ""
    data: bytes | None = None
    content: HostValue | None = None
    is_zeroed: bool = False
    packed: tuple[int, PackedForm] | None = None

    @property
    def is_weight(self) -> bool:
        """Whether it is a weight as the model has it."""
        return self.role is Role.CONSTANT and self.data is None and self.packed is None

    @property
    def form(self) -> PackedForm | None:
        """The form that it holds a weight in; None: the model's, or it is none."""
        return None if self.packed is None else self.packed[1]


@dataclass(slots=True)
class Effects:
    """Effects of lowering one node, kept so that the same node with the same slots need not be lowered again.

    ``outputs`` are where the node's outputs lie; ``placed`` and ``in_place`` the requests granted or noted for its
    buffers; ``choices`` the decisions that hold for the whole size class, in the order they were asked for, and
    ``chosen`` those of them that lowerings make by extents; ``offers`` the providers there were to choose from.
    """

    first_buffer: int
    buffers: list[UnpackedBuffer] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    outputs: list[Slot | None] = field(default_factory=list)
    placed: dict[int, BufferOffset] = field(default_factory=dict)
    in_place: list[tuple[int, int]] = field(default_factory=list)
    choices: list[int] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)
    offers: list[Offer] = field(default_factory=list)

    def copy(self) -> Effects:
        """Return the same effects, to which others are added apart."""
        return Effects(
            self.first_buffer,
            self.buffers.copy(),
            self.commands.copy(),
            self.outputs.copy(),
            self.placed.copy(),
            self.in_place.copy(),
            self.choices.copy(),
            self.chosen.copy(),
            self.offers.copy(),
        )


@dataclass(frozen=True, slots=True)
class Group:
    """Group of commands named after a node or value. ``in_place`` are pairs (output, source) of buffers."""

    key: GroupKey
    origin: str
    commands: Sequence[Command]
    in_place: Sequence[tuple[int, int]] = ()


@dataclass(slots=True)
class UnpackedPlan:
    """All effects so far, in plan order."""

    buffers: list[UnpackedBuffer] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    placed: dict[int, BufferOffset] = field(default_factory=dict)

    def new_buffer(self, buffer: UnpackedBuffer) -> int:
        """Add a buffer and return its id."""
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def apply(self, effects: Effects, key: GroupKey, origin: str) -> None:
        """Add the effects of lowering one node."""
        self.buffers += effects.buffers
        if effects.placed:
            self.placed.update(effects.placed)
        if effects.commands:
            self.groups.append(Group(key, origin, effects.commands, effects.in_place))


def move_effects(effects: Effects, buffers: Mapping[int, int], first_buffer: int) -> Effects:
    """Return the same effects on other buffers: those of inputs by ``buffers``, those made from ``first_buffer`` on."""
    shift = first_buffer - effects.first_buffer

    def move(buffer: int) -> int:
        return buffer + shift if buffer >= effects.first_buffer else buffers[buffer]

    def change(slot: Slot) -> Slot:
        return Slot(move(slot.buffer), slot.offset_bytes, slot.spec, slot.strides)

    def change_buffer(buffer: UnpackedBuffer) -> UnpackedBuffer:
        return buffer if buffer.packed is None else replace(buffer, packed=(move(buffer.packed[0]), buffer.packed[1]))

    return Effects(
        first_buffer=first_buffer,
        buffers=[change_buffer(buffer) for buffer in effects.buffers],
        commands=[map_slots(command, change) for command in effects.commands],
        outputs=[None if slot is None else change(slot) for slot in effects.outputs],
        placed={move(buffer): (move(host), offset) for buffer, (host, offset) in effects.placed.items()},
        in_place=[(move(output), move(source)) for output, source in effects.in_place],
        choices=effects.choices,
        chosen=effects.chosen,
        offers=effects.offers,
    )


def find_root(buffer: int, places: Mapping[int, BufferOffset]) -> BufferOffset:
    """Return the buffer whose bytes hold this one in the end, and the byte offset within it."""
    offset = 0
    while buffer in places:
        buffer, inner = places[buffer]
        offset += inner
    return buffer, offset


def dense(buffer: int, spec: TensorSpec) -> Slot:
    """Return the contiguous slot at the start of a buffer."""
    return Slot(buffer, 0, spec, contiguous_strides(spec.shape))


def map_slots(command: Command, change: Callable[[Slot], Slot]) -> Command:
    """Return the command with ``change`` applied to each slot."""
    match command:
        case Launch(kernel, grid, block, arguments, writes, shared_bytes, cooperative):
            changed = tuple([change(a) if isinstance(a, Slot) else a for a in arguments])
            return Launch(kernel, grid, block, changed, writes, shared_bytes, cooperative)
        case Copy(destination, source):
            return Copy(change(destination), change(source))
        case Fill(destination, pattern):
            return Fill(change(destination), pattern)
        case LibraryCall(library, problem, arguments):
            return LibraryCall(library, problem, tuple([None if a is None else change(a) for a in arguments]))
        case HostCall(operator, attributes, inputs, outputs, scratch):
            read, written = (tuple([None if s is None else change(s) for s in each]) for each in (inputs, outputs))
            return HostCall(operator, attributes, read, written, tuple(map(change, scratch)))


def slots_of(command: Command) -> list[tuple[Slot, bool]]:
    """Return each slot of a command with whether it is written; those read come first."""
    return [*zip(command.reads_from(), repeat(False)), *zip(command.writes_to(), repeat(True))]
