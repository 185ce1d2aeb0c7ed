"""Exports of a profile: trace, tab-separated values, DataFrame, table."""

from __future__ import annotations

import contextvars
import csv
import json
import sys
import threading
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.devices.backend import open_backend
from gpuexec.execution.profiling.rows import EventRow
from gpuexec.execution.profiling.trace import make_trace
from tests.model.small_models import CPU, make_model, ramp, two_layers
from tests.model.staged_models import MODELS, inputs

SIMULATOR = gx.BackendType.SIMULATOR
ODD = 'a\tb "c" [red]\n'


def odd_model() -> gx.Model:
    """Return a model with a node whose name means something to tables."""
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], name=ODD),
        helper.make_node("Relu", ["a"], ["y"], name="relu"),
    ]
    return make_model(nodes, {"x": ("n", 3)}, {"y": ("n", 3)})


def profile(model: gx.Model, x: Any, backend: gx.BackendType = CPU, runs: int = 2) -> gx.Profiler:
    with gx.Profiler() as profiler, gx.Worker(model, backend=open_backend(backend)) as worker:
        for _ in range(runs):
            worker.run(x)
    return profiler


def test_a_trace_has_threads_streams_and_counters(tmp_path: Path) -> None:
    profiler = profile(MODELS["host call"].load(), inputs(0), SIMULATOR)
    path = tmp_path / "trace.json"
    profiler.save_chrome_trace(path)
    events = json.loads(path.read_text())["traceEvents"]
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        by_kind.setdefault(event["ph"], []).append(event)
    assert set(by_kind) <= {"M", "X", "C", "i", "s", "f"} and {"M", "X", "C"} <= set(by_kind)
    processes = {e["pid"]: e["args"]["name"] for e in by_kind["M"] if e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in by_kind["M"] if e["name"] == "thread_name"}
    assert set(processes.values()) == {"host", "simulator (sm_90)"}
    tracks = {(processes[pid], name) for (pid, _), name in threads.items()}
    assert {("host", "MainThread"), ("host", "issuing layers (MainThread)")} <= tracks
    assert any(process == "host" and name.startswith("host layers (gpuexec-driver") for process, name in tracks)
    assert {("simulator (sm_90)", name) for name in ("compute", "upload", "readback")} <= tracks
    assert all((e["pid"], e["tid"]) in threads and e["dur"] >= 0 and isinstance(e["ts"], float) for e in by_kind["X"])
    assert {e["name"] for e in by_kind["C"]} == {"held (compute)", "arena (compute)"}
    assert all(isinstance(value, int) for e in by_kind["C"] for value in e["args"].values())
    compute = [e for e in by_kind["X"] if threads[e["pid"], e["tid"]] == "compute"]
    rows = [row for row in profiler.rows() if row.device != "host"]
    assert [(e["name"], e["args"]["run"]) for e in compute] == [(row.node, row.run) for row in rows]
    # To the nanosecond, so that what ends as another begins does not overlap it by rounding.
    assert [round(e["ts"] * 1e3) for e in compute] == [round(1e6 * (row.start_ms or 0.0)) for row in rows]
    # One after the other on their stream, and none before the host put it there.
    assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-6 for a, b in pairwise(compute))
    issues = [e for e in by_kind["X"] if threads[e["pid"], e["tid"]].startswith("issuing layers")]
    assert all(issue["ts"] <= work["ts"] + work["dur"] for issue, work in zip(issues, compute, strict=True))
    # Arrows from there to there.
    for kind, spans in (("s", issues), ("f", compute)):
        places = {e["id"]: (e["pid"], e["tid"], e["ts"]) for e in by_kind[kind]}
        assert list(places.values()) == [(e["pid"], e["tid"], e["ts"]) for e in spans]
    assert [e["id"] for e in by_kind["s"]] == [e["id"] for e in by_kind["f"]]


def list_tracks(trace: dict[str, Any]) -> dict[str, list[tuple[str, float, float]]]:
    """Return the spans of a trace by the names of their threads, in order: name, start and end."""
    events = trace["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    tracks: dict[str, list[tuple[str, float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            span = (event["name"], event["ts"], event["ts"] + event["dur"])
            tracks.setdefault(names[event["pid"], event["tid"]], []).append(span)
    return tracks


SPANS = {
    "in each other": ([("a", 0, 9), ("b", 0, 4), ("c", 4, 9)], {"t": "abc"}),
    "one after the other": ([("b", 5, 9), ("a", 0, 5)], {"t": "ab"}),
    "over the end of another": ([("a", 0, 5), ("b", 3, 8), ("c", 4, 9), ("d", 8, 9)], {"t": "ad", "t, beside 1": "b"}),
    "of nothing at an end": ([("a", 0, 5), ("b", 5, 5), ("c", 5, 6)], {"t": "acb"}),
}


@pytest.mark.parametrize(("spans", "expected"), SPANS.values(), ids=SPANS)
def test_spans_that_do_not_nest_stand_beside(spans: list[tuple[str, float, float]], expected: dict[str, str]) -> None:
    rows = [EventRow(name, "", "t", 0, 0, start, end - start or 1e-7) for name, start, end in spans]
    tracks = list_tracks(make_trace([], rows, []))
    assert {each: "".join(name for name, *_ in found) for each, found in tracks.items() if each in expected} == expected
    assert sum(map(len, tracks.values())) == len(spans)


def test_runs_side_by_side_have_tracks_of_their_own() -> None:
    model, backend = two_layers(), open_backend(SIMULATOR)
    worker = partial(gx.Worker, model, backend=backend)
    with worker() as one, worker() as other, gx.Profiler() as profiler:
        # Each begins before the other ends.
        for _ in zip(one.schedule_iterable(ramp(4, 3)), other.schedule_iterable(ramp(4, 3)), strict=True):
            pass
        thread = threading.Thread(target=contextvars.copy_context().run, args=(other.run, ramp(4, 3)))
        thread.name = "MainThread"
        thread.start()
        thread.join()
    rows = profiler.rows()
    assert {row.run: row.stream for row in rows} == {0: "compute", 1: "compute 2", 2: "compute 2"}
    assert {row.run: row.thread for row in rows} == {0: "MainThread", 1: "MainThread", 2: "MainThread 2"}
    assert {row.run: row.stream for row in profiler.memory()} == {0: "compute", 1: "compute 2", 2: "compute 2"}
    assert {row.place.partition(" stream ")[2] for row in profiler.events() if row.name == "upload"} == {
        "upload",
        "upload 2",
    }
    tracks = list_tracks(make_trace(rows, profiler.events(), profiler.memory()))
    assert {"compute", "compute 2", "issuing layers (MainThread)", "issuing layers (MainThread 2)"} <= tracks.keys()
    assert len(tracks["compute 2"]) == 2 * len(tracks["compute"])


def test_values_separated_by_tabs_are_read_back_whole(tmp_path: Path) -> None:
    profiler = profile(odd_model(), ramp(4, 3))
    path = tmp_path / "rows.tsv"
    profiler.save_tsv(path)
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file, dialect="excel-tab"))
    assert [row["node"] for row in rows] == [ODD, "relu"] * 2
    assert [float(row["duration_ms"]) for row in rows] == [row.duration_ms for row in profiler.rows()]
    profiler.save_tsv(path, by="operator")
    with open(path, newline="") as file:
        assert {row["name"]: row["flops"] for row in csv.DictReader(file, dialect="excel-tab")} == {
            "Neg": "12",
            "Relu": "12",
        }
    gx.Profiler().save_tsv(path)
    assert path.read_text() == ""


def test_kernels_are_written_where_there_are_some(tmp_path: Path) -> None:
    profiler = profile(odd_model(), ramp(4, 3), SIMULATOR)
    profiler.save_tsv(tmp_path / "rows.tsv")
    with open(tmp_path / "rows.tsv", newline="") as file:
        rows = list(csv.DictReader(file, dialect="excel-tab"))
    assert all("elementwise" in row["kernels"] and row["kernels"] in row["commands"] for row in rows)


def test_a_dataframe_has_a_column_for_each_field(monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = ModuleType("pandas")
    pandas.DataFrame = lambda records: ("frame", records)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    profiler = profile(odd_model(), ramp(4, 3))
    kind, records = profiler.to_dataframe()  # type: ignore[misc]
    assert kind == "frame" and [record["node"] for record in records] == [ODD, "relu"] * 2  # type: ignore[attr-defined]
    assert set(records[0]) >= {"run", "operator", "kernels", "duration_ms", "flops", "bytes_read"}  # type: ignore[index]
    _, summaries = profiler.to_dataframe(by="layer")  # type: ignore[misc]
    assert [set(each) >= {"name", "p50_ms", "runs"} for each in summaries] == [True, True]  # type: ignore[attr-defined]


def test_no_pandas_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    profiler = profile(odd_model(), ramp(4, 3))
    with pytest.raises(gx.InputError, match="to_dataframe needs pandas: pip install pandas"):
        profiler.to_dataframe()
    assert len(profiler.rows()) == 4


def test_the_table_shows_the_longest_first_and_says_what_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    profiler = profile(odd_model(), ramp(4, 3))
    profiler.table("operator")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["operator", "runs", "times", "share"]
    assert [line.split()[0] for line in lines[1:]] == [each.name for each in profiler.summarise("operator")]
    profiler.table(limit=1)
    text = capsys.readouterr().out
    assert "and 1 more" in text and (ODD.split("\t")[0] in text or "relu" in text)
    profiler.table(limit=None)
    assert "more" not in (text := capsys.readouterr().out) and "[red]" in text
