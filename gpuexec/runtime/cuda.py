"""GPUs: calls of CuPy and of the driver, and no logic. Whatever decides stands where the simulator runs it too.

A kernel is launched as a `cupy.RawKernel`, or packed (``driver.launchKernel`` on the prepared block of arguments, which
makes no object per argument): equals, chosen when the device is made. CuPy knows no 16-, 32- or 64-bit memset, so fills
go through ``cuda.bindings``. The current device and stream of the caller's thread are left as they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpuexec.command import Kernel
from gpuexec.errors import DeviceNotFoundError
from gpuexec.plan import Segment
from gpuexec.runtime import driver as probing
from gpuexec.runtime.arguments import PackedArguments
from gpuexec.runtime.cuda_errors import NOT_READY, SUCCESS, CallContext
from gpuexec.runtime.cuda_event import CudaEvent, CudaTimedEvent
from gpuexec.runtime.cuda_graph import CudaGraph
from gpuexec.runtime.device import ByteArray, Event, Function, Recording, Region
from gpuexec.runtime.kernel_library import KernelLibrary
from gpuexec.runtime.prepared import Prepared
from gpuexec.runtime.recording import record_launches
from gpuexec.runtime.residency import check_residency
from gpuexec.runtime.stored_code import StoredCode
from gpuexec.target import OLDEST_ARCHITECTURE, Target


class CudaMemory:
    """Device memory from CuPy's pool, or pinned host memory, which alone has an ``array``."""

    def __init__(self, pointer: Any, nbytes: int, array: ByteArray | None = None) -> None:
        self._pointer, self.nbytes, self.array = pointer, nbytes, array
        self.address: int = pointer.ptr

    def free(self) -> None:
        """Give the bytes back to the pool; a view of pinned bytes that someone still holds keeps them alive."""
        self._pointer = self.array = None


class CudaFunction:
    """A loaded kernel. A cubin does not know the types of its parameters, so there is no signature to check."""

    signature: tuple[str, ...] | None = None

    def __init__(self, kernel: Kernel, raw: Any) -> None:
        self.kernel = kernel
        self.raw = raw
        self.handle: int = raw.kernel.ptr


class _ExternalHandle:
    """A stream's handle in the form that CuPy takes it: by the CUDA stream protocol, version 0."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self._handle)


class CudaStream:
    """A non-blocking stream, which waits for no other, the null stream included; or somebody else's, by its handle."""

    def __init__(self, device: CudaDevice, external: int | None = None) -> None:
        self._device = device
        with device.calling("creating a stream"):
            if external is None:
                self.stream = device.cupy.cuda.Stream(non_blocking=True)
            else:
                self.stream = device.cupy.cuda.Stream.from_external(_ExternalHandle(external))
        self.handle: int = self.stream.ptr
        self._is_external = external is not None
        self._command: object = None  # the last one issued

    def launch(
        self,
        function: Function,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        arguments: PackedArguments,
        *,
        cooperative: bool = False,
    ) -> None:
        """Launch a kernel; arguments are taken at the call."""
        assert isinstance(function, CudaFunction)
        with self._device.calling("launching", function.kernel):
            if cooperative:
                self._launch_cooperatively(function, grid, block, shared_bytes, arguments)
            elif self._device.packed_launch:
                (x, y, z), (width, height, depth) = grid, block
                self._device.cupy.cuda.driver.launchKernel(
                    function.handle, x, y, z, width, height, depth, shared_bytes, self.handle, arguments.address, 0
                )
            else:
                # CuPy passes arrays of one element by value whatever their dtype, but no scalar structs or bfloat16.
                values = tuple(np.asarray(item) for item in arguments.items())
                function.raw(grid, block, values, shared_mem=shared_bytes, stream=self.stream)
        self._command = function.kernel

    def _launch_cooperatively(
        self,
        function: CudaFunction,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        arguments: PackedArguments,
    ) -> None:
        device, driver, handle = self._device, self._device.driver, function.handle
        threads = block[0] * block[1] * block[2]
        held = device.check(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(handle, threads, shared_bytes))
        check_residency(str(function.kernel), grid, held, device.multiprocessors)
        device.check(
            driver.cuLaunchCooperativeKernel(handle, *grid, *block, shared_bytes, self.stream.ptr, arguments.address)
        )

    def copy_to_device(self, address: int, source: ByteArray) -> None:
        """Copy host bytes to the device; CUDA stages pageable ones before it returns, and reads pinned ones later."""
        runtime = self._device.cupy.cuda.runtime
        with self._device.calling("copying to the device"):
            runtime.memcpyAsync(address, source.ctypes.data, source.nbytes, runtime.memcpyHostToDevice, self.stream.ptr)

    def copy_to_host(self, destination: ByteArray, address: int) -> None:
        """Copy device bytes to host memory; asynchronous where that is pinned."""
        runtime = self._device.cupy.cuda.runtime
        with self._device.calling("copying to the host"):
            runtime.memcpyAsync(
                destination.ctypes.data, address, destination.nbytes, runtime.memcpyDeviceToHost, self.stream.ptr
            )

    def copy(self, destination: int, source: int, nbytes: int) -> None:
        """Copy between device addresses."""
        runtime = self._device.cupy.cuda.runtime
        with self._device.calling("copying on the device"):
            runtime.memcpyAsync(destination, source, nbytes, runtime.memcpyDeviceToDevice, self.stream.ptr)

    def fill(self, address: int, pattern: bytes, count: int) -> None:
        """Write ``pattern`` (1, 2, 4 or 8 bytes) ``count`` times."""
        driver, stream = self._device.driver, self.stream.ptr
        with self._device.calling("filling"):
            if len(pattern) == 8:  # two columns of 32 bits, each `count` rows high
                for column in (0, 4):
                    word = int.from_bytes(pattern[column : column + 4], "little")
                    self._device.check(driver.cuMemsetD2D32Async(address + column, 8, word, 1, count, stream))
            else:
                call = {1: driver.cuMemsetD8Async, 2: driver.cuMemsetD16Async, 4: driver.cuMemsetD32Async}[len(pattern)]
                self._device.check(call(address, int.from_bytes(pattern, "little"), count, stream))

    def note_launched(self, graph: object) -> None:
        """Say what was put on the stream other than by its methods: should the context end, it can be named."""
        self._command = graph

    def record(self, event: Event) -> None:
        """Let the event stand for all work issued so far."""
        assert isinstance(event, CudaEvent)
        with self._device.calling("recording an event"):
            self.stream.record(event.event)
        event.command = self._command

    def wait(self, event: Event) -> None:
        """Let later work of this stream wait for the event's last record; the caller does not wait."""
        assert isinstance(event, CudaEvent)
        with self._device.calling("waiting for an event on a stream"):
            self.stream.wait_event(event.event)

    def is_done(self) -> bool:
        """Return whether all work issued is done; never waits."""
        return self._device.is_success(self._device.cupy.cuda.runtime.streamQuery(self.stream.ptr))

    def is_capturing(self) -> bool:
        """Return whether its holder is making a graph of what is put on the stream; streams of ours have none."""
        if not self._is_external:
            return False
        with self._device.calling("asking whether a stream is capturing"):
            return bool(self.stream.is_capturing())

    def synchronize(self) -> None:
        """Wait for all work issued."""
        with self._device.calling("waiting for a stream"):
            self.stream.synchronize()
        self._device.note_done(self._command)

    def close(self) -> None:
        """Do nothing: CuPy destroys the stream once nobody holds it, and CUDA ends its work first."""


class CudaDevice:
    """One GPU.

    Args:
        ordinal: Index as CUDA counts, from 0.
        packed_launch: Launch through the driver with the prepared block, instead of through RawKernel.

    Raises:
        DeviceNotFoundError: CuPy, cuda-bindings, the driver or the GPU is missing, or the GPU is older than sm_75.
    """

    def __init__(self, ordinal: int = 0, *, packed_launch: bool = False) -> None:
        (self.cupy, self.driver), self.packed_launch = _import_cuda(), packed_launch
        runtime = self.cupy.cuda.runtime
        try:
            count = runtime.getDeviceCount()
        except runtime.CUDARuntimeError as error:
            raise DeviceNotFoundError(f"CUDA can't be used: {error}. {probing.probe().reason}".rstrip()) from error
        if not 0 <= ordinal < count:
            raise DeviceNotFoundError(f"There is no GPU {ordinal}; CUDA shows {count}, counted from 0.")
        properties = runtime.getDeviceProperties(ordinal)
        self.name: str = properties["name"].decode()
        self.ordinal = ordinal
        architecture = 10 * properties["major"] + properties["minor"]
        if architecture < OLDEST_ARCHITECTURE:
            raise DeviceNotFoundError(
                f"GPU {ordinal} ({self.name}) is sm_{architecture}; gpuexec needs sm_{OLDEST_ARCHITECTURE} or newer."
            )
        self.target = Target.named(f"sm_{architecture}").with_memory(int(properties["totalGlobalMem"]))
        self.multiprocessors: int = properties["multiProcessorCount"]
        failures = (
            runtime.CUDARuntimeError,
            self.cupy.cuda.driver.CUDADriverError,
            self.cupy.cuda.memory.OutOfMemoryError,
        )
        self._context = CallContext(self.cupy.cuda.Device(ordinal), self.name, failures)
        self.calling = self._context.calling
        self._library = KernelLibrary(self.target.name)
        self._functions: dict[Kernel, CudaFunction] = {}

    def allocate(self, nbytes: int) -> CudaMemory:
        """Return device memory from CuPy's pool, which aligns to 512 bytes."""
        with self.calling(f"allocating {nbytes} bytes"):
            return CudaMemory(self.cupy.cuda.alloc(max(nbytes, 1)), nbytes)

    def allocate_pinned(self, nbytes: int) -> CudaMemory:
        """Return page-locked host memory from CuPy's pool."""
        with self.calling(f"allocating {nbytes} pinned bytes"):
            pointer = self.cupy.cuda.alloc_pinned_memory(max(nbytes, 1))
        return CudaMemory(pointer, nbytes, np.frombuffer(pointer, np.uint8, nbytes))

    def create_stream(self) -> CudaStream:
        """Return a stream that waits for no other."""
        return CudaStream(self)

    def owns(self, stream: object) -> bool:
        """Return whether an object is a stream of this device."""
        return isinstance(stream, CudaStream) and stream._device is self

    def external_stream(self, handle: int) -> CudaStream:
        """Return somebody else's stream by its handle; 1 and 2 are CUDA's default streams."""
        return CudaStream(self, handle)

    def create_event(self) -> CudaEvent:
        """Return an event, not recorded."""
        return CudaEvent(self)

    def create_timed_event(self) -> CudaTimedEvent:
        """Return an event that notes the time, not recorded."""
        return CudaTimedEvent(self)

    def load(self, kernels: Sequence[Kernel], code: StoredCode | None = None) -> None:
        """Compile (or find) and load kernels, with all the shared memory that a block may have."""
        self._library.compile(kernels, code)
        for kernel in kernels:
            if kernel not in self._functions:
                with self.calling("loading", kernel):
                    raw = self._library.function(kernel)
                    raw.max_dynamic_shared_size_bytes = self.target.shared_bytes_per_block - raw.shared_size_bytes
                    self._functions[kernel] = CudaFunction(kernel, raw)

    def function(self, kernel: Kernel) -> CudaFunction:
        """Return a kernel loaded before."""
        return self._functions[kernel]

    def record(self, segment: Segment, memory: Mapping[int, Region]) -> Recording:
        """Return the recording of a segment as a stream of launches."""
        return record_launches(self, segment, memory)

    def create_graph(
        self, commands: Sequence[Prepared], edges: Sequence[tuple[int, int]], origins: Sequence[str] = ()
    ) -> CudaGraph:
        """Return an executable graph of prepared commands; ``edges`` are pairs (before, after) of positions."""
        return CudaGraph(self, commands, edges, origins)

    def close(self) -> None:
        """Drop the kernels. Memory, streams and events go as their holders let go of them."""
        self._functions.clear()
        self._library.close()

    def check(self, results: tuple[Any, ...]) -> Any:
        """Return what a call of ``cuda.bindings.driver`` gave, or raise what it reports."""
        if results[0] != SUCCESS:
            raise self.cupy.cuda.driver.CUDADriverError(int(results[0]))
        return results[1] if len(results) > 1 else None

    def note_done(self, command: object) -> None:
        """Remember the last command known to be done: should the context end, it is named."""
        self._context.done = command or self._context.done

    def is_success(self, status: int) -> bool:
        """Return what a query says: done or not.

        Raises:
            DeviceLostError: It says neither. CuPy's own ``done`` would call that pending for ever.
        """
        if status in (SUCCESS, NOT_READY) and self._context.lost is None:
            return status == SUCCESS
        with self.calling("asking whether work is done"):
            raise self.cupy.cuda.runtime.CUDARuntimeError(status)


def _import_cuda() -> tuple[Any, Any]:
    extra = probing.probe().extra or "cuda13"
    try:
        import cupy
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceNotFoundError(f"Using a GPU needs CuPy: {error}. Run: pip install 'gpuexec[{extra}]'") from error
    return cupy, driver
