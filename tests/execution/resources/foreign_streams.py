"""Foreign streams, and arrays whose order is left to them."""

from __future__ import annotations

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import MemoryBlock, Stream


class Protocol:
    """A stream of another package, by ``__cuda_stream__``."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self._stream.handle)


class Torch:
    """A stream as torch has them."""

    def __init__(self, stream: Stream) -> None:
        self.cuda_stream = stream.handle


class Foreign:
    """An array of another package in device memory, which leaves all order to streams."""

    def __init__(self, backend: Backend, *shape: int) -> None:
        self.memory: MemoryBlock = backend.device.allocate(int(np.prod(shape)) * 4)
        data = (self.memory.address, False)
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": "<f4",
            "data": data,
            "version": 3,
            "stream": None,
        }
