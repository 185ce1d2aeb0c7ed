"""Cast and CastLike from and to strings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as some
from onnx import TensorProto

import gpuexec as gx
from gpuexec.ir.apply import compute_arrays, infer_specs
from gpuexec.ir.operator import build
from gpuexec.ir.spec import BFLOAT16, DTYPES, SEQUENCE, STRING, DTypeRow, TensorSpec, dtype_row
from tests.ops.objects import ObjectCase, check_case, tensor

Array = np.ndarray[Any, Any]
FLOATS = [row for row in DTYPES if row.kind == "float"]
NARROW_FLOATS = [row for row in DTYPES if row.kind == "narrow float"]
INTEGERS = [row for row in DTYPES if row.kind in ("int", "uint", "narrow int", "narrow uint")]
LONG = np.iinfo(np.int64)


def cast(x: Array, to: str) -> Array:
    (y,) = compute_arrays(build("Cast", {"to": dtype_row(to).code}), [x])
    assert y is not None and y.dtype == dtype_row(to).numpy and y.shape == x.shape
    return y


def texts(*items: str) -> Array:
    return np.array(items, object)


@pytest.mark.parametrize(
    ("number", "dtype", "text"),
    [
        (3.14, "float32", "3.14"),
        (314.15926, "float64", "314.15926"),
        (1e-5, "float32", "0.00001"),
        (1e20, "float32", "100000000000000000000.0"),
        (1.0, "float16", "1.0"),
        (65504, "float16", "65500.0"),
        (-0.0, "float64", "-0.0"),
        (3.14, "bfloat16", "3.140625"),
        (np.nan, "float32", "NaN"),
        (np.inf, "bfloat16", "INF"),
        (-np.inf, "float64", "-INF"),
        (0.5, "float8e5m2", "0.5"),
        (-6.0, "float4e2m1", "-6.0"),
        (LONG.min, "int64", "-9223372036854775808"),
        (2**64 - 1, "uint64", "18446744073709551615"),
        (-8, "int4", "-8"),
        (3, "uint2", "3"),
        (True, "bool", "1"),
        (False, "bool", "0"),
    ],
    ids=str,
)
def test_numbers_are_written(number: Any, dtype: str, text: str) -> None:
    with np.errstate(all="ignore"):
        x = np.array([[number]], dtype_row(dtype).numpy)
    assert cast(x, "string").tolist() == [[text]]


@pytest.mark.parametrize("to", ["bool", "int8", "uint64", "float16", "float64"])
def test_a_bool_written_is_read_as_any_number(to: str) -> None:
    written = cast(np.array([True, False]), "string")
    np.testing.assert_array_equal(cast(written, to), np.array([1, 0], dtype_row(to).numpy))


@pytest.mark.parametrize("row", FLOATS, ids=lambda row: row.name)
def test_floats_are_read(row: DTypeRow) -> None:
    x = texts("3.14", "1000", "1e-5", "1E2", "-.5", "+7.", "NaN", "nan", "INF", "+inf", "-INF", " 2 ", "1e999")
    expected = [3.14, 1000, 1e-5, 100, -0.5, 7, np.nan, np.nan, np.inf, np.inf, -np.inf, 2, np.inf]
    with np.errstate(all="ignore"):
        wanted = np.array(expected, row.numpy).astype(np.float64)
    np.testing.assert_array_equal(cast(x, row.name).astype(np.float64), wanted)


@pytest.mark.parametrize("row", DTYPES, ids=lambda row: row.name)
def test_what_is_written_is_read_as_it_was(row: DTypeRow) -> None:
    bits = np.random.RandomState(7).randint(0, 256, (64, row.numpy.itemsize), np.uint8)
    if row.kind == "bool" or row.bits:
        bits &= np.uint8((1 << (row.bits or 1)) - 1)
    x = bits.reshape(-1).view(row.numpy).reshape(8, 8)
    again = cast(cast(x, "string"), row.name)
    np.testing.assert_array_equal(again.astype(np.float64), x.astype(np.float64))
    if not row.is_float:
        np.testing.assert_array_equal(again.view(np.uint8), x.view(np.uint8))


@settings(max_examples=60, derandomize=True, deadline=None)
@given(some.arrays(np.float64, 5, elements=st.floats(allow_nan=True)))
def test_any_double_is_written_without_exponent_and_read_as_it_was(x: Array) -> None:
    written = cast(x, "string")
    assert not any("e" in text.lower().replace("inf", "") for text in written)
    np.testing.assert_array_equal(cast(written, "float64"), x)


def test_integers_are_read() -> None:
    x = texts("12", "-0", "+7", "100.5", "-2.9", "1e2")
    for row in INTEGERS:
        if row.kind == "int":
            assert cast(x, row.name).tolist() == [12, 0, 7, 100, -2, 100]
    assert cast(texts(str(2**64 - 1)), "uint64").tolist() == [2**64 - 1]
    assert cast(texts(str(LONG.min)), "int64").tolist() == [LONG.min]
    assert cast(texts("0" * 5000 + "7"), "int64").tolist() == [7]
    assert cast(texts("7", "-8"), "int4").astype(int).tolist() == [7, -8]


def test_truths_are_read() -> None:
    x = texts("True", "false", "TRUE", "1", "0", "0.0", "-2.5")
    assert cast(x, "bool").tolist() == [True, False, True, True, False, False, True]


def test_narrow_floats_are_rounded_from_what_is_read() -> None:
    for row in NARROW_FLOATS:
        x = np.array([0.75, 1.5, 3.0, 1.0])
        expected = compute_arrays(build("Cast", {"to": row.code}), [x])[0]
        assert expected is not None
        np.testing.assert_array_equal(cast(texts(*map(str, x)), row.name).view(np.uint8), expected.view(np.uint8))
    beyond = build("Cast", {"to": dtype_row("float8e4m3fn").code, "saturate": 0})
    (y,) = compute_arrays(beyond, [texts("1000")])
    assert y is not None and np.isnan(y.astype(np.float32)).all()


@pytest.mark.parametrize(
    ("text", "dtype", "words"),
    [
        ("Hello", "float32", "the text of a number to convert to float32, got 'Hello'"),
        ("", "int64", "to convert to int64, got ''"),
        ("1_000", "float64", "got '1_000'"),
        pytest.param("1" * 5000, "int64", "a number of int64, got '1{40}'", id="5000 digits"),
        ("0x10", "int32", "got '0x10'"),
        ("١", "int32", "got '١'"),
        ("yes", "bool", "to convert to bool, got 'yes'"),
        ("NaN", "int32", "a number of int32, got 'NaN'"),
        ("-inf", "uint8", "a number of uint8, got '-inf'"),
        ("256", "uint8", "a number of uint8, got '256'"),
        ("-1", "uint64", "a number of uint64, got '-1'"),
        ("9223372036854775808", "int64", "a number of int64"),
        ("1 2", "float16", "got '1 2'"),
    ],
    ids=str,
)
def test_other_texts_are_refused(text: str, dtype: str, words: str) -> None:
    with pytest.raises(gx.InputError, match=words):
        cast(texts("1", text), dtype)


def test_containers_are_refused() -> None:
    with pytest.raises(gx.InputError, match="Cast expects tensors, got a sequence"):
        infer_specs(build("Cast", {"to": 8}), [TensorSpec((), SEQUENCE)])
    with pytest.raises(gx.InputError, match="CastLike expects tensors, got a sequence"):
        infer_specs(build("CastLike", {}), [TensorSpec((), STRING), TensorSpec((), SEQUENCE)])


TEXT = tensor(TensorProto.STRING)
FLOAT, INT64, HALF = tensor(), tensor(TensorProto.INT64), tensor(TensorProto.BFLOAT16)
NUMBERS = texts("0.5", "-2", "3e1", "4.").reshape(1, 2, 1, 2, 1, 1, 1, 1)


def case(id: str, x: Array, given: Any, to: Any, expected: Array, like: Array | None = None) -> ObjectCase:
    if like is None:
        attributes = {"to": to.tensor_type.elem_type}
        return ObjectCase(id, "Cast", (x,), (given,), (to,), attributes, [expected])
    return ObjectCase(id, "CastLike", (x, like), (given, to), (to,), {}, [expected])


TALL = np.array([[0.5, 1], [2, np.nan]], np.float32).T
CASES = (
    case("read", NUMBERS, TEXT, FLOAT, np.array([0.5, -2, 30, 4], np.float32).reshape(NUMBERS.shape)),
    case("read_0d", np.array("7", object), TEXT, INT64, np.array(7)),
    case("read_none", NUMBERS[:0], TEXT, INT64, np.zeros(NUMBERS[:0].shape, np.int64)),
    case("write", TALL, FLOAT, TEXT, texts("0.5", "2.0", "1.0", "NaN").reshape(2, 2)),
    case("write_0d", np.array(-3), INT64, TEXT, np.array("-3", object)),
    case("same", NUMBERS, TEXT, TEXT, NUMBERS),
    case("read_like", texts("1", "2"), TEXT, INT64, np.array([1, 2]), np.zeros(3, np.int64)),
    case("write_like", np.array([1, 2]), INT64, TEXT, texts("1", "2"), texts("any")),
    case("read_bfloat16", texts("0.5"), TEXT, HALF, np.array([0.5], BFLOAT16)),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_in_models(case: ObjectCase) -> None:
    check_case(case)
