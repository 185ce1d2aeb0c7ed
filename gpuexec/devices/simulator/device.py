"""The simulated GPU: CUDA kernels on the CPU, asynchronous and as strict about errors as a GPU."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from gpuexec.devices.device import Recording, Region, Stream
from gpuexec.devices.host import host_memory_bytes
from gpuexec.devices.kernels.compile_once import OnceEach
from gpuexec.devices.kernels.stored_code import StoredCode
from gpuexec.devices.launch_costs import PACKED_COSTS
from gpuexec.devices.memory_pool import MemoryPool
from gpuexec.devices.pixel.extents import find_extents
from gpuexec.devices.prepared import PreparedCommand
from gpuexec.devices.recording import record_launches
from gpuexec.devices.simulator.compilation import BuiltObject, ObjectSource, build_each, is_compiled
from gpuexec.devices.simulator.context import SimulatorContext
from gpuexec.devices.simulator.counts import LaunchCounts
from gpuexec.devices.simulator.graph import SimulatorGraph
from gpuexec.devices.simulator.library import Schedule
from gpuexec.devices.simulator.memory import (
    DeviceMemory,
    PinnedMemory,
    Pool,
    SimulatorDeviceSource,
    SimulatorPinnedSource,
)
from gpuexec.devices.simulator.module import KernelModule, SimulatorFunction, list_generated
from gpuexec.devices.simulator.stream import SimulatorEvent, SimulatorStream, SimulatorTimedEvent
from gpuexec.devices.simulator.stream_thread import StreamThread
from gpuexec.devices.simulator.toolchain import Mode
from gpuexec.errors import InputError, KernelError
from gpuexec.ir.command import Kernel
from gpuexec.ir.plan import Segment
from gpuexec.ir.target import Target
from gpuexec.system import knobs
from gpuexec.system.progress import Progress, ProgressCallback

# What a kernel is known by among shared objects: its file, which is compiled with its whole table, or itself.
_Unit = str | Kernel


class SimulatorDevice:
    """A device whose faults are as final as a GPU's: after the first, every call raises DeviceLostError naming it.

    Args:
        instantiations: The table: all name expressions of a kernel file, by its name. A file is compiled once with all.
        target: Architecture whose limits apply.
        schedule: In which order threads, blocks and unordered nodes of graphs take turns. With ``"random"`` every
            launch has another order, all of them decided by the seed. Unordered nodes do in every schedule but
            ``"reverse"``, for a missing edge to show.
        delay_s: The longest of the random delays before a stream's commands.
        memory_bytes: How much can be allocated; None: what the host has.
        check_order: Whether what uses bytes of another operation that nothing orders it after is refused; None: as
            GPUEXEC_CHECK_ORDER says.
        check_kernels: Whether kernels run in check mode: what they do wrong raises CheckError where the host waits for
            them. None: as GPUEXEC_CHECK_KERNELS says. Then ``schedule`` is random if it is None, by GPUEXEC_CHECK_SEED.
        count_kernels: Whether kernels run in count mode, and not in check mode: `counts` has figures of each launch.
        ordinal: Which of several it is.
        multiprocessors: How many it has; None: as the smallest device of the architecture.

    Attributes:
        launch_costs: Those of a GPU, so that it takes the forms that a GPU would.
        reads_commands: Launches are held against the slots of their commands, which follow every change of size.
    """

    reads_commands = True

    def __init__(
        self,
        instantiations: Callable[[str], Sequence[str]],
        target: str = "sm_90",
        *,
        schedule: Schedule | None = None,
        delay_s: float = 0.0,
        memory_bytes: int | None = None,
        check_order: bool | None = None,
        check_kernels: bool | None = None,
        count_kernels: bool = False,
        ordinal: int = 0,
        multiprocessors: int | None = None,
    ) -> None:
        self.target = Target.named(target, multiprocessors).with_memory(
            host_memory_bytes() if memory_bytes is None else memory_bytes
        )
        self.name, self.ordinal = f"simulator{f' {ordinal}' if ordinal else ''} ({target})", ordinal
        self.launch_costs = PACKED_COSTS
        self._instantiations = instantiations
        is_checking = knobs.check_kernels() if check_kernels is None else check_kernels
        self.mode: Mode = "count" if count_kernels else "check" if is_checking else "plain"
        shuffled = Schedule("random", knobs.check_seed()) if self.mode == "check" else Schedule()
        self.context = SimulatorContext(
            self.name, self.target, schedule or shuffled, knobs.check_order() if check_order is None else check_order
        )
        self._delay_s = delay_s
        blocks, pinned, ordering = self.context.blocks, self.context.pinned, self.context.ordering
        # Nothing idle is kept: freed memory is inaccessible at once.
        device_memory = SimulatorDeviceSource(blocks, ordering, memory_bytes)
        self._memory = Pool(blocks, ordering, MemoryPool(device_memory, self.create_event, 0))
        self._pinned_source = SimulatorPinnedSource(pinned, ordering)
        self._pinned_memory = Pool(pinned, ordering, MemoryPool(self._pinned_source, self.create_event, 0))
        self._built: OnceEach[_Unit, BuiltObject] = OnceEach()
        self._functions: dict[Kernel, SimulatorFunction] = {}
        self._streams: weakref.WeakSet[SimulatorStream] = weakref.WeakSet()
        self._threads: list[StreamThread] = []  # also threads of unreferenced streams with work left
        self._default_stream: SimulatorStream | None = None
        self._lock = threading.Lock()

    @property
    def is_checking(self) -> bool:
        """Whether kernels run in check mode."""
        return self.mode == "check"

    @property
    def counts(self) -> Sequence[LaunchCounts]:
        """What count mode counted of the launches done so far, in their order."""
        return tuple(self.context.counts)

    @property
    def cached_nbytes(self) -> int:
        """Freed bytes on the device that work of streams still uses."""
        return self._memory.memory.cached_nbytes

    def allocate(self, nbytes: int, stream: Stream | None = None) -> DeviceMemory:
        """Return device memory, filled with 0xCD unless work of streams may still use it.

        Raises:
            OutOfMemoryError: The device, or the host, has no room.
        """
        self.context.check_alive()
        if self.target.has_textures:
            find_extents(nbytes, self.name)
        return DeviceMemory(self._memory, nbytes, stream)

    def allocate_pinned(self, nbytes: int) -> PinnedMemory:
        """Return host memory that copies read late."""
        self.context.check_alive()
        return PinnedMemory(self._pinned_memory, nbytes, self._pinned_source)

    def trim(self) -> int:
        """Release freed memory that no work uses any more; return its bytes."""
        return self._memory.memory.trim() + self._pinned_memory.memory.trim()

    def create_stream(self) -> SimulatorStream:
        """Return a stream that does not synchronize with any other."""
        self.context.check_alive()
        stream = SimulatorStream(self.context, self.context.next_seed(), self._delay_s)
        self._streams.add(stream)
        self._threads = [thread for thread in self._threads if not thread.has_ended()] + [stream.thread]
        return stream

    def owns(self, stream: object) -> bool:
        """Return whether an object is a stream of this device."""
        return isinstance(stream, SimulatorStream) and stream.context is self.context

    def external_stream(self, handle: int) -> SimulatorStream:
        """Return a stream of this device by its handle; 1 and 2 are one default stream.

        Raises:
            InputError: There is none.
        """
        if handle in (1, 2):
            with self._lock:
                if self._default_stream is None:
                    self._default_stream = self.create_stream()
                return self._default_stream
        for stream in self._streams:
            if stream.handle == handle:
                return stream
        raise InputError(f"{self.name} has no stream {handle:#x}.")

    def create_event(self) -> SimulatorEvent:
        """Return an event, not recorded."""
        self.context.check_alive()
        return SimulatorEvent(self.context)

    def create_timed_event(self) -> SimulatorTimedEvent:
        """Return an event that notes the time, not recorded."""
        self.context.check_alive()
        return SimulatorTimedEvent(self.context)

    def create_graph(
        self,
        commands: Sequence[PreparedCommand],
        edges: Sequence[tuple[int, int]],
        origins: Sequence[str] = (),
        programmatic: AbstractSet[tuple[int, int]] = frozenset(),
    ) -> SimulatorGraph:
        """Return a graph of prepared commands with pairs (before, after) of positions as edges.

        The commands know their origins.
        """
        self.context.check_alive()
        return SimulatorGraph(self.context, commands, edges, programmatic)

    def list_uncompiled(self, kernels: Sequence[Kernel], code: StoredCode | None = None) -> list[Kernel]:
        """Return the kernels whose files are not compiled, so that they take more than the linker.

        Raises:
            KernelError: The table lacks a kernel.
        """
        missing = {kernel: unit for kernel, unit in self._find_units(kernels).items() if unit not in self._built}
        uncompiled = {
            unit
            for group in self._list_groups(list(dict.fromkeys(missing.values())))
            for source, units in group.items()
            if not is_compiled(source, self.mode)
            for unit in units
        }
        return [kernel for kernel, unit in missing.items() if unit in uncompiled]

    def compile(
        self, kernels: Sequence[Kernel], code: StoredCode | None = None, report: ProgressCallback | None = None
    ) -> None:
        """Compile (or find) the files of the kernels, several at once, each with all that the table names for it.

        Kernels with text of their own are one shared object, whichever files they are in. In count mode all kernels
        are, and no others are compiled.

        Raises:
            KernelError: A file does not compile, or the table lacks a kernel.
        """
        self._build(kernels, report)

    def load(self, kernels: Sequence[Kernel], code: StoredCode | None = None) -> None:
        """Compile (or find) the files of the kernels as `compile` does, and load them.

        Raises:
            KernelError: A file does not compile, or the table lacks a kernel.
        """
        self.context.check_alive()
        built = self._build([kernel for kernel in kernels if kernel not in self._functions], None)
        with self._lock:
            for kernel, each in built.items():
                if kernel not in self._functions:
                    self._functions |= KernelModule(each).functions

    def function(self, kernel: Kernel) -> SimulatorFunction:
        """Return a kernel loaded before.

        Raises:
            KernelError: It was not.
        """
        if kernel not in self._functions:
            raise KernelError(f"{kernel} was not loaded; call load first.")
        return self._functions[kernel]

    def record(self, segment: Segment, memory: Mapping[int, Region]) -> Recording:
        """Return the recording of a segment as a stream of launches."""
        return record_launches(self, segment, memory)

    def close(self) -> None:
        """Finish all work, held work too, and end the threads of all streams. A second call does nothing."""
        self.context.is_closed = True
        for thread in self._threads:  # all are closed before the first wait: they may wait for each other
            thread.stop()
        for thread in self._threads:
            thread.join()
        self.context.ordering.close()

    def _build(self, kernels: Sequence[Kernel], report: ProgressCallback | None) -> dict[Kernel, BuiltObject]:
        """Return the shared object that each kernel is in."""
        self.context.check_alive()
        units = self._find_units(kernels)

        def make(missing: Sequence[_Unit]) -> Iterator[tuple[_Unit, BuiltObject]]:
            groups, left = self._list_groups(missing), set(missing)

            def tell(name: str) -> None:
                if report is not None:
                    rows = [unit for unit in units.values() if unit in missing]
                    done = sum(unit not in left for unit in rows)
                    report(Progress("compile", name, done_count=done, total_count=len(rows)))

            tell(next(iter(groups[0])).path.name)
            for number, source, built in build_each(groups, None, self.mode):
                if built is not None:
                    yield from [(unit, built) for units in groups[number].values() for unit in units]
                left.difference_update(groups[number][source])
                tell(source.path.name)

        built = self._built.get(units.values(), make)
        return {kernel: built[unit] for kernel, unit in units.items()}

    def _find_units(self, kernels: Sequence[Kernel]) -> dict[Kernel, _Unit]:
        """Return what each kernel is known by among the shared objects.

        Raises:
            KernelError: The table of instantiations lacks one.
        """
        units: dict[Kernel, _Unit] = {}
        for kernel in kernels:
            table = () if kernel.text else self._table_of(kernel.source)
            if not kernel.text and kernel.expression not in table:
                raise KernelError(
                    f"{kernel} is not in the table of instantiations ({_name_of(self._instantiations)}), which has"
                    f" {len(table)} for {kernel.source}; add it there."
                )
            # In count mode a plan is counted once: what it does not launch is not worth compiling.
            units[kernel] = kernel if kernel.text or self.mode == "count" else kernel.source
        return units

    def _list_groups(self, units: Sequence[_Unit]) -> list[dict[ObjectSource, list[_Unit]]]:
        """Return the shared objects to build, each as what it is built of and the units in that."""
        groups: list[dict[ObjectSource, list[_Unit]]] = [
            {ObjectSource(unit, self._table_of(unit)): [unit]} for unit in units if isinstance(unit, str)
        ]
        single = list_generated([unit for unit in units if isinstance(unit, Kernel)])
        if single:
            groups.append({source: list[_Unit](kernels) for source, kernels in single.items()})
        return groups

    def _table_of(self, source: str) -> tuple[str, ...]:
        try:
            return tuple(self._instantiations(source))
        except KeyError:
            return ()


def _name_of(function: Callable[[str], Sequence[str]]) -> str:
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    return f"{module}.{name}" if name else repr(function)
