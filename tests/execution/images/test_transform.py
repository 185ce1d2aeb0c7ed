"""ImageTransform: channel mapping, refusals, and models of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.ir.spec import TensorSpec
from tests.model.small_models import Array


def image_of(channels: int, dtype: str = "uint8") -> TensorSpec:
    return TensorSpec((4, 6, channels), np.dtype(dtype))


def tensor_of(channels: int) -> TensorSpec:
    return TensorSpec((1, channels, 4, 6), np.dtype(np.float32))


@pytest.mark.parametrize(
    ("pixels", "swizzle", "count", "channels"),
    [
        (None, None, 3, (0, 1, 2)),
        (None, "BGR", 3, (2, 1, 0)),
        ("BGR", "RGB", 3, (2, 1, 0)),
        ("BGR", None, 3, (0, 1, 2)),
        (None, "RGB", 4, (0, 1, 2)),
        ("ARGB", "RGB", 4, (1, 2, 3)),
        (None, "RGB", 1, (0, 0, 0)),
        (None, "RGBA", 1, (0, 0, 0, -1)),
        (None, "RGB", 2, (0, 0, 0)),
        (None, "A", 2, (1,)),
        (None, "GG", 3, (1, 1)),
        (None, "RGBA", 3, (0, 1, 2, -1)),
        (None, None, 7, tuple(range(7))),
        ("xyzuv", "vx", 5, (4, 0)),
    ],
)
def test_letters_say_which_channels_the_tensor_has(
    pixels: str | None, swizzle: str | None, count: int, channels: tuple[int, ...]
) -> None:
    transform = gx.ImageTransform(pixels=pixels, swizzle=swizzle)
    assert transform._to_tensor_operator(image_of(count)).channels == channels


@pytest.mark.parametrize(
    ("pixels", "swizzle", "count", "channels"),
    [
        (None, None, 3, (0, 1, 2)),
        (None, "BGR", 3, (2, 1, 0)),
        ("BGR", "RGB", 3, (2, 1, 0)),
        ("BGR", None, 3, (0, 1, 2)),
        ("RGBA", None, 3, (0, 1, 2, -1)),
        ("RGBA", "BGR", 3, (2, 1, 0, -1)),
        ("RGB", "L", 1, (0, 0, 0)),
        (None, "G", 1, (0,)),
        (None, "ABGR", 4, (3, 2, 1, 0)),
    ],
)
def test_letters_say_which_channels_the_image_has(
    pixels: str | None, swizzle: str | None, count: int, channels: tuple[int, ...]
) -> None:
    transform = gx.ImageTransform(pixels=pixels, swizzle=swizzle)
    assert transform._to_image_operator(tensor_of(count)).channels == channels


def test_channel_that_is_not_there_is_opaque() -> None:
    transform = gx.ImageTransform(swizzle="RGBA", mean=0.5, std=0.25)
    assert transform._to_tensor_operator(image_of(3)).fill == (0.0, 0.0, 0.0, 2.0)
    assert gx.ImageTransform(pixels="RGBA")._to_image_operator(tensor_of(3)).fill[3] == 255.0
    deep = gx.ImageTransform(pixels="RGBA", pixel_dtype="uint16")
    assert deep._to_image_operator(tensor_of(3)).fill[3] == 65535.0


def test_masked_channel_holds_its_value() -> None:
    transform = gx.ImageTransform(mask={"G": -3.0})
    for op in (transform._to_tensor_operator(image_of(3)), transform._to_image_operator(tensor_of(3))):
        assert op.channels == (0, -1, 2) and op.fill[1] == -3.0
    with pytest.raises(gx.InputError, match="masks channel 'A', the result has 'RGB'"):
        gx.ImageTransform(mask={"A": 0})._to_tensor_operator(image_of(3))


@pytest.mark.parametrize(("dtype", "largest"), [("uint8", 255.0), ("uint16", 65535.0), ("float32", 1.0)])
def test_scale_takes_the_largest_pixel_to_one(dtype: str, largest: float) -> None:
    assert gx.ImageTransform()._to_tensor_operator(image_of(1, dtype)).scale == (1 / largest,)
    assert gx.ImageTransform(pixel_dtype=dtype)._to_image_operator(tensor_of(1)).scale == (1 / (1 / largest),)


def test_mean_and_std_are_the_tensors() -> None:
    transform = gx.ImageTransform(swizzle="BGR", scale=0.5, mean=(1, 2, 3), std=(1, 2, 4))
    op = transform._to_tensor_operator(image_of(3))
    assert (op.scale, op.bias) == ((0.5, 0.25, 0.125), (-1.0, -1.0, -0.75))
    back = transform._to_image_operator(tensor_of(3))
    assert (back.channels, back.scale, back.bias) == ((2, 1, 0), (8.0, 4.0, 2.0), (6.0, 4.0, 2.0))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layout": "CHW"}, "layout among NCHW, NHWC, got 'CHW'"),
        ({"origin": "left"}, "origin among top_left, bottom_left, got 'left'"),
        ({"dtype": "float64"}, "dtype among float32, float16, got float64"),
        ({"dtype": "colour"}, "'colour' is not supported"),
        ({"pixel_dtype": "int8"}, "pixel_dtype among uint8, uint16, float32, got int8"),
        ({"swizzle": ""}, "swizzle as letters"),
        ({"pixels": 3}, "pixels as letters"),
        ({"pixels": "RGR"}, "name each channel once, got 'RGR'"),
        ({"size": 224}, r"size as \(height, width\)"),
        ({"size": (0, 4)}, r"got \(0, 4\)"),
        ({"size": (4.5, 4)}, r"got \(4.5, 4\)"),
        ({"std": (1, 0, 1)}, "divides by std"),
        ({"mean": [[1.0]]}, "mean as one finite number"),
        ({"mean": float("nan")}, "mean as one finite number"),
        ({"size": (True, 4)}, r"got \(True, 4\)"),
        ({"mean": "none"}, "mean as one finite number, or one per channel, got 'none'"),
        ({"scale": 0}, "scale other than 0"),
        ({"scale": (1, 2, 3)}, r"scale as one finite number, got \(1, 2, 3\)"),
        ({"antialias": "no"}, "antialias as True or False, got 'no'"),
        ({"mask": 3}, "mask as values by letter, such as .* got 3"),
        ({"mask": {"A": "full"}}, r"mask\['A'\] as one finite number, got 'full'"),
        ({"mask": {"A": float("inf")}}, r"mask\['A'\] as one finite number, got inf"),
        ({"mask": {0: 1.0}}, "mask as values by letter, got 0"),
    ],
    ids=str,
)
def test_bad_option_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(gx.InputError, match=words):
        gx.ImageTransform(**options)


def test_numbers_per_channel_must_be_as_many() -> None:
    transform = gx.ImageTransform(mean=(1, 2, 3))
    with pytest.raises(gx.InputError, match="3 numbers as mean, for a tensor of 4 channels"):
        transform._to_tensor_operator(image_of(4))
    with pytest.raises(gx.InputError, match="has swizzle='RGB', for 4 channels"):
        gx.ImageTransform(swizzle="RGB")._to_image_operator(tensor_of(4))


def test_equal_transforms_are_equal() -> None:
    one = gx.ImageTransform(size=[4, 6], mean=[0.5], mask={"R": 1}, dtype=np.float16)  # type: ignore[arg-type]
    other = gx.ImageTransform(size=(4, 6), mean=0.5, mask=(("R", 1.0),), dtype="float16")
    assert one == other and hash(one) == hash(other)


@pytest.mark.parametrize(
    ("transform", "dims", "inverse", "made"),
    [
        ({}, None, False, (1, 3, "height", "width")),
        ({"layout": "NHWC"}, ("h", "w", 4), False, (1, "h", "w", 4)),
        ({"size": (8, 9)}, ("n", "h", "w", 3), False, ("n", 3, 8, 9)),
        ({}, ("h", 6), False, (1, 1, "h", 6)),
        ({}, None, True, ("batch", "height", "width", 3)),
        ({"layout": "NHWC"}, None, True, ("batch", "height", "width", 3)),
        ({"size": (8, 9)}, (4, "h", "w"), True, (8, 9, 4)),
    ],
)
def test_model_declares_what_is_known(
    transform: dict[str, Any], dims: tuple[Any, ...] | None, inverse: bool, made: tuple[Any, ...]
) -> None:
    model = gx.ImageTransform(**transform).as_model(dims, inverse=inverse)
    assert model.outputs[0].spec.dims == made


def test_model_runs_at_every_size(backend_type: gx.BackendType) -> None:
    transform = gx.ImageTransform(size=(6, 4), origin="bottom_left", antialias=True)
    with gx.Worker(transform.as_model(), backend=backend_type) as worker:
        for height, width in ((3, 5), (6, 4), (17, 9)):
            image: Array = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
            expected = transform._to_tensor_operator(TensorSpec.of(image)).compute(image)[0]
            np.testing.assert_array_equal(worker.run(image)[0], expected)


def test_model_needs_the_number_of_channels() -> None:
    with pytest.raises(gx.InputError, match="number of channels among its dims, got"):
        gx.ImageTransform().as_model(("h", "w", "c"))
    with pytest.raises(gx.InputError, match="An image is"):
        gx.ImageTransform().as_model(("h",))
    with pytest.raises(gx.InputError, match=r"got int8\[1,1,3\]"):
        gx.ImageTransform().as_model(dtype="int8")


@pytest.fixture(params=[gx.BackendType.CPU, gx.BackendType.SIMULATOR], ids=lambda each: each.value)
def backend_type(request: pytest.FixtureRequest) -> Any:
    return request.param
