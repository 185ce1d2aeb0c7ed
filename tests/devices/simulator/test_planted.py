"""Planted bugs in three kernels: check mode finds each by kind and lines, and nothing in correct ones."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuexec.devices.arguments import PackedArguments
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.devices.simulator.findings import Finding, Kind
from gpuexec.devices.simulator.library import Schedule
from gpuexec.devices.simulator.module import FindingsError, SimulatorFunction, load_files
from gpuexec.errors import CheckError
from gpuexec.ir.command import Kernel, LaunchConfig

Array = np.ndarray[Any, Any]
FOLDER = Path(__file__).parent / "kernels"
F32, I32 = np.float32, np.int32
# In the order of the kernels' enum Bug.
KINDS: dict[str, Kind] = {
    "RaceInBlock": "race",
    "RaceBetweenBlocks": "race",
    "GlobalOverrun": "out of bounds",
    "SharedOverrun": "out of bounds",
    "Misaligned": "misaligned access",
    "Uninitialised": "uninitialised read",
    "Divergent": "divergent barrier",
    "MissingWait": "missing wait",
}
BUGS = list(KINDS)
NAMES = ("sum", "gemm", "stencil")
SEEDS = range(3)


@functools.cache
def load() -> Mapping[tuple[str, int], SimulatorFunction]:
    """Every kernel with every bug; 0 is none."""
    tables = {FOLDER / f"planted_{name}.cu": [f"{name}<{bug}>" for bug in range(len(BUGS) + 1)] for name in NAMES}
    files = load_files(tables, mode="check")
    return {
        (name, bug): files[FOLDER / f"planted_{name}.cu"][f"{name}<{bug}>"]
        for name in NAMES
        for bug in range(len(BUGS) + 1)
    }


def run_sum(function: SimulatorFunction, schedule: Schedule) -> tuple[Array, Array]:
    x, partial, total = np.random.default_rng(0).random(600, F32), np.zeros(3, F32), np.zeros(1, F32)
    function.launch_arrays(3, 64, x, partial, total, I32(x.size), schedule=schedule)
    return total, x.sum(keepdims=True)


def run_gemm(function: SimulatorFunction, schedule: Schedule) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    a, b, c = rng.random((24, 40), F32), rng.random((40, 20), F32), np.zeros((24, 20), F32)
    function.launch_arrays((2, 2), (16, 16), a, b, c, I32(24), I32(20), I32(40), schedule=schedule)
    return c, a @ b


def run_stencil(function: SimulatorFunction, schedule: Schedule) -> tuple[Array, Array]:
    n = 128 + 40
    x, y, counts = np.random.default_rng(0).random(n, F32) * 8, np.zeros(n, F32), np.zeros(8, np.uint32)
    function.launch_arrays(3, 64, x, y, counts, I32(n), shared_bytes=2 * 66 * 4, schedule=schedule)
    return counts, np.bincount(y.astype(int) & 7, minlength=8)


RUNS: dict[str, Callable[[SimulatorFunction, Schedule], tuple[Array, Array]]] = {
    "sum": run_sum,
    "gemm": run_gemm,
    "stencil": run_stencil,
}


def marked_lines(name: str, bug: str) -> set[int]:
    lines = (FOLDER / f"planted_{name}.cu").read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if bug in line.partition("//")[2].split()}


def lines_of(finding: Finding) -> set[int]:
    return {finding.line} | ({finding.other.line} if finding.other else set())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", NAMES)
def test_right_kernel_is_clean(name: str, seed: int) -> None:
    got, expected = RUNS[name](load()[name, 0], Schedule("random", seed))
    np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.parametrize("name", NAMES)
def test_planted_bug_is_found_with_its_kind_and_lines(name: str, bug: str, seed: int) -> None:
    with pytest.raises(FindingsError) as caught:
        RUNS[name](load()[name, 1 + BUGS.index(bug)], Schedule("random", seed))
    findings = caught.value.findings
    expected = [finding for finding in findings if finding.kind == KINDS[bug]]
    assert expected, findings
    for finding in expected:
        assert finding.file == f"planted_{name}.cu"
        assert lines_of(finding) <= marked_lines(name, bug), finding


@pytest.mark.parametrize("name", NAMES)
def test_use_of_freed_memory_is_found(name: str) -> None:
    source = str(FOLDER / f"planted_{name}.cu")
    device = SimulatorDevice(lambda _: [f"{name}<0>"], check_kernels=True, check_order=False)
    stream, kernel = device.create_stream(), Kernel(source, f"{name}<0>")
    device.load([kernel])
    memories = [device.allocate(4096) for _ in range(3)]
    for memory in memories:
        stream.fill(memory.address, bytes(4), 1024)
    stream.synchronize()
    arguments = PackedArguments([None, None, None, *[I32(64)] * (3 if name == "gemm" else 1)])
    for position, memory in enumerate(memories):
        arguments.set_pointer(position, memory.address)
    memories[0].free()
    block = (16, 16, 1) if name == "gemm" else (64, 1, 1)
    stream.launch(device.function(kernel), LaunchConfig((1, 1, 1), block, 528), arguments)
    with pytest.raises(CheckError, match=r"use after free: read planted_.*which was freed") as caught:
        stream.synchronize()
    (finding,) = caught.value.findings
    assert isinstance(finding, Finding)
    source_line = Path(source).read_text().splitlines()[finding.line - 1]
    assert finding.file == f"planted_{name}.cu"
    assert ("a[" if name == "gemm" else "x") in source_line
