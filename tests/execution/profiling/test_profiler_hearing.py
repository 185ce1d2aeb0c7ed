"""Scope of a profiler: nested contexts, threads, Workers and Methods, and every way to run."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.execution.profiling.rows import HOST
from gpuexec.system import phases
from tests.model.small_models import CPU, GATES, affine, expect_affine, gated, ramp, two_layers
from tests.model.staged_models import MODELS, inputs


def test_the_context_hears_of_all_workers_and_no_more_once_it_is_left(backend: Backend) -> None:
    x = ramp(4, 3)
    with gx.Worker(affine(), backend=backend) as one, gx.Worker(two_layers(), backend=backend) as other:
        with gx.Profiler() as profiler:
            np.testing.assert_array_equal(one.run(x)[0], expect_affine(x))
            other.run(x)
        one.run(x)
        assert [row.layers for row in profiler.runs()] == [3, 2]
        assert (one.report().profiled, other.report().profiled) == (1, 1)
        assert "runs profiled, as launches layer by layer 1" in one.summary()


def test_a_workers_own_profiler_goes_before_that_of_the_context() -> None:
    own = gx.Profiler()
    with gx.Worker(affine(), backend=CPU, profiler=own) as worker, gx.Profiler() as around:
        worker.run(ramp(4, 3))
    assert (len(own.runs()), len(around.runs())) == (1, 0)
    assert "plan" in {row.name for row in own.events()} and "plan" not in {row.name for row in around.events()}


@pytest.mark.parametrize(
    "make",
    [lambda: gx.Worker(affine(), backend=CPU, profiler=3), lambda: gx.Module("x.gxp", profiler=3)],  # type: ignore[arg-type]
)
def test_what_is_no_profiler_is_refused_before_anything_is_made(make: Callable[[], object]) -> None:
    with pytest.raises(gx.InputError, match=r"profiler takes a gpuexec\.Profiler or None, got 3"):
        make()


def test_of_contexts_in_each_other_the_inner_one_hears() -> None:
    with gx.Worker(affine(), backend=CPU) as worker, gx.Profiler() as outer:
        with gx.Profiler() as inner:
            worker.run(ramp(4, 3))
        worker.run(ramp(4, 3))
        worker.run(ramp(4, 3))
    assert (len(outer.runs()), len(inner.runs())) == (2, 1)


def test_threads_may_be_in_one_profiler_at_once_and_leave_in_any_order() -> None:
    profiler, inside, outside = gx.Profiler(), threading.Event(), threading.Event()
    left: list[object] = []

    def hold() -> None:
        with profiler:
            inside.set()
            outside.wait(30)
        left.append(phases.find_receiver())

    with profiler:
        thread = threading.Thread(target=hold)
        thread.start()
        assert inside.wait(30)
    assert phases.find_receiver() is None
    outside.set()
    thread.join()
    assert left == [None]


def test_a_methods_profiler_goes_before_its_modules() -> None:
    program = gx.Program.build({"one": affine(), "two": affine()}, backend=CPU)
    of_module, of_method = gx.Profiler(), gx.Profiler()
    with gx.Module(program, backend=CPU, profiler=of_module) as module:
        module.load_method("two", profiler=of_method)
        for _ in range(2):
            module.execute("one", [ramp(4, 3)])
        module.execute("two", [ramp(4, 3)])
    assert (len(of_module.runs()), len(of_method.runs())) == (2, 1)
    with program.load_method("one", profiler=of_method) as method:
        method.execute([ramp(4, 3)])
    assert len(of_method.runs()) == 2


def test_any_number_of_threads_may_use_one_profiler() -> None:
    profiler, model, x = gx.Profiler(), affine(), ramp(4, 3)

    def work() -> None:
        with gx.Worker(model, backend=CPU, profiler=profiler) as worker:
            for _ in range(20):
                worker.run(x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = profiler.runs()
    assert sorted(row.run for row in rows) == list(range(80)) and {row.layers for row in rows} == {3}
    assert all(row.duration_ms is not None for row in profiler.rows())


@pytest.mark.parametrize("name", MODELS)
def test_runs_of_several_plans_are_reported_whole(name: str, backend: Backend) -> None:
    staged = MODELS[name]
    model = staged.load()
    with gx.Profiler() as profiler, gx.Worker(model, backend=backend) as worker:
        for number in range(3):
            run = worker.schedule(inputs(number))
            staged.check(inputs(number), [tensor.readback_and_clone() for tensor in run.outputs.values()])
        report = worker.report()
    rows = profiler.rows()
    assert {row.run for row in rows} == {0, 1, 2}
    assert all(row.duration_ms is not None and row.start_ms is not None for row in rows)
    # The same reads and calls as the report has, which are counted once.
    reads = [row for row in profiler.events() if row.name == "host read"]
    assert len(reads) == sum(row.times for row in report.host_reads)
    assert sum(row.nbytes for row in reads) == sum(row.nbytes for row in report.host_reads)
    took = sum(row.waited_ms + row.copied_ms for row in report.host_reads)
    assert sum(row.duration_ms or 0.0 for row in reads) == pytest.approx(took)
    calls = [row for row in rows if row.device == HOST]
    assert len(calls) == sum(row.times for row in report.host_calls)
    assert sum(row.duration_ms or 0.0 for row in calls) == pytest.approx(
        sum(row.computed_ms for row in report.host_calls)
    )
    assert profiler.count_syncs() == len(reads) + len(calls) + len(report.host_syncs)
    assert {row.run for row in profiler.events() if row.name == "host read"} <= {0, 1, 2}


def test_steps_are_reported_like_whole_runs(backend: Backend) -> None:
    with gx.Profiler() as profiler, gx.Worker(affine(), backend=backend) as worker:
        steps = list(worker.schedule_iterable(ramp(4, 3)))
        np.testing.assert_array_equal(worker.read_output(), expect_affine(ramp(4, 3)))
        list(worker.schedule_iterable(ramp(4, 3), budget_ms=1e6))
        list(worker.schedule_iterable(ramp(4, 3), budget_ms=1e6))
    assert [row.node for row in profiler.rows()] == ["double", "relu", "add"] * 3
    assert [step.nodes for step in steps] == [("double",), ("relu",), ("add",)]


def test_steps_of_several_plans_are_heard_by_the_workers_own_profiler(backend: Backend) -> None:
    profiler = gx.Profiler()
    with gx.Worker(MODELS["read"].load(), backend=backend, profiler=profiler) as worker:
        for step in worker.schedule_iterable(inputs(0)):
            if step.waiting:
                worker.wait_for_completion()
        (row,) = worker.report().host_reads
    (read,) = (each for each in profiler.events() if each.name == "host read")
    assert (read.run, read.nbytes) == (0, row.nbytes)
    assert len([each for each in profiler.events() if each.name == "plan"]) == worker.report().plans > 1


def test_a_run_that_is_given_up_reports_the_layers_it_had(backend: Backend) -> None:
    with gx.Profiler() as profiler, gx.Worker(affine(), backend=backend) as worker:
        steps = worker.schedule_iterable(ramp(4, 3))
        next(steps)
        assert worker.cancel()
        worker.run(ramp(4, 3))
    assert [row.layers for row in profiler.runs()] == [1, 3]


def test_a_layer_that_fails_takes_no_time_and_the_next_run_does() -> None:
    model, number = gated()
    GATES.failures[number] = ValueError("broken on purpose")
    GATES.open[number].set()
    with gx.Profiler() as profiler, gx.Worker(model, backend=CPU) as worker:
        with pytest.raises(gx.GpuexecError, match="broken on purpose"):
            worker.run(ramp(4, 3))
        worker.run(ramp(4, 3))
    first, second = ([row for row in profiler.rows() if row.run == run] for run in (0, 1))
    assert [row.duration_ms for row in first] == [None, None] and [row.node for row in first] == ["gate", "add"]
    assert all(row.duration_ms is not None for row in second)
    assert [row.duration_ms is None for row in profiler.runs()] == [True, False]
    assert [each.runs for each in profiler.summarise()] == [1, 1]


def test_a_comparing_worker_can_be_profiled(backend: Backend) -> None:
    with gx.Profiler() as profiler, gx.Worker(affine(), backend=backend, compare_with=CPU) as worker:
        worker.run(ramp(4, 3))
        assert worker.report().compared == 3
    assert [row.node for row in profiler.rows()] == ["double", "relu", "add"]
