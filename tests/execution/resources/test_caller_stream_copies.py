"""Copies and readbacks on a caller's stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from gpuexec.devices.device import Stream
from tests.model.small_models import Array, affine, expect_affine, hold, ramp

SIMULATOR = gx.BackendType.SIMULATOR
X = ramp(2, 3)


def make_order(backend: Backend) -> tuple[gx.Worker, gx.Tensor, Stream]:
    worker = gx.Worker(affine(), backend=backend)
    worker.run(X)
    return worker, worker.copy_output(), backend.device.create_stream()


COPIES: dict[str, Callable[[gx.Worker, gx.Tensor, Stream], gx.Tensor]] = {
    "copy_output": lambda worker, kept, stream: worker.copy_output(out=kept, stream=stream),
    "upload": lambda worker, kept, stream: (
        kept.upload(expect_affine(X), stream=stream),
        kept,
    )[1],
}


@pytest.mark.parametrize("name", COPIES)
def test_copy_on_the_device_is_in_the_order_of_the_stream(backend: Backend, name: str) -> None:
    worker, kept, stream = make_order(backend)
    with worker:
        gate = hold(stream)
        copied = COPIES[name](worker, kept, stream)
        assert not copied.is_done()
        after = backend.device.create_event()
        stream.record(after)
        gate.set()
        after.synchronize()
        assert copied.is_done()
        np.testing.assert_array_equal(copied.readback_and_clone(), expect_affine(X))


@pytest.mark.parametrize("name", COPIES)
def test_bytes_used_on_the_stream_may_be_copied_to(name: str) -> None:
    backend = open_backend(SIMULATOR)
    worker, kept, stream = make_order(backend)
    with worker:
        address = kept.__cuda_array_interface__["data"][0]
        kept.wait()
        for _ in range(3):  # what lacks an order is refused as it is issued
            stream.fill(address, np.float32(7).tobytes(), 6)
            COPIES[name](worker, kept, stream)
        stream.synchronize()
        np.testing.assert_array_equal(kept.readback_and_clone(), expect_affine(X))


READS: dict[str, Callable[[gx.Tensor, Stream], gx.ReadbackRequest]] = {
    "tensor": lambda tensor, stream: tensor.readback_request(stream=stream),
    "data": lambda tensor, stream: tensor.readback_request(stream=stream),
}


@pytest.mark.parametrize("name", READS)
def test_readback_is_in_the_order_of_the_stream(backend: Backend, name: str) -> None:
    worker, kept, stream = make_order(backend)
    with worker:
        before = kept.readback_request()
        gate = hold(stream)
        request = READS[name](kept, stream)
        assert request is not before and not request.is_done()
        gate.set()
        np.testing.assert_array_equal(request.result(), expect_affine(X))
        stream.synchronize()


def test_bytes_changed_on_the_stream_are_what_is_read() -> None:
    backend = open_backend(SIMULATOR)
    worker, kept, stream = make_order(backend)
    with worker:
        address = kept.__cuda_array_interface__["data"][0]
        kept.readback_and_clone()
        gate = hold(stream)
        stream.fill(address, np.float32(7).tobytes(), 6)
        request = kept.readback_request(stream=stream)
        stream.fill(address, np.float32(9).tobytes(), 6)
        gate.set()
        np.testing.assert_array_equal(request.result(), np.full((2, 3), 7, np.float32))
        np.testing.assert_array_equal(kept.readback_and_clone(stream=stream), np.full((2, 3), 9, np.float32))
        np.testing.assert_array_equal(kept.readback_and_clone(stream=stream), np.full((2, 3), 9, np.float32))

        async def read() -> list[Array]:
            stream.fill(address, np.float32(4).tobytes(), 6)
            first = await kept.readback_and_clone_async(stream=stream)
            return [first, await kept.readback_and_clone_async(stream=stream)]

        for each in asyncio.run(read()):
            np.testing.assert_array_equal(each, np.full((2, 3), 4, np.float32))


def test_stream_is_ordered_after_all_that_was_issued(backend: Backend) -> None:
    own, stream = backend.device.create_stream(), backend.device.create_stream()
    with gx.Worker(affine(), backend=backend, stream=own) as worker:
        gate = hold(own)
        worker.schedule(X)
        worker.order_before(stream)
        after = backend.device.create_event()
        stream.record(after)
        assert not after.is_done()
        gate.set()
        after.synchronize()
