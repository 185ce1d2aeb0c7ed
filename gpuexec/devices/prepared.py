"""Prepared commands: arguments packed once with addresses in place of slots, and patched before each submission.

For each bound buffer a prepared segment knows the places where its address goes, so binding is a store for each place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import compress
from operator import attrgetter, ne
from typing import Any, Protocol

import numpy as np

from gpuexec.devices.arguments import NodeArguments, PackedArguments
from gpuexec.devices.device import Device, Function, Region, Stream
from gpuexec.devices.launch_costs import LaunchCosts
from gpuexec.devices.libraries.device_library import LibraryPlan
from gpuexec.devices.size_writer import SizeWriter
from gpuexec.errors import KernelError, PlanError
from gpuexec.ir.command import BUFFER_ALIGNMENT, Command, Copy, Fill, HostCall, Launch, LibraryCall, Slot
from gpuexec.ir.size_layout import FieldKind, SizedVariant, SizeLayout

_NOTHING: frozenset[int] = frozenset()
_ADDRESS = attrgetter("address")


class PreparedCommand(Protocol):
    """A command with addresses in place of slots."""

    def find_place(self, position: int) -> tuple[Any, int]:
        """Return the words, and the index in them, where the address of the slot at ``position`` is stored."""

    def set_address(self, position: int, address: int) -> None:
        """Set the address of the slot at ``position``."""

    def issue(self, stream: Stream) -> None:
        """Issue the command on a stream."""


class CommandGraph(Protocol):
    """An executable graph of prepared commands."""

    def update(self, positions: Sequence[int], commands: Sequence[PreparedCommand]) -> None:
        """Update the nodes at ``positions`` to the addresses, scalars and extents of ``commands``.

        Runs already launched keep theirs.
        """

    def launch(self, stream: Any) -> None:
        """Put the whole graph on a stream."""

    def close(self) -> None:
        """Release the graph; runs under way finish."""


class GraphDevice(Device, Protocol):
    """A device with graphs; ``launch_costs`` are those of the path that its streams launch on."""

    launch_costs: LaunchCosts

    def create_graph(
        self,
        commands: Sequence[PreparedCommand],
        edges: Sequence[tuple[int, int]],
        origins: Sequence[str] = (),
        programmatic: AbstractSet[tuple[int, int]] = frozenset(),
    ) -> CommandGraph:
        """Return a graph of commands with every address set.

        Args:
            commands: One node each, or a few.
            edges: Pairs (before, after) of positions; what no path joins may run side by side.
            origins: The node of the model that each command stems from, for messages.
            programmatic: Edges to launches that begin early and wait themselves, see
                `gpuexec.devices.dependent_launch`.
        """


class PreparedLaunch:
    """A kernel launch: positions are those of its arguments.

    Attributes:
        arguments: Its arguments, all by value.
        moved: Those with a copy of what moves in device memory, for a node of a graph; None: there is no copy.
    """

    __slots__ = ("arguments", "begins_early", "config", "function", "moved")

    def __init__(self, function: Function, command: Launch, origin: str = "") -> None:
        self.arguments = PackedArguments(list_values(command), command, origin)
        self.begins_early: bool | None = None  # see `dependent_launch`, which asks once
        self.moved: NodeArguments | None = None
        self.function, self.config = function, command.config
        signature = function.signature
        if signature is not None and signature != self.arguments.kinds():
            raise KernelError(
                f"{command.kernel} takes ({', '.join(signature)}), got ({', '.join(self.arguments.kinds())})."
            )

    def update(self, command: Launch, *, is_whole: bool = False) -> None:
        """Replace grid, block and scalars by those of another size of the same launch; see `PackedArguments.update`."""
        self.config = command.config
        self.arguments.update(list_values(command), is_whole=is_whole)
        self.arguments.command = command

    @property
    def node_arguments(self) -> PackedArguments | NodeArguments:
        """The arguments of a node of a graph."""
        return self.arguments if self.moved is None else self.moved

    def find_place(self, position: int) -> tuple[Any, int]:
        """Return where a pointer argument is stored."""
        return self.arguments.find_pointer(position)

    def set_address(self, position: int, address: int) -> None:
        """Set a pointer argument."""
        self.arguments.set_pointer(position, address)

    def issue(self, stream: Stream) -> None:
        """Launch the kernel."""
        stream.launch(self.function, self.config, self.arguments)

    def issue_early(self, stream: Stream) -> None:
        """Launch the kernel, which waits itself for the launch issued just before it."""
        stream.launch_dependent(self.function, self.config, self.arguments)


class PreparedCopy:
    """A copy: position 0 is the destination, 1 the source."""

    __slots__ = ("addresses", "nbytes", "origin")

    def __init__(self, command: Copy, origin: str = "") -> None:
        self.origin = origin
        self.addresses = [0, 0]
        self.nbytes = command.source.spec.nbytes

    def set_count(self, nbytes: int) -> None:
        """Set the number of bytes."""
        self.nbytes = nbytes

    def find_place(self, position: int) -> tuple[Any, int]:
        """Return where destination or source is stored."""
        return self.addresses, position

    def set_address(self, position: int, address: int) -> None:
        """Set destination or source."""
        self.addresses[position] = address

    def issue(self, stream: Stream) -> None:
        """Copy on the device."""
        stream.copy(self.addresses[0], self.addresses[1], self.nbytes)


class PreparedFill:
    """A fill: position 0 is the destination. 8 bytes of two equal halves are filled as 4."""

    __slots__ = ("_width", "addresses", "count", "origin", "pattern")

    def __init__(self, command: Fill, origin: str = "") -> None:
        self.origin = origin
        self.addresses = [0]
        self.pattern, self._width = command.pattern, 1
        if len(self.pattern) == 8 and self.pattern[:4] == self.pattern[4:]:
            self.pattern, self._width = self.pattern[:4], 2
        self.set_count(command.destination.spec.size)

    def set_count(self, count: int) -> None:
        """Set the number of elements of the command."""
        self.count = self._width * count

    @property
    def address(self) -> int:
        """The destination."""
        return self.addresses[0]

    def find_place(self, position: int) -> tuple[Any, int]:
        """Return where the destination is stored."""
        return self.addresses, position

    def set_address(self, position: int, address: int) -> None:
        """Set the destination."""
        self.addresses[position] = address

    def issue(self, stream: Stream) -> None:
        """Fill on the device."""
        stream.fill(self.addresses[0], self.pattern, self.count)


class PreparedLibraryCall:
    """A call of a library: positions are those of its arguments, of which those that are absent have address 0."""

    __slots__ = ("addresses", "origin", "plan")

    def __init__(self, plan: LibraryPlan, command: LibraryCall, origin: str = "") -> None:
        self.plan, self.origin = plan, origin
        self.addresses = [0] * len(command.arguments)

    def find_place(self, position: int) -> tuple[Any, int]:
        """Return where an argument is stored."""
        return self.addresses, position

    def set_address(self, position: int, address: int) -> None:
        """Set an argument."""
        self.addresses[position] = address

    def issue(self, stream: Stream) -> None:
        """Call the library."""
        stream.call_library(self.plan, self.addresses)  # type: ignore[attr-defined]


@dataclass(slots=True, eq=False)
class _MovingSlot:
    """A slot whose offset depends on the sizes.

    Attributes:
        words: Where its address stands.
        word: Index in them.
        entry: Of the row: the offset in bytes.
        buffer: What it is a window on.
        place: The row of `PreparedSegment._places` for it, where the buffer is bound at submit.
        base: The address of the buffer, where it is not.
    """

    words: Any
    word: int
    entry: int
    buffer: int
    place: list[Any] | None
    base: int | None

    def move(self, row: Sequence[int], bound: Mapping[int, int]) -> None:
        """Store the offset of a row."""
        base = self.base
        if self.place is not None:
            self.place[2] = row[self.entry]
            base = bound.get(self.buffer)
        if base is not None:
            self.words[self.word] = base + row[self.entry]


class PreparedSegment:
    """All commands of a segment, and the places of the addresses of bound buffers.

    Attributes:
        commands: In plan order.
        row: The present size, where its `layout` is not None.
        alignment: Alignment that every bound address must have. A wide access elsewhere ends a GPU's context, and a
            simulator's CPU would let it pass.
    """

    def __init__(
        self, device: Device, commands: Sequence[Command], memory: Mapping[int, Region], origins: Sequence[str] = ()
    ) -> None:
        self._device, self._memory = device, memory
        self.alignment = BUFFER_ALIGNMENT
        for buffer, region in memory.items():
            self._check_alignment(buffer, region)
        self._origins = tuple(origins) or ("",) * len(commands)
        self._current: list[Command] = list(commands)
        # By buffer: [words, index of the word, byte offset, position of the command].
        self._places: dict[int, list[list[Any]]] = {}
        # What stores sizes of one layout; the commands that it changes are no more those of `_current`.
        self._writer: SizeWriter | None = None
        self.row: tuple[int, ...] = ()
        self._pending: SizedVariant | None = None  # whose row is not written yet
        self._stored: frozenset[int] = frozenset()
        self._moving: list[_MovingSlot] = []
        # Whether launches are looked up by their commands, beside what is packed.
        self._reads_commands = bool(getattr(device, "reads_commands", False))
        self._positions: dict[int, frozenset[int]] = {}
        self._bound: dict[int, int] = {}
        self.commands: list[PreparedCommand] = [self._prepare(index) for index in range(len(commands))]
        for index, command in enumerate(commands):
            self._place(index, command)
        self._gather()

    def patch(self, commands: Sequence[Command]) -> list[int]:
        """Replace the commands that differ from the present ones; return their positions."""
        current = self._current
        if len(commands) != len(current):
            raise PlanError(f"A recording of {len(current)} commands can't take {len(commands)}.")
        stored, self._stored, self._writer, self._pending = self._stored, _NOTHING, None, None
        changed = [
            i
            for i, command in enumerate(commands)
            if i in stored or (command is not current[i] and command != current[i])
        ]
        if not changed:
            return changed
        for index in changed:
            self._check_change(current[index], commands[index])
        gone = set(changed)
        for buffer, rows in self._places.items():
            self._places[buffer] = [row for row in rows if row[3] not in gone]
        for index in changed:
            self._update(index, commands[index], is_whole=index in stored)
            self._place(index, commands[index])
        self._gather()
        return changed

    @property
    def layout(self) -> SizeLayout | None:
        """The layout of the present size, None where it has none."""
        return None if self._writer is None else self._writer.layout

    def has_layout(self, variant: SizedVariant) -> bool:
        """Return whether a size is one of the layout at hand, so that its row is stored and no command replaced."""
        return self.layout is variant.layout

    def store(self, variant: SizedVariant) -> Collection[int]:
        """Set the commands to another size, by its row where they are of its layout; return the positions changed.

        A row is not in them before `write`: a graph may need none of it.

        Raises:
            PlanError: The device can't hold all blocks of a cooperative launch together; the size stays what it was.
        """
        layout, before = variant.layout, self.row
        if self._writer is None or not self.has_layout(variant):
            changed = self.patch(variant.commands)
            self._prepare_writer(layout)
            self.row = variant.row
            return changed
        self._stored = layout.commands
        self._pending, self.row = variant, variant.row
        if self._reads_commands or self._writer.is_cooperative:
            try:
                self.write()
            except PlanError:
                self._pending, self.row = None, before
                raise
        return self._stored

    def write(self) -> None:
        """Write the present size into the commands, unless it is there."""
        variant = self._pending
        if variant is None:
            return
        assert self._writer is not None
        self._writer.store(variant.row)
        for slot in self._moving:
            slot.move(variant.row, self._bound)
        if self._reads_commands:
            for index in variant.layout.commands:
                prepared = self.commands[index]
                if isinstance(prepared, PreparedLaunch):
                    prepared.arguments.command = variant.commands[index]  # type: ignore[assignment]
        self._pending = None

    def _prepare_writer(self, layout: SizeLayout) -> None:
        """Let rows of a layout be stored, the commands being those of one of its variants."""
        self._writer = SizeWriter(layout, self.commands, self._device.target)
        moved = self._writer.moved
        for buffer, rows in self._places.items():
            self._places[buffer] = [row for row in rows if row[3] not in moved]
        for index in moved:
            self._place(index, self._current[index])
        self._gather()
        places = {(id(place[0]), place[1]): place for rows in self._places.values() for place in rows}
        self._moving = []
        for field in layout.fields:
            if field.kind is FieldKind.OFFSET:
                words, word = self.commands[field.command].find_place(field.position)
                buffer = dict(_positions(self._current[field.command]))[field.position].buffer
                place = places.get((id(words), word))
                base = None if place is not None else self._memory[buffer].address
                self._moving.append(_MovingSlot(words, word, field.entry, buffer, place, base))

    def bind(self, bindings: Mapping[int, Region]) -> frozenset[int]:
        """Patch the addresses of bound buffers that changed; return the positions of the commands patched."""
        touched, bound, places = _NOTHING, self._bound, self._places
        addresses = list(map(_ADDRESS, map(bindings.__getitem__, places)))
        for buffer in compress(places, map(ne, addresses, map(bound.get, places))):
            address = bindings[buffer].address
            if address % self.alignment:
                self._check_alignment(buffer, bindings[buffer])
            bound[buffer] = address
            for words, word, offset, _ in places[buffer]:
                words[word] = address + offset
            positions = self._positions[buffer]
            touched = touched | positions if touched else positions
        return touched

    @property
    def addresses(self) -> Mapping[int, int]:
        """The present addresses of bound buffers."""
        return self._bound

    def find_rebound(self, addresses: Mapping[int, int]) -> frozenset[int]:
        """Return the positions of the commands that use buffers which lie elsewhere than at these addresses."""
        if addresses == self._bound:
            return _NOTHING
        rebound = [buffer for buffer, address in self._bound.items() if addresses.get(buffer) != address]
        return _NOTHING.union(*[self._positions.get(buffer, _NOTHING) for buffer in rebound])

    def _check_alignment(self, buffer: int, region: Region) -> None:
        if region.nbytes and region.address % self.alignment:
            raise PlanError(
                f"Buffer %{buffer} is bound at {region.address:#x}, which is no multiple of {self.alignment} bytes:"
                " kernels can't read or write there in wide words. Copy it to aligned memory first."
            )

    def _gather(self) -> None:
        """Index commands by the bound buffers they use."""
        self._positions = {buffer: frozenset([row[3] for row in rows]) for buffer, rows in self._places.items()}

    def _prepare(self, index: int) -> PreparedCommand:
        command, origin = self._current[index], self._origins[index]
        match command:
            case Launch():
                self._check_residency(command)
                return PreparedLaunch(self._device.function(command.kernel), command, origin)
            case Copy():
                return PreparedCopy(command, origin)
            case Fill():
                return PreparedFill(command, origin)
            case LibraryCall():
                if not hasattr(self._device, "plan_library_call"):
                    raise PlanError(f"{self._device.name} has no {command.library}: plan without providers.")
                return PreparedLibraryCall(self._device.plan_library_call(command), command, origin)
            case HostCall():
                raise PlanError(f"{command.operator}: a host call can't be part of a recording of {self._device.name}.")

    def _update(self, index: int, command: Command, *, is_whole: bool = False) -> None:
        old, prepared = self._current[index], self.commands[index]
        self._current[index] = command
        match old, command, prepared:
            case Launch(), Launch(), PreparedLaunch() if old.kernel == command.kernel and _kinds(old) == _kinds(
                command
            ):
                prepared.update(command, is_whole=is_whole)
            case _:
                self.commands[index] = self._prepare(index)

    def _check_change(self, old: Command, new: Command) -> None:
        """Refuse a change that a graph can't be updated to, or a device can't run, before anything is changed."""
        if _is_cooperative(old) != _is_cooperative(new):
            raise PlanError(f"A recording can't take {new} for {old}: a launch stays cooperative, or not.")
        self._check_residency(new)

    def _check_residency(self, command: Command) -> None:
        if isinstance(command, Launch) and command.cooperative:
            function = self._device.function(command.kernel)
            function.check_residency(command.config, self._device.target)

    def _place(self, index: int, command: Command) -> None:
        prepared = self.commands[index]
        for position, slot in _positions(command):
            words, word = prepared.find_place(position)
            region = self._memory.get(slot.buffer)
            if region is not None:
                words[word] = region.address + slot.offset_bytes
                continue
            self._places.setdefault(slot.buffer, []).append([words, word, slot.offset_bytes, index])
            if slot.buffer in self._bound:
                words[word] = self._bound[slot.buffer] + slot.offset_bytes


def list_values(command: Launch) -> list[np.generic | bytes | None]:
    """Return the arguments of a launch by value; None for those that are pointers."""
    return [a if isinstance(a, np.generic | bytes) else None for a in command.arguments]


def _is_cooperative(command: Command) -> bool:
    return isinstance(command, Launch) and command.cooperative


def _kinds(command: Launch) -> list[object]:
    """Return the argument kinds, which decide the layout of the argument block."""
    return [
        len(a) if isinstance(a, bytes) else a.dtype if isinstance(a, np.generic) else Slot for a in command.arguments
    ]


def _positions(command: Command) -> list[tuple[int, Slot]]:
    match command:
        case Launch():
            return [(i, a) for i, a in enumerate(command.arguments) if isinstance(a, Slot)]
        case Copy():
            return [(0, command.destination), (1, command.source)]
        case Fill():
            return [(0, command.destination)]
        case LibraryCall():
            return [(i, a) for i, a in enumerate(command.arguments) if a is not None]
        case HostCall():
            return []
