"""Strict comparison of outputs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import numpy_helper

from tests.system.conformance.compare import find_difference

F32, F16, BF16 = np.float32, np.float16, ml_dtypes.bfloat16
NAN = float("nan")
RTOL, ATOL = 1e-3, 1e-7


def array(*items: Any, dtype: Any = F32) -> np.ndarray[Any, Any]:
    return np.array(items, dtype)


SAME: list[tuple[str, Any, Any]] = [
    ("none", None, None),
    ("scalar", F32(2), np.asarray(F32(2))),
    ("proto", numpy_helper.from_array(array(1, 2)), array(1, 2)),
    ("proto of int4", numpy_helper.from_array(array(-8, 7, dtype=ml_dtypes.int4)), array(-8, 7, dtype=ml_dtypes.int4)),
    ("within rtol", array(1000), array(1000.9)),
    ("within atol", array(0), array(5e-8)),
    ("nan", array(NAN, 1), array(NAN, 1)),
    ("infinity", array(np.inf, -np.inf), array(np.inf, -np.inf)),
    ("two ulp of bfloat16", array(1, dtype=BF16), array(1 + 2**-6, dtype=BF16)),
    ("nan of bfloat16", array(NAN, dtype=BF16), array(NAN, dtype=BF16)),
    ("nan of float8", array(NAN, dtype=ml_dtypes.float8_e5m2), array(-NAN, dtype=ml_dtypes.float8_e5m2)),
    ("empty", np.zeros((0, 3), F32), np.zeros((0, 3), F32)),
    ("empty text", np.zeros(0, object), np.zeros(0, object)),
    ("text and bytes", array("a", "ö", dtype=object), array(b"a", "ö".encode(), dtype=object)),
    ("text of fixed width", array("a", "bc", dtype=object), array("a", "bc", dtype="<U2")),
    ("list", [array(1), [None]], [array(1), [None]]),
    ("map", {"a": array(1)}, {"a": array(1)}),
]
DIFFERENT: list[tuple[str, Any, Any]] = [
    ("none expected", None, array(1)),
    ("none got", array(1), None),
    ("scalar of Python", array(1), 1.0),
    ("scalar of NumPy", F32(1), F32(1)),
    ("dtype", array(1), array(1, dtype=np.float64)),
    ("signedness", array(1, dtype=np.int32), array(1, dtype=np.uint32)),
    ("bool and byte", array(1, dtype=bool), array(1, dtype=np.uint8)),
    ("shape", array(1, 2), array([1], [2])),
    ("0-d", F32(1), array(1)),
    ("shape of nothing", np.zeros((0, 3), F32), np.zeros((0, 2), F32)),
    ("beyond rtol", array(1000), array(1001.1)),
    ("beyond atol", array(0), array(2e-7)),
    ("nan for a number", array(1), array(NAN)),
    ("number for nan", array(NAN), array(1)),
    ("sign of infinity", array(np.inf), array(-np.inf)),
    ("integer off by one", array(100000, dtype=np.int64), array(100001, dtype=np.int64)),
    ("large integer off by one", array(2**40, dtype=np.int64), array(2**40 + 1, dtype=np.int64)),
    ("three ulp of bfloat16", array(1, dtype=BF16), array(1 + 3 * 2**-7, dtype=BF16)),
    ("two ulp of float16", array(1, dtype=F16), array(1 + 2**-9, dtype=F16)),
    ("one ulp of float8", array(1, dtype=ml_dtypes.float8_e4m3fn), array(1.125, dtype=ml_dtypes.float8_e4m3fn)),
    ("zeros of float8", array(0.0, dtype=ml_dtypes.float8_e5m2), array(-0.0, dtype=ml_dtypes.float8_e5m2)),
    ("kinds of float8", array(1, dtype=ml_dtypes.float8_e5m2), array(1, dtype=ml_dtypes.float8_e4m3fn)),
    ("int4", array(3, dtype=ml_dtypes.int4), array(2, dtype=ml_dtypes.int4)),
    ("float4", array(0.5, dtype=ml_dtypes.float4_e2m1fn), array(1, dtype=ml_dtypes.float4_e2m1fn)),
    ("text", array("a", dtype=object), array("b", dtype=object)),
    ("text for number", array(1), array("1", dtype=object)),
    ("number for text", array("1", dtype=object), array(1, dtype=np.int64)),
    ("shape of text", array("a", dtype=object), array(["a"], dtype=object)),
    ("short list", [array(1), array(2)], [array(1)]),
    ("long list", [array(1)], [array(1), array(2)]),
    ("element of list", [array(1), [array(2)]], [array(1), [array(3)]]),
    ("list for array", array(1, 2), [1, 2]),
    ("array for list", [array(1)], array(1)),
    ("keys", {"a": array(1)}, {"b": array(1)}),
    ("entry of map", {"a": array(1)}, {"a": array(2)}),
]


@pytest.mark.parametrize(("expected", "got"), [case[1:] for case in SAME], ids=[case[0] for case in SAME])
def test_no_difference_is_found_when_equal(expected: Any, got: Any) -> None:
    assert find_difference(expected, got, RTOL, ATOL) is None


@pytest.mark.parametrize(("expected", "got"), [case[1:] for case in DIFFERENT], ids=[case[0] for case in DIFFERENT])
def test_difference_is_found(expected: Any, got: Any) -> None:
    assert find_difference(expected, got, RTOL, ATOL)


def test_difference_says_where_and_what() -> None:
    found = find_difference([[array(1, 2, 3)]], [[array(1, 5, 4)]], RTOL, ATOL, "outputs")
    assert found == "outputs[0][0]: 2 of 3 elements differ (float32); expected 2.0 at [1], got 5.0"
    assert find_difference([array(1)], [array(1, 2)], RTOL, ATOL, "outputs") == (
        "outputs[0]: expected float32[1], got float32[2]"
    )
