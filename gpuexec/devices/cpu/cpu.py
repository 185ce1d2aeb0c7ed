"""The CPU device: every command runs NumPy, over the same plans, arenas and edges as on a GPU.

A stream is a queue of work that a thread takes in order, so issuing returns before the work is done; who waits for it
does it, unless the thread is at it already. Within a recording, commands that no path of edges joins and that cost
something run side by side; the rest run in line. Those that share their work by themselves, as products and fused
operators on elements do, run in line too, on the same threads (`gpuexec.system.threads`).
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence

from gpuexec.devices.cpu.cpu_execution import BoundCall, Call, Execution, MovingCall, Order
from gpuexec.devices.cpu.cpu_memory import CpuMemory, IdleBlocks
from gpuexec.devices.cpu.cpu_stream import CpuEvent, CpuStream, CpuTimedEvent
from gpuexec.devices.device import (
    Event,
    Function,
    MemoryBlock,
    Recording,
    Region,
    Stream,
    TimedEvent,
)
from gpuexec.devices.host import host_memory_bytes
from gpuexec.devices.kernels.stored_code import StoredCode
from gpuexec.errors import InputError, KernelError, PlanError
from gpuexec.ir.command import Command, HostCall, Kernel
from gpuexec.ir.plan import Segment, Variant
from gpuexec.ir.size_layout import FieldKind, SizedVariant, SizeField, SizeLayout
from gpuexec.ir.target import Target
from gpuexec.system.progress import ProgressCallback


class CpuRecording:
    """A segment as NumPy calls."""

    def __init__(self, device: CpuDevice, segment: Segment, memory: Mapping[int, Region]) -> None:
        self._device, self._memory = device, memory
        self._order = Order.of(segment)
        written = {slot.buffer for command in segment.commands for slot in command.writes_to()}
        self._constants = memory.keys() - written
        self._calls = [Call(command, memory, self._constants) for command in segment.commands]
        # Where sizes share a layout: the layout, the present numbers, and the commands that are made anew at each size.
        self._layout: SizeLayout | None = None
        self._row: Sequence[int] = ()
        self._whole: list[int] = []

    def patch(self, commands: Sequence[Command]) -> None:
        """Replace the commands by those of another size; runs already submitted keep theirs."""
        if len(commands) != len(self._calls):
            raise PlanError(f"A recording of {len(self._calls)} commands can't take {len(commands)}.")
        self._layout, self._row = None, ()
        self._calls = [
            call
            if type(call) is Call and call.command is command
            else Call(command, self._memory, self._constants, call)
            for command, call in zip(commands, self._calls, strict=True)
        ]

    def resize(self, variant: Variant) -> None:
        """Replace the commands by a variant's: of one that shares its layout with the last, those that differ."""
        if not isinstance(variant, SizedVariant):
            self.patch(variant.commands)
            return
        layout = variant.layout
        if layout is not self._layout:
            self.patch(variant.commands)
            self._layout = layout
            self._whole = [position for position, fields in layout.by_command().items() if self._move(position, fields)]
        if self._whole:
            calls = list(self._calls)  # runs already submitted keep theirs
            for position in self._whole:
                command = variant.make_command(position)
                calls[position] = Call(command, self._memory, self._constants, calls[position])
            self._calls = calls
        self._row = variant.row

    def _move(self, position: int, fields: Sequence[SizeField]) -> bool:
        """Let a command take its numbers from rows; return whether it can't, and is to be made anew at each size."""
        call = self._calls[position]
        if not isinstance(call.command, HostCall) or any(field.kind is FieldKind.WHOLE for field in fields):
            return True
        self._calls[position] = MovingCall(call.command, self._memory, self._constants, call, fields)
        return False

    def submit(self, stream: Stream, bindings: Mapping[int, Region], first: int = 0, last: int | None = None) -> None:
        """Put the commands ``[first, last)`` on the stream; see `gpuexec.devices.device.Recording`."""
        assert isinstance(stream, CpuStream)
        calls, order, bound = self._calls, self._order, dict(bindings)
        span = (first, len(calls) if last is None else last)
        device = self._device
        execution = Execution(calls, self._row, order, bound, span, device.order, device.threads)
        stream.run(execution.run, execution.settle)

    @property
    def is_brief(self) -> bool:
        """Whether one thread makes all calls as soon as several would, by what the last whole pass took."""
        return self._device.order is None and self._order.is_brief

    def bind(self, bindings: Mapping[int, Region]) -> Callable[[], Sequence[Callable[[], object]]]:
        """Return what gives the commands as calls over this memory, in the plan's order, as they are when it is asked.

        From size to size only commands that depend on it are prepared again, one after the other. A buffer that has no
        place yet is looked up at each call.
        """
        known: Sequence[Call] = ()
        bound: list[BoundCall] = []
        # The calls of commands that no size changes, one list of all that follow each other, and the next that moves.
        runs: list[tuple[list[Callable[[], object]], BoundCall]] = []

        def take_commands() -> None:
            """Bind those that are others than they were."""
            nonlocal known
            calls, row = self._calls, self._row
            bound[:] = [
                bound[place] if place < len(known) and call is known[place] else call.bind(bindings)
                for place, call in enumerate(calls)
            ]
            known = calls
            runs.clear()
            fixed: list[Callable[[], object]] = []
            for call, each in zip(calls, bound, strict=True):
                if isinstance(call, MovingCall):
                    runs.append((fixed, each))
                    fixed = []
                else:
                    fixed += each(row)
            runs.append((fixed, lambda row: ()))

        def find_calls() -> Sequence[Callable[[], object]]:
            if self._calls is not known:  # a list that patches replace
                take_commands()
            row = self._row
            found: list[Callable[[], object]] = []
            for fixed, moving in runs:
                found += fixed
                found += moving(row)
            return found

        return find_calls

    def close(self) -> None:
        """Do nothing: the device holds nothing for it."""


class CpuDevice:
    """This machine's processor.

    Args:
        order: Picks which of n ready commands runs next, one at a time, in place of plan order; to prove that edges
            suffice.
        clock: Clock of timed events, in seconds.
        threads: How many threads a run takes, its caller's or its stream's included; None: as GPUEXEC_CPU_THREADS says.
    """

    def __init__(
        self,
        order: Callable[[int], int] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        threads: int | None = None,
    ) -> None:
        self.target = Target.named("cpu").with_memory(host_memory_bytes())
        self.name, self.ordinal = "cpu", 0
        self.order, self.clock = order, clock
        self.threads = 1 if order is not None else threads
        self._lock = threading.Lock()
        self._streams: weakref.WeakSet[CpuStream] = weakref.WeakSet()
        self._idle = IdleBlocks()

    @property
    def cached_nbytes(self) -> int:
        """Bytes of large blocks; what else is freed the process's allocator takes back."""
        return self._idle.nbytes

    def allocate(self, nbytes: int, stream: Stream | None = None) -> MemoryBlock:
        """Return memory of the process."""
        return CpuMemory(nbytes, self._idle)

    def allocate_pinned(self, nbytes: int) -> MemoryBlock:
        """Return memory of the process; nothing need be pinned here."""
        return CpuMemory(nbytes, self._idle)

    def trim(self) -> int:
        """Return large blocks to the process's allocator; return their bytes."""
        return self._idle.trim()

    def create_stream(self) -> Stream:
        """Return a stream with a thread of its own, started when first needed."""
        stream = CpuStream()
        with self._lock:
            self._streams.add(stream)
        return stream

    def owns(self, stream: object) -> bool:
        """Return whether an object is a stream of this device."""
        return isinstance(stream, CpuStream)

    def external_stream(self, handle: int) -> Stream:
        """Refuse: streams of the CPU have no handles.

        Raises:
            InputError: Always.
        """
        raise InputError(f"The CPU device has no stream {handle:#x}; streams by handle belong to GPUs.")

    def create_event(self) -> Event:
        """Return an event, not recorded."""
        return CpuEvent()

    def create_timed_event(self) -> TimedEvent:
        """Return an event that notes the time, not recorded."""
        return CpuTimedEvent(self.clock)

    def list_uncompiled(self, kernels: Sequence[Kernel], code: StoredCode | None = None) -> list[Kernel]:
        """Return nothing; a CPU plan has no kernels."""
        return []

    def compile(
        self, kernels: Sequence[Kernel], code: StoredCode | None = None, report: ProgressCallback | None = None
    ) -> None:
        """Refuse kernels; a CPU plan has none."""
        self.load(kernels, code)

    def load(self, kernels: Sequence[Kernel], code: StoredCode | None = None) -> None:
        """Refuse kernels; a CPU plan has none."""
        if kernels:
            raise KernelError(f"{kernels[0]}: the CPU device runs host calls, not kernels.")

    def function(self, kernel: Kernel) -> Function:
        """Refuse: there are no kernels here."""
        raise KernelError(f"{kernel}: the CPU device runs host calls, not kernels.")

    def record(self, segment: Segment, memory: Mapping[int, Region]) -> Recording:
        """Return the segment as NumPy calls."""
        return CpuRecording(self, segment, memory)

    def close(self) -> None:
        """End the threads of the streams."""
        for stream in list(self._streams):
            stream.close()
        self.trim()
