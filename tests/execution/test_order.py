"""Runs in flight: rotating frames, waiting, cancelling, failing."""

from __future__ import annotations

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.model.small_models import (
    CPU,
    GATES,
    affine,
    expect_affine,
    gated,
    hold,
    hold_worker,
    make_tracer,
    ramp,
    trace,
)


@pytest.mark.feature("S44")
def test_pending_readback_is_not_overwritten_by_later_runs(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend, frames=2) as worker:
        worker.run(ramp(2, 3))
        with worker._engine.run_counter.transfers.lock:
            copies = worker._engine.run_counter.transfers.open()
            gate = hold(copies)
        xs = [ramp(2, 3) + number for number in range(6)]
        requests = [worker.schedule(x).peek_output().readback_request() for x in xs]
        # Runs beyond the ring wait on the stream for the readbacks; the caller is here all the same.
        assert not any(request.is_done() for request in requests)
        gate.set()
        for x, request in zip(xs, requests, strict=True):
            np.testing.assert_array_equal(request.result(), expect_affine(x))
    assert backend.staging.nbytes > 0


def test_one_frame_reads_its_own_output_as_input() -> None:
    x = ramp(2, 3)
    with gx.Worker(affine(), backend=CPU, frames=1) as worker:
        y = worker.schedule(x).peek_output()
        for _ in range(3):
            read = y._content.region.address
            y, x = worker.schedule(y).peek_output(), expect_affine(x)
            assert y._content.region.address != read
        np.testing.assert_array_equal(y.readback_and_clone(), expect_affine(x))


def test_completion_is_waited_for(backend: Backend) -> None:
    worker, gate = hold_worker(affine(), backend)
    with worker:
        run = worker.schedule(ramp(2, 3))
        assert not run.is_done()
        gate.set()
        worker.wait_for_completion()
        assert run.is_done()


def test_waiting_before_any_run_does_nothing(worker: gx.Worker) -> None:
    worker.wait_for_completion()


def test_waiting_copies_nothing() -> None:
    backend = make_tracer()
    with gx.Worker(affine(), backend=backend) as worker:
        worker.schedule(ramp(2, 3))
        worker.wait_for_completion()
        worker.peek_output().wait()
        assert "copy_to_host" not in trace(backend)
        worker.read_output()
        assert "copy_to_host" in trace(backend)


def test_cancel_of_a_run_on_the_stream_is_refused(worker: gx.Worker) -> None:
    run = worker.schedule(ramp(2, 3))
    assert not run.cancel() and run.wait()


def test_cancelled_run_waits_no_longer_for_its_inputs() -> None:
    producer, consumer = gx.Worker(affine(), backend=CPU), gx.Worker(affine(), backend=CPU)
    with producer, consumer:
        steps = producer.schedule_iterable(ramp(2, 3))
        next(steps)
        run = consumer.schedule(producer.peek_output())
        assert not run.is_done()
        assert run.cancel()
        x = ramp(4, 3)
        np.testing.assert_array_equal(consumer.run(x)[0], expect_affine(x))
        assert len(list(steps)) == 2


@pytest.mark.feature("S30", "E47", "E62")
def test_failing_host_function_leaves_the_worker_usable() -> None:
    model, gate = gated()
    x = ramp(2, 3)
    GATES.open[gate].set()
    with gx.Worker(model, backend=CPU) as worker:
        for _ in range(3):
            GATES.failures[gate] = RuntimeError("no such luck")
            run = worker.schedule(x)
            request = run.peek_output().readback_request()
            with pytest.raises(gx.GpuexecError, match=r"Gate 'gate' \(float32\[2,3\]\).*no such luck") as caught:
                request.result()
            assert caught.value.node == "gate"
            with pytest.raises(gx.GpuexecError, match="no such luck"):
                run.wait()
            np.testing.assert_array_equal(worker.run(x)[0], x + 1)


def test_error_of_a_run_is_none_of_the_runs_that_take_its_frame() -> None:
    model, gate = gated()
    x = ramp(2, 3)
    GATES.failures[gate] = RuntimeError("no such luck")
    with gx.Worker(model, backend=CPU, frames=1) as worker:
        requests = [worker.schedule(x + number).peek_output().readback_request() for number in range(3)]
        GATES.open[gate].set()
        with pytest.raises(gx.GpuexecError, match="no such luck"):
            requests[0].result()
        for number in (1, 2):
            np.testing.assert_array_equal(requests[number].result(), x + number + 1)


def test_run_that_ends_before_it_begins_frees_its_bytes_once() -> None:
    consumer, gate = hold_worker(affine())
    with gx.Worker(affine(), backend=CPU) as producer, consumer:
        consumer.schedule(ramp(2, 3))
        unfinished = producer.schedule_iterable(ramp(2, 3))
        next(unfinished)
        steps = consumer.schedule_iterable(producer.peek_output())
        producer.cancel()
        with pytest.raises(gx.CancelledError):
            next(steps)
        # Inputs of runs in flight lie in blocks of their own.
        xs = [ramp(2, 3) + number for number in range(1, 5)]
        requests = [consumer.schedule(x).peek_output().readback_request() for x in xs]
        gate.set()
        for x, request in zip(xs, requests, strict=True):
            np.testing.assert_array_equal(request.result(), expect_affine(x))


def test_consumer_of_a_failed_run_fails_with_its_error() -> None:
    model, gate = gated()
    GATES.open[gate].set()
    GATES.failures[gate] = RuntimeError("no such luck")
    with gx.Worker(model, backend=CPU) as producer, gx.Worker(affine(), backend=CPU) as consumer:
        run = consumer.schedule(producer.schedule(ramp(2, 3)).peek_output())
        with pytest.raises(gx.GpuexecError, match="no such luck"):
            run.wait()
        x = ramp(2, 3)
        np.testing.assert_array_equal(consumer.run(x)[0], expect_affine(x))
