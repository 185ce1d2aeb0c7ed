"""Scheduling: Barracuda's names, flushing, waiting, budgets, and runs as one recording."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.compat import barracuda
from gpuexec.devices.backend import Backend
from tests.devices.backends import on
from tests.execution.held import held_worker
from tests.model.small_models import affine, expect_affine, ramp, trace, two_layers

X = ramp(2, 3)


@pytest.mark.feature("B25", "S22")
def test_execute_returns_before_the_work_is_done(backend: Backend) -> None:
    with held_worker(affine(), backend) as (worker, gate):
        run = worker.schedule(X)
        y = barracuda.Worker(worker).execute(X).peek_output()
        assert not run.is_done() and not y.tensor.is_done()
        gate.set()
        np.testing.assert_array_equal(y.to_read_only_array(), expect_affine(X))


@pytest.mark.feature("B28")
def test_the_manual_schedule_has_its_names(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        named = barracuda.Worker(worker)
        for start in (named.execute_async, named.start_manual_schedule, worker.schedule_iterable):
            assert len(list(start(X))) == 3
            np.testing.assert_array_equal(worker.read_output(), expect_affine(X))


@pytest.mark.feature("B30")
def test_flush_waits_only_when_asked(backend: Backend) -> None:
    with held_worker(affine(), backend) as (worker, gate):
        run = worker.schedule(X)
        barracuda.Worker(worker).flush_schedule()
        assert not run.is_done()
        gate.set()
        barracuda.Worker(worker).flush_schedule(blocking=True)
        assert run.is_done()


@pytest.mark.feature("B30")
def test_flush_before_any_run_does_nothing(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        barracuda.Worker(worker).flush_schedule(blocking=True)
        assert worker.report().runs == 0


@pytest.mark.feature("B30", "B31", "T3")
@on("tracer")
def test_waiting_copies_nothing(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        steps = worker.schedule_iterable(X)
        next(steps)
        barracuda.Worker(worker).flush_schedule(blocking=True)
        list(steps)
        worker.wait_for_completion()
        assert "copy_to_host" not in trace(backend)


@pytest.mark.feature("B31")
def test_completion_is_waited_for_or_awaited(backend: Backend) -> None:
    async def serve(worker: gx.Worker, gate: threading.Event) -> bool:
        run = worker.schedule(X)
        waiting = asyncio.ensure_future(worker.wait_for_completion_async())
        await asyncio.sleep(0)
        was_pending = not waiting.done() and not run.is_done()
        gate.set()
        await waiting
        return was_pending and run.is_done()

    with held_worker(affine(), backend) as (worker, gate):
        assert asyncio.run(serve(worker, gate))
        run = worker.schedule(X)
        barracuda.Worker(worker).wait_for_completion()
        assert run.is_done()


@pytest.mark.feature("S23", "S81")
def test_a_budget_puts_as_many_layers_into_a_step_as_fit(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        for _ in range(3):
            list(worker.schedule_iterable(X, budget_ms=1e9))
            worker.wait_for_completion()
        assert [len(step.nodes) for step in worker.schedule_iterable(X, budget_ms=1e9)] == [3]
        assert [len(step.nodes) for step in worker.schedule_iterable(X, budget_ms=0)] == [1, 1, 1]
        np.testing.assert_array_equal(worker.read_output(), expect_affine(X))
        with pytest.raises(gx.InputError, match="budget_ms"):
            worker.schedule_iterable(X, budget_ms=-1)


@pytest.mark.feature("S31")
@on("tracer")
def test_a_run_is_one_recording_on_one_stream(backend: Backend) -> None:
    with gx.Worker(two_layers(), backend=backend) as worker:
        worker.prepare((4, 3))
        for _ in range(3):
            before = len(trace(backend))
            worker.schedule(ramp(4, 3))
            done = trace(backend)[before:]
        first = done.index("launch")
    # Inputs before, an event after; nothing waits or copies between the launches.
    assert done[first : first + 2] == ["launch"] * 2 and done.count("launch") == 2
    assert not {"synchronize", "copy_to_host"} & set(done) and len(worker.plans) == 1
