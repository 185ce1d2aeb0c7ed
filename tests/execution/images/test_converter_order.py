"""Ownership of image memory, and stream order of conversions."""

from __future__ import annotations

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.execution.images.converter import ImageConverter
from tests.execution.held import held_worker, holding, opening
from tests.execution.images.expected import IMAGE, TRANSFORM, assert_is, expect
from tests.execution.images.foreign import ForeignArray


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
