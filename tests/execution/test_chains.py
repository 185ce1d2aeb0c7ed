"""Workers chained through pending Tensors, on every device and across them, without a caller's wait."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import open_backend
from tests.model.small_models import CPU, affine, expect_affine, hold, make_tracer, ramp, trace

SIMULATOR = gx.BackendType.SIMULATOR


@pytest.mark.feature("S20", "S55")
@pytest.mark.parametrize("consuming", ["cpu", "simulator", "tracer"])
@pytest.mark.parametrize("producing", ["cpu", "simulator"])
def test_pending_tensor_of_any_device_is_an_input_on_any(producing: str, consuming: str) -> None:
    backends = {"cpu": lambda: open_backend(CPU), "simulator": lambda: open_backend(SIMULATOR), "tracer": make_tracer}
    source, target = backends[producing](), backends[consuming]()
    stream = source.device.create_stream()
    x = ramp(2, 3)
    with contextlib.ExitStack() as stack:
        producer = stack.enter_context(gx.Worker(affine(), backend=source, stream=stream))
        consumer = stack.enter_context(gx.Worker(affine(), backend=target))
        producer.run(x)
        gate = hold(stream)
        run = consumer.schedule(producer.schedule(x).peek_output())
        later = consumer.schedule(x + 1)
        # Both calls have returned, and nothing can be done before the producer is.
        assert not run.is_done()
        with pytest.raises(gx.StaleError):
            run.peek_output().readback_request()
        request = later.peek_output().readback_request()
        gate.set()
        assert run.wait() and later.wait()
        if consuming != "tracer":
            np.testing.assert_array_equal(request.result(), expect_affine(x + 1))
            given = producer.schedule(x).peek_output()
            answer = consumer.schedule(given).peek_output()
            assert (given.backend_type, answer.backend_type) == (source.type, target.type)
            np.testing.assert_array_equal(answer.readback_and_clone(), expect_affine(expect_affine(x)))
            np.testing.assert_array_equal(given.readback_and_clone(), expect_affine(x))


def test_chain_on_the_tracer_waits_on_the_stream() -> None:
    backend = make_tracer()
    with gx.Worker(affine(), backend=backend) as producer, gx.Worker(affine(), backend=backend) as consumer:
        producer.prepare((2, 3))
        consumer.prepare((2, 3))
        y = producer.schedule(ramp(2, 3)).peek_output()
        rows = len(trace(backend))
        consumer.schedule(y)
        log = trace(backend)[rows:]
        assert "synchronize" not in log and "copy_to_host" not in log and "copy_to_device" not in log
        assert log.index("wait") < log.index("launch")


@pytest.mark.parametrize("type", [CPU, SIMULATOR])
def test_producer_does_not_overwrite_what_a_consumer_still_reads(type: gx.BackendType) -> None:
    backend = open_backend(type)
    stream = backend.device.create_stream()
    x = ramp(2, 3)
    with gx.Worker(affine(), backend=backend, frames=1) as producer:
        with gx.Worker(affine(), backend=backend, stream=stream) as consumer:
            consumer.run(x)
            gate = hold(stream)
            answer = consumer.schedule(producer.schedule(x).peek_output()).peek_output()
            later = [producer.schedule(x + number) for number in (5, 6, 7)]
            assert not any(run.is_done() for run in later)
            gate.set()
            np.testing.assert_array_equal(answer.readback_and_clone(), expect_affine(expect_affine(x)))
        np.testing.assert_array_equal(producer.read_output(), expect_affine(x + 7))


def test_chain_of_chains_waits_for_a_run_half_scheduled() -> None:
    x = ramp(2, 3)
    with contextlib.ExitStack() as stack:
        first, second, third = (stack.enter_context(gx.Worker(affine(), backend=CPU)) for _ in range(3))
        steps = first.schedule_iterable(x)
        next(steps)
        middle = second.schedule(first.peek_output())
        copy = second.copy_output()
        last = third.schedule(middle.peek_output())
        later = second.schedule(x)
        assert not middle.is_done() and not last.is_done() and not later.is_done()
        list(steps)
        expected = expect_affine(expect_affine(x))
        np.testing.assert_array_equal(copy.readback_and_clone(), expected)
        np.testing.assert_array_equal(last.peek_output().readback_and_clone(), expect_affine(expected))
        np.testing.assert_array_equal(later.peek_output().readback_and_clone(), expect_affine(x))


def test_producers_readback_may_be_cancelled_without_harming_the_chain() -> None:
    stream = open_backend(CPU).device.create_stream()
    x = ramp(2, 3)
    with (
        gx.Worker(affine(), backend=CPU, stream=stream) as producer,
        gx.Worker(affine(), backend=open_backend(SIMULATOR)) as consumer,
    ):
        gate = hold(stream)
        y = producer.schedule(x).peek_output()
        request = y.readback_request()
        answer = consumer.schedule(y).peek_output()
        assert request.cancel()
        gate.set()
        np.testing.assert_array_equal(answer.readback_and_clone(), expect_affine(expect_affine(x)))


def test_worker_by_auto_is_on_the_same_device_as_one_by_name() -> None:
    x = ramp(2, 3)
    with gx.Worker(affine()) as producer, gx.Worker(affine(), backend=producer.backend_type) as consumer:
        y = producer.schedule(x).peek_output()
        run = consumer.schedule(y)
        assert consumer._engine.binder.kept["x"].__class__.__name__ == "DeviceArray"
        np.testing.assert_array_equal(run.peek_output().readback_and_clone(), expect_affine(expect_affine(x)))
