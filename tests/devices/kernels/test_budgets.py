"""Resource budgets of kernels, by numbers alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuexec.devices.kernels.budgets import (
    BLOCK_REGISTERS,
    LARGER,
    REGISTERS,
    STATIC_SHARED_BYTES,
    KernelUse,
    find_excess,
)
from gpuexec.devices.kernels.nvrtc import CompiledKernel

FITS = CompiledKernel(
    "f<int>", "f", registers=REGISTERS, spill_bytes=0, shared_bytes=STATIC_SHARED_BYTES, max_threads=256
)
LARGEST = LARGER["matmul.cu:gemm"].registers


def use(threads: int = 256, shared_bytes: int = 0) -> KernelUse:
    return KernelUse(threads, {"sm_75": shared_bytes, "sm_90": shared_bytes})


def excess(
    kernel: CompiledKernel, source: str = "f.cu", architecture: str = "sm_75", use: KernelUse | None = None
) -> str:
    return " ".join(find_excess(kernel, source, architecture, use))


def test_kernel_at_its_limits_is_within_its_budget() -> None:
    assert excess(FITS, use=use(256, 16 * 1024)) == ""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"spill_bytes": 4}, "spills 4 bytes with 64 registers"),
        ({"registers": REGISTERS + 1}, "takes 65 registers; at most 64"),
        ({"max_threads": 0}, "no __launch_bounds__"),
        ({"shared_bytes": STATIC_SHARED_BYTES + 4}, "49156 bytes of static shared memory; at most 49152"),
    ],
)
def test_kernel_beyond_a_limit_is_named(change: dict[str, int], says: str) -> None:
    assert says in excess(replace(FITS, **change))


@pytest.mark.parametrize(
    ("registers", "threads", "fits"),
    [
        (64, 1024, True),
        (65, 960, False),  # a thread gets registers in steps of 8: 72
        (121, 512, True),
        (121, 513, False),
        (72, 896, True),
        (72, 910, False),  # a warp that is not full takes as many as a full one: 928 threads
    ],
)
def test_block_has_registers_for_all_of_its_threads(registers: int, threads: int, fits: bool) -> None:
    kernel = replace(FITS, expression="gemm<float>", registers=registers, max_threads=threads)
    assert (excess(kernel, "matmul.cu") == "") == fits
    assert fits or f"registers for each of {threads} threads; a block has {BLOCK_REGISTERS}" in excess(
        kernel, "matmul.cu"
    )


def test_larger_budget_holds_for_its_kernel_and_an_instance_may_have_its_own() -> None:
    gemm = replace(FITS, expression="gemm<float>", registers=LARGEST)
    assert excess(gemm, "matmul.cu") == ""
    assert excess(gemm, "conv.cu") != ""
    assert excess(replace(gemm, registers=LARGEST + 8), "matmul.cu") != ""
    assert excess(replace(gemm, expression="gemm<i64>", registers=LARGEST + 8), "matmul.cu") == ""


def test_launches_keep_to_bounds_and_to_the_shared_memory_of_the_architecture() -> None:
    assert "is launched with 257 threads" in excess(FITS, use=use(257))
    more = use(256, 16 * 1024 + 1)
    assert "65537 bytes of shared memory; sm_75 gives a block at most 65536" in excess(FITS, use=more)
    assert excess(FITS, architecture="sm_90", use=more) == ""
