"""Buffers of the user as memory to run in: NumPy, CuPy, torch, pinned memory, Tensors, bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.devices import dlpack
from gpuexec.devices.backend import Backend
from gpuexec.devices.device import ByteArray, MemoryBlock, Region, Stream
from gpuexec.errors import ErrorCode, GpuexecError, InputError, OutOfMemoryError
from gpuexec.execution.resources.fence import Fence
from gpuexec.execution.resources.frames import Lease
from gpuexec.execution.resources.memory import Allocate, BorrowedMemory
from gpuexec.execution.results.content import Content
from gpuexec.execution.results.exchange import import_cuda
from gpuexec.execution.results.place import Place
from gpuexec.execution.results.tensor import Tensor
from gpuexec.ir.command import BUFFER_ALIGNMENT
from gpuexec.ir.spec import TensorSpec

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class _Found:
    """Bytes as their owner describes them. ``array`` is there where the host may touch them."""

    address: int
    nbytes: int
    is_read_only: bool
    owner: object
    array: ByteArray | None = None


def take_memory(
    item: object,
    backend: Backend,
    stream: Stream,
    nbytes: int,
    what: str,
    *,
    is_host: bool,
    alignment: int = BUFFER_ALIGNMENT,
    takes_all: bool = False,
) -> BorrowedMemory:
    """Take over memory of the user's for what a stream does from now on; it lives as long as what is returned.

    What its owner's stream does with it is waited for on ``stream``.

    Args:
        item: A Tensor, or anything with DLPack, ``__cuda_array_interface__`` or the buffer protocol.
        backend: Whose device uses it.
        stream: Where.
        nbytes: How many bytes are needed at least.
        what: What it is for, for messages.
        is_host: It has to lie on the host, pinned or not; otherwise on the backend's device.
        alignment: What the bytes taken start at a multiple of; those before that are left alone.
        takes_all: Take over what is beyond the bytes needed, too.

    Raises:
        InputError: It is too small, if need be for what it misses at its start; lies elsewhere; is read-only or not
            dense.
    """
    is_host = is_host or not backend.device.target.has_kernels
    try:
        found = _find_on_host(item) if is_host else _find_on_device(item, backend, stream)
    except (BufferError, TypeError, ValueError, GpuexecError) as error:
        raise InputError(f"{what}: a {type(item).__name__} can't be it: {str(error).rstrip('.')}.") from error
    if found.nbytes < nbytes:
        refusal = InputError(f"{what} needs {nbytes} bytes, got {found.nbytes}.")
        refusal.code = ErrorCode.MEMORY_ALLOCATION_FAILED
        raise refusal
    if found.is_read_only:
        raise InputError(f"{what}: the {type(item).__name__} is read-only; give memory that can be written.")
    start = -found.address % alignment if nbytes else 0
    if found.nbytes < start + nbytes:
        raise InputError(
            f"{what} must start at a multiple of {alignment} bytes; {found.address:#x} is {found.address % alignment}"
            f" past one, and {nbytes} bytes from the next one on need {start + nbytes}, got {found.nbytes}."
            " MethodMeta.allocate() gives aligned memory."
        )
    end = found.nbytes if takes_all else start + nbytes
    array = None if found.array is None else found.array[start:end]
    return BorrowedMemory(found.address + start, end - start, found.owner, array)


def is_on_host(item: Any) -> bool:
    """Return whether somebody's memory lies on the host, pinned or not, and on no device with kernels."""
    if isinstance(item, Tensor):
        return not item._content.backend.device.target.has_kernels
    if isinstance(item, np.ndarray):
        return True
    if hasattr(item, "__dlpack_device__"):
        return int(item.__dlpack_device__()[0]) in (dlpack.CPU, dlpack.CUDA_HOST)
    return not hasattr(item, "__cuda_array_interface__")


def allocate_by(allocator: Any, backend: Backend, stream: Stream, what: str) -> Allocate:
    """Return what gets device memory from an allocator of the user's."""

    def allocate(nbytes: int) -> MemoryBlock:
        try:
            item = allocator.allocate(nbytes)
        except MemoryError as error:
            raise OutOfMemoryError(f"{what} has no room for {nbytes} bytes: {error}") from error
        if item is None:
            raise OutOfMemoryError(f"{what} has no room for {nbytes} bytes.")
        return take_memory(item, backend, stream, nbytes, f"What {what} gave", is_host=False)

    return allocate


def make_bytes(backend: Backend, nbytes: int, name: str = "bytes") -> Tensor:
    """Return new bytes of a backend's device, aligned, as a tensor of the caller's; their content is undefined."""
    region = Region(backend.device.allocate(max(nbytes, 1)), 0, nbytes)
    with backend.transfers.lock:
        stream = backend.transfers.open()
        return wrap_region(backend, region, TensorSpec((nbytes,), np.dtype(np.uint8)), name, stream)


def wrap_region(
    backend: Backend, region: Region, spec: TensorSpec, name: str, stream: Stream, fence: Fence | None = None
) -> Tensor:
    """Return a tensor over bytes that are there once ``fence`` is done; other packages are given this stream."""
    place = Place(name, spec, Region(region.memory, region.offset, spec.nbytes))
    return Tensor(Content(name, backend, place, fence or Fence.of(), Lease(backend), stream))


def refuse_by(why: str) -> Allocate:
    """Return what gives no memory, and says why."""

    def allocate(nbytes: int) -> MemoryBlock:
        raise OutOfMemoryError(f"{nbytes} bytes are needed, and {why}.")

    return allocate


def view_region(region: Region) -> ByteArray:
    """Return bytes that the host may touch."""
    array = region.memory.array
    assert array is not None
    return array[region.offset : region.offset + region.nbytes]


def _find_on_host(item: Any) -> _Found:
    if isinstance(item, Tensor):
        item._content.check()
        memory = item._content.region.memory
        if memory.array is None:
            raise InputError(f"it lies on {item._content.backend.device.name}, expected on the host")
        item._content.fence.synchronize()
        raw = view_region(item._content.region)
        return _Found(raw.ctypes.data, raw.nbytes, False, (item, memory), raw)
    array = _view_array(item)
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise InputError(f"it is not contiguous: strides {array.strides} of bytes for shape {list(array.shape)}")
    raw = array.ravel(order="K").view(np.uint8)
    return _Found(raw.ctypes.data, raw.nbytes, not array.flags.writeable, (item, array), raw)


def _view_array(item: Any) -> Array:
    """Return host bytes as NumPy sees them; no copy."""
    if isinstance(item, np.ndarray):
        return item
    if hasattr(item, "__dlpack_device__"):
        kind = int(item.__dlpack_device__()[0])
        if kind not in (dlpack.CPU, dlpack.CUDA_HOST):
            raise InputError(f"it lies on DLPack device type {kind}, expected on the host")
        return dlpack.view_host(dlpack.take(item))
    if hasattr(item, "__cuda_array_interface__"):
        raise InputError("it lies on a GPU, expected on the host")
    view = memoryview(item)
    return np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)


def _find_on_device(item: Any, backend: Backend, stream: Stream) -> _Found:
    device = backend.device
    if isinstance(item, Tensor):
        return _find_tensor(item, backend, stream)
    if not isinstance(item, np.ndarray) and hasattr(item, "__cuda_array_interface__"):
        spec, region, fence = import_cuda(item, backend)
        for event in fence.events:
            stream.wait(event)
        return _Found(region.address, spec.nbytes, bool(item.__cuda_array_interface__["data"][1]), item)
    if not hasattr(item, "__dlpack_device__") or isinstance(item, np.ndarray):
        raise InputError(f"it lies on the host, expected on {device.name}")
    kind, ordinal = (int(number) for number in item.__dlpack_device__())
    if kind not in (dlpack.CUDA, dlpack.CUDA_MANAGED):
        raise InputError(f"it lies on DLPack device type {kind}, expected on {device.name}")
    wanted = int(getattr(device, "ordinal", 0))
    if ordinal != wanted:
        raise InputError(f"it lies on GPU {ordinal}, expected on GPU {wanted} ({device.name})")
    taken = dlpack.take(item, stream.handle)
    if taken.spec.size and taken.strides != dlpack.dense_strides(taken.spec.shape):
        raise InputError(f"it is not contiguous: strides {taken.strides} of elements for {taken.spec}")
    return _Found(taken.address, taken.spec.nbytes, taken.is_read_only, taken.owner)


def _find_tensor(tensor: Tensor, backend: Backend, stream: Stream) -> _Found:
    content = tensor._content
    content.check()
    if content.backend.device is not backend.device:
        raise InputError(f"it lies on {content.backend.device.name}, expected on {backend.device.name}")
    content.wait_known("given as memory before its bytes were known")
    for event in content.fence.events:
        stream.wait(event)
    region = content.region
    return _Found(region.address, region.nbytes, False, (tensor, region.memory))
