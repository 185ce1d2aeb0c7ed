"""A model with NaN and infinities, and the expected findings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
from tests.model.small_models import CPU, make_model, ramp

Array = np.ndarray[Any, Any]
SIMULATOR = gx.BackendType.SIMULATOR
on_both = pytest.mark.parametrize("backend", [CPU, SIMULATOR])
GOOD = ramp(4, 3) + np.float32(3)


def logarithm() -> gx.Model:
    """y = -relu(log(2 x))."""
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["a"], name="double"),
        helper.make_node("Log", ["a"], ["b"], name="log"),
        helper.make_node("Relu", ["b"], ["c"], name="relu"),
        helper.make_node("Neg", ["c"], ["y"], name="neg"),
    ]
    return make_model(nodes, {"x": ("n", 3)}, {"y": ("n", 3)}, two=np.float32(2))


def with_elements(x: Array, *rows: tuple[tuple[int, ...], float]) -> Array:
    changed = x.copy()
    for index, value in rows:
        changed[index] = value
    return changed


def watch(model: gx.Model, backend: gx.BackendType, inputs: Any) -> gx.NonFinite | None:
    with gx.Worker(model, backend=backend, watch="report") as worker:
        return worker.schedule(inputs).inspection.find_nonfinite()
