"""Offline compilation of all kernels."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import gpuexec.ops  # noqa: F401  (fills the table)
from gpuexec.devices.kernels import compile_all, gates
from gpuexec.devices.kernels.compile_all import ARCHITECTURES, CHUNK, compile_programs, find_problems, split_table
from gpuexec.devices.kernels.gates import Gate
from gpuexec.devices.kernels.kernel_cache import KernelCache
from gpuexec.errors import DeviceNotFoundError
from gpuexec.ir.instances import kernel_table
from tests.devices.cuda_wheels import needs_cuda_wheels, needs_nvdisasm

GOOD = "template <int N> __global__ void __launch_bounds__(256) good(float* x) { x[threadIdx.x] += N; }\n"
UNBOUNDED = 'extern "C" __global__ void unbounded(float* x) { x[threadIdx.x] += 1; }\n'
BAD = 'extern "C" __global__ void bad() { oops; }\n'
LARGE = """extern "C" __global__ void __launch_bounds__(256) large(float* x) {
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


# 80 sums in registers, which is more than a kernel may take unless its budget says so.
HUNGRY = """extern "C" __global__ void __launch_bounds__(256) hungry(float* x, int n) {
    float r[80];
    for (int i = 0; i < 80; i++) r[i] = x[i * n];
    for (int j = 0; j < n; j++) for (int i = 0; i < 80; i++) r[i] = r[i] * r[(i + 7) % 80] + x[j];
    for (int i = 0; i < 80; i++) x[i * n] = r[i];
}
"""
SOURCES = {"good": GOOD, "bad": BAD, "large": LARGE, "spilling": SPILLING, "unbounded": UNBOUNDED, "hungry": HUNGRY}


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, ...]]:
    """A table of instantiations that a test fills, over sources in its own folder, with a cache of its own."""
    rows: dict[str, tuple[str, ...]] = {}
    for name, text in SOURCES.items():
        (tmp_path / f"{name}.cu").write_text(text)
    monkeypatch.setattr(compile_all, "kernel_table", lambda: rows)
    monkeypatch.setattr(compile_all, "find_source", lambda source: tmp_path / source)
    monkeypatch.setenv("GPUEXEC_CACHE_DIR", str(tmp_path / "cache"))
    return rows


@needs_cuda_wheels
def test_main_passes_and_reads_the_cache_when_run_again(
    table: dict[str, tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    table["good.cu"] = tuple(f"good<{n}>" for n in range(CHUNK + 1))
    assert compile_all.main(["--arch", "sm_80", "sm_90"]) == 0
    first = capsys.readouterr().out
    assert f"{2 * (CHUNK + 1)} kernels in 4 programs, 4 of them compiled" in first
    assert re.search(r"good\.cu +66 ", first)
    assert re.search(r"sm_80 +33 ", first) and re.search(r"sm_90 +33 ", first)
    assert compile_all.main(["--arch", "sm_80", "sm_90"]) == 0
    assert "4 programs, 0 of them compiled" in capsys.readouterr().out


@needs_cuda_wheels
@pytest.mark.parametrize(
    ("source", "expression", "says"),
    [
        ("bad.cu", "bad", r"bad\.cu:bad does not compile for sm_90"),
        ("spilling.cu", "spills", r"spilling\.cu:spills \(sm_90\) spills \d+ bytes"),
        ("large.cu", "large", r"large\.cu:large"),
        ("unbounded.cu", "unbounded", r"unbounded\.cu:unbounded \(sm_90\) has no __launch_bounds__"),
        ("hungry.cu", "hungry", r"hungry\.cu:hungry \(sm_90\) takes \d+ registers; at most 64"),
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


@needs_cuda_wheels
@needs_nvdisasm
def test_main_fails_and_reports_figure_and_bound_when_machine_code_does_not_pass_its_gate(
    table: dict[str, tuple[str, ...]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table["good.cu"] = ("good<1>",)
    monkeypatch.setattr(gates, "GATES", {"good.cu:good": Gate(instructions=3, store_bits=128)})
    for _ in range(2):  # measured, then read again
        assert compile_all.main(["--arch", "sm_90"]) == 1
        first, second = capsys.readouterr().err.splitlines()
        assert re.fullmatch(r"good\.cu:good<1> \(sm_90\) has \d+ instructions; at most 3\.", first)
        assert second == "good.cu:good<1> (sm_90) stores at most 32 bits at once; at least 128."


@needs_cuda_wheels
def test_main_fails_when_a_program_takes_longer_to_compile_than_its_kernels_may(
    table: dict[str, tuple[str, ...]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table["good.cu"] = ("good<1>", "good<2>")
    monkeypatch.setattr(gates, "GATES", {"good.cu:good": Gate(seconds=0.0)})
    assert compile_all.main(["--arch", "sm_90"]) == 1
    says = r"good\.cu:good<1> and the 1 compiled with it \(sm_90\) take [\d.]+ s of processor time; at most 0\.0\."
    assert re.search(says, capsys.readouterr().err)
    assert compile_all.main(["--arch", "sm_90"]) == 0  # from the cache


@needs_cuda_wheels
def test_main_says_that_gates_were_not_held_without_a_disassembler(
    table: dict[str, tuple[str, ...]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_none() -> Path:
        raise DeviceNotFoundError("There is none.")

    table["good.cu"] = ("good<1>",)
    monkeypatch.setattr(compile_all, "find_nvdisasm", find_none)
    monkeypatch.setattr(gates, "GATES", {"good.cu:good": Gate(instructions=3)})
    assert compile_all.main(["--arch", "sm_90"]) == 0
    assert "The gates on machine code were not held. There is none." in capsys.readouterr().out


def test_main_fails_when_there_is_nothing_to_compile(table: dict[str, tuple[str, ...]]) -> None:
    assert table == {}
    assert compile_all.main(["--arch", "sm_90"]) == 1


@needs_cuda_wheels
def test_main_fails_when_nvrtc_does_not_know_an_architecture(
    table: dict[str, tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    table["good.cu"] = ("good<1>",)
    assert compile_all.main(["--arch", "sm_80", "sm_999"]) == 1
    assert re.search(r"nvrtc-\d+\.\d+ can't compile for sm_999; it knows sm_75, ", capsys.readouterr().err)


@needs_cuda_wheels
def test_main_compiles_what_plans_launch_and_names_the_rest(
    table: dict[str, tuple[str, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table["good.cu"] = ("good<1>", "good<2>", "good<3>")
    rows = [
        ["good.cu", "good<1>", 256, {"sm_80": 0, "sm_90": 0}, ""],
        ["good.cu", "good<2>", 256, {"sm_90": 0}, "", ["a test"]],
        ["good.cu", "good<Three::kValue>", 256, {"sm_90": 0}, "struct Three { static constexpr int kValue = 3; };\n"],
    ]
    (tmp_path / "launches.json").write_text(json.dumps(rows))
    assert compile_all.main(["--arch", "sm_80", "sm_90", "--launches", str(tmp_path / "launches.json")]) == 1
    captured = capsys.readouterr()
    assert re.search(r"sm_80 +1 ", captured.out) and re.search(r"sm_90 +3 ", captured.out)
    assert captured.err.splitlines() == [
        "good.cu:good<3> is listed and no plan launches it; add a case that does, or drop it."
    ]


@needs_cuda_wheels
def test_compile_programs_gives_every_instance_of_a_chunk(tmp_path: Path) -> None:
    (tmp_path / "good.cu").write_text(GOOD)
    table = {str(tmp_path / "good.cu"): tuple(f"good<{n}>" for n in range(3))}
    (outcome,) = compile_programs(split_table(table, ["sm_80"]), KernelCache(tmp_path / "cache"))
    assert [kernel.expression for kernel in outcome.kernels] == ["good<0>", "good<1>", "good<2>"]


@needs_cuda_wheels
def test_kernels_of_one_file_keep_their_budgets_on_the_oldest_and_the_newest_architecture(tmp_path: Path) -> None:
    programs = split_table({"softmax.cu": kernel_table()["softmax.cu"]}, [ARCHITECTURES[0], ARCHITECTURES[-1]])
    outcomes = compile_programs(programs, KernelCache(tmp_path))
    assert [len(outcome.kernels) for outcome in outcomes] == [len(kernel_table()["softmax.cu"])] * 2
    assert [problem for outcome in outcomes for problem in find_problems(outcome)] == []
