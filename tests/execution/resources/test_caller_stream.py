"""Caller's streams on every call: work is ordered after what is on them, and before what comes later."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from gpuexec.devices.simulator.device import SimulatorDevice
from tests.devices.opening import list_kernels
from tests.execution.resources.foreign_streams import Foreign, Protocol, Torch
from tests.execution.resources.test_caller_stream_copies import make_order
from tests.model.control_models import ControlModel
from tests.model.host_value_cases import ints, put_on_device
from tests.model.small_models import CPU, GATES, affine, expect_affine, gated, hold, ramp, two_inputs

SIMULATOR = gx.BackendType.SIMULATOR
X = ramp(2, 3)
RESHAPE = "(float[n] x, int64[r] shape) => (float[a, b] y) { y = Reshape (x, shape) }"


def load(text: str) -> gx.Model:
    return gx.load(ControlModel(text, (), 21).parse().SerializeToString())


@pytest.mark.parametrize(
    "form", [lambda s: s, lambda s: s.handle, Protocol, Torch], ids=["own", "int", "cuda", "torch"]
)
def test_run_comes_after_what_is_on_the_stream(form: Callable[[Any], object]) -> None:
    backend = open_backend(SIMULATOR)
    stream = backend.device.create_stream()
    with gx.Worker(affine(), backend=backend) as worker:
        worker.run(X + 1)
        gate = hold(stream)
        run = worker.schedule(X, stream=form(stream))
        assert not run.is_done()
        gate.set()
        np.testing.assert_array_equal(run.peek_output().readback_and_clone(), expect_affine(X))


def test_run_comes_after_a_stream_of_the_device(backend: Backend) -> None:
    stream = backend.device.create_stream()
    with gx.Worker(affine(), backend=backend) as worker:
        for _ in range(2):
            gate = hold(stream)
            run = worker.schedule(X, stream=stream)
            assert not run.is_done()
            gate.set()
            np.testing.assert_array_equal(run.peek_output().readback_and_clone(), expect_affine(X))


def test_stream_comes_after_the_run(backend: Backend) -> None:
    own, stream = backend.device.create_stream(), backend.device.create_stream()
    with gx.Worker(affine(), backend=backend, stream=own) as worker:
        worker.run(X + 1)
        gate = hold(own)
        run = worker.schedule(X, stream=stream)
        after = backend.device.create_event()
        stream.record(after)
        assert not after.is_done() and not run.is_done()
        gate.set()
        after.synchronize()
        assert run.is_done()


def test_other_streams_wait_for_nothing(backend: Backend) -> None:
    own, stream, other = (backend.device.create_stream() for _ in range(3))
    with gx.Worker(affine(), backend=backend, stream=own) as worker:
        gate = hold(own)
        worker.schedule(X, stream=stream)
        other.synchronize()
        gate.set()


def test_run_that_blocks_takes_a_stream(backend: Backend) -> None:
    stream = backend.device.create_stream()
    with gx.Worker(affine(), backend=backend) as worker:
        np.testing.assert_array_equal(worker.run(X, stream=stream)[0], expect_affine(X))
        stream.synchronize()


def test_operations_of_others_around_a_pending_run_need_no_wait() -> None:
    # Filled, run and read in the order of one stream of somebody else's, under delays that would show any other.
    device = SimulatorDevice(list_kernels, delay_s=0.002)
    backend = Backend(device, SIMULATOR, "for a test")
    stream = device.create_stream()
    x, taken = Foreign(backend, 2, 3), backend.device.allocate_pinned(4 * 24)
    assert taken.array is not None
    with gx.Worker(affine(), backend=backend) as worker:
        for number in range(4):
            stream.copy_to_device(x.memory.address, (X + number).reshape(-1).view(np.uint8))
            y = worker.schedule(x, stream=Protocol(stream)).peek_output()
            interface = y.__cuda_array_interface__
            stream.copy_to_host(taken.array[24 * number : 24 * number + 24], interface["data"][0])
        assert worker.report().host_syncs == ()
        stream.synchronize()
        got = taken.array[: 4 * 24].view(np.float32).reshape(4, 2, 3)
        np.testing.assert_array_equal(got, np.stack([expect_affine(X + number) for number in range(4)]))
    device.close()


def test_order_is_missing_without_the_stream() -> None:
    backend = open_backend(SIMULATOR)
    stream = backend.device.create_stream()
    x = Foreign(backend, 2, 3)
    with gx.Worker(affine(), backend=backend) as worker:
        stream.copy_to_device(x.memory.address, X.reshape(-1).view(np.uint8))
        with pytest.raises(gx.OrderError):
            worker.schedule(x)
        stream.synchronize()


def test_failure_stays_on_its_side() -> None:
    backend = open_backend(CPU)
    stream = backend.device.create_stream()
    model, gate = gated()
    GATES.open[gate].set()
    GATES.failures[gate] = ValueError("planted")
    with gx.Worker(model, backend=backend) as failing, gx.Worker(affine(), backend=backend) as worker:
        run = failing.schedule(X, stream=stream)
        np.testing.assert_array_equal(worker.run(X, stream=stream)[0], expect_affine(X))
        stream.synchronize()
        with pytest.raises(gx.DeviceError, match="planted"):
            run.wait()


def test_worker_on_one_stream_takes_another(backend: Backend) -> None:
    one, other = backend.device.create_stream(), backend.device.create_stream()
    with gx.Worker(affine(), backend=backend, stream=one) as worker:
        gates = hold(one), hold(other)
        run = worker.schedule(X, stream=other)
        gates[0].set()
        assert not run.is_done()
        gates[1].set()
        np.testing.assert_array_equal(run.peek_output().readback_and_clone(), expect_affine(X))


def test_run_with_a_read_is_driven_to_its_end_and_counted(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = backend.device.create_stream()
    shape = put_on_device(ints(2, 3), backend)
    x = np.arange(6, dtype=np.float32)
    with gx.Worker(load(RESHAPE), backend=backend) as worker:
        gate, note_wait = hold(worker._engine.stream), worker._engine.syncs.note_wait

        def note(*row: str) -> None:
            note_wait(*row)
            gate.set()

        monkeypatch.setattr(worker._engine.syncs, "note_wait", note)
        run = worker.schedule([x, shape], stream=stream)
        assert run._fence.is_issued()
        assert [row for row in worker.report().host_syncs if "stream" in row[1]] == [
            ("run 0", "what the run has to wait for, on a stream of the caller's")
        ]
        np.testing.assert_array_equal(run.peek_output().readback_and_clone(), x.reshape(2, 3))


def test_iterator_makes_the_stream_wait_with_its_last_step(backend: Backend) -> None:
    own, stream = backend.device.create_stream(), backend.device.create_stream()
    with gx.Worker(affine(), backend=backend, stream=own) as worker:
        worker.run(X + 1)
        gate = hold(own)
        steps = worker.schedule_iterable(X, stream=stream)
        next(steps)
        stream.synchronize()  # half a run holds nobody up
        for _ in steps:
            pass
        after = backend.device.create_event()
        stream.record(after)
        assert not after.is_done()
        gate.set()
        after.synchronize()
        np.testing.assert_array_equal(worker.read_output(), expect_affine(X))


def test_iterator_given_up_lets_the_stream_go_on(backend: Backend) -> None:
    stream = backend.device.create_stream()
    with gx.Worker(affine(), backend=backend) as worker:
        next(worker.schedule_iterable(X, stream=stream))
        assert worker.cancel()
        stream.synchronize()
        np.testing.assert_array_equal(worker.run(X, stream=stream)[0], expect_affine(X))


CALLS: dict[str, Callable[[gx.Worker, gx.Tensor, object], object]] = {
    "schedule": lambda worker, _, stream: worker.schedule(X, stream=stream),
    "run": lambda worker, _, stream: worker.run(X, stream=stream),
    "schedule_iterable": lambda worker, _, stream: worker.schedule_iterable(X, stream=stream),
    "copy_output": lambda worker, _, stream: worker.copy_output(stream=stream),
    "order_before": lambda worker, _, stream: worker.order_before(stream),
    "readback_request": lambda _, tensor, stream: tensor.readback_request(stream=stream),
    "upload": lambda _, tensor, stream: tensor.upload(X, stream=stream),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_stream_is_refused_before_any_work(backend: Backend, name: str) -> None:
    worker, kept, _ = make_order(backend)
    elsewhere = SimulatorDevice(list_kernels)
    with worker:
        runs = worker.report().runs
        named = [SimpleNamespace(__cuda_stream__=each) for each in ((1, 0), (0, "main"), (0,), 7)]
        for wrong in ("main", True, 1.5, 12345, elsewhere.create_stream(), *named):
            with pytest.raises(gx.InputError, match="stream"):
                CALLS[name](worker, kept, wrong)
        assert worker.report().runs == runs
        np.testing.assert_array_equal(kept.readback_and_clone(), expect_affine(X))
        np.testing.assert_array_equal(worker.read_output(), expect_affine(X))
    elsewhere.close()


@pytest.mark.parametrize("name", CALLS)
def test_stream_that_captures_is_refused_with_the_reason(
    backend: Backend, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, kept, stream = make_order(backend)
    monkeypatch.setattr(type(stream), "is_capturing", lambda self: self is stream)
    with worker:
        runs = worker.report().runs
        with pytest.raises(gx.StateError, match="capturing a graph"):
            CALLS[name](worker, kept, stream)
        assert worker.report().runs == runs
        np.testing.assert_array_equal(worker.run(X)[0], expect_affine(X))


def test_stream_of_the_worker_that_captures_is_refused(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = backend.device.create_stream()
    with gx.Worker(affine(), backend=backend, stream=stream) as worker:
        with monkeypatch.context() as patch:
            patch.setattr(type(stream), "is_capturing", lambda self: self is stream)
            with pytest.raises(gx.StateError, match="capturing a graph"):
                worker.schedule(X)
        np.testing.assert_array_equal(worker.run(X)[0], expect_affine(X))


def test_wait_that_is_not_allowed_is_refused_on_a_stream(backend: Backend) -> None:
    own, stream = backend.device.create_stream(), backend.device.create_stream()
    left = ramp(2, 3)
    with gx.Worker(affine(), backend=backend, stream=own) as producer, gx.Worker(two_inputs(), backend=CPU) as consumer:
        gate = hold(own)
        pending = producer.schedule(left).peek_output()
        stream = open_backend(CPU).device.create_stream()
        if backend.type is not CPU:
            with gx.no_implicit_sync(), pytest.raises(gx.ImplicitSyncError, match="stream of the caller's"):
                consumer.schedule([pending, left], stream=stream)
        gate.set()
        got = consumer.run([pending, left], stream=stream)
        np.testing.assert_array_equal(got[0], expect_affine(left) + left)
