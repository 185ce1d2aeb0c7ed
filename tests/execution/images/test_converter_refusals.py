"""Refused images, transforms and buffers: nothing is written before the error."""

from __future__ import annotations

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices import dlpack
from gpuexec.devices.backend import Backend
from gpuexec.execution.images.converter import ImageConverter
from gpuexec.ir.spec import TensorSpec
from tests.execution.images.expected import IMAGE, TRANSFORM, assert_is, expect
from tests.execution.images.foreign import ForeignArray
from tests.model.small_models import Array


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (np.zeros((4, 6, 3), np.int16), r"An image is .* of uint8, uint16, float32, got int16\[4,6,3\]"),
        (np.zeros(6, np.uint8), r"An image is \[h, w\], \[h, w, c\] or \[n, h, w, c\]"),
        (np.zeros((1, 1, 4, 6, 3), np.uint8), r"An image is \[h, w\]"),
        (np.zeros((4, 6, 3), "datetime64[s]"), "Element type .* is not supported"),
        (np.zeros((4, 6, 1), np.uint8), "asks for channel 'B' in swizzle, the image has 'X'"),
        (np.zeros((4, 6, 2), np.uint8), "has pixels='X', for 2 channels"),
    ],
    ids=["dtype", "rank 1", "rank 5", "no number", "channel", "channels"],
)
def test_image_that_does_not_fit_is_refused(converter: ImageConverter, image: Array, words: str) -> None:
    transform = gx.ImageTransform(swizzle="B", pixels="X")
    with pytest.raises(gx.InputError, match=words):
        converter.to_tensor(image, transform)
    assert not converter._recorded


def test_tensor_that_does_not_fit_is_refused(converter: ImageConverter) -> None:
    with pytest.raises(gx.InputError, match=r"three or four axes of float32, float16, got float32\[4,6\]"):
        converter.to_image(np.zeros((4, 6), np.float32))
    with pytest.raises(gx.InputError, match=r"got float64\[3,4,6\]"):
        converter.to_image(np.zeros((1, 3, 4, 6)))


@pytest.mark.parametrize("item", [None, "photo.png", b"photo", [[1, 2], [3]]], ids=str)
def test_what_is_no_image_is_refused_by_name(converter: ImageConverter, item: object) -> None:
    with pytest.raises(gx.InputError, match=f"a {type(item).__name__} can't be read as an image"):
        converter.to_tensor(item)


def test_what_is_no_transform_is_refused(converter: ImageConverter) -> None:
    for call in (converter.to_tensor, converter.to_image):
        with pytest.raises(gx.InputError, match=r"transform takes an ImageTransform, got \{'size': 3\}"):
            call(IMAGE[np.newaxis].astype(np.float32), {"size": 3})  # type: ignore[arg-type]


def test_array_of_a_gpu_is_refused_on_the_cpu(simulator: Backend) -> None:
    given = ForeignArray(simulator, IMAGE)
    with (
        ImageConverter(gx.BackendType.CPU) as converter,
        pytest.raises(gx.InputError, match="a ForeignArray lies on a GPU, expected on the host"),
    ):
        converter.to_tensor(given)


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (np.zeros((1, 3, 5, 6), np.float32), r"`out` is a ndarray, float32 of shape \(1, 3, 5, 6\); expected float32"),
        (np.zeros((1, 3, 5, 7), np.float16), r"float16 of shape \(1, 3, 5, 7\); expected float32\[1,3,5,7\]"),
        (np.broadcast_to(np.float32(0), (1, 3, 5, 7)), "read-only"),
        ([0.0], "`out` is a list"),
    ],
    ids=["shape", "dtype", "read-only", "list"],
)
def test_out_that_does_not_fit_is_refused(converter: ImageConverter, out: object, words: str) -> None:
    with pytest.raises(gx.InputError, match=words):
        converter.to_tensor(IMAGE, TRANSFORM, out)
    assert not converter._recorded
    assert_is(converter.to_tensor(IMAGE, TRANSFORM), expect(IMAGE))


def test_output_of_a_worker_is_not_written(backend: Backend, converter: ImageConverter) -> None:
    with gx.Worker(TRANSFORM.as_model(), backend=backend) as worker:
        worker.run(IMAGE)
        with pytest.raises(gx.InputError, match="expected a tensor of your own"):
            converter.to_tensor(IMAGE[::-1], TRANSFORM, worker.peek_output())
        assert_is(worker.peek_output(), expect(IMAGE))


def test_read_only_device_memory_is_not_written(simulator: Backend) -> None:
    out = ForeignArray(simulator, np.zeros((1, 3, 5, 7), np.float32), is_read_only=True)
    with ImageConverter(simulator) as converter, pytest.raises(gx.InputError, match="is read-only"):
        converter.to_tensor(IMAGE, TRANSFORM, out)


def test_failure_leaves_the_tensor_as_it_was(simulator: Backend) -> None:
    class Elsewhere:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (dlpack.CUDA, 1)

        def __dlpack__(self, *, stream: int, max_version: tuple[int, int] | None = None) -> object:
            return dlpack.give(1 << 20, TensorSpec((5, 7, 3), IMAGE.dtype), (dlpack.CUDA, 1), self, is_versioned=True)

    with ImageConverter(simulator) as converter:
        out = converter.to_tensor(IMAGE, TRANSFORM)
        with pytest.raises(gx.InputError, match="lies on GPU 1, the Worker runs on GPU 0"):
            converter.to_tensor(Elsewhere(), TRANSFORM, out)
        assert_is(out, expect(IMAGE))
        assert_is(converter.to_tensor(IMAGE[::-1], TRANSFORM, out), expect(IMAGE[::-1]))


def test_strides_of_parts_of_elements_are_refused(simulator: Backend) -> None:
    given = ForeignArray(simulator, np.zeros((4, 6, 4), np.uint16))
    given.__cuda_array_interface__["strides"] = (49, 8, 2)
    with ImageConverter(simulator) as converter, pytest.raises(gx.InputError, match="strides of whole elements"):
        converter.to_tensor(given)
