"""Kernel instance table against plans: no instance without a case, no launch without a row."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import gpuexec.ops  # noqa: F401  (fills the table)
from gpuexec.devices.kernels.budgets import LARGER, KernelUse
from gpuexec.devices.kernels.compile_all import find_strays, read_launches
from gpuexec.devices.kernels.gates import GATES
from gpuexec.devices.kernels.kernel_source import find_kernels, find_source
from gpuexec.ir.command import Kernel
from gpuexec.ir.instances import kernel_table
from tests.devices.launches import collect_launches

# A lowering may choose by architecture; `make kernels` plans for all of them.
ENDS = ("sm_75", "sm_90a")
# Files whose instances have text of their own, and are not listed.
GENERATED = ("flat.cu", "mma_rows.cu", "mma_rows_nbits.cu", "rows.cu", "tiled.cu", "pixel/flat.cu", "pixel/rows.cu")
# Those with an instruction that others lack on both sides, or without one that both ends have another for, and what has
# cases for it.
BETWEEN = {"sm_89": "tests/ops/test_scaled_matmul.py", "sm_80": "tests/ops/test_conv_separable.py"}


@pytest.mark.long
def test_table_lists_what_the_plans_of_all_cases_launch(tmp_path: Path) -> None:
    path = tmp_path / "launches.json"
    collect_launches(path, ENDS)
    found = dict(read_launches(path))
    for architecture, cases in BETWEEN.items():
        collect_launches(path, (architecture,), cases)
        found |= read_launches(path)
    ours = {source: rows for source, rows in kernel_table().items() if ":" not in source}
    assert find_strays(ours, found) == []


def test_find_strays_names_both_kinds() -> None:
    table = {"f.cu": ("listed", "both")}
    uses = {Kernel("f.cu", "both"): KernelUse(), Kernel("f.cu", "launched"): KernelUse()}
    assert find_strays(table, uses) == [
        "f.cu:listed is listed and no plan launches it; add a case that does, or drop it.",
        "f.cu:launched is launched and not listed; add it by `instantiate`.",
    ]


@pytest.mark.parametrize("rows", [LARGER, GATES], ids=["budgets", "gates"])
def test_budgets_and_gates_are_those_of_listed_kernels(rows: Mapping[str, object]) -> None:
    listed = {
        f"{source}:{name}"
        for source, rows in kernel_table().items()
        for expression in rows
        for name in (expression, expression.partition("<")[0])
    }
    generated = {f"{source}:{name}" for source in GENERATED for name in find_kernels(find_source(source))}
    assert set(rows) <= listed | generated
