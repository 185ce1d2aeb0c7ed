"""The device protocol: Device, Memory, Stream, Event and Function.

Five devices implement it: cuda, cuda_pixel, simulator, tracer and cpu. Addresses are numbers that bytes are counted
from. Where memory is textures they denote bytes of a texture.

Everything is explicit: streams are passed, nothing waits unless it is called ``synchronize``. After a device fault
every call raises DeviceLostError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from gpuexec.devices.arguments import PackedArguments
from gpuexec.devices.kernels.stored_code import StoredCode
from gpuexec.ir.command import Kernel, LaunchConfig
from gpuexec.ir.plan import Segment, Variant
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.system.progress import ProgressCallback

ByteArray = np.ndarray[Any, np.dtype[np.uint8]]
# Alignment in bytes of memory allocated here, and of each region in it. Kernels need less: BUFFER_ALIGNMENT.
ALIGNMENT = 256


def align(nbytes: int) -> int:
    """Round a size up to the alignment of the next region."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class MemoryBlock(Protocol):
    """Bytes on a device or in pinned host memory."""

    @property
    def address(self) -> int:
        """Address of the first byte, on its device."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""

    @property
    def array(self) -> ByteArray | None:
        """The bytes as an array where the host may access them, else None."""

    def free(self) -> None:
        """Free the bytes. A second call does nothing.

        The caller guarantees that nothing uses them any more, but for work of streams noted by `note_stream`.
        """


def note_stream(memory: MemoryBlock, stream: Stream) -> None:
    """Note that work of a stream may use a memory until it is freed, without anyone waiting for that work.

    A device with a pool reuses the bytes only behind what is on the stream when they are freed, so the stream must
    exist until then. For foreign memory this does nothing.
    """
    if hasattr(memory, "note_stream"):
        memory.note_stream(stream)


def begin_host_read(memory: MemoryBlock, nbytes: int, offset: int = 0) -> None:
    """Announce a host read of a memory's bytes, which a memory with ``check_host`` checks for order.

    Raises:
        OrderError: An operation writes them that need not be done.
    """
    if hasattr(memory, "check_host"):
        memory.check_host(offset, nbytes, is_write=False)


def begin_host_write(memory: MemoryBlock, nbytes: int, offset: int = 0) -> None:
    """Announce a host write of a memory's bytes, which a memory with ``check_host`` checks for order.

    Raises:
        OrderError: An operation uses them that need not be done.
    """
    if hasattr(memory, "check_host"):
        memory.check_host(offset, nbytes, is_write=True)


@dataclass(frozen=True, slots=True)
class Region:
    """A range of a memory, to which a buffer of a plan is bound."""

    memory: MemoryBlock
    offset: int
    nbytes: int

    @property
    def address(self) -> int:
        """Device address of the first byte."""
        return self.memory.address + self.offset

    def view(self, spec: TensorSpec) -> np.ndarray[Any, Any]:
        """Return the first bytes as a dense array, in memory that the host reads and writes."""
        array = self.memory.array
        assert array is not None, "the memory is a device's"
        view: np.ndarray[Any, Any] = array[self.offset : self.offset + spec.nbytes].view(spec.dtype)
        return view.reshape(spec.shape)


class Event(Protocol):
    """A point in a stream's work."""

    def is_done(self) -> bool:
        """Return whether the work recorded is done; never waits. An event not recorded yet is done."""

    def synchronize(self, timeout_s: float | None = None) -> bool:
        """Wait until done; False when the time ran out."""


class TimedEvent(Event, Protocol):
    """An event that notes when the work before it was done."""

    def elapsed_ms(self, since: TimedEvent) -> float:
        """Return the device time from ``since`` to this event; both are done.

        Raises:
            GpuexecError: The work between them failed.
        """


class Function(Protocol):
    """A loaded kernel.

    ``waits`` says that it waits itself for the launches it depends on, and so may begin before these are complete.
    """

    waits: bool

    @property
    def signature(self) -> tuple[str, ...] | None:
        """Kind and size of each parameter (``"P8"``, ``"i4"``, ``"s48"``) where the device knows them."""

    def check_residency(self, config: LaunchConfig, target: Target) -> None:
        """Check that all blocks of a cooperative launch fit on a device at the same time.

        Raises:
            KernelError: They have not; the message names the kernel and both numbers.
        """


class Stream(Protocol):
    """Work in order. Every method returns before the work is done, but for ``synchronize``.

    ``handle`` is what other packages know the stream by (a cudaStream_t); 0 where the device has no such thing.
    """

    @property
    def handle(self) -> int:
        """The native handle of the stream."""

    def begin_run(self) -> None:
        """Let what follows be another run, of which errors of the work before are none."""

    def launch(self, function: Function, config: LaunchConfig, arguments: PackedArguments) -> None:
        """Launch a kernel; arguments are copied at the call and may be changed afterwards.

        Raises:
            KernelError: The launch is cooperative, and the device can't hold all of its blocks at once, as
                `Function.check_residency` says beforehand.
        """

    def launch_dependent(self, function: Function, config: LaunchConfig, arguments: PackedArguments) -> None:
        """Launch a kernel that waits itself for the launch issued just before it, which need not be complete.

        Its function ``waits``, and that launch is the last thing that was issued: no copy, event or wait came between.
        """

    def copy_to_device(self, address: int, source: ByteArray) -> None:
        """Copy host bytes to the device. Pinned sources are read when the copy runs, others at the call."""

    def copy_to_host(self, destination: ByteArray, address: int) -> None:
        """Copy device bytes to host memory that stays alive and untouched until an event recorded later is done."""

    def copy(self, destination: int, source: int, nbytes: int) -> None:
        """Copy between device addresses."""

    def fill(self, address: int, pattern: bytes, count: int) -> None:
        """Write ``pattern`` (1, 2, 4 or 8 bytes) ``count`` times."""

    def record(self, event: Event) -> None:
        """Let the event stand for all work issued so far."""

    def wait(self, event: Event) -> None:
        """Let later work of this stream wait for the event's last record; the caller does not wait."""

    def is_done(self) -> bool:
        """Return whether all work issued is done; never waits."""

    def is_capturing(self) -> bool:
        """Return whether work on the stream is captured into a graph instead of being executed."""

    def synchronize(self) -> None:
        """Wait for all work issued."""


class Recording(Protocol):
    """The commands of a segment, ready to be issued again and again."""

    def submit(self, stream: Stream, bindings: Mapping[int, Region], first: int = 0, last: int | None = None) -> None:
        """Issue commands ``[first, last)`` with buffers bound to the given places. Allocates and waits for nothing."""

    def patch(self, commands: Sequence[Any]) -> None:
        """Replace the commands by those of another size of the class: grids, scalars and offsets; kernels stay."""

    def resize(self, variant: Variant) -> None:
        """Do the same for a variant, whose commands need not be made for it."""

    def close(self) -> None:
        """Release the device objects of the recording; work under way finishes. It may still be submitted again."""


@runtime_checkable
class CallRecording(Recording, Protocol):
    """A recording of calls, which any thread may make while nothing of its memory is in use."""

    @property
    def is_brief(self) -> bool:
        """Whether one thread makes all calls as soon as several would, in a time that a caller is kept for."""

    def bind(self, bindings: Mapping[int, Region]) -> Callable[[], Sequence[Callable[[], object]]]:
        """Return what gives the calls at the size that is set when it is asked, bound to these places for good.

        Buffers that have no place yet have one whenever the calls are made.
        """


class Device(Protocol):
    """A device that executes plans. ``ordinal`` distinguishes devices of one kind, counted from 0."""

    target: Target
    name: str
    ordinal: int

    @property
    def cached_nbytes(self) -> int:
        """Freed bytes on the device that are kept for reuse."""

    def allocate(self, nbytes: int, stream: Stream | None = None) -> MemoryBlock:
        """Return device memory, aligned to 256 bytes, content undefined.

        Args:
            nbytes: How many bytes.
            stream: The one on which they are used first, or which other users wait for: it may be made to wait for work
                that uses them still. None: no work does.

        Raises:
            OutOfMemoryError: The device has no room.
        """

    def allocate_pinned(self, nbytes: int) -> MemoryBlock:
        """Return page-locked host memory, with its ``array``."""

    def trim(self) -> int:
        """Return freed memory that is kept for reuse to the driver; return its bytes."""

    def create_stream(self) -> Stream:
        """Return a stream that does not synchronize with any other."""

    def owns(self, stream: object) -> bool:
        """Return whether an object is a stream of this device, as `create_stream` and `external_stream` return it."""

    def external_stream(self, handle: int) -> Stream:
        """Return a foreign stream by its handle, as CUDA counts: 1 is the default stream, 2 that of the thread.

        Raises:
            InputError: The device knows no such stream.
        """

    def create_event(self) -> Event:
        """Return an event, not recorded."""

    def create_timed_event(self) -> TimedEvent:
        """Return an event that notes the time, not recorded."""

    def list_uncompiled(self, kernels: Sequence[Kernel], code: StoredCode | None = None) -> list[Kernel]:
        """Return the kernels that are neither loaded, nor in ``code`` or in a cache: it takes a compiler to load them.

        Raises:
            DeviceNotFoundError: There is no compiler.
        """

    def compile(
        self, kernels: Sequence[Kernel], code: StoredCode | None = None, report: ProgressCallback | None = None
    ) -> None:
        """Compile (or find) kernels without loading them: in any thread, beside runs of others.

        Args:
            kernels: Which. What another thread is compiling is waited for.
            code: As for `load`.
            report: Called in this thread whenever some are done.

        Raises:
            DeviceNotFoundError: There is no compiler.
            KernelError: One does not compile.
        """

    def load(self, kernels: Sequence[Kernel], code: StoredCode | None = None) -> None:
        """Compile (or find) and load kernels; later `function` calls are look-ups.

        ``code`` was compiled beforehand; a device that can use it needs no compiler for what is there.

        Raises:
            KernelError: One does not compile or fit.
        """

    def function(self, kernel: Kernel) -> Function:
        """Return a kernel loaded before."""

    def record(self, segment: Segment, memory: Mapping[int, Region]) -> Recording:
        """Return the recording of a segment; ``memory`` places the buffers that are not bound at submit."""

    def close(self) -> None:
        """Release all resources of the device."""
