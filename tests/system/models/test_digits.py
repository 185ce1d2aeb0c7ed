"""The digits model on pictures it was not trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices import backend as backends
from tests.system.models.judge import BACKENDS
from tests.system.models.test_every_model import DEVICES

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
HELD_OUT = 360


@pytest.mark.parametrize("device", DEVICES)
def test_digits_held_out_of_training_are_recognised(device: str) -> None:
    with np.load(EXAMPLES / "data" / "digits.npz") as file:
        images, labels = file["images"][-HELD_OUT:], file["labels"][-HELD_OUT:]
    pixels = images[:, None].astype(np.float32)
    with gx.Worker(gx.load(EXAMPLES / "models" / "digits.onnx"), backend=BACKENDS[device]) as worker:
        logits = worker.schedule(pixels).outputs["logits"].readback_and_clone()
    assert (logits.argmax(axis=1) == labels).mean() >= 0.97


def test_check_mode_finds_nothing_in_the_whole_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEXEC_CHECK_KERNELS", "1")
    monkeypatch.setattr(backends, "_open", {})
    with np.load(EXAMPLES / "data" / "digits.npz") as file:
        pixels, labels = file["images"][-4:, None].astype(np.float32), file["labels"][-4:]
    with gx.Worker(gx.load(EXAMPLES / "models" / "digits.onnx"), backend=gx.BackendType.SIMULATOR) as worker:
        logits = worker.run(pixels)[0]
    assert (logits.argmax(axis=1) == labels).all()
    assert backends.open_backend(gx.BackendType.SIMULATOR).device.is_checking  # type: ignore[attr-defined]
