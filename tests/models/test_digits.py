"""The package's own model on digits it was not trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gpuexec as gx
from tests.models.test_models import BACKENDS

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
HELD_OUT = 360


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_digits_held_out_of_training_are_recognised(backend: gx.BackendType) -> None:
    model = gx.load(EXAMPLES / "models" / "digits.onnx")
    with np.load(EXAMPLES / "data" / "digits.npz") as file:
        arrays = dict(file)
    print({name: array.shape for name, array in arrays.items()}, model)
    assert False
