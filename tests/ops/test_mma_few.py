"""Products of few rows of half and bf16 on tensor cores: the kernel alone over random extents, batches and slices, to
the bit; which products take it; and what its closed form says beside what is counted."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from gpuexec.devices.simulator.counts import LaunchCounts
from gpuexec.devices.simulator.library import Schedule
from gpuexec.devices.simulator.module import SimulatorFunction, load_file
from gpuexec.devices.simulator.toolchain import Mode
from gpuexec.ir.command import Launch
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiations
from gpuexec.ir.operator import Emitter
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ir.target import Target
from gpuexec.ops.linalg import few_launch
from gpuexec.ops.linalg.few_launch import FORMS, FewForm
from gpuexec.ops.linalg.product import ALONG_K, Product
from gpuexec.ops.linalg.simt_launch import RowsShape
from gpuexec.planner.template import plan_graph
from tests.ops.counted_launch import CountedCase, compare, count_wavefronts, floats, make_model
from tests.ops.draws import draws
from tests.ops.harness import run_case
from tests.ops.test_mma_gemm import (
    FLOAT,
    FORM_NAMES,
    HALF,
    TF32,
    TYPES,
    Array,
    Operands,
    aligned,
    make,
    make_form,
)
from tests.ops.test_mma_gemm import FORMS as OPERATORS

SEEDS = draws(3)
INNER = [0, 8, 16, 24, 32, 48, 56, 64, 104, 136, 272, 520]


@functools.cache
def load(mode: Mode) -> Mapping[str, SimulatorFunction]:
    return load_file("mma_few.cu", instantiations("mma_few.cu"), mode=mode)


def multiply(
    mode: Mode,
    form: FewForm,
    operands: Operands,
    folds: int,
    slices: int = 1,
    seed: int = 0,
    counts: list[LaunchCounts] | None = None,
) -> None:
    """Launch with scratch memory and counters, which must be 0 again afterwards."""
    (rows, columns, _), block_columns = operands.product.extents, 8 // folds * form.columns
    blocks = operands.product.count * ceil_div(columns, block_columns)
    scratch = aligned((blocks * slices * rows * block_columns,), FLOAT) if slices > 1 else None
    counters = np.zeros(blocks, np.uint32) if slices > 1 else None
    types = ", ".join(dtype_row(each.dtype).cuda for each in (operands.a, operands.y))
    load(mode)[f"mma_few<{types}, {form.name}>"].launch_arrays(
        (blocks, slices, 1), 256, operands.a, operands.b, operands.c, operands.y,
        operands.product.pack_mma(ALONG_K, form.right, folds), scratch, counters,
        schedule=Schedule("random", seed), counts=counts,
    )  # fmt: skip
    assert counters is None or not counters.any()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", ["plain", "check"])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_random_products(mode: Mode, form: FewForm, seed: int) -> None:
    pick, right = random.Random(f"{form.name} {seed}"), form.right
    for _ in range(12 if mode == "plain" else 3):
        extents = pick.choice([1, 1, 2, 3, 5, 7, 8]), pick.choice([8, 24, 64, 72, 136, 200]), pick.choice(INNER)
        if right == ALONG_K:
            extents = extents[0], pick.choice([1, 2, 7, 31, 32, 33, 130]), extents[2]
        batch, spare = pick.choice([(), (), (2,), (2, 2)]), pick.choice([0, 8])
        operands = make(pick, extents, (ALONG_K, right), batch, pick.choice(TYPES), spare=spare)
        assert operands.product.has_lines(right) or not extents[2]
        folds, slices = pick.choice(form.folds), pick.choice([1, 1, 2, 3, 5, 16])
        multiply(mode, form, operands, folds, slices, seed)
        operands.check(f"{operands.product} by {folds} warps in {slices} slices")


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_steps_end_anywhere_within_turns_of_warps(form: FewForm, slices: int) -> None:
    """Nowhere, with one step for all warps, and about the ends of turns and half turns: of one warp, and of all."""
    pick, folds, right = random.Random(f"{form.name} {slices}"), min(form.folds), form.right
    turn = form.step * form.together
    for end in (0, turn, turn * folds * slices // 2, turn * folds * slices, 2 * turn * folds * slices):
        for inner in sorted({max(end - 8, 0), end, end + 8}):
            operands = make(pick, (8, 72, inner), (ALONG_K, right), types=pick.choice(TYPES), spare=8)
            multiply("check", form, operands, folds, slices)
            operands.check(f"{inner} by {folds} warps in {slices} slices")


def multiply_exactly(operands: Operands, right: str) -> Array:
    """Return the results before they are rounded."""
    b = operands.b.T if right == ALONG_K else operands.b
    with np.errstate(invalid="ignore"):
        (alpha, beta), exact = operands.product.scale, operands.a.astype(np.float64) @ b.astype(np.float64)
        return alpha * exact + (0 if operands.c is None else beta * operands.c.astype(np.float64))


@pytest.mark.parametrize("columns", [8, 40])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_rows_and_columns_that_are_not_there_count_nowhere(form: FewForm, columns: int) -> None:
    """What a lane reads in their place may be infinite."""
    right = form.right
    operands = make(random.Random(1), (3, columns, 72), (ALONG_K, right), spare=0)
    operands.a[2, 8], operands.b.reshape(-1)[-1] = np.inf, np.inf
    multiply("check", form, operands, 8)
    np.testing.assert_array_equal(operands.y, multiply_exactly(operands, right).astype(HALF))
    assert np.isfinite(operands.y[:2, : columns - 1].astype(FLOAT)).all()


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_k_that_are_not_there_count_nowhere(form: FewForm) -> None:
    """A lane whose steps end within a turn may have infinities of the turn before, of its row and of its columns."""
    right = form.right
    operands = make(random.Random(1), (8, 16, 264), (ALONG_K, right), spare=0)
    operands.a[:], operands.b[:] = 1, 1
    operands.a[3], (operands.b if right == ALONG_K else operands.b.T)[5] = np.inf, np.inf
    multiply("check", form, operands, min(form.folds))
    np.testing.assert_array_equal(operands.y, multiply_exactly(operands, right).astype(HALF))
    assert not np.isnan(operands.y.astype(FLOAT)).any()


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_matrix_is_read_once_by_whole_sectors(form: FewForm) -> None:
    counts: list[LaunchCounts] = []
    operands = make(random.Random(0), (1, 128, 1024), (ALONG_K, form.right), spare=0)
    multiply("count", form, operands, 8, counts=counts)
    width = 16 if form.right == ALONG_K else 2 * form.own  # bytes of a lane
    reads = [line for line in counts[0].lines if line.space == "global" and line.access == "read"]
    lines = [line for line in reads if line.width == width]
    assert lines and all(line.counts.ratio == 1.0 for line in lines)
    assert sum(line.counts.nbytes for line in lines) >= operands.b.nbytes


BY_FORM = [
    pytest.param(form, *operator, id=f"{form.name}-{name}")
    for number, form in enumerate(FORMS)
    for place, (operator, name) in enumerate(zip(OPERATORS, FORM_NAMES, strict=True))
    # With steps behind by turns.
    if operator[0] != TF32 and (not operator[1] or place % len(FORMS) == number)
]


@pytest.mark.parametrize(("form", "types", "steps"), BY_FORM)
def test_operators_by_form(
    checks: str, form: FewForm, types: tuple[Any, Any], steps: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a size class takes it whose upper end has other columns."""

    def find_shape(_: Emitter, __: Product, shapes: Sequence[RowsShape]) -> int:
        return shapes.index(form.list_shapes()[-1])

    monkeypatch.setattr(few_launch, "find_shape", find_shape)
    run_case(make_form(ALONG_K, form.right, types, steps, (3, 136, 72)), checks)


def gemm(rows: int, inner: int, columns: int, *, turned: int = 0) -> CountedCase:
    weight = floats(*((columns, inner) if turned else (inner, columns)), dtype=np.float16)
    return CountedCase("Gemm", "mma_few", {"x": (rows, inner)}, {"w": weight}, {"transB": turned}, dtype=np.float16)


@pytest.mark.parametrize(
    "case",
    [
        gemm(1, 512, 128),
        gemm(4, 512, 128),
        gemm(8, 512, 128, turned=1),
        gemm(1, 4096, 64),
        gemm(2, 4096, 32, turned=1),
        gemm(3, 144, 8192),
        gemm(3, 144, 15360),
    ],
    ids=str,
)
def test_closed_form_is_as_counted(case: CountedCase) -> None:
    found = compare(case)
    assert found.work.flops == found.flops
    assert found.work.matrix_products == found.counts.multiply_adds.issued
    assert found.work.needed_multiply_adds == found.counts.needed_multiply_adds
    assert found.work.wavefronts == pytest.approx(count_wavefronts(found.counts, 1), rel=0.1)
    assert found.work.l2_nbytes == pytest.approx(found.counts.l2_read_nbytes + found.counts.l2_written_nbytes, rel=0.03)


@pytest.mark.parametrize(
    ("rows", "inner", "columns", "turned", "kernel"),
    [
        (1, 64, 64, 0, "mma_few"),
        (8, 64, 64, 0, "mma_few"),
        (9, 64, 64, 0, "mma_gemm"),
        (64, 64, 3, 0, "mma_few"),  # the transposed has few rows
        (2, 64, 3, 0, "mma_few"),  # the weight is packed
        (2, 63, 64, 1, "mma_gemm"),
    ],
)
def test_few_rows_take_it_where_vectors_copy_operands(
    rows: int, inner: int, columns: int, turned: int, kernel: str
) -> None:
    case = gemm(rows, inner, columns, turned=turned)
    x = {"x": TensorSpec((rows, inner), HALF)}
    plan = plan_graph(make_model(case).graph, x, Target.named(case.target)).plan
    (launch,) = [each for each in plan.segment.commands if isinstance(each, Launch)]
    assert launch.kernel.expression.startswith(f"{kernel}<")
