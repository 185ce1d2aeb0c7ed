"""Statuses, errors, handles and raw bytes of the stand-in."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np

INVALID_VALUE, OUT_OF_MEMORY, NO_DEVICE, NOT_READY, LAUNCH_FAILURE = 1, 2, 100, 600, 719
CONTEXT = 0xC0


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int, what: str = "") -> None:
        super().__init__(f"cudaError {status}{what and ': '}{what}")
        self.status = status


class CUDADriverError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"CUresult {status}")
        self.status = status


class NoMemory(MemoryError):
    """Out-of-memory error of CuPy's pool."""


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


def view_bytes(address: int, nbytes: int) -> np.ndarray:
    """Return the host bytes at an address."""
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)
