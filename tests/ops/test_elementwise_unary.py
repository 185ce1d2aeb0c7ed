"""Operators of one input: every row of the table, every dtype the standard allows, special values."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import pytest

import gpuexec.ops  # noqa: F401
from gpuexec.errors import InputError
from gpuexec.ir.operator import Array, build
from gpuexec.ir.spec import BFLOAT16, DTYPES, TensorSpec, accumulator, dtype_row
from gpuexec.ops.elementwise.elementwise_binary import ROWS as BINARY_ROWS
from gpuexec.ops.elementwise.elementwise_engine import FLOATS, INTEGERS
from gpuexec.ops.elementwise.elementwise_unary import ROWS
from tests.ops.harness import Case, expect, run_case

LONG = np.longdouble


def _long_gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + _long_erf(x / np.sqrt(LONG(2)))))


def _long_erf(x: Array) -> Array:
    return np.array([math.erf(float(each)) for each in x.reshape(-1)], LONG).reshape(x.shape)


def _long_softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _single(value: float) -> Any:
    return LONG(np.float32(value))


# What the function is, in extended precision; attributes are float32, as ONNX keeps them.
REFERENCES: dict[str, Any] = {
    "Exp": np.exp,
    "Log": np.log,
    "Sqrt": np.sqrt,
    "Reciprocal": lambda x: 1 / x,
    "Erf": _long_erf,
    "Tanh": np.tanh,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Sin": np.sin,
    "Cos": np.cos,
    "Tan": np.tan,
    "Asin": np.arcsin,
    "Acos": np.arccos,
    "Atan": np.arctan,
    "Sinh": np.sinh,
    "Cosh": np.cosh,
    "Asinh": np.arcsinh,
    "Acosh": np.arccosh,
    "Atanh": np.arctanh,
    "Softplus": _long_softplus,
    "Mish": lambda x: x * np.tanh(_long_softplus(x)),
    "Gelu": lambda x: _long_gelu(x),
    "Gelu/tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / LONG(np.pi)) * (x + LONG(0.044715) * x**3))),
    "Swish": lambda x: x / (1 + np.exp(-x)),
    "Swish/1.5": lambda x: x / (1 + np.exp(-_single(1.5) * x)),
    "Elu": lambda x: np.where(x < 0, np.expm1(x), x),
    "Elu/0.3": lambda x: np.where(x < 0, _single(0.3) * np.expm1(x), x),
    "Celu": lambda x: np.maximum(x, 0) + np.minimum(0, np.expm1(x)),
    "Celu/2.5": lambda x: np.maximum(x, 0) + np.minimum(0, _single(2.5) * np.expm1(x / _single(2.5))),
    "Selu": lambda x: _single(1.05070102) * np.where(x > 0, x, _single(1.67326319) * np.expm1(x)),
    "Selu/2": lambda x: _single(3.0) * np.where(x > 0, x, _single(2.0) * np.expm1(x)),
}
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "Gelu/tanh": {"approximate": "tanh"},
    "Swish/1.5": {"alpha": 1.5},
    "Elu/0.3": {"alpha": 0.3},
    "Celu/2.5": {"alpha": 2.5},
    "Selu/2": {"alpha": 2.0, "gamma": 3.0},
    "LeakyRelu/0.3": {"alpha": 0.3},
    "HardSigmoid/0.6": {"alpha": 0.6, "beta": 0.1},
    "ThresholdedRelu/-0.5": {"alpha": -0.5},
    "Shrink/1.5": {"lambd": 1.5, "bias": 0.25},
    "Shrink/2": {"lambd": 2.0, "bias": 1.0},
    "IsInf/positive": {"detect_negative": 0},
    "IsInf/negative": {"detect_positive": 0},
    "IsInf/none": {"detect_positive": 0, "detect_negative": 0},
}
# RoundOperand, which ONNX has not, is held to rounding by hand in `test_rounding`.
STANDARD = tuple(row for row in ROWS if not row.domain)
LABELS = sorted({row.name for row in STANDARD} | set(ATTRIBUTES))
ROW = {row.name: row for row in STANDARD}


def values(dtype: np.dtype[Any]) -> Array:
    """Return zeros, ones, ordinary numbers and the extremes of a type."""
    if dtype.kind == "b":
        return np.array([True, False, True])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        below = [-2] if dtype.kind == "i" else []
        return np.array([info.min, info.min + 1, *below, 0, 1, 2, 3, 7, info.max // 2, info.max - 1, info.max], dtype)
    random = np.random.default_rng(7)
    plain = np.concatenate(
        [[0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, 1.5, 2.5, -0.5, -1.5], random.normal(0, 3, 300)]
    )
    return np.concatenate([plain, np.linspace(-1, 1, 21), [1e-6, -1e-6, 20, -20]]).astype(np.float32).astype(dtype)


def expected_of(label: str, x: Array) -> Array | None:
    """Return the answer in extended precision, rounded to the type of x by way of its accumulator."""
    if label not in REFERENCES or x.dtype not in FLOATS:
        return None
    with np.errstate(all="ignore"):
        wide = x.astype(accumulator(x.dtype)).astype(LONG)
        return np.asarray(REFERENCES[label](wide)).astype(accumulator(x.dtype)).astype(x.dtype)


def reference_of(label: str, x: Array) -> Array:
    """Return what onnx.reference makes of x, computed in the accumulator type and rounded once."""
    name = label.partition("/")[0]
    wide = x.astype(accumulator(x.dtype))
    (y,) = expect(Case(label, name, (wide,), ATTRIBUTES.get(label, {})))
    with np.errstate(all="ignore"):
        return y if ROW[name].result is not None else y.astype(x.dtype)


@pytest.mark.parametrize("label", LABELS)
def test_row_matches_its_reference_for_every_dtype(checks: str, label: str) -> None:
    name = label.partition("/")[0]
    for dtype in ROW[name].dtypes:
        x = values(dtype)
        if label.startswith(("Celu", "Elu")):
            x = x[~np.isnan(x.astype(np.float64))]  # the reference's where has no say about NaN
        y = expected_of(label, x)
        if y is None:
            with np.errstate(all="ignore"):
                y = by_hand(label, x)
        run_case(Case(f"{label}-{dtype.name}", name, (x,), ATTRIBUTES.get(label, {}), expected=(y,)), checks)


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.name)
def test_erf_of_old_opsets_takes_integers(checks: str, dtype: np.dtype[Any]) -> None:
    limits = np.iinfo(dtype)
    x = np.array([limits.min, limits.max, 0, 1, 5, 6, 100], dtype)
    y = np.array([-int(limits.min < 0), 1, 0, 0, 0, 1, 1], dtype)
    run_case(Case(f"Erf-{dtype.name}", "Erf", (x,), opset=9, expected=(y,)), checks)


def by_hand(label: str, x: Array) -> Array:
    """Return the answer for integers and exact operators."""
    if label == "Relu":  # the reference keeps -0
        return np.where((x > x.dtype.type(0)) | (x != x), x, np.zeros_like(x))
    if label.startswith("Shrink") and x.dtype.kind in "iu":
        attributes = ATTRIBUTES.get(label, {"lambd": 0.5, "bias": 0.0})
        bias, lambd = (Fraction(attributes[key]) for key in ("bias", "lambd"))
        rows = [each + bias if each < -lambd else each - bias if each > lambd else 0 for each in map(int, x)]
        width = 8 * x.dtype.itemsize
        top = 2**64 - 1 if x.dtype == np.uint64 or bias.denominator == 1 else 2**63 - 1
        # What is beyond 2**53 and gets a fraction is rounded as a double.
        whole = [int(each if bias.denominator == 1 else float(each)) for each in rows]
        return (
            np.array([min(each, top) % 2**width for each in whole], np.uint64)
            .astype(f"u{x.dtype.itemsize}")
            .view(x.dtype)
        )
    if label == "HardSwish" and x.dtype == np.float64:  # the reference has 1/6 in float32
        with np.errstate(all="ignore"):
            return np.asarray(x * np.clip(x * (1 / 6) + 0.5, 0, 1))
    if label == "Round":
        return np.asarray(np.rint(x.astype(accumulator(x.dtype)))).astype(x.dtype)
    if label.startswith("ThresholdedRelu"):
        threshold = ATTRIBUTES.get(label, {"alpha": 1.0})["alpha"]
        return np.where(x.astype(np.float64) > threshold, x, np.zeros_like(x))
    return reference_of(label, x)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 1, 3, 1, 2, 2), (40000,)], ids=str)
@pytest.mark.parametrize("name", ["Exp", "Sigmoid", "IsNaN", "Erf", "Neg"])
def test_shape_stays(checks: str, name: str, shape: tuple[int, ...]) -> None:
    for dtype in (np.float16, np.float32):
        x = np.random.default_rng(1).normal(size=shape).astype(dtype)
        flat = build(name, {}).compute(x.reshape(-1))[0]
        assert flat is not None
        run_case(Case(name, name, (x,), expected=(flat.reshape(shape),)), checks)


@pytest.mark.parametrize("name", ["Exp", "Gelu", "Abs", "IsInf"])
def test_strided_input_gives_the_bits_of_a_dense_one(name: str) -> None:
    x = np.random.default_rng(2).normal(size=(6, 40, 10)).astype(np.float32)[::-2, ::3].transpose(2, 0, 1)
    op = build(name, {})
    np.testing.assert_array_equal(op.compute(x)[0], op.compute(np.ascontiguousarray(x))[0])


@pytest.mark.parametrize("row", [row for row in ROWS if row.result is None], ids=lambda row: row.name)
def test_output_may_be_the_input(row: Any) -> None:
    for dtype in row.dtypes:
        x = np.resize(values(dtype), 20000)
        op = build(row.operator_name, {})
        first = op.compute(x.copy())[0]
        again = op.compute(x, out=(x,))[0]
        assert again is x and first is not None
        np.testing.assert_array_equal(x.view(f"u{dtype.itemsize}"), first.view(f"u{dtype.itemsize}"))


@pytest.mark.parametrize("row", [*STANDARD, *BINARY_ROWS], ids=lambda row: row.name)
def test_dtypes_and_attributes_are_those_of_the_standard(row: Any) -> None:
    schema = onnx.defs.get_schema(row.name)
    (constraint,) = [c for c in schema.type_constraints if c.type_param_str == schema.inputs[0].type_str]
    spelled = {"float": "float32", "double": "float64"}
    allowed = {spelled.get(t[7:-1], t[7:-1]) for t in constraint.allowed_type_strs if t.startswith("tensor(")}
    assert {dtype_row(d).name for d in (*row.dtypes, *row.narrow)} == allowed & {r.name for r in DTYPES}
    assert {name for name, _ in row.attributes} == set(schema.attributes)
    for name, default in row.attributes:
        attribute = schema.attributes[name]
        if attribute.required:
            assert default is str
        else:
            assert (
                np.float32(default) == np.float32(onnx.helper.get_attribute_value(attribute.default_value))
                if not isinstance(default, str)
                else True
            )


def test_error_function_is_within_one_ulp_in_float32() -> None:
    x = np.concatenate([np.linspace(-4.5, 4.5, 20001), np.logspace(-37, 0, 2001), -np.logspace(-37, 0, 2001)]).astype(
        np.float32
    )
    exact = np.array([math.erf(float(each)) for each in x])
    y = build("Erf", {}).compute(x)[0]
    assert y is not None and np.max(np.abs(y - exact) / np.spacing(np.abs(exact).astype(np.float32))) < 1.0


def test_gelu_is_off_by_little_more_than_its_rounded_factor_in_float32() -> None:
    x = np.concatenate([np.linspace(-9, 9, 20001), np.logspace(-37, 38, 2001), -np.logspace(-37, 0, 2001)]).astype(
        np.float32
    )
    exact = np.array([0.5 * each * math.erfc(-each / math.sqrt(2)) for each in x.astype(float)])
    (y,) = build("Gelu", {}).compute(x)
    assert y is not None and np.max(np.abs(y - exact) / np.maximum(np.abs(x), 1e-40)) < 1.25e-7
    (ends,) = build("Gelu", {}).compute(np.array([np.inf, np.nan, 0, -0.0, 3e38], np.float32))
    np.testing.assert_array_equal(ends, np.array([np.inf, np.nan, 0, -0.0, 3e38], np.float32))


@pytest.mark.parametrize(
    ("name", "attributes", "dtype", "message"),
    [
        ("Exp", {}, np.int32, "Exp expects float32"),
        ("Not", {}, np.float32, "Not expects bool"),
        ("BitwiseNot", {}, np.float32, "BitwiseNot expects"),
        ("Shrink", {}, BFLOAT16, "Shrink expects"),
        ("Gelu", {"approximate": "cubic"}, np.float32, "'none' or 'tanh', got 'cubic'"),
    ],
)
def test_wrong_input_is_refused(name: str, attributes: dict[str, Any], dtype: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(name, attributes).infer(TensorSpec((2,), np.dtype(dtype)))


def test_missing_input_is_refused() -> None:
    with pytest.raises(InputError, match="Exp expects 1 input, got 0"):
        build("Exp", {}).infer()
    with pytest.raises(InputError, match="Exp expects 1 input, got 2"):
        build("Exp", {}).infer(TensorSpec((), dtype_row(1).numpy), TensorSpec((), dtype_row(1).numpy))
