"""Small programs, their Methods, and expected outputs, through the public names."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.model.small_models import affine, ramp, two_inputs, two_layers

Array = np.ndarray[Any, Any]
SHAPES = {"x": ((1, 8), 3)}
PAIR = {"left": ((1, 8), 3), "right": ((1, 8), 3)}


def build(backend: Backend | gx.BackendType, **models: gx.Model) -> gx.Program:
    """Return a program of models that take ``x``, or of three that are small."""
    if models:
        return gx.Program.build(models, shapes=dict.fromkeys(models, SHAPES), backend=backend)
    return gx.Program.build(
        {"forward": two_layers(), "affine": affine(), "pair": two_inputs()},
        shapes={"forward": SHAPES, "affine": SHAPES, "pair": PAIR},
        backend=backend,
    )


def own_memory(meta: gx.MethodMeta, **allocators: Any) -> gx.MemoryManager:
    """Return memory of the caller's for a method: all that is planned, and these allocators."""
    return gx.MemoryManager(planned_memory=gx.HierarchicalAllocator(meta.allocate()), **allocators)


def load(backend: Backend, name: str = "affine", *, is_planned: bool = True) -> gx.Method:
    """Return a method of the small program, in memory of the caller's or its own."""
    program = build(backend)
    return program.load_method(name, own_memory(program.method_meta(name)) if is_planned else None)


def save(program: gx.Program) -> bytes:
    """Return the bytes of a program's file."""
    file = io.BytesIO()
    program.save(file)
    return file.getvalue()


def read(method: gx.Method, key: int | str = 0) -> Array:
    """Return an output of the last run as an array."""
    return method.get_output(key).readback_and_clone()


def expect_layers(x: Array) -> Array:
    """Return what ``forward`` of the small program gives."""
    return np.maximum(x @ ramp(3, 5), 0) @ ramp(5, 2)
