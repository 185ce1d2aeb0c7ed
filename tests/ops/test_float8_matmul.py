"""QLinearMatMul with floats of 8 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.linalg.float8_matmul import FLOAT8
from gpuexec.ops.quant.integer_matmul import QLinearMatMul
from tests.ops.harness import Case, run_case

RNG = np.random.default_rng(11)
U8, I8 = np.uint8, np.int8


def of_floats(
    id: str, a_type: Any, b_type: Any, y_type: Any, *shapes: tuple[int, ...], scale: Any = np.float32, rank: int = 0
) -> Case:
    """Small whole numbers: sums are exact, and what is rounded is one float."""
    a, b = (RNG.integers(-7, 8, shape).astype(np.float32) for shape in shapes)
    a, b = (np.abs(x) if dtype == U8 else x for x, dtype in ((a, a_type), (b, b_type)))
    half, two = (np.full((1,) * rank, number, scale) for number in (0.5, 2))
    expected = ((a * 0.5) @ (b * 0.5) / 2).astype(np.float32)
    limits = (-128, 127) if y_type == I8 else (0, 255)
    made = np.clip(np.rint(expected), *limits).astype(y_type) if y_type in (U8, I8) else expected.astype(y_type)
    quants = [np.zeros((1,) * rank, dtype) for dtype in (a_type, b_type, y_type)]
    inputs = (a.astype(a_type), half, quants[0], b.astype(b_type), half, quants[1], two, quants[2])
    return Case(id, "QLinearMatMul", inputs, opset=21, expected=(np.asarray(made),))


FLOATS = [
    *(of_floats(f"{dtype_row(t).name}", t, t, t, (5, 9), (9, 6)) for t in FLOAT8),
    of_floats("mixed", I8, FLOAT8[0], FLOAT8[2], (5, 9), (9, 6)),
    of_floats("to_bytes", FLOAT8[0], FLOAT8[0], I8, (5, 9), (9, 6)),
    of_floats("batches", FLOAT8[0], FLOAT8[0], FLOAT8[0], (2, 5, 9), (9, 6)),
    of_floats("numbers_with_axes", FLOAT8[0], FLOAT8[0], FLOAT8[0], (2, 9), (9, 6), rank=2),
    of_floats("vectors", FLOAT8[0], FLOAT8[0], FLOAT8[0], (9,), (9,)),
    of_floats("empty_inner", FLOAT8[0], FLOAT8[0], FLOAT8[0], (2, 0), (0, 6)),
    of_floats("halves", FLOAT8[0], FLOAT8[2], FLOAT8[0], (2, 9), (9, 6), scale=np.float16),
]


@pytest.mark.parametrize("case", FLOATS, ids=lambda case: case.id)
def test_products_of_small_floats(checks: str, case: Case) -> None:
    run_case(case, checks)


def by_rows_and_columns(id: str, a: tuple[int, ...], b: tuple[int, ...], *quants: tuple[tuple[int, ...], ...]) -> Case:
    """Scales and zero points that differ from row to row and from column to column; sums are exact."""
    left, right = (RNG.integers(-7, 8, shape).astype(np.float32) for shape in (a, b))
    scales = [RNG.choice(np.array([0.25, 0.5, 1, 2], np.float32), shape[0]) for shape in quants]
    zeros = [RNG.integers(-1, 2, shape[1]).astype(np.float32) for shape in quants]
    # A vector of rows stands beside columns; one of columns as it is.
    (a_scale, a_zero), (b_scale, b_zero), (y_scale, y_zero) = (
        [each[:, None] if each.ndim == 1 and role != 1 else each for each in pair]
        for role, pair in enumerate(zip(scales, zeros, strict=True))
    )
    product = ((left if left.ndim > 1 else left[None]) - a_zero) * a_scale @ ((right - b_zero) * b_scale)
    expected = np.clip(np.rint(product / y_scale) + y_zero, -128, 127).astype(I8)
    inputs = (
        *(left.astype(FLOAT8[0]), scales[0], zeros[0].astype(FLOAT8[0])),
        *(right.astype(FLOAT8[2]), scales[1], zeros[1].astype(FLOAT8[2])),
        *(scales[2], zeros[2].astype(I8)),
    )
    return Case(id, "QLinearMatMul", inputs, opset=21, expected=(expected if left.ndim > 1 else expected[..., 0, :],))


ONE: tuple[tuple[int, ...], ...] = ((), ())
MANY = [
    by_rows_and_columns("vectors_of_scales", (5, 9), (9, 6), ((5,), (5,)), ((6,), (6,)), ((5,), (5,))),
    by_rows_and_columns("columns_alone", (5, 9), (9, 6), ONE, ((6,), (6,)), ONE),
    by_rows_and_columns("one_zero_beside_many_scales", (5, 9), (9, 6), ((5,), (1,)), ((6,), ()), ((5,), ())),
    by_rows_and_columns(
        *("batches_with_axes", (2, 5, 9), (2, 9, 6)),
        *(((2, 5, 1), (2, 5, 1)), ((2, 1, 6), (2, 1, 6)), ((2, 5, 1), (2, 5, 1))),
    ),
    by_rows_and_columns(
        "batches_share_scales", (2, 5, 9), (2, 9, 6), ((1, 5, 1), (1, 5, 1)), ((1, 1, 6), (1, 1, 6)), ((5,), (5,))
    ),
    by_rows_and_columns("left_vector", (9,), (9, 6), ((1,), (1,)), ((6,), (6,)), ONE),
    by_rows_and_columns("empty_inner", (5, 0), (0, 6), ((5,), (5,)), ((6,), (6,)), ((5,), (5,))),
    by_rows_and_columns("no_rows", (0, 9), (9, 6), ((0,), (0,)), ((6,), (6,)), ((0,), (0,))),
]


@pytest.mark.parametrize("case", MANY, ids=lambda case: case.id)
def test_products_with_scales_of_rows_and_columns(checks: str, case: Case) -> None:
    run_case(case, checks)


def spec(dtype: Any, *shape: int) -> TensorSpec:
    return TensorSpec(shape, np.dtype(dtype))


@pytest.mark.parametrize(
    ("role", "scale", "message"),
    [
        (1, (4,), r"expects a_scale to be one number, or one for each row \(3\), got float32\[4\]"),
        (4, (3, 1), r"expects b_scale to be one number, or one for each column \(3\), got float32\[3,1\]"),
        (6, (2,), r"expects y_scale to be one number, or one for each row \(3\), got float32\[2\]"),
    ],
)
def test_other_numbers_of_scales_are_refused(role: int, scale: tuple[int, ...], message: str) -> None:
    x, by, zero = spec(FLOAT8[0], 3, 3), spec(np.float32), spec(FLOAT8[0])
    inputs = [x, by, zero, x, by, zero, by, zero]
    inputs[role] = spec(np.float32, *scale)
    with pytest.raises(InputError, match=message):
        QLinearMatMul().infer(*inputs)
