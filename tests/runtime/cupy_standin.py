"""CuPy and ``cuda.bindings.driver`` as far as gpuexec calls them, over another device.

So the code for real GPUs runs, with its handles, addresses and statuses, where there is no GPU. What is under it
answers through gpuexec's own device protocol only. Statuses are CUDA's; a handle is an int, as there. The parameters of
graph nodes are the real classes of cuda.bindings, and a graph runs in a random order that its edges allow.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import json
import random
import sys
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cuda.bindings
import numpy as np
import pytest
from cuda.bindings import driver as bindings

from gpuexec.command import Kernel
from gpuexec.errors import DeviceLostError, GpuexecError, OutOfMemoryError
from gpuexec.runtime.arguments import PackedArguments

INVALID_VALUE, NO_DEVICE, NOT_READY, LAUNCH_FAILURE = 1, 100, 600, 719
CONTEXT = 0xC0


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}")
        self.status = status


class CUDADriverError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"CUresult {status}")
        self.status = status


class NoMemory(MemoryError):
    """What CuPy's pool raises."""


class Handles:
    """Objects by int, as CUDA's handles are."""

    def __init__(self) -> None:
        self._next = itertools.count(0x1000, 0x10)
        self._objects: dict[int, Any] = {}

    def add(self, item: Any) -> int:
        handle = next(self._next)
        self._objects[handle] = item
        return handle

    def remove(self, handle: int) -> None:
        del self._objects[handle]

    def __getitem__(self, handle: int) -> Any:
        if handle not in self._objects:
            raise CUDARuntimeError(INVALID_VALUE)
        return self._objects[handle]


class Standin:
    """The two modules over ``device``.

    Args:
        device: What runs the commands; made for the same kernels.
        architecture: Compute capability the GPU claims, like ``(9, 0)``.
        count: GPUs the runtime shows.
    """

    def __init__(self, device: Any, architecture: tuple[int, int] = (9, 0), count: int = 1) -> None:
        self.device = device
        self.handles = Handles()
        self.current = threading.local()
        self.architecture, self.count = architecture, count
        self.calls: list[str] = []
        self.cupy = self._make_cupy()
        self.driver = self._make_driver()

    def _make_cupy(self) -> Any:
        runtime = SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError,
            memcpyHostToDevice=1,
            memcpyDeviceToHost=2,
            memcpyDeviceToDevice=3,
            getDeviceCount=self._count_devices,
            getDeviceProperties=self._describe,
            memcpyAsync=self._copy,
            eventQuery=self._query,
            streamQuery=self._query,
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
            alloc=lambda nbytes: Pointer(self._call(self.device.allocate, nbytes)),
            alloc_pinned_memory=lambda nbytes: make_pinned_pointer(self._call(self.device.allocate_pinned, nbytes)),
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
            **GraphCalls(self).as_dict(),
        )

    def _call(self, function: Any, *arguments: Any) -> Any:
        """Call the device below; its errors come back as CUDA's."""
        try:
            return function(*arguments)
        except DeviceLostError as error:
            raise CUDARuntimeError(LAUNCH_FAILURE) from error
        except OutOfMemoryError as error:
            raise NoMemory(str(error)) from error
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
            "multiProcessorCount": 8,
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
        grid, block = (grid_x, grid_y, grid_z), (block_x, block_y, block_z)
        self.launch(raw, grid, block, read_parameters(raw, parameters), shared_bytes, stream)

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
        grid, block, values = (grid_x, grid_y, grid_z), (block_x, block_y, block_z), read_parameters(raw, parameters)
        return self._status(lambda: self.launch(raw, grid, block, values, shared_bytes, stream, cooperative=True))

    def launch(
        self,
        raw: RawKernel,
        grid: Any,
        block: Any,
        values: list[np.ndarray],
        shared_bytes: int,
        stream: int,
        cooperative: bool = False,
    ) -> None:
        """Launch with the bytes of each argument, read as the kernel's own types say."""
        self._require_current()
        assert shared_bytes <= raw.max_dynamic_shared_size_bytes
        packed = [None if kind == "P8" else unpack(kind, v) for kind, v in zip(raw.signature, values, strict=True)]
        arguments = PackedArguments(packed)
        for position, kind in enumerate(raw.signature):
            if kind == "P8":
                arguments.set_pointer(position, self._resolve(values[position].view(np.uint64)))
        self.calls.append(str(raw.function_kernel))
        launch = functools.partial(self.handles[stream].launch, cooperative=cooperative)
        self._call(launch, raw.function, grid, block, shared_bytes, arguments)

    def _resolve(self, words: np.ndarray) -> int:
        """Return the address of a pointer, or of a texture or surface and a byte within it."""
        if words.size == 1 or not words[0]:
            return int(words[0])
        found = self.handles[int(words[0])]
        return int(found.array.below.address + words[1])


class CUDAarray:
    """A CUDA array of texels of 16 bytes, row after row in the memory of the device below."""

    def __init__(self, standin: Standin, channels: Any, width: int, height: int, depth: int, flags: int) -> None:
        assert channels == (32, 32, 32, 32, 1) and (depth, flags) == (0, 2)
        standin._require_current()
        self.width, self.height = width, height
        self.below = standin._call(standin.device.allocate, 16 * width * height)
        self._standin, self.ptr = standin, standin.handles.add(weakref.proxy(self))

    def __del__(self) -> None:
        self._standin.handles.remove(self.ptr)
        self.below.free()
        self._standin._require_current()


class TextureObject:
    """A texture object, or without ``sampling`` a surface object."""

    def __init__(self, standin: Standin, array: CUDAarray, sampling: Any) -> None:
        assert sampling in (None, ((1, 1), 0, 0))  # clamped coordinates, point sampling, elements as they are
        standin._require_current()
        self.array, self._standin, self.ptr = array, standin, standin.handles.add(weakref.proxy(self))

    def __del__(self) -> None:
        self._standin.handles.remove(self.ptr)
        self._standin._require_current()


class TextureCalls:
    """The part of the runtime that copies rectangles between arrays and bytes in a row."""

    def __init__(self, standin: Standin) -> None:
        self._standin = standin

    def as_dict(self) -> dict[str, Any]:
        return {
            "cudaChannelFormatKindUnsigned": 1,
            "cudaArraySurfaceLoadStore": 2,
            "cudaResourceTypeArray": 0,
            "cudaAddressModeClamp": 1,
            "cudaFilterModePoint": 0,
            "cudaReadModeElementType": 0,
            "memcpy2DToArrayAsync": self._write,
            "memcpy2DFromArrayAsync": self._read,
        }

    def _write(
        self,
        array: int,
        column: int,
        row: int,
        source: int,
        pitch: int,
        width: int,
        height: int,
        kind: int,
        stream: int,
    ) -> None:
        for line, address in self._lines(array, column, row, pitch, width, height):
            self._standin._copy(address, source + line, width, kind, stream)

    def _read(
        self,
        target: int,
        pitch: int,
        array: int,
        column: int,
        row: int,
        width: int,
        height: int,
        kind: int,
        stream: int,
    ) -> None:
        for line, address in self._lines(array, column, row, pitch, width, height):
            self._standin._copy(target + line, address, width, kind, stream)

    def _lines(self, handle: int, column: int, row: int, pitch: int, width: int, height: int) -> list[tuple[int, int]]:
        array = self._standin.handles[handle]
        assert column % 16 == width % 16 == 0 and width <= pitch
        assert column + width <= 16 * array.width and row + height <= array.height
        return [
            (line * pitch, array.below.address + 16 * array.width * (row + line) + column) for line in range(height)
        ]


class GraphNode:
    """What one node does on a stream, and the handles of the nodes it waits for."""

    def __init__(self, run: Any, before: list[int]) -> None:
        self.run, self.before = run, before


class GraphCalls:
    """The part of the driver that makes, updates and launches graphs. Parameters are read when a node gets them."""

    def __init__(self, standin: Standin) -> None:
        self._standin = standin
        self._random = random.Random(0)
        self._nodes = itertools.count(1)

    def as_dict(self) -> dict[str, Any]:
        names = ("CUDA_KERNEL_NODE_PARAMS", "CUDA_MEMSET_NODE_PARAMS", "CUDA_MEMCPY3D", "CUmemorytype")
        return {
            **{name: getattr(bindings, name) for name in names},
            "cuGraphCreate": lambda flags: (0, self._standin.handles.add({})),
            "cuGraphAddKernelNode": self._add(self._read_launch),
            "cuGraphAddMemcpyNode": self._add(self._read_copy),
            "cuGraphAddMemsetNode": self._add(self._read_fill),
            "cuGraphInstantiate": self._instantiate,
            "cuGraphExecKernelNodeSetParams": self._set(self._read_launch),
            "cuGraphExecMemcpyNodeSetParams": self._set(self._read_copy),
            "cuGraphExecMemsetNodeSetParams": self._set(self._read_fill),
            "cuGraphLaunch": self._launch,
            "cuGraphExecDestroy": self._destroy,
            "cuGraphDestroy": self._destroy,
        }

    def _add(self, read: Any) -> Any:
        def call(graph: int, before: list[Any], count: int, parameters: Any, context: int = CONTEXT) -> tuple[Any, ...]:
            assert count == len(before) and context == CONTEXT
            self._standin._require_current()
            handle = next(self._nodes)
            self._standin.handles[graph][handle] = GraphNode(read(parameters), [int(node) for node in before])
            return 0, bindings.CUgraphNode(handle)

        return call

    def _set(self, read: Any) -> Any:
        def call(executable: int, node: Any, parameters: Any, context: int = CONTEXT) -> tuple[int]:
            assert context == CONTEXT
            self._standin._require_current()
            if getattr(parameters, "height", 1) != 1:  # a fill of an executable graph is updated in one dimension only
                return (INVALID_VALUE,)
            nodes = self._standin.handles[executable]
            nodes[int(node)] = GraphNode(read(parameters), nodes[int(node)].before)
            return (0,)

        return call

    def _instantiate(self, graph: int, flags: int) -> tuple[int, int]:
        return 0, self._standin.handles.add(dict(self._standin.handles[graph]))

    def _launch(self, executable: int, stream: int) -> tuple[int]:
        nodes, done = self._standin.handles[executable], set()
        while len(done) < len(nodes):
            ready = [handle for handle, node in nodes.items() if handle not in done and done.issuperset(node.before)]
            handle = self._random.choice(ready)
            try:
                nodes[handle].run(stream)
            except CUDARuntimeError as error:
                return (error.status,)
            done.add(handle)
        return (0,)

    def _destroy(self, handle: int) -> tuple[int]:
        self._standin.handles.remove(handle)
        return (0,)

    def _read_launch(self, parameters: Any) -> Any:
        raw = self._standin.handles[int(parameters.func)]
        grid = (parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ)
        block = (parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ)
        values, shared_bytes = read_parameters(raw, parameters.kernelParams), parameters.sharedMemBytes
        return lambda stream: self._standin.launch(raw, grid, block, values, shared_bytes, stream)

    def _read_copy(self, parameters: Any) -> Any:
        kind = bindings.CUmemorytype.CU_MEMORYTYPE_DEVICE
        assert parameters.srcMemoryType == parameters.dstMemoryType == kind
        assert (parameters.Height, parameters.Depth) == (1, 1)
        destination, source = int(parameters.dstDevice), int(parameters.srcDevice)
        nbytes = parameters.WidthInBytes
        return lambda stream: self._standin._copy(destination, source, nbytes, 3, stream)

    def _read_fill(self, parameters: Any) -> Any:
        address, pitch = int(parameters.dst), parameters.pitch
        pattern = parameters.value.to_bytes(parameters.elementSize, "little")
        width, height = parameters.width, parameters.height

        def run(stream: int) -> None:
            for row in range(height):
                self._standin._call(self._standin.handles[stream].fill, address + row * pitch, pattern, width)

        return run


class Device:
    def __init__(self, standin: Standin, ordinal: int) -> None:
        self._current, self.id = standin.current, ordinal

    def __enter__(self) -> Device:
        self._current.depth = getattr(self._current, "depth", 0) + 1
        return self

    def __exit__(self, *_: object) -> None:
        self._current.depth -= 1


class Stream:
    """A stream of the stand-in that a subclass names; of its own, or somebody else's."""

    _standin: Standin

    def __init__(self, *, non_blocking: bool) -> None:
        assert non_blocking
        self._standin._require_current()
        self.below = self._standin._call(self._standin.device.create_stream)
        self.ptr = self._standin.handles.add(self.below)

    @classmethod
    def from_external(cls, external: Any) -> Stream:
        """Return a stream of another package by the CUDA stream protocol."""
        version, handle = external.__cuda_stream__()
        assert version == 0
        stream = cls.__new__(cls)
        stream.ptr, stream.below = handle, cls._standin.handles[handle]
        return stream

    def record(self, event: Event) -> Event:
        self._standin._call(self.below.record, event.below)
        return event

    def wait_event(self, event: Event) -> None:
        self._standin._call(self.below.wait, event.below)

    def is_capturing(self) -> bool:
        return self._standin._call(self.below.is_capturing)  # type: ignore[no-any-return]

    def synchronize(self) -> None:
        self._standin._call(self.below.synchronize)


class Event:
    def __init__(self, standin: Standin, block: bool, disable_timing: bool) -> None:
        assert block or not disable_timing  # who waits for one of ours sleeps
        standin._require_current()
        create = standin.device.create_event if disable_timing else standin.device.create_timed_event
        self._standin, self.below = standin, standin._call(create)
        self.ptr = standin.handles.add(self.below)

    def synchronize(self) -> None:
        self._standin._call(self.below.synchronize)


class Pointer:
    """Memory that goes back when the last reference does."""

    def __init__(self, memory: Any) -> None:
        self._memory, self.ptr = memory, memory.address

    def __del__(self) -> None:
        self._memory.free()


def make_pinned_pointer(memory: Any) -> Any:
    """Return an object with the buffer protocol and ``ptr``; by ctypes, since Python 3.11 has no ``__buffer__``."""
    buffer: Any = (ctypes.c_char * memory.array.nbytes).from_address(memory.array.ctypes.data)
    buffer.ptr, buffer.owner = memory.address, Pointer(memory)
    return buffer


class RawModule:
    def __init__(self, standin: Standin, path: str) -> None:
        assert Path(path).read_bytes().startswith(b"\x7fELF")
        self._standin = standin
        self._described = json.loads(Path(path).with_suffix(".json").read_text().split("\n", 1)[1])

    def get_function(self, name: str) -> RawKernel:
        (kernel,) = (row for row in self._described["kernels"] if row["lowered_name"] == name)
        return RawKernel(self._standin, Kernel(self._described["source"], kernel["expression"]), kernel["shared_bytes"])


class RawKernel:
    def __init__(self, standin: Standin, kernel: Kernel, shared_bytes: int) -> None:
        self._standin, self.function_kernel = standin, kernel
        self.shared_size_bytes = shared_bytes
        self.max_dynamic_shared_size_bytes = 48 * 1024

    def compile(self) -> None:
        self._standin._require_current()
        self._standin._call(self._standin.device.load, [self.function_kernel])
        self.function = self._standin.device.function(self.function_kernel)
        self.signature = self.function.signature
        self.kernel = SimpleNamespace(ptr=self._standin.handles.add(self))

    def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int, stream: Stream) -> None:
        assert all(isinstance(value, np.ndarray) and value.size == 1 for value in args)
        assert len(args) == len(self.signature)
        values = [np.frombuffer(value.tobytes(), np.uint8) for value in args]
        self._standin.launch(self, grid, block, values, shared_mem, stream.ptr)


def install(monkeypatch: pytest.MonkeyPatch, standin: Standin) -> None:
    """Let ``import cupy`` and ``from cuda.bindings import driver`` give the stand-in."""
    monkeypatch.setitem(sys.modules, "cupy", standin.cupy)
    monkeypatch.setattr(cuda.bindings, "driver", standin.driver)


def read_parameters(raw: RawKernel, parameters: int) -> list[np.ndarray]:
    """Return the bytes of each argument behind ``void** kernelParams``."""
    places = view_bytes(parameters, 8 * len(raw.signature)).view(np.uint64)
    # Where the simulator's kernel takes the address of texels, the GPU's takes an object and a byte.
    wide = 16 if raw.function_kernel.source.startswith("pixel/") else 8
    sizes = [wide if kind == "P8" else int(kind[1:]) for kind in raw.signature]
    return [view_bytes(int(place), size).copy() for place, size in zip(places, sizes, strict=True)]


def view_bytes(address: int, nbytes: int) -> np.ndarray:
    """Return the host bytes at an address."""
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)


def unpack(kind: str, value: np.ndarray) -> Any:
    """Return the scalar, or the bytes of a struct, that ``kind`` spells."""
    assert value.nbytes == int(kind[1:]), f"{kind} got {value.nbytes} bytes"
    if kind[0] == "s":
        return value.tobytes()
    if kind == "b1":
        return value.view(np.bool_)[0]
    if kind == "f2":
        return value.view(np.float16)[0]
    return value.view(f"{kind[0]}{kind[1:]}")[0]
