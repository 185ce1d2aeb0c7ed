"""Arrays of another package on a device, dense or strided, filled on a stream of their own."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from gpuexec.devices.backend import Backend
from tests.model.small_models import hold

Array = np.ndarray[Any, Any]


class ForeignArray:
    """A view of an array, by ``__cuda_array_interface__``. ``is_held``: its content comes once ``gate`` is set."""

    def __init__(self, backend: Backend, view: Array, *, is_held: bool = False, is_read_only: bool = False) -> None:
        self._backend, base = backend, view
        while base.base is not None:
            base = base.base
        self._base = np.ascontiguousarray(base)
        self.shape, self.dtype = view.shape, view.dtype
        self.memory = backend.device.allocate(max(base.nbytes, 1))
        self.stream = backend.device.create_stream()
        self.gate: threading.Event | None = hold(self.stream) if is_held else None
        self.stream.copy_to_device(self.memory.address, self._base.reshape(-1).view(np.uint8))
        if not is_held:
            self._finish()
        shift = view.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        self.__cuda_array_interface__ = {
            "shape": view.shape,
            "typestr": view.dtype.str,
            "data": (self.memory.address + shift, is_read_only),
            "strides": None if view.flags.c_contiguous else view.strides,
            "stream": self.stream.handle,
            "version": 3,
        }

    def read(self) -> Array:
        """Return what all of its memory holds now, after what was put on its stream."""
        raw = np.empty(self._base.nbytes, np.uint8)
        self.stream.copy_to_host(raw, self.memory.address)
        self._finish()
        return raw.view(self._base.dtype).reshape(self._base.shape)

    def _finish(self) -> None:
        event = self._backend.device.create_event()
        self.stream.record(event)
        event.synchronize()
