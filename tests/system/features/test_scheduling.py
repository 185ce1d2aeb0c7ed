"""Rows on scheduling: steps, flushing, waiting, and errors in the middle of runs."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.compat import barracuda
from gpuexec.devices.backend import Backend
from tests.model.small_models import GATES, affine, expect_affine, gated, ramp, trace, two_layers
from tests.system.features.held import held_worker
from tests.system.features.marks import on

X = ramp(2, 3)


def test_b25_s22_execute_returns_before_the_work_is_done(backend: Backend) -> None:
    with held_worker(affine(), backend) as (worker, gate):
        run = worker.schedule(X)
        y = barracuda.Worker(worker).execute(X).peek_output()
        assert not run.is_done() and not y.tensor.is_done()
        gate.set()
        np.testing.assert_array_equal(y.to_read_only_array(), expect_affine(X))


def test_b27_a_step_per_layer_and_no_more(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        steps = barracuda.Worker(worker).start_manual_schedule(X)
        assert [step.nodes for step in (next(steps), next(steps), next(steps))] == [("double",), ("relu",), ("add",)]
        with pytest.raises(StopIteration):
            next(steps)
        np.testing.assert_array_equal(worker.read_output(), expect_affine(X))


@on("tracer")
def test_b27_inputs_are_taken_at_the_call_and_layers_at_the_steps(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        worker.prepare((2, 3))
        with pytest.raises(gx.InputError):
            worker.schedule_iterable(X[0])
        before = trace(backend).count("launch")
        steps = worker.schedule_iterable(X)
        counts = [trace(backend).count("launch") - before]
        counts += [trace(backend).count("launch") - before for _ in steps]
    assert counts == [0, 1, 2, 3]


def test_b28_the_manual_schedule_has_its_names(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        named = barracuda.Worker(worker)
        for start in (named.execute_async, named.start_manual_schedule, worker.schedule_iterable):
            assert len(list(start(X))) == 3
            np.testing.assert_array_equal(worker.read_output(), expect_affine(X))


def test_b29_a_new_schedule_makes_the_older_iterator_raise(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        old = worker.schedule_iterable(X)
        next(old)
        new = worker.schedule_iterable(X + 1)
        with pytest.raises(gx.StaleError, match="newer run"):
            next(old)
        assert len(list(new)) == 3
        np.testing.assert_array_equal(worker.read_output(), expect_affine(X + 1))


def test_b30_flush_waits_only_when_asked(backend: Backend) -> None:
    with held_worker(affine(), backend) as (worker, gate):
        run = worker.schedule(X)
        barracuda.Worker(worker).flush_schedule()
        assert not run.is_done()
        gate.set()
        barracuda.Worker(worker).flush_schedule(blocking=True)
        assert run.is_done()


def test_b30_flush_before_any_run_does_nothing(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        barracuda.Worker(worker).flush_schedule(blocking=True)
        assert worker.report().runs == 0


@on("tracer")
def test_b30_b31_t3_waiting_copies_nothing(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        steps = worker.schedule_iterable(X)
        next(steps)
        barracuda.Worker(worker).flush_schedule(blocking=True)
        list(steps)
        worker.wait_for_completion()
        assert "copy_to_host" not in trace(backend)


def test_b31_completion_is_waited_for_or_awaited(backend: Backend) -> None:
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


def test_b32_t1_progress_is_zero_at_once_and_counts_issued_layers(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        worker.run(X)
        assert worker.schedule_progress == 1.0
        steps = worker.schedule_iterable(X)
        seen = [worker.schedule_progress]
        seen += [worker.schedule_progress for _ in steps]
    assert seen == pytest.approx([0, 1 / 3, 2 / 3, 1])


@on("cpu")
def test_s23_t5_host_layers_are_steps_too(backend: Backend) -> None:
    from gpuexec.devices.backend import open_backend
    from tests.model.staged_models import MODELS, inputs

    staged = MODELS["host call"]
    for chosen in (backend, open_backend(gx.BackendType.SIMULATOR)):
        with gx.Worker(staged.load(), backend=chosen) as worker:
            steps = list(worker.schedule_iterable(inputs(0)))
            taken = [step.nodes for step in steps if not step.waiting]
            assert [len(nodes) for nodes in taken] == [1, 1, 1]
            staged.check(inputs(0), [worker.read_output()])


def test_s23_s81_a_budget_puts_as_many_layers_into_a_step_as_fit(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        for _ in range(3):
            list(worker.schedule_iterable(X, budget_ms=1e9))
            worker.wait_for_completion()
        assert [len(step.nodes) for step in worker.schedule_iterable(X, budget_ms=1e9)] == [3]
        assert [len(step.nodes) for step in worker.schedule_iterable(X, budget_ms=0)] == [1, 1, 1]
        np.testing.assert_array_equal(worker.read_output(), expect_affine(X))
        with pytest.raises(gx.InputError, match="budget_ms"):
            worker.schedule_iterable(X, budget_ms=-1)


@on("tracer")
def test_s31_a_run_is_one_recording_on_one_stream(backend: Backend) -> None:
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


@on("cpu")
def test_s30_e47_e62_an_error_leaves_the_worker_runnable_and_names_the_node(backend: Backend) -> None:
    model, number = gated()
    GATES.open[number].set()
    with gx.Worker(model, backend=backend) as worker:
        for _ in range(2):
            GATES.failures[number] = RuntimeError("no such luck")
            with pytest.raises(gx.GpuexecError, match=r"Gate 'gate' \(float32\[2,3\]\).*no such luck") as caught:
                worker.run(X)
            assert caught.value.node == "gate"
            np.testing.assert_array_equal(worker.run(X)[0], X + 1)


def test_s30_a_run_given_up_half_way_leaves_the_worker_runnable(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        steps = worker.schedule_iterable(X)
        next(steps)
        request = worker.peek_output().readback_request()
        assert worker.cancel()
        with pytest.raises(gx.CancelledError):
            request.result()
        np.testing.assert_array_equal(worker.run(X)[0], expect_affine(X))
