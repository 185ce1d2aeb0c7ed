"""The CUDA device: calls of CuPy and of the driver, without logic.

Decisions are made in modules that the simulator runs too. The current device and stream of the caller's thread are left
as they were.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from gpuexec.devices.cuda import driver as probing
from gpuexec.devices.cuda.cuda_context import CudaContext
from gpuexec.devices.cuda.cuda_event import CudaEvent, CudaTimedEvent
from gpuexec.devices.cuda.cuda_graph import CudaGraph
from gpuexec.devices.cuda.cuda_stream import CudaFunction, CudaStream
from gpuexec.devices.device import MemoryBlock, Recording, Region, Stream
from gpuexec.devices.kernels.kernel_library import KernelLibrary
from gpuexec.devices.kernels.stored_code import StoredCode
from gpuexec.devices.launch_costs import PACKED_COSTS, RAW_KERNEL_COSTS
from gpuexec.devices.libraries.device_library import DeviceLibrary, LibraryPlan, load_library
from gpuexec.devices.memory_pool import MemoryPool, PooledMemory, PooledPinned, round_to_class
from gpuexec.devices.prepared import PreparedCommand
from gpuexec.devices.recording import record_launches
from gpuexec.errors import DeviceLostError, DeviceNotFoundError
from gpuexec.ir.command import Kernel, LibraryCall
from gpuexec.ir.library_problem import Problem
from gpuexec.ir.plan import Segment
from gpuexec.ir.target import OLDEST_ARCHITECTURE, Target
from gpuexec.system import knobs
from gpuexec.system.progress import ProgressCallback

_PORTABLE = 1  # cudaHostAllocPortable
_EDGE_DATA = 12030  # the first version of the driver whose graphs have programmatic edges


class CudaDeviceSource:
    """Device memory from the driver."""

    def __init__(self, context: CudaContext) -> None:
        self._context = context

    def round_up(self, nbytes: int) -> int:
        """Return the block size for so many bytes: at most an eighth more, or 2 MiB."""
        return round_to_class(nbytes)

    def allocate(self, nbytes: int) -> int:
        """Return the address of new memory; cudaMalloc aligns to 256 bytes at least."""
        with self._context.calling(f"allocating {nbytes} bytes"):
            return int(self._context.cupy.cuda.runtime.malloc(nbytes))

    def release(self, address: int) -> None:
        """Give memory back; CUDA waits for what is under way on the device."""
        with self._context.calling("freeing memory"):
            self._context.cupy.cuda.runtime.free(address)


class CudaPinnedSource:
    """Page-locked host memory from the driver."""

    def __init__(self, context: CudaContext) -> None:
        self._context = context

    def round_up(self, nbytes: int) -> int:
        """Return the block size for so many bytes, as for device memory."""
        return round_to_class(nbytes)

    def allocate(self, nbytes: int) -> int:
        """Return the address of new memory, pinned for all GPUs."""
        with self._context.calling(f"allocating {nbytes} pinned bytes"):
            return int(self._context.cupy.cuda.runtime.hostAlloc(nbytes, _PORTABLE))

    def release(self, address: int) -> None:
        """Give memory back."""
        with self._context.calling("freeing pinned memory"):
            self._context.cupy.cuda.runtime.freeHost(address)


class CudaDevice:
    """One GPU.

    Args:
        ordinal: Index as CUDA counts, from 0.
        packed_launch: Launch through the driver with the prepared block, or else through RawKernel; None: as
            GPUEXEC_PACKED_LAUNCH says.

    Raises:
        DeviceNotFoundError: CuPy, cuda-bindings, the driver or the GPU is missing, or the GPU is older than sm_75.
    """

    def __init__(self, ordinal: int = 0, *, packed_launch: bool | None = None) -> None:
        cupy, driver = _import_cuda()
        self.packed_launch = knobs.packed_launch() if packed_launch is None else packed_launch
        self.spin_us = knobs.spin_us()
        self.launch_costs = PACKED_COSTS if self.packed_launch else RAW_KERNEL_COSTS
        runtime = cupy.cuda.runtime
        try:
            count = runtime.getDeviceCount()
        except runtime.CUDARuntimeError as error:
            raise DeviceNotFoundError(f"CUDA can't be used: {error}. {probing.probe().reason}".rstrip()) from error
        if not 0 <= ordinal < count:
            raise DeviceNotFoundError(f"There is no GPU {ordinal}; CUDA shows {count}, counted from 0.")
        self.driver_version: int = runtime.driverGetVersion()
        self._has_edge_data = self.driver_version >= _EDGE_DATA
        properties = runtime.getDeviceProperties(ordinal)
        self.name: str = properties["name"].decode()
        self.ordinal = ordinal
        architecture = 10 * properties["major"] + properties["minor"]
        if architecture < OLDEST_ARCHITECTURE:
            raise DeviceNotFoundError(
                f"GPU {ordinal} ({self.name}) is sm_{architecture}; gpuexec needs sm_{OLDEST_ARCHITECTURE} or newer."
            )
        self.target = Target.named(f"sm_{architecture}", multiprocessors=int(properties["multiProcessorCount"]))
        self.target = self.target.with_memory(int(properties["totalGlobalMem"]))
        self.context = CudaContext(cupy, driver, cupy.cuda.Device(ordinal), self.name)
        self.calling = self.context.calling  # recordings make the GPU current by it, once for each submission
        self._library = KernelLibrary(self.target.name)
        self._functions: dict[Kernel, CudaFunction] = {}
        self._libraries: dict[str, DeviceLibrary] = {}
        self._library_plans: dict[tuple[str, Problem, int], LibraryPlan] = {}
        kept = knobs.pool_bytes()
        self._memory = MemoryPool(CudaDeviceSource(self.context), self.create_event, kept)
        self._pinned = MemoryPool(CudaPinnedSource(self.context), self.create_event, kept)

    @property
    def cached_nbytes(self) -> int:
        """Bytes on the device that were freed and are kept to be used again."""
        return self._memory.cached_nbytes

    def allocate(self, nbytes: int, stream: Stream | None = None) -> MemoryBlock:
        """Return device memory from the device's own pool."""
        self.context.check_alive()
        return PooledMemory(self._memory, nbytes, stream)

    def allocate_pinned(self, nbytes: int) -> MemoryBlock:
        """Return page-locked host memory from the device's own pool; a view that someone holds keeps it alive."""
        self.context.check_alive()
        return PooledPinned(self._pinned, nbytes)

    def trim(self) -> int:
        """Give freed memory that is kept back to the driver; return the bytes."""
        return self._memory.trim() + self._pinned.trim()

    def create_stream(self) -> CudaStream:
        """Return a stream that does not synchronize with any other."""
        return CudaStream(self.context, is_packed=self.packed_launch)

    def owns(self, stream: object) -> bool:
        """Return whether an object is a stream of this device."""
        return isinstance(stream, CudaStream) and stream.context is self.context

    def external_stream(self, handle: int) -> CudaStream:
        """Return a foreign stream by its handle; 1 and 2 are CUDA's default streams.

        CuPy destroys a stream with its last holder, so one that is CuPy's current stream is held.
        """
        stream = CudaStream(self.context, handle, is_packed=self.packed_launch)
        with self.context.calling("asking for CuPy's stream"):
            current = self.context.cupy.cuda.get_current_stream()
        stream.owner = current if current.ptr == handle else None
        return stream

    def create_event(self) -> CudaEvent:
        """Return an event, not recorded."""
        return CudaEvent(self.context, self.spin_us)

    def create_timed_event(self) -> CudaTimedEvent:
        """Return an event that notes the time, not recorded."""
        return CudaTimedEvent(self.context, self.spin_us)

    def list_uncompiled(self, kernels: Sequence[Kernel], code: StoredCode | None = None) -> list[Kernel]:
        """Return the kernels that neither memory, nor ``code``, nor the kernel cache has."""
        return self._library.list_uncompiled(kernels, code)

    def compile(
        self, kernels: Sequence[Kernel], code: StoredCode | None = None, report: ProgressCallback | None = None
    ) -> None:
        """Compile (or find) kernels; the GPU is not touched."""
        self._library.compile(kernels, code, report=report)

    def load(self, kernels: Sequence[Kernel], code: StoredCode | None = None) -> None:
        """Compile (or find) and load kernels, with all the shared memory that a block may have."""
        self._library.compile(kernels, code)
        for kernel in kernels:
            if kernel not in self._functions:
                with self.context.calling("loading", kernel):
                    raw = self._library.function(kernel)
                    raw.max_dynamic_shared_size_bytes = self.target.shared_bytes_per_block - raw.shared_size_bytes
                    self._functions[kernel] = CudaFunction(
                        self.context, kernel, raw, self._has_edge_data and self._library.waits(kernel)
                    )

    def function(self, kernel: Kernel) -> CudaFunction:
        """Return a kernel loaded before."""
        return self._functions[kernel]

    def open_library(self, name: str) -> DeviceLibrary:
        """Return a library by the name of its provider, opened once.

        Raises:
            DeviceNotFoundError: It is not installed; names the extra.
        """
        if name not in self._libraries:
            with self.context.calling(f"opening {name}"):
                self._libraries[name] = load_library(name)
        return self._libraries[name]

    def plan_library_call(self, command: LibraryCall) -> LibraryPlan:
        """Return how a library solves a problem, found once by its heuristics; nothing is measured.

        Raises:
            UnsupportedError: It does not solve it.
        """
        workspace = command.arguments[-1]
        key = (command.library, command.problem, 0 if workspace is None else workspace.spec.nbytes)
        if key not in self._library_plans:
            library = self.open_library(command.library)
            with self.context.calling(f"asking {command.library} for its kernels"):
                self._library_plans[key] = library.plan(command.problem, key[2])
        return self._library_plans[key]

    def record(self, segment: Segment, memory: Mapping[int, Region]) -> Recording:
        """Return the recording of a segment as a stream of launches."""
        return record_launches(self, segment, memory)

    def create_graph(
        self,
        commands: Sequence[PreparedCommand],
        edges: Sequence[tuple[int, int]],
        origins: Sequence[str] = (),
        programmatic: AbstractSet[tuple[int, int]] = frozenset(),
    ) -> CudaGraph:
        """Return an executable graph of prepared commands; ``edges`` are pairs (before, after) of positions."""
        return CudaGraph(self.context, commands, edges, origins, programmatic)

    def close(self) -> None:
        """Drop the kernels and freed memory. Other memory, streams and events are freed with their owners."""
        self.trim()
        self._functions.clear()
        for library in self._libraries.values():
            with contextlib.suppress(DeviceLostError), self.context.calling(f"closing {library.name}"):
                library.close()
        self._library_plans.clear()
        self._libraries.clear()
        self._library.close()


def _import_cuda() -> tuple[Any, Any]:
    extra = probing.probe().extra or "cuda13"
    try:
        import cupy
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceNotFoundError(f"Using a GPU needs CuPy: {error}. Run: pip install 'gpuexec[{extra}]'") from error
    return cupy, driver
