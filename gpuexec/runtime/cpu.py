"""The CPU device: every command runs NumPy, over the same plans, arenas and edges as on a GPU.

A stream is a thread that takes work in order, so issuing returns before the work is done. Within a recording, commands that no
path of edges joins and that cost something run side by side on a pool; the rest run in line.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from gpuexec import knobs
from gpuexec.command import Command, Copy, Fill, HostCall, Kernel, Launch, Slot
from gpuexec.errors import ClosedError, GpuexecError, KernelError, OutOfMemoryError, PlanError, locate
from gpuexec.operator import build
from gpuexec.plan import Segment
from gpuexec.runtime.arguments import PackedArguments
from gpuexec.runtime.device import ByteArray, Event, Function, Memory, Recording, Region, Stream
from gpuexec.target import Target

_ALIGNMENT = 256
# A command is worth another thread when it moves this many bytes, or took this long the last time.
_HEAVY_BYTES = 1 << 18
_HEAVY_SECONDS = 2e-4


class CpuMemory:
    """Bytes of the process, aligned to 256."""

    __slots__ = ("_block", "array", "nbytes")

    def __init__(self, nbytes: int) -> None:
        try:
            self._block = np.empty(nbytes + _ALIGNMENT, np.uint8)
        except (MemoryError, ValueError) as error:
            raise OutOfMemoryError(f"The host refused {nbytes} bytes.") from error
        start = -self._block.ctypes.data % _ALIGNMENT
        self.array: ByteArray = self._block[start : start + nbytes]
        self.nbytes = nbytes

    @property
    def address(self) -> int:
        """Address of the first byte."""
        return self.array.ctypes.data

    def free(self) -> None:
        """Drop the bytes; views others hold keep them alive."""
        self._block = self.array = np.empty(0, np.uint8)


class CpuEvent:
    """Done when its stream's thread has come by. Carries the error of the run it stands for."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._wanted = self._reached = 0
        self._error: BaseException | None = None

    def is_done(self) -> bool:
        """Return whether the work recorded is done."""
        return self._reached >= self._wanted

    def synchronize(self, timeout_s: float | None = None) -> bool:
        """Wait until done; raise what the work raised."""
        with self._changed:
            wanted = self._wanted
            if not self._changed.wait_for(lambda: self._reached >= wanted, timeout_s):
                return False
        if self._error is not None:
            raise self._error
        return True

    def announce(self) -> int:
        """Count one more record; return its number."""
        with self._changed:
            self._wanted += 1
            return self._wanted

    def reach(self, number: int, error: BaseException | None) -> None:
        """Mark a record as reached."""
        with self._changed:
            self._reached, self._error = max(self._reached, number), error
            self._changed.notify_all()


class CpuStream:
    """A thread that works off what it is given, in order."""

    def __init__(self, device: CpuDevice) -> None:
        self._device = device
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def launch(
        self,
        function: Function,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        arguments: PackedArguments,
    ) -> None:
        """Refuse: this device has no kernels."""
        raise KernelError("The CPU device runs host calls, not kernels.")

    def copy_to_device(self, address: int, source: ByteArray) -> None:
        """Copy host bytes; they are taken now, as from pageable memory."""
        taken = source.copy()
        self.put(lambda: _move(address, taken.ctypes.data, taken.nbytes))

    def copy_to_host(self, destination: ByteArray, address: int) -> None:
        """Copy bytes to host memory."""
        self.put(lambda: _move(destination.ctypes.data, address, destination.nbytes))

    def copy(self, destination: int, source: int, nbytes: int) -> None:
        """Copy between addresses."""
        self.put(lambda: _move(destination, source, nbytes))

    def fill(self, address: int, pattern: bytes, count: int) -> None:
        """Write a pattern repeatedly."""
        self.put(lambda: _fill(_bytes_at(address, len(pattern) * count), pattern))

    def record(self, event: Event) -> None:
        """Let the event stand for all work issued so far."""
        assert isinstance(event, CpuEvent)
        number = event.announce()
        self.put(lambda: event.reach(number, self._error))

    def wait(self, event: Event) -> None:
        """Let later work wait for an event. Its error stays its own: who depends on that work asks its event."""
        self.put(lambda: _settle(event))

    def is_done(self) -> bool:
        """Return whether all work issued is done."""
        event = CpuEvent()
        self.record(event)
        return event.is_done()

    def synchronize(self) -> None:
        """Wait for all work issued; raise what the last run raised."""
        event = CpuEvent()
        self.record(event)
        event.synchronize()

    def put(self, work: Callable[[], None]) -> None:
        """Add work for the thread, starting it at the first."""
        if self._closed:
            raise ClosedError("The stream is closed.")
        if self._thread is None:
            self._thread = threading.Thread(target=self._work_off, name="gpuexec-cpu-stream", daemon=True)
            self._thread.start()
        self._work.put(work)

    def begin_run(self) -> None:
        """Forget the error of the run before."""
        self._error = None

    def fail(self, error: BaseException) -> None:
        """Keep the error of this run for the events recorded after it."""
        self._error = error

    def close(self) -> None:
        """End the thread once its work is done."""
        self._closed = True
        if self._thread is not None:
            self._work.put(None)

    def _work_off(self) -> None:
        while (work := self._work.get()) is not None:
            work()


class CpuRecording:
    """A segment as NumPy calls. ``order`` picks among commands that are ready; None: plan order, with the pool."""

    def __init__(self, device: CpuDevice, segment: Segment, memory: Mapping[int, Region]) -> None:
        self._device, self._memory, self._origins = device, memory, segment.origins
        count = len(segment.commands)
        self._after: list[list[int]] = [[] for _ in range(count)]
        self._waits = [0] * count
        for before, after in segment.edges:
            self._after[before].append(after)
            self._waits[after] += 1
        self._seconds = [0.0] * count
        self._calls: list[_Call] = []
        self.patch(segment.commands)

    def patch(self, commands: Sequence[Command]) -> None:
        """Take the commands of another size; runs already submitted keep theirs."""
        old = {id(call.command): call for call in self._calls}
        self._calls = [old.get(id(command)) or _Call(command, self._memory) for command in commands]

    def submit(self, stream: Stream, bindings: Mapping[int, Region], first: int = 0, last: int | None = None) -> None:
        """Put the commands ``[first, last)`` on the stream; see `gpuexec.runtime.device.Recording`."""
        assert isinstance(stream, CpuStream)
        calls, bound = self._calls, dict(bindings)
        end = len(calls) if last is None else last

        def run() -> None:
            if first == 0:
                stream.begin_run()
            elif stream._error is not None:
                return
            try:
                _Execution(self._device, calls, self._after, self._waits, self._seconds, self._origins, bound, first, end).run()
            except BaseException as error:
                stream.fail(error)

        stream.put(run)


class _Execution:
    """One pass over a range of commands, in an order their edges allow."""

    def __init__(
        self,
        device: CpuDevice,
        calls: list[_Call],
        after: list[list[int]],
        waits: list[int],
        seconds: list[float],
        origins: Sequence[str],
        bindings: Mapping[int, Region],
        first: int,
        last: int,
    ) -> None:
        self._device, self._calls, self._after, self._seconds, self._origins = device, calls, after, seconds, origins
        self._bindings, self._first, self._last = bindings, first, last
        self._waits = list(waits)
        for before in range(first):
            for index in after[before]:
                self._waits[index] -= 1
        self._ready = [i for i in range(first, last) if self._waits[i] == 0]
        self._done: queue.SimpleQueue[tuple[int, BaseException | None]] = queue.SimpleQueue()
        self._flying = 0

    def run(self) -> None:
        """Run all commands; raise the first error once nothing runs any more."""
        failed: BaseException | None = None
        left = self._last - self._first
        while left:
            if self._ready and failed is None:
                index = self._pick()
                if self._is_heavy(index) and self._ready and self._device.order is None:
                    self._flying += 1
                    self._device.pool.submit(self._fly, index)
                    continue
                failed = self._call(index)
            elif self._flying:
                index, failed = self._land(failed)
            else:
                break
            left -= 1
            self._release(index)
            while self._flying and not self._done.empty():
                index, failed = self._land(failed)
                left -= 1
                self._release(index)
        if failed is not None:
            raise failed

    def _pick(self) -> int:
        order = self._device.order
        return self._ready.pop(0 if order is None else order(len(self._ready)))

    def _is_heavy(self, index: int) -> bool:
        return self._calls[index].nbytes >= _HEAVY_BYTES or self._seconds[index] >= _HEAVY_SECONDS

    def _fly(self, index: int) -> None:
        self._done.put((index, self._call(index)))

    def _land(self, failed: BaseException | None) -> tuple[int, BaseException | None]:
        index, error = self._done.get()
        self._flying -= 1
        return index, failed or error

    def _call(self, index: int) -> BaseException | None:
        start = time.perf_counter()
        try:
            self._calls[index].run(self._bindings)
        except GpuexecError as error:
            return locate(error, self._origins[index], self._origins[index])
        except Exception as error:
            cause = PlanError(f"{self._origins[index]} failed on the host: {type(error).__name__}: {error}.", node=self._origins[index])
            cause.__cause__ = error
            return cause
        self._seconds[index] = time.perf_counter() - start
        return None

    def _release(self, index: int) -> None:
        for after in self._after[index]:
            self._waits[after] -= 1
            if self._waits[after] == 0 and after < self._last:
                # Plan order among what is ready: the list is short.
                position = next((p for p, other in enumerate(self._ready) if other > after), len(self._ready))
                self._ready.insert(position, after)


class _Call:
    """One command as a NumPy call. Views of memory that does not move are made once."""

    __slots__ = ("_memory", "_operator", "_views", "command", "nbytes")

    def __init__(self, command: Command, memory: Mapping[int, Region]) -> None:
        if isinstance(command, Launch):
            raise PlanError(f"{command.kernel}: the CPU device runs host calls, not kernels.")
        self.command, self._memory = command, memory
        self._views: dict[int, Any] = {}
        self._operator = build(command.operator, dict(command.attributes)) if isinstance(command, HostCall) else None
        self.nbytes = sum(slot.spec.nbytes for slots in (command.reads_from(), command.writes_to()) for slot in slots)

    def run(self, bindings: Mapping[int, Region]) -> None:
        """Do it."""
        command = self.command
        match command:
            case HostCall():
                assert self._operator is not None
                out = [None if slot is None else self._view(slot, bindings) for slot in command.outputs]
                results = self._operator.compute(*[None if slot is None else self._view(slot, bindings) for slot in command.inputs], out=out)
                for window, result in zip(out, results, strict=False):
                    if window is not None and result is not window:
                        assert result is not None and result.shape == window.shape and result.dtype == window.dtype, command.operator
                        np.copyto(window, result)
            case Copy():
                np.copyto(self._raw(command.destination, bindings), self._raw(command.source, bindings))
            case Fill():
                _fill(self._raw(command.destination, bindings), command.pattern)

    def _view(self, slot: Slot, bindings: Mapping[int, Region]) -> np.ndarray[Any, Any]:
        view = self._views.get(id(slot))
        if view is None:
            region = self._memory.get(slot.buffer)
            view = make_view(slot, region or bindings[slot.buffer])
            if region is not None:
                self._views[id(slot)] = view
        return view

    def _raw(self, slot: Slot, bindings: Mapping[int, Region]) -> ByteArray:
        region = self._memory.get(slot.buffer) or bindings[slot.buffer]
        start = region.offset + slot.offset_bytes
        array = region.memory.array
        assert array is not None
        return array[start : start + slot.spec.nbytes]


class CpuDevice:
    """This machine's processor.

    Args:
        order: Picks which of n ready commands runs next, in place of plan order and the pool; to prove that edges suffice.
    """

    def __init__(self, order: Callable[[int], int] | None = None) -> None:
        self.target = Target.named("cpu")
        self.name = "cpu"
        self.order = order
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._streams: list[CpuStream] = []

    @property
    def pool(self) -> ThreadPoolExecutor:
        """The threads beside the streams' own; started when first needed."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(max(1, knobs.compute_threads() - 1), thread_name_prefix="gpuexec-cpu")
            return self._pool

    def allocate(self, nbytes: int) -> Memory:
        """Return memory of the process."""
        return CpuMemory(nbytes)

    def allocate_pinned(self, nbytes: int) -> Memory:
        """Return memory of the process; nothing need be pinned here."""
        return CpuMemory(nbytes)

    def create_stream(self) -> Stream:
        """Return a stream with a thread of its own."""
        stream = CpuStream(self)
        self._streams.append(stream)
        return stream

    def create_event(self) -> Event:
        """Return an event, not recorded."""
        return CpuEvent()

    def load(self, kernels: Sequence[Kernel]) -> None:
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
        """End the threads."""
        for stream in self._streams:
            stream.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False)


def _settle(event: Event) -> None:
    with contextlib.suppress(GpuexecError):
        event.synchronize()


def make_view(slot: Slot, region: Region) -> np.ndarray[Any, Any]:
    """Return the slot as a NumPy array over host-accessible memory."""
    array = region.memory.array
    assert array is not None
    itemsize = slot.dtype.itemsize
    if slot.spec.size == 0:
        return np.empty(slot.shape, slot.dtype)
    strides = tuple(stride * itemsize for stride in slot.strides)
    return np.ndarray(slot.shape, slot.dtype, array.data, region.offset + slot.offset_bytes, strides)


def _bytes_at(address: int, nbytes: int) -> ByteArray:
    import ctypes

    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)


def _move(destination: int, source: int, nbytes: int) -> None:
    import ctypes

    ctypes.memmove(destination, source, nbytes)


def _fill(target: ByteArray, pattern: bytes) -> None:
    target.view(f"u{len(pattern)}")[...] = np.frombuffer(pattern, f"u{len(pattern)}")[0]
