"""The profiler: rows of runs by device timestamps. No test looks at a clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.cpu.cpu import CpuDevice
from gpuexec.execution.profiling.rows import LayerRow
from tests.execution.runs.test_pacing import CLOCK, Clock, chain, open_tracer
from tests.model.small_models import CPU, affine, make_model, ramp, two_layers

SIMULATOR = gx.BackendType.SIMULATOR


@pytest.fixture
def clocked() -> Iterator[Backend]:
    """Return a CPU on which nothing takes time but `Work`."""
    backend = Backend(CpuDevice(clock=CLOCK), CPU, "for a test")
    yield backend
    backend.device.close()


def durations(profiler: gx.Profiler, run: int) -> list[float | None]:
    return [None if row.duration_ms is None else round(row.duration_ms, 6) for row in profiler.rows() if row.run == run]


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


def test_summaries_leave_out_the_first_runs_if_asked(clocked: Backend) -> None:
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


def find(profiler: gx.Profiler, node: str) -> LayerRow:
    return next(row for row in profiler.rows() if row.node == node)


def test_a_row_has_kernel_grid_bytes_and_operations() -> None:
    with gx.Profiler() as profiler, gx.Worker(two_layers(), backend=SIMULATOR) as worker:
        worker.run(ramp(4, 3))
    first, second = find(profiler, "first+relu"), find(profiler, "second")
    (kernel,) = first.kernels
    assert kernel.startswith("gemv.cu:gemv_along_columns<4, ") and first.commands[0].grid != (0, 0, 0)
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
