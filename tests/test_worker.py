"""The Worker: scheduling whole and piece by piece, results, waiting, giving up, closing."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.runtime.backend import Backend, open_backend
from gpuexec.runtime.tracer import TracerDevice
from gpuexec.spec import TensorSpec
from tests.small_models import (
    GATES,
    Array,
    affine,
    expect_affine,
    gated,
    hold,
    make_tracer,
    ramp,
    two_inputs,
    two_layers,
)

CPU = gx.BackendType.CPU
LATER_NAMES = ("math", "strict", "synchronous", "budget_ms")


@pytest.fixture
def worker() -> Iterator[gx.Worker]:
    with gx.Worker(affine(), backend=CPU) as worker:
        yield worker


def hold_worker(model: gx.Model, **options: object) -> tuple[gx.Worker, threading.Event]:
    """Return a Worker on the CPU whose stream is held."""
    stream = open_backend(CPU).device.create_stream()
    return gx.Worker(model, backend=CPU, stream=stream, **options), hold(stream)  # type: ignore[arg-type]


# ---- running


def test_run_gives_the_answer(worker: gx.Worker) -> None:
    x = ramp(2, 3)
    np.testing.assert_array_equal(worker.run(x), expect_affine(x))


def test_run_gives_a_list_for_several_outputs() -> None:
    left, right = ramp(2, 3), ramp(2, 3)[::-1]
    with gx.Worker(two_inputs(), backend=CPU) as worker:
        total, difference = worker.run({"left": left, "right": right})
    np.testing.assert_array_equal(total, left + right)
    np.testing.assert_array_equal(difference, left - right)


def test_schedule_returns_before_the_work_is_done() -> None:
    model, gate = gated()
    x = ramp(2, 3)
    with gx.Worker(model, backend=CPU) as worker:
        run = worker.schedule(x)
        assert GATES.entered[gate].wait()
        assert not run.is_done() and not run.wait(timeout_s=0)
        y = worker.peek_output()
        assert y.shape == (2, 3) and not y.is_done()
        GATES.open[gate].set()
        assert run.wait()
        np.testing.assert_array_equal(y.readback_and_clone(), x + 1)


def test_execute_is_schedule() -> None:
    assert gx.Worker.execute is gx.Worker.schedule
    assert gx.Worker.execute_async is gx.Worker.schedule_iterable is gx.Worker.start_manual_schedule


def test_names_of_later_work_are_absent() -> None:
    for name in LATER_NAMES:
        with pytest.raises(TypeError, match=name):
            gx.Worker(affine(), backend=CPU, **{name: None})  # type: ignore[arg-type]
    assert not hasattr(gx, "Program") and not hasattr(gx, "no_implicit_sync")
    assert not hasattr(gx.BackendType, "GPU_PIXEL") and not hasattr(gx.Worker, "state")


def test_frames_below_one_are_refused() -> None:
    with pytest.raises(gx.InputError, match="frames"):
        gx.Worker(affine(), backend=CPU, frames=0)


# ---- piece by piece


def test_steps_are_one_per_layer(worker: gx.Worker) -> None:
    x = ramp(2, 3)
    steps = list(worker.schedule_iterable(x))
    assert steps == [gx.Step(0, ("double",), False), gx.Step(1, ("relu",), False), gx.Step(2, ("add",), False)]
    with pytest.raises(AttributeError):
        steps[0].index = 7  # type: ignore[misc]
    np.testing.assert_array_equal(worker.read_output(), expect_affine(x))


def test_progress_starts_at_zero_and_counts_finished_layers(worker: gx.Worker) -> None:
    worker.run(ramp(2, 3))
    assert worker.schedule_progress == 1.0
    steps = worker.schedule_iterable(ramp(2, 3))
    assert worker.schedule_progress == 0.0
    seen = []
    for _ in steps:
        seen.append(worker.schedule_progress)
    assert seen == pytest.approx([1 / 3, 2 / 3, 1.0])


def test_layers_are_issued_only_when_asked_for() -> None:
    backend = make_tracer()
    with gx.Worker(affine(), backend=backend) as worker:
        worker.prepare({"x": (2, 3)})
        log = trace(backend)
        steps = worker.schedule_iterable(ramp(2, 3))
        counts = [log.count("launch")]
        for _ in steps:
            counts.append(trace(backend).count("launch"))
    assert counts == [0, 1, 2, 3]


def trace(backend: Backend) -> list[object]:
    assert isinstance(backend.device, TracerDevice)
    return [row[0] for row in backend.device.log]


def test_stale_iterator_raises(worker: gx.Worker) -> None:
    x, other = ramp(2, 3), ramp(4, 3)
    steps = worker.schedule_iterable(x)
    next(steps)
    given_up = worker.peek_output()
    worker.schedule(other)
    with pytest.raises(gx.StaleError, match="newer run"):
        next(steps)
    with pytest.raises(gx.StaleError):
        given_up.readback_request()
    np.testing.assert_array_equal(worker.read_output(), expect_affine(other))


def test_iterator_never_advanced_turns_stale(worker: gx.Worker) -> None:
    steps = worker.schedule_iterable(ramp(2, 3))
    newer = worker.schedule_iterable(ramp(2, 3))
    with pytest.raises(gx.StaleError):
        next(steps)
    assert len(list(newer)) == 3


def test_refused_inputs_leave_the_iterator_alone(worker: gx.Worker) -> None:
    x = ramp(2, 3)
    steps = worker.schedule_iterable(x)
    next(steps)
    with pytest.raises(gx.InputError):
        worker.schedule(x.astype(np.float64))
    assert len(list(steps)) == 2
    np.testing.assert_array_equal(worker.read_output(), expect_affine(x))


def test_prepare_between_steps_changes_nothing(worker: gx.Worker) -> None:
    x = ramp(2, 3)
    steps = worker.schedule_iterable(x)
    next(steps)
    worker.prepare({"x": (2000, 3)})
    worker.prepare({"x": (1, 3)})
    list(steps)
    np.testing.assert_array_equal(worker.read_output(), expect_affine(x))


def test_waiting_between_steps_waits_for_what_is_issued(worker: gx.Worker) -> None:
    x = ramp(2, 3)
    for _ in worker.schedule_iterable(x):
        worker.wait_for_completion()
    np.testing.assert_array_equal(worker.read_output(), expect_affine(x))


def test_waiting_for_results_of_steps_not_taken_raises(worker: gx.Worker) -> None:
    steps = worker.schedule_iterable(ramp(2, 3))
    next(steps)
    with pytest.raises(gx.StateError, match="finish iterating"):
        worker.read_output()
    assert len(list(steps)) == 2
    assert worker.read_output().shape == (2, 3)


def test_steps_say_that_they_wait() -> None:
    producer, gate = hold_worker(affine())
    tracer = make_tracer()
    with producer, gx.Worker(affine(), backend=tracer) as consumer:
        pending = producer.schedule(ramp(2, 3)).peek_output()
        steps = consumer.schedule_iterable(pending)
        assert next(steps) == next(steps) == gx.Step(0, (), True)
        assert consumer.schedule_progress == 0.0
        gate.set()
        producer.wait_for_completion()
        taken = [step for step in steps if not step.waiting]
    assert [step.nodes for step in taken] == [("double",), ("relu",), ("add",)]


# ---- results


def test_peek_before_a_run_raises(worker: gx.Worker) -> None:
    with pytest.raises(gx.StateError, match="schedule"):
        worker.peek_output()


def test_peek_names_the_outputs_there_are() -> None:
    with gx.Worker(two_inputs(), backend=CPU) as worker:
        run = worker.schedule([ramp(1, 3), ramp(1, 3)])
        assert worker.peek_output().name == "sum" and run.peek_output("difference").name == "difference"
        assert list(run.outputs) == ["sum", "difference"]
        with pytest.raises(gx.InputError, match=r"'total'.*sum, difference"):
            worker.peek_output("total")


def test_stale_tensor_raises_after_the_next_run(worker: gx.Worker) -> None:
    y = worker.schedule(ramp(2, 3)).peek_output()
    worker.schedule(ramp(2, 3))
    for use in (y.readback_request, y.readback_and_clone, lambda: y[0], lambda: worker.schedule(y)):
        with pytest.raises(gx.StaleError, match=r"'y' belongs to an earlier run.*copy_output"):
            use()


def test_refused_inputs_leave_outputs_fresh(worker: gx.Worker) -> None:
    x = ramp(2, 3)
    y = worker.schedule(x).peek_output()
    with pytest.raises(gx.InputError):
        worker.schedule(x[0])
    np.testing.assert_array_equal(y.readback_and_clone(), expect_affine(x))


def test_copy_outlives_later_runs_and_the_worker() -> None:
    x = ramp(2, 3)
    with gx.Worker(affine(), backend=CPU) as worker:
        worker.schedule(x)
        copy = worker.copy_output()
        for _ in range(4):
            worker.schedule(x + 9)
    np.testing.assert_array_equal(copy.readback_and_clone(), expect_affine(x))


def test_copy_does_not_wait() -> None:
    worker, gate = hold_worker(affine())
    x = ramp(2, 3)
    with worker:
        worker.schedule(x)
        copy = worker.copy_output()
        assert not copy.is_done()
        gate.set()
        np.testing.assert_array_equal(copy.readback_and_clone(), expect_affine(x))


def test_copy_is_no_view_of_the_workers_tensor(worker: gx.Worker) -> None:
    x = ramp(2, 3)
    y = worker.schedule(x).peek_output()
    copy = worker.copy_output()
    y.data_on_backend.upload(np.zeros((2, 3), np.float32))
    np.testing.assert_array_equal(copy.readback_and_clone(), expect_affine(x))


def test_copy_into_a_copy_waits_for_its_readers(worker: gx.Worker) -> None:
    x = ramp(2, 3)
    worker.schedule(x)
    copy = worker.copy_output()
    before = copy.readback_request()
    worker.schedule(x + 1)
    assert worker.copy_output(out=copy) is copy
    np.testing.assert_array_equal(before.result(), expect_affine(x))
    np.testing.assert_array_equal(copy.readback_and_clone(), expect_affine(x + 1))


def test_copy_into_another_shape_or_a_workers_tensor_is_refused(worker: gx.Worker) -> None:
    worker.schedule(ramp(2, 3))
    copy = worker.copy_output()
    other = worker.schedule(ramp(4, 3)).peek_output()
    for out in (copy, other):
        with pytest.raises(gx.InputError, match="copy_output"):
            worker.copy_output(out=out)


# ---- frames


def test_pending_readback_is_not_overwritten_by_later_runs() -> None:
    backend = open_backend(CPU)
    with gx.Worker(affine(), backend=CPU, frames=2) as worker:
        worker.run(ramp(2, 3))
        with worker._engine.turns.transfers.issuing() as copies:
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
            y, x = worker.schedule(y).peek_output(), expect_affine(x)
        np.testing.assert_array_equal(y.readback_and_clone(), expect_affine(x))


# ---- waiting and giving up


def test_flush_waits_only_when_asked() -> None:
    worker, gate = hold_worker(affine())
    with worker:
        run = worker.schedule(ramp(2, 3))
        worker.flush_schedule()
        assert not run.is_done()
        gate.set()
        worker.flush_schedule(blocking=True)
        assert run.is_done()


def test_flush_before_any_run_does_nothing(worker: gx.Worker) -> None:
    worker.flush_schedule(blocking=True)


def test_waiting_copies_nothing() -> None:
    backend = make_tracer()
    with gx.Worker(affine(), backend=backend) as worker:
        worker.schedule(ramp(2, 3))
        worker.wait_for_completion()
        worker.peek_output().data_on_backend.complete_all_pending_operations()
        assert "copy_to_host" not in trace(backend)
        worker.read_output()
        assert "copy_to_host" in trace(backend)


def test_cancel_gives_up_a_run_half_scheduled(worker: gx.Worker) -> None:
    x = ramp(2, 3)
    steps = worker.schedule_iterable(x)
    next(steps)
    request = worker.peek_output().readback_request()
    run = worker._require_run()
    assert worker.cancel() and not worker.cancel()
    assert run.is_cancelled() and run.is_done() and "cancelled" in repr(run)
    for wait in (run.wait, request.result):
        with pytest.raises(gx.CancelledError):
            wait()
    with pytest.raises(gx.StaleError):
        next(steps)
    np.testing.assert_array_equal(worker.run(x), expect_affine(x))


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
        np.testing.assert_array_equal(consumer.run(x), expect_affine(x))
        assert len(list(steps)) == 2


def test_failing_host_function_leaves_the_worker_usable() -> None:
    model, gate = gated()
    x = ramp(2, 3)
    GATES.open[gate].set()
    with gx.Worker(model, backend=CPU) as worker:
        for _ in range(3):
            GATES.failures[gate] = RuntimeError("no such luck")
            run = worker.schedule(x)
            request = run.peek_output().readback_request()
            with pytest.raises(gx.GpuexecError, match=r"gate.*no such luck"):
                request.result()
            with pytest.raises(gx.GpuexecError, match="no such luck"):
                run.wait()
            np.testing.assert_array_equal(worker.run(x), x + 1)


def test_consumer_of_a_failed_run_fails_with_its_error() -> None:
    model, gate = gated()
    GATES.open[gate].set()
    GATES.failures[gate] = RuntimeError("no such luck")
    with gx.Worker(model, backend=CPU) as producer, gx.Worker(affine(), backend=CPU) as consumer:
        run = consumer.schedule(producer.schedule(ramp(2, 3)).peek_output())
        with pytest.raises(gx.GpuexecError, match="no such luck"):
            run.wait()
        x = ramp(2, 3)
        np.testing.assert_array_equal(consumer.run(x), expect_affine(x))


# ---- life


def test_close_is_idempotent_and_ends_use(worker: gx.Worker) -> None:
    y = worker.schedule(ramp(2, 3)).peek_output()
    worker.close()
    worker.close()
    for use in (
        lambda: worker.schedule(ramp(2, 3)),
        worker.peek_output,
        worker.wait_for_completion,
        y.readback_request,
    ):
        with pytest.raises(gx.ClosedError, match="closed"):
            use()


def test_close_while_readbacks_are_pending_keeps_them_readable() -> None:
    worker, gate = hold_worker(affine())
    x = ramp(2, 3)
    request = worker.schedule(x).peek_output().readback_request()
    closing = threading.Thread(target=worker.close)
    closing.start()
    assert not request.is_done()
    gate.set()
    closing.join()
    assert request.is_done()
    np.testing.assert_array_equal(request.result(), expect_affine(x))


def test_close_leaves_the_callers_stream_open() -> None:
    stream = open_backend(CPU).device.create_stream()
    for _ in range(2):
        with gx.Worker(affine(), backend=CPU, stream=stream) as worker:
            worker.run(ramp(2, 3))
    stream.synchronize()


def test_second_caller_is_refused(worker: gx.Worker) -> None:
    entered, leave = threading.Event(), threading.Event()

    class Slow:
        def __array__(self, dtype: object = None, copy: object = None) -> Array:
            entered.set()
            leave.wait()
            return ramp(2, 3)

    answers: list[object] = []
    first = threading.Thread(target=lambda: answers.append(worker.run({"x": Slow()})))
    first.start()
    assert entered.wait()
    for use in (lambda: worker.schedule(ramp(2, 3)), worker.copy_output, worker.close, worker.trim):
        with pytest.raises(gx.StateError, match="one Worker per thread"):
            use()
    leave.set()
    first.join()
    np.testing.assert_array_equal(answers[0], expect_affine(ramp(2, 3)))  # type: ignore[arg-type]


def test_workers_of_one_model_run_in_threads_over_the_same_weights() -> None:
    model = affine()
    answers: dict[int, Array] = {}

    def work(number: int) -> None:
        with gx.Worker(model, backend=CPU) as worker:
            for _ in range(20):
                answers[number] = worker.run(ramp(2, 3) + number)  # type: ignore[assignment]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, answer in answers.items():
        np.testing.assert_array_equal(answer, expect_affine(ramp(2, 3) + number))
    assert len(answers) == 4


def test_weights_are_uploaded_once_for_all_workers() -> None:
    backend, model = make_tracer(), affine()
    with gx.Worker(model, backend=backend) as one, gx.Worker(model, backend=backend) as other:
        one.schedule(ramp(2, 3))
        held = one.memory_stats()["weights"]
        uploads = trace(backend).count("copy_to_device")
        other.schedule(ramp(2, 3))
        assert trace(backend).count("copy_to_device") == uploads + 1  # its input
        assert other.memory_stats()["weights"] == one.memory_stats()["weights"] == held > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_objects_raise_with_the_word_spawn(worker: gx.Worker) -> None:
    run = worker.schedule(ramp(2, 3))
    tensor, request = run.peek_output(), run.peek_output().readback_request()
    request.wait()
    uses = [
        lambda: worker.schedule(ramp(2, 3)),
        worker.peek_output,
        worker.close,
        run.wait,
        run.is_done,
        run.cancel,
        tensor.readback_and_clone,
        tensor.is_done,
        lambda: tensor[0],
        request.result,
        request.is_done,
        request.cancel,
        lambda: gx.Worker(worker.model, backend=CPU),
    ]
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        said = 0
        for use in uses:
            try:
                use()
            except gx.StateError as error:
                said += "spawn" in str(error)
        os.write(send, bytes([said]))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(receive, 1)[0] == len(uses)
    os.close(receive)
    os.close(send)


# ---- what there is to know


def test_prepare_leaves_nothing_to_plan(worker: gx.Worker) -> None:
    plan = worker.prepare({"x": (2, 3)})
    before = worker.report()
    assert before.runs == 0 and before.plans == 1 and worker.plans == (plan,)
    worker.run(ramp(2, 3))
    assert worker.report().plans == 1 and worker.report().runs == 1


def test_prepare_takes_arrays_and_shapes(worker: gx.Worker) -> None:
    plan = worker.prepare(ramp(2, 3))
    assert worker.prepare((2, 3)) is worker.prepare([(2, 3)]) is worker.prepare({"x": (2, 3)}) is plan
    with pytest.raises(gx.InputError, match=r"'x'.*free dimensions"):
        worker.prepare()
    with pytest.raises(gx.InputError, match="axis 1 must be 3"):
        worker.prepare({"x": (2, 4)})
    with pytest.raises(gx.InputError, match="no input 'z'"):
        worker.prepare({"z": (2, 3)})


def test_prepare_without_inputs_takes_fixed_shapes() -> None:
    with gx.Worker(affine((2, 3)), backend=CPU) as worker:
        assert worker.prepare().inputs[0].spec == TensorSpec((2, 3), np.dtype(np.float32))


def test_memory_stats_show_the_arena_beside_its_bound() -> None:
    with gx.Worker(two_layers(), backend=CPU) as worker:
        worker.run(ramp(64, 3))
        stats = worker.memory_stats()
    assert set(stats) == {"arena", "arena_lower_bound", "weights", "frames", "pinned"}
    assert stats["arena"] >= stats["arena_lower_bound"] > 0
    assert stats["frames"] >= 64 * 2 * 4 and stats["weights"] == (3 * 5 + 5 * 2) * 4


def test_trim_gives_outgrown_memory_back() -> None:
    with gx.Worker(two_layers(), backend=CPU) as worker:
        worker.run(ramp(2, 3))
        answer = worker.run(ramp(5000, 3))
        before = worker.memory_stats()
        worker.trim()
        after = worker.memory_stats()
        assert after["arena"] < before["arena"] and after["pinned"] < before["pinned"]
        np.testing.assert_array_equal(worker.run(ramp(5000, 3)), answer)


def test_report_and_summary_name_backend_and_counts(worker: gx.Worker) -> None:
    worker.run(ramp(2, 3))
    report = worker.report()
    assert (report.backend, report.runs, report.plans, report.host_calls, report.host_syncs) == ("cpu", 1, 1, (), ())
    assert "on cpu" in worker.summary() and "runs 1" in worker.summary()
    assert worker.backend_type is CPU and worker.backend_reason == report.reason


def test_wait_that_nobody_asked_for_is_counted() -> None:
    producer, gate = hold_worker(affine())
    tracer = make_tracer()
    with producer, gx.Worker(affine(), backend=tracer, stream=tracer.device.create_stream()) as consumer:
        pending = producer.schedule(ramp(2, 3)).peek_output()
        counted = threading.Event()

        class Syncs(list[tuple[str, str]]):
            def append(self, row: tuple[str, str]) -> None:
                super().append(row)
                counted.set()

        consumer._engine.turns.syncs = Syncs()
        scheduling = threading.Thread(target=consumer.schedule, args=(pending,))
        scheduling.start()
        assert counted.wait(60)
        gate.set()
        scheduling.join()
        assert [what for what, _ in consumer.report().host_syncs] == ["run 0"]
        assert "host wait for run 0" in consumer.summary()
