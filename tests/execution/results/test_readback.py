"""Readback: polled, awaited, blocking; many at once, cancelled, in other threads, of changed data."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from tests.model.small_models import CPU, affine, expect_affine, hold, hold_worker, make_tracer, ramp, trace


def test_request_is_polled_then_immediate_as_often_as_asked(backend: Backend) -> None:
    worker, gate = hold_worker(affine(), backend)
    x = ramp(2, 3)
    with worker:
        y = worker.schedule(x).peek_output()
        request = y.readback_request()
        assert not request.is_done()
        gate.set()
        assert request.wait() and request.is_done()
        for answer in (request.result(), request.result(), y.readback_and_clone(), y.readback_and_clone()):
            np.testing.assert_array_equal(answer, expect_affine(x))


def test_finished_request_answers_without_the_device() -> None:
    backend = make_tracer()
    with gx.Worker(affine(), backend=backend) as worker:
        y = worker.schedule(ramp(2, 3)).peek_output()
        y.readback_request()
        copies = trace(backend).count("copy_to_host")
        y.readback_and_clone()
        y.readback_and_clone()
        y.readback_request().view()
        assert trace(backend).count("copy_to_host") == copies == 1


def test_second_request_is_the_same_one(backend: Backend) -> None:
    worker, gate = hold_worker(affine(), backend)
    with worker:
        y = worker.schedule(ramp(2, 3)).peek_output()
        assert y.readback_request() is y.readback_request()
        gate.set()


@pytest.mark.feature("S26")
def test_request_then_new_run_shows_the_old_data(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend, frames=1) as worker:
        xs = [ramp(2, 3) + number for number in range(5)]
        tensors = []
        for x in xs:
            tensors.append(worker.schedule(x).peek_output())
            tensors[-1].readback_request()
        for x, tensor in zip(xs, tensors, strict=True):
            np.testing.assert_array_equal(tensor.readback_and_clone(), expect_affine(x))


def test_request_on_a_stale_tensor_raises() -> None:
    with gx.Worker(affine(), backend=CPU) as worker:
        y = worker.schedule(ramp(2, 3)).peek_output()
        worker.schedule(ramp(2, 3))
        with pytest.raises(gx.StaleError):
            y.readback_request()


def test_upload_makes_the_request_a_new_one() -> None:
    with gx.Worker(affine(), backend=CPU) as worker:
        y = worker.schedule(ramp(2, 3)).peek_output()
        before = y.readback_request()
        before.wait()
        y.upload(np.full((2, 3), 5, np.float32))
        assert y.readback_request() is not before
        np.testing.assert_array_equal(y.readback_and_clone(), np.full((2, 3), 5))
        np.testing.assert_array_equal(before.result(), expect_affine(ramp(2, 3)))


def test_readback_moves_no_device_data() -> None:
    with gx.Worker(affine(), backend=CPU) as worker:
        y = worker.schedule(ramp(2, 3)).peek_output()
        y.readback_and_clone()[...] = 7
        assert y.backend_type is CPU
        np.testing.assert_array_equal(y.readback_and_clone(), expect_affine(ramp(2, 3)))
        np.testing.assert_array_equal(np.asarray(y), expect_affine(ramp(2, 3)))


def test_answers_have_the_shape_and_not_the_capacity() -> None:
    with gx.Worker(affine(), backend=CPU) as worker:
        worker.run(ramp(100, 3))
        y = worker.schedule(ramp(5, 3)).peek_output()
        assert y.readback_and_clone().shape == y.readback_request().view().shape == (5, 3)


def test_download_into_an_array() -> None:
    with gx.Worker(affine(), backend=CPU) as worker:
        y = worker.schedule(ramp(2, 3)).peek_output()
        out = np.empty((4, 3), np.float32)[::2]
        assert y.readback_and_clone(out) is out
        np.testing.assert_array_equal(out, expect_affine(ramp(2, 3)))
        for wrong in (np.empty((3, 2), np.float32), np.empty((2, 3))):
            with pytest.raises(gx.InputError, match=r"'y' is float32\[2,3\]"):
                y.readback_and_clone(wrong)


def test_native_array_is_a_read_only_view_that_keeps_its_bytes() -> None:
    with gx.Worker(affine(), backend=CPU) as worker:
        y = worker.schedule(ramp(2, 3)).peek_output()
        view = y.readback_request().view()
        assert not view.flags.writeable and not view.flags.owndata
        assert np.shares_memory(view, y.readback_request().view())
        del y
        for number in range(20):
            worker.run(ramp(2, 3) + number)
        gc.collect()
        np.testing.assert_array_equal(view, expect_affine(ramp(2, 3)))


def test_pinned_block_is_used_again_once_nobody_holds_it() -> None:
    backend = open_backend(CPU)
    with gx.Worker(affine(), backend=CPU) as worker:
        gc.disable()  # nothing may wait for a collection: requests are in no cycle
        try:
            for _ in range(3):
                worker.run(ramp(2, 3))
            before = backend.staging.nbytes
            for _ in range(50):
                worker.run(ramp(2, 3))
            assert backend.staging.nbytes == before
        finally:
            gc.enable()


def test_cancelled_request_is_done_and_raises() -> None:
    worker, gate = hold_worker(affine())
    x = ramp(2, 3)
    with worker:
        y = worker.schedule(x).peek_output()
        request = y.readback_request()
        called: list[gx.ReadbackRequest] = []
        request.add_done_callback(called.append)
        assert request.cancel() and not request.cancel()
        assert request.is_done() and request.is_cancelled() and called == [request]
        with pytest.raises(gx.CancelledError):
            request.result()
        again = y.readback_request()
        assert again is not request and not again.is_done()
        gate.set()
        np.testing.assert_array_equal(again.result(), expect_affine(x))
        assert not again.cancel()


def test_time_running_out_names_itself_and_ends_nothing() -> None:
    worker, gate = hold_worker(affine())
    with worker:
        request = worker.schedule(ramp(2, 3)).peek_output().readback_request()
        assert not request.wait(timeout_s=0)
        with pytest.raises(gx.PendingError, match="0 s"):
            request.result(timeout_s=0)
        gate.set()
        assert request.result().shape == (2, 3)


def test_results_are_read_in_other_threads() -> None:
    worker, gate = hold_worker(affine())
    x = ramp(2, 3)
    with worker:
        request = worker.schedule(x).peek_output().readback_request()
        answers: list[object] = []
        threads = [threading.Thread(target=lambda: answers.append(request.result())) for _ in range(8)]
        for thread in threads:
            thread.start()
        gate.set()
        for thread in threads:
            thread.join()
    assert len(answers) == 8
    for answer in answers:
        np.testing.assert_array_equal(answer, expect_affine(x))  # type: ignore[arg-type]


def test_thousand_pending_requests_add_at_most_one_thread() -> None:
    worker, gate = hold_worker(affine())
    with worker:
        worker.schedule(ramp(2, 3)).peek_output().readback_request()
        threads = threading.active_count()
        called: list[gx.ReadbackRequest] = []
        done = threading.Event()
        requests = []
        for number in range(1000):
            request = worker.schedule(ramp(2, 3) + number).peek_output().readback_request()
            request.add_done_callback(lambda each: (called.append(each), len(called) == 1000 and done.set()))
            requests.append(request)
        assert threading.active_count() <= threads + 1
        assert not called
        gate.set()
        assert done.wait(60)
        assert called == requests
        for number in (0, 499, 999):
            np.testing.assert_array_equal(requests[number].result(), expect_affine(ramp(2, 3) + number))


def test_callback_of_a_finished_request_comes_at_once() -> None:
    with gx.Worker(affine(), backend=CPU) as worker:
        request = worker.schedule(ramp(2, 3)).peek_output().readback_request()
        request.wait()
        threads: list[int] = []
        request.add_done_callback(lambda _: threads.append(threading.get_ident()))
        assert threads == [threading.get_ident()]


@pytest.mark.feature("B58")
def test_failing_callback_harms_no_other(caplog: pytest.LogCaptureFixture, backend: Backend) -> None:
    worker, gate = hold_worker(affine(), backend)
    with worker:
        request = worker.schedule(ramp(2, 3)).peek_output().readback_request()
        called = threading.Event()

        def fail(_: gx.ReadbackRequest) -> None:
            raise RuntimeError("callback")

        request.add_done_callback(fail)
        request.add_done_callback(lambda _: called.set())
        gate.set()
        assert called.wait(60)
    assert [record.name for record in caplog.records] == ["gpuexec"] and "failed" in caplog.text


def test_workers_readbacks_do_not_wait_for_each_other(backend: Backend) -> None:
    slow, gate = hold_worker(affine(), backend)
    x = ramp(2, 3)
    with slow, gx.Worker(affine(), backend=backend) as quick:
        pending = slow.schedule(x).peek_output().readback_request()
        np.testing.assert_array_equal(quick.run(x)[0], expect_affine(x))
        assert not pending.is_done()
        gate.set()


def test_scalar_and_empty_tensors_are_read_back(backend: Backend) -> None:
    for shape in ((), (0, 3)):
        with gx.Worker(affine(shape if shape == () else ("n", 3)), backend=backend) as worker:
            x = np.zeros(shape, np.float32)
            y = worker.schedule(x).peek_output()
            answer = y.readback_and_clone()
            assert answer.shape == shape
            np.testing.assert_array_equal(answer, expect_affine(x))
            assert y.readback_request().view().shape == shape


def test_held_stream_is_not_done_until_it_is_let_go() -> None:
    stream = open_backend(CPU).device.create_stream()
    gate = hold(stream)
    assert not stream.is_done()
    gate.set()
    stream.synchronize()
