"""Det against NumPy in double, and against determinants worked by hand."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.linalg.det import SHARED_SIDE
from tests.ops.harness import Array, Case, run_case

FLOATS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)


def sample(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng([*shape, 8]).normal(0, 1, shape).astype(dtype)


def det(id: str, x: Array, expected: Any = None) -> Case:
    """A case whose terms are those of an elimination: sums of n products, n times."""
    with np.errstate(all="ignore"):
        found = np.linalg.det(x.astype(np.float64)) if expected is None else expected
        return Case(id, "Det", (x,), expected=(np.asarray(found).astype(x.dtype),), terms=max(1, x.shape[-1] ** 2))


def orthogonal(n: int) -> Array:
    """A matrix whose determinant stays near 1, however large it is."""
    return np.asarray(np.linalg.qr(sample(n, n, dtype=np.float64))[0])


# More matrices than blocks; some meet a pivot of 0 at once.
SINGULAR = np.random.default_rng(1).integers(0, 2, (1100, 2, 2)).astype(np.float32)
CASES = [
    *(det(np.dtype(t).name, sample(3, 4, 4, dtype=t)) for t in FLOATS),
    *(det(f"n{n}", sample(2, n, n, dtype=np.float64)) for n in (1, 2, 3, 5, 15, 16, 17)),
    *(det(f"orthogonal{n}", orthogonal(n)) for n in (33, SHARED_SIDE, SHARED_SIDE + 1, 130)),
    det("in_scratch", np.stack([orthogonal(SHARED_SIDE + 2)] * 3).astype(np.float32)),
    det("one_matrix", sample(4, 4)),
    det("batches", sample(2, 1, 3, 2, 3, 3)),
    det("by_hand", np.array([[0, 2], [3, 4]], np.float32), -6.0),
    det("permutation", np.eye(7, dtype=np.float32)[[1, 2, 0, 4, 3, 6, 5]], 1.0),
    det("zero_pivot", np.array([[[1, 2], [2, 4]], [[0, 0], [0, 1]], [[0, 1], [0, 5]]], np.float32), [0.0, 0.0, 0.0]),
    det("nothing", np.zeros((3, 0, 0), np.float32), [1.0, 1.0, 1.0]),
    det("nothing_at_all", np.zeros((0, 0), np.float32), 1.0),
    det("no_matrices", np.zeros((0, 2, 2), np.float32)),
    det("nan", np.array([[1, 2], [np.nan, 4]], np.float32)),
    det("overflows", np.diag(np.full(3, 60000)).astype(np.float16), np.inf),
    det("wide_range", np.diag(np.array([1e30, 1e30, 1e-30, 1e-30], np.float32))),
    det("more_than_blocks", SINGULAR, SINGULAR[:, 0, 0] * SINGULAR[:, 1, 1] - SINGULAR[:, 0, 1] * SINGULAR[:, 1, 0]),
    det("strided", sample(7, 9, 6, 4)[::-2, ::3, ::2, :3].transpose(1, 0, 3, 2)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_det(checks: str, case: Case) -> None:
    run_case(case, checks)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(n=st.integers(0, 9), batch=st.integers(1, 4), data=st.data())
def test_integers_have_the_determinant_that_expansion_gives(
    checks: str, n: int, batch: int, data: st.DataObject
) -> None:
    def expand(rows: list[list[int]]) -> int:
        if len(rows) > 4:  # by blocks is as good, and sooner done
            return round(np.linalg.det(np.array(rows, np.float64)))
        if not rows:
            return 1
        return sum((-1) ** i * x * expand([row[:i] + row[i + 1 :] for row in rows[1:]]) for i, x in enumerate(rows[0]))

    entries = [[[data.draw(st.integers(-3, 3)) for _ in range(n)] for _ in range(n)] for _ in range(batch)]
    x = np.array(entries, np.float32).reshape(batch, n, n)
    run_case(det("integers", x, [float(expand(rows)) for rows in entries]), checks)


def test_it_has_no_attributes() -> None:
    assert not onnx.defs.get_schema("Det").attributes


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 4, 3), ()])
def test_infer_refuses_what_is_not_square(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="Det expects square matrices"):
        build("Det", {}).infer(TensorSpec(shape, np.dtype(np.float32)))
    with pytest.raises(InputError, match="Det expects input of type"):
        build("Det", {}).infer(TensorSpec((3, 3), np.dtype(np.int32)))
