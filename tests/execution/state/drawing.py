"""Models with random operators, and the numbers their runs draw."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import parser

import gpuexec as gx
from tests.model.small_models import Array

CPU, SIMULATOR = gx.BackendType.CPU, gx.BackendType.SIMULATOR
NOISE = "(float[n] x) => (float[n] a, float[n] b) { a = RandomUniformLike (x) b = RandomUniformLike (x) }"
X = np.zeros(8, np.float32)


def load(text: str = NOISE, **options: Any) -> gx.Model:
    return gx.load(parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> agraph {text}'), **options)


def draw(worker: gx.Worker, inputs: object = X) -> list[Array]:
    """Return the outputs of a run."""
    return list(worker.run(inputs))


def draw_all(model: gx.Model, runs: int, inputs: object = X, **options: Any) -> list[bytes]:
    """Return what runs of a Worker of its own make, as bytes."""
    with gx.Worker(model, **options) as worker:
        return [b"".join(array.tobytes() for array in draw(worker, inputs)) for _ in range(runs)]
