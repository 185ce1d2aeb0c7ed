"""Graphs of the tracer: the host's share of a graph launch, and a row for each call."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuexec.devices.prepared import PreparedCommand, PreparedCopy, PreparedFill, PreparedLaunch

if TYPE_CHECKING:
    from gpuexec.devices.recorder.tracer import TracerDevice, TracerStream

# The parameters of nodes as the driver takes them: a kernel (function, grid, block, shared bytes, parameters, extra), a
# copy (destination, source, bytes), a fill (destination, value, element size, count).
_KERNEL_NODE = struct.Struct("Q3I3IIQQ")
_COPY_NODE, _FILL_NODE = struct.Struct("QQQ"), struct.Struct("QQIQ")


class TracerGraph:
    """A graph that packs the parameters of each node as the driver takes them.

    It notes how many nodes and which edges it has, and at each update and launch its number.
    """

    def __init__(
        self, device: TracerDevice, number: int, commands: Sequence[PreparedCommand], edges: Sequence[tuple[int, int]]
    ) -> None:
        self._device, self.number = device, number
        self._packed = bytearray(_KERNEL_NODE.size)
        self.elapsed_ms = 0.0
        device.note("graph", number, len(commands), tuple(edges))
        self.update(range(len(commands)), commands)
        launch_ms = device.launch_ms
        if launch_ms is not None:
            launches = [command for command in commands if isinstance(command, PreparedLaunch)]
            self.elapsed_ms = sum([launch_ms(each.function.kernel) for each in launches], 0.0)  # type: ignore[attr-defined]

    def update(self, positions: Sequence[int], commands: Sequence[PreparedCommand]) -> None:
        """Pack the parameters of the commands at ``positions``, and note the update."""
        for position in positions:
            command = commands[position]
            match command:
                case PreparedLaunch():
                    config = command.config
                    (x, y, z), (width, height, depth) = config.grid, config.block
                    handle, places = command.function.handle, command.arguments.address  # type: ignore[attr-defined]
                    _KERNEL_NODE.pack_into(
                        self._packed, 0, handle, x, y, z, width, height, depth, config.shared_bytes, places, 0
                    )
                case PreparedCopy():
                    _COPY_NODE.pack_into(self._packed, 0, *command.addresses, command.nbytes)
                case PreparedFill():
                    value = int.from_bytes(command.pattern, "little")
                    _FILL_NODE.pack_into(self._packed, 0, command.address, value, len(command.pattern), command.count)
            if self._device.is_writing:
                self._device.note("node", self.number, position, *_describe(command))

    def launch(self, stream: TracerStream) -> None:
        """Note the launch."""
        stream.launch_graph(self)

    def close(self) -> None:
        """Note the end."""
        self._device.note("close graph", self.number)


def _describe(command: PreparedCommand) -> tuple[object, ...]:
    match command:
        case PreparedLaunch():
            kernel = str(command.function.kernel)  # type: ignore[attr-defined]
            name = "cooperative launch" if command.config.cooperative else "launch"
            return (name, kernel, command.config.grid, command.config.block, tuple(command.arguments.read()))
        case PreparedCopy():
            return ("copy", *command.addresses, command.nbytes)
        case PreparedFill():
            return ("fill", command.address, command.pattern, command.count)
    raise TypeError(f"No graph node for {type(command).__name__}.")
