"""StridedView: its elements, the absence of copies, and refusals."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.tensor.strided_view import StridedView
from tests.ops.harness import Case, run_case


@pytest.mark.parametrize(
    ("shape", "strides", "start"),
    [
        ((2, 3), (5, 1), 1),
        ((3, 2), (-4, 2), 9),
        ((4, 2), (0, 1), 0),
        ((), (), 7),
        ((0, 3), (1, 1), 0),
        ((2, 0), (9, 9), 99),
    ],
    ids=str,
)
def test_window_shows_the_elements_that_strides_name(
    checks: str, shape: tuple[int, ...], strides: tuple[int, ...], start: int
) -> None:
    x = np.arange(12, dtype=np.int16).reshape(3, 4)
    expected = np.empty(shape, np.int16)
    for index in np.ndindex(shape):
        expected[index] = x.reshape(-1)[start + sum(i * s for i, s in zip(index, strides, strict=True))]
    attributes = {"shape": shape, "strides": strides, "start": start}
    run_case(Case("case", "gpuexec.StridedView", (x,), attributes, oracle="expected", expected=(expected,)), checks)


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e5m2, ml_dtypes.int4, np.bool_])
def test_window_of_bytes_keeps_them(checks: str, dtype: Any) -> None:
    bits = np.array([1, 0, 1, 1, 0, 0, 1], np.uint8)
    expected = bits[5::-2].reshape(3, 1).view(dtype)
    attributes = {"shape": (3, 1), "strides": (-2, 1), "start": 5}
    run_case(Case("bytes", "gpuexec.StridedView", (bits.view(dtype),), attributes, expected=(expected,)), checks)


def test_window_of_a_dense_array_is_no_copy() -> None:
    x = np.arange(12, dtype=np.int16)
    assert np.shares_memory(StridedView((2, 3), (5, 1), 1).compute(x)[0], x)


@pytest.mark.parametrize(
    ("op", "words"),
    [
        (StridedView((2, 3), (5, 1), 5), "from element 5 to 12, got int16.*has 12"),
        (StridedView((3,), (-1,), 1), "from element -1 to 1"),
        (StridedView((3,), (1, 1)), "a stride for each extent"),
        (StridedView((-1,), (1,)), "a stride for each extent"),
    ],
    ids=str,
)
def test_window_outside_is_refused(op: StridedView, words: str) -> None:
    with pytest.raises(InputError, match=words):
        op.infer(TensorSpec((3, 4), np.dtype(np.int16)))
