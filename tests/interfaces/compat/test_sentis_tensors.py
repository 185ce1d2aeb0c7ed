"""Tensors by Sentis's names: requests, downloads, uploads, capacities."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.compat import sentis
from gpuexec.devices.backend import Backend
from tests.devices.backends import is_tracer, on
from tests.execution.held import held_worker
from tests.model.small_models import affine, expect_affine, ramp, trace

X = ramp(2, 3)
Y = expect_affine(X)


@pytest.mark.feature("S44", "S45", "T6")
def test_a_request_is_done_when_the_data_is_there(backend: Backend) -> None:
    with held_worker(affine(), backend) as (worker, gate):
        y = sentis.Tensor(worker.schedule(X).peek_output())
        assert not y.is_readback_request_done()
        request = y.readback_request()
        assert y.readback_request() is request is y.data_on_backend.readback_request()
        assert not request.is_done() and not y.is_readback_request_done()
        gate.set()
        assert request.wait() and request.is_done() and y.is_readback_request_done()
        np.testing.assert_array_equal(request.result(), Y)


@pytest.mark.feature("T6")
@on("simulator_pixel")
def test_a_request_is_done_when_the_data_is_there_on_textures_too(backend: Backend) -> None:
    with held_worker(affine(), backend) as (worker, gate):
        y = sentis.Tensor(worker.schedule(X).peek_output())
        request = y.readback_request()
        assert not request.is_done() and not y.is_readback_request_done()
        gate.set()
        assert request.wait() and y.is_readback_request_done()
        np.testing.assert_array_equal(request.result(), Y)


@pytest.mark.feature("S45")
def test_not_requested_is_not_done(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        run = worker.schedule(X)
        run.wait()
        assert not sentis.Tensor(run.peek_output()).is_readback_request_done()


@pytest.mark.feature("S46")
def test_readback_blocks_for_an_array_of_ones_own_each_time(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        y = sentis.Tensor(worker.schedule(X).peek_output())
        first, second = y.tensor.readback_and_clone(), y.tensor.readback_and_clone()
        assert first is not second and not np.shares_memory(first, second) and first.flags.writeable
        np.testing.assert_array_equal(first, Y)
        copied = y.readback_and_clone()
        np.testing.assert_array_equal(copied.download_to_array(), Y)
        assert copied.backend_type is gx.BackendType.CPU and copied[1, 2] == Y[1, 2]
        assert y.backend_type is backend.type
    with gx.Worker(affine(), backend=backend) as worker:
        assert worker.schedule(ramp(0, 3)).peek_output().readback_and_clone().shape == (0, 3)


@pytest.mark.feature("S48")
@on("tracer")
def test_one_copy_from_the_device_serves_all_downloads(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        y = sentis.Tensor(worker.schedule(X).peek_output())
        y.readback_request()
        y.readback_and_clone()
        y.download_to_array()
        y.download_to_native_array()
        y.data_on_backend.download()
        assert trace(backend).count("copy_to_host") == 1


@pytest.mark.feature("S48")
def test_downloads_go_into_arrays_given_and_views(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        y = sentis.Tensor(worker.schedule(X).peek_output())
        out = np.empty((2, 3), np.float32)
        assert y.download_to_array(out) is out
        np.testing.assert_array_equal(out, Y)
        view = y.download_to_native_array()
        assert not view.flags.writeable
        with pytest.raises(gx.InputError, match=r"'y' is float32\[2,3\]"):
            y.download_to_array(np.empty((3, 2), np.float32))
        worker.run(X + 1)
        np.testing.assert_array_equal(view, Y)


@pytest.mark.feature("S42", "S49", "T7")
def test_what_is_read_has_the_shape_and_not_the_capacity(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        worker.run(ramp(100, 3))
        y = sentis.Tensor(worker.schedule(ramp(5, 3)).peek_output())
        request = y.readback_request()
        for got in (
            request.result(),
            y.download_to_array(),
            y.download_to_native_array(),
            y.data_on_backend.download(),
        ):
            assert got.shape == (5, 3)
            np.testing.assert_array_equal(got, expect_affine(ramp(5, 3)))
        assert y.shape == (5, 3) and y.data_on_backend.max_capacity >= 15


@pytest.mark.feature("S50")
def test_new_content_makes_a_new_request(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        y = sentis.Tensor(worker.schedule(X).peek_output())
        before = y.readback_request()
        before.wait()
        y.data_on_backend.upload(np.full((2, 3), 5, np.float32))
        assert not y.is_readback_request_done() and y.readback_request() is not before
        np.testing.assert_array_equal(y.readback_and_clone(), np.full((2, 3), 5))
        np.testing.assert_array_equal(before.result(), Y)


@pytest.mark.feature("S51")
@on("cpu", "simulator", "tracer")
def test_completing_operations_waits_and_copies_nothing(backend: Backend) -> None:
    if is_tracer(backend):
        with gx.Worker(affine(), backend=backend) as worker:
            sentis.Tensor(worker.schedule(X).peek_output()).data_on_backend.complete_all_pending_operations()
            assert "copy_to_host" not in trace(backend)
        return
    with gx.Worker(affine(), backend=backend) as worker:
        y = sentis.Tensor(worker.schedule(X).peek_output())
        y.data_on_backend.complete_all_pending_operations()
        assert y.tensor.is_done() and not y.is_readback_request_done()


@pytest.mark.feature("S41", "S53", "B51")
def test_upload_replaces_the_first_elements_in_order(backend: Backend) -> None:
    with held_worker(affine(), backend) as (worker, gate):
        y = sentis.Tensor(worker.schedule(X).peek_output())
        before = y.readback_request()
        source = np.full(2, 9, np.float32)
        y.data_on_backend.upload(source)
        source[...] = 0
        gate.set()
        expected = Y.copy()
        expected[0, :2] = 9
        np.testing.assert_array_equal(y.data_on_backend.download(), expected)
        np.testing.assert_array_equal(before.result(), Y)
        assert y.shape == (2, 3)
        for wrong in (np.zeros(7, np.float32), np.zeros(6)):
            with pytest.raises(gx.InputError, match="takes up to 6 elements of float32"):
                y.data_on_backend.upload(wrong)


@pytest.mark.feature("S41")
def test_data_on_backend_has_sentis_names(backend: Backend) -> None:
    async def serve(y: sentis.Tensor) -> Any:
        return await y.data_on_backend.download_async()

    with gx.Worker(affine(), backend=backend) as worker:
        data = sentis.Tensor(worker.schedule(X).peek_output()).data_on_backend
        assert data.backend_type is backend.type and data.max_capacity == 6
        np.testing.assert_array_equal(asyncio.run(serve(sentis.Tensor(worker.peek_output()))), Y)
        assert data.is_readback_request_done()
