"""DynamicQuantizeLinear."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuexec.errors import InputError
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.quant.dynamic_quantize import DynamicQuantizeLinear
from tests.ops.harness import Array, Case, run_case

RNG = np.random.default_rng(12)


def floats(*shape: int, scale: float = 3.0, shift: float = 0.0) -> Array:
    return RNG.normal(shift, scale, shape).astype(np.float32)


def case(id: str, x: Array, **changes: Any) -> Case:
    return Case(id, "DynamicQuantizeLinear", (x,), outputs=(True, True, True), **{"oracle": "onnxruntime", **changes})


def worked(id: str, x: list[float], y: list[int], scale: float, zero: int) -> Case:
    expected = (np.array(y, np.uint8), np.array(scale, np.float32), np.array(zero, np.uint8))
    return case(id, np.array(x, np.float32), expected=expected)


CASES = [
    case("both_signs", floats(3, 5)),
    case("positive", floats(40, shift=20)),
    case("negative", floats(40, shift=-20)),
    case("parts", floats(9, 1000)),
    case("many_parts", floats(600_000)),
    case("rank8", floats(2, 1, 2, 1, 2, 1, 2, 3)),
    case("scalar", np.array(-2.5, np.float32)),
    case("strided", floats(6, 8)[::-2, ::3].T),
    case("of_the_reference", floats(7), oracle="reference", opset=11),
    worked("zeros", [0.0, -0.0], [0, 0], 1.0, 0),
    worked("empty", [], [], 1.0, 0),
    worked("halves_to_even", [0, 0.5, 1.5, 2.5, 255], [0, 0, 2, 2, 255], 1.0, 0),
    worked("not_numbers", [np.nan, -1, 254], [1, 0, 255], 1.0, 1),
    worked("infinite", [np.inf, 5], [0, 0], np.inf, 0),
    worked("minus_infinite", [-np.inf, 5], [0, 0], np.inf, 0),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_dynamic_quantize(checks: str, case: Case) -> None:
    run_case(case, checks)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.lists(st.floats(-(2.0**90), 2.0**90, width=32, allow_subnormal=False), max_size=20))
def test_dynamic_quantize_of_any_numbers(checks: str, values: list[float]) -> None:
    run_case(case("any", np.array(values, np.float32)) if values else CASES[-5], checks)


def test_other_types_are_refused() -> None:
    with pytest.raises(InputError, match="expects x of type float32"):
        DynamicQuantizeLinear().infer(TensorSpec((3,), np.dtype(np.float16)))
