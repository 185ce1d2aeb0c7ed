"""Rehearsal of methods: kernels of all parts are found beforehand, for other content and sizes too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.kernels.kernel_cache import KernelCache
from gpuexec.devices.kernels.kernel_library import KernelLibrary
from gpuexec.errors import DeviceNotFoundError
from gpuexec.execution.runs.loops import LoopExecutor
from gpuexec.ir.command import Kernel
from gpuexec.ir.target import Target
from gpuexec.model.model import Model
from gpuexec.program import dry_run
from gpuexec.program.building import build_contents
from gpuexec.program.cases import Case
from gpuexec.program.rehearsing import rehearse
from tests.devices.cuda_wheels import needs_cuda_wheels
from tests.model.control_models import MODELS as CONTROL
from tests.model.staged_models import MODELS as STAGED
from tests.program.program_seeds import load_text

Array = np.ndarray[Any, Any]
SM_90 = Target.named("sm_90")


def launched(model: Model, feed: dict[str, Array]) -> set[Kernel]:
    """Return the kernels of all plans of a run on the simulator, without generated ones.

    Those follow from what is planned together, and a run does without them where a file does not hold them.
    """
    plain = frozenset({*model.disabled_passes, "fuse_rows", "fuse_regions"})
    model = model._derive(model.info, model.graph, model.dims, plain, model.memories)
    with gx.Worker(model, backend=gx.BackendType.SIMULATOR) as worker:
        worker.run(feed)
        return {kernel for plan in worker.plans for kernel in plan.kernels()}


def make(rows: int, columns: int, seed: int = 0) -> dict[str, Array]:
    x = np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)
    return {"x": np.where(abs(x) < 0.3, 0, x).astype(np.float32)}


ENDLESS = """(float[n] x) => (float[n] y) {
  y = Loop ("", yes, x) <body = b (int64 i, bool c, float[n] v) => (bool c_out, float[n] v_out) {
    v_out = Loop ("", c, v) <body = d (int64 j, bool k, float[n] w) => (bool k_out, float[n] w_out) {
      w_out = Mul (w, none)
      s = ReduceSum <keepdims = 0> (w_out)
      k_out = Less (s, one)
    }>
    t = ReduceSum <keepdims = 0> (v_out)
    c_out = Less (t, one)
  }>
}"""


def test_loops_without_end_are_left_together(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = {"yes": np.array(True), "none": np.array(0, np.float32), "one": np.array(1, np.float32)}
    model = load_text(ENDLESS, arrays=arrays, dims={"n": 3})
    trips = []
    trip = LoopExecutor._trip

    def count(self: LoopExecutor, op: Any, given: Any) -> Any:
        trips.append(op)
        return trip(self, op, given)

    monkeypatch.setattr(LoopExecutor, "_trip", count)
    monkeypatch.setattr(dry_run, "_MAX_TRIPS", 10)
    monkeypatch.setattr(dry_run, "_MAX_TRIPS_TOGETHER", 15)
    rehearsal = rehearse(model, SM_90, [{"x": np.ones(3, np.float32)}])
    # Twice, with the input on the host and not, for each of the two limits of work for the host.
    assert len(trips) <= 4 * 16 and rehearsal.kernels and not rehearsal.gaps


@pytest.mark.parametrize("name", STAGED)
@pytest.mark.parametrize("followed", [(3, 5), (40, 90)])
def test_kernels_of_later_parts_are_found_whatever_a_run_reads(name: str, followed: tuple[int, int]) -> None:
    model = STAGED[name].load()
    rehearsal = rehearse(model, SM_90, [make(*followed)])
    assert rehearsal.gaps == ()
    used = set[Kernel]()
    for feed in (make(3, 5, seed=1), make(40, 90, seed=2), {"x": -abs(make(4, 4)["x"]) - 1}):
        used |= launched(model, feed)
    assert used and used <= set(rehearsal.kernels)


@pytest.mark.parametrize("name", CONTROL)
def test_every_feed_of_a_loop_or_branch_finds_its_kernels(name: str) -> None:
    model = gx.load(CONTROL[name].parse())
    feeds = CONTROL[name].feeds()
    rehearsal = rehearse(model, SM_90, feeds[:1])
    assert rehearsal.gaps == ()
    for feed in feeds:
        assert launched(model, feed) <= set(rehearsal.kernels)


def test_what_follows_nothing_found_is_followed_as_if_there_were_some() -> None:
    text = """(float[n] x) => (float[m, 1] y) {
      found = NonZero (x)  by_row = Transpose <perm = [1, 0]> (found)  some = Cast <to = 1> (by_row)  y = Exp (some)
    }"""
    model = load_text(text)
    rehearsal = rehearse(model, SM_90, [{"x": np.zeros(6, np.float32)}])
    assert rehearsal.gaps == ()
    assert launched(model, {"x": np.ones(6, np.float32)}) <= set(rehearsal.kernels)


def test_branch_that_can_not_be_followed_is_reported() -> None:
    text = """(float[n, 4] x, bool c) => (float[n, m] y) {
      y = If (c) <then_branch = a () => (float[n, 4] p) { p = Neg (x) },
                  else_branch = b () => (float[n, 3] q) { q = MatMul (x, w) }>
    }"""
    model = load_text(text, arrays={"w": np.ones((5, 3), np.float32)})
    rehearsal = rehearse(model, SM_90, [{"x": np.ones((2, 4), np.float32), "c": np.array(True)}])
    (gap,) = rehearsal.gaps
    assert "else_branch of If " in gap and "not in the file" in gap and "MatMul" in gap


def test_if_that_nothing_leads_to_is_reported() -> None:
    inner = """then_branch = c () => (float[n, 4] r) { r = Abs (x) },
               else_branch = d () => (float[n, 4] s) { s = Sqrt (x) }"""
    text = f"""(float[n, 4] x, bool c) => (float[n, m] y) {{
      y = If (c) <then_branch = a () => (float[n, 4] p) {{ p = Neg (x) }},
                  else_branch = b () => (float[n, 4] q) {{ bad = MatMul (x, w)
                    t = ReduceSum <keepdims = 0> (bad) u = Cast <to = 9> (t) q = If (u) <{inner}> }}>
    }}"""
    model = load_text(text, arrays={"w": np.ones((5, 3), np.float32)})
    rehearsal = rehearse(model, SM_90, [{"x": np.ones((2, 4), np.float32), "c": np.array(True)}])
    assert len(rehearsal.gaps) == 2 and "nothing led there" in rehearsal.gaps[1]


def test_loop_without_end_is_left() -> None:
    text = """(float[n] x) => (float[n] y) <bool yes = {1}> {
      z = Loop ("", yes, x) <body = b (int64 i, bool c, float[n] v) => (bool c_out, float[n] v_out) {
        v_out = Neg (v)  size = ReduceMax <keepdims = 0> (v_out)  c_out = Less (size, limit) }>
      y = Exp (z)
    }"""
    model = load_text(text, arrays={"limit": np.array(1e9, np.float32)})
    kernels = rehearse(model, SM_90, [{"x": np.ones(3, np.float32)}]).kernels
    assert any("Exp" in kernel.expression + kernel.text for kernel in kernels)


NO_TRIPS = {
    "loop": """(float[k] x, int64 n) => (float[k] y) {
      y = Loop (n, "", x) <body = b (int64 i, bool c, float[k] v) => (bool c_out, float[k] v_out) {
        c_out = Identity (c)  v_out = Sinh (v) }>
    }""",
    "scan": """(float[k] x, int64 n) => (float[k, t] y) {
      rows = Range (zero, n, one)  all = Unsqueeze (rows, axis)
      y = Scan <num_scan_inputs = 1, scan_output_axes = [1], body = b (int64[m] row) => (float[k] made) {
        part = Cast <to = 1> (row)  sum = Add (x, part)  made = Sinh (sum) }> (all)
    }""",
}
NUMBERS = {"zero": np.array(0, np.int64), "one": np.array(1, np.int64), "axis": np.array([1], np.int64)}


@pytest.mark.parametrize("name", NO_TRIPS)
def test_body_without_trips_is_tried(name: str) -> None:
    model = load_text(NO_TRIPS[name], arrays=NUMBERS)
    x = np.ones(4, np.float32)
    rehearsal = rehearse(model, SM_90, [{"x": x, "n": np.array(0, np.int64)}])
    used = launched(model, {"x": x, "n": np.array(3, np.int64)})
    assert rehearsal.gaps == () and any("Sinh" in kernel.expression + kernel.text for kernel in used)
    assert used <= set(rehearsal.kernels)


def test_body_without_trips_that_can_not_be_tried_is_reported() -> None:
    text = NO_TRIPS["loop"].replace("Sinh (v)", "MatMul (v, w)")
    model = load_text(text, arrays={"w": np.ones((5, 4), np.float32)})
    (gap,) = rehearse(model, SM_90, [{"x": np.ones(4, np.float32), "n": np.array(0, np.int64)}]).gaps
    assert "the body of Loop" in gap and "no case runs it" in gap and "MatMul" in gap


@needs_cuda_wheels
def test_method_in_parts_runs_from_a_file_without_a_compiler(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = STAGED["many"].load()
    contents = build_contents({"m": model}, architectures=["sm_80", "sm_90"], cases={"m": [Case(make(3, 5))]})
    assert contents.methods["m"].gaps == ()
    used = sorted(launched(model, make(40, 90, seed=3)), key=str)
    assert not {kernel for plan in contents.methods["m"].plans["sm_90"] for kernel in plan.kernels()} >= set(used)

    def refuse() -> Any:
        raise DeviceNotFoundError("there is no compiler")

    monkeypatch.setattr("gpuexec.devices.kernels.nvrtc.load_nvrtc", refuse)
    for architecture in ("sm_80", "sm_90", "sm_120"):
        library = KernelLibrary(architecture, KernelCache(tmp_path / architecture))
        assert len(library.compile(used, contents.code)) == len(used)
        assert library.compile_count == 0
