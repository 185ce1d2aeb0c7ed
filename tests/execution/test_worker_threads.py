"""Threads of runs on the CPU: blocking calls start none, and what is scheduled goes on without a waiter."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import numpy as np
import pytest

import gpuexec as gx
import gpuexec.compat.onnxruntime as ort
from gpuexec.devices.work_thread import ReusableThread
from tests.model.control_models import ControlModel
from tests.model.small_models import CPU, GATES, affine, expect_affine, gated, ramp
from tests.model.state_models import gated_sum

X = ramp(2, 3)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the threads started, or taken from those that are idle, for queues of work."""
    names: list[str] = []
    start, call = threading.Thread.start, ReusableThread.call

    def start_noted(self: threading.Thread) -> None:
        names.append(self.name)
        start(self)

    def call_noted(target: Callable[[], None], name: str) -> threading.Thread:
        names.append(name)
        return call(target, name)

    gc.collect()  # what other tests left
    monkeypatch.setattr(threading.Thread, "start", start_noted)
    monkeypatch.setattr(ReusableThread, "call", call_noted)
    return names


def run_worker() -> None:
    with gx.Worker(affine(), backend=CPU) as worker:
        for _ in range(3):
            np.testing.assert_array_equal(worker.run(X)[0], expect_affine(X))


def drop_worker() -> None:
    worker = gx.Worker(affine(), backend=CPU)
    np.testing.assert_array_equal(worker.run(X)[0], expect_affine(X))
    worker._unclosed.detach()
    del worker
    gc.collect()


def run_session() -> None:
    data = ControlModel("(float[n, 3] x) => (float[n, 3] y) { y = Relu (x) }", (), 21).parse().SerializeToString()
    session = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": X})
    np.testing.assert_array_equal(y, np.maximum(X, 0))
    del session
    gc.collect()


def execute_method() -> None:
    program = gx.Program.build({"forward": affine((2, 3))})
    with program.load_method("forward", backend=CPU) as method:
        method.execute(X)
        np.testing.assert_array_equal(method.get_output(0).readback_and_clone(), expect_affine(X))


@pytest.mark.parametrize("use", [run_worker, drop_worker, run_session, execute_method])
def test_blocking_calls_start_no_thread(use: Callable[[], None], started: list[str]) -> None:
    use()
    assert not started


def test_a_run_that_nobody_waits_for_goes_on(started: list[str]) -> None:
    model, gate = gated()
    with gx.Worker(model, backend=CPU) as worker:
        run = worker.schedule(X)
        has_entered, is_done = GATES.entered[gate].wait(60), run.is_done()
        GATES.open[gate].set()
        run.wait()
    assert has_entered and not is_done and set(started) == {"gpuexec-cpu-stream"}


def test_an_interrupt_of_the_call_that_computes_leaves_the_worker_usable() -> None:
    model, gate = gated()
    GATES.open[gate].set()
    with gx.Worker(model, backend=CPU) as worker:
        worker.run(X)
        GATES.failures[gate] = KeyboardInterrupt()  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            worker.run(X)
        assert not worker.is_closed
        np.testing.assert_array_equal(worker.run(X)[0], X + 1)


def test_state_is_as_before_a_run_whose_computing_was_interrupted() -> None:
    model, gate = gated_sum()
    GATES.open[gate].set()
    with gx.Worker(model, backend=CPU) as worker:
        worker.run(X)
        GATES.failures[gate] = KeyboardInterrupt()  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            worker.run(X)
        np.testing.assert_array_equal(worker.state.get(), X)
        worker.run(X)
        np.testing.assert_array_equal(worker.state.get(), X + X)


def test_two_workers_wait_for_each_other_without_a_thread(started: list[str]) -> None:
    with gx.Worker(affine(), backend=CPU) as first, gx.Worker(affine(), backend=CPU) as second:
        first.run(X)
        second.run(X)
        pending = first.peek_output()
        np.testing.assert_array_equal(second.run(pending)[0], expect_affine(expect_affine(X)))
    assert not started
