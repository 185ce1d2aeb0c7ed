"""ImageToTensor and TensorToImage: every pair of types, layouts, channels, both origins, resized or not."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.vision.image import MAX_CHANNELS, NUMBERS, PIXELS, ImageToTensor, TensorToImage
from tests.ops.harness import Case, run_case

Array = np.ndarray[Any, Any]
SIZES = {"enlarged": (10, 14), "shrunk": (3, 2), "mixed": (2, 13)}


def make_image(*shape: int, dtype: Any = np.uint8) -> Array:
    """Return reproducible pixels over the whole range of their type."""
    numbers = np.random.default_rng(7).random(shape)
    kind = np.dtype(dtype)
    return (numbers * (np.iinfo(kind).max + 1 if kind.kind == "u" else 1)).astype(kind)


def resize(x: Array, size: tuple[int, int], antialias: int) -> Array:
    """Return [n, h, w, c] in double at another size, by onnx.reference."""
    if size == x.shape[1:3]:
        return x.astype(np.float64)
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="linear", antialias=antialias, axes=[1, 2])
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.DOUBLE, None),
        helper.make_tensor_value_info("sizes", TensorProto.INT64, None),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)]
    model = helper.make_model(
        helper.make_graph([node], "resize", inputs, outputs), opset_imports=[helper.make_opsetid("", 19)], ir_version=10
    )
    feeds = {"x": x.astype(np.float64), "sizes": np.array(size, np.int64)}
    (y,) = ReferenceEvaluator(model).run(None, feeds)
    return np.asarray(y)


def expect(op: ImageToTensor | TensorToImage, x: Array) -> Array:
    """Return what the operator is to give, worked out in double but for the last step."""
    is_image = isinstance(op, ImageToTensor)
    pixels = x.reshape(1, *x.shape, 1) if x.ndim == 2 else x[None] if x.ndim == 3 else x
    if not is_image and op.layout == "NCHW":
        pixels = np.moveaxis(pixels, 1, 3)
    pixels = resize(pixels, op.size or pixels.shape[1:3], op.antialias)  # type: ignore[arg-type]
    if op.origin == "bottom_left":
        pixels = pixels[:, ::-1]
    columns = []
    for index, source in enumerate(op.channels or range(pixels.shape[3])):
        scale, bias, fill = ((n * MAX_CHANNELS)[index] for n in (op.scale, op.bias, op.fill))
        columns.append(np.full(pixels.shape[:3], fill) if source < 0 else pixels[..., source] * scale + bias)
    dtype, y = dtype_row(op.to).numpy, np.stack(columns, axis=3)
    if dtype.kind == "u":
        y = np.clip(np.rint(y), 0, np.iinfo(dtype).max)
    if is_image:
        return (np.moveaxis(y, 3, 1) if op.layout == "NCHW" else y).astype(dtype)
    return (y if x.ndim == 4 else y[0]).astype(dtype)


def check(checks: str, op: ImageToTensor | TensorToImage, x: Array, name: str) -> None:
    """Run a case whose arithmetic is exact in float, so that any order gives the same bits."""
    attributes = {each.name: getattr(op, each.name) for each in fields(op)}
    run_case(Case(name, op.name, (x,), attributes, oracle="expected", expected=(expect(op, x),)), checks)


# Powers of two, and sizes whose weights are: float and double agree.
SCALED = {"scale": (0.5, 2.0, 0.25), "bias": (-1.0, 0.5, 3.0)}


@pytest.mark.parametrize("target", NUMBERS, ids=str)
@pytest.mark.parametrize("source", PIXELS, ids=str)
def test_image_becomes_tensor_of_every_type(checks: str, source: np.dtype[Any], target: np.dtype[Any]) -> None:
    scale = (2.0**-8,) if source == np.uint16 else (0.5,)
    image = make_image(4, 6, 3, dtype=source)
    check(checks, ImageToTensor(scale=scale, to=dtype_row(target).code), image, f"{source}_{target}")


@pytest.mark.parametrize("target", PIXELS, ids=str)
@pytest.mark.parametrize("source", NUMBERS, ids=str)
def test_tensor_becomes_image_of_every_type(checks: str, source: np.dtype[Any], target: np.dtype[Any]) -> None:
    tensor = np.linspace(-300, 70000, 2 * 3 * 4 * 5).clip(max=np.finfo(source).max).reshape(2, 3, 4, 5).astype(source)
    check(checks, TensorToImage(bias=(0.5,), to=dtype_row(target).code), tensor, f"{source}_{target}")


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("origin", ["top_left", "bottom_left"])
@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 3), (2, 4, 6, 3), (1, 4, 6, 1)], ids=str)
def test_image_of_every_rank_goes_into_every_layout(
    checks: str, shape: tuple[int, ...], origin: str, layout: str
) -> None:
    check(checks, ImageToTensor(layout=layout, origin=origin), make_image(*shape), "case")


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("origin", ["top_left", "bottom_left"])
@pytest.mark.parametrize("shape", [(3, 4, 6), (2, 3, 4, 6), (1, 1, 4, 6)], ids=str)
def test_tensor_of_every_layout_becomes_image(checks: str, shape: tuple[int, ...], origin: str, layout: str) -> None:
    check(checks, TensorToImage(layout=layout, origin=origin), make_image(*shape, dtype=np.float32) * 255, "case")


@pytest.mark.parametrize(
    "channels", [(2, 1, 0), (0, 0, 0), (1,), (0, -1, 2), (3, 2, 1, 0), tuple(range(4)) * 4], ids=str
)
def test_channels_are_picked_repeated_and_filled(checks: str, channels: tuple[int, ...]) -> None:
    check(checks, ImageToTensor(channels=channels, fill=(0.25,)), make_image(2, 5, 4), "image")
    check(
        checks, TensorToImage(channels=channels, fill=(300.0,)), make_image(4, 3, 2, dtype=np.float32) * 255, "tensor"
    )


def test_each_channel_has_its_scale(checks: str) -> None:
    fills = {"channels": (2, -1, 0), "fill": (1.0, -2.0, 3.0)}
    check(checks, ImageToTensor(**SCALED, **fills), make_image(2, 5, 3), "image")  # type: ignore[arg-type]
    check(checks, TensorToImage(**SCALED, **fills), np.float32(9) * np.ones((1, 3, 2, 5), np.float32), "tensor")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "antialias"), [((8, 12), 0), ((8, 12), 1), ((2, 3), 0), ((4, 12), 0), ((4, 12), 1), ((2, 6), 0)], ids=str
)
def test_image_is_resized_by_a_factor_of_two(checks: str, size: tuple[int, int], antialias: int) -> None:
    op = ImageToTensor(size, (2, 1, 0), origin="bottom_left", antialias=antialias)
    check(checks, op, make_image(2, 4, 6, 3), f"{size}")


@pytest.mark.parametrize("antialias", [0, 1])
@pytest.mark.parametrize("name", SIZES)
def test_resizing_is_that_of_the_reference(name: str, antialias: int) -> None:
    op = ImageToTensor(SIZES[name], scale=(1 / 255,), bias=(-0.5,), origin="bottom_left", antialias=antialias)
    image = make_image(2, 5, 7, 3)
    np.testing.assert_allclose(op.compute(image)[0], expect(op, image), rtol=0, atol=3e-7)
    back = TensorToImage(SIZES[name], scale=(255.0,), antialias=antialias)
    tensor = make_image(2, 3, 5, 7, dtype=np.float32)
    difference = np.abs(back.compute(tensor)[0].astype(int) - expect(back, tensor).astype(int))
    assert difference.max() <= 1 and np.mean(difference) < 0.01


@pytest.mark.parametrize("antialias", [0, 1])
@pytest.mark.parametrize("name", SIZES)
def test_kernel_resizes_to_the_same_bits(checks: str, name: str, antialias: int) -> None:
    """Compares the kernel with ``compute``, which other tests compare with the reference."""
    image, tensor = make_image(2, 5, 7, 3), make_image(2, 3, 5, 7, dtype=np.float32)
    to_tensor = ImageToTensor(SIZES[name], (1, 0, 2), (1 / 255,), (-0.1,), origin="bottom_left", antialias=antialias)
    to_image = TensorToImage(SIZES[name], scale=(255.0,), antialias=antialias)
    for op, x in ((to_tensor, image), (to_image, tensor)):
        attributes = {each.name: getattr(op, each.name) for each in fields(op)}
        run_case(Case(name, op.name, (x,), attributes, oracle="expected", expected=op.compute(x)), checks)


@pytest.mark.parametrize(
    "view",
    [
        np.s_[:, :, ::-1],
        np.s_[::-1, :, :3],
        np.s_[:, ::-1, 1:],
        np.s_[::2, 1::3, ::2],
        np.s_[:, :, 1],
    ],
    ids=["bgr", "flipped", "mirrored", "subset", "plane"],
)
def test_strided_image_is_read_where_it_lies(checks: str, view: Any) -> None:
    check(checks, ImageToTensor(), make_image(5, 7, 4)[view], "case")


def test_rounding_is_to_even_and_saturates(checks: str) -> None:
    numbers = [0.5, 1.5, 2.5, -0.5, -7, 254.5, 255.4, 255.6, 1e30, np.inf, -np.inf, np.nan]
    tensor = np.array(numbers, np.float32).reshape(1, 2, 6)
    expected = np.array([0, 2, 2, 0, 0, 254, 255, 255, 255, 255, 0, 0], np.uint8).reshape(2, 6, 1)
    run_case(Case("case", "gpuexec.TensorToImage", (tensor,), oracle="expected", expected=(expected,)), checks)


@pytest.mark.parametrize("shape", [(0, 4, 6, 3), (2, 0, 6, 3), (4, 6, 0)], ids=str)
def test_nothing_becomes_nothing(checks: str, shape: tuple[int, ...]) -> None:
    image = np.zeros(shape, np.uint8)
    batch, (height, width, channels) = shape[0] if len(shape) == 4 else 1, shape[-3:]
    expected = np.zeros((batch, channels, height, width), np.float32)
    run_case(Case("case", "gpuexec.ImageToTensor", (image,), oracle="expected", expected=(expected,)), checks)


@pytest.mark.parametrize(
    ("attributes", "spec", "words"),
    [
        ({}, "int8[4,6,3]", "expects image of type uint8, uint16, float32, got int8"),
        ({}, "uint8[6]", r"expects an image \[h, w\], \[h, w, c\] or \[n, h, w, c\], got uint8\[6\]"),
        ({}, "uint8[1,1,4,6,3]", r"expects an image \[h, w\]"),
        ({"channels": (0, 3)}, "uint8[4,6,3]", "takes channel 3, got uint8.* has 3 channels"),
        ({"channels": (-2,)}, "uint8[4,6,3]", "takes channel -2"),
        ({}, "uint8[4,6,17]", "at most 16 channels, got 17"),
        ({"size": (4,)}, "uint8[4,6,3]", r"a size of height and width, 1 or more, got \[4\]"),
        ({"size": (0, 4)}, "uint8[4,6,3]", "a size of height and width"),
        ({"size": (2, 4)}, "uint8[0,6,3]", r"expects pixels to resize to \[2, 4\]"),
        ({"scale": (1.0, 2.0)}, "uint8[4,6,3]", "one scale, or one for each of 3 channels"),
        ({"bias": ()}, "uint8[4,6,3]", "one bias, or one for each of 3 channels"),
        ({"layout": "CHW"}, "uint8[4,6,3]", "layout among NCHW, NHWC .* got 'CHW'"),
        ({"origin": "top"}, "uint8[4,6,3]", "origin among top_left, bottom_left, got .*'top'"),
        ({"to": 2}, "uint8[4,6,3]", "gives float32, float16, got to=uint8"),
    ],
    ids=str,
)
def test_image_that_does_not_fit_is_refused(attributes: dict[str, Any], spec: str, words: str) -> None:
    dtype, _, dims = spec.rstrip("]").partition("[")
    given = TensorSpec(tuple(map(int, dims.split(","))), np.dtype(dtype))
    with pytest.raises(InputError, match=words):
        build("gpuexec.ImageToTensor", attributes).infer(given)


@pytest.mark.parametrize(
    ("attributes", "shape", "dtype", "words"),
    [
        ({}, (3, 4, 6), "uint8", "expects tensor of type float32, float16, got uint8"),
        ({}, (4, 6), "float32", "three or four axes"),
        ({"layout": "HWC"}, (3, 4, 6), "float32", "layout among NCHW, NHWC"),
        ({"to": 10}, (3, 4, 6), "float32", "gives uint8, uint16, float32, got to=float16"),
    ],
    ids=str,
)
def test_tensor_that_does_not_fit_is_refused(
    attributes: dict[str, Any], shape: tuple[int, ...], dtype: str, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        build("gpuexec.TensorToImage", attributes).infer(TensorSpec(shape, np.dtype(dtype)))
