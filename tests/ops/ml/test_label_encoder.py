"""LabelEncoder: numbers on every device, strings on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuexec as gx
from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from tests.ops.harness import Array, Case, run_case
from tests.ops.ml.cases import make_model, ml, run_model

TYPES = (np.float32, np.float64, np.int64, np.int32, np.int16)
NAN = float("nan")
OTHER_NAN = np.array([0x7FC12345, 0xFFC00001], np.uint32).view(np.float32)
EXTREMES = [int(np.iinfo(np.int64).min), -1, 0, 1, int(np.iinfo(np.int64).max)]


def encoded(x: Array, keys: Any, values: Any, default: Any, dtype: Any) -> tuple[Array, ...]:
    """Look each element up by the standard's words: NaN is equal to NaN, the last of equal keys counts."""
    known = {"nan" if key != key else key: value for key, value in zip(keys, values, strict=True)}
    found = [known.get("nan" if item != item else item, default) for item in x.reshape(-1).tolist()]
    return (np.array(found, dtype).reshape(x.shape),)


def by_tensors(id: str, x: Array, keys: Array, values: Array, default: Array | None = None) -> Case:
    standard = -1 if values.dtype.kind == "i" else -0.0
    attributes: dict[str, Any] = {"keys_tensor": keys, "values_tensor": values}
    attributes |= {} if default is None else {"default_tensor": default}
    chosen = standard if default is None else default.item()
    expected = encoded(x, keys.tolist(), values.tolist(), chosen, values.dtype)
    return ml(id, "LabelEncoder", x, opset=4, expected=expected, **attributes)


def draw(dtype: Any, *shape: int) -> Array:
    return np.random.default_rng(7).integers(-4, 9, shape).astype(dtype)


KEYS = np.array([3, -2, 7, 0, 5])
VALUES = np.array([10, 20, 30, 40, 50])
CASES = [
    *(
        by_tensors(f"{k.__name__}_to_{v.__name__}", draw(k, 4, 5), KEYS.astype(k), VALUES.astype(v), np.array([9], v))
        for k in TYPES
        for v in TYPES
    ),
    *(by_tensors(f"default_of_{v.__name__}", draw(np.int64, 7), KEYS, VALUES.astype(v)) for v in TYPES),
    ml("ints_to_floats", "LabelEncoder", draw(np.int64, 3, 4), opset=2, keys_int64s=[1, 2], values_floats=[0.5, 1.5]),
    ml(
        "floats_to_ints",
        "LabelEncoder",
        draw(np.float32, 3, 4),
        opset=2,
        keys_floats=[1.0, 2.0],
        values_int64s=[5, 6],
        default_int64=99,
    ),
    ml(
        "floats_to_floats",
        "LabelEncoder",
        draw(np.float32, 3, 4),
        opset=4,
        keys_floats=[1.0, 2.0],
        values_floats=[5.0, 6.0],
        default_float=-7.5,
    ),
    ml(
        "floats_onnxruntime",
        "LabelEncoder",
        np.array([1, NAN, 3, -0.0, np.inf], np.float32),
        opset=4,
        oracle="onnxruntime",
        keys_floats=[0.0, NAN, float("inf")],
        values_floats=[5.0, 6.0, 8.0],
    ),
    ml(
        "any_nan",
        "LabelEncoder",
        np.concatenate((OTHER_NAN, np.array([NAN, 1], np.float32))),
        opset=4,
        keys_floats=[NAN, 2.0],
        values_int64s=[1, 2],
        expected=(np.array([1, 1, 1, -1]),),
    ),
    by_tensors("both_zeros", np.array([0.0, -0.0]), np.array([-0.0]), np.array([4])),
    by_tensors("special", np.array([np.inf, -np.inf, 1e300]), np.array([-np.inf, np.inf]), np.array([4, 5])),
    by_tensors("last_of_equal", draw(np.int32, 9), np.array([1, 3, 1, 2, 3], np.int32), np.arange(5)),
    by_tensors("last_of_equal_nan", np.array([NAN]), np.array([NAN, 1.0, NAN]), np.arange(3)),
    by_tensors("extremes", np.array([*EXTREMES, 17]), np.array(EXTREMES[::-1]), np.arange(5)),
    by_tensors("no_keys", draw(np.int64, 5), KEYS[:0], VALUES[:0]),
    by_tensors("scalar", np.array(7), KEYS, VALUES),
    by_tensors("strided", draw(np.int64, 6, 8)[::-2, ::3].T, KEYS, VALUES),
    by_tensors("empty", draw(np.int64, 0, 4), KEYS, VALUES),
    by_tensors("rank8", draw(np.int16, 1, 2, 1, 2, 1, 2, 1, 3), KEYS.astype(np.int16), VALUES),
    by_tensors("many_keys", np.arange(-50, 3000), np.arange(0, 4000, 3)[::-1].copy(), np.arange(1334)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_numbers_to_numbers(checks: str, case: Case) -> None:
    run_case(case, checks)


@settings(max_examples=15, derandomize=True, deadline=None)
@given(
    st.lists(st.floats(width=32), max_size=40),
    st.lists(st.floats(width=32), min_size=1, max_size=60),
)
def test_any_floats(checks: str, keys: list[float], elements: list[float]) -> None:
    x = np.array(elements + keys[:10], np.float32)
    run_case(by_tensors("random", x, np.array(keys, np.float32), np.arange(len(keys))), checks)


WORDS = np.array([["b", "a"], ["ü", "b"]], object)
STRINGS = [
    ("strings_to_ints", WORDS, 2, {"keys_strings": ["a", "b"], "values_int64s": [5, 6]}, [[6, 5], [-1, 6]]),
    ("strings_to_floats", WORDS, 4, {"keys_strings": ["ü"], "values_floats": [0.5]}, [[-0.0, -0.0], [0.5, -0.0]]),
    ("ints_to_strings", np.array([[3, 4]]), 2, {"keys_int64s": [3], "values_strings": ["x"]}, [["x", "_Unused"]]),
    (
        "strings_to_strings",
        WORDS,
        4,
        {"keys_strings": ["b", "a", "b"], "values_strings": ["1", "2", "3"], "default_string": ""},
        [["3", "2"], ["", "3"]],
    ),
    ("one_string", np.array("a", object), 2, {"keys_strings": ["a"], "values_strings": ["b"]}, "b"),
    ("strings_to_places", WORDS, 1, {"classes_strings": ["a", "b"], "default_int64": 7}, [[1, 0], [7, 1]]),
    ("places_to_strings", np.array([1, 0, 2]), 1, {"classes_strings": ["a", "b"]}, ["b", "a", "_Unused"]),
    (
        "tensors",
        WORDS,
        4,
        {
            "keys_tensor": onnx.helper.make_tensor("k", onnx.TensorProto.STRING, [2], ["a", "b"]),
            "values_tensor": onnx.helper.make_tensor("v", onnx.TensorProto.INT16, [2], [4, 5]),
            "default_tensor": onnx.helper.make_tensor("d", onnx.TensorProto.INT16, [1], [42]),
        },
        [[5, 4], [42, 5]],
    ),
]


@pytest.mark.parametrize("backend", [gx.BackendType.CPU, gx.BackendType.SIMULATOR])
@pytest.mark.parametrize(("id", "x", "opset", "attributes", "expected"), STRINGS, ids=[row[0] for row in STRINGS])
def test_strings_are_looked_up_on_the_host(
    backend: gx.BackendType, id: str, x: Array, opset: int, attributes: dict[str, Any], expected: Any
) -> None:
    (y,), host = run_model(backend, make_model("LabelEncoder", x, 1, opset, **attributes), x)
    assert y.tolist() == expected
    assert host == ["ai.onnx.ml.LabelEncoder"]


def test_equal_attributes_make_equal_operators() -> None:
    made = [build("ai.onnx.ml.LabelEncoder", {"keys_tensor": KEYS.copy(), "values_tensor": VALUES}) for _ in range(2)]
    assert made[0] == made[1] and hash(made[0]) == hash(made[1])


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"keys_int64s": (1, 2), "values_int64s": (1,)}, "as many values as keys, got 1 and 2"),
        ({"keys_int64s": (1,)}, "expected values in one attribute"),
        ({"keys_int64s": (1,), "keys_floats": (1.0,), "values_int64s": (1,)}, "keys in one attribute keys_.*, got 2"),
        ({"keys_tensor": np.zeros((2, 2)), "values_int64s": (1,)}, "keys_tensor expects a list of labels"),
        ({"keys_tensor": np.zeros(1, np.uint8), "values_int64s": (1,)}, "keys_tensor expects a list of labels"),
        (
            {"keys_int64s": (1,), "values_int64s": (1,), "default_tensor": np.zeros(1)},
            "default_tensor expects one element of type int64",
        ),
    ],
)
def test_attributes_that_do_not_fit_are_refused(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build("ai.onnx.ml.LabelEncoder", attributes)


def test_an_input_of_another_type_than_the_keys_is_refused() -> None:
    op = build("ai.onnx.ml.LabelEncoder", {"keys_int64s": (1,), "values_int64s": (1,)})
    with pytest.raises(InputError, match="expects input of type int64, got float32"):
        op.infer(TensorSpec((2,), np.dtype(np.float32)))
