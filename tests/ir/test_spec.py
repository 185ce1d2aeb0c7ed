"""Specs and the one dtype table."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.spec import (
    BFLOAT16,
    DTYPES,
    HOST_OBJECTS,
    MAP,
    OPTIONAL,
    SEQUENCE,
    STRING,
    DeclaredSpec,
    DTypeRow,
    TensorSpec,
    accumulator,
    dtype_row,
    dtypes_of,
    holds_numbers,
    is_container,
    is_host_object,
    name_dtype,
)


@pytest.mark.parametrize(
    ("name", "numbers", "is_held"),
    [
        ("bool", True, True),
        ("bool", 1, False),
        ("int8", True, False),
        ("int8", 5, True),
        ("int8", 5.0, False),
        ("bfloat16", 5, True),
        ("float8e5m2", 0.3, True),
        ("float8e4m3fn", 3, True),
        ("int4", [-8, 7], True),
        ("int4", [0, 8], False),
        ("int4", -9, False),
        ("int4", 1.0, False),
        ("uint2", [0, 3], True),
        ("uint2", -1, False),
        ("int2", 2, False),
        ("uint4", False, False),
    ],
)
def test_numbers_of_python_become_what_loses_nothing(name: str, numbers: Any, is_held: bool) -> None:
    assert holds_numbers(dtype_row(name).numpy, np.asarray(numbers)) is is_held


@pytest.mark.parametrize("row", DTYPES, ids=lambda row: row.name)
def test_row_is_found_by_code_name_and_dtype(row: object) -> None:
    assert dtype_row(row.code) is dtype_row(row.name) is dtype_row(row.numpy) is dtype_row(row.numpy.type) is row  # type: ignore[attr-defined]


@pytest.mark.parametrize("row", HOST_OBJECTS, ids=lambda row: row.name)
def test_host_objects_have_rows_and_no_kernels(row: DTypeRow) -> None:
    assert dtype_row(row.name) is dtype_row(row.numpy) is row
    assert (row.cuda, row in DTYPES, is_host_object(row.numpy), is_container(row.numpy)) == (
        "",
        False,
        True,
        row.numpy != STRING,
    )
    assert row.code == 0 or dtype_row(row.code) is row


def test_specs_of_host_objects_name_what_they_are() -> None:
    assert [str(TensorSpec(shape, dtype)) for shape, dtype in (((2, 3), STRING), ((), SEQUENCE), ((), MAP))] == [
        "string[2,3]",
        "sequence",
        "map",
    ]
    item = DeclaredSpec(np.dtype(np.float32), (None, 3))
    assert str(DeclaredSpec(SEQUENCE, (), DeclaredSpec(OPTIONAL, (), item))) == "sequence(optional(float32[?,3]))"
    assert str(DeclaredSpec(MAP, (), item, STRING)) == "map(string, float32[?,3])"
    assert str(DeclaredSpec(SEQUENCE, ())) == "sequence()"


def test_numpys_own_texts_are_strings_to_people() -> None:
    words = (np.array(["ab"]), np.array([b"ab"]), np.array(["ab"], np.dtypes.StringDType()), np.array(["ab"], object))
    assert [name_dtype(array.dtype) for array in words] == ["string"] * 4
    assert name_dtype(np.dtype(np.complex64)) == "complex64"


@pytest.mark.parametrize("dtype", [14, "complex64", np.dtype("U3"), np.complex64, 0, "float128"])
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
