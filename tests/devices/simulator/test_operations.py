"""Count mode: arithmetic of kernels whose figures are known by hand, and the table of special functions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuexec.devices.kernels.kernel_source import kernels_dir
from gpuexec.devices.kernels.machine_code import disassemble, parse_functions
from gpuexec.devices.kernels.nvrtc import compile_cubin
from gpuexec.devices.simulator.compilation import list_wrapped
from gpuexec.devices.simulator.counts import LaunchCounts, LineOperations, OperationCounts
from gpuexec.devices.simulator.elf import list_undefined
from gpuexec.devices.simulator.library import Schedule
from gpuexec.devices.simulator.module import SimulatorFunction, load_file
from gpuexec.ir.geometry import ceil_div
from tests.devices.cuda_wheels import needs_cuda_wheels, needs_nvdisasm
from tests.devices.simulator.conftest import build_file

Array = np.ndarray[Any, Any]
Kernels = Mapping[str, SimulatorFunction]
SOURCE = Path(__file__).parent / "kernels" / "operations.cu"
NAMES = ("multiply_tile", "sum_triangle", "take_sides", "exponentials", "functions", "units", "matrices", "one_lane")
F32, I32 = np.float32, np.int32
ORDERS = [Schedule("forward"), Schedule("reverse"), Schedule("random", 1), Schedule("random", 2)]
in_every_order = pytest.mark.parametrize("order", ORDERS, ids=["forward", "reverse", "random-1", "random-2"])


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return load_file(SOURCE, NAMES, mode="count")


def measure(function: SimulatorFunction, grid: Any, block: Any, *arguments: object, **options: Any) -> LaunchCounts:
    counts: list[LaunchCounts] = []
    function.launch_arrays(grid, block, *arguments, counts=counts, **options)
    (launch,) = counts
    assert launch.missing_rows == 0
    return launch


def find(launch: LaunchCounts, text: str) -> LineOperations:
    """Return the operations of the line whose comment is a text."""
    lines = [number for number, line in enumerate(SOURCE.read_text().splitlines(), 1) if line.endswith(f"// {text}")]
    assert len(lines) == 1, lines
    (found,) = [line for line in launch.operations if ("operations.cu", lines[0]) in line.places]
    return found


@in_every_order
@pytest.mark.parametrize(("rows", "columns", "inner"), [(8, 32, 3), (16, 64, 5), (10, 40, 5), (1, 1, 7)])
def test_threads_of_a_tile_beyond_the_edge_issue_too(
    kernels: Kernels, rows: int, columns: int, inner: int, order: Schedule
) -> None:
    a, b, y = np.ones((rows, inner), F32), np.ones((inner, columns), F32), np.zeros((rows, columns), F32)
    tiles = ceil_div(columns, 32), ceil_div(rows, 8)
    sizes = I32(rows), I32(columns), I32(inner)
    launch = measure(kernels["multiply_tile"], tiles, (32, 8), a, b, y, *sizes, schedule=order)
    issued = tiles[0] * tiles[1] * 8 * 32 * inner
    assert launch.multiply_adds == OperationCounts(issued // 32, issued, issued)
    assert find(launch, "product").unit == "ffma"
    np.testing.assert_array_equal(y, inner)


@in_every_order
def test_loop_that_lanes_leave_early_goes_on_for_the_warp(kernels: Kernels, order: Schedule) -> None:
    launch = measure(kernels["sum_triangle"], 1, 32, np.ones(32, F32), np.ones(32, F32), schedule=order)
    counts = find(launch, "triangle").counts
    assert counts == OperationCounts(32, 32 * 32, 32 * 33 // 2)
    assert counts.lanes_off == 1 - 33 / 64


@in_every_order
def test_both_sides_of_a_branch_are_issued(kernels: Kernels, order: Schedule) -> None:
    launch = measure(kernels["take_sides"], 1, 32, np.ones(32, F32), np.ones(32, F32), schedule=order)
    assert find(launch, "left").counts == find(launch, "right").counts == OperationCounts(1, 32, 16)
    assert launch.multiply_adds == OperationCounts(2, 64, 32)


@in_every_order
def test_lane_that_runs_on_while_others_wait_issues_for_the_warp(kernels: Kernels, order: Schedule) -> None:
    launch = measure(kernels["one_lane"], 1, 64, np.ones(5000, F32), np.ones(64, F32), I32(5000), schedule=order)
    assert find(launch, "alone").counts == OperationCounts(5000, 160_000, 5000)
    assert find(launch, "together").counts == OperationCounts(2, 64, 64)


@pytest.mark.parametrize(("block", "count", "calls"), [(32, 32, 1), (32, 40, 2), (64, 100, 4), (40, 40, 2)])
def test_special_functions_of_a_loop(kernels: Kernels, block: int, count: int, calls: int) -> None:
    x, y = np.ones(count, F32), np.ones(block, F32)
    launch = measure(kernels["exponentials"], 1, block, x, y, I32(count))
    assert find(launch, "exponential").counts == OperationCounts(calls, 32 * calls, count)
    assert launch.total_operations("mufu").issued == 32 * calls
    assert launch.multiply_adds == OperationCounts()


def test_function_takes_the_instructions_of_the_table(kernels: Kernels) -> None:
    launch = measure(kernels["functions"], 1, 32, np.ones(32, F32), np.ones(32, F32))
    names = {"sqrtf": 1, "rsqrtf": 1, "tanhf": 2, "overload": 1, "__expf": 1, "__logf": 1, "__tanf": 3, "powf": 1}
    for name, instructions in {**names, "__fdividef": 1}.items():
        line = find(launch, name)
        assert (line.unit, line.counts.issued) == ("mufu", 32 * instructions), name
    assert launch.total_operations("mufu").issued == 32 * 12  # none of logf, sinf, and double


def test_units_are_counted_apart(kernels: Kernels) -> None:
    launch = measure(kernels["units"], 1, 32, np.ones(32, F32), np.ones(32, I32), np.ones(32, F32))
    found = {line.unit: line.counts for line in launch.operations}  # operators are not among them
    assert found == {
        "dfma": OperationCounts(1, 32, 32),
        "dp4a": OperationCounts(1, 128, 128),
        "hfma": OperationCounts(1, 64, 64),
    }


def test_instruction_of_the_matrix_units_is_worth_what_its_wrapper_says(kernels: Kernels) -> None:
    launch = measure(kernels["matrices"], 1, 64, np.ones(64, F32), np.ones(64, F32))
    assert find(launch, "matrices").unit == "mma"
    assert launch.multiply_adds == OperationCounts(6, 6 * 16 * 8 * 16, 6 * 16 * 8 * 16)


def test_other_modes_call_nothing_that_counts() -> None:
    hook = "gpuexec_count_operations"
    found = {mode: hook in list_undefined(build_file(SOURCE, NAMES, mode=mode).path.read_bytes())
             for mode in ("plain", "check", "count")}  # fmt: skip
    assert found == {"plain": False, "check": False, "count": True}


@needs_cuda_wheels
@needs_nvdisasm
def test_table_of_special_functions_is_what_machine_code_has() -> None:
    """Where code has one way, its instructions are those of the table; slow ways of others may have more."""
    text = (kernels_dir() / "simulator" / "operations.h").read_text()
    rows = re.findall(r"\b(ONE|TWO)\(([a-z]\w*), (\d)\)", text)
    assert {name for _, name, _ in rows} | {"fmaf", "fma"} == set(list_wrapped())
    calls = {name: f"{name}(x[i]{', x[i + 32]' * (form == 'TWO')})" for form, name, _ in rows}
    kernel = 'extern "C" __global__ void use_{}(const float* x, float* y) {{ int i = threadIdx.x; y[i] = {}; }}\n'
    code = "".join(kernel.format(name, call) for name, call in calls.items())
    cubin = compile_cubin(code, [f"use_{name}" for name in calls], "sm_90")
    functions = parse_functions(disassemble(cubin.image))
    wrong, straight = [], 0
    for _, name, count in rows:
        instructions = functions[f"use_{name}"].instructions
        found = sum(each.base == "MUFU" for each in instructions)
        has_ways = sum(each.base in ("BRA", "CALL") for each in instructions) > 1  # the last one ends the code
        straight += not has_ways
        if found < int(count) or (found > int(count) and not has_ways):
            wrong.append((name, int(count), found))
    assert not wrong
    assert straight >= 15
