"""Asyncio: awaited results, with the event loop free meanwhile."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import open_backend
from tests.model.small_models import CPU, GATES, affine, expect_affine, gated, hold, hold_worker, ramp

TICKS = 5000


@pytest.mark.feature("S47")
def test_loop_serves_thousands_of_ticks_while_a_run_is_pending() -> None:
    model, gate = gated()
    x = ramp(2, 3)

    async def serve() -> int:
        with gx.Worker(model, backend=CPU) as worker:
            answer = asyncio.ensure_future(worker.schedule(x).peek_output().readback_and_clone_async())
            assert await asyncio.to_thread(GATES.entered[gate].wait)
            ticks = 0
            while not answer.done():
                ticks += 1
                if ticks == TICKS:
                    GATES.open[gate].set()
                await asyncio.sleep(0)
            np.testing.assert_array_equal(await answer, x + 1)
            return ticks

    assert asyncio.run(serve()) >= TICKS


@pytest.mark.feature("S47")
def test_loop_serves_thousands_of_ticks_while_the_simulator_is_busy() -> None:
    backend = open_backend(gx.BackendType.SIMULATOR)
    x = ramp(2, 3)

    async def serve() -> int:
        stream = backend.device.create_stream()
        with gx.Worker(affine(), backend=backend, stream=stream) as worker:
            gate = hold(stream)
            answer = asyncio.ensure_future(worker.schedule(x).peek_output().readback_and_clone_async())
            ticks = 0
            while not answer.done():
                ticks += 1
                if ticks == TICKS:
                    gate.set()
                await asyncio.sleep(0)
            np.testing.assert_array_equal(await answer, expect_affine(x))
            return ticks

    assert asyncio.run(serve()) >= TICKS


def test_requests_runs_and_tensors_are_awaited() -> None:
    x = ramp(2, 3)

    async def serve() -> None:
        with gx.Worker(affine(), backend=CPU) as worker:
            run = await worker.schedule(x)
            assert run.is_done()
            assert await run.peek_output().wait_async() is run.peek_output()
            request = run.peek_output().readback_request()
            for _ in range(3):
                np.testing.assert_array_equal(await request, expect_affine(x))
            np.testing.assert_array_equal(await run.peek_output().readback_and_clone_async(), expect_affine(x))
            await worker.wait_for_completion_async()
            await worker.wait_for_completion_async()

    asyncio.run(serve())


def test_many_requests_are_awaited_together() -> None:
    worker, gate = hold_worker(affine())

    async def serve() -> None:
        requests = [worker.schedule(ramp(2, 3) + i).peek_output().readback_request() for i in range(200)]
        waiting = asyncio.gather(*requests)
        await asyncio.sleep(0)
        gate.set()
        for i, answer in enumerate(await waiting):
            np.testing.assert_array_equal(answer, expect_affine(ramp(2, 3) + i))

    with worker:
        asyncio.run(serve())


def test_one_request_is_awaited_in_two_loops() -> None:
    worker, gate = hold_worker(affine())
    x = ramp(2, 3)
    answers: list[object] = []
    with worker:
        request = worker.schedule(x).peek_output().readback_request()

        async def read() -> None:
            answers.append(await request)

        threads = [threading.Thread(target=lambda: asyncio.run(read())) for _ in range(2)]
        for thread in threads:
            thread.start()
        gate.set()
        for thread in threads:
            thread.join()
    assert len(answers) == 2
    for answer in answers:
        np.testing.assert_array_equal(answer, expect_affine(x))  # type: ignore[arg-type]


def test_blocking_in_a_running_loop_works_as_in_a_notebook() -> None:
    x = ramp(2, 3)

    async def cell() -> None:
        # A notebook's cell runs inside a loop: nothing may try to start another.
        with gx.Worker(affine(), backend=CPU) as worker:
            np.testing.assert_array_equal(worker.run(x)[0], expect_affine(x))
            request = worker.schedule(x).peek_output().readback_request()
            np.testing.assert_array_equal(await asyncio.to_thread(request.result), expect_affine(x))
            np.testing.assert_array_equal(await request, expect_affine(x))

    asyncio.run(cell())


def test_task_that_is_cancelled_leaves_the_request_to_others() -> None:
    worker, gate = hold_worker(affine())
    x = ramp(2, 3)

    async def serve() -> None:
        request = worker.schedule(x).peek_output().readback_request()

        async def read() -> object:
            return await request

        task = asyncio.ensure_future(read())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not request.is_cancelled()
        gate.set()
        np.testing.assert_array_equal(await request, expect_affine(x))

    with worker:
        asyncio.run(serve())


def test_loop_closed_before_the_answer_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    worker, gate = hold_worker(affine())
    x = ramp(2, 3)
    with worker:
        request = worker.schedule(x).peek_output().readback_request()

        async def give_up() -> None:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(request_as_task()), 0)

        async def request_as_task() -> object:
            return await request

        asyncio.run(give_up())
        gate.set()
        reported = threading.Event()
        request.add_done_callback(lambda _: reported.set())
        assert reported.wait(60)
        np.testing.assert_array_equal(asyncio.run(request_as_task()), expect_affine(x))  # type: ignore[arg-type]
    assert not caplog.records


def test_cancelled_request_wakes_who_awaits_it() -> None:
    worker, gate = hold_worker(affine())

    async def serve() -> None:
        request = worker.schedule(ramp(2, 3)).peek_output().readback_request()
        asyncio.get_running_loop().call_soon(request.cancel)
        with pytest.raises(gx.CancelledError):
            await request

    with worker:
        asyncio.run(serve())
        gate.set()


def test_error_of_the_run_comes_to_who_awaits_it() -> None:
    model, gate = gated()
    GATES.open[gate].set()

    async def serve() -> None:
        with gx.Worker(model, backend=CPU) as worker:
            for choose in (
                lambda run: run,
                lambda run: run.peek_output().readback_request(),
                lambda run: run.peek_output().wait_async(),
            ):
                GATES.failures[gate] = RuntimeError("no such luck")
                awaitable = choose(worker.schedule(ramp(2, 3)))
                with pytest.raises(gx.GpuexecError, match="no such luck"):
                    await awaitable

    asyncio.run(serve())


def test_steps_are_taken_by_one_task_and_awaited_by_another() -> None:
    x = ramp(2, 3)

    async def serve() -> None:
        with gx.Worker(affine(), backend=CPU) as worker:
            steps = worker.schedule_iterable(x)
            next(steps)
            answer = asyncio.ensure_future(worker.peek_output().readback_and_clone_async())
            for _ in steps:
                await asyncio.sleep(0)
            np.testing.assert_array_equal(await answer, expect_affine(x))

    asyncio.run(serve())
