"""Products of half and bf16 with weights of int8 on tensor cores, into their type and into float: operators of random
extents, transposes, scales and zero points; and the work of launches beside what is counted."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from gpuexec.ir.command import Launch
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from gpuexec.ir.target import Target
from gpuexec.ops.linalg import mma_launch
from gpuexec.ops.quant.narrow_weight import widen
from gpuexec.planner.template import plan_graph
from tests.devices.execute import run_template
from tests.devices.opening import open_device
from tests.ir.graph_builder import GraphBuilder
from tests.ops.case import build_operator
from tests.ops.chains import chain
from tests.ops.counted_launch import CountedCase, compare, count_wavefronts, floats
from tests.ops.draws import draws
from tests.ops.harness import Case, run_case

HALF, INT8, FLOAT = np.dtype(np.float16), np.dtype(np.int8), np.dtype(np.float32)
PRECISIONS = {"fp16": HALF, "bf16": BFLOAT16}
RELU = ("Relu", (), (-1,))
# Of the result, and what rounds the left operand.
FORMS = [pytest.param(HALF, "", id="half"), pytest.param(BFLOAT16, "", id="bf16")]
FORMS += [pytest.param(FLOAT, each, id=f"{each} to float") for each in PRECISIONS]
CAST = {dtype: ("Cast", (("to", dtype_row(dtype).code),), (-1,)) for dtype in PRECISIONS.values()}


def draw(
    pick: random.Random, rows: int, inner: int, columns: int, dtype: Any, steps: tuple[Any, ...] = (), **settings: Any
) -> Case:
    """Return a Gemm whose scales are powers of two, which no widened weight is rounded by.

    In a precision all but the left operand is float.
    """
    rng, left = np.random.default_rng(pick.getrandbits(32)), PRECISIONS.get(settings.get("precision", ""), dtype)
    turned, has_zero, has_scales, has_c = (pick.random() < 0.5 for _ in range(4))
    a, w = rng.integers(-4, 5, (rows, inner)).astype(left), rng.integers(-100, 101, (inner, columns)).astype(INT8)
    scale = (2.0 ** rng.integers(-4, 1, (columns,) if has_scales else ())).astype(dtype)
    zero = rng.integers(-9, 10, scale.shape).astype(INT8) if has_zero else None
    c = rng.integers(-9, 10, (columns,)).astype(dtype) if has_c else None
    wide = widen(w, scale, zero, 1 if has_scales else None, dtype).astype(np.float64)
    exact = a.astype(np.float64) @ wide * settings.get("alpha", 1.0) + (0 if c is None else c.astype(np.float64))
    given = [a, w.T.copy() if turned else w, c, scale, *([] if zero is None else [zero])]
    attributes: dict[str, Any] = {"transB": int(turned), "to": dtype_row(dtype).code, **settings}
    if has_scales:
        attributes["scale_axis"] = int(not turned)
    expected, name = exact.astype(dtype), "gpuexec.NarrowGemm"
    if steps:
        name, attributes = "gpuexec.FusedNarrowGemm", {**attributes, **chain(steps)}
        expected = np.maximum(expected, 0).astype(left if CAST[left] in steps else dtype)
    return Case("drawn", name, tuple(given), attributes, expected=(expected,), const=(1,))


@pytest.mark.parametrize("seed", draws(2))
@pytest.mark.parametrize(("dtype", "precision"), FORMS)
def test_random_products(checks: str, dtype: Any, precision: str, seed: int) -> None:
    pick = random.Random(f"{dtype} {seed}")
    for _ in range(4):
        rows, columns = pick.choice([1, 5, 16, 63, 64, 65, 77]), pick.choice([1, 7, 9, 63, 64, 65, 72])
        inner = pick.choice([8, 16, 40, 64, 136, 200, 520])
        run_case(draw(pick, rows, inner, columns, dtype, alpha=pick.choice([1.0, 0.5]), precision=precision), checks)


@pytest.mark.parametrize(("dtype", "precision"), FORMS)
def test_slices(checks: str, dtype: Any, precision: str) -> None:
    run_case(draw(random.Random(1), 9, 2056, 12, dtype, precision=precision), checks)


@pytest.mark.parametrize("stores", [False, True], ids=["float", "narrow"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_steps_and_a_cast_behind_a_float_result(checks: str, precision: str, stores: bool) -> None:
    steps = (RELU, CAST[PRECISIONS[precision]]) if stores else (RELU,)
    run_case(draw(random.Random(4), 21, 40, 24, FLOAT, precision=precision, steps=steps), checks)


@pytest.mark.parametrize("stored", [HALF, INT8], ids=str)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("inner", [40, 44])
def test_weights_beside_a_rounded_operand_are_not_rounded(checks: str, inner: int, precision: str, stored: Any) -> None:
    """Scales along the inner extent, rows that are not aligned, and weights of half."""
    rng, dtype = np.random.default_rng(inner), PRECISIONS[precision]
    a, w = rng.integers(-4, 5, (9, inner)).astype(dtype), rng.integers(-100, 101, (inner, 24))
    scale = (1 + rng.integers(0, 2, inner) * 2.0**-12).astype(FLOAT)  # beyond what half and bf16 hold
    wide = w * (1.0 if stored == HALF else scale.astype(np.float64)[:, None])
    given = [a, w.astype(stored), *([] if stored == HALF else [scale])]
    attributes = {"to": dtype_row(FLOAT).code, "precision": precision, **({} if stored == HALF else {"scale_axis": 0})}
    expected = (a.astype(np.float64) @ wide).astype(FLOAT)
    run_case(
        Case("inner", "gpuexec.NarrowMatMul", tuple(given), attributes, expected=(expected,), const=(1,), terms=inner),
        checks,
    )


@pytest.mark.parametrize(
    ("target", "dtype", "precision", "rows", "inner", "kernels"),
    [
        ("sm_80", HALF, "", 5, 40, ["mma_narrow"]),
        ("sm_120", BFLOAT16, "", 500, 40, ["mma_narrow"]),
        ("sm_75", HALF, "", 5, 40, ["gemm_narrow"]),
        ("sm_80", HALF, "", 1, 40, ["mma_narrow"]),
        ("sm_80", HALF, "", 5, 44, ["gemm_narrow"]),
        ("sm_80", FLOAT, "", 9, 40, ["simt_gemm_narrow"]),
        ("sm_80", FLOAT, "fp16", 9, 40, ["mma_narrow"]),
        ("sm_80", FLOAT, "fp16", 1, 40, ["mma_narrow"]),
        ("sm_120", FLOAT, "bf16", 500, 40, ["mma_narrow"]),
        ("sm_75", FLOAT, "fp16", 9, 40, ["convert", "simt_gemm_narrow"]),
        ("sm_80", FLOAT, "fp16", 9, 44, ["convert", "simt_gemm_narrow"]),
    ],
)
def test_operands_of_16_bits_take_tensor_cores(
    target: str, dtype: Any, precision: str, rows: int, inner: int, kernels: list[str]
) -> None:
    assert list_kernels(target, draw(random.Random(2), rows, inner, 24, dtype, precision=precision)) == kernels


@pytest.mark.parametrize(("rows", "kernel"), [(4, "gemv_along"), (5, "mma_narrow")])
def test_few_rows_read_many_weights_once(rows: int, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mma_launch, "_NARROW_SMALL", 40 * 24 - 1)
    case = draw(random.Random(2), rows, 40, 24, FLOAT, precision="fp16")
    assert list_kernels("sm_90", case)[-1].startswith(kernel)


def list_kernels(target: str, case: Case) -> list[str]:
    """Return the names of the kernels that a case with constant weights launches."""
    op, (a, w, *rest) = build_operator(case)
    build = GraphBuilder()
    values = [build.input("a", *a.shape, dtype=a.dtype)]
    values += [None if each is None else build.constant(each) for each in (w, *rest)]
    graph = build.graph(build.node(op, *values))
    plan = plan_graph(graph, {"a": TensorSpec(a.shape, a.dtype)}, Target.named(target)).plan
    return [each.kernel.expression.partition("<")[0] for each in plan.segment.commands if isinstance(each, Launch)]


@pytest.mark.parametrize(("dtype", "precision"), [(HALF, ""), (FLOAT, "fp16")])
def test_all_sizes_of_a_class_take_its_kernel(dtype: Any, precision: str) -> None:
    """One row, too."""
    case = draw(random.Random(3), 70, 136, 24, dtype, precision=precision)
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
@pytest.mark.parametrize(("result", "precision"), [(np.float16, ""), (np.float32, "fp16")])
def test_work_is_as_counted(rows: int, result: type, precision: str) -> None:
    inner, columns = 512, 128
    weights = {"w": floats(inner, columns, dtype=np.int8), "s": np.ones(columns, result)}
    code = dtype_row(np.dtype(result)).code
    attributes = {"to": code, "scale_axis": 1, "precision": precision, "domain": "gpuexec"}
    case = CountedCase("NarrowMatMul", "mma_narrow", {"a": (rows, inner)}, weights, attributes, dtype=np.float16)
    found = compare(case)
    assert found.work.flops == 2 * rows * columns * inner
    assert found.work.needed_multiply_adds == found.counts.needed_multiply_adds
    assert found.work.matrix_products == sum(line.counts.issued for line in found.counts.operations)
    assert found.work.wavefronts == count_wavefronts(found.counts, 1)
    counted = found.counts.l2_read_nbytes + found.counts.l2_written_nbytes
    # Count mode has no L1, which keeps what a warp asks for one by one: its scales.
    narrow = [line.counts.transactions for line in found.counts.lines if line.space == "global" and line.width <= 4]
    assert counted - 32 * sum(narrow) <= found.work.l2_nbytes <= counted
    for line in found.counts.lines:
        if line.counts.nbytes and (line.width >= 16 or line.space == "shared"):
            assert line.counts.ratio == 1.0, line
