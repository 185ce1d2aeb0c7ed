"""Runs of several plans: what depends on data is scheduled at once, known when it is known, and gone along in turn."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.runtime.backend import Backend, open_backend
from gpuexec.runtime.cpu import CpuDevice
from tests.control_models import ControlModel
from tests.devices.opening import make_simulator
from tests.small_models import CPU, hold
from tests.staged_models import MODELS, StagedModel, inputs

BACKENDS = {"cpu": CPU, "simulator": gx.BackendType.SIMULATOR}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return open_backend(BACKENDS[request.param])


@pytest.fixture(params=MODELS)
def staged(request: pytest.FixtureRequest) -> StagedModel:
    return MODELS[request.param]


@pytest.fixture(params=BACKENDS)
def own_backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """A backend of the test's own, so that nobody else's memory is counted."""
    type = BACKENDS[request.param]
    device = CpuDevice() if type is CPU else make_simulator()
    yield Backend(device, type, "for a test")
    device.close()


@contextlib.contextmanager
def holding(worker: gx.Worker) -> Iterator[threading.Event]:
    """Hold back the Worker's stream until the event given is set, or the block is left."""
    gate = hold(worker._engine.stream)
    try:
        yield gate
    finally:
        gate.set()


# ---------------------------------------------------------------- schedule


def test_schedule_returns_before_anything_is_done(staged: StagedModel, backend: Backend) -> None:
    x = inputs(0)
    with gx.Worker(staged.load(), backend=backend) as worker, holding(worker) as gate:
        run = worker.schedule(x)
        y = run.peek_output()
        request, called = y.readback_request(), threading.Event()
        request.add_done_callback(lambda _: called.set())
        assert not run.is_done() and not request.is_done() and not called.is_set()
        if staged.shape is None:
            with pytest.raises(gx.PendingError, match=r"await y\.ready\(\)"):
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


def test_unknown_bound_is_told_like_an_unknown_shape() -> None:
    with gx.Worker(MODELS["if"].load(), backend=CPU) as worker, holding(worker) as gate:
        y = worker.schedule(inputs(0)).peek_output()
        with pytest.raises(gx.PendingError, match=r"'y'.*await y\.ready\(\)"):
            _ = y.max_shape
        gate.set()


def test_shape_is_known_once_ready(staged: StagedModel, backend: Backend) -> None:
    x = inputs(1)

    async def serve() -> None:
        with gx.Worker(staged.load(), backend=backend) as worker, holding(worker) as gate:
            y = worker.schedule(x).peek_output()
            waiting = asyncio.ensure_future(y.ready())
            await asyncio.sleep(0)
            assert not waiting.done()
            gate.set()
            assert (await waiting).shape == staged.expect(x)[0].shape
            answers = [await tensor.readback_and_clone_async() for tensor in worker._require_run().outputs.values()]
            staged.check(x, answers)

    asyncio.run(serve())


def test_runs_in_flight_come_in_order_and_keep_apart(staged: StagedModel, backend: Backend) -> None:
    with gx.Worker(staged.load(), backend=backend, frames=2) as worker, holding(worker) as gate:
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
        for turn in range(12):
            x = inputs(turn % 3)
            staged.check(x, [t.readback_and_clone() for t in worker.schedule(x).outputs.values()])
            held.append((worker.report().plans, worker.memory_stats()))
    assert held[-1] == held[8]


# ---------------------------------------------------------------- layer by layer


def test_steps_wait_instead_of_blocking(staged: StagedModel, backend: Backend) -> None:
    x = inputs(2)
    with gx.Worker(staged.load(), backend=backend) as worker, holding(worker) as gate:
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


def test_waiting_for_everything_works_between_steps(staged: StagedModel, backend: Backend) -> None:
    x = inputs(0)
    with gx.Worker(staged.load(), backend=backend) as worker:
        for step in worker.schedule_iterable(x):
            worker.wait_for_completion()
            assert not step.waiting or staged.reads
        staged.check(x, [worker.read_output(name) for name in worker._require_run().outputs])


# ---------------------------------------------------------------- giving up


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
            worker.trim()
            held = held or worker.memory_stats()
            assert worker.memory_stats() == held, f"after {count} steps"


def test_run_on_the_driver_thread_is_cancelled(staged: StagedModel, own_backend: Backend) -> None:
    x, other = inputs(0), inputs(1)
    with gx.Worker(staged.load(), backend=own_backend) as worker:
        held = None
        for _ in range(4):
            with holding(worker):
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
            held = held or worker.memory_stats()
            assert worker.memory_stats() == held


def test_worker_is_closed_while_a_run_is_pending(staged: StagedModel, backend: Backend) -> None:
    x = inputs(0)
    worker = gx.Worker(staged.load(), backend=backend)
    closing = threading.Thread(target=worker.close)
    with holding(worker):
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


# ---------------------------------------------------------------- chains


@pytest.mark.parametrize("consuming", BACKENDS)
def test_outputs_of_unknown_shape_are_inputs_of_another_worker(
    staged: StagedModel, backend: Backend, consuming: str
) -> None:
    x = inputs(0)
    expected = staged.expect(x)[0]
    code = 7 if expected.dtype == np.int64 else 1
    dims = ", ".join("abc"[: expected.ndim])
    text = f"({'int64' if code == 7 else 'float'}[{dims}] y) => ({'int64' if code == 7 else 'float'}[{dims}] z)"
    negate = gx.load(ControlModel(text + " { z = Neg (y) }", ()).parse().SerializeToString())
    with (
        gx.Worker(staged.load(), backend=backend) as producer,
        gx.Worker(negate, backend=open_backend(BACKENDS[consuming])) as consumer,
    ):
        answer = consumer.schedule(producer.schedule(x).peek_output()).peek_output().readback_and_clone()
        np.testing.assert_allclose(answer, -expected, rtol=1e-4, atol=1e-4)
        # The consumer is planned for the shape: who asks for one that is not known yet waits for it, and it is counted.
        wait = ("y", "its shape is an input of another run")
        assert producer.report().host_syncs in ((), (wait,))


@pytest.mark.parametrize("name", ["host call", "scan"])
@pytest.mark.parametrize("consuming", BACKENDS)
def test_output_of_foreseen_shape_is_an_input_before_its_run_is_issued(
    name: str, backend: Backend, consuming: str
) -> None:
    x, staged = inputs(0), MODELS[name]
    rank = staged.expect(x)[0].ndim
    dims = ", ".join("abc"[:rank])
    negate = gx.load(
        ControlModel(f"(float[{dims}] y) => (float[{dims}] z) {{ z = Neg (y) }}", ()).parse().SerializeToString()
    )
    with (
        gx.Worker(staged.load(), backend=backend) as producer,
        gx.Worker(negate, backend=open_backend(BACKENDS[consuming])) as consumer,
    ):
        with holding(producer) as gate:
            pending = producer.schedule(x)
            chained = consumer.schedule(pending.peek_output())
            assert not pending.is_done() and not chained.is_done()
            gate.set()
        answer = chained.peek_output().readback_and_clone()
        np.testing.assert_allclose(answer, -staged.expect(x)[0], rtol=1e-4, atol=1e-4)
        assert producer.report().host_syncs == consumer.report().host_syncs == ()


def test_staged_runs_are_chained() -> None:
    x = np.abs(inputs(0)) + 1
    model = MODELS["host call"]
    with gx.Worker(model.load(), backend=CPU) as producer, gx.Worker(MODELS["read"].load(), backend=CPU) as consumer:
        made = consumer.run(producer.schedule(-x).peek_output())
    np.testing.assert_array_equal(made, np.array(np.nonzero(np.ones_like(x))))


def test_copy_of_an_output_waits_for_its_shape_and_is_counted(backend: Backend) -> None:
    staged, x = MODELS["read"], inputs(0)
    with gx.Worker(staged.load(), backend=backend) as worker:
        worker.schedule(x)
        copy = worker.copy_output()
        worker.run(inputs(1))
        staged.check(x, [copy.readback_and_clone()])
        assert [what for what, _ in worker.report().host_syncs] == ["y"]
