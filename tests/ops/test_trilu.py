"""Trilu."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import COMPUTED, TensorSpec
from gpuexec.ops.tensor.trilu import Trilu
from tests.ops.harness import Array, Case, run_case


def arange(*shape: int, dtype: Any = np.float32) -> Array:
    return (np.arange(np.prod(shape, dtype=int)) + 1).reshape(shape).astype(dtype)


def trilu(id: str, x: Array, k: int | None = None, upper: int = 1, **options: Any) -> Case:
    inputs = (x,) if k is None else (x, np.array(k, np.int64))
    return Case(f"{id}{'' if upper else '-lower'}", "Trilu", inputs, {"upper": upper}, **options)


CASES = [
    *(trilu(row.name, arange(3, 4).astype(row.numpy), upper=upper) for row in COMPUTED for upper in (0, 1)),
    *(trilu(f"k{k}", arange(3, 5), k, upper) for k in (-4, -3, -2, -1, 0, 1, 2, 4, 5, 6) for upper in (0, 1)),
    *(
        trilu(f"{rows}x{cols}", arange(rows, cols), 1, upper)
        for rows, cols in [(5, 2), (1, 4), (4, 1)]
        for upper in (0, 1)
    ),
    trilu("k_known", arange(4, 4), -1, const=(1,)),
    trilu("k_omitted", arange(4, 4)),
    Case("default_is_upper", "Trilu", (arange(3, 3),)),
    Case("upper_is_any_number", "Trilu", (arange(3, 3), None), {"upper": 2}),
    trilu("k_largest", arange(3, 3), 2**63 - 1, expected=(np.zeros((3, 3), np.float32),)),
    trilu("k_lowest", arange(3, 3), -(2**63), expected=(arange(3, 3),)),
    trilu("k_largest", arange(3, 3), 2**63 - 1, 0, expected=(arange(3, 3),)),
    trilu("k_lowest", arange(3, 3), -(2**63), 0, expected=(np.zeros((3, 3), np.float32),)),
    trilu("batches", arange(2, 3, 4, 5), -1),
    trilu("batches", arange(2, 3, 4, 5), 1, 0),
    trilu("many", arange(3, 30, 31), 4),
    *(
        trilu(f"empty{shape}", np.zeros(shape, np.float32), upper=upper)
        for shape in [(0, 3), (3, 0), (0, 2, 2)]
        for upper in (0, 1)
    ),
    trilu("strided", arange(8, 6, 4)[::-2, :, ::3].transpose(2, 0, 1), 1),
    trilu("nan_outside", np.full((3, 3), np.nan, np.float32), 1),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_trilu(checks: str, case: Case) -> None:
    run_case(case, checks)


def test_attributes_are_those_of_the_standard() -> None:
    assert Trilu().upper == onnx.defs.get_schema("Trilu").attributes["upper"].default_value.i


@pytest.mark.parametrize(
    ("shape", "k", "message"),
    [
        ((3,), None, "rank 2 or more"),
        ((3, 3), TensorSpec((2,), np.dtype(np.int64)), "k to be one int64"),
        ((3, 3), TensorSpec((), np.dtype(np.int32)), "k to be one int64"),
    ],
)
def test_infer_refuses(shape: tuple[int, ...], k: TensorSpec | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build("Trilu", {}).infer(TensorSpec(shape, np.dtype(np.float32)), k)
