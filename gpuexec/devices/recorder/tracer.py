"""The tracer: a device that records the calls made to it and executes nothing.

For tests, `explain`, dry runs, and measuring the host's share. It plans like a GPU. Addresses are numbers without
memory behind them, and readbacks give zeros; where the tracer holds content, copies and fills take place at once.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import numpy as np

from gpuexec.devices.arguments import PackedArguments
from gpuexec.devices.device import ByteArray, Event, Function, MemoryBlock, Recording, Region, Stream, TimedEvent, align
from gpuexec.devices.kernels.kernel_source import waits_for_predecessors
from gpuexec.devices.kernels.stored_code import StoredCode
from gpuexec.devices.launch_costs import LaunchCosts
from gpuexec.devices.prepared import PreparedCommand, PreparedCopy, PreparedFill, PreparedLaunch
from gpuexec.devices.recording import record_launches
from gpuexec.devices.residency import check_residency, count_resident
from gpuexec.errors import InputError, KernelError
from gpuexec.ir.command import Kernel, LaunchConfig
from gpuexec.ir.plan import Segment
from gpuexec.ir.target import Target
from gpuexec.system.progress import ProgressCallback

# The attribute, in its row, of a launch that begins before the one it waits for is complete.
DEPENDENT = "dependent"
_DEFAULT_STREAMS = 2
# Upper bounds of what tests/bench/host_time.py measures: the Python of a submission, and no driver.
TRACER_COSTS = LaunchCosts(stream_us=2.5, launch_us=0.4, graph_us=3.5, patch_us=1.0)
# The arguments of the driver's launch: function, grid, block, shared bytes, stream, parameters, extra.
_LAUNCH = struct.Struct("Q3I3IIQQQ")
# The arguments of the driver's graph launch: graph, stream.
_GRAPH_LAUNCH = struct.Struct("QQ")
# The parameters of nodes as the driver takes them: a kernel (function, grid, block, shared bytes, parameters, extra), a
# copy (destination, source, bytes), a fill (destination, value, element size, count).
_KERNEL_NODE = struct.Struct("Q3I3IIQQ")
_COPY_NODE, _FILL_NODE = struct.Struct("QQQ"), struct.Struct("QQIQ")


class TracerMemory:
    """An address range; pinned memory is real, as is that of a device that holds content."""

    __slots__ = ("address", "array", "nbytes")

    def __init__(self, address: int, nbytes: int, array: ByteArray | None = None) -> None:
        self.address, self.nbytes, self.array = address, nbytes, array

    def free(self) -> None:
        """Forget the range."""


class TracerFunction:
    """A kernel's name."""

    __slots__ = ("handle", "kernel", "signature", "waits")

    def __init__(self, kernel: Kernel, handle: int) -> None:
        self.kernel, self.handle = kernel, handle
        self.waits = _waits(kernel)
        self.signature: tuple[str, ...] | None = None

    def check_residency(self, config: LaunchConfig, target: Target) -> None:
        """Check a cooperative launch, as the simulator does.

        Raises:
            KernelError: Its blocks have no place at the same time.
        """
        check_residency(str(self.kernel), config.grid, count_resident(config, target), target.multiprocessors)


class TracerEvent:
    """Always done."""

    def is_done(self) -> bool:
        """Return True."""
        return True

    def synchronize(self, timeout_s: float | None = None) -> bool:
        """Return True."""
        return True


class TracerTimedEvent(TracerEvent):
    """An event with the tracer's own time at its last record."""

    def __init__(self) -> None:
        self.reached_ms = 0.0

    def elapsed_ms(self, since: TimedEvent) -> float:
        """Return the duration of the launches between the two."""
        assert isinstance(since, TracerTimedEvent)
        return self.reached_ms - since.reached_ms


class TracerStream:
    """A stream that appends a row for each call; ``launches`` counts launches."""

    def __init__(self, device: TracerDevice, number: int) -> None:
        self._device, self.number = device, number
        self._packed = bytearray(_LAUNCH.size)
        self.launches = 0
        # CUDA keeps the first two handles for the default streams.
        self.handle = number + _DEFAULT_STREAMS

    def begin_run(self) -> None:
        """Do nothing: a fault is the device's, whichever run it came about in."""

    def launch(self, function: Function, config: LaunchConfig, arguments: PackedArguments) -> None:
        """Pack the eleven arguments of the driver's launch, and note the launch."""
        (x, y, z), (width, height, depth) = config.grid, config.block
        handle, shared = function.handle, config.shared_bytes  # type: ignore[attr-defined]
        _LAUNCH.pack_into(
            self._packed, 0, handle, x, y, z, width, height, depth, shared, self.number, arguments.address, 0
        )
        self.launches += 1
        if self._device.is_watching:
            name = "cooperative launch" if config.cooperative else "launch"
            self._device.note_launch(name, function, config.grid, config.block, arguments)

    def launch_dependent(self, function: Function, config: LaunchConfig, arguments: PackedArguments) -> None:
        """Pack the arguments of a launch that begins early, and note it."""
        (x, y, z), (width, height, depth) = config.grid, config.block
        handle, shared = function.handle, config.shared_bytes  # type: ignore[attr-defined]
        _LAUNCH.pack_into(
            self._packed, 0, handle, x, y, z, width, height, depth, shared, self.number, arguments.address, 0
        )
        self.launches += 1
        if self._device.is_watching:
            self._device.note_launch("launch", function, config.grid, config.block, arguments, DEPENDENT)

    def launch_graph(self, graph: TracerGraph) -> None:
        """Pack the arguments of the driver's launch of a graph, and note it."""
        _GRAPH_LAUNCH.pack_into(self._packed, 0, graph.number, self.number)
        self._device.elapsed_ms += graph.elapsed_ms
        self._device.note("graph launch", graph.number)

    def copy_to_device(self, address: int, source: ByteArray) -> None:
        """Note the copy."""
        self._device.move(address, source.ctypes.data, source.nbytes)
        self._device.note("copy_to_device", address, source.nbytes)

    def copy_to_host(self, destination: ByteArray, address: int) -> None:
        """Note the copy; the host gets zeros, or the content."""
        destination[...] = 0
        self._device.move(destination.ctypes.data, address, destination.nbytes)
        self._device.note("copy_to_host", address, destination.nbytes)

    def copy(self, destination: int, source: int, nbytes: int) -> None:
        """Note the copy."""
        self._device.move(destination, source, nbytes)
        self._device.note("copy", destination, source, nbytes)

    def fill(self, address: int, pattern: bytes, count: int) -> None:
        """Note the fill."""
        self._device.move(address, pattern * count, len(pattern) * count)
        self._device.note("fill", address, pattern, count)

    def record(self, event: Event) -> None:
        """Note the record."""
        if isinstance(event, TracerTimedEvent):
            event.reached_ms = self._device.elapsed_ms
        self._device.note("record", self.number, id(event))

    def wait(self, event: Event) -> None:
        """Note the wait."""
        self._device.note("wait", self.number, id(event))

    def is_done(self) -> bool:
        """Return True."""
        return True

    def is_capturing(self) -> bool:
        """Return False: a tracer runs nothing, and captures nothing."""
        return False

    def synchronize(self) -> None:
        """Note the wait of the host."""
        self._device.note("synchronize", self.number)

    def close(self) -> None:
        """Do nothing."""


class TracerDevice:
    """A device that writes rows to ``log`` while ``is_writing``.

    Args:
        target: Target of plans, by name.
        launch_ms: Duration of a kernel launch for timed events (None: no time); nothing is waited for.
        multiprocessors: Of the device planned for; None: as the smallest of the architecture.
        holds_content: Memory is real, and copies and fills take place; launches do nothing all the same.
    """

    def __init__(
        self,
        target: str = "sm_90",
        is_writing: bool = True,
        launch_ms: Callable[[Kernel], float] | None = None,
        multiprocessors: int | None = None,
        holds_content: bool = False,
    ) -> None:
        self.target = Target.named(target, multiprocessors)
        self.name, self.ordinal = f"tracer ({target})", 0
        self.launch_ms = launch_ms
        self.launch_costs = TRACER_COSTS
        self.is_writing, self.holds_content = is_writing, holds_content
        self.elapsed_ms = 0.0
        self.log: list[tuple[object, ...]] = []
        self.loaded: dict[Kernel, TracerFunction] = {}
        self._top = 1 << 40
        self._streams = self._graphs = 0

    @property
    def is_writing(self) -> bool:
        """True if rows are written."""
        return self._is_writing

    @is_writing.setter
    def is_writing(self, is_writing: bool) -> None:
        self._is_writing = is_writing
        # Whether a launch needs more than packing: computed once for each.
        self.is_watching = is_writing or self.launch_ms is not None

    def note_launch(
        self,
        name: str,
        function: Function,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: PackedArguments,
        *attributes: str,
    ) -> None:
        """Append a row for a launch, its attributes last, and advance the time by its duration."""
        assert isinstance(function, TracerFunction)
        if self.launch_ms is not None:
            self.elapsed_ms += self.launch_ms(function.kernel)
        if self.is_writing:
            self.log.append((name, str(function.kernel), grid, block, tuple(arguments.read()), *attributes))

    def note(self, *row: object) -> None:
        """Append a row."""
        if self.is_writing:
            self.log.append(row)

    def move(self, destination: int, source: int | bytes, nbytes: int) -> None:
        """Copy bytes in memory that holds content."""
        if self.holds_content:
            ctypes.memmove(destination, source, nbytes)

    @property
    def cached_nbytes(self) -> int:
        """Nothing: addresses are never used twice."""
        return 0

    def allocate(self, nbytes: int, stream: Stream | None = None) -> MemoryBlock:
        """Return an address range, with memory behind it where content is held."""
        if self.holds_content:
            return self.allocate_pinned(nbytes)
        address = self._top
        self._top += align(max(nbytes, 1))
        self.note("allocate", address, nbytes)
        return TracerMemory(address, nbytes)

    def allocate_pinned(self, nbytes: int) -> MemoryBlock:
        """Return host memory."""
        array = np.zeros(nbytes, np.uint8)
        return TracerMemory(array.ctypes.data, nbytes, array)

    def trim(self) -> int:
        """Do nothing: no freed memory is kept."""
        return 0

    def create_stream(self) -> Stream:
        """Return a stream."""
        self._streams += 1
        return TracerStream(self, self._streams)

    def owns(self, stream: object) -> bool:
        """Return whether an object is a stream of this device."""
        return isinstance(stream, TracerStream) and stream._device is self

    def external_stream(self, handle: int) -> Stream:
        """Return a stream of that handle.

        Raises:
            InputError: None was created with it, and it is none of the default streams.
        """
        number = handle - _DEFAULT_STREAMS
        if not 1 - _DEFAULT_STREAMS <= number <= self._streams:
            raise InputError(f"{self.name} has no stream {handle:#x}.")
        return TracerStream(self, number)

    def create_event(self) -> Event:
        """Return an event, not recorded."""
        return TracerEvent()

    def create_timed_event(self) -> TimedEvent:
        """Return an event with the tracer's own time, not recorded."""
        return TracerTimedEvent()

    def list_uncompiled(self, kernels: Sequence[Kernel], code: StoredCode | None = None) -> list[Kernel]:
        """Return nothing; kernels are names here."""
        return []

    def compile(
        self, kernels: Sequence[Kernel], code: StoredCode | None = None, report: ProgressCallback | None = None
    ) -> None:
        """Do nothing; kernels are names here."""

    def load(self, kernels: Sequence[Kernel], code: StoredCode | None = None) -> None:
        """Note the kernels that were not loaded yet."""
        for kernel in kernels:
            if kernel not in self.loaded:
                self.loaded[kernel] = TracerFunction(kernel, len(self.loaded) + 1)
                self.note("load", str(kernel))

    def function(self, kernel: Kernel) -> Function:
        """Return a kernel loaded before."""
        return self.loaded[kernel]

    def create_graph(
        self,
        commands: Sequence[PreparedCommand],
        edges: Sequence[tuple[int, int]],
        origins: Sequence[str] = (),
        programmatic: AbstractSet[tuple[int, int]] = frozenset(),
    ) -> TracerGraph:
        """Return a graph, by its number."""
        self._graphs += 1
        return TracerGraph(self, self._graphs, commands, edges, programmatic)

    def record(self, segment: Segment, memory: Mapping[int, Region]) -> Recording:
        """Return the stream form."""
        return record_launches(self, segment, memory)

    def close(self) -> None:
        """Do nothing."""


class TracerGraph:
    """A graph that packs the parameters of each node as the driver takes them.

    It notes how many nodes and which edges it has, which of these are programmatic if any are, and at each update and
    launch its number.
    """

    def __init__(
        self,
        device: TracerDevice,
        number: int,
        commands: Sequence[PreparedCommand],
        edges: Sequence[tuple[int, int]],
        programmatic: AbstractSet[tuple[int, int]] = frozenset(),
    ) -> None:
        self._device, self.number = device, number
        self._packed = bytearray(_KERNEL_NODE.size)
        self.elapsed_ms = 0.0
        device.note("graph", number, len(commands), tuple(edges))
        if programmatic:
            device.note("programmatic edges", number, tuple(sorted(programmatic)))
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
                    handle, places = command.function.handle, command.node_arguments.address  # type: ignore[attr-defined]
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


def _waits(kernel: Kernel) -> bool:
    """Return whether a kernel waits for those it depends on; a tracer takes kernels without a source, too."""
    try:
        return waits_for_predecessors(kernel)
    except KernelError:
        return False


def _describe(command: PreparedCommand) -> tuple[object, ...]:
    match command:
        case PreparedLaunch():
            kernel = str(command.function.kernel)  # type: ignore[attr-defined]
            name = "cooperative launch" if command.config.cooperative else "launch"
            return (name, kernel, command.config.grid, command.config.block, tuple(command.node_arguments.read()))
        case PreparedCopy():
            return ("copy", *command.addresses, command.nbytes)
        case PreparedFill():
            return ("fill", command.address, command.pattern, command.count)
    raise TypeError(f"No graph node for {type(command).__name__}.")
