"""The profiler: what it tells of runs, by times that the device's events tell. No test looks at a clock."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec import phases
from gpuexec.profiling.rows import HOST, LayerRow
from gpuexec.runtime import graph_form
from gpuexec.runtime.backend import Backend, open_backend
from gpuexec.runtime.cpu import CpuDevice
from tests.control_models import ControlModel
from tests.features.held import held_worker
from tests.running.test_graphs_in_use import branches, expect_branches
from tests.running.test_pacing import CLOCK, Clock, chain, open_tracer
from tests.small_models import (
    CPU,
    GATES,
    affine,
    expect_affine,
    gated,
    make_model,
    make_tracer,
    ramp,
    trace,
    two_layers,
)
from tests.staged_models import MODELS, inputs

SIMULATOR = gx.BackendType.SIMULATOR


@pytest.fixture
def clocked() -> Iterator[Backend]:
    """Return a CPU on which nothing takes time but `Work`."""
    backend = Backend(CpuDevice(clock=CLOCK), CPU, "for a test")
    yield backend
    backend.device.close()


@pytest.fixture(params=[CPU, SIMULATOR])
def backend(request: pytest.FixtureRequest) -> Backend:
    return open_backend(request.param)


def durations(profiler: gx.Profiler, run: int) -> list[float | None]:
    return [None if row.duration_ms is None else round(row.duration_ms, 6) for row in profiler.rows() if row.run == run]


# ---- times


def test_layers_take_what_the_device_says(clocked: Backend) -> None:
    profiler = gx.Profiler(clock=CLOCK)
    start = CLOCK.ms
    with gx.Worker(chain(1.0, 5.0, 2.0), backend=clocked, profiler=profiler) as worker:
        worker.run(ramp(4, 3))
        worker.run(ramp(4, 3))
    assert durations(profiler, 0) == durations(profiler, 1) == [1, 5, 2]
    rows = profiler.rows()
    assert [row.node for row in rows] == ["layer0", "layer1", "layer2"] * 2
    assert {row.operator for row in rows} == {"gpuexec.test.Work"} and {row.model for row in rows} == {"small"}
    # Two runs right behind each other, from where the clock stood.
    starts = [row.start_ms for row in rows]
    assert [round(each or 0.0, 6) for each in starts] == [0, 1, 6, 8, 9, 14] and CLOCK.ms == pytest.approx(start + 16)
    assert [round(run.duration_ms or 0.0, 6) for run in profiler.runs()] == [8, 8]
    assert [run.layers for run in profiler.runs()] == [3, 3]


def test_summaries_are_percentiles_over_runs(clocked: Backend) -> None:
    profiler = gx.Profiler(clock=CLOCK)
    for ms in range(1, 12):
        with gx.Worker(chain(float(ms), "Neg", 2.0), backend=clocked, profiler=profiler) as worker:
            worker.run(ramp(4, 3))
    first, third, second = profiler.summarise()
    assert (first.name, first.runs, first.times) == ("layer0", 11, 11)
    found = [first.min_ms, first.p10_ms, first.p50_ms, first.p90_ms, first.max_ms, first.avg_ms, first.total_ms]
    assert [round(each, 6) for each in found] == [1, 2, 6, 10, 11, 6, 66]
    assert (third.name, round(third.p10_ms, 6), round(third.share, 6)) == ("layer2", 2, 0.25)
    assert (second.name, second.operator, second.flops, second.total_ms) == ("layer1", "Neg", 12, 0)
    work, neg = profiler.summarise("operator")
    assert (work.name, work.runs, work.times, round(work.min_ms, 6), round(work.max_ms, 6)) == (
        "gpuexec.test.Work",
        11,
        22,
        3,
        13,
    )
    assert neg.name == "Neg"


def test_a_total_is_that_of_all_layers_below_a_prefix(clocked: Backend) -> None:
    profiler = gx.Profiler(clock=CLOCK)
    names = ("/block0/a", "/block0/b", "/block1/a")
    values = ["x", "v0", "v1", "y"]
    nodes = [
        helper.make_node("Work", [values[i]], [values[i + 1]], name=name, domain="gpuexec.test", ms=float(i + 1))
        for i, name in enumerate(names)
    ]
    model = make_model(nodes, {"x": ("n", 3)}, {"y": ("n", 3)})
    with gx.Worker(model, backend=clocked, profiler=profiler) as worker:
        for _ in range(3):
            worker.run(ramp(4, 3))
    total = profiler.find_total("/block0/", skip=1)
    assert total is not None
    assert (total.runs, total.times, round(total.avg_ms, 6), round(total.share, 6)) == (2, 4, 3, 0.5)
    assert profiler.find_total("/block2/") is None


def test_summaries_leave_out_the_first_runs_if_told(clocked: Backend) -> None:
    with gx.Profiler(clock=CLOCK) as profiler, gx.Worker(chain(3.0), backend=clocked) as worker:
        for _ in range(4):
            worker.run(ramp(4, 3))
    assert [each.runs for each in profiler.summarise(skip=1)] == [3]
    assert profiler.summarise(skip=4) == ()
    with pytest.raises(gx.InputError, match="'layer' or 'operator', got 'node'"):
        profiler.summarise("node")


def test_host_time_to_issue_is_the_profilers_clock() -> None:
    # A clock that a launch moves: the device of the tracer counts launches of its own accord.
    backend, clock = open_tracer(), Clock()
    put = backend.device.record
    assert callable(put)
    profiler = gx.Profiler(clock=clock)
    with gx.Worker(chain("Neg", "Exp"), backend=backend, profiler=profiler) as worker:
        stream = worker._engine.stream
        launch = stream.launch

        def count(*arguments: Any, **named: Any) -> None:
            clock.ms += 0.5
            launch(*arguments, **named)

        stream.launch = count  # type: ignore[method-assign]
        worker.schedule(ramp(4, 3)).wait()
    assert [round(row.issue_ms, 6) for row in profiler.rows()] == [0.5, 0.5]
    assert durations(profiler, 0) == [1, 20]


# ---- whose runs are heard of


def test_the_context_hears_of_all_workers_and_no_more_once_it_is_left(backend: Backend) -> None:
    x = ramp(4, 3)
    with gx.Worker(affine(), backend=backend) as one, gx.Worker(two_layers(), backend=backend) as other:
        with gx.Profiler() as profiler:
            np.testing.assert_array_equal(one.run(x), expect_affine(x))
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
        left.append(phases.find_witness())

    with profiler:
        thread = threading.Thread(target=hold)
        thread.start()
        assert inside.wait(30)
    assert phases.find_witness() is None
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


# ---- what profiling costs and changes


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
def test_a_plan_of_one_layer_is_no_graph_either(graphs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_form, "LAUNCH_US", 10.0)
    profiler = None if graphs else gx.Profiler()
    with gx.Worker(chain("Neg"), backend=make_tracer(), profiler=profiler) as worker:
        for _ in range(6):
            worker.schedule(ramp(4, 3)).wait()
        assert worker.report().graphs == graphs


def test_runs_between_graphs_give_the_same() -> None:
    with gx.Worker(branches(), backend=SIMULATOR) as worker:
        for number in range(12):
            x = ramp(4 + number % 2, 4) + np.float32(number)
            if number in (2, 6, 7, 10):
                with gx.Profiler():
                    got = worker.run(x)
            else:
                got = worker.run(x)
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
    gone = [weakref.ref(each) for each in (model, worker._engine.site.weights, worker._engine.arena)]
    del model, worker
    gc.collect()
    assert [each() for each in gone] == [None] * 3 and len(profiler.rows()) == 2


def test_events_of_runs_are_let_go_once_they_are_done_whether_or_not_anybody_asks() -> None:
    model, gate = gated()
    profiler = gx.Profiler()
    with gx.Worker(model, backend=CPU, frames=8, profiler=profiler) as worker:
        requests = [worker.schedule(ramp(2, 3)).peek_output().readback_request() for _ in range(6)]
        assert [run.is_waiting for run in profiler._runs] == [True] * 6
        GATES.open[gate].set()
        for request in requests:
            request.result()
        worker.schedule(ramp(2, 3)).wait()
        # Those of the last one wait for the next.
        assert [run.is_waiting for run in profiler._runs][:6] == [False] * 6


def test_events_of_a_long_loop_are_let_go_on_the_way() -> None:
    text = """(float[n, k] x) => (float[n, k] y) <int64 trips = {400}, bool yes = {1}> {
      y = Loop (trips, yes, x) <body = b (int64 i, bool c, float[n, k] v) => (bool d, float[n, k] w)
        { d = Identity (c) w = Neg (v) }>
    }"""
    model = gx.load(ControlModel(text, (), 21).parse())
    with gx.Profiler() as profiler, gx.Worker(model, backend=make_tracer()) as worker:
        worker.schedule(ramp(40, 30)).wait()
        (profile,) = profiler._runs
        assert len(profile._open) <= 257
    (neg,) = (each for each in profiler.summarise() if each.operator == "Neg")
    assert (neg.runs, neg.times) == (1, 400)


# ---- every way to run


@pytest.mark.parametrize("name", MODELS)
def test_runs_of_several_plans_are_told_whole(name: str, backend: Backend) -> None:
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


def test_steps_are_told_like_whole_runs(backend: Backend) -> None:
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


def test_a_run_that_is_given_up_tells_the_layers_it_had(backend: Backend) -> None:
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


# ---- what a row says


def find(profiler: gx.Profiler, node: str) -> LayerRow:
    return next(row for row in profiler.rows() if row.node == node)


def test_a_row_has_kernel_grid_bytes_and_operations() -> None:
    with gx.Profiler() as profiler, gx.Worker(two_layers(), backend=SIMULATOR) as worker:
        worker.run(ramp(4, 3))
    first, second = find(profiler, "first+relu"), find(profiler, "second")
    (kernel,) = first.kernels
    assert kernel.startswith("matmul.cu:gemm<float") and first.commands[0].grid != (0, 0, 0)
    assert first.flops == 2 * 4 * 3 * 5 + 4 * 5
    assert (first.bytes_read, first.bytes_written) == (4 * (4 * 3 + 3 * 5), 4 * 4 * 5)
    assert second.flops == 2 * 4 * 5 * 2
    assert str(second.commands[0]).startswith(f"{second.kernels[0]} <1x1x1, ")


def test_rows_follow_the_size_of_the_run() -> None:
    with gx.Profiler() as profiler, gx.Worker(affine(), backend=SIMULATOR) as worker:
        for rows in (7, 5, 7):
            worker.run(ramp(rows, 3))
        assert worker.report().plans == 1
    doubles = [row for row in profiler.rows() if row.node == "double"]
    assert [row.bytes_written for row in doubles] == [84, 60, 84] and [row.flops for row in doubles] == [21, 15, 21]
    assert {row.plan for row in doubles} == {0}


def test_memory_at_each_layer_is_what_the_plan_and_the_worker_hold(backend: Backend) -> None:
    with gx.Profiler() as profiler, gx.Worker(two_layers(), backend=backend) as worker:
        worker.run(ramp(4, 3))
        stats, (plan,) = worker.memory_stats(), worker.plans
    rows = profiler.memory()
    assert [row.node for row in rows] == ["first+relu", "second"]
    assert all(row.arena == plan.layout.nbytes and 0 < row.arena_used <= row.arena for row in rows)
    assert {name for row in rows for name, _ in row.values} & {"a", "b", "a, b"}
    assert dict(rows[-1].held)["arena"] == stats["arena"] and dict(rows[-1].held)["frames"] == stats["frames"]


def test_what_is_alive_in_the_arena_changes_from_layer_to_layer(backend: Backend) -> None:
    values = ["x", "a", "b", "y"]
    weights = {"w0": ramp(3, 5), "w1": ramp(5, 7), "w2": ramp(7, 2)}
    nodes = [helper.make_node("MatMul", [values[i], f"w{i}"], [values[i + 1]], name=f"m{i}") for i in range(3)]
    model = make_model(nodes, {"x": (4, 3)}, {"y": (4, 2)}, **weights)
    with gx.Profiler() as profiler, gx.Worker(model, backend=backend) as worker:
        worker.run(ramp(4, 3))
    found = [(row.node, row.arena_used, row.values) for row in profiler.memory()]
    assert found == [
        ("m0", 80, (("a", 80),)),
        ("m1", 192, (("a", 80), ("b", 112))),
        ("m2", 112, (("b", 112),)),
    ]


def test_memory_is_not_noted_where_nobody_wants_it(backend: Backend) -> None:
    with gx.Profiler(memory=False) as quiet, gx.Worker(two_layers(), backend=backend) as worker:
        worker.run(ramp(4, 3))
    assert quiet.memory() == () and len(quiet.rows()) == 2
