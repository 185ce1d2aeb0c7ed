"""Tests of wrappers of PTX instructions: on the simulator, and on a GPU where there is one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpuexec.devices.cuda.cuda import CudaDevice
from gpuexec.devices.kernels.kernel_cache import KernelCache
from gpuexec.devices.kernels.kernel_library import KernelLibrary
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.ir.command import Kernel
from gpuexec.ir.target import Target
from tests.devices.cuda_wheels import needs_cuda_wheels
from tests.devices.opening import open_device
from tests.system.gpu import ptx_wrappers
from tests.system.gpu.ptx_wrappers import (
    CASES,
    Case,
    draw_words,
    find_wrappers,
    measure_wrappers,
    run_on_device,
    run_on_simulator,
)

TURN = Case("turn", "types.cuh", (), "y[t] = x[31 - t];", lambda x: ptx_wrappers._place((0, x[31::-1])))
PRESENT = [case for case in CASES if case.is_present]


@pytest.mark.parametrize("case", PRESENT, ids=lambda case: case.name)
def test_host_bodies_give_what_is_expected(case: Case) -> None:
    x = draw_words()
    for y in run_on_simulator(case, x):
        np.testing.assert_array_equal(y, case.expected(x))


@pytest.mark.gpu
@pytest.mark.parametrize("case", PRESENT, ids=lambda case: case.name)
def test_instructions_give_what_is_expected(case: Case) -> None:
    device = open_device("gpu")
    if not case.is_for(device.target.architecture):
        pytest.skip(f"needs sm_{case.since}")
    x = draw_words()
    np.testing.assert_array_equal(run_on_device(case, device, x), case.expected(x))


@needs_cuda_wheels
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90", "sm_120"])
def test_cases_compile_for_gpus(architecture: str, tmp_path: Path) -> None:
    able = [case for case in (TURN, *PRESENT) if case.is_for(Target.named(architecture).architecture)]
    kernels = [Kernel(str(case.write(tmp_path)), case.name) for case in able]
    KernelLibrary(architecture, KernelCache(tmp_path / "cache")).compile(kernels)


def test_cases_run_on_the_cuda_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tests.devices.cupy_standin import Standin, install

    below = SimulatorDevice(lambda source: (Path(source).stem,))
    install(monkeypatch, Standin(below, architecture=(8, 0)))
    monkeypatch.setenv("GPUEXEC_CACHE_DIR", str(tmp_path))
    device, x = CudaDevice(), draw_words()
    np.testing.assert_array_equal(run_on_device(TURN, device, x), TURN.expected(x))
    device.close()
    below.close()


def test_every_wrapper_of_the_headers_has_a_case() -> None:
    have = {(case.header, name) for case in CASES for name in case.wrappers}
    assert find_wrappers() <= have


def test_wrappers_are_found_in_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "include").mkdir()
    text = """
template <int N>
__device__ inline void wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
__device__ inline int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
__device__ int add(int a) {
  return a;
}
__device__ inline int find_lane() {
  int lane;
  asm("mov.u32 %0, %laneid;" : "=r"(lane));
  return lane;
}
"""
    (tmp_path / "include" / "sample.cuh").write_text(text)
    monkeypatch.setattr(ptx_wrappers, "kernels_dir", lambda: tmp_path)
    assert find_wrappers() == {("sample.cuh", "wait"), ("sample.cuh", "find_lane")}


def test_results_are_told_for_each_case(monkeypatch: pytest.MonkeyPatch) -> None:
    body, right = TURN.body, TURN
    cases = (
        right,
        Case("turn_wrongly", "types.cuh", (), body, lambda x: ptx_wrappers._place((0, x[:32]))),
        Case("not_written", "nowhere.cuh", (), body, right.expected),
        Case("too_new", "types.cuh", (), body, right.expected, since=999),
        Case("broken", "types.cuh", (), "y[t] = missing;", right.expected),
    )
    monkeypatch.setattr(ptx_wrappers, "CASES", cases)
    figures = measure_wrappers(open_device("simulator"))
    results = [row[-1] for row in figures.rows]
    assert results[0] == "equal"
    assert results[1] == "32 of 256 words DIFFER"
    assert results[2:4] == ["absent", "needs sm_999"]
    assert results[4].startswith("failed: ")
    assert figures.notes[0].startswith("2 WRONG")
