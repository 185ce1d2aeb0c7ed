"""ScaleToFloat8."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from tests.ops.harness import Array, Case, run_case

RNG = np.random.default_rng(3)
FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)


def floats(*shape: int) -> Array:
    return RNG.normal(0.0, 3.0, shape).astype(np.float32)


def case(id: str, x: Any, expected: tuple[Any, float] | None = None) -> Case:
    """Return a case; without what is expected, ml_dtypes says it."""
    array = np.asarray(x, np.float32)
    scale = np.float32(np.abs(array).max() / np.float32(448)) if expected is None else np.float32(expected[1])
    y = array / scale if expected is None else np.asarray(expected[0], np.float32)
    made = y.astype(FLOAT8), np.array(scale)
    return Case(id, "gpuexec.ScaleToFloat8", (array,), outputs=(True, True), expected=made)


def place_largest(count: int, place: int) -> Case:
    """Return zeros but for one element, which alone says what the scale is, and a small one at the end."""
    x = np.zeros(count, np.float32)
    x[-1] = 14.0
    x[place] = -896.0
    y = np.zeros(count, np.float32)
    y[-1], y[place] = 7.0, -448.0
    return case(f"largest-{place}-of-{count}", x, (y, 2.0))


CASES = [
    case("both_signs", floats(3, 5)),
    case("powers", [[1.0, -2.0], [3.0, 448.0]], ([[1.0, -2.0], [3.0, 448.0]], 1.0)),
    # Halfway between numbers: to the even one.
    case("halves_to_even", [448.0, 17.0, 19.0, 2.0**-10, 3 * 2.0**-10], ([448.0, 16.0, 20.0, 0.0, 2.0**-8], 1.0)),
    case("negative", [-896.0, 2.0], ([-448.0, 1.0], 2.0)),
    case("scalar", np.array(-2.5)),
    case("strided", floats(6, 8)[::-2, ::3].T),
    case("rank8", floats(2, 1, 2, 1, 2, 1, 2, 3)),
    case("zeros", [0.0, -0.0], ([0.0, -0.0], 2.0**-100)),
    case("empty", [], ([], 2.0**-100)),
    case("below_the_smallest_scale", [2.0**-98, -(2.0**-110)], ([4.0, -(2.0**-10)], 2.0**-100)),
    case("nan", [np.nan, 1.0], ([np.nan, np.nan], np.nan)),
    case("infinite", [-np.inf, 5.0], ([np.nan, 0.0], np.inf)),
    *(
        place_largest(count, place)
        for count, place in ((255, 253), (257, 256 - 1), (2049, 2047), (4000, 3), (4000, 2300))
    ),
    place_largest(600_000, 599_990),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_scale_to_float8(checks: str, case: Case) -> None:
    run_case(case, checks)


def test_other_types_are_refused() -> None:
    with pytest.raises(InputError, match="expects x of type float32"):
        build("gpuexec.ScaleToFloat8", {}).infer(TensorSpec((3,), np.dtype(np.float16)))
