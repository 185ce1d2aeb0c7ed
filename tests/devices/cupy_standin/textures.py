"""CUDA arrays, texture and surface objects, and rectangle copies of the stand-in."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.devices.cupy_standin.standin import Standin


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
