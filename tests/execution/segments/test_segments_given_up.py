"""Cancellation of runs of several plans at any step, and closing of their Worker."""

from __future__ import annotations

import threading

import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.execution.held import holding
from tests.model.staged_models import StagedModel, inputs


def test_run_is_cancelled_at_every_step(staged: StagedModel, own_backend: Backend) -> None:
    x, other = inputs(0), inputs(1)
    with gx.Worker(staged.load(), backend=own_backend) as worker:
        total = sum(1 for _ in worker.schedule_iterable(x))
        worker.run(other)
        worker.wait_for_completion()
        held = None
        for count in range(min(total, 24)):
            steps = worker.schedule_iterable(x)
            run = worker._require_run()
            request = run.peek_output().readback_request()
            for _ in range(count):
                next(steps, None)
            assert worker.cancel() == run.is_cancelled()
            if run.is_cancelled():
                for wait in (run.wait, request.result):
                    with pytest.raises(gx.CancelledError):
                        wait()
            made = worker.schedule(other)
            staged.check(other, [tensor.readback_and_clone() for tensor in made.outputs.values()])
            worker.wait_for_completion()
            worker.trim()
            # Pinned blocks are as many as there were readbacks at once, which the machine decides.
            stats = worker.memory_stats() | {"pinned": 0}
            held = held or stats
            assert stats == held, f"after {count} steps"


def test_run_on_the_driver_thread_is_cancelled(staged: StagedModel, own_backend: Backend) -> None:
    x, other = inputs(0), inputs(1)
    with gx.Worker(staged.load(), backend=own_backend) as worker:
        held = None
        for _ in range(4):
            with holding(worker._engine.stream):
                run = worker.schedule(x)
                request = run.peek_output().readback_request()
                # A run of one plan is wholly on the stream, where it can't be taken back.
                is_whole = staged.is_whole(own_backend)
                assert run.cancel() == run.is_cancelled() == (not is_whole)
                later = worker.schedule(other)
            for wait in () if is_whole else (run.wait, request.result):
                with pytest.raises(gx.CancelledError):
                    wait()
            staged.check(other, [tensor.readback_and_clone() for tensor in later.outputs.values()])
            worker.trim()
            stats = worker.memory_stats() | {"pinned": 0}
            held = held or stats
            assert stats == held


def test_worker_is_closed_while_a_run_is_pending(staged: StagedModel, backend: Backend) -> None:
    x = inputs(0)
    worker = gx.Worker(staged.load(), backend=backend)
    closing = threading.Thread(target=worker.close)
    with holding(worker._engine.stream):
        requests = [tensor.readback_request() for tensor in worker.schedule(x).outputs.values()]
        closing.start()
        assert not requests[0].is_done()
    closing.join(60)
    assert not closing.is_alive()
    staged.check(x, [request.result() for request in requests])


def test_worker_is_closed_between_steps(staged: StagedModel, backend: Backend) -> None:
    worker = gx.Worker(staged.load(), backend=backend)
    steps = worker.schedule_iterable(inputs(0))
    next(steps)
    run = worker._require_run()
    worker.close()
    with pytest.raises(gx.ClosedError):
        next(steps)
    with pytest.raises(gx.CancelledError):
        run.wait()
