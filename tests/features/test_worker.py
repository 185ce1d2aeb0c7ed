"""Rows on Workers: making one, backends, scheduling, waiting, closing, and errors in the middle of runs."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.runtime import backend as backends
from gpuexec.runtime.backend import Backend
from tests.features.held import held_worker, opening
from tests.features.marks import is_tracer, on
from tests.small_models import (
    GATES,
    Array,
    affine,
    expect_affine,
    gated,
    ramp,
    trace,
    two_inputs,
    two_layers,
)

X = ramp(2, 3)


# ---- making one


def test_b11_s17_one_constructor_takes_options_by_keyword(backend: Backend) -> None:
    parameters = inspect.signature(gx.Worker).parameters.values()
    assert [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY] == ["model"]
    with gx.Worker(affine(), backend=backend, frames=3, strict=True) as worker:
        assert worker.report().runs == worker.report().plans == 0
        np.testing.assert_array_equal(worker.run(X), expect_affine(X))
    with pytest.raises(TypeError):
        gx.Worker(affine(), backend)  # type: ignore[misc]


@on("tracer")
def test_s17_a_new_worker_has_uploaded_and_run_nothing(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend):
        assert not {"launch", "copy_to_device"} & set(trace(backend))


@pytest.mark.parametrize("name", ["CPU", "SIMULATOR", "SIMULATOR_PIXEL"])
def test_b12_s19_backends_are_chosen_by_name(name: str) -> None:
    with gx.Worker(affine(), backend=gx.BackendType[name]) as worker:
        assert worker.backend_type is worker.schedule(X).peek_output().backend_type is gx.BackendType[name]
    members = {"AUTO", "GPU_COMPUTE", "GPU_PIXEL", "CPU", "SIMULATOR", "SIMULATOR_PIXEL"}
    assert set(gx.BackendType.__members__) == members
    with pytest.raises(gx.InputError, match=rf"BackendType, such as BackendType\.CPU, got {name!r}"):
        gx.Worker(affine(), backend=name)  # type: ignore[arg-type]


def test_b13_b14_s19_auto_says_what_it_chose_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Backend:
        raise gx.DeviceNotFoundError("No driver here; install one.")

    monkeypatch.setattr(backends, "_open", {})
    monkeypatch.setitem(backends._OPENERS, gx.BackendType.GPU_COMPUTE, refuse)
    with gx.Worker(affine()) as worker:
        assert worker.backend_type is gx.BackendType.CPU
        assert worker.backend_reason == worker.report().reason == "No driver here; install one."
        assert "No driver here" in worker.summary()
    assert backends.choose_backend(gx.BackendType.AUTO)[0].type is gx.BackendType.CPU
    with pytest.raises(gx.DeviceNotFoundError, match="install"):
        gx.Worker(affine(), backend=gx.BackendType.GPU_COMPUTE)


def test_b13_auto_takes_a_gpu_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.small_models import make_tracer

    monkeypatch.setattr(backends, "_open", {})
    monkeypatch.setitem(backends._OPENERS, gx.BackendType.GPU_COMPUTE, lambda *_: make_tracer())
    with gx.Worker(affine()) as worker:
        assert worker.backend_type is gx.BackendType.GPU_COMPUTE and "GPU" in worker.backend_reason


def test_b17_b19_every_layer_is_compared_when_asked(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend, compare_with=gx.BackendType.CPU) as worker:
        worker.run(X)
        assert worker.report().compared == 3


def test_b19_the_layer_that_differs_is_named(backend: Backend) -> None:
    from tests.running.test_comparing import chain

    model = chain(("before", "Neg", {}), ("wrong", "Off", {"more": 0.25}))
    with gx.Worker(model, backend=backend, compare_with=gx.BackendType.CPU) as worker:
        with pytest.raises(gx.MismatchError) as caught:
            worker.schedule(X)
        assert (caught.value.node, caught.value.error) == ("wrong", 0.25)


def test_b17_synchronous_work_is_done_when_the_call_returns(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend, synchronous=True) as worker:
        run = worker.schedule(X)
        assert run.is_done()


@on("cpu")
def test_b17_synchronous_errors_come_from_the_call_and_name_the_node(backend: Backend) -> None:
    model, number = gated()
    GATES.open[number].set()
    GATES.failures[number] = RuntimeError("no such luck")
    with (
        gx.Worker(model, backend=backend, synchronous=True) as worker,
        pytest.raises(gx.GpuexecError, match=r"gate.*no such luck"),
    ):
        worker.schedule(X)


# ---- preparing


def test_b15_shapes_met_before_plan_nothing(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        for rows in (2, 5, 2, 5):
            worker.run(ramp(rows, 3))
        first = worker.report()
        for rows in (5, 2, 5):
            np.testing.assert_array_equal(worker.run(ramp(rows, 3)), expect_affine(ramp(rows, 3)))
        later = worker.report()
    assert (first.plans, first.variants, first.plan_ms, first.compile_ms) == (
        later.plans,
        later.variants,
        later.plan_ms,
        later.compile_ms,
    )


@on("tracer")
def test_b23_s18_prepare_leaves_only_inputs_and_launches(backend: Backend) -> None:
    with gx.Worker(two_layers(), backend=backend) as worker:
        plan = worker.prepare({"x": (4, 3)})
        assert plan is not None and worker.report().runs == 0 and worker.report().plans == 1
        before = len(trace(backend))
        worker.schedule(ramp(4, 3))
        done = trace(backend)[before:]
        for wrong, message in (
            ((-1, 3), r"'x' .*got the shape \(-1, 3\)"),
            (("a", 3), "1 inputs, got 2"),
            ({"x": [4, 3]}, "'x' expects float32"),
        ):
            with pytest.raises(gx.InputError, match=message):
                worker.prepare(wrong)
    assert worker.report().plans == 1
    assert done.count("copy_to_device") == 1  # the input; weights are there
    assert not {"load", "compile", "allocate_device", "record_graph"} & set(done)


@on("cpu", "simulator", "tracer")
def test_b39_s18_weights_lie_on_a_device_once_for_all_workers(backend: Backend) -> None:
    model = two_layers()
    weights = (3 * 5 + 5 * 2) * 4
    with gx.Worker(model, backend=backend) as one, gx.Worker(model, backend=backend) as other:
        one.schedule(ramp(4, 3))
        before = trace(backend).count("copy_to_device") if is_tracer(backend) else 0
        other.schedule(ramp(4, 3))
        assert one.memory_stats()["weights"] == other.memory_stats()["weights"] == weights
        if is_tracer(backend):
            assert trace(backend).count("copy_to_device") == before + 1
        else:
            np.testing.assert_array_equal(one.read_output(), other.read_output())


# ---- inputs


def test_b24_inputs_stay_set_and_are_not_moved(backend: Backend) -> None:
    left, right = ramp(2, 3), ramp(2, 3) * 3
    with gx.Worker(two_inputs(), backend=backend) as worker:
        worker.run([left, right])
        kept = left.copy()
        left[...] = 99  # the Worker has a copy of its own
        total, _ = worker.run({"right": right + 1})
        np.testing.assert_array_equal(total, kept + right + 1)
        np.testing.assert_array_equal(worker.run()[0], kept + right + 1)
        assert left.flags.owndata and (left == 99).all()


def test_b26_s20_a_missing_or_misspelt_input_is_named_before_any_work(backend: Backend) -> None:
    with gx.Worker(two_inputs(), backend=backend) as worker:
        with pytest.raises(gx.InputError, match=r"input 'right' \(right: float32|input 'right'") as caught:
            worker.schedule({"left": X})
        assert caught.value.value == "right" and caught.value.code == 0x12
        with pytest.raises(gx.InputError, match=r"no input 'rigth'; it has left, right"):
            worker.schedule({"left": X, "rigth": X})
        assert worker.report().runs == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (X.astype(np.float64), r"'x' expects float32, got float64; cast it"),
        (X.astype(np.int32), r"'x' expects float32, got int32"),
        (X[0], r"'x' expects float32\[n,3\], got float32\[3\]: 1 axes, not 2"),
        (ramp(2, 4), r"'x' expects float32\[n,3\], got float32\[2,4\]: axis 1 must be 3"),
    ],
)
def test_s20_dtype_and_shape_are_checked_before_any_work(wrong: Array, message: str, backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        with pytest.raises(gx.InputError, match=message):
            worker.schedule(wrong)
        assert worker.report().runs == 0
        np.testing.assert_array_equal(worker.run(X), expect_affine(X))


def test_s20_a_tensor_given_as_input_stays_where_it_is(backend: Backend) -> None:
    other = gx.BackendType.CPU if backend.type is not gx.BackendType.CPU else gx.BackendType.SIMULATOR
    with gx.Worker(affine(), backend=other) as producer, gx.Worker(affine(), backend=backend) as consumer:
        y = producer.schedule(X).peek_output()
        np.testing.assert_array_equal(consumer.run(y), expect_affine(expect_affine(X)))
        assert y.backend_type is other
        np.testing.assert_array_equal(y.readback_and_clone(), expect_affine(X))


def test_s21_t9_checks_stay_when_python_leaves_asserts_out() -> None:
    script = """
import numpy as np, gpuexec as gx
from onnx import parser
text = '<ir_version: 10, opset_import: ["": 18]> g (float[n, 3] x) => (float[n, 3] y) { y = Relu (x) }'
worker = gx.Worker(gx.load(parser.parse_model(text)), backend=gx.BackendType.CPU)
for wrong in (np.zeros((2, 3)), np.zeros(3, np.float32), {"z": np.zeros((2, 3), np.float32)}):
    try:
        worker.schedule(wrong)
    except gx.InputError:
        print("refused")
worker.close()
"""
    done = subprocess.run([sys.executable, "-O", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["refused"] * 3, done.stderr


@pytest.mark.parametrize("form", ["array", "list", "mapping"])
def test_s22_schedule_takes_arrays_lists_and_mappings(form: str, backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        worker.schedule({"array": X, "list": [X], "mapping": {"x": X}}[form])
        np.testing.assert_array_equal(worker.read_output(), expect_affine(X))


# ---- scheduling


def test_b25_s22_execute_returns_before_the_work_is_done(backend: Backend) -> None:
    with held_worker(affine(), backend) as (worker, gate):
        y = worker.execute(X).peek_output()
        assert not y.is_done()
        gate.set()
        np.testing.assert_array_equal(y.readback_and_clone(), expect_affine(X))


def test_b27_a_step_per_layer_and_no_more(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        steps = worker.start_manual_schedule(X)
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


def test_b28_old_names_of_the_manual_schedule_work(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        for start in (worker.execute_async, worker.start_manual_schedule, worker.schedule_iterable):
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
        worker.flush_schedule()
        assert not run.is_done()
        gate.set()
        worker.flush_schedule(blocking=True)
        assert run.is_done()


def test_b30_flush_before_any_run_does_nothing(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        worker.flush_schedule(blocking=True)
        assert worker.report().runs == 0


@on("tracer")
def test_b30_b31_t3_waiting_copies_nothing(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        steps = worker.schedule_iterable(X)
        next(steps)
        worker.flush_schedule(blocking=True)
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
        worker.wait_for_completion()
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
    from gpuexec.runtime.backend import open_backend
    from tests.staged_models import MODELS, inputs

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


# ---- errors in the middle


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
            np.testing.assert_array_equal(worker.run(X), X + 1)


def test_s30_a_run_given_up_half_way_leaves_the_worker_runnable(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        steps = worker.schedule_iterable(X)
        next(steps)
        request = worker.peek_output().readback_request()
        assert worker.cancel()
        with pytest.raises(gx.CancelledError):
            request.result()
        np.testing.assert_array_equal(worker.run(X), expect_affine(X))


# ---- closing, threads


def test_b36_summary_tells_backend_runs_plans_and_memory(backend: Backend) -> None:
    with gx.Worker(two_layers(), backend=backend) as worker:
        worker.run(ramp(4, 3))
        told = worker.summary()
    for part in (f"on {backend.device.name}", "runs 1", "plans 1", "arena", "weights 100 B"):
        assert part in told, told


def test_b37_s27_close_ends_use_twice_and_leaves_inputs_alone(backend: Backend) -> None:
    model = affine()
    with gx.Worker(model, backend=backend) as producer, gx.Worker(model, backend=backend) as other:
        given = producer.schedule(X).peek_output()
        worker = gx.Worker(model, backend=backend)
        request = worker.schedule(given).peek_output().readback_request()
        y = worker.schedule(given).peek_output()
        worker.close()
        worker.close()
        uses: tuple[Callable[[], Any], ...] = (
            lambda: worker.schedule(X),
            worker.peek_output,
            worker.wait_for_completion,
            y.readback_request,
            lambda: worker.prepare((2, 3)),
        )
        for use in uses:
            with pytest.raises(gx.ClosedError, match="closed"):
                use()
        np.testing.assert_array_equal(request.result(), expect_affine(expect_affine(X)))
        np.testing.assert_array_equal(given.readback_and_clone(), expect_affine(X))
        np.testing.assert_array_equal(other.run(X), expect_affine(X))


def test_s58_a_second_caller_is_refused(backend: Backend) -> None:
    entered, leave = threading.Event(), threading.Event()

    class Slow:
        def __array__(self, dtype: object = None, copy: object = None) -> Array:
            entered.set()
            leave.wait()
            return X

    with gx.Worker(affine(), backend=backend) as worker:
        answers: list[Any] = []
        first = threading.Thread(target=lambda: answers.append(worker.run({"x": Slow()})))
        first.start()
        with opening(leave):
            assert entered.wait()
            with pytest.raises(gx.StateError, match="one Worker per thread") as caught:
                worker.schedule(X)
            assert caught.value.code == 0x02
        first.join()
        np.testing.assert_array_equal(answers[0], expect_affine(X))


def test_b38_names_given_up_long_ago_are_absent() -> None:
    for name in ("fetch", "peek", "fetch_and_take_ownership", "execute_and_wait_for_completion", "get_async_progress"):
        assert not hasattr(gx.Worker, name)
