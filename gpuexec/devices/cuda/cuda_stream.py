"""CUDA streams: calls of CuPy and of the driver, in order.

A kernel is launched packed: one call of CuPy's ``driver.launchKernel`` on the prepared block of arguments. The other
path, a `cupy.RawKernel`, takes an array for each argument; it computes the same and costs the host several times as
much. Which it is, is chosen when the device is made. CuPy's call takes plain integers (0.3 us of the host);
``cuLaunchKernel`` of ``cuda.bindings`` looks at the type of each handle and returns its status as an object (0.9 us).
CuPy knows no 16-, 32- or 64-bit memset and no cooperative or dependent launch of a block of arguments, so these go
through ``cuda.bindings``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuexec.devices.arguments import PackedArguments
from gpuexec.devices.cuda.cuda_context import CudaContext
from gpuexec.devices.cuda.cuda_event import CudaEvent
from gpuexec.devices.device import ByteArray, Event, Function
from gpuexec.devices.libraries.device_library import LibraryPlan
from gpuexec.devices.residency import check_residency
from gpuexec.ir.command import Kernel, LaunchConfig
from gpuexec.ir.target import Target


class CudaFunction:
    """A loaded kernel. A cubin does not know the types of its parameters, so there is no signature to check."""

    signature: tuple[str, ...] | None = None

    def __init__(self, context: CudaContext, kernel: Kernel, raw: Any, waits: bool = False) -> None:
        self._context = context
        self.kernel, self.waits = kernel, waits
        self.raw = raw
        self.handle: int = raw.kernel.ptr

    def check_residency(self, config: LaunchConfig, target: Target) -> None:
        """Check that all blocks of a cooperative launch fit on the GPU at the same time.

        Raises:
            KernelError: They have not.
        """
        context, (width, height, depth) = self._context, config.block
        with context.calling("asking how many blocks fit of", self.kernel):
            ask = context.driver.cuOccupancyMaxActiveBlocksPerMultiprocessor
            held = context.check(ask(self.handle, width * height * depth, config.shared_bytes))
        check_residency(str(self.kernel), config.grid, held, target.multiprocessors)


class _ExternalHandle:
    """A stream handle wrapped for CuPy, by the CUDA stream protocol, version 0."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self._handle)


class CudaStream:
    """A non-blocking stream, not synchronized with any other, nor the null stream; or a foreign one by its handle.

    Args:
        context: Of the GPU.
        external: The handle of a foreign stream.
        is_packed: Launch through the driver with the prepared block, or else through RawKernel.
    """

    def __init__(self, context: CudaContext, external: int | None = None, *, is_packed: bool = True) -> None:
        self.context = context
        with context.calling("creating a stream"):
            if external is None:
                self.stream = context.cupy.cuda.Stream(non_blocking=True)
            else:
                self.stream = context.cupy.cuda.Stream.from_external(_ExternalHandle(external))
        self.handle: int = self.stream.ptr
        self._is_external = external is not None
        self.owner: object = None  # a foreign stream's owner, kept alive where needed
        self._command: object = None  # the last one issued
        self._dependent_config: Any = None
        self._launch_packed = context.cupy.cuda.driver.launchKernel if is_packed else None

    def begin_run(self) -> None:
        """Do nothing: a fault is the device's, whichever run it came about in."""

    def launch(self, function: Function, config: LaunchConfig, arguments: PackedArguments) -> None:
        """Launch a kernel; arguments are copied at the call."""
        context = self.context
        if context.is_current():
            try:
                self._pass(function, config, arguments)
            except context.errors as error:
                raise context.translate(error, "launching", function.kernel) from error  # type: ignore[attr-defined]
        else:
            with context.calling("launching", function.kernel):  # type: ignore[attr-defined]
                self._pass(function, config, arguments)

    def _pass(self, function: Any, config: LaunchConfig, arguments: PackedArguments) -> None:
        (x, y, z), (width, height, depth) = config.grid, config.block
        if config.cooperative:
            context, handle, places = self.context, self.handle, arguments.address
            context.check(
                context.driver.cuLaunchCooperativeKernel(
                    function.handle, x, y, z, width, height, depth, config.shared_bytes, handle, places
                )
            )
        elif self._launch_packed is not None:
            shared, address = config.shared_bytes, arguments.address
            self._launch_packed(function.handle, x, y, z, width, height, depth, shared, self.handle, address, 0)
        else:
            # CuPy passes arrays of one element by value whatever their dtype, but no scalar structs or bfloat16.
            values = tuple(np.asarray(item) for item in arguments.items())
            function.raw(config.grid, config.block, values, shared_mem=config.shared_bytes, stream=self.stream)
        self._command = function.kernel

    def launch_dependent(self, function: Function, config: LaunchConfig, arguments: PackedArguments) -> None:
        """Launch a kernel that waits itself for the launch issued just before it; arguments are copied at the call."""
        context = self.context
        if context.is_current():
            try:
                self._pass_early(function, config, arguments)
            except context.errors as error:
                raise context.translate(error, "launching", function.kernel) from error  # type: ignore[attr-defined]
        else:
            with context.calling("launching", function.kernel):  # type: ignore[attr-defined]
                self._pass_early(function, config, arguments)

    def _pass_early(self, function: Any, config: LaunchConfig, arguments: PackedArguments) -> None:
        context, launch = self.context, self._dependent_config or self._make_dependent_config()
        launch.gridDimX, launch.gridDimY, launch.gridDimZ = config.grid
        launch.blockDimX, launch.blockDimY, launch.blockDimZ = config.block
        launch.sharedMemBytes = config.shared_bytes
        context.check(context.driver.cuLaunchKernelEx(launch, function.handle, arguments.address, 0))
        self._command = function.kernel

    def _make_dependent_config(self) -> Any:
        """Return the driver's configuration of dependent launches on this stream, which all of them share."""
        driver = self.context.driver
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        launch = driver.CUlaunchConfig()
        launch.hStream, launch.attrs, launch.numAttrs = self.handle, [attribute], 1
        self._dependent_config = launch
        return launch

    def call_library(self, plan: LibraryPlan, addresses: Sequence[int]) -> None:
        """Have a library solve a problem; see `gpuexec.devices.libraries.device_library`."""
        with self.context.calling(plan.calling):
            plan.run(addresses, self.handle)
        self._command = plan.calling

    def copy_to_device(self, address: int, source: ByteArray) -> None:
        """Copy host bytes to the device; CUDA stages pageable ones before it returns, and reads pinned ones later."""
        runtime = self.context.cupy.cuda.runtime
        with self.context.calling("copying to the device"):
            runtime.memcpyAsync(address, source.ctypes.data, source.nbytes, runtime.memcpyHostToDevice, self.stream.ptr)

    def copy_to_host(self, destination: ByteArray, address: int) -> None:
        """Copy device bytes to host memory; asynchronous where that is pinned."""
        runtime = self.context.cupy.cuda.runtime
        with self.context.calling("copying to the host"):
            runtime.memcpyAsync(
                destination.ctypes.data, address, destination.nbytes, runtime.memcpyDeviceToHost, self.stream.ptr
            )

    def copy(self, destination: int, source: int, nbytes: int) -> None:
        """Copy between device addresses."""
        runtime = self.context.cupy.cuda.runtime
        with self.context.calling("copying on the device"):
            runtime.memcpyAsync(destination, source, nbytes, runtime.memcpyDeviceToDevice, self.stream.ptr)

    def fill(self, address: int, pattern: bytes, count: int) -> None:
        """Write ``pattern`` (1, 2, 4 or 8 bytes) ``count`` times."""
        driver, stream = self.context.driver, self.stream.ptr
        with self.context.calling("filling"):
            if len(pattern) == 8:  # two columns of 32 bits, each `count` rows high
                for column in (0, 4):
                    word = int.from_bytes(pattern[column : column + 4], "little")
                    self.context.check(driver.cuMemsetD2D32Async(address + column, 8, word, 1, count, stream))
            else:
                call = {1: driver.cuMemsetD8Async, 2: driver.cuMemsetD16Async, 4: driver.cuMemsetD32Async}[len(pattern)]
                self.context.check(call(address, int.from_bytes(pattern, "little"), count, stream))

    def note_launched(self, graph: object) -> None:
        """Note work put on the stream by other means, to name it should the context fail."""
        self._command = graph

    def record(self, event: Event) -> None:
        """Let the event stand for all work issued so far."""
        assert isinstance(event, CudaEvent)
        with self.context.calling("recording an event"):
            self.stream.record(event.event)
        event.command = self._command

    def wait(self, event: Event) -> None:
        """Let later work of this stream wait for the event's last record; the caller does not wait."""
        assert isinstance(event, CudaEvent)
        with self.context.calling("waiting for an event on a stream"):
            self.stream.wait_event(event.event)

    def is_done(self) -> bool:
        """Return whether all work issued is done; never waits."""
        return self.context.is_success(self.context.cupy.cuda.runtime.streamQuery(self.stream.ptr))

    def is_capturing(self) -> bool:
        """Return whether the stream is being captured into a graph; only foreign streams ever are."""
        if not self._is_external:
            return False
        with self.context.calling("asking whether a stream is capturing"):
            return bool(self.stream.is_capturing())

    def synchronize(self) -> None:
        """Wait for all work issued."""
        with self.context.calling("waiting for a stream"):
            self.stream.synchronize()
        self.context.note_done(self._command)

    def close(self) -> None:
        """Do nothing: CuPy destroys the stream once it is unreferenced, and CUDA finishes its work first."""
