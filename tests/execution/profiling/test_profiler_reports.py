"""Profiler reports: layer times, host waits, memory, and exports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.devices.backends import on
from tests.model.small_models import affine, ramp, two_layers
from tests.model.staged_models import MODELS, inputs

X = ramp(4, 3)


@pytest.mark.feature("B57")
def test_a_profiler_is_chosen_when_running_and_reports_layers_and_operators(backend: Backend) -> None:
    with gx.Worker(two_layers(), backend=backend) as worker:
        worker.run(X)
        with gx.Profiler() as profiler:
            for _ in range(5):
                worker.run(X)
    assert {each.name: (each.runs, each.times) for each in profiler.summarise()} == {
        "first+relu": (5, 5),
        "second": (5, 5),
    }
    assert {each.name: (each.runs, each.times) for each in profiler.summarise("operator")} == {
        "gpuexec.FusedMatMul": (5, 5),
        "MatMul": (5, 5),
    }
    for each in profiler.summarise():
        assert 0 <= each.min_ms <= each.p10_ms <= each.p50_ms <= each.p90_ms <= each.max_ms


@pytest.mark.feature("B57")
def test_memory_is_reported_at_each_step_and_complexity_by_shapes(backend: Backend) -> None:
    with gx.Profiler() as profiler, gx.Worker(two_layers(), backend=backend) as worker:
        worker.run(X)
        held = worker.memory_stats()
    rows = profiler.memory()
    assert [row.node for row in rows] == ["first+relu", "second"]
    assert dict(rows[0].held)["arena"] == held["arena"] == rows[0].arena >= rows[0].arena_used > 0
    work = {row.node: row for row in gx.count_work(worker.model, {"x": X.shape})}
    assert {name: row.flops for name, row in work.items()} == {"first": 120, "relu": 20, "second": 80}
    assert [row.flops for row in profiler.rows()] == [120 + 20, 80]
    assert sum(row.weight_bytes for row in work.values()) == 4 * (3 * 5 + 5 * 2)


@pytest.mark.feature("S80")
@on("simulator")
def test_layers_are_timed_by_the_devices_events_and_name_their_kernels(backend: Backend) -> None:
    with gx.Profiler() as profiler, gx.Worker(two_layers(), backend=backend) as worker:
        worker.run(X)
    for row in profiler.rows():
        assert row.device == backend.device.name and len(row.kernels) == 1
        assert row.duration_ms is not None and row.duration_ms >= 0
    first, second = (row.start_ms or 0.0 for row in profiler.rows())
    assert first <= second


@pytest.mark.feature("S80")
def test_marks_of_the_package_name_what_it_does(backend: Backend, tmp_path: Path) -> None:
    with gx.Profiler() as profiler:
        gx.Program.build({"forward": affine()}, backend=backend).save(tmp_path / "a.gxp")
        gx.Program.load(tmp_path / "a.gxp")
        with gx.Worker(MODELS["read"].load(), backend=backend) as worker:
            worker.run(inputs(0))
    names = {row.name for row in profiler.events()}
    assert {"schedule", "plan", "analyse", "lower", "layout", "load kernels", "place weights"} <= names
    assert {"readback", "host read", "lend", "take back", "save program", "load program"} <= names


@pytest.mark.feature("S80")
@pytest.mark.parametrize("name", ["read", "host call", "loop"])
def test_stalls_are_named_and_counted_as_the_report_does(name: str, backend: Backend) -> None:
    with gx.Profiler() as profiler, gx.Worker(MODELS[name].load(), backend=backend) as worker:
        for number in range(2):
            worker.run(inputs(number))
        report = worker.report()
    counted = sum(row.times for row in (*report.host_reads, *report.host_calls)) + len(report.host_syncs)
    assert profiler.count_syncs() == counted
    stalls = [row.about for row in profiler.events() if row.name == "host read"]
    assert {about.split(" for ")[0] for about in stalls} == {row.value for row in report.host_reads}


@pytest.mark.feature("E72")
def test_a_methods_profiler_goes_before_its_modules(backend: Backend) -> None:
    of_module, of_method = gx.Profiler(), gx.Profiler()
    program = gx.Program.build({"one": affine(), "two": affine()}, backend=backend)
    with gx.Module(program, backend=backend, profiler=of_module) as module:
        module.load_method("two", profiler=of_method)
        module.execute("one", [X])
        module.execute("two", [X])
        module.execute("two", [X])
    assert (len(of_module.runs()), len(of_method.runs())) == (1, 2)


@pytest.mark.feature("E84")
def test_a_profile_is_rows_a_table_values_and_a_trace(
    backend: Backend, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with gx.Profiler() as profiler, gx.Worker(two_layers(), backend=backend) as worker:
        for _ in range(3):
            worker.run(X)
    assert [row.run for row in profiler.runs()] == [0, 1, 2] and len(profiler.rows()) == 6
    total = profiler.find_total()
    assert total is not None and total.times == 6
    profiler.table()
    assert {"first+relu", "second"} <= set(capsys.readouterr().out.split())
    profiler.save_tsv(tmp_path / "rows.tsv")
    assert len((tmp_path / "rows.tsv").read_text().splitlines()) == 7
    profiler.save_chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    layers = [event["name"] for event in events if event.get("cat") == "layer"]
    assert layers == ["first+relu", "second"] * 3
