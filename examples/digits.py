"""Shared data of the examples: pictures of handwritten digits, and a small net that reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import gpuexec as gx

HERE = Path(__file__).resolve().parent
Array = np.ndarray[Any, Any]


def load_model(dims: Mapping[str, int | tuple[int, int]] | None = None) -> gx.Model:
    """Return the trained net: ``image`` float32 [batch, 1, 8, 8] -> ``logits`` and ``probabilities`` [batch, 10]."""
    return gx.load(HERE / "models" / "digits.onnx", dims=dims)


def load_images(count: int) -> tuple[Array, Array]:
    """Return the last ``count`` pictures, which the net was not trained on, as [count, 1, 8, 8], and their digits."""
    with np.load(HERE / "data" / "digits.npz") as data:
        images, labels = data["images"][-count:], data["labels"][-count:]
    return images[:, np.newaxis].astype(np.float32), labels


def count_right(scores: Array, labels: Array) -> str:
    """Return how many digits were read right, as text."""
    return f"{int(np.sum(scores.argmax(axis=1) == labels))} of {len(labels)} digits read right"
