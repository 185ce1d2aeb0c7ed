"""Profiler events around layers: phases, transfers, allocations, NVTX ranges."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.execution.profiling.rows import EventRow
from gpuexec.system import phases
from tests.execution.held import held_worker, holding
from tests.execution.runs.test_pacing import Clock
from tests.model.small_models import CPU, affine, ramp, two_inputs
from tests.model.staged_models import MODELS, inputs
from tests.model.state_models import running_sum

SIMULATOR = gx.BackendType.SIMULATOR


def named(profiler: gx.Profiler, name: str) -> list[EventRow]:
    return [row for row in profiler.events() if row.name == name]


def spans(outer: EventRow, inner: EventRow) -> bool:
    """Return whether one lasts from before the other to after it."""
    assert None not in (outer.start_ms, outer.duration_ms, inner.start_ms, inner.duration_ms)
    start, end = outer.start_ms, (outer.start_ms or 0.0) + (outer.duration_ms or 0.0)
    return (start or 0.0) <= (inner.start_ms or 0.0) and (inner.start_ms or 0.0) + (inner.duration_ms or 0.0) <= end


def test_what_comes_before_the_first_run_is_reported_once(backend: Backend, tmp_path: Path) -> None:
    with gx.Profiler() as profiler:
        program = gx.Program.build({"forward": affine()}, backend=CPU)
        program.save(tmp_path / "a.gxp")
        gx.Program.load(tmp_path / "a.gxp")
        before = len(profiler.events())
        with gx.Worker(affine(), backend=backend) as worker:
            for _ in range(3):
                worker.run(ramp(4, 3))
    counts = Counter(row.name for row in profiler.events()[before:])
    once = ("plan", "analyse", "lower", "layout", "load kernels", "place weights")
    assert {name: counts[name] for name in once} == dict.fromkeys(once, 1)
    assert counts["schedule"] == 3 and counts["readback"] == 3
    assert counts["upload"] == (3 if backend.device.target.has_kernels else 0)
    assert len(named(profiler, "save program")) == len(named(profiler, "load program")) == 1
    (plan,), first = named(profiler, "plan")[-1:], named(profiler, "schedule")[0]
    assert spans(first, plan) and all(spans(plan, named(profiler, name)[-1]) for name in once[1:5])
    assert plan.place == "MainThread"


def test_preparing_is_heard_of_and_the_run_after_it_plans_nothing(backend: Backend) -> None:
    profiler = gx.Profiler()
    with gx.Worker(affine(), backend=backend, profiler=profiler) as worker:
        worker.prepare((4, 3))
        assert len(profiler.runs()) == 0 and spans(named(profiler, "prepare")[0], named(profiler, "plan")[0])
        worker.run(ramp(4, 3))
    assert len(named(profiler, "plan")) == 1 and len(profiler.runs()) == 1


def test_transfers_report_names_bytes_and_the_run() -> None:
    with gx.Profiler() as profiler, gx.Worker(two_inputs(), backend=SIMULATOR) as worker:
        for rows in (4, 2):
            worker.run([ramp(rows, 3), ramp(rows, 3)])
    assert [(row.run, row.nbytes, row.about) for row in named(profiler, "upload")] == [
        (0, 96, "2 inputs"),
        (1, 48, "2 inputs"),
    ]
    readbacks = {(row.run, row.about, row.nbytes) for row in named(profiler, "readback")}
    assert readbacks == {(0, "sum", 48), (0, "difference", 48), (1, "sum", 24), (1, "difference", 24)}
    assert {row.place for row in named(profiler, "readback")} == {"simulator (sm_90) stream readback"}


def test_blocks_lent_between_plans_are_taken_back(backend: Backend) -> None:
    with gx.Profiler() as profiler:
        with gx.Worker(MODELS["read"].load(), backend=backend) as worker:
            for number in range(3):
                worker.run(inputs(number))
        lent, back = named(profiler, "lend"), named(profiler, "take back")
    assert lent and sum(row.nbytes for row in lent) == sum(row.nbytes for row in back)
    # What the caller's thread puts on the stream is its run's, as is what the driver thread does.
    assert {row.run for row in lent if row.place == "MainThread"} == {row.run for row in lent} == {0, 1, 2}


def test_a_wait_that_nobody_asked_for_is_reported_with_its_reason(backend: Backend) -> None:
    with gx.Profiler() as profiler, held_worker(affine(), backend) as (worker, gate):
        worker.schedule(ramp(4, 3))
        gate.set()
        stream = worker._engine.stream
        worker._engine.syncs.note_wait("run 0", "for a test")
        assert worker.report().host_syncs == (("run 0", "for a test"),) and stream is not None
    (row,) = named(profiler, "host wait")
    assert row.about == "run 0: for a test" and profiler.count_syncs() == 1


def test_reads_on_the_driver_thread_are_heard_by_the_runs_profiler() -> None:
    profiler = gx.Profiler()
    with gx.Worker(MODELS["read"].load(), backend=SIMULATOR, profiler=profiler) as worker:
        with holding(worker._engine.stream):
            run = worker.schedule(inputs(0))
        run.wait()
    (row,) = named(profiler, "host read")
    assert row.place != "MainThread" and row.run == 0 and row.nbytes == 8


def test_states_saved_and_loaded_are_reported(tmp_path: Path) -> None:
    with gx.Profiler() as profiler, gx.Worker(running_sum((2, 3)), backend=CPU) as worker:
        worker.state.save(tmp_path / "state.npz")
        worker.state.load(tmp_path / "state.npz")
    assert len(named(profiler, "save state")) == len(named(profiler, "load state")) == 1


def test_a_moment_begins_as_long_ago_as_it_took() -> None:
    clock = Clock()
    profiler = gx.Profiler(clock=clock)
    clock.ms = 12.0
    with phases.send_events_to(profiler._log):
        phases.note("copy", "of something", nbytes=3, took_ms=5.0)
    (row,) = profiler.events()
    assert (row.name, row.about, row.nbytes, round(row.start_ms or 0.0, 9), row.duration_ms) == (
        "copy",
        "of something",
        3,
        7,
        5,
    )


def test_a_phase_that_fails_ends_and_nobody_hears_what_nobody_observes() -> None:
    profiler = gx.Profiler()
    with pytest.raises(ValueError, match="inner"), profiler, phases.phase("outer"):
        raise ValueError("inner")
    with phases.phase("unheard"):
        phases.note("unheard", "")
    assert [row.name for row in profiler.events()] == ["outer"] and phases.find_receiver() is None


class Nvtx(ModuleType):
    """Stand-in for cupy.cuda.nvtx, which keeps the ranges begun and ended."""

    def __init__(self) -> None:
        super().__init__("cupy.cuda.nvtx")
        self.open: list[str] = []
        self.seen: list[tuple[str, ...]] = []

    def RangePush(self, message: str) -> None:
        self.open.append(message)
        self.seen.append(tuple(self.open))

    def RangePop(self) -> None:
        self.open.pop()


@pytest.fixture
def nvtx(monkeypatch: pytest.MonkeyPatch) -> Nvtx:
    cupy, cuda, found = ModuleType("cupy"), ModuleType("cupy.cuda"), Nvtx()
    cuda.nvtx = found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    return found


def test_layers_and_phases_are_ranges_in_each_other_if_asked_for(nvtx: Nvtx) -> None:
    with gx.Profiler(nvtx=True), gx.Worker(affine(), backend=CPU) as worker:
        worker.run(ramp(4, 3))
    assert nvtx.open == []
    assert ("schedule", "plan small", "lower small") in nvtx.seen
    assert [each[-1] for each in nvtx.seen if each[-1] in ("double", "relu", "add")] == ["double", "relu", "add"]


def test_no_range_is_begun_unless_asked_for(nvtx: Nvtx) -> None:
    with gx.Profiler(), gx.Worker(affine(), backend=CPU) as worker:
        worker.run(ramp(4, 3))
    assert nvtx.seen == []


def test_ranges_without_cupy_are_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    with pytest.raises(gx.DeviceNotFoundError, match=r"NVTX ranges need CuPy .*pip install 'gpuexec\[cuda13\]'"):
        gx.Profiler(nvtx=True)
