"""Cost and side effects of profiling: none without a profiler, and none that last."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.execution.held import held_worker
from tests.execution.runs.test_graphs_in_use import branches, expect_branches
from tests.execution.runs.test_pacing import chain
from tests.model.control_models import ControlModel
from tests.model.small_models import CPU, GATES, affine, gated, make_tracer, ramp, trace, two_layers

SIMULATOR = gx.BackendType.SIMULATOR


def test_nobody_profiling_puts_nothing_on_the_stream() -> None:
    def log(profiler: gx.Profiler | None) -> list[object]:
        backend = make_tracer()
        with gx.Worker(affine(), backend=backend, profiler=profiler) as worker:
            before = len(trace(backend))
            worker.schedule(ramp(4, 3)).wait()
            return trace(backend)[before:]

    plain, profiled = log(None), log(gx.Profiler())
    assert plain.count("launch") == profiled.count("launch") == 3
    # Around the run, its upload and each layer two events, and two to set the clocks by.
    assert profiled.count("record") == plain.count("record") + 2 * (1 + 1 + 3) + 2


def test_a_profiled_run_is_launches_and_a_later_one_a_graph_again() -> None:
    backend, x = make_tracer(), ramp(4, 4)
    with gx.Worker(branches(), backend=backend) as worker:
        for _ in range(5):
            worker.schedule(x).wait()
        launches = trace(backend).count("launch")
        assert "graph launch" in trace(backend)
        before = len(trace(backend))
        with gx.Profiler():
            worker.schedule(x).wait()
        profiled = trace(backend)[before:]
        assert profiled.count("launch") == launches / 3 and "graph launch" not in profiled
        worker.schedule(x).wait()
        assert "graph launch" in trace(backend)[before + len(profiled) :]


@pytest.mark.parametrize("graphs", [0, 1])
def test_a_plan_of_one_layer_is_no_graph_either(graphs: int) -> None:
    profiler = None if graphs else gx.Profiler()
    with gx.Worker(chain("Neg"), backend=make_tracer(launch_us=10.0), profiler=profiler) as worker:
        for _ in range(6):
            worker.schedule(ramp(4, 3)).wait()
        assert worker.report().graphs == graphs


def test_runs_between_graphs_give_the_same() -> None:
    with gx.Worker(branches(), backend=SIMULATOR) as worker:
        for number in range(12):
            x = ramp(4 + number % 2, 4) + np.float32(number)
            if number in (2, 6, 7, 10):
                with gx.Profiler():
                    got = worker.run(x)[0]
            else:
                got = worker.run(x)[0]
            np.testing.assert_array_equal(got, expect_branches(x))
        assert worker.report().graphs == 1


def test_scheduling_waits_for_nothing(backend: Backend) -> None:
    profiler = gx.Profiler()
    with held_worker(affine(), backend, profiler=profiler) as (worker, gate):
        runs = [worker.schedule(ramp(4, 3)) for _ in range(2)]
        assert not any(run.is_done() for run in runs)
        gate.set()
        assert [row.layers for row in profiler.runs()] == [3, 3]
        assert all(row.duration_ms is not None for row in profiler.rows())


def test_only_the_last_runs_are_kept() -> None:
    with gx.Profiler(keep_runs=3) as profiler, gx.Worker(affine(), backend=CPU) as worker:
        for _ in range(7):
            worker.run(ramp(4, 3))
    assert [row.run for row in profiler.runs()] == [4, 5, 6] and len(profiler.rows()) == 9
    with pytest.raises(gx.InputError, match="keep_runs must be a whole number, at least 1, got 0"):
        gx.Profiler(keep_runs=0)


def test_a_profiler_keeps_no_model_alive(backend: Backend) -> None:
    profiler, model = gx.Profiler(), two_layers()
    with gx.Worker(model, backend=backend, profiler=profiler) as worker:
        worker.run(ramp(4, 3))
    gone = [weakref.ref(each) for each in (model, worker._engine.planning.weights, worker._engine.arena)]
    del model, worker
    gc.collect()
    assert [each() for each in gone] == [None] * 3 and len(profiler.rows()) == 2


def test_events_of_runs_are_let_go_once_they_are_done_whether_or_not_anybody_asks() -> None:
    model, gate = gated()
    profiler = gx.Profiler()
    with gx.Worker(model, backend=CPU, frames=8, profiler=profiler) as worker:
        requests = [worker.schedule(ramp(2, 3)).peek_output().readback_request() for _ in range(6)]
        assert [run.is_waiting for run in profiler._log._runs] == [True] * 6
        GATES.open[gate].set()
        for request in requests:
            request.result()
        worker.schedule(ramp(2, 3)).wait()
        # Those of the last one wait for the next.
        assert [run.is_waiting for run in profiler._log._runs][:6] == [False] * 6


def test_events_of_a_long_loop_are_let_go_on_the_way() -> None:
    text = """(float[n, k] x) => (float[n, k] y) <int64 trips = {400}, bool yes = {1}> {
      y = Loop (trips, yes, x) <body = b (int64 i, bool c, float[n, k] v) => (bool d, float[n, k] w)
        { d = Identity (c) w = Neg (v) }>
    }"""
    model = gx.load(ControlModel(text, (), 21).parse())
    with gx.Profiler() as profiler, gx.Worker(model, backend=make_tracer()) as worker:
        worker.schedule(ramp(40, 30)).wait()
        (profile,) = profiler._log._runs
        assert len(profile._open) <= 257
    (neg,) = (each for each in profiler.summarise() if each.operator == "Neg")
    assert (neg.runs, neg.times) == (1, 400)
