"""AlignAxes, the axis alignment before broadcasting operators."""

from __future__ import annotations

import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from tests.ops.harness import Array, Case, run_case


def ramp(*shape: int) -> Array:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


def align(id: str, x: Array, rank: int, axis: int, *expected: int) -> Case:
    like = np.zeros((1,) * rank, np.int64)
    return Case(id, "gpuexec.AlignAxes", (x, like), {"axis": axis}, expected=(x.reshape(expected),))


CASES = [
    align("first_axis", ramp(3), 3, 0, 3, 1, 1),
    align("middle_axis", ramp(3), 3, 1, 3, 1),
    align("last_axis", ramp(3), 3, 2, 3),
    align("negative_axis", ramp(3), 3, -2, 3, 1),
    align("two_axes", ramp(2, 3), 4, 1, 2, 3, 1),
    align("all_axes", ramp(2, 3), 2, 0, 2, 3),
    align("nothing_to_spare", ramp(3), 1, 1, 3),
    align("scalar", ramp(), 2, 0, 1, 1),
    align("empty", ramp(0), 2, 0, 0, 1),
    align("strided", ramp(6, 4)[::-2].T, 3, 0, 4, 3, 1),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_axes_are_appended(checks: str, case: Case) -> None:
    run_case(case, checks)


def test_axis_out_of_range_is_refused() -> None:
    x, like = (TensorSpec(shape, np.dtype(np.float32)) for shape in ((3,), (1, 1)))
    with pytest.raises(InputError, match="axis expects -2 to 2, got -3"):
        build("gpuexec.AlignAxes", {"axis": -3}).infer(x, like)
