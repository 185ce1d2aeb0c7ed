"""Shared parts of replay tests: foreign memory, and logged device calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Stream
from gpuexec.devices.recorder.tracer import TracerDevice
from gpuexec.execution.resources.memory import BorrowedMemory
from gpuexec.ir.spec import TensorSpec
from tests.model.small_models import CPU, Array

SIMULATOR = gx.BackendType.SIMULATOR
on_both = pytest.mark.parametrize("type", [CPU, SIMULATOR], ids=["cpu", "simulator"])


class Buffer:
    """Device memory of another owner, without a stream: its owner orders what is done with it."""

    def __init__(self, backend: Backend, spec: TensorSpec) -> None:
        self.backend, self.spec = backend, spec
        self.memory = backend.device.allocate(spec.nbytes)
        self.shape, self.dtype = spec.shape, spec.dtype

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        data = (self.memory.address, False)
        return {"shape": self.shape, "typestr": self.dtype.str, "data": data, "version": 3, "stream": None}

    def write(self, stream: Stream, array: Array) -> None:
        stream.copy_to_device(self.memory.address, np.ascontiguousarray(array).reshape(-1).view(np.uint8))

    def read(self, stream: Stream) -> Array:
        """Return the content in the order of a stream, once that has come to it."""
        array = np.zeros(self.shape, self.dtype)
        stream.copy_to_host(array.reshape(-1).view(np.uint8), self.memory.address)
        return array


class ShiftedBuffer(Buffer):
    """Such memory that starts some elements past an aligned address, as ``base[1:]`` of torch or CuPy does."""

    def __init__(self, backend: Backend, spec: TensorSpec, shift: int) -> None:
        super().__init__(backend, TensorSpec((shift * spec.dtype.itemsize + spec.nbytes,), np.dtype(np.uint8)))
        self.whole, start = self.memory, shift * spec.dtype.itemsize
        array = None if self.whole.array is None else self.whole.array[start:]
        self.memory = BorrowedMemory(self.whole.address + start, spec.nbytes, self.whole, array)
        self.spec, self.shape, self.dtype = spec, spec.shape, spec.dtype


class StreamBuffer(Buffer):
    """Device memory of another owner that says on which stream it is written."""

    def __init__(self, backend: Backend, spec: TensorSpec) -> None:
        super().__init__(backend, spec)
        self.stream = backend.device.create_stream()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return super().__cuda_array_interface__ | {"stream": self.stream.handle}


def float32(*shape: int) -> TensorSpec:
    return TensorSpec(shape, np.dtype(np.float32))


def read(made: dict[str, gx.Tensor], name: str = "y") -> Array:
    return made[name].readback_and_clone()


def take_calls(backend: Backend) -> list[Any]:
    """Return the calls made to the tracer since the last look."""
    assert isinstance(backend.device, TracerDevice)
    rows = [row[0] for row in backend.device.log]
    backend.device.log.clear()
    return rows
