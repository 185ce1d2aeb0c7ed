"""QLinearMatMul with floats of 8 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.ops.float8_matmul import FLOAT8
from gpuexec.ops.integer_matmul import QLinearMatMul
from gpuexec.spec import TensorSpec, dtype_row
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
def test_products_of_small_floats(case: Case) -> None:
    run_case(case)


def spec(dtype: Any, *shape: int) -> TensorSpec:
    return TensorSpec(shape, np.dtype(dtype))


def test_floats_of_8_bits_have_one_scale() -> None:
    x, by, zero = spec(FLOAT8[0], 3, 3), spec(np.float32), spec(FLOAT8[0])
    with pytest.raises(InputError, match=r"b_scale to be one number.*floats of 8 bits have one scale"):
        QLinearMatMul().infer(x, by, zero, x, spec(np.float32, 3), zero, by, zero)
