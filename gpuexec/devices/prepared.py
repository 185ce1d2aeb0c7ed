"""Prepared commands: arguments packed once with addresses in place of slots, and patched before each submission.

For each bound buffer a prepared segment knows the places where its address goes, so binding is a store for each place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

import numpy as np

from gpuexec.devices.arguments import PackedArguments
from gpuexec.devices.device import Device, Function, Region, Stream
from gpuexec.devices.launch_costs import LaunchCosts
from gpuexec.devices.libraries.device_library import LibraryPlan
from gpuexec.errors import KernelError, PlanError
from gpuexec.ir.command import BUFFER_ALIGNMENT, Command, Copy, Fill, HostCall, Launch, LibraryCall, Slot

_NOTHING: frozenset[int] = frozenset()


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
    """A kernel launch: positions are those of its arguments."""

    __slots__ = ("arguments", "config", "function")

    def __init__(self, function: Function, command: Launch, origin: str = "") -> None:
        self.arguments = PackedArguments(_values(command), command, origin)
        self.function, self.config = function, command.config
        signature = function.signature
        if signature is not None and signature != self.arguments.kinds():
            raise KernelError(
                f"{command.kernel} takes ({', '.join(signature)}), got ({', '.join(self.arguments.kinds())})."
            )

    def update(self, command: Launch) -> None:
        """Replace grid, block and scalars by those of another size of the same launch."""
        self.config = command.config
        self.arguments.update(_values(command))
        self.arguments.command = command

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

    __slots__ = ("addresses", "count", "origin", "pattern")

    def __init__(self, command: Fill, origin: str = "") -> None:
        self.origin = origin
        self.addresses = [0]
        self.pattern, self.count = command.pattern, command.destination.spec.size
        if len(self.pattern) == 8 and self.pattern[:4] == self.pattern[4:]:
            self.pattern, self.count = self.pattern[:4], 2 * self.count

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


class PreparedSegment:
    """All commands of a segment, and the places of the addresses of bound buffers.

    Attributes:
        commands: In plan order.
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
        # By buffer: (words, index of the word, byte offset, position of the command).
        self._places: dict[int, list[tuple[Any, int, int, int]]] = {}
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
        changed = [i for i, command in enumerate(commands) if command is not current[i] and command != current[i]]
        if not changed:
            return changed
        for index in changed:
            self._check_change(current[index], commands[index])
        gone = set(changed)
        for buffer, rows in self._places.items():
            self._places[buffer] = [row for row in rows if row[3] not in gone]
        for index in changed:
            self._update(index, commands[index])
            self._place(index, commands[index])
        self._gather()
        return changed

    def bind(self, bindings: Mapping[int, Region]) -> frozenset[int]:
        """Patch the addresses of bound buffers that changed; return the positions of the commands patched."""
        touched, bound = _NOTHING, self._bound
        for buffer, places in self._places.items():
            address = bindings[buffer].address
            if bound.get(buffer) == address:
                continue
            self._check_alignment(buffer, bindings[buffer])
            bound[buffer] = address
            for words, word, offset, _ in places:
                words[word] = address + offset
            positions = self._positions[buffer]
            touched = touched | positions if touched else positions
        return touched

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

    def _update(self, index: int, command: Command) -> None:
        old, prepared = self._current[index], self.commands[index]
        self._current[index] = command
        match old, command, prepared:
            case Launch(), Launch(), PreparedLaunch() if old.kernel == command.kernel and _kinds(old) == _kinds(
                command
            ):
                prepared.update(command)
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
            self._places.setdefault(slot.buffer, []).append((words, word, slot.offset_bytes, index))
            if slot.buffer in self._bound:
                words[word] = self._bound[slot.buffer] + slot.offset_bytes


def _values(command: Launch) -> list[np.generic | bytes | None]:
    return [None if isinstance(a, Slot) else a for a in command.arguments]


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
