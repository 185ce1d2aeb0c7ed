"""Reference conversion of an image to a tensor."""

from __future__ import annotations

import numpy as np

import gpuexec as gx
from tests.model.small_models import Array

TRANSFORM = gx.ImageTransform(swizzle="BGR", mean=(0.25, 0.5, 0.75), std=(0.5, 2.0, 1.0))
IMAGE = np.random.default_rng(3).integers(0, 256, (5, 7, 3), dtype=np.uint8)


def expect(image: Array) -> Array:
    """Return what `TRANSFORM` makes of [h, w, 3], in double."""
    pixels = image[..., ::-1] / 255 - np.array([0.25, 0.5, 0.75])
    return np.asarray(np.moveaxis(pixels / np.array([0.5, 2.0, 1.0]), 2, 0)[None])


def assert_is(tensor: gx.Tensor, expected: Array) -> None:
    np.testing.assert_allclose(tensor.readback_and_clone(), expected, rtol=0, atol=1e-6)
