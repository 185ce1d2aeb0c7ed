"""Workers: construction, backends, preparation, shared weights, and closing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices import backend as backends
from gpuexec.devices.backend import Backend
from tests.devices.backends import is_tracer, on
from tests.model.small_models import affine, expect_affine, make_tracer, ramp, trace, two_layers

X = ramp(2, 3)


@pytest.mark.feature("B11", "S17")
def test_one_constructor_takes_options_by_keyword(backend: Backend) -> None:
    parameters = inspect.signature(gx.Worker).parameters.values()
    assert [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY] == ["model"]
    with gx.Worker(affine(), backend=backend, frames=3, strict=True) as worker:
        assert worker.report().runs == worker.report().plans == 0
        np.testing.assert_array_equal(worker.run(X)[0], expect_affine(X))
    with pytest.raises(TypeError):
        gx.Worker(affine(), backend)  # type: ignore[misc]


@pytest.mark.feature("S17")
@on("tracer")
def test_a_new_worker_has_uploaded_and_run_nothing(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend):
        assert not {"launch", "copy_to_device"} & set(trace(backend))


@pytest.mark.feature("B12", "S19")
@pytest.mark.parametrize("name", ["CPU", "SIMULATOR", "SIMULATOR_PIXEL"])
def test_backends_are_chosen_by_name(name: str) -> None:
    with gx.Worker(affine(), backend=gx.BackendType[name]) as worker:
        assert worker.backend_type is worker.schedule(X).peek_output().backend_type is gx.BackendType[name]
    members = {"AUTO", "GPU_COMPUTE", "GPU_PIXEL", "CPU", "SIMULATOR", "SIMULATOR_PIXEL"}
    assert set(gx.BackendType.__members__) == members
    with gx.Worker(affine(), backend=name.lower()) as worker:
        assert worker.backend_type is gx.BackendType[name]
    with pytest.raises(gx.InputError, match=rf"no backend 'q{name}'; expected a BackendType or its name: 'auto', "):
        gx.Worker(affine(), backend=f"q{name}")


@pytest.mark.feature("B13", "B14", "S19")
def test_auto_says_what_it_chose_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.feature("B13")
def test_auto_takes_a_gpu_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_open", {})
    monkeypatch.setitem(backends._OPENERS, gx.BackendType.GPU_COMPUTE, lambda *_: make_tracer())
    with gx.Worker(affine()) as worker:
        assert worker.backend_type is gx.BackendType.GPU_COMPUTE and "GPU" in worker.backend_reason


@pytest.mark.feature("B15")
def test_shapes_met_before_plan_nothing(backend: Backend) -> None:
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


@pytest.mark.feature("B23", "S18")
@on("tracer")
def test_prepare_leaves_only_inputs_and_launches(backend: Backend) -> None:
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


@pytest.mark.feature("B39", "S18")
@on("cpu", "simulator", "tracer")
def test_weights_lie_on_a_device_once_for_all_workers(backend: Backend) -> None:
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


@pytest.mark.feature("B37", "S27")
def test_close_ends_use_twice_and_leaves_inputs_alone(backend: Backend) -> None:
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


@pytest.mark.feature("B38")
def test_names_given_up_long_ago_are_absent() -> None:
    for name in ("fetch", "peek", "fetch_and_take_ownership", "execute_and_wait_for_completion", "get_async_progress"):
        assert not hasattr(gx.Worker, name)


@pytest.mark.parametrize("threads", [0, -1, 4097, 1.5, True, "2"])
def test_a_number_of_threads_that_is_none_is_refused(threads: Any) -> None:
    with pytest.raises(gx.InputError, match=f"threads must be a whole number from 1 to 4096, got {threads!r}"):
        gx.Worker(affine(), threads=threads)


def test_threads_are_of_the_cpu_and_workers_of_one_number_share_it() -> None:
    with pytest.raises(gx.InputError, match=r"threads=2 is for BackendType.CPU .*got BackendType.SIMULATOR"):
        gx.Worker(affine(), backend="simulator", threads=2)
    with (
        gx.Worker(affine(), backend="cpu", threads=2) as one,
        gx.Worker(affine(), backend="cpu", threads=2) as two,
        gx.Worker(affine(), backend="cpu") as three,
    ):
        assert one._backend is two._backend is not three._backend
        np.testing.assert_array_equal(one.run(X)[0], expect_affine(X))
        with gx.Worker(affine(), backend=one._backend, threads=2) as same:
            assert same._backend is one._backend
        with pytest.raises(gx.InputError, match=r"threads=3 is not that of .*, which is 2"):
            gx.Worker(affine(), backend=one._backend, threads=3)
