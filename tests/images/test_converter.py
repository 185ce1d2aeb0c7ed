"""Images to tensors and back: whose memory, in which order, by which strides, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.images import converter as converter_module
from gpuexec.images.converter import ImageConverter
from gpuexec.runtime import dlpack
from gpuexec.runtime.backend import Backend, open_backend
from gpuexec.spec import TensorSpec
from tests.features.held import held_worker, holding, opening
from tests.images.foreign import ForeignArray
from tests.small_models import Array

TRANSFORM = gx.ImageTransform(swizzle="BGR", mean=(0.25, 0.5, 0.75), std=(0.5, 2.0, 1.0))
IMAGE = np.random.default_rng(3).integers(0, 256, (5, 7, 3), dtype=np.uint8)


def expect(image: Array) -> Array:
    """Return what `TRANSFORM` makes of [h, w, 3], in double."""
    pixels = image[..., ::-1] / 255 - np.array([0.25, 0.5, 0.75])
    return np.asarray(np.moveaxis(pixels / np.array([0.5, 2.0, 1.0]), 2, 0)[None])


def assert_is(tensor: gx.Tensor, expected: Array) -> None:
    np.testing.assert_allclose(tensor.readback_and_clone(), expected, rtol=0, atol=1e-6)


@pytest.fixture(params=[gx.BackendType.CPU, gx.BackendType.SIMULATOR], ids=lambda each: each.value)
def backend(request: pytest.FixtureRequest) -> Backend:
    return open_backend(request.param)


@pytest.fixture
def simulator() -> Backend:
    return open_backend(gx.BackendType.SIMULATOR)


@pytest.fixture
def converter(backend: Backend) -> Iterator[ImageConverter]:
    with ImageConverter(backend) as made:
        yield made


# ---- there and back


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


# ---- strides on a device


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


def test_views_of_the_same_bytes_are_told_apart(simulator: Backend) -> None:
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


# ---- whose memory


def test_tensor_of_ones_own_is_written_again(converter: ImageConverter) -> None:
    out = converter.to_tensor(IMAGE, TRANSFORM)
    region = out._content.region
    before = out.readback_request()
    again = converter.to_tensor(IMAGE[::-1], TRANSFORM, out)
    assert again is out and out._content.region is region
    assert_is(out, expect(IMAGE[::-1]))
    # What was asked for before keeps what there was then.
    np.testing.assert_allclose(before.result(), expect(IMAGE), rtol=0, atol=1e-6)


def test_new_tensors_share_no_bytes(converter: ImageConverter) -> None:
    first, second = converter.to_tensor(IMAGE, TRANSFORM), converter.to_tensor(IMAGE[::-1], TRANSFORM)
    assert_is(first, expect(IMAGE))
    assert_is(second, expect(IMAGE[::-1]))


def test_host_array_is_filled_when_the_call_returns(converter: ImageConverter) -> None:
    out = np.full((1, 3, 5, 7), 9, np.float32)
    made = converter.to_tensor(IMAGE, TRANSFORM, out)
    np.testing.assert_array_equal(out, made.readback_and_clone())
    np.testing.assert_allclose(out, expect(IMAGE), rtol=0, atol=1e-6)


def test_device_array_of_another_package_is_written(simulator: Backend) -> None:
    out = ForeignArray(simulator, np.zeros((1, 3, 5, 7), np.float32))
    with ImageConverter(simulator) as converter:
        made = converter.to_tensor(IMAGE, TRANSFORM, out, stream=out.stream)
        assert made._content.region.address == out.memory.address
        # Its own stream comes after the work.
        np.testing.assert_allclose(out.read(), expect(IMAGE), rtol=0, atol=1e-6)


def test_part_of_a_batch_on_the_device_is_written(simulator: Backend) -> None:
    batch = np.zeros((3, 3, 5, 7), np.float32)
    with ImageConverter(simulator) as converter:
        for index in (1, 0):
            out = ForeignArray(simulator, batch[index : index + 1])
            converter.to_tensor(IMAGE, TRANSFORM, out, stream=out.stream)
            expected = np.zeros(batch.shape)
            expected[index] = expect(IMAGE)[0]
            np.testing.assert_allclose(out.read(), expected, rtol=0, atol=1e-6)


# ---- order


def test_call_returns_before_the_image_is_there(simulator: Backend) -> None:
    given = ForeignArray(simulator, IMAGE, is_held=True)
    assert given.gate is not None
    with ImageConverter(simulator) as converter, opening(given.gate):
        made = converter.to_tensor(given, TRANSFORM)
        assert not made.is_done()
        given.gate.set()
        assert_is(made, expect(IMAGE))


def test_work_is_in_the_order_of_the_stream_given(backend: Backend, converter: ImageConverter) -> None:
    stream = backend.device.create_stream()
    converter.to_tensor(IMAGE, TRANSFORM).readback_and_clone()  # recorded: nothing is made below
    with holding(stream):
        made = converter.to_tensor(IMAGE, TRANSFORM, stream=stream)
        after = backend.device.create_event()
        stream.record(after)
        assert not made.is_done() and not after.is_done()
    after.synchronize()
    assert made.is_done()
    assert_is(made, expect(IMAGE))


def test_writing_waits_for_readers_of_what_was_there(backend: Backend, converter: ImageConverter) -> None:
    out = converter.to_tensor(IMAGE, TRANSFORM)
    out.readback_and_clone()
    reader = backend.device.create_stream()
    with holding(reader):
        copy = out.readback_request(stream=reader)
        converter.to_tensor(IMAGE[::-1], TRANSFORM, out)
        assert not out.is_done()
    np.testing.assert_allclose(copy.result(), expect(IMAGE), rtol=0, atol=1e-6)
    assert_is(out, expect(IMAGE[::-1]))


def test_writing_waits_for_a_run_that_reads_what_was_there(backend: Backend, converter: ImageConverter) -> None:
    out = converter.to_tensor(IMAGE, TRANSFORM)
    model = TRANSFORM.as_model((1, 3, 5, 7), inverse=True)
    with held_worker(model, backend) as (worker, gate):
        worker.schedule(out)
        copy = worker.peek_output().readback_request()
        converter.to_tensor(IMAGE[::-1], TRANSFORM, out)
        assert not out.is_done()
        gate.set()
        np.testing.assert_array_equal(copy.result()[0], IMAGE)
        assert_is(out, expect(IMAGE[::-1]))


def test_writing_waits_for_what_makes_the_content(simulator: Backend) -> None:
    model = TRANSFORM.as_model((5, 7, 3))
    with ImageConverter(simulator) as converter, held_worker(model, simulator) as (worker, gate):
        worker.schedule(IMAGE)
        out = worker.peek_output()
        assert out.__cuda_array_interface__["shape"] == (1, 3, 5, 7)  # and now it is one's own
        converter.to_tensor(IMAGE[::-1], TRANSFORM, out)
        assert not out.is_done()
        gate.set()
        assert_is(out, expect(IMAGE[::-1]))


def test_what_the_stream_given_still_writes_is_read_after_it(simulator: Backend) -> None:
    given = ForeignArray(simulator, IMAGE, is_held=True)
    given.__cuda_array_interface__["stream"] = None  # nothing but the argument says whose order it is
    assert given.gate is not None
    with ImageConverter(simulator) as converter, opening(given.gate):
        made = converter.to_tensor(given, TRANSFORM, stream=given.stream)
        given.gate.set()
        assert_is(made, expect(IMAGE))


# ---- what is refused


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


# ---- what is kept


def test_only_the_last_layouts_stay_recorded(converter: ImageConverter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converter_module, "MOST_RECORDED", 2)
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
