"""Runs of several plans: data-dependent work scheduled at once, with sizes known later."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.execution.held import holding
from tests.model.small_models import CPU
from tests.model.staged_models import MODELS, StagedModel, inputs


def test_schedule_returns_before_anything_is_done(staged: StagedModel, backend: Backend) -> None:
    x = inputs(0)
    with gx.Worker(staged.load(), backend=backend) as worker, holding(worker._engine.stream) as gate:
        run = worker.schedule(x)
        y = run.peek_output()
        request, called = y.readback_request(), threading.Event()
        request.add_done_callback(lambda _: called.set())
        assert not run.is_done() and not request.is_done() and not called.is_set()
        if staged.shape is None:
            with pytest.raises(gx.PendingError, match=r"await y\.wait_async\(\)"):
                _ = y.shape
        else:
            assert y.max_shape == staged.shape(x)
        if staged.bound is not None:
            assert y.max_shape == staged.bound(x)
        assert "pending" in repr(y)
        gate.set()
        run.wait()
        assert y.shape == y.max_shape == staged.expect(x)[0].shape
        assert called.wait(60)
        staged.check(x, [tensor.readback_and_clone() for tensor in run.outputs.values()])
        report = worker.report()
    reads = {row.value for row in report.host_reads}
    is_cpu = backend.type is CPU
    assert (len(reads), report.host_syncs) == (0 if is_cpu and staged.calls else len(staged.reads), ())
    assert len(report.host_calls) == (0 if is_cpu else len(staged.calls))


def test_unknown_bound_is_reported_like_an_unknown_shape() -> None:
    with gx.Worker(MODELS["if"].load(), backend=CPU) as worker, holding(worker._engine.stream) as gate:
        y = worker.schedule(inputs(0)).peek_output()
        with pytest.raises(gx.PendingError, match=r"'y'.*await y\.wait_async\(\)"):
            _ = y.max_shape
        gate.set()


def test_shape_is_known_once_ready(staged: StagedModel, backend: Backend) -> None:
    x = inputs(1)

    async def serve() -> None:
        with gx.Worker(staged.load(), backend=backend) as worker, holding(worker._engine.stream) as gate:
            y = worker.schedule(x).peek_output()
            waiting = asyncio.ensure_future(y.wait_async())
            await asyncio.sleep(0)
            assert not waiting.done()
            gate.set()
            assert (await waiting).shape == staged.expect(x)[0].shape
            answers = [await tensor.readback_and_clone_async() for tensor in worker._require_run().outputs.values()]
            staged.check(x, answers)

    asyncio.run(serve())


def test_runs_in_flight_come_in_order_and_keep_apart(staged: StagedModel, backend: Backend) -> None:
    with gx.Worker(staged.load(), backend=backend, frames=2) as worker, holding(worker._engine.stream) as gate:
        requests = []
        for number in range(5):
            run = worker.schedule(inputs(number))
            requests.append([tensor.readback_request() for tensor in run.outputs.values()])
        assert not any(request.is_done() for row in requests for request in row)
        gate.set()
        for number, row in enumerate(requests):
            staged.check(inputs(number), [request.result() for request in row])


def test_output_that_the_host_computes_along_is_there_all_the_same(backend: Backend) -> None:
    """What leads to a host call is light, so that the host computes it too; it is an output of the device's plan."""
    light = StagedModel("(float[n] x) => (float[n] a, float[n] y) { a = Neg (x) y = test.NoKernel (a) }")
    with gx.Worker(light.load(), backend=backend) as worker:
        for n in (3, 5):
            x = np.arange(n, dtype=np.float32)
            a, y = worker.run(x)
            np.testing.assert_array_equal(a, -x)
            np.testing.assert_array_equal(y, x)


def test_output_that_one_host_call_makes_for_the_next_stays_known(backend: Backend) -> None:
    chain = StagedModel("(float[n] x) => (float[n] a, float[n] y) { a = test.NoKernel (x) y = test.NoKernel (a) }")
    with gx.Worker(chain.load(), backend=backend) as worker:
        for n in (3, 2000, 5):
            x = np.arange(n, dtype=np.float32)
            a, y = worker.run(x)
            np.testing.assert_array_equal(a, -x)
            np.testing.assert_array_equal(y, x)


def test_run_after_run_takes_the_same_plans_and_memory(staged: StagedModel, own_backend: Backend) -> None:
    with gx.Worker(staged.load(), backend=own_backend) as worker:
        held = []
        for turn in range(39):
            x = inputs(turn % 3)
            staged.check(x, [t.readback_and_clone() for t in worker.schedule(x).outputs.values()])
            # Pinned blocks are as many as there were readbacks at once, which the machine decides.
            held.append((worker.report().plans, worker.memory_stats() | {"pinned": 0}))
    assert held[-1] == held[30]


@pytest.mark.feature("S23", "T5")
def test_steps_wait_instead_of_blocking(staged: StagedModel, backend: Backend) -> None:
    x = inputs(2)
    with gx.Worker(staged.load(), backend=backend) as worker, holding(worker._engine.stream) as gate:
        progress, nodes, waited = [worker.schedule_progress], [], 0
        for step in worker.schedule_iterable(x):
            if step.waiting:
                assert step.nodes == ()
                waited += 1
                gate.set()
            else:
                assert step.index == len(nodes)
                nodes += step.nodes
            progress.append(worker.schedule_progress)
        gate.set()
        progress.append(worker.schedule_progress)
        staged.check(x, [worker.read_output(name) for name in worker._require_run().outputs])
        has_calls = bool(worker.report().host_calls)
    assert (progress[0], progress[-1]) == (0.0, 1.0) and progress == sorted(progress)
    # A loop far ahead of the device waits too.
    assert waited > 0 or not staged.reads or backend.type is CPU
    assert ("NoKernel_1" in nodes) == bool(staged.calls)
    assert has_calls == (bool(staged.calls) and backend.type is not CPU)


@pytest.mark.feature("S23", "T5")
def test_layer_of_the_host_is_a_step_of_its_own(backend: Backend) -> None:
    staged = MODELS["host call"]
    with gx.Worker(staged.load(), backend=backend) as worker:
        steps = list(worker.schedule_iterable(inputs(0)))
        assert [len(step.nodes) for step in steps if not step.waiting] == [1, 1, 1]
        staged.check(inputs(0), [worker.read_output()])


def test_waiting_for_everything_works_between_steps(staged: StagedModel, backend: Backend) -> None:
    x = inputs(0)
    with gx.Worker(staged.load(), backend=backend) as worker:
        for step in worker.schedule_iterable(x):
            worker.wait_for_completion()
            assert not step.waiting or staged.reads
        staged.check(x, [worker.read_output(name) for name in worker._require_run().outputs])


def test_a_plan_without_commands_has_no_steps(backend: Backend) -> None:
    x = np.full((1, 6), -1, np.float32)  # nothing is found, so nothing is left to write
    with gx.Worker(MODELS["read"].load(), backend=backend) as worker:
        for budget_ms in (None, 1.0):
            steps = list(worker.schedule_iterable(x, budget_ms=budget_ms))
            assert all(step.nodes for step in steps)
            assert worker.read_output().shape == (2, 0)
