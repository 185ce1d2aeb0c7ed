"""The stand-in's two modules over another device, with their module-level functions."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import cuda.bindings
import numpy as np
import pytest
from cuda.bindings import driver as bindings

from gpuexec.devices.arguments import PackedArguments
from gpuexec.devices.kernels.kernel_library import KernelLibrary
from gpuexec.devices.kernels.stored_code import StoredCode
from gpuexec.devices.simulator import compilation
from gpuexec.errors import DeviceLostError, GpuexecError, OutOfMemoryError
from gpuexec.ir.command import Kernel, LaunchConfig
from tests.devices.cupy_standin.graphs import GraphCalls
from tests.devices.cupy_standin.kernels import RawKernel, RawModule, read_parameters, unpack
from tests.devices.cupy_standin.memory import MemoryCalls
from tests.devices.cupy_standin.objects import Device, Event, Stream
from tests.devices.cupy_standin.statuses import (
    CONTEXT,
    INVALID_VALUE,
    LAUNCH_FAILURE,
    NO_DEVICE,
    NOT_READY,
    OUT_OF_MEMORY,
    CUDADriverError,
    CUDARuntimeError,
    Handles,
    NoMemory,
    view_bytes,
)
from tests.devices.cupy_standin.textures import CUDAarray, TextureCalls, TextureObject


class Standin:
    """The two modules over ``device``.

    Args:
        device: What runs the commands; made for the same kernels.
        architecture: Compute capability the GPU claims, like ``(9, 0)``.
        count: GPUs the runtime shows.
        multiprocessors: Of each.
    """

    def __init__(
        self, device: Any, architecture: tuple[int, int] = (9, 0), count: int = 1, multiprocessors: int = 8
    ) -> None:
        self.device = device
        self.handles = Handles()
        self.current = threading.local()
        self.architecture, self.count, self.multiprocessors = architecture, count, multiprocessors
        self.driver_version = 13000
        self.calls: list[str] = []
        self.early: list[str] = []  # kernels of dependent launches
        self.texts: dict[str, str] = {}  # generated for kernels, by expression
        self.memory, self.graphs = MemoryCalls(self), GraphCalls(self)
        # CuPy's, of the thread that asks.
        self.current_stream: Any = SimpleNamespace(ptr=0)
        self.cupy = self._make_cupy()
        self.driver = self._make_driver()

    def _make_cupy(self) -> Any:
        runtime = SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError,
            memcpyHostToDevice=1,
            memcpyDeviceToHost=2,
            memcpyDeviceToDevice=3,
            driverGetVersion=lambda: self.driver_version,
            getDeviceCount=self._count_devices,
            getDeviceProperties=self._describe,
            memcpyAsync=self._copy,
            eventQuery=self._query,
            streamQuery=self._query,
            **self.memory.as_dict(),
            **TextureCalls(self).as_dict(),
        )
        driver = SimpleNamespace(
            CUDADriverError=CUDADriverError, launchKernel=self._launch_packed, ctxGetCurrent=self._find_context
        )
        cuda = SimpleNamespace(
            runtime=runtime,
            driver=driver,
            memory=SimpleNamespace(OutOfMemoryError=NoMemory),
            Device=lambda ordinal: Device(self, ordinal),
            Stream=type("Stream", (Stream,), {"_standin": self}),
            Event=lambda block=False, disable_timing=False: Event(self, block, disable_timing),
            get_elapsed_time=lambda start, end: end.below.elapsed_ms(start.below),
            texture=SimpleNamespace(
                ChannelFormatDescriptor=lambda *given: given,
                CUDAarray=functools.partial(CUDAarray, self),
                ResourceDescriptor=lambda kind, cuArr: cuArr,
                TextureDescriptor=lambda *given: given,
                TextureObject=lambda array, sampling: TextureObject(self, array, sampling),
                SurfaceObject=lambda array: TextureObject(self, array, None),
            ),
            get_current_stream=lambda: self.current_stream,
        )
        return SimpleNamespace(cuda=cuda, RawModule=lambda *, path: RawModule(self, path))

    def _make_driver(self) -> Any:
        def fill(width: int) -> Any:
            def call(address: int, value: int, count: int, stream: int) -> tuple[int]:
                return self._status(self.handles[stream].fill, address, value.to_bytes(width, "little"), count)

            return call

        def fill_columns(address: int, pitch: int, value: int, width: int, height: int, stream: int) -> tuple[int]:
            for row in range(height):
                (status,) = self._status(
                    self.handles[stream].fill, address + row * pitch, value.to_bytes(4, "little"), width
                )
                if status:
                    return (status,)
            return (0,)

        return SimpleNamespace(
            cuMemsetD8Async=fill(1),
            cuMemsetD16Async=fill(2),
            cuMemsetD32Async=fill(4),
            cuMemsetD2D32Async=fill_columns,
            cuOccupancyMaxActiveBlocksPerMultiprocessor=lambda function, threads, shared_bytes: (0, 1536 // threads),
            cuLaunchCooperativeKernel=self._launch_cooperatively,
            cuLaunchKernelEx=self._launch_dependent,
            **{
                name: getattr(bindings, name) for name in ("CUlaunchConfig", "CUlaunchAttribute", "CUlaunchAttributeID")
            },
            **self.graphs.as_dict(),
        )

    def _call(self, function: Any, *arguments: Any) -> Any:
        """Call the device below; its errors come back as CUDA's."""
        try:
            return function(*arguments)
        except DeviceLostError as error:
            raise CUDARuntimeError(LAUNCH_FAILURE) from error
        except OutOfMemoryError as error:
            raise CUDARuntimeError(OUT_OF_MEMORY, str(error)) from error
        except GpuexecError as error:
            raise CUDARuntimeError(INVALID_VALUE) from error

    def _status(self, function: Any, *arguments: Any) -> tuple[int]:
        self._require_current()
        try:
            self._call(function, *arguments)
        except CUDARuntimeError as error:
            return (error.status,)
        return (0,)

    def _require_current(self) -> None:
        """Refuse a call made without the device current: on a machine with two GPUs it would go to the wrong one."""
        if not getattr(self.current, "depth", 0):
            raise CUDADriverError(201)  # CUDA_ERROR_INVALID_CONTEXT

    def _find_context(self) -> int:
        self._require_current()
        return CONTEXT

    def _count_devices(self) -> int:
        if not self.count:
            raise CUDARuntimeError(NO_DEVICE)
        return self.count

    def _describe(self, ordinal: int) -> dict[str, Any]:
        assert ordinal < self.count
        major, minor = self.architecture
        return {
            "name": b"Stand-in",
            "major": major,
            "minor": minor,
            "totalGlobalMem": 1 << 36,
            "multiProcessorCount": self.multiprocessors,
        }

    def _copy(self, destination: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        self._require_current()
        target = self.handles[stream]
        if kind == 1:
            self._call(target.copy_to_device, destination, view_bytes(source, nbytes))
        elif kind == 2:
            self._call(target.copy_to_host, view_bytes(destination, nbytes), source)
        else:
            self._call(target.copy, destination, source, nbytes)

    def _query(self, handle: int) -> int:
        try:
            return 0 if self._call(self.handles[handle].is_done) else NOT_READY
        except CUDARuntimeError as error:
            return error.status

    def _launch_packed(
        self,
        function: int,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        block_x: int,
        block_y: int,
        block_z: int,
        shared_bytes: int,
        stream: int,
        parameters: int,
        extra: int,
    ) -> None:
        assert extra == 0
        raw = self.handles[function]
        config = LaunchConfig((grid_x, grid_y, grid_z), (block_x, block_y, block_z), shared_bytes)
        self.launch(raw, config, read_parameters(raw, parameters), stream)

    def _launch_cooperatively(
        self,
        function: int,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        block_x: int,
        block_y: int,
        block_z: int,
        shared_bytes: int,
        stream: int,
        parameters: int,
    ) -> tuple[int]:
        raw = self.handles[function]
        config = LaunchConfig((grid_x, grid_y, grid_z), (block_x, block_y, block_z), shared_bytes, cooperative=True)
        values = read_parameters(raw, parameters)
        return self._status(lambda: self.launch(raw, config, values, stream))

    def _launch_dependent(self, launch: Any, function: int, parameters: int, extra: int) -> tuple[int]:
        assert isinstance(launch, bindings.CUlaunchConfig) and extra == 0 and launch.numAttrs == 1
        (attribute,) = launch.attrs
        ids = bindings.CUlaunchAttributeID
        assert attribute.id == ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        assert attribute.value.programmaticStreamSerializationAllowed == 1
        raw = self.handles[function]
        grid = (launch.gridDimX, launch.gridDimY, launch.gridDimZ)
        block = (launch.blockDimX, launch.blockDimY, launch.blockDimZ)
        config, values = LaunchConfig(grid, block, launch.sharedMemBytes), read_parameters(raw, parameters)
        self.early.append(str(raw.function_kernel))
        return self._status(lambda: self.launch(raw, config, values, int(launch.hStream), is_early=True))

    def launch(
        self, raw: RawKernel, config: LaunchConfig, values: list[np.ndarray], stream: int, *, is_early: bool = False
    ) -> None:
        """Launch with the bytes of each argument, read as the kernel's own types say."""
        self._require_current()
        assert config.shared_bytes <= raw.max_dynamic_shared_size_bytes
        packed = [None if kind == "P8" else unpack(kind, v) for kind, v in zip(raw.signature, values, strict=True)]
        arguments = PackedArguments(packed)
        for position, kind in enumerate(raw.signature):
            if kind == "P8":
                arguments.set_pointer(position, self._resolve(values[position].view(np.uint64)))
        self.calls.append(str(raw.function_kernel))
        below = self.handles[stream]
        self._call(below.launch_dependent if is_early else below.launch, raw.function, config, arguments)

    def _resolve(self, words: np.ndarray) -> int:
        """Return the address of a pointer, or of a texture or surface and a byte within it."""
        if words.size == 1 or not words[0]:
            return int(words[0])
        found = self.handles[int(words[0])]
        return int(found.array.below.address + words[1])


def install(monkeypatch: pytest.MonkeyPatch, standin: Standin) -> None:
    """Let ``import cupy`` and ``from cuda.bindings import driver`` give the stand-in.

    A test may have a cache of its own for what NVRTC would compile; the simulator below keeps the one it has now.
    """
    cache = compilation.default_cache()
    monkeypatch.setattr(compilation, "default_cache", lambda: cache)
    monkeypatch.setitem(sys.modules, "cupy", standin.cupy)
    monkeypatch.setattr(cuda.bindings, "driver", standin.driver)
    load = KernelLibrary.load

    def note_and_load(self: KernelLibrary, kernels: Sequence[Kernel], code: StoredCode | None = None) -> None:
        # Compiled code does not hold the text that it was made from, which the simulator below compiles.
        standin.texts.update({kernel.expression: kernel.text for kernel in kernels if kernel.text})
        load(self, kernels, code)

    monkeypatch.setattr(KernelLibrary, "load", note_and_load)
