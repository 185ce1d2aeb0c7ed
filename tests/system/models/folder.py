"""Model folder of GPUEXEC_MODELS: models, cases, and tolerances."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.system import knobs

Array = np.ndarray[Any, Any]

FOLDER = knobs.models_dir()
needs_models = pytest.mark.skipif(FOLDER is None, reason="GPUEXEC_MODELS names no folder of models.")
TRAINED = (
    *("winml_mnist", "mobilenet_v2__d18", "resnet__d18", "ultraface_rfb320", "yunet_n_dynamic"),
    *("magika_v3_3", "vit__d18", "bert__l11", "gpt2_kv__d21"),
)
# Models that compute in half, wherever their inputs and outputs are float.
HALF = frozenset(
    (
        *("halfexport_cnn__d18", "llama_gqa_kv_half__d20", "llama_gqa_kv_half__d23", "vit_fp16_keepio"),
        *("vit_half_bf16skip__d20", "winml_squeezenet_fp16", "yolox_nano_fp16"),
    )
)
# Operators that round to steps: sums in another order fall to the other side of a tie, which shows as a whole step.
QUANTISED = ("QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul")
# Outputs drawn at random: nothing to compare with.
SAMPLED = {"mlagents_hybrid_v2": ("continuous_actions", "discrete_actions")}
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


@dataclass(frozen=True, slots=True)
class Allowance:
    """Tolerance of an element: ``of_value`` of itself plus ``of_largest`` of the largest of its tensor."""

    of_value: float
    of_largest: float


FLOAT = Allowance(1e-3, 1e-5)
# Models with an allowance of their own, by what was measured.
OWN = {
    # Its stored outputs kept float between some 300 layers, as onnxruntime does. onnx.reference, which rounds every
    # value to half as the model says, is off by 1.7 % of the largest; the CPU backend was by 1.0 % (2026-11-21).
    "yolox_nano_fp16": Allowance(5e-3, 1.7e-2),
}


def allowance_of(model: str) -> Allowance:
    """Return what the outputs of a model may be off: by its arithmetic, in float, in half, or in steps of 1/127."""
    if model in OWN:
        return OWN[model]
    if model in HALF:
        return Allowance(5e-3, 5e-3)
    if any(name in read_manifest()[model]["op_hist"] for name in QUANTISED):
        return Allowance(0.0, 2 / 127)
    return FLOAT


def measure(name: str, got: Array, expected: Array, allowance: Allowance = FLOAT) -> float:
    """Return the largest error of an output over what is allowed, and keep the largest of each name.

    What is allowed of the largest value is at least 5e-7. What is no float must be equal.
    """
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    if expected.dtype.kind not in "f":
        np.testing.assert_array_equal(got, expected)
        return DISTANCES.setdefault(name, 0.0)
    assert np.isfinite(expected).all() and np.isfinite(got).all()
    size = np.abs(expected.astype(np.float64))
    allowed = max(allowance.of_largest * float(size.max(initial=0)), 5e-7) + allowance.of_value * size
    distance = float((np.abs(got.astype(np.float64) - expected) / allowed).max(initial=0))
    DISTANCES[name] = max(distance, DISTANCES.get(name, 0.0))
    return distance
