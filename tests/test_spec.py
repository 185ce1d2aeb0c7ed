"""Specs and the one dtype table."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.spec import BFLOAT16, DTYPES, DeclaredSpec, TensorSpec, accumulator, dtype_row, dtypes_of


@pytest.mark.parametrize("row", DTYPES, ids=lambda row: row.name)
def test_row_is_found_by_code_name_and_dtype(row: object) -> None:
    assert dtype_row(row.code) is dtype_row(row.name) is dtype_row(row.numpy) is dtype_row(row.numpy.type) is row  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", [8, "string", np.dtype(object), np.complex64, 0, "float128"])
def test_type_outside_the_table_is_refused(dtype: object) -> None:
    with pytest.raises(InputError, match="not supported; known are float32"):
        dtype_row(dtype)


def test_kinds_and_accumulators() -> None:
    assert dtypes_of("bool") == (np.dtype(bool),)
    assert BFLOAT16 in dtypes_of("float") and np.dtype(np.int8) in dtypes_of("int", "uint")
    assert accumulator(np.dtype(np.float16)) == accumulator(np.dtype(ml_dtypes.bfloat16)) == np.dtype(np.float32)
    assert accumulator(np.dtype(np.float64)) == np.dtype(np.float64)


def test_sizes() -> None:
    spec = TensorSpec((2, 3), np.dtype(np.float64))
    assert (spec.size, spec.nbytes, spec.rank, str(spec)) == (6, 48, 2, "float64[2,3]")
    assert TensorSpec((), np.dtype(np.int8)).size == 1
    assert TensorSpec((2, 0), np.dtype(np.int8)).nbytes == 0


def test_content_is_outside_equality() -> None:
    array = np.array([1, 2])
    bare = TensorSpec((2,), array.dtype)
    known = TensorSpec.of(array)
    assert bare == known == bare.with_value(array) and hash(bare) == hash(known)
    assert known.value is not None and known.value.array is array and known.value.log is None
    assert known.with_value(None).value is None
    assert known.with_shape((1,)).value is None


def test_declared_specs_print_what_is_free() -> None:
    float32 = np.dtype(np.float32)
    assert str(DeclaredSpec(float32, ("n", None, 3))) == "float32[n,?,3]"
    assert str(DeclaredSpec(float32, None)) == "float32[...]"
