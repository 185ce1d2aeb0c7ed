"""Rows on Workers: construction, backends, preparation, closing, and exclusive use."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices import backend as backends
from gpuexec.devices.backend import Backend
from tests.model.small_models import GATES, Array, affine, expect_affine, gated, ramp, trace, two_layers
from tests.system.features.held import opening
from tests.system.features.marks import is_tracer, on

X = ramp(2, 3)


def test_b11_s17_one_constructor_takes_options_by_keyword(backend: Backend) -> None:
    parameters = inspect.signature(gx.Worker).parameters.values()
    assert [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY] == ["model"]
    with gx.Worker(affine(), backend=backend, frames=3, strict=True) as worker:
        assert worker.report().runs == worker.report().plans == 0
        np.testing.assert_array_equal(worker.run(X)[0], expect_affine(X))
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
    with gx.Worker(affine(), backend=name.lower()) as worker:
        assert worker.backend_type is gx.BackendType[name]
    with pytest.raises(gx.InputError, match=rf"no backend 'q{name}'; expected a BackendType or its name: 'auto', "):
        gx.Worker(affine(), backend=f"q{name}")


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
    from tests.model.small_models import make_tracer

    monkeypatch.setattr(backends, "_open", {})
    monkeypatch.setitem(backends._OPENERS, gx.BackendType.GPU_COMPUTE, lambda *_: make_tracer())
    with gx.Worker(affine()) as worker:
        assert worker.backend_type is gx.BackendType.GPU_COMPUTE and "GPU" in worker.backend_reason


def test_b17_b19_every_layer_is_compared_when_asked(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend, compare_with=gx.BackendType.CPU) as worker:
        worker.run(X)
        assert worker.report().compared == 3


def test_b19_the_layer_that_differs_is_named(backend: Backend) -> None:
    from tests.execution.runs.test_comparing import chain

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


def test_b15_shapes_met_before_plan_nothing(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        for rows in (2, 5, 2, 5):
            worker.run(ramp(rows, 3))
        first = worker.report()
        for rows in (5, 2, 5):
            np.testing.assert_array_equal(worker.run(ramp(rows, 3))[0], expect_affine(ramp(rows, 3)))
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
            (("a", 3), "'x': a list of string is no float32"),
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
        np.testing.assert_array_equal(other.run(X)[0], expect_affine(X))


def test_s58_a_second_caller_is_refused(backend: Backend) -> None:
    entered, leave = threading.Event(), threading.Event()

    class Slow:
        def __array__(self, dtype: object = None, copy: object = None) -> Array:
            entered.set()
            leave.wait()
            return X

    with gx.Worker(affine(), backend=backend) as worker:
        answers: list[Any] = []
        first = threading.Thread(target=lambda: answers.append(worker.run({"x": Slow()})[0]))
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
