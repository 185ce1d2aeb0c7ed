"""Image conversion to tensors and back: byte order, strides, and lifetimes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices import dlpack
from gpuexec.devices.backend import Backend
from gpuexec.execution.images import converter as converter_module
from gpuexec.execution.images.converter import ImageConverter
from gpuexec.ir.spec import TensorSpec
from tests.execution.images.expected import IMAGE, TRANSFORM, assert_is, expect
from tests.execution.images.foreign import ForeignArray


def test_image_comes_back_from_its_tensor(converter: ImageConverter) -> None:
    tensor = converter.to_tensor(IMAGE, TRANSFORM)
    assert_is(tensor, expect(IMAGE))
    image = converter.to_image(tensor, TRANSFORM)
    assert image.dtype == np.uint8
    np.testing.assert_array_equal(image.readback_and_clone(), IMAGE)


def test_batch_comes_back_as_batch_and_single_one_as_image(converter: ImageConverter) -> None:
    batch = np.stack([IMAGE, IMAGE[::-1]])
    tensor = converter.to_tensor(batch, TRANSFORM)
    assert tensor.shape == (2, 3, 5, 7)
    np.testing.assert_array_equal(converter.to_image(tensor, TRANSFORM).readback_and_clone(), batch)
    single = converter.to_tensor(batch[:1], TRANSFORM)
    assert converter.to_image(single, TRANSFORM).shape == (5, 7, 3)
    out = np.zeros((1, 5, 7, 3), np.uint8)
    converter.to_image(single, TRANSFORM, out)
    np.testing.assert_array_equal(out, batch[:1])


def test_tensor_given_as_array_becomes_image(converter: ImageConverter) -> None:
    transform = gx.ImageTransform(layout="NHWC", pixel_dtype="uint16", dtype="float16")
    tensor = np.linspace(0, 1, 24).reshape(1, 2, 4, 3).astype(np.float16)
    made = converter.to_image(tensor, transform).readback_and_clone()
    np.testing.assert_array_equal(made, np.rint(tensor[0].astype(np.float64) * 65535).astype(np.uint16))


@pytest.mark.parametrize(
    "view",
    [np.s_[:, :, ::-1], np.s_[::-1], np.s_[:, 1:5], np.s_[::2, ::-3, :2], np.s_[:, :, 1], np.s_[2:3]],
    ids=["bgr", "flipped", "padded rows", "coarse", "plane", "row"],
)
def test_host_image_of_any_strides_is_taken(converter: ImageConverter, view: Any) -> None:
    image, transform = IMAGE[view], gx.ImageTransform(scale=1.0)
    made = converter.to_tensor(image, transform).readback_and_clone()
    expected = image[None, None] if image.ndim == 2 else np.moveaxis(image, 2, 0)[None]
    np.testing.assert_array_equal(made, expected.astype(np.float32))


@pytest.mark.parametrize("order", "<>")
def test_host_image_in_either_order_of_bytes_is_taken(converter: ImageConverter, order: str) -> None:
    image = (IMAGE.astype(np.uint16) * 257).astype(f"{order}u2")
    np.testing.assert_array_equal(
        converter.to_tensor(image).readback_and_clone(),
        converter.to_tensor(image.astype(np.uint16)).readback_and_clone(),
    )


def test_tensor_feeds_a_worker_on_its_device(backend: Backend, converter: ImageConverter) -> None:
    model = TRANSFORM.as_model(("batch", 3, "h", "w"), inverse=True)
    with gx.Worker(model, backend=backend) as worker:
        worker.schedule(converter.to_tensor(IMAGE, TRANSFORM))
        np.testing.assert_array_equal(worker.peek_output().readback_and_clone()[0], IMAGE)
        # And a Worker's output becomes an image.
        back = converter.to_tensor(np.zeros_like(IMAGE), TRANSFORM)
        made = converter.to_tensor(worker.peek_output(), TRANSFORM, out=back)
        assert made is back
        assert_is(made, expect(IMAGE))


@pytest.mark.parametrize(
    "view",
    [np.s_[:, :, ::-1], np.s_[::-1], np.s_[:, 1:5], np.s_[::2, ::-3, :2], np.s_[:, :, 1], np.s_[2:3, ::-1]],
    ids=["bgr", "flipped", "padded rows", "coarse", "plane", "row"],
)
def test_device_image_of_any_strides_is_read_where_it_lies(simulator: Backend, view: Any) -> None:
    given = ForeignArray(simulator, IMAGE[view])
    with ImageConverter(simulator) as converter:
        made = converter.to_tensor(given, gx.ImageTransform(scale=1.0))
        expected = IMAGE[view][None, None] if IMAGE[view].ndim == 2 else np.moveaxis(IMAGE[view], 2, 0)[None]
        np.testing.assert_array_equal(made.readback_and_clone(), expected.astype(np.float32))
        # One launch, and no copy before it.
        ((_, replay, _),) = converter._recorded.values()
        assert len(replay._recorded.commands) == 1


def test_views_of_the_same_bytes_are_distinguished(simulator: Backend) -> None:
    with ImageConverter(simulator) as converter:
        for view in (np.s_[::-1], np.s_[:, ::-1], np.s_[:, :, ::-1], np.s_[::-1, ::-1]):
            made = converter.to_tensor(ForeignArray(simulator, IMAGE[view]), TRANSFORM)
            assert_is(made, expect(IMAGE[view]))


def test_strided_device_array_by_dlpack_is_read_where_it_lies(
    simulator: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = ForeignArray(simulator, IMAGE)

    class Flipped:
        """The same bytes, rows back to front, by DLPack alone."""

        def __dlpack_device__(self) -> tuple[int, int]:
            return (dlpack.CUDA, 0)

        def __dlpack__(self, *, stream: int, max_version: tuple[int, int] | None = None) -> object:
            event = simulator.device.create_event()
            foreign.stream.record(event)
            simulator.device.external_stream(stream).wait(event)
            monkeypatch.setattr(dlpack, "dense_strides", lambda _: (-21, 3, 1))
            last = foreign.memory.address + 4 * 21
            capsule = dlpack.give(last, TensorSpec((5, 7, 3), IMAGE.dtype), (dlpack.CUDA, 0), self, is_versioned=True)
            monkeypatch.undo()
            return capsule

    with ImageConverter(simulator) as converter:
        made = converter.to_tensor(Flipped(), gx.ImageTransform(scale=1.0)).readback_and_clone()
    np.testing.assert_array_equal(made, np.moveaxis(IMAGE[::-1], 2, 0)[None].astype(np.float32))


def test_strided_tensor_on_a_device_becomes_image(simulator: Backend) -> None:
    tensor = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    given = ForeignArray(simulator, tensor[1:, ::-1, :, 1:])
    with ImageConverter(simulator) as converter:
        made = converter.to_image(given, gx.ImageTransform(scale=1.0)).readback_and_clone()
    np.testing.assert_array_equal(made, np.moveaxis(tensor[1, ::-1, :, 1:], 0, 2).astype(np.uint8))


def test_only_the_last_layouts_stay_recorded(converter: ImageConverter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converter_module, "MAX_RECORDED", 2)
    transform, made = gx.ImageTransform(scale=1.0), []
    for size in (1, 2, 3, 2, 4):
        made.append(converter.to_tensor(IMAGE[:size], transform))
        made[-1].readback_and_clone()  # what is under way stays
    assert [spec.shape[2] for _, _, spec in converter._recorded.values()] == [2, 4]
    assert [tensor.readback_and_clone().shape[2] for tensor in made] == [1, 2, 3, 2, 4]


def test_closed_converter_refuses_and_its_tensors_stay(backend: Backend) -> None:
    converter = ImageConverter(backend)
    made = converter.to_tensor(IMAGE, TRANSFORM)
    converter.close()
    converter.close()
    assert_is(made, expect(IMAGE))
    with pytest.raises(gx.ClosedError, match="ImageConverter is closed"):
        converter.to_tensor(IMAGE, TRANSFORM)


def test_functions_work_on_the_device_of_their_tensors(backend: Backend) -> None:
    made = gx.to_tensor(IMAGE, TRANSFORM, backend=backend)
    assert made.backend_type is backend.type
    image = gx.to_image(made, TRANSFORM)
    assert image.backend_type is backend.type
    np.testing.assert_array_equal(image.readback_and_clone(), IMAGE)
    assert gx.to_tensor(IMAGE[::-1], TRANSFORM, made) is made
    assert_is(made, expect(IMAGE[::-1]))
