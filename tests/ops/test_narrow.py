"""Operators with narrow weights: equal to the operator on the widened weight, on the host and on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.operator import build, find_operator
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from gpuexec.ops.linalg import product
from gpuexec.ops.quant import narrow
from gpuexec.ops.quant.narrow import FORMS
from gpuexec.ops.quant.narrow_weight import HALF, INT8, PAIRS, widen
from tests.ops.harness import Array, Case, run_case

RNG = np.random.default_rng(11)
FLOAT = np.dtype(np.float32)
TERMS = {"MatMul": 70, "Gemm": 70, "Conv": 200, "ConvTranspose": 200, "Gather": 1}


def weight_of(dtype: np.dtype[Any], *shape: int) -> Array:
    return RNG.integers(-128, 128, shape, np.int8) if dtype == INT8 else RNG.normal(size=shape).astype(dtype)


def numbers(dtype: Any, *shape: int) -> Array:
    return RNG.normal(size=shape).astype(dtype)


def narrowed(
    id: str,
    op: str,
    given: tuple[Array | None, ...],
    wide: np.dtype[Any] = FLOAT,
    axis: int | None = None,
    has_zero: bool = False,
    **attributes: Any,
) -> Case:
    """Expected is what the operator itself computes of the widened weight."""
    form = FORMS[op]
    weight = given[form.weight]
    assert weight is not None
    scale = zero = None
    if weight.dtype == INT8:
        shape = () if axis is None else (weight.shape[axis],)
        scale = RNG.uniform(0.01, 0.1, shape).astype(wide)
        zero = RNG.integers(-9, 9, shape, np.int8) if has_zero else None
    before = list(given)
    before[form.weight] = widen(weight, scale, zero, axis, wide)
    (expected,) = build(op, attributes).compute(*before)
    filled = (*given, *(None,) * (form.inputs - len(given)))
    more = () if scale is None else (scale,) if zero is None else (scale, zero)
    inputs: tuple[Array | None, ...] = (*filled, *more)
    while inputs[-1] is None:
        inputs = inputs[:-1]
    settings = {"to": dtype_row(wide).code, "scale_axis": axis, **attributes}
    return Case(f"{op}_{id}", f"gpuexec.Narrow{op}", inputs, settings, expected=(expected,), terms=TERMS[op])


def name(wide: Any, stored: Any) -> str:
    return f"{wide.name}_{stored.name}"


def matmul(id: str, rows: int, inner: int, columns: int, wide: Any = FLOAT, stored: Any = INT8, **more: Any) -> Case:
    return narrowed(id, "MatMul", (numbers(wide, rows, inner), weight_of(stored, inner, columns)), wide, **more)


def conv(id: str, x: tuple[int, ...], w: tuple[int, ...], wide: Any = FLOAT, stored: Any = INT8, **more: Any) -> Case:
    bias = numbers(wide, w[0])
    return narrowed(id, "Conv", (numbers(wide, *x), weight_of(stored, *w), bias), wide, **more)


def transposed(id: str, x: Any, w: Any, wide: Any = FLOAT, stored: Any = INT8, **more: Any) -> Case:
    return narrowed(id, "ConvTranspose", (numbers(wide, *x), weight_of(stored, *w)), wide, **more)


def gather(id: str, data: Array, indices: Any, index: Any = np.int64, wide: Any = FLOAT, **more: Any) -> Case:
    return narrowed(id, "Gather", (data, np.asarray(indices, index)), wide, **more)


def scaled(stored: Any, axis: int) -> int | None:
    """Return the axis of the scales of a weight that has some."""
    return axis if stored == INT8 else None


def of_large_scales(id: str, op: str, x: tuple[int, ...], w: tuple[int, ...], axis: int) -> Case:
    """Weights near their zero points: one of 0 would be infinite, and what fills a tile up is not taken for such."""
    given, weight = numbers(FLOAT, *x) / 16, RNG.integers(-102, -97, w).astype(np.int8)
    scale, zero = np.full(w[axis], 1e37, np.float32), np.full(w[axis], -100, np.int8)
    (expected,) = build(op, {}).compute(given, widen(weight, scale, zero, axis, FLOAT))
    inputs = (given, weight, *(None,) * (FORMS[op].inputs - 2), scale, zero)
    settings = {"to": dtype_row(FLOAT).code, "scale_axis": axis}
    return Case(f"{op}_{id}", f"gpuexec.Narrow{op}", inputs, settings, expected=(expected,), terms=TERMS[op])


LARGE = 128 * 340  # windows of as many large tiles as are two on each multiprocessor of the largest device
TABLE = [[0, 3], [-1, 2]]
CASES = [
    *(matmul(f"tile_{name(*p)}", 70, 33, 67, *p, axis=1 if p[1] == INT8 else None) for p in PAIRS),
    *(matmul(f"few_{name(*p)}", 3, 70, 9, *p, axis=1 if p[1] == INT8 else None) for p in PAIRS),
    matmul("per_tensor", 5, 20, 6),
    matmul("zero", 70, 20, 6, axis=1, has_zero=True),
    matmul("zero_few", 2, 20, 6, has_zero=True),
    matmul("along_inner", 70, 20, 9, axis=0),
    matmul("few_along_inner", 2, 20, 9, axis=0, has_zero=True),
    matmul("few_columns", 70, 20, 2, axis=1),
    *(
        matmul(f"{rows}_rows_{name(FLOAT, stored)}", rows, 64, 44, FLOAT, stored, axis=scaled(stored, 1))
        for rows in (1, 2, 3, 8)
        for stored in (HALF, INT8)
    ),
    *(
        narrowed(
            f"{rows}_rows_along_k_{stored.name}",
            "Gemm",
            (numbers(FLOAT, rows, 64), weight_of(stored, 44, 64)),
            axis=scaled(stored, 0),
            has_zero=True,
            transB=1,
        )
        for rows in (1, 2, 3, 8)
        for stored in (HALF, INT8)
    ),
    *(
        matmul(f"large_tiles_{stored.name}", 1280, 1, 1024, FLOAT, stored, axis=scaled(stored, 1))
        for stored in (HALF, INT8)
    ),
    *(
        matmul(f"part_of_a_slab_{stored.name}", 70, 8, 64, FLOAT, stored, axis=scaled(stored, 1))
        for stored in (HALF, INT8)
    ),
    of_large_scales("large_scales_of_rows", "MatMul", (70, 20), (20, 64), 1),
    of_large_scales("large_scales_of_elements", "MatMul", (70, 21), (21, 65), 1),
    of_large_scales("large_scales_of_lines", "Conv", (2, 4, 3, 3), (9, 4, 1, 1), 0),
    narrowed("vector", "MatMul", (numbers(FLOAT, 5, 20), weight_of(INT8, 20)), axis=0),
    narrowed("batch", "MatMul", (numbers(FLOAT, 2, 1, 7, 20), weight_of(INT8, 3, 20, 6)), axis=2, has_zero=True),
    narrowed("row", "MatMul", (numbers(FLOAT, 20), weight_of(INT8, 20, 6)), axis=1),
    narrowed("strided", "MatMul", (numbers(FLOAT, 9, 20), weight_of(INT8, 6, 20).T), axis=1),
    narrowed("empty", "MatMul", (numbers(FLOAT, 0, 20), weight_of(INT8, 20, 6)), axis=1),
    narrowed("plain", "Gemm", (numbers(FLOAT, 70, 20), weight_of(INT8, 20, 66), numbers(FLOAT, 66)), axis=1),
    narrowed(
        "all",
        "Gemm",
        (numbers(FLOAT, 20, 70), weight_of(INT8, 66, 20), numbers(FLOAT, 70, 1)),
        axis=0,
        has_zero=True,
        transA=1,
        transB=1,
        alpha=0.5,
        beta=2.0,
    ),
    narrowed("half", "Gemm", (numbers(FLOAT, 3, 20), weight_of(HALF, 6, 20)), transB=1),
    narrowed("along_inner", "Gemm", (numbers(FLOAT, 3, 20), weight_of(INT8, 6, 20)), axis=1, transB=1),
    *(conv(f"gemm_{name(*p)}", (2, 6, 9, 8), (66, 6, 3, 3), *p, axis=0 if p[1] == INT8 else None) for p in PAIRS),
    *(
        conv(f"direct_{name(*p)}", (2, 4, 9, 8), (8, 1, 3, 3), *p, axis=0 if p[1] == INT8 else None, group=4)
        for p in PAIRS
    ),
    *(
        conv(f"{label}_{stored.name}", x, w, FLOAT, stored, axis=scaled(stored, 0))
        for stored in (HALF, INT8)
        for label, x, w in (
            ("positions", (2, 8, 4, 4), (9, 8, 1, 1)),
            ("blocks", (1, 16, 5, 7), (9, 16, 3, 3)),
            ("large_positions", (1, 4, LARGE), (65, 4, 1)),
            ("large_blocks", (1, 8, LARGE + 1), (65, 8, 2)),
            ("large_taps", (1, 2, LARGE + 1), (65, 2, 2)),
        )
    ),
    *(
        transposed(f"{label}_{stored.name}", x, w, FLOAT, stored, axis=scaled(stored, 1))
        for stored in (HALF, INT8)
        for label, x, w in (("phases_blocks", (2, 16, 5, 4), (16, 9, 3, 2)), ("phases_taps", (2, 6, 5), (6, 9, 3)))
    ),
    conv("many_taps", (1, 2, 12, 11), (3, 2, 12, 11), axis=0),
    conv("many_taps_half", (1, 2, 12, 11), (3, 2, 12, 11), FLOAT, HALF),
    conv("groups", (1, 6, 9), (8, 3, 3), axis=0, has_zero=True, group=2, pads=(1, 1)),
    conv("groups_without_zero_points", (1, 6, 9), (8, 3, 3), axis=0, group=2, pads=(1, 1)),
    conv("per_tensor", (1, 3, 5, 5), (4, 3, 2, 2), has_zero=True),
    conv("direct_per_tensor", (1, 3, 5, 5), (3, 1, 2, 2), group=3, has_zero=True),
    *(transposed(f"{name(*p)}", (2, 6, 5, 4), (6, 3, 3, 2), *p, axis=1 if p[1] == INT8 else None) for p in PAIRS),
    transposed("groups", (1, 6, 7), (6, 2, 3), axis=1, has_zero=True, group=3, strides=(2,)),
    transposed("per_tensor", (1, 3, 7), (3, 2, 3), has_zero=True),
    *(
        gather(f"{name(*p)}_{index}", weight_of(p[1], 5, 6), TABLE, index, p[0], axis=0 if p[1] == INT8 else None)
        for p in PAIRS
        for index in ("int32", "int64")
    ),
]


def gather_along(id: str, gather_axis: int, along: int | None) -> Case:
    data, indices = weight_of(INT8, 4, 3, 5, 2), np.array(TABLE) % 3 if gather_axis != 3 else np.array([1, -1])
    form = FORMS["Gather"]
    shape = () if along is None else (data.shape[along],)
    scale = RNG.uniform(0.01, 0.1, shape).astype(np.float32)
    zero = RNG.integers(-9, 9, shape, np.int8)
    (expected,) = form.consumer(axis=gather_axis).compute(widen(data, scale, zero, along, FLOAT), indices)
    settings = {"axis": gather_axis, "scale_axis": along}
    return Case(id, "gpuexec.NarrowGather", (data, indices, scale, zero), settings, expected=(expected,))


CASES += [
    gather_along(f"Gather_axis{axis}_along{along}", axis, along) for axis in (0, 1, 3) for along in (None, 0, 1, 2, 3)
]
CASES += [
    Case(
        "Gather_out_of_range",
        "gpuexec.NarrowGather",
        (weight_of(INT8, 3, 2), np.array([7]), np.ones(3, np.float32)),
        {"scale_axis": 0},
        expected=(np.zeros((1, 2), np.float32),),
        refusal="index 7 is out of range",
    )
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_narrow(checks: str, case: Case) -> None:
    run_case(case, checks)


LONG = [
    *(
        matmul(f"beyond_32_bits_{stored.name}", 30, 20, 9, FLOAT, stored, axis=scaled(stored, 1))
        for stored in (HALF, INT8)
    ),
]


@pytest.mark.parametrize("case", LONG, ids=lambda case: case.id)
def test_extents_beyond_32_bits(monkeypatch: pytest.MonkeyPatch, checks: str, case: Case) -> None:
    monkeypatch.setattr(product, "_MAX_EXTENT", 16)  # as if 32 bits held so much
    run_case(case, checks)


def test_blocks_of_the_weight_give_what_the_whole_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrow, "BLOCK_NBYTES", 200)
    for case in CASES:
        if not case.refusal:
            operator = build(case.op, case.attributes)
            assert case.expected is not None
            (got,) = operator.compute(*case.inputs)
            np.testing.assert_allclose(
                got.astype(np.float64), case.expected[0].astype(np.float64), rtol=0.02, atol=0.02, err_msg=case.id
            )


def test_wide_weight_is_never_whole_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def spy(weight: Array, *rest: Any) -> Array:
        sizes.append(weight.size)
        return widen(weight, *rest)

    monkeypatch.setattr(narrow, "widen", spy)
    monkeypatch.setattr(narrow, "BLOCK_NBYTES", 4 * 100 * 8)
    operator = build("gpuexec.NarrowMatMul", {"scale_axis": 1})
    operator.compute(numbers(FLOAT, 2, 100), weight_of(INT8, 100, 64), numbers(FLOAT, 64))
    assert sizes == [800] * 8


def spec(dtype: Any, *shape: int) -> TensorSpec:
    return TensorSpec(shape, np.dtype(dtype))


@pytest.mark.parametrize(
    ("op", "attributes", "inputs", "message"),
    [
        ("MatMul", {}, (spec("f4", 2, 3), spec("i2", 3, 4), spec("f4")), "int8 for float32"),
        ("MatMul", {}, (spec("f4", 2, 3), spec("i1", 3, 4)), "scales of an int8 weight"),
        ("MatMul", {}, (spec("f4", 2, 3), spec("f2", 3, 4), spec("f4")), "none of a float16 one"),
        ("MatMul", {"scale_axis": 1}, (spec("f4", 2, 3), spec("i1", 3, 4), spec("f4", 3)), "4 scales of float32"),
        ("MatMul", {"scale_axis": 0}, (spec("f4", 2, 3), spec("i1", 5, 3, 4), spec("f4", 5)), "got axis 0"),
        ("Conv", {"scale_axis": 1}, (spec("f4", 1, 2, 3), spec("i1", 4, 2, 3), None, spec("f4", 2)), "got axis 1"),
        ("Conv", {"scale_axis": 0}, (spec("f4", 1, 2, 3), spec("i1"), None, spec("f4", 2)), "got axis 0"),
        ("MatMul", {}, (spec("f4", 2, 3), spec("i1", 3, 4), spec("f4"), spec("u1")), "zero points of int8"),
        ("MatMul", {}, (spec("f4", 2, 5), spec("i1", 3, 4), spec("f4")), "columns on the left"),
    ],
)
def test_what_does_not_fit_is_refused(op: str, attributes: Any, inputs: Any, message: str) -> None:
    cls = find_operator(f"gpuexec.Narrow{op}")
    assert cls is not None
    with pytest.raises(InputError, match=message):
        cls(**attributes).infer(*inputs)


def test_pairs_are_what_kernels_know() -> None:
    assert {wide for wide, _ in PAIRS} == {FLOAT, HALF, BFLOAT16}
