"""Gates on the machine code of kernels, by numbers and over a few kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gpuexec.ops  # noqa: F401  (fills the table)
from gpuexec.devices.kernels import gates
from gpuexec.devices.kernels.budgets import KernelUse
from gpuexec.devices.kernels.compile_all import compile_programs, find_problems, split_table
from gpuexec.devices.kernels.gates import EVERY, GATES, Gate, count_blocks, find_gate, find_violations, seconds_limit
from gpuexec.devices.kernels.kernel_cache import KernelCache
from gpuexec.devices.kernels.machine_code import CodeFigures, LoopFigures
from gpuexec.devices.kernels.nvrtc import CompiledKernel
from tests.devices.cuda_wheels import needs_cuda_wheels, needs_nvdisasm

KERNEL = CompiledKernel("f<int>", "f", registers=64, spill_bytes=0, shared_bytes=16 * 1024, max_threads=256)
LOOP = LoopFigures(instructions=100, multiply_adds=60, integers=20, calls=1, global_loads={128: 2})
FIGURES = CodeFigures(
    instructions=500,
    calls=2,
    local_accesses=4,
    store_bits=64,
    path_integers=15,
    loop=LOOP,
    opcodes={"FFMA": 60},
    early_accesses=3,
)
# What FIGURES just reach.
REACHED = Gate(
    instructions=500,
    calls=2,
    local_accesses=4,
    store_bits=64,
    path_integers=15,
    multiply_adds=0.6,
    loop_integers=20,
    loop_calls=1,
    load_bits=128,
    opcodes=("FFMA",),
    early_accesses=3,
    blocks=4,
)


def violations(monkeypatch: pytest.MonkeyPatch, gate: Gate, figures: CodeFigures = FIGURES) -> list[str]:
    monkeypatch.setattr(gates, "GATES", {"f.cu:f": gate})
    return list(find_violations(KERNEL, figures, "f.cu", "sm_90"))


def test_kernel_at_its_bounds_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert violations(monkeypatch, REACHED) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"instructions": 499}, "has 500 instructions; at most 499."),
        ({"calls": 1}, "has 2 calls; at most 1."),
        ({"local_accesses": 3}, "has 4 loads and stores of local memory; at most 3."),
        ({"store_bits": 128}, "stores at most 64 bits at once; at least 128."),
        ({"path_integers": 14}, "has 15 integer instructions before its widest store; at most 14."),
        (
            {"multiply_adds": 0.61},
            "has 60 multiply-adds among 100 instructions of its main loop (60.0%); at least 61.0%.",
        ),
        ({"loop_integers": 19}, "has 20 integer instructions in its main loop; at most 19."),
        ({"loop_calls": 0}, "has 1 calls in its main loop; at most 0."),
        ({"load_bits": 256}, "has 2 global loads of 128 bits in its main loop; each at least 256."),
        ({"opcodes": ("HMMA",)}, "has no HMMA; at least one."),
        ({"early_accesses": 2}, "has 3 accesses of global memory before its wait; at most 2."),
        ({"blocks": 5}, "fits 4 times on a multiprocessor (64 registers); at least 5."),
    ],
)
def test_figure_beyond_a_bound_is_reported_beside_it(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], says: str
) -> None:
    assert violations(monkeypatch, replace(REACHED, **change)) == [says]


def test_kernel_that_says_it_waits_has_the_instruction_from_sm_90_on() -> None:
    def find(figures: CodeFigures, architecture: str) -> list[str]:
        figures = replace(figures, local_accesses=0, early_accesses=0)
        return list(find_violations(KERNEL, figures, "f.cu", architecture, is_waiting=True))

    assert find(FIGURES, "sm_89") == []
    assert find(FIGURES, "sm_90") == [
        "has no ACQBULK, and its source says that it waits for the launches it depends on."
    ]
    assert find(replace(FIGURES, opcodes={"ACQBULK": 1}), "sm_90") == []


def test_share_of_multiply_adds_takes_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    (said,) = violations(monkeypatch, REACHED, replace(FIGURES, loop=None))
    assert "at least 60.0%" in said


def test_row_of_an_instance_goes_before_that_of_its_name() -> None:
    assert find_gate("elementwise_unary.cu", "unary<Relu, float, float>").store_bits == 128
    assert find_gate("elementwise_unary.cu", "unary<Relu, half, half>") == GATES["elementwise_unary.cu:unary"]
    assert find_gate("f.cu", "f") is EVERY
    assert seconds_limit("f.cu", ["f", "g"]) == 2 * EVERY.seconds


@pytest.mark.parametrize(
    ("change", "architecture", "use", "blocks"),
    [
        ({}, "sm_90", None, 4),  # 64 registers of 256 threads
        ({"registers": 65}, "sm_90", None, 3),
        ({"registers": 32, "shared_bytes": 0}, "sm_90", None, 8),
        ({"registers": 32, "shared_bytes": 0}, "sm_75", None, 4),  # 1024 threads
        ({"registers": 32}, "sm_86", None, 5),  # 17 of 100 KiB
        ({"registers": 32}, "sm_86", KernelUse(128, {"sm_86": 8192}), 4),  # 25 of 100 KiB
        ({"max_threads": 0}, "sm_90", None, 1),
    ],
)
def test_blocks_of_a_multiprocessor_follow_from_threads_registers_and_shared_memory(
    change: dict[str, int], architecture: str, use: KernelUse | None, blocks: int
) -> None:
    assert count_blocks(replace(KERNEL, **change), architecture, use) == blocks


@needs_cuda_wheels
@needs_nvdisasm
@pytest.mark.parametrize("architecture", ["sm_75", "sm_90a"])
def test_kernels_pass_their_gates(architecture: str, tmp_path: Path) -> None:
    table = {
        "matmul.cu": ["gemm<half>"],
        "conv.cu": ["conv_gemm<float>"],
        "elementwise_binary.cu": ["binary<Add, float, float>"],
        "elementwise_unary.cu": ["unary<Sin, double, double>", "unary<Relu, half, half>"],
    }
    outcomes = compile_programs(split_table(table, [architecture]), KernelCache(tmp_path), tmp_path / "figures")
    assert [problem for outcome in outcomes for problem in find_problems(outcome)] == []
    assert all(kernel.lowered_name in outcome.figures for outcome in outcomes for kernel in outcome.kernels)
    (gemm,) = outcomes[0].figures.values()
    assert gemm.loop is not None
    assert gemm.loop.multiply_adds == 256  # 4 x 4 sums over slabs of 16
