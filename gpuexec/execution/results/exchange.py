"""Exchange of device arrays with other packages (DLPack, CUDA array interface), with their streams.

A producer's work is followed by an event that the reader's stream waits for; the caller does not wait.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuexec.devices import dlpack
from gpuexec.devices.backend import Backend, BackendType
from gpuexec.devices.device import Region, Stream, note_stream
from gpuexec.errors import InputError
from gpuexec.execution.resources.caller_stream import find_stream, mark_stream
from gpuexec.execution.resources.fence import Fence
from gpuexec.execution.resources.memory import BorrowedMemory
from gpuexec.execution.results.content import Content
from gpuexec.ir.spec import TensorSpec, dtype_row

Array = np.ndarray[Any, Any]
_LEGACY_STREAM, _THREAD_STREAM, _NO_STREAM = 1, 2, -1


def import_dlpack(item: Any, backend: Backend, stream: Stream) -> tuple[TensorSpec, Region, Fence] | Array:
    """Take over an array by DLPack: a host array as NumPy sees it, a device array with a fence for its content.

    Raises:
        InputError: It lies where the backend can't read it, or is not dense on a device.
    """
    kind, ordinal = map(int, item.__dlpack_device__())
    if kind in (dlpack.CPU, dlpack.CUDA_HOST):
        return dlpack.view_host(dlpack.take(item))
    if kind not in (dlpack.CUDA, dlpack.CUDA_MANAGED) or not backend.device.target.has_kernels:
        raise InputError(
            f"it lies on DLPack device type {kind}, which {backend.device.name} can't read; copy it to the host"
        )
    _refuse_textures(backend)
    if kind == dlpack.CUDA and ordinal != backend.device.ordinal:
        raise InputError(f"it lies on GPU {ordinal}, the Worker runs on GPU {backend.device.ordinal}; copy it there")
    taken = dlpack.take(item, stream.handle)
    _check_dense(taken.spec, taken.strides)
    # The producer has made our stream wait; one that says its stream besides is waited for either way.
    handle = find_stream(item)
    events = () if handle is None else (mark_stream(backend, handle),)
    return taken.spec, _borrow(taken.address, taken.spec, taken.owner), Fence.of(*events)


def import_cuda(item: Any, backend: Backend) -> tuple[TensorSpec, Region, Fence]:
    """Take over an array by ``__cuda_array_interface__``, whose ``stream`` is 1, 2, a handle, or None for no waiting.

    Raises:
        InputError: The backend can't read it, it is not dense, or it names stream 0, which the interface forbids.
    """
    if not backend.device.target.has_kernels:
        raise InputError(f"it lies on a GPU, which {backend.device.name} can't read; copy it to the host")
    _refuse_textures(backend)
    interface = item.__cuda_array_interface__
    spec = TensorSpec(tuple(interface["shape"]), np.dtype(interface["typestr"]))
    if interface.get("strides") is not None:
        _check_dense(spec, tuple(interface["strides"]), spec.dtype.itemsize, "bytes")
    if interface.get("stream") == 0:
        raise InputError(
            "its __cuda_array_interface__ names stream 0; the default stream is 1, or 2 for that of the thread"
        )
    handles = {handle for handle in (interface.get("stream"), find_stream(item)) if handle is not None}
    events = tuple(mark_stream(backend, handle) for handle in sorted(handles))
    return spec, _borrow(interface["data"][0], spec, item), Fence.of(*events)


def export_cuda(content: Content) -> dict[str, Any]:
    """Return the interface of a content that its stream makes; who reads it waits for that stream.

    NOTE: the interface does not say on which stream it is read. Once the bytes are let go of, they are used again
    behind what is on the default stream then, and on the streams that wait for it; who reads on a stream that does not,
    as those of PyTorch and non-blocking ones, keeps the tensor until that work is done, or takes it by DLPack.
    """
    assert content.stream is not None
    device = content.backend.device
    note_stream(content.region.memory, device.external_stream(_LEGACY_STREAM))
    return {
        "shape": content.spec.shape,
        "typestr": "|V1" if dtype_row(content.spec.dtype).is_narrow else content.spec.dtype.str,
        "data": (content.region.address if content.spec.size else 0, False),
        "strides": None,
        "stream": content.stream.handle,
        "version": 3,
    }


def export_dlpack(content: Content, *, stream: int | None, max_version: tuple[int, int] | None) -> object:
    """Return a DLPack capsule that the consumer's stream waits for (None: the default one; -1: no waiting).

    Once the consumer lets go of the bytes, they are used again behind what is on its stream then. A stream that was
    destroyed by its owner before that can't be asked.
    """
    device = content.backend.device
    if device.target.has_kernels:
        named = _LEGACY_STREAM if stream in (None, _NO_STREAM) else stream
        assert named is not None
        consumer = device.external_stream(named)
        for event in content.fence.events if stream != _NO_STREAM else ():
            consumer.wait(event)
        # NOTE: 2 is another stream in each thread, and the bytes may be let go of in any. All of them are in step with
        # the default stream.
        lasting = device.external_stream(_LEGACY_STREAM) if named == _THREAD_STREAM else consumer
        note_stream(content.region.memory, lasting)
    is_versioned = max_version is not None and max_version[0] >= 1
    region = content.region
    where = dlpack_device(content.backend)
    return dlpack.give(region.address, content.spec, where, region.memory, is_versioned=is_versioned)


def dlpack_device(backend: Backend) -> tuple[int, int]:
    """Return DLPack's name for a backend's device.

    Raises:
        BufferError: Its memory is textures, which have no address.
    """
    if backend.device.target.has_textures:
        raise BufferError(f"a tensor of {backend.device.name} lies in a texture; read it back to share it")
    if backend.type is BackendType.CPU:
        return (dlpack.CPU, 0)
    return (dlpack.CUDA, backend.device.ordinal)


def _refuse_textures(backend: Backend) -> None:
    if backend.device.target.has_textures:
        raise InputError(f"it lies in ordinary memory, and {backend.device.name} reads textures; copy it to the host")


def _borrow(address: int, spec: TensorSpec, owner: object) -> Region:
    return Region(BorrowedMemory(address, spec.nbytes, owner), 0, spec.nbytes)


def _check_dense(spec: TensorSpec, strides: tuple[int, ...], unit: int = 1, units: str = "elements") -> None:
    dense = [stride * unit for stride in dlpack.dense_strides(spec.shape)]
    if spec.size and any(have != want for have, want, extent in zip(strides, dense, spec.shape) if extent > 1):
        raise InputError(f"a device array must be dense, got strides {strides} of {units}; make it contiguous")
