"""Selection and casts: Where, Clip, Cast, CastLike, BitCast, Identity, and the variadic folds."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import gpuexec.ops  # noqa: F401
from gpuexec.errors import InputError
from gpuexec.ir.apply import infer_specs
from gpuexec.ir.operator import Array, build, find_operator
from gpuexec.ir.spec import BFLOAT16, COMPUTED, TensorSpec, accumulator, dtype_row
from gpuexec.ops.elementwise.elementwise_engine import FLOATS, NUMBERS
from tests.ops.harness import Case, run_case

ALL = [row.numpy for row in COMPUTED]
RANDOM = np.random.default_rng(11)


def numbers(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int = 0) -> Array:
    """Return ordinary values of a type, no two of them zeros of different sign."""
    random = np.random.default_rng(seed)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(np.bool_)
    if dtype.kind == "u":
        return random.integers(0, 100, shape).astype(dtype)
    return np.asarray(random.normal(0, 20, shape) + 0.1).astype(np.float32).astype(dtype)


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_where_selects_for_every_dtype(checks: str, dtype: np.dtype[Any]) -> None:
    condition = np.array([[True], [False], [True]])
    a, b = numbers(dtype, (3, 4)), numbers(dtype, (4,), 1)
    expected = np.stack([a[0], b, a[2]])
    run_case(Case(dtype.name, "Where", (condition, a, b), expected=(expected,)), checks)


@pytest.mark.parametrize(
    "shapes",
    [((), (), ()), ((), (3,), (2, 1)), ((0,), (1,), ()), ((2, 1, 2, 1, 3), (2, 1, 1), (1, 2, 1, 1, 3))],
    ids=str,
)
def test_where_broadcasts_three_ways(checks: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    condition, a, b = (numbers(np.dtype(t), s, i) for i, (t, s) in enumerate(zip("?ff", shapes, strict=True)))
    run_case(Case(str(shapes), "Where", (condition, a, b)), checks)


def test_where_keeps_the_bits_of_a_nan() -> None:
    a = np.array([0x7FC01234, 0xFF800001], np.uint32).view(np.float32)
    y = build("Where", {}).compute(np.array([True, False]), a, a[::-1])[0]
    assert y is not None
    np.testing.assert_array_equal(y.view(np.uint32), [0x7FC01234, 0x7FC01234])


def test_where_may_write_over_either_value() -> None:
    condition = np.array([True, False, True])
    for k in (0, 1):
        values = [np.array([1, 2, 3]), np.array([4, 5, 6])]
        y = build("Where", {}).compute(condition, *values, out=(values[k],))[0]
        assert y is values[k]
        np.testing.assert_array_equal(y, [1, 5, 3])


@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda d: d.name)
@pytest.mark.parametrize("bounds", ["both", "low", "high", "none", "crossed"])
def test_clip_for_every_dtype(checks: str, dtype: np.dtype[Any], bounds: str) -> None:
    x = numbers(dtype, (5, 7))
    low, high = np.array(9, np.float32).astype(dtype), np.array(30, np.float32).astype(dtype)
    if bounds == "crossed":
        low, high = high, low
    inputs = (x, None if bounds in ("high", "none") else low, None if bounds in ("low", "none") else high)
    wide = x.astype(np.float64)
    if inputs[1] is not None:
        wide = np.maximum(wide, float(low))
    if inputs[2] is not None:
        wide = np.minimum(wide, float(high))
    run_case(Case(f"{dtype.name}-{bounds}", "Clip", inputs, expected=(wide.astype(dtype),)), checks)


def test_clip_keeps_nan_and_takes_infinite_bounds(checks: str) -> None:
    x = np.array([np.nan, -np.inf, np.inf, -0.0, 5], np.float32)
    one = np.float32(1)
    run_case(
        Case(
            "nan",
            "Clip",
            (x, np.array(-one), np.array(one)),
            expected=(np.array([np.nan, -1, 1, -0.0, 1], np.float32),),
        ),
        checks,
    )
    run_case(
        Case("inf", "Clip", (x, np.array(-np.inf, np.float32), np.array(np.inf, np.float32)), expected=(x,)), checks
    )
    run_case(
        Case("nan bound", "Clip", (x, np.array(np.nan, np.float32)), expected=(np.full(5, np.nan, np.float32),)), checks
    )


@pytest.mark.parametrize("size", [11, 70003])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_clip_has_the_bits_of_an_extreme_by_each_bound(dtype: Any, size: int) -> None:
    special = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, -np.nan, 1e-45, 7, -7], dtype)
    x, operator, bits = np.resize(special, size), build("Clip", {}), f"u{special.itemsize}"
    for low, high in itertools.product(special, special):
        (y,) = operator.compute(x, np.asarray(low), np.asarray(high))
        expected = np.minimum(np.maximum(x, low), high)
        assert y is not None
        np.testing.assert_array_equal(y.view(bits), expected.view(bits))


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_clip_takes_the_bound_of_two_equal_zeros(checks: str, zero: float) -> None:
    x, bound = np.array([0.0, -0.0], np.float32), np.array(zero, np.float32)
    for name, inputs in (("low", (x, bound)), ("high", (x, None, bound))):
        run_case(Case(name, "Clip", inputs, expected=(np.array([zero, zero], np.float32),)), checks)


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 1, 3, 1, 2)], ids=str)
def test_clip_of_any_shape(checks: str, shape: tuple[int, ...]) -> None:
    x = numbers(np.dtype(np.float64), shape)
    run_case(Case(str(shape), "Clip", (x, np.array(-1.0), np.array([2.0])), expected=(np.clip(x, -1, 2),)), checks)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("attributes", [{"min": -0.3, "max": 0.7}, {"min": 0.1}, {"max": 0.2}, {}], ids=str)
def test_clip_of_old_opsets_has_bounds_as_attributes(
    checks: str, dtype: np.dtype[Any], attributes: dict[str, float]
) -> None:
    x = (numbers(dtype, (4, 4)).astype(np.float32) / 20).astype(dtype)
    low, high = (np.float32(attributes[k]).astype(dtype) if k in attributes else None for k in ("min", "max"))
    expected = x.astype(np.float64)
    expected = expected if low is None else np.maximum(expected, float(low))
    expected = expected if high is None else np.minimum(expected, float(high))
    run_case(
        Case(f"{dtype.name}-{attributes}", "Clip", (x,), attributes, opset=10, expected=(expected.astype(dtype),)),
        checks,
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("attributes", [{}, {"min": -2.0}, {"max": 2.0}], ids=str)
def test_clip_of_old_opsets_is_bounded_by_the_limits_of_float(
    checks: str, dtype: np.dtype[Any], attributes: dict[str, float]
) -> None:
    limit = float(np.finfo(np.float32).max)  # the attributes' default
    low, high = attributes.get("min", -limit), attributes.get("max", limit)
    x = np.array([-np.inf, np.inf, -5, 5, np.nan], dtype)
    with np.errstate(over="ignore"):
        bounds = np.array([low, high], np.float32).astype(dtype)
    expected = np.array([*bounds, max(low, -5), min(high, 5), np.nan], dtype)
    run_case(Case(f"{dtype.name}-{attributes}", "Clip", (x,), attributes, opset=7, expected=(expected,)), checks)


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ((TensorSpec((2,), np.dtype("?")),), "Clip expects float32"),
        ((TensorSpec((2,), np.dtype("f4")), TensorSpec((), np.dtype("f8"))), "min of type float32, got float64"),
        ((TensorSpec((2,), np.dtype("f8")), None, TensorSpec((), np.dtype("f4"))), "max of type float64, got float32"),
        ((TensorSpec((2,), np.dtype("f4")), TensorSpec((2,), np.dtype("f4"))), "min to hold one element"),
        ((), r"Clip expects inputs x, \[low\], \[high\], got 0"),
    ],
)
def test_clip_refuses(specs: tuple[TensorSpec | None, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        infer_specs(build("Clip", {}), specs)


def cast_by_hand(x: Array, to: np.dtype[Any]) -> Array:
    """Convert element by element, integers as Python integers of any size."""
    if x.dtype == to:
        return x
    wide = x.astype(accumulator(x.dtype))
    if to.kind == "b":
        return np.array([each != 0 for each in wide.tolist()], np.bool_).reshape(x.shape)
    if to.kind in "iu":
        rows = [whole(each, to) % 2 ** (8 * to.itemsize) for each in wide.reshape(-1).tolist()]
        return np.array(rows, np.uint64).astype(f"u{to.itemsize}").view(to).reshape(x.shape)
    with np.errstate(all="ignore"):
        return wide.astype(np.float32).astype(to) if to == BFLOAT16 else wide.astype(to)


def whole(value: float | int, to: np.dtype[Any]) -> int:
    if isinstance(value, int):
        return value
    if value != value:
        return 0
    top = 2**64 - 1 if to == np.uint64 else 2**63 - 1
    return top if value >= top else -(2**63) if value <= -(2**63) else int(value)


def special_values(dtype: np.dtype[Any]) -> Array:
    if dtype.kind == "b":
        return np.array([True, False])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.array([info.min, info.min + 1, 0, 1, 2, 100, 127, info.max // 2, info.max - 1, info.max], dtype)
    plain = [0.0, -0.0, 0.4, -0.4, 1, -1, 1.5, 2.5, -127.9, 255.5, 256, 300, -300, 65504, 1e-8, 6e-8, 3.3e4, 7e4]
    far = [3e9, -3e9, 2.0**53 + 2, 1e19, -1e19, 2.0**63, -(2.0**63), 2.0**64, 1e30, np.inf, -np.inf, np.nan]
    precise = [1 + 2.0**-8 + 2.0**-30, 1 + 2.0**-11 + 2.0**-40, 65519.99, 1e300, 5e-324, 1e-320]
    with np.errstate(all="ignore"):
        return np.array(plain + far + precise).astype(dtype)


@pytest.mark.parametrize("source", ALL, ids=lambda d: d.name)
def test_cast_to_every_dtype(checks: str, source: np.dtype[Any]) -> None:
    x = special_values(source)
    for to in ALL:
        case = Case(
            f"{source.name}-{to.name}", "Cast", (x,), {"to": dtype_row(to).code}, expected=(cast_by_hand(x, to),)
        )
        run_case(case, checks)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (2, 1, 3, 1, 2)], ids=str)
def test_cast_of_any_shape(checks: str, shape: tuple[int, ...]) -> None:
    x = numbers(np.dtype(np.float32), shape)
    run_case(Case(str(shape), "Cast", (x,), {"to": 7}, expected=(x.astype(np.int64),)), checks)


def test_double_becomes_half_in_one_rounding_and_bfloat16_in_two() -> None:
    x = np.array([1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-8 + 2.0**-30])
    half = build("Cast", {"to": 10}).compute(x)[0]
    short = build("Cast", {"to": 16}).compute(x)[0]
    assert half is not None and short is not None
    assert half[0] == np.float16(1 + 2.0**-10) and float(short[1]) == 1.0


def test_cast_like_takes_the_type_alone(checks: str) -> None:
    x, like = np.array([1.7, -2.3]), np.zeros((3, 3), np.int16)
    run_case(Case("like", "CastLike", (x, like), expected=(np.array([1, -2], np.int16),)), checks)


@pytest.mark.parametrize("to", [0, 14, 99])
def test_cast_to_an_unsupported_type_is_refused(to: int) -> None:
    with pytest.raises(InputError, match="is not supported"):
        build("Cast", {"to": to}).infer(TensorSpec((), np.dtype("f4")))


def test_cast_without_a_type_is_refused() -> None:
    with pytest.raises(InputError, match="Cast lacks its required attribute to"):
        build("Cast", {})


@pytest.mark.parametrize("source", ALL, ids=lambda d: d.name)
def test_bit_cast_to_every_dtype_of_the_width(checks: str, source: np.dtype[Any]) -> None:
    x = special_values(source)
    for to in (each for each in ALL if each.itemsize == source.itemsize):
        bits = np.array([byte != 0 for byte in x.tobytes()]) if to == np.bool_ else np.frombuffer(x.tobytes(), to)
        run_case(
            Case(f"{source.name}-{to.name}", "BitCast", (x,), {"to": dtype_row(to).code}, expected=(bits,)), checks
        )


@pytest.mark.parametrize(
    "x", [np.float32(1.5), np.zeros((2, 0), np.float32), numbers(np.dtype("f4"), (6, 4))[::-2, ::3]]
)
def test_bit_cast_of_any_shape(checks: str, x: Array) -> None:
    x = np.asarray(x)
    run_case(
        Case(str(x.shape), "BitCast", (x,), {"to": 6}, expected=(np.ascontiguousarray(x).view("i4").reshape(x.shape),)),
        checks,
    )


def test_bit_cast_to_bool_leaves_no_other_byte_than_0_and_1() -> None:
    y = build("BitCast", {"to": 9}).compute(np.array([0, 1, 2, 255], np.uint8))[0]
    assert y is not None and y.view(np.uint8).tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("to", "message"), [(11, "one width, got float32 of 32 bits and float64 of 64"), (8, "is not supported")]
)
def test_bit_cast_to_another_width_is_refused(to: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build("BitCast", {"to": to}).infer(TensorSpec((), np.dtype("f4")))


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_identity_for_every_dtype(checks: str, dtype: np.dtype[Any]) -> None:
    for shape in ((), (0, 2), (3, 4)):
        x = numbers(dtype, shape)
        run_case(Case(dtype.name, "Identity", (x,), expected=(x,)), checks)


def fold_by_hand(name: str, arrays: list[Array]) -> Array:
    """Fold in the accumulator type, from left to right."""
    wide = [x.astype(accumulator(x.dtype)) for x in arrays]
    result = wide[0]
    for x in wide[1:]:
        result = {"Max": np.maximum, "Min": np.minimum}.get(name, np.add)(result, x)
    if name == "Mean":
        result = result / result.dtype.type(len(arrays))
    return np.asarray(result).astype(arrays[0].dtype)


FOLDS = [(name, dtype) for name in ("Sum", "Mean", "Max", "Min") for dtype in (find_operator(name).dtypes)]  # type: ignore[union-attr]


@pytest.mark.parametrize(("name", "dtype"), FOLDS, ids=lambda each: getattr(each, "name", each))
@pytest.mark.parametrize("count", [1, 2, 3, 8, 9, 17])
def test_fold_of_any_number_of_inputs(checks: str, name: str, dtype: np.dtype[Any], count: int) -> None:
    shapes = [(2, 3), (3,), (2, 1), ()]
    arrays = [numbers(dtype, shapes[i % 4], i) for i in range(count)]
    run_case(Case(f"{name}-{dtype.name}-{count}", name, tuple(arrays), expected=(fold_by_hand(name, arrays),)), checks)


@pytest.mark.parametrize("name", ["Max", "Min"])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_nan_of_any_input_wins(checks: str, name: str, dtype: np.dtype[Any]) -> None:
    a = np.array([np.nan, 1, np.inf, 2], np.float32).astype(dtype)
    b = np.array([1, np.nan, -np.inf, 3], np.float32).astype(dtype)
    ends = [np.inf, 3] if name == "Max" else [-np.inf, 2]
    expected = np.array([np.nan, np.nan, *ends], np.float32).astype(dtype)
    run_case(Case(name, name, (a, b), expected=(expected,)), checks)


@pytest.mark.parametrize("shapes", [((),), ((0,), (1,)), ((2, 0), (2, 1), (1,)), ((2, 1, 3, 1, 2, 1), (4,))], ids=str)
@pytest.mark.parametrize("name", ["Sum", "Mean", "Max", "Min"])
def test_fold_broadcasts_as_the_reference_does(checks: str, name: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    arrays = [numbers(np.dtype(np.float32), shape, i) for i, shape in enumerate(shapes)]
    run_case(Case(name, name, tuple(arrays), expected=(fold_by_hand(name, arrays),)), checks)


def test_mean_of_half_is_rounded_once(checks: str) -> None:
    arrays = [np.array([2048], np.float16), *[np.array([1], np.float16)] * 3]
    run_case(Case("mean", "Mean", tuple(arrays), expected=(np.array([2051 / 4]).astype(np.float16),)), checks)


def test_fold_may_write_over_any_input() -> None:
    for k in range(3):
        arrays = [np.array([1.0, 5.0]), np.array([3.0, 2.0]), np.array([2.0, 9.0])]
        y = build("Sum", {}).compute(*arrays, out=(arrays[k],))[0]
        assert y is arrays[k]
        np.testing.assert_array_equal(y, [6, 16])


def test_fold_without_inputs_is_refused() -> None:
    with pytest.raises(InputError, match="Max expects one input or more"):
        build("Max", {}).infer()
    with pytest.raises(InputError, match="Sum expects float32"):
        build("Sum", {}).infer(TensorSpec((), np.dtype("i4")))
