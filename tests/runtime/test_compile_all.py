"""The gate over all kernels."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuexec.runtime import compile_all
from gpuexec.runtime.compile_all import CHUNK, Program, compile_programs, find_problems, split_table
from gpuexec.runtime.kernel_cache import KernelCache
from gpuexec.runtime.nvrtc import CompiledKernel

GOOD = "template <int N> __global__ void good(float* x) { x[threadIdx.x] += N; }\n"
BAD = 'extern "C" __global__ void bad() { oops; }\n'
LARGE = """extern "C" __global__ void large(float* x) {
    __shared__ float s[12289];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[0] = s[12288 - threadIdx.x];
}
"""
SPILLING = """extern "C" __global__ void __launch_bounds__(1024, 2) spills(float* x, int n) {
    float r[80];
    for (int i = 0; i < 80; i++) r[i] = x[i * n];
    __syncthreads();
    for (int j = 0; j < n; j++) for (int i = 0; i < 80; i++) r[i] = r[i] * r[(i + 7) % 80] + x[j];
    for (int i = 0; i < 80; i++) x[i * n] = r[i];
}
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, ...]]:
    """A table of instantiations that a test fills, over sources in its own folder, with a cache of its own."""
    rows: dict[str, tuple[str, ...]] = {}
    for name, text in (("good.cu", GOOD), ("bad.cu", BAD), ("large.cu", LARGE), ("spilling.cu", SPILLING)):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(compile_all, "kernel_table", lambda: rows)
    monkeypatch.setattr(compile_all, "kernels_dir", lambda: tmp_path)
    monkeypatch.setenv("GPUEXEC_CACHE_DIR", str(tmp_path / "cache"))
    return rows


def test_main_passes_and_reads_the_cache_when_run_again(
    table: dict[str, tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    table["good.cu"] = tuple(f"good<{n}>" for n in range(CHUNK + 1))
    assert compile_all.main(["--arch", "sm_80", "sm_90"]) == 0
    first = capsys.readouterr().out
    assert f"{2 * (CHUNK + 1)} kernels in 4 programs, 4 of them compiled" in first
    assert first.count("good.cu") == 2
    assert compile_all.main(["--arch", "sm_80", "sm_90"]) == 0
    assert "4 programs, 0 of them compiled" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "expression", "says"),
    [
        ("bad.cu", "bad", r"bad\.cu:bad does not compile for sm_90"),
        ("spilling.cu", "spills", r"spilling\.cu:spills \(sm_90\) spills \d+ bytes"),
        ("large.cu", "large", r"large\.cu:large"),
        ("missing.cu", "f", r"missing\.cu"),
    ],
)
def test_main_fails_and_names_the_kernel_when_one_breaks_a_rule(
    table: dict[str, tuple[str, ...]], capsys: pytest.CaptureFixture[str], source: str, expression: str, says: str
) -> None:
    table["good.cu"] = ("good<1>",)
    table[source] = (expression,)
    assert compile_all.main(["--arch", "sm_90"]) == 1
    captured = capsys.readouterr()
    assert "good.cu" in captured.out
    assert re.search(says, captured.err)


def test_main_fails_when_there_is_nothing_to_compile(table: dict[str, tuple[str, ...]]) -> None:
    assert table == {}
    assert compile_all.main(["--arch", "sm_90"]) == 1


def test_find_problems_names_static_shared_memory_above_48_kib() -> None:
    kernel = CompiledKernel("f", "f", 8, 0, 48 * 1024 + 4)
    program = Program("f.cu", "sm_90", ("f",))
    assert "49156 bytes of static shared memory" in find_problems(compile_all.Outcome(program, (kernel,), "", 0.0))[0]


def test_compile_programs_gives_every_instance_of_a_chunk(tmp_path: Path) -> None:
    (tmp_path / "good.cu").write_text(GOOD)
    table = {str(tmp_path / "good.cu"): tuple(f"good<{n}>" for n in range(3))}
    (outcome,) = compile_programs(split_table(table, ["sm_80"]), KernelCache(tmp_path / "cache"))
    assert [kernel.expression for kernel in outcome.kernels] == ["good<0>", "good<1>", "good<2>"]
