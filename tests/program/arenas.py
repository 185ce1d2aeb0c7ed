"""User memory for Methods of two layers, and their expected outputs."""

from __future__ import annotations

from typing import Any

import numpy as np

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.model.small_models import CPU, ramp, two_layers
from tests.program.methods import SHAPES

SIMULATOR = gx.BackendType.SIMULATOR


def build(backend: gx.BackendType | Backend = CPU, **models: gx.Model) -> gx.Program:
    models = models or {"forward": two_layers()}
    return gx.Program.build(models, shapes=dict.fromkeys(models, SHAPES), backend=backend)


def manage(*buffers: object, **options: Any) -> gx.MemoryManager:
    return gx.MemoryManager(planned_memory=gx.HierarchicalAllocator(list(buffers)), **options)


def aligned(nbytes: int, shift: int = 0) -> np.ndarray[Any, Any]:
    """Return bytes that start ``shift`` past a multiple of 256."""
    raw = np.zeros(nbytes + 512, np.uint8)
    start = -raw.ctypes.data % 256 + shift
    return raw[start : start + nbytes]


def run(method: gx.Method, rows: int = 8) -> np.ndarray[Any, Any]:
    method.execute([ramp(rows, 3)])
    return method.get_output(0).readback_and_clone()


def expect_two_layers(rows: int) -> np.ndarray[Any, Any]:
    with gx.Worker(two_layers(), backend=CPU) as worker:
        answer = worker.run(ramp(rows, 3))[0]
    assert isinstance(answer, np.ndarray)
    return answer


class CudaArray:
    """Bytes of a device as other packages offer them."""

    def __init__(self, tensor: gx.Tensor, nbytes: int, *, offset: int = 0, is_read_only: bool = False) -> None:
        address = tensor._content.region.address + offset
        self.owner = tensor
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, is_read_only),
            "strides": None,
            "stream": None,
            "version": 3,
        }
