"""Methods of one program, shared by its tests."""

from __future__ import annotations

from typing import Any

import numpy as np

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.model.small_models import CPU

BACKENDS = [CPU, gx.BackendType.SIMULATOR]
SHAPES = {"x": ((1, 8), 3)}


def load(
    model: gx.Model,
    backend: gx.BackendType | Backend = CPU,
    shapes: Any = SHAPES,
    planned: bool = False,
    **options: Any,
) -> gx.Method:
    program = gx.Program.build({"forward": model}, shapes=shapes and {"forward": shapes}, backend=backend)
    memory = None
    if planned:
        arenas = gx.HierarchicalAllocator(program.method_meta("forward").allocate())
        memory = gx.MemoryManager(planned_memory=arenas)
    return program.load_method("forward", memory, **options)


def read(method: gx.Method, index: int | str = 0) -> np.ndarray[Any, Any]:
    return method.get_output(index).readback_and_clone()
