"""Arrays of other packages, by DLPack and by ``__cuda_array_interface__``, with their streams."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuexec.devices import dlpack
from gpuexec.devices.backend import Backend
from gpuexec.devices.device import MemoryBlock, Stream
from gpuexec.ir.spec import TensorSpec
from tests.model.small_models import Array, hold


class DeviceArray:
    """An array another package has on a device, filled on a stream of its own."""

    def __init__(self, backend: Backend, array: Array, *, is_held: bool = False) -> None:
        self.backend, self.spec = backend, TensorSpec(array.shape, array.dtype)
        self.memory: MemoryBlock = backend.device.allocate(array.nbytes)
        self.stream: Stream = backend.device.create_stream()
        self.gate = hold(self.stream) if is_held else None
        self.stream.copy_to_device(self.memory.address, array.reshape(-1).view(np.uint8))


class CudaStreamArray(DeviceArray):
    """Array that gives DLPack without waiting, and names its stream for the reader to wait on."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return (dlpack.CUDA, 0)

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None) -> object:
        where = self.__dlpack_device__()
        return dlpack.give(self.memory.address, self.spec, where, self, is_versioned=max_version is not None)

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.stream.handle)


class DlpackArray(DeviceArray):
    """Gives DLPack of before 1.0, and makes the reader's stream wait itself."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return (dlpack.CUDA, 0)

    def __dlpack__(self, stream: int | None = None) -> object:
        assert stream is not None
        event = self.backend.device.create_event()
        self.stream.record(event)
        self.backend.device.external_stream(stream).wait(event)
        return dlpack.give(self.memory.address, self.spec, (dlpack.CUDA, 0), self, is_versioned=False)


class InterfaceArray(DeviceArray):
    """Gives ``__cuda_array_interface__`` with a stream."""

    extra: dict[str, Any] = {}  # noqa: RUF012

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        data = (self.memory.address, False)
        base = {"shape": self.spec.shape, "typestr": self.spec.dtype.str, "data": data, "version": 3}
        return base | {"stream": self.stream.handle} | self.extra


class HostOnly:
    """A host array that only speaks DLPack."""

    def __init__(self, array: Array, *, is_versioned: bool = True, device: int = dlpack.CPU) -> None:
        self.array, self._is_versioned, self._device = array, is_versioned, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self._device, 0)

    def __dlpack__(self, **given: Any) -> object:
        if "max_version" in given and not self._is_versioned:
            raise TypeError("unexpected keyword argument 'max_version'")
        spec = TensorSpec(self.array.shape, self.array.dtype)
        return dlpack.give(self.array.ctypes.data, spec, (self._device, 0), self.array, is_versioned=self._is_versioned)
