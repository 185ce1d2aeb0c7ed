"""Recordings for devices with kernels: a segment prepared once, issued again and again.

What is known when recording is packed into argument blocks; for each bound buffer the recording keeps the places where
its address goes, and ``submit`` patches those that changed. Two forms of one interface: a stream of launches in plan
order, and a graph of the commands and edges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from gpuexec import knobs
from gpuexec.command import Command, Copy, Fill, HostCall, Launch, Slot
from gpuexec.errors import GpuexecError, KernelError, PlanError, locate
from gpuexec.plan import Segment
from gpuexec.runtime.arguments import PackedArguments
from gpuexec.runtime.device import Device, Function, Region, Stream


class Prepared(Protocol):
    """A command with addresses in place of slots."""

    def set_address(self, position: int, address: int) -> None:
        """Set the address of the slot at ``position``."""

    def issue(self, stream: Stream) -> None:
        """Put the command on a stream."""


class CommandGraph(Protocol):
    """An executable graph of prepared commands."""

    def update(self, position: int, command: Prepared) -> None:
        """Give the command at ``position`` other addresses, scalars or extents; runs already launched keep theirs."""

    def launch(self, stream: Any) -> None:
        """Put the whole graph on a stream."""

    def close(self) -> None:
        """Give the graph back; runs under way finish."""


class GraphDevice(Device, Protocol):
    """A device with graphs."""

    def create_graph(self, commands: Sequence[Prepared], edges: Sequence[tuple[int, int]]) -> CommandGraph:
        """Return a graph of commands with every address set; edges are pairs (before, after) of positions."""


class PreparedLaunch:
    """A kernel launch: positions are those of its arguments."""

    __slots__ = ("arguments", "block", "cooperative", "function", "grid", "shared_bytes")

    def __init__(self, function: Function, command: Launch, origin: str = "") -> None:
        self.arguments = PackedArguments(_values(command), command, origin)
        self.function, self.grid, self.block, self.shared_bytes = (
            function,
            command.grid,
            command.block,
            command.shared_bytes,
        )
        self.cooperative = command.cooperative
        signature = function.signature
        if signature is not None and signature != self.arguments.kinds():
            raise KernelError(
                f"{command.kernel} takes ({', '.join(signature)}), got ({', '.join(self.arguments.kinds())})."
            )

    def update(self, command: Launch) -> None:
        """Take grid, block and scalars of another size of the same launch."""
        self.grid, self.block, self.shared_bytes = command.grid, command.block, command.shared_bytes
        self.arguments.update(_values(command))
        self.arguments.command = command

    def set_address(self, position: int, address: int) -> None:
        """Set a pointer argument."""
        self.arguments.set_pointer(position, address)

    def issue(self, stream: Stream) -> None:
        """Launch the kernel."""
        if self.cooperative:
            stream.launch(self.function, self.grid, self.block, self.shared_bytes, self.arguments, cooperative=True)
        else:
            stream.launch(self.function, self.grid, self.block, self.shared_bytes, self.arguments)


class PreparedCopy:
    """A copy: position 0 is the destination, 1 the source."""

    __slots__ = ("addresses", "nbytes", "origin")

    def __init__(self, command: Copy, origin: str = "") -> None:
        self.origin = origin
        self.addresses = [0, 0]
        self.nbytes = command.source.spec.nbytes

    def set_address(self, position: int, address: int) -> None:
        """Set destination or source."""
        self.addresses[position] = address

    def issue(self, stream: Stream) -> None:
        """Copy on the device."""
        stream.copy(self.addresses[0], self.addresses[1], self.nbytes)


class PreparedFill:
    """A fill: position 0 is the destination. 8 bytes of two equal halves are filled as 4."""

    __slots__ = ("address", "count", "origin", "pattern")

    def __init__(self, command: Fill, origin: str = "") -> None:
        self.origin = origin
        self.address = 0
        self.pattern, self.count = command.pattern, command.destination.spec.size
        if len(self.pattern) == 8 and self.pattern[:4] == self.pattern[4:]:
            self.pattern, self.count = self.pattern[:4], 2 * self.count

    def set_address(self, position: int, address: int) -> None:
        """Set the destination."""
        self.address = address

    def issue(self, stream: Stream) -> None:
        """Fill on the device."""
        stream.fill(self.address, self.pattern, self.count)


class PreparedSegment:
    """All commands of a segment, and the places of bound buffers: (command, position, byte offset) by buffer."""

    def __init__(
        self, device: Device, commands: Sequence[Command], memory: Mapping[int, Region], origins: Sequence[str] = ()
    ) -> None:
        self._device, self._memory = device, memory
        self._origins = tuple(origins) or ("",) * len(commands)
        self._current: list[Command] = list(commands)
        self._places: dict[int, list[tuple[int, int, int]]] = {}
        self._bound: dict[int, int] = {}
        self.commands: list[Prepared] = [self._prepare(index) for index in range(len(commands))]
        for index, command in enumerate(commands):
            self._place(index, command)

    def patch(self, commands: Sequence[Command]) -> list[int]:
        """Take the commands that differ from the present ones; return their positions."""
        current = self._current
        if len(commands) != len(current):
            raise PlanError(f"A recording of {len(current)} commands can't take {len(commands)}.")
        changed = [i for i, command in enumerate(commands) if command is not current[i] and command != current[i]]
        if not changed:
            return changed
        gone = set(changed)
        for buffer, rows in self._places.items():
            self._places[buffer] = [row for row in rows if row[0] not in gone]
        for index in changed:
            self._update(index, commands[index])
            self._place(index, commands[index])
        return changed

    def bind(self, bindings: Mapping[int, Region]) -> set[int]:
        """Patch the addresses of bound buffers that changed; return the positions of the commands patched."""
        touched: set[int] = set()
        for buffer, places in self._places.items():
            address = bindings[buffer].address
            if self._bound.get(buffer) == address:
                continue
            self._bound[buffer] = address
            for index, position, offset in places:
                self.commands[index].set_address(position, address + offset)
                touched.add(index)
        return touched

    def _prepare(self, index: int) -> Prepared:
        command, origin = self._current[index], self._origins[index]
        match command:
            case Launch():
                return PreparedLaunch(self._device.function(command.kernel), command, origin)
            case Copy():
                return PreparedCopy(command, origin)
            case Fill():
                return PreparedFill(command, origin)
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

    def _place(self, index: int, command: Command) -> None:
        prepared = self.commands[index]
        for position, slot in _positions(command):
            region = self._memory.get(slot.buffer)
            if region is not None:
                prepared.set_address(position, region.address + slot.offset_bytes)
                continue
            self._places.setdefault(slot.buffer, []).append((index, position, slot.offset_bytes))
            if slot.buffer in self._bound:
                prepared.set_address(position, self._bound[slot.buffer] + slot.offset_bytes)


class StreamRecording:
    """The stream form: every command issued on one stream, in plan order.

    With GPUEXEC_SYNC_EACH set when recording, the host waits after every command, so that a fault names its node.
    """

    def __init__(self, device: Device, segment: Segment, memory: Mapping[int, Region]) -> None:
        self._segment = PreparedSegment(device, segment.commands, memory, segment.origins)
        self._origins = segment.origins if knobs.sync_each() else None

    def submit(self, stream: Stream, bindings: Mapping[int, Region], first: int = 0, last: int | None = None) -> None:
        """Issue commands ``[first, last)``. See `gpuexec.runtime.device.Recording`."""
        self._segment.bind(bindings)
        if self._origins is not None:
            self._issue_each(stream, range(len(self._origins))[first:last], self._origins)
            return
        for command in self._segment.commands[first:last]:
            command.issue(stream)

    def patch(self, commands: Sequence[Command]) -> None:
        """Take the commands of another size of the same class."""
        self._segment.patch(commands)

    def _issue_each(self, stream: Stream, positions: range, origins: Sequence[str]) -> None:
        for position in positions:
            try:
                self._segment.commands[position].issue(stream)
                stream.synchronize()
            except GpuexecError as error:
                raise locate(error, f"Command {position} ({origins[position]})", origins[position]) from None


class GraphRecording:
    """The graph form: commands and edges as one graph, which alone runs branches side by side.

    It is made at the first submission of the whole segment, when every address is known; later ones update the nodes
    whose addresses or sizes changed. Parts of a segment are issued in stream form.

    Raises:
        KernelError: A launch is cooperative: a node of a graph is not.
    """

    def __init__(self, device: GraphDevice, segment: Segment, memory: Mapping[int, Region]) -> None:
        for command in segment.commands:
            if isinstance(command, Launch) and command.cooperative:
                raise KernelError(f"{command.kernel}: a graph holds no cooperative launch; record the stream form.")
        self._device, self._edges = device, segment.edges
        self._segment = PreparedSegment(device, segment.commands, memory, segment.origins)
        self._graph: CommandGraph | None = None
        self._stale: set[int] = set()

    def submit(self, stream: Stream, bindings: Mapping[int, Region], first: int = 0, last: int | None = None) -> None:
        """Launch the graph, or issue a part of the commands. See `gpuexec.runtime.device.Recording`."""
        commands = self._segment.commands
        self._stale |= self._segment.bind(bindings)
        if first > 0 or (last is not None and last < len(commands)):
            for command in commands[first:last]:
                command.issue(stream)
            return
        if self._graph is not None and not all(_can_update(commands[position]) for position in self._stale):
            self.close()
        if self._graph is None:
            self._graph = self._device.create_graph(commands, self._edges)
        else:
            for position in sorted(self._stale):
                self._graph.update(position, commands[position])
        self._stale.clear()
        self._graph.launch(stream)

    def patch(self, commands: Sequence[Command]) -> None:
        """Take the commands of another size of the same class."""
        self._stale.update(self._segment.patch(commands))

    def close(self) -> None:
        """Give the graph back; runs under way finish, and a later submission makes it again."""
        graph, self._graph = self._graph, None
        if graph is not None:
            graph.close()


def record_launches(device: Device, segment: Segment, memory: Mapping[int, Region]) -> StreamRecording:
    """Return the stream form of a segment on a device with kernels."""
    return StreamRecording(device, segment, memory)


def record_graph(device: GraphDevice, segment: Segment, memory: Mapping[int, Region]) -> GraphRecording:
    """Return the graph form of a segment on a device that has graphs."""
    return GraphRecording(device, segment, memory)


def _can_update(command: Prepared) -> bool:
    """Return whether a node can be updated: a fill of two columns can't, since CUDA takes one dimension there."""
    return not (isinstance(command, PreparedFill) and len(command.pattern) == 8)


def _values(command: Launch) -> list[np.generic | bytes | None]:
    return [None if isinstance(a, Slot) else a for a in command.arguments]


def _kinds(command: Launch) -> list[object]:
    """Return what decides where each argument lies in the block."""
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
        case HostCall():
            return []
