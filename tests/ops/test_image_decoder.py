"""ImageDecoder: files written by Pillow, decoded exactly."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

import gpuexec as gx
from gpuexec.ir.apply import compute_arrays, infer_specs
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.vision.image_decoder import ImageDecoder
from tests.model.objects import BACKENDS, parse
from tests.ops.objects import ObjectCase, check_case, tensor

Array = np.ndarray[Any, Any]
RANDOM = np.random.RandomState(5)
COLORS = RANDOM.randint(0, 256, (13, 9, 3)).astype(np.uint8)
GRAY = RANDOM.randint(0, 256, (4, 7)).astype(np.uint8)
SMOOTH = np.add.outer(np.arange(32), np.arange(24)).astype(np.uint8)[:, :, None] * np.array([1, 2, 3], np.uint8)
LOSSLESS: dict[str, dict[str, Any]] = {
    "PNG": {},
    "BMP": {},
    "TIFF": {},
    "PPM": {},
    "WEBP": {"lossless": True},
    "JPEG2000": {"irreversible": False},
}


def encode(image: Image.Image, kind: str, **options: Any) -> Array:
    """Return a file's bytes."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return np.frombuffer(file.getvalue(), np.uint8)


def decode(encoded: Array, pixel_format: str = "RGB") -> Array:
    """Return the pixels, and check that the shape rule says what comes out."""
    operator = build("ImageDecoder", {"pixel_format": pixel_format})
    (y,) = compute_arrays(operator, [encoded])
    (spec,) = infer_specs(operator, [TensorSpec.of(encoded)])
    assert y is not None and (spec.shape, spec.dtype) == (y.shape, y.dtype) == (y.shape, np.uint8)
    return y


@pytest.mark.parametrize("kind", LOSSLESS)
def test_what_is_stored_without_loss_comes_out_the_same(kind: str) -> None:
    encoded = encode(Image.fromarray(COLORS), kind, **LOSSLESS[kind])
    np.testing.assert_array_equal(decode(encoded), COLORS)
    np.testing.assert_array_equal(decode(encoded, "BGR"), COLORS[:, :, ::-1])
    gray = np.asarray(Image.fromarray(COLORS).convert("L"))[:, :, None]
    np.testing.assert_array_equal(decode(encoded, "Grayscale"), gray)


@pytest.mark.parametrize("pixel_format", ["RGB", "BGR", "Grayscale"])
def test_jpeg_agrees_with_the_evaluator(pixel_format: str) -> None:
    encoded = encode(Image.fromarray(SMOOTH), "JPEG", quality=80)
    bytes_type = tensor(TensorProto.UINT8)
    attributes = {"pixel_format": pixel_format}
    check_case(ObjectCase("jpeg", "ImageDecoder", (encoded,), (bytes_type,), (bytes_type,), attributes))
    assert np.abs(decode(encoded).astype(int) - SMOOTH).mean() < 8


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (Image.fromarray(GRAY), np.repeat(GRAY[:, :, None], 3, 2)),
        (Image.fromarray(COLORS).convert("P", palette=Image.Palette.ADAPTIVE), None),
        (Image.fromarray(np.dstack([COLORS, COLORS[:, :, 0]])), COLORS),
        (Image.fromarray(GRAY > 100), np.repeat(np.where(GRAY > 100, 255, 0).astype(np.uint8)[:, :, None], 3, 2)),
        (Image.fromarray(GRAY.astype(np.uint16) * 256 + 77), np.repeat(GRAY[:, :, None], 3, 2)),
    ],
    ids=["gray", "palette", "transparent", "bits", "gray_16"],
)
def test_images_of_other_kinds_have_three_channels(image: Image.Image, expected: Array | None) -> None:
    wanted = np.asarray(image.convert("RGB")) if expected is None else expected
    np.testing.assert_array_equal(decode(encode(image, "PNG")), wanted)


@pytest.mark.parametrize("kind", ["PNG", "PPM", "TIFF", "JPEG2000"])
def test_of_16_bits_the_upper_ones_count_in_every_kind_of_file(kind: str) -> None:
    encoded = encode(Image.fromarray(GRAY.astype(np.uint16) * 256 + 77), kind)
    np.testing.assert_array_equal(decode(encoded), np.repeat(GRAY[:, :, None], 3, 2))
    np.testing.assert_array_equal(decode(encoded, "Grayscale"), GRAY[:, :, None])


def test_of_several_images_the_first_is_taken_as_stored() -> None:
    first, second = Image.fromarray(COLORS), Image.fromarray(COLORS[::-1])
    encoded = encode(first, "TIFF", save_all=True, append_images=[second])
    np.testing.assert_array_equal(decode(encoded), COLORS)
    exif = Image.Exif()
    exif[0x0112] = 6  # held sideways
    np.testing.assert_array_equal(decode(encode(first, "PNG", exif=exif)), COLORS)


@pytest.mark.parametrize("pixel_format", ["RGB", "Grayscale"])
def test_what_is_no_image_gives_no_pixels(pixel_format: str) -> None:
    whole = encode(Image.fromarray(COLORS), "PNG")
    other = encode(Image.fromarray(GRAY), "GIF")  # a kind ONNX does not have
    for broken in (whole[:40], whole[:-30], np.zeros(0, np.uint8), np.arange(50, dtype=np.uint8), other):
        assert decode(broken, pixel_format).shape == (0, 0, 3 if pixel_format == "RGB" else 1)


def test_more_pixels_than_are_meant_well_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(gx.InputError, match=r"ImageDecoder: Image size \(117 pixels\) exceeds limit"):
        decode(encode(Image.fromarray(COLORS), "PNG"))


def test_without_pillow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = encode(Image.fromarray(COLORS), "PNG")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(gx.UnsupportedError, match=r"pip install 'gpuexec\[images\]'"):
        compute_arrays(build("ImageDecoder", {}), [encoded])


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (TensorSpec((3,), np.dtype(np.int8)), r"input of type uint8, got int8\[3\]"),
        (TensorSpec((3, 1), np.dtype(np.uint8)), r"uint8\[count\], got uint8\[3,1\]"),
    ],
    ids=str,
)
def test_what_are_no_bytes_is_refused(spec: TensorSpec, words: str) -> None:
    with pytest.raises(gx.InputError, match=words):
        infer_specs(build("ImageDecoder", {}), [spec])


def test_attributes_are_those_of_onnx() -> None:
    made: Any = build("ImageDecoder", {})
    assert set(onnx.defs.get_schema("ImageDecoder").attributes) == {"pixel_format"} and made.pixel_format == "RGB"
    with pytest.raises(gx.InputError, match="pixel_format expects RGB, BGR, Grayscale, got 'rgb'"):
        build("ImageDecoder", {"pixel_format": "rgb"})


@pytest.mark.parametrize("backend", BACKENDS)
def test_images_are_host_calls_and_no_plan_depends_on_them(backend: gx.BackendType) -> None:
    nodes = [helper.make_node("ImageDecoder", ["x"], ["i"]), helper.make_node("Cast", ["i"], ["y"], to=1)]
    given = helper.make_tensor_value_info("x", TensorProto.UINT8, ["n"])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["h", "w", 3])
    graph = helper.make_graph(nodes, "images", [given], [made])
    model = gx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]))
    with gx.Worker(model, backend=backend) as worker:
        plans = []
        for row in range(4):
            pixels = np.roll(COLORS, row, 0)
            np.testing.assert_array_equal(
                worker.run(encode(Image.fromarray(pixels), "PNG"))[0], pixels.astype(np.float32)
            )
            plans.append(worker.report().plans)
        (call,) = worker.report().host_calls
    assert (call.operator, call.why, call.times) == ("ImageDecoder", "images are decoded by Pillow", 4)
    assert plans[-1] == plans[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_decodes_once(backend: gx.BackendType, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded, decode_image = list[Array](), ImageDecoder._decode

    def count(self: ImageDecoder, encoded: Array) -> Array:
        decoded.append(encoded)
        return decode_image(self, encoded)

    monkeypatch.setattr(ImageDecoder, "_decode", count)
    model = gx.load(parse("(uint8[n] e) => (float[h, w, c] y) { i = ImageDecoder (e) y = Cast <to = 1> (i) }", 20))
    with gx.Worker(model, backend=backend) as worker:
        y = worker.run(encode(Image.fromarray(COLORS), "PNG"))[0]
        assert len(decoded) == 1 and (y == COLORS).all()
