"""Image functions: `to_tensor` and `to_image`, on the device and into tensors that are there already."""

from __future__ import annotations

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.devices.backends import on
from tests.execution.images.foreign import ForeignArray
from tests.model.small_models import Array

IMAGE = np.random.default_rng(5).integers(0, 256, (6, 4, 4), dtype=np.uint8)


def as_tensor(pixels: Array) -> Array:
    return (np.moveaxis(pixels, -1, 0)[None] / 255).astype(np.float32)


@pytest.mark.feature("B54")
def test_image_goes_in_with_flip_scale_and_bias_and_comes_out(backend: Backend) -> None:
    transform = gx.ImageTransform(swizzle="RGB", origin="bottom_left", scale=1 / 64, mean=2.0)
    tensor = gx.to_tensor(IMAGE, transform, backend=backend)
    expected = np.moveaxis(IMAGE[::-1, :, :3], 2, 0)[None] / 64 - 2
    np.testing.assert_array_equal(tensor.readback_and_clone(), expected.astype(np.float32))
    np.testing.assert_array_equal(gx.to_image(tensor, transform).readback_and_clone(), IMAGE[..., :3])


@pytest.mark.feature("B54", "S59")
@on("simulator")
def test_image_and_tensor_stay_on_the_device(backend: Backend) -> None:
    out = gx.to_tensor(np.zeros_like(IMAGE), backend=backend)
    picture = ForeignArray(backend, IMAGE[:, ::-1, ::-1], is_held=True)
    made = gx.to_tensor(picture, out=out, stream=picture.stream)
    assert made is out and not made.is_done()  # nothing was waited for, so nothing crossed the host
    assert picture.gate is not None
    picture.gate.set()
    np.testing.assert_allclose(made.readback_and_clone(), as_tensor(IMAGE[:, ::-1, ::-1]), rtol=0, atol=1e-7)
    target = ForeignArray(backend, np.zeros(IMAGE.shape, np.uint8))
    gx.to_image(made, out=target, stream=target.stream)
    np.testing.assert_array_equal(target.read(), IMAGE[:, ::-1, ::-1])


@pytest.mark.feature("S59")
def test_tensor_that_is_there_is_written_again(backend: Backend) -> None:
    out = gx.to_tensor(np.zeros_like(IMAGE), backend=backend)
    for picture in (IMAGE, IMAGE[::-1]):
        assert gx.to_tensor(picture, out=out) is out
        np.testing.assert_allclose(out.readback_and_clone(), as_tensor(picture), rtol=0, atol=1e-7)


@pytest.mark.feature("S59")
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_layout_origin_swizzle_mask_and_size_are_the_transforms(backend: Backend, layout: str) -> None:
    transform = gx.ImageTransform(
        size=(3, 2), layout=layout, swizzle="BAG", mask={"A": 0.5}, origin="bottom_left", scale=1.0
    )
    made = gx.to_tensor(IMAGE, transform, backend=backend).readback_and_clone()
    halves = IMAGE[::-1, :, :3].astype(np.float32).reshape(3, 2, 2, 2, 3).mean(axis=(1, 3))
    expected = np.stack([halves[..., 2], np.full((3, 2), 0.5, np.float32), halves[..., 1]], axis=2)
    np.testing.assert_array_equal(made[0] if layout == "NHWC" else np.moveaxis(made[0], 0, 2), expected)


@pytest.mark.feature("S59")
def test_grey_is_broadcast_to_all_channels(backend: Backend) -> None:
    transform = gx.ImageTransform(swizzle="RGB", scale=1.0)
    made = gx.to_tensor(IMAGE[..., 0], transform, backend=backend).readback_and_clone()
    np.testing.assert_array_equal(made, np.stack([IMAGE[..., 0]] * 3)[None].astype(np.float32))
