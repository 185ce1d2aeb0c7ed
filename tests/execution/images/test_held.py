"""Images and tensors in flight: unscheduled producers and consumers, failed work, and references held."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.execution.images import converter as converter_module
from gpuexec.execution.images.converter import ImageConverter
from tests.execution.held import holding
from tests.execution.images.foreign import ForeignArray
from tests.model.small_models import DOMAIN, GATES, Array, affine, expect_affine, gated, make_model

IMAGE = np.random.default_rng(3).integers(0, 256, (5, 7, 3), dtype=np.uint8)
SHAPE = (1, 3, 5, 7)
ZEROS = np.zeros(SHAPE, np.float32)


def expect(image: Array) -> Array:
    return np.moveaxis(image, 2, 0)[None].astype(np.float32) * np.float32(1 / 255)


def begin(call: Callable[[], object]) -> threading.Thread:
    """Call on another thread; the caller's own may be what lets it through."""
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def test_tensor_whose_maker_is_half_scheduled_is_written_after_it(backend: Backend, converter: ImageConverter) -> None:
    with gx.Worker(affine(SHAPE), backend=backend) as worker:
        steps = worker.schedule_iterable(ZEROS)
        next(steps)
        out = worker.copy_output()
        before = out.readback_request()
        with pytest.raises(gx.StateError, match="not wholly scheduled"):  # who takes the steps can't wait for them
            converter.to_tensor(IMAGE, out=out)
        thread = begin(lambda: converter.to_tensor(IMAGE, out=out))
        for _ in steps:
            pass
        thread.join()
        np.testing.assert_array_equal(before.result(), expect_affine(ZEROS))
        np.testing.assert_array_equal(out.readback_and_clone(), expect(IMAGE))


def test_tensor_whose_maker_was_given_up_is_written(backend: Backend, converter: ImageConverter) -> None:
    with gx.Worker(affine(SHAPE), backend=backend) as worker:
        next(worker.schedule_iterable(ZEROS))
        out = worker.copy_output()
        worker.cancel()
        converter.to_tensor(IMAGE, out=out)
        np.testing.assert_array_equal(out.readback_and_clone(), expect(IMAGE))


def test_writing_waits_for_a_run_that_will_read_what_was_there(simulator: Backend) -> None:
    number = GATES.new()
    nodes = [
        helper.make_node("Gate", ["x"], ["a"], name="gate", domain=DOMAIN, number=number),
        helper.make_node("Add", ["a", "t"], ["y"], name="add"),
    ]
    model = make_model(nodes, {"x": SHAPE, "t": SHAPE}, {"y": SHAPE})
    with ImageConverter(simulator) as converter, gx.Worker(model, backend=simulator) as worker:
        out = converter.to_tensor(IMAGE)
        worker.schedule({"x": ZEROS, "t": out})
        assert GATES.entered[number].wait()
        thread = begin(lambda: converter.to_tensor(IMAGE[::-1], out=out))
        GATES.open[number].set()
        thread.join()
        np.testing.assert_array_equal(worker.read_output(), expect(IMAGE))
        np.testing.assert_array_equal(out.readback_and_clone(), expect(IMAGE[::-1]))


def test_tensor_whose_content_failed_is_written_again(backend: Backend, converter: ImageConverter) -> None:
    image = converter.to_image(ZEROS)
    model, number = gated(SHAPE)
    GATES.failures[number] = ValueError("no content")
    GATES.open[number].set()
    with gx.Worker(model, backend=backend) as worker:
        worker.schedule(ZEROS)
        with pytest.raises(gx.DeviceError, match="no content"):
            converter.to_image(worker.peek_output(), out=image).readback_and_clone()
    converter.to_image(expect(IMAGE), out=image)
    np.testing.assert_array_equal(image.readback_and_clone(), IMAGE)


def test_nothing_given_is_held_once_the_work_is_done(simulator: Backend) -> None:
    with ImageConverter(simulator) as converter:
        given = ForeignArray(simulator, IMAGE)
        made = converter.to_tensor(given)
        made.readback_and_clone()
        held: list[weakref.ref[Any]] = [weakref.ref(given), weakref.ref(made._content.region.memory)]
        del given, made
        simulator.deferred_free.prune()
        gc.collect()
        assert [each() for each in held] == [None, None]


def test_layouts_under_way_are_not_waited_for_to_make_room(
    backend: Backend, converter: ImageConverter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(converter_module, "MAX_RECORDED", 2)
    stream = backend.device.create_stream()
    with holding(stream):
        made = [converter.to_tensor(IMAGE[:rows], stream=stream) for rows in (1, 2, 3)]
        assert not any(each.is_done() for each in made)  # three are held, and nobody was
    for rows, each in zip((1, 2, 3), made, strict=True):
        np.testing.assert_array_equal(each.readback_and_clone(), expect(IMAGE[:rows]))
    converter.to_tensor(IMAGE[:4])
    assert [spec.shape[2] for _, _, spec in converter._recorded.values()] == [3, 4]
