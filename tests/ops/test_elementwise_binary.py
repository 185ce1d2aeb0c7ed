"""Operators of two inputs: every row of the table, every dtype, broadcasting, integer corner cases."""

from __future__ import annotations

import operator as python
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpuexec.ops  # noqa: F401
from gpuexec.errors import InputError
from gpuexec.ir.operator import Array, build
from gpuexec.ir.spec import BFLOAT16, TensorSpec, accumulator
from gpuexec.ops.elementwise.elementwise_binary import ROWS
from gpuexec.ops.elementwise.elementwise_engine import FLOATS, INTEGERS
from tests.ops.harness import Case, run_case

ROW = {row.name: row for row in ROWS}
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "Mod/fmod": {"fmod": 1},
    "BitShift": {"direction": "LEFT"},
    "BitShift/right": {"direction": "RIGHT"},
}
LABELS = sorted({row.name for row in ROWS} | set(ATTRIBUTES))


def truncating_quotient(a: int, b: int) -> int:
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def shifted(a: int, amount: int, width: int, is_left: bool) -> int:
    if not 0 <= amount < width:
        return -1 if a < 0 and not is_left else 0
    return a << amount if is_left else a >> amount


# What the operator is, on Python integers of any size; the low bits are kept.
INTEGER_RULES: dict[str, Callable[[int, int, int], int | bool]] = {
    "Add": lambda a, b, _: a + b,
    "Sub": lambda a, b, _: a - b,
    "Mul": lambda a, b, _: a * b,
    "Div": lambda a, b, _: truncating_quotient(a, b),
    "Mod": lambda a, b, _: a % b if b else 0,
    "Mod/fmod": lambda a, b, _: a - b * truncating_quotient(a, b) if b else 0,
    "PRelu": lambda a, b, _: a * b if a < 0 else a,
    "And": lambda a, b, _: bool(a and b),
    "Or": lambda a, b, _: bool(a or b),
    "Xor": lambda a, b, _: bool(a) != bool(b),
    "BitwiseAnd": lambda a, b, _: a & b,
    "BitwiseOr": lambda a, b, _: a | b,
    "BitwiseXor": lambda a, b, _: a ^ b,
    "BitShift": lambda a, b, width: shifted(a, b, width, True),
    "BitShift/right": lambda a, b, width: shifted(a, b, width, False),
    "Equal": lambda a, b, _: a == b,
    "Less": lambda a, b, _: a < b,
    "LessOrEqual": lambda a, b, _: a <= b,
    "Greater": lambda a, b, _: a > b,
    "GreaterOrEqual": lambda a, b, _: a >= b,
}
# The same on floats, in the type the operator computes in.
FLOAT_RULES: dict[str, Callable[[Array, Array], Any]] = {
    "Add": python.add,
    "Sub": python.sub,
    "Mul": python.mul,
    "Div": python.truediv,
    "Mod": lambda a, b: (
        np.where(
            np.fmod(a, b) == 0, np.copysign(a.dtype.type(0), b), np.fmod(a, b) + b * ((np.fmod(a, b) < 0) != (b < 0))
        )
        if np.isfinite(b).all()
        else np.mod(a, b)
    ),
    "Mod/fmod": np.fmod,
    "PRelu": lambda a, b: np.where(a < 0, a * b, a),
    "Equal": python.eq,
    "Less": python.lt,
    "LessOrEqual": python.le,
    "Greater": python.gt,
    "GreaterOrEqual": python.ge,
}


def operands(dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Return a column and a row that meet in every pair of special values."""
    if dtype.kind == "b":
        x = np.array([False, True])
    elif dtype.kind in "iu":
        info = np.iinfo(dtype)
        small = [0, 1, 2, 3, 5, 7, 8, 15, 16, 31, 32, 63, 64]
        x = np.unique(np.array([info.min, info.min + 1, *small, info.max // 3, info.max - 1, info.max], dtype))
        if dtype.kind == "i":
            x = np.concatenate([x, np.array([-1, -2, -7, -9], dtype)])
    else:
        random = np.random.default_rng(3).normal(0, 2, 12)
        x = (
            np.concatenate([[0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2, 3.5, 65504, 1e-5], random])
            .astype(np.float32)
            .astype(dtype)
        )
    return x[:, None], x


def expected_of(label: str, a: Array, b: Array) -> Array:
    """Return the answer, worked out pair by pair for integers."""
    result = ROW[label.partition("/")[0]].result
    if a.dtype in FLOATS:
        wide = accumulator(a.dtype)
        with np.errstate(all="ignore"):
            y = np.asarray(FLOAT_RULES[label](a.astype(wide), b.astype(wide)))
            return y if result is not None else y.astype(a.dtype)
    width = 8 * a.dtype.itemsize
    rows = [[INTEGER_RULES[label](p, q, width) for q in b.reshape(-1).tolist()] for p in a.reshape(-1).tolist()]
    if result is not None or a.dtype.kind == "b":
        return np.array(rows, np.bool_)
    return (
        np.array([[each % 2**width for each in row] for row in rows], np.uint64)
        .astype(f"u{a.dtype.itemsize}")
        .view(a.dtype)
    )


@pytest.mark.parametrize("label", LABELS)
def test_row_matches_its_rule_on_every_pair_of_values(checks: str, label: str) -> None:
    name = label.partition("/")[0]
    for dtype in ROW[name].dtypes:
        a, b = operands(dtype)
        if ROW[name].is_unidirectional:
            a = np.ascontiguousarray(np.broadcast_to(a, (a.size, b.size)))
            expected = expected_of(label, a[:, :1], b)
        else:
            expected = expected_of(label, a, b)
        run_case(Case(f"{label}-{dtype.name}", name, (a, b), ATTRIBUTES.get(label, {}), expected=(expected,)), checks)


SHAPES = [
    ((), ()),
    ((), (3,)),
    ((2, 3), ()),
    ((4, 1), (1, 5)),
    ((2, 3, 4), (4,)),
    ((2, 3, 4), (3, 1)),
    ((0,), (1,)),
    ((2, 0, 3), (3,)),
    ((2, 0, 3), (1, 1, 1)),
    ((2, 1, 3, 1, 2, 1), (1, 2, 1, 2, 1, 3)),
    ((5,), (2, 1, 1, 1, 5)),
    ((1, 1), (1,)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["Add", "Sub", "Div", "Less", "Greater"])
def test_shapes_broadcast_as_the_reference_does(
    checks: str, name: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    random = np.random.default_rng(5)
    for dtype in (np.float32, np.float64):
        a, b = (random.normal(size=shape).astype(dtype) for shape in shapes)
        run_case(Case(f"{name}-{shapes}", name, (a, b)), checks)


@pytest.mark.parametrize("name", ["Add", "Mul", "PRelu", "Div", "BitwiseXor", "BitShift/right"])
def test_output_may_be_the_first_input(name: str) -> None:
    dtype = np.int32 if name.startswith("Bit") else np.float16
    a = (np.random.default_rng(1).normal(size=(20, 30)) * 100).astype(dtype)
    b = (np.random.default_rng(2).normal(size=30) * 3).astype(dtype)
    op = build(name.partition("/")[0], ATTRIBUTES.get(name, {}))
    first = op.compute(a.copy(), b)[0]
    again = op.compute(a, b, out=(a,))[0]
    assert again is a and first is not None
    np.testing.assert_array_equal(a, first)


def test_one_input_given_twice_and_as_output() -> None:
    a = np.arange(6.0)
    assert build("Sub", {}).compute(a, a, out=(a,))[0] is a
    np.testing.assert_array_equal(a, np.zeros(6))


@pytest.mark.parametrize("opset", [7, 13])
def test_old_opsets_need_no_upgrade(checks: str, opset: int) -> None:
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(3, np.float32)
    for name in ("Add", "Mul", "Less", "PRelu"):
        run_case(Case(f"{name}-{opset}", name, (a, b), opset=opset), checks)


@pytest.mark.parametrize(
    ("name", "attributes", "a", "b", "message"),
    [
        (
            "Add",
            {},
            TensorSpec((2,), np.dtype("f4")),
            TensorSpec((2,), np.dtype("f8")),
            "Add expects inputs of one type",
        ),
        ("Add", {}, TensorSpec((2,), np.dtype("f4")), TensorSpec((3,), np.dtype("f4")), "do not broadcast"),
        ("Add", {}, TensorSpec((2,), np.dtype("?")), TensorSpec((2,), np.dtype("?")), "Add expects float32"),
        ("And", {}, TensorSpec((2,), np.dtype("i4")), TensorSpec((2,), np.dtype("i4")), "And expects bool"),
        ("PRelu", {}, TensorSpec((3,), np.dtype("f4")), TensorSpec((2, 3), np.dtype("f4")), "second input only"),
        ("PRelu", {}, TensorSpec((3,), np.dtype("i1")), TensorSpec((3,), np.dtype("i1")), "PRelu expects"),
        (
            "BitShift",
            {"direction": "UP"},
            TensorSpec((), np.dtype("u1")),
            TensorSpec((), np.dtype("u1")),
            "'LEFT' or 'RIGHT', got 'UP'",
        ),
        ("Mod", {"fmod": 2}, TensorSpec((), np.dtype("u1")), TensorSpec((), np.dtype("u1")), "0 or 1, got 2"),
        ("Less", {}, TensorSpec((), np.dtype("?")), TensorSpec((), np.dtype("?")), "Less expects"),
    ],
)
def test_wrong_input_is_refused(
    name: str, attributes: dict[str, Any], a: TensorSpec, b: TensorSpec, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        build(name, attributes).infer(a, b)


def test_shift_direction_is_required() -> None:
    with pytest.raises(InputError, match="BitShift lacks its required attribute direction"):
        build("BitShift", {})


def integer_power(a: int, e: int, width: int) -> int:
    if e < 0:
        return a if a == 1 else (-1 if e % 2 else 1) if a == -1 else 0
    return int(pow(a, e, 2**width))


@pytest.mark.parametrize("base", [np.int32, np.int64])
@pytest.mark.parametrize("exponent", INTEGERS, ids=lambda d: d.name)
def test_integer_power_of_integer_wraps(checks: str, base: Any, exponent: np.dtype[Any]) -> None:
    a = np.array([0, 1, -1, 2, -2, 3, -7, 10, 2**31 - 1, -(2**31)], base)[:, None]
    info = np.iinfo(exponent)
    e = np.array(
        [0, 1, 2, 3, 5, 31, 33, 63, 64, 100, info.max, info.max - 1, *((-1, -2, info.min) if info.min else ())],
        exponent,
    )
    width = 8 * a.itemsize
    rows = [[integer_power(p, q, width) % 2**width for q in e.tolist()] for p in a[:, 0].tolist()]
    expected = np.array(rows, np.uint64).astype(f"u{a.itemsize}").view(base)
    run_case(Case("Pow", "Pow", (a, e), expected=(expected,)), checks)


@pytest.mark.parametrize("base", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("exponent", [*FLOATS, *INTEGERS], ids=lambda d: d.name)
def test_power_of_float_has_the_type_of_the_base(checks: str, base: np.dtype[Any], exponent: np.dtype[Any]) -> None:
    a = np.array([0.0, 0.5, 1, 1.25, 2, 3, 7.5, np.inf, -1, -2.5], np.float32).astype(base)[:, None]
    # Integral: what isn't is told apart below, since NaN comes of a negative base.
    e = np.array([0, 1, 2, 3, 5, 7, *((-1, -3) if exponent.kind != "u" else ())], np.float32).astype(exponent)
    with np.errstate(all="ignore"):
        expected = np.power(a.astype(np.longdouble), e.astype(np.longdouble)).astype(accumulator(base)).astype(base)
    run_case(Case("Pow", "Pow", (a, e), expected=(expected,)), checks)


def test_integer_to_a_fractional_power_is_computed_in_double(checks: str) -> None:
    a = np.array([0, 4, 9, 2**30, -8, 1], np.int64)
    run_case(Case("Pow", "Pow", (a, np.array(0.5, np.float32)), expected=(np.array([0, 2, 3, 2**15, 0, 1]),)), checks)


@pytest.mark.parametrize("exponent", [2.0, 3.0, 0.5, -1.0, 1.5])
def test_one_exponent_for_all(checks: str, exponent: float) -> None:
    a = np.array([0.0, -0.0, 1.5, -2.25, 1e30, np.inf, -np.inf, np.nan, 1e-30], np.float32)
    e = np.array(exponent, np.float32)
    with np.errstate(all="ignore"):
        expected = np.power(a.astype(np.longdouble), np.longdouble(exponent)).astype(np.float32)
    run_case(Case("Pow", "Pow", (a, e), expected=(expected,)), checks)
    run_case(
        Case("Pow", "Pow", (a[:, None], np.full((1, 3), e)), expected=(np.repeat(expected[:, None], 3, 1),)), checks
    )


def test_power_of_an_unsupported_type_is_refused() -> None:
    with pytest.raises(InputError, match="Pow expects a base of"):
        build("Pow", {}).infer(TensorSpec((), np.dtype("u4")), TensorSpec((), np.dtype("f4")))
    with pytest.raises(InputError, match="Pow expects an exponent of"):
        build("Pow", {}).infer(TensorSpec((), BFLOAT16), TensorSpec((), np.dtype("?")))
