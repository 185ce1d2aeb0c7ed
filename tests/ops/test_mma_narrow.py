"""Products of half and bf16 with weights of int8 on tensor cores: operators of random extents, transposes, scales and
zero points; and the work of launches beside what is counted."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from gpuexec.ir.target import Target
from gpuexec.ops.quant.narrow_weight import widen
from gpuexec.planner.template import plan_graph
from tests.devices.execute import run_template
from tests.devices.opening import open_device
from tests.ir.graph_builder import GraphBuilder
from tests.ops.case import build_operator
from tests.ops.counted_launch import CountedCase, compare, count_wavefronts, floats
from tests.ops.harness import Case, run_case

HALF, INT8 = np.dtype(np.float16), np.dtype(np.int8)


def draw(pick: random.Random, rows: int, inner: int, columns: int, dtype: Any, **settings: Any) -> Case:
    """Return a Gemm whose scales are powers of two, which no widened weight is rounded by."""
    rng = np.random.default_rng(pick.getrandbits(32))
    turned, has_zero, has_scales, has_c = (pick.random() < 0.5 for _ in range(4))
    a, w = rng.integers(-4, 5, (rows, inner)).astype(dtype), rng.integers(-100, 101, (inner, columns)).astype(INT8)
    scale = (2.0 ** rng.integers(-4, 1, (columns,) if has_scales else ())).astype(dtype)
    zero = rng.integers(-9, 10, scale.shape).astype(INT8) if has_zero else None
    c = rng.integers(-9, 10, (columns,)).astype(dtype) if has_c else None
    wide = widen(w, scale, zero, 1 if has_scales else None, dtype).astype(np.float64)
    exact = a.astype(np.float64) @ wide * settings.get("alpha", 1.0) + (0 if c is None else c.astype(np.float64))
    given = [a, w.T.copy() if turned else w, c, scale, *([] if zero is None else [zero])]
    attributes: dict[str, Any] = {"transB": int(turned), "to": dtype_row(dtype).code, **settings}
    if has_scales:
        attributes["scale_axis"] = int(not turned)
    return Case("drawn", "gpuexec.NarrowGemm", tuple(given), attributes, expected=(exact.astype(dtype),), const=(1,))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", [HALF, BFLOAT16], ids=str)
def test_random_products(checks: str, dtype: Any, seed: int) -> None:
    pick = random.Random(f"{dtype} {seed}")
    for _ in range(4):
        rows, columns = pick.choice([1, 5, 16, 63, 64, 65, 77]), pick.choice([1, 7, 9, 63, 64, 65, 72])
        inner = pick.choice([8, 16, 40, 64, 136, 200, 520])
        run_case(draw(pick, rows, inner, columns, dtype, alpha=pick.choice([1.0, 0.5])), checks)


def test_slices(checks: str) -> None:
    run_case(draw(random.Random(1), 9, 2056, 12, HALF), checks)


@pytest.mark.parametrize(
    ("target", "dtype", "rows", "inner", "kernel"),
    [
        ("sm_80", HALF, 5, 40, "mma_narrow"),
        ("sm_120", BFLOAT16, 500, 40, "mma_narrow"),
        ("sm_75", HALF, 5, 40, "gemm_narrow"),
        ("sm_80", HALF, 1, 40, "mma_narrow"),
        ("sm_80", HALF, 5, 44, "gemm_narrow"),
        ("sm_80", np.dtype(np.float32), 9, 40, "simt_gemm_narrow"),
    ],
)
def test_operands_of_16_bits_take_tensor_cores(target: str, dtype: Any, rows: int, inner: int, kernel: str) -> None:
    case = draw(random.Random(2), rows, inner, 24, dtype)
    op, (a, w, *rest) = build_operator(case)
    build = GraphBuilder()
    values = [build.input("a", *a.shape, dtype=a.dtype)]
    values += [None if each is None else build.constant(each) for each in (w, *rest)]
    graph = build.graph(build.node(op, *values))
    plan = plan_graph(graph, {"a": TensorSpec(a.shape, a.dtype)}, Target.named(target)).plan
    assert [each.expression.partition("<")[0] for each in plan.kernels()] == [kernel]


def test_all_sizes_of_a_class_take_its_kernel() -> None:
    """One row, too."""
    case = draw(random.Random(3), 70, 136, 24, HALF)
    op, (_, w, *rest) = build_operator(case)
    build = GraphBuilder()
    left = build.input("a", "rows", 136, dtype=HALF)
    graph = build.graph(build.node(op, left, *[None if each is None else build.constant(each) for each in (w, *rest)]))
    template = plan_graph(graph, {"a": TensorSpec((70, 136), HALF)}, Target.named("sm_90"))
    assert "mma_narrow" in str(template.plan.kernels())
    for rows in (70, 64, 5, 4, 1):
        a = np.random.default_rng(rows).integers(-4, 5, (rows, 136)).astype(HALF)
        (y,) = run_template(template, graph, {"a": a}, open_device("simulator"))
        np.testing.assert_array_equal(y, op.compute(a, w, *rest)[0])


@pytest.mark.parametrize("rows", [64, 128])
def test_work_is_as_counted(rows: int) -> None:
    inner, columns = 512, 128
    weights = {"w": floats(inner, columns, dtype=np.int8), "s": np.ones(columns, np.float16)}
    attributes = {"to": dtype_row(HALF).code, "scale_axis": 1, "domain": "gpuexec"}
    case = CountedCase("NarrowMatMul", "mma_narrow", {"a": (rows, inner)}, weights, attributes, dtype=np.float16)
    found = compare(case)
    assert found.work.flops == 2 * rows * columns * inner
    assert found.work.needed_multiply_adds == found.counts.needed_multiply_adds
    assert found.work.matrix_products == sum(line.counts.issued for line in found.counts.operations)
    assert found.work.wavefronts == count_wavefronts(found.counts, 1)
    counted = found.counts.l2_read_nbytes + found.counts.l2_written_nbytes
    assert found.work.l2_nbytes == pytest.approx(counted, rel=0.02)  # a warp asks for its scales one by one
    for line in found.counts.lines:
        if line.counts.nbytes and (line.width >= 16 or line.space == "shared"):
            assert line.counts.ratio == 1.0, line
