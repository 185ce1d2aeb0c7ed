"""The folder of models that GPUEXEC_MODELS names: models, cases, and how near a result must be."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec import knobs

Array = np.ndarray[Any, Any]

FOLDER = knobs.models_dir()
needs_models = pytest.mark.skipif(FOLDER is None, reason="GPUEXEC_MODELS names no folder of models.")
TRAINED = (
    *("winml_mnist", "mobilenet_v2__d18", "resnet__d18", "ultraface_rfb320", "yunet_n_dynamic"),
    *("magika_v3_3", "vit__d18", "bert__l11", "gpt2_kv__d21"),
)
# Error over what is allowed, by case; a result is near enough up to 1.
DISTANCES: dict[str, float] = {}


@dataclass(frozen=True, slots=True)
class ModelCase:
    """Inputs of a model and the outputs onnxruntime gave for them, by name."""

    inputs: dict[str, Array]
    outputs: dict[str, Array]


@functools.cache
def read_manifest() -> dict[str, Any]:
    """Return what the folder says of its models, by name; nothing where there is no folder."""
    found: dict[str, Any] = {} if FOLDER is None else json.loads((FOLDER / "manifest.json").read_text())
    return found


def path_of(model: str) -> Path:
    """Return the file of a model."""
    assert FOLDER is not None
    return FOLDER / str(read_manifest()[model]["file"])


@functools.cache
def load_model(model: str) -> gx.Model:
    """Load a model once."""
    return gx.load(path_of(model))


def read_case(case: str) -> ModelCase:
    """Read a case by its path in the manifest."""
    assert FOLDER is not None
    with np.load(FOLDER / case) as file:
        inputs = {str(name): file[f"in_{i}"] for i, name in enumerate(file["input_names"])}
        outputs = {str(name): file[f"out_{i}"] for i, name in enumerate(file["output_names"])}
    return ModelCase(inputs, outputs)


def measure(name: str, got: Array, expected: Array) -> float:
    """Return the largest error of an output over what is allowed, and keep the largest of each name.

    Allowed is 1e-3 of the value plus 1e-5 of the largest value, the latter at least 5e-7. What is no float must be
    equal.
    """
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    if expected.dtype.kind in "biu":
        np.testing.assert_array_equal(got, expected)
        return DISTANCES.setdefault(name, 0.0)
    assert expected.dtype == np.float32 and np.isfinite(expected).all() and np.isfinite(got).all()
    size = np.abs(expected.astype(np.float64))
    allowed = max(1e-5 * float(size.max(initial=0)), 5e-7) + 1e-3 * size
    distance = float((np.abs(got.astype(np.float64) - expected) / allowed).max(initial=0))
    DISTANCES[name] = max(distance, DISTANCES.get(name, 0.0))
    return distance
