"""A cache fed by its caller from run to run, and the same model with the cache as its state."""

from __future__ import annotations

from typing import Any

import numpy as np

import gpuexec as gx
from gpuexec.devices.backend import Backend, BackendType
from tests.model.small_models import CPU
from tests.model.state_models import WIDTH, cache

Array = np.ndarray[Any, Any]
BACKENDS = (CPU, BackendType.SIMULATOR, BackendType.SIMULATOR_PIXEL)
CAPACITY = 12
PAIR = {"present": "past"}


def make_rows(axis: int, count: int, seed: int = 0) -> Array:
    shape = [2, 2, WIDTH]
    shape[axis] = count
    return np.random.default_rng(seed).integers(-8, 8, shape).astype(np.float32)


class ByHand:
    """The same model unbound, its cache passed from run to run by the caller."""

    def __init__(self, axis: int, backend: Backend) -> None:
        self.worker = gx.Worker(cache(axis), backend=backend)
        self.past = make_rows(axis, 0)

    def run(self, x: Array) -> tuple[Array, Array]:
        y, self.past, before = self.worker.run({"x": x, "past": self.past})
        return y, before


def run_bound(worker: gx.Worker, x: Array) -> tuple[Array, Array]:
    y, before = worker.run({"x": x})
    return y, before
