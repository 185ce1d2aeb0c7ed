"""Casts to and from narrow types, by hand in exact arithmetic, and queries of 8-bit floats."""

from __future__ import annotations

import functools
from bisect import bisect_right
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import gpuexec.ops  # noqa: F401
from gpuexec.errors import InputError
from gpuexec.ir.operator import Array, build
from gpuexec.ir.spec import COMPUTED, DTYPES, dtype_row
from gpuexec.ops.quant.narrow_types import FLOAT8
from tests.ops.harness import Case, run_case

NARROW = [row for row in DTYPES if row.is_narrow]
FLOATS = [row for row in NARROW if row.kind == "narrow float" and row.name != "float8e8m0"]
INTEGERS = [row for row in NARROW if row.kind != "narrow float"]
POWER = dtype_row("float8e8m0")
# Bits of exponent and mantissa, bias, code of the largest number, of infinity and of NaN (None: there is none).
FORMS: dict[str, tuple[int, int, int, int, int | None, int | None]] = {
    "float8e4m3fn": (4, 3, 7, 0x7E, None, 0x7F),
    "float8e4m3fnuz": (4, 3, 8, 0x7F, None, 0x80),
    "float8e5m2": (5, 2, 15, 0x7B, 0x7C, 0x7E),
    "float8e5m2fnuz": (5, 2, 16, 0x7F, None, 0x80),
    "float4e2m1": (2, 1, 1, 0x07, None, None),
    "float6e2m3": (2, 3, 1, 0x1F, None, None),
    "float6e3m2": (3, 2, 3, 0x1F, None, None),
}


def every_code(row: Any) -> Array:
    """Return all elements of a narrow type."""
    return np.arange(1 << row.width, dtype=np.uint8).view(row.numpy)


def magnitude(name: str, code: int) -> Fraction:
    """Return the number of a code without sign, by the format's definition; beyond the largest, what would follow."""
    _, mantissa_bits, bias, *_ = FORMS[name]
    exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
    if exponent == 0:
        return Fraction(mantissa, 1 << mantissa_bits) * Fraction(2) ** (1 - bias)
    return (1 + Fraction(mantissa, 1 << mantissa_bits)) * Fraction(2) ** (exponent - bias)


@functools.cache
def magnitudes(name: str) -> list[Fraction]:
    """Return the numbers of all codes without sign up to the largest, and the two that would follow."""
    return [magnitude(name, code) for code in range(FORMS[name][3] + 3)]


def value_of(row: Any, code: int) -> float:
    """Return the number a code stands for."""
    if row.kind == "narrow uint":
        return float(code)
    if row.kind == "narrow int":
        return float(code - (1 << row.width) if code >> (row.width - 1) else code)
    if row.name == POWER.name:
        return float("nan") if code == 0xFF else 2.0 ** (code - 127)
    exponent_bits, mantissa_bits, _, largest, infinity, nan = FORMS[row.name]
    sign_bit = 1 << (exponent_bits + mantissa_bits)
    size, sign = code & (sign_bit - 1), -1.0 if code & sign_bit else 1.0
    if row.name.endswith("fnuz") and code == nan:
        return float("nan")
    if size > largest:
        return sign * float("inf") if size == infinity else float("nan")
    return sign * float(magnitude(row.name, size))


def round_by_hand(x: Any, name: str, saturate: int) -> int:
    """Return the code of the nearest number, halves to even, as ONNX's table has the rest."""
    exponent_bits, mantissa_bits, _, largest, infinity, nan = FORMS[name]
    sign_bit = 1 << (exponent_bits + mantissa_bits)
    is_fnuz = name.endswith("fnuz")
    if x != x:
        return sign_bit if nan is None else nan  # whatever the sign
    sign = sign_bit * bool(np.signbit(x) if isinstance(x, (float, np.floating)) else x < 0)
    code = largest + 1
    if not isinstance(x, (float, np.floating)) or np.isfinite(x):
        exact = abs(Fraction(x))
        low = min(bisect_right(magnitudes(name), exact) - 1, largest + 1)
        below, above = magnitudes(name)[low : low + 2]
        is_next = exact - below > above - exact or (exact - below == above - exact and low % 2 == 1)
        code = low + is_next
    if code > largest:
        if saturate or nan is None:
            code = largest
        elif is_fnuz:
            return nan
        else:
            code = nan if infinity is None else infinity
    return 0 if is_fnuz and code == 0 else sign | code


def power_by_hand(x: Any, saturate: int, round_mode: str) -> int:
    """Return the code of a power of two, for what is not negative."""
    if x != x:
        return 0xFF
    if isinstance(x, float) and x == float("inf"):
        return 0xFE if saturate else 0xFF
    exact = Fraction(x)
    if exact < Fraction(1, 2**127):
        return 0 if saturate else 0xFF
    low = exact.numerator.bit_length() - exact.denominator.bit_length()
    low -= Fraction(2) ** low > exact
    rest = exact / Fraction(2) ** low
    low += rest > 1 if round_mode == "up" else rest >= Fraction(3, 2) if round_mode == "nearest" else 0
    return low + 127 if low <= 127 else (0xFE if saturate else 0xFF)


@functools.cache
def numbers(dtype: np.dtype[Any], *, are_negative: bool = True) -> Array:
    """Return numbers that tell: ties of narrow floats and what is beside them, extremes, infinity and NaN."""
    if dtype.kind == "b":
        return np.array([False, True, True])
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        some = [0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 100, 127, 200, 464, 465, 57344, 61440, 61441, 2**24 + 1, 2**53 + 1]
        some += [limits.max, limits.max - 1]
        signed = [*some, *(-each for each in some if are_negative), *([limits.min] if are_negative else [])]
        return np.array([each for each in signed if limits.min <= each <= limits.max], dtype)
    codes = [magnitude(name, code) for name in FORMS for code in range(FORMS[name][3] + 2)]
    ties = sorted({(a + b) / 2 for a, b in zip(sorted(codes), sorted(codes)[1:], strict=False)})
    exact = np.array([float(each) for each in [*codes, *ties, Fraction(2) ** 127 * 3 / 2, Fraction(2) ** -127]])
    with np.errstate(all="ignore"):
        plain = exact.astype(dtype)
        bits = np.dtype(f"u{dtype.itemsize}")
        near = np.concatenate(
            [plain, (plain.view(bits) + bits.type(1)).view(dtype), (plain.view(bits) - bits.type(1)).view(dtype)]
        )
        rest = np.array([np.inf, np.nan, 1e-45, 6e-39, 8.5e-39, 9e-39, 2.0**-126, 1e30, 2.0**127]).astype(dtype)
    some_of_them = np.random.default_rng(5).permutation(near)[:150]
    found = np.concatenate([some_of_them, rest])
    return np.concatenate([found, -found]) if are_negative else found[~np.signbit(found) | np.isnan(found)]


def plain(item: Any) -> Any:
    """Return a number of Python that is exactly this element."""
    return int(item) if item.dtype.kind in "biu" else float(item)


def low_bits(item: Any, width: int) -> int:
    if item.dtype.kind not in "biu":
        number = float(item)
        whole = (
            0
            if number != number
            else 2**63 - 1
            if number >= 2.0**63
            else -(2**63)
            if number < -(2.0**63)
            else int(number)
        )
    else:
        whole = int(item)
    return whole & ((1 << width) - 1)


def codes(values: list[int], row: Any) -> Array:
    return np.array(values, np.uint8).view(row.numpy)


def cast(x: Array, row: Any, expected: Array, **attributes: Any) -> Case:
    id = "_".join(map(str, (dtype_row(x.dtype).name, row.name, *attributes.values())))
    return Case(id, "Cast", (x,), {"to": row.code, **attributes}, expected=(expected,))


@pytest.mark.parametrize("row", NARROW, ids=lambda row: row.name)
def test_every_code_is_the_number_of_its_format(checks: str, row: Any) -> None:
    x = every_code(row)
    expected = np.array([value_of(row, code) for code in range(x.size)])
    for name in ("float32", "float64", "float16", "bfloat16"):
        to = dtype_row(name)
        with np.errstate(all="ignore"):
            run_case(cast(x, to, expected.astype(np.float32).astype(to.numpy)), checks)


@pytest.mark.parametrize("name", [row.name for row in COMPUTED if row.kind != "float"])
@pytest.mark.parametrize("row", NARROW, ids=lambda row: row.name)
def test_narrow_types_become_integers_by_their_low_bits(checks: str, row: Any, name: str) -> None:
    to, x = dtype_row(name), every_code(row)
    values = np.array([value_of(row, code) for code in range(x.size)], np.float32)
    if name == "bool":
        expected = values != 0
    else:
        largest = 2**64 - 1 if name == "uint64" else 2**63 - 1
        kept = [0.0 if v != v else min(max(v, -(2.0**63)), 2.0**65) for v in values.tolist()]
        whole = [min(int(v), largest) for v in kept]
        expected = (
            np.array([v & (2**to.width - 1) for v in whole], np.uint64).astype(f"u{to.numpy.itemsize}").view(to.numpy)
        )
    run_case(cast(x, to, expected), checks)


@pytest.mark.parametrize("saturate", [1, 0])
@pytest.mark.parametrize("row", FLOATS, ids=lambda row: row.name)
def test_narrow_floats_are_the_nearest_numbers(checks: str, row: Any, saturate: int) -> None:
    for source in COMPUTED:
        x = numbers(source.numpy)
        expected = codes([round_by_hand(plain(each), row.name, saturate) for each in x], row)
        run_case(cast(x, row, expected, saturate=saturate), checks)


@pytest.mark.parametrize("round_mode", ["up", "down", "nearest"])
@pytest.mark.parametrize("saturate", [1, 0])
def test_powers_of_two_are_rounded_as_asked_for(checks: str, saturate: int, round_mode: str) -> None:
    for source in COMPUTED:
        x = numbers(source.numpy, are_negative=False)
        expected = codes([power_by_hand(plain(each), saturate, round_mode) for each in x], POWER)
        run_case(cast(x, POWER, expected, saturate=saturate, round_mode=round_mode), checks)


@pytest.mark.parametrize("row", INTEGERS, ids=lambda row: row.name)
def test_narrow_integers_are_the_low_bits(checks: str, row: Any) -> None:
    for source in COMPUTED:
        x = numbers(source.numpy)
        run_case(cast(x, row, codes([low_bits(each, row.width) for each in x], row)), checks)


@pytest.mark.parametrize("row", NARROW, ids=lambda row: row.name)
def test_narrow_types_become_each_other(checks: str, row: Any) -> None:
    for source in NARROW:
        x = every_code(source)
        values = [value_of(source, code) for code in range(x.size)]
        if source is row:
            expected = x
        elif row.kind != "narrow float":
            expected = codes([low_bits(np.float64(v), row.width) for v in values], row)
        elif row is POWER:
            values = [abs(v) for v in values]
            expected = codes([power_by_hand(v, 1, "up") for v in values], row)
        else:
            signs = [
                np.copysign(v, -1.0) if np.signbit(each) else v
                for v, each in zip(values, x.astype(np.float32), strict=True)
            ]
            expected = codes([round_by_hand(v, row.name, 1) for v in signs], row)
        run_case(cast(x, row, expected), checks)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (3, 7), (2, 1, 3, 1, 2, 1, 2, 2)], ids=str)
@pytest.mark.parametrize(
    ("source", "to"),
    [
        ("float32", "float8e5m2"),
        ("int4", "float16"),
        ("float64", "uint2"),
        ("float4e2m1", "float32"),
        ("float6e3m2", "bool"),
    ],
)
def test_casts_of_any_shape(checks: str, source: str, to: str, shape: tuple[int, ...]) -> None:
    x = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype_row(source).numpy)
    case = cast(x, dtype_row(to), x.astype(np.float32).astype(dtype_row(to).numpy))
    run_case(case, checks)
    run_case(Case("like", "CastLike", (x, np.zeros(2, dtype_row(to).numpy)), expected=case.expected), checks)


def test_bits_that_no_element_needs_do_not_count(checks: str) -> None:
    """Memory from elsewhere may have anything in them."""
    for row in (row for row in NARROW if row.width < 8):
        x = np.arange(256, dtype=np.uint8)
        expected = np.array([value_of(row, int(code) & ((1 << row.width) - 1)) for code in x], np.float32)
        run_case(cast(x.view(row.numpy), dtype_row("float32"), expected), checks)


def test_opset_of_old_saturates(checks: str) -> None:
    x = np.array([1e6, -1e6], np.float32)
    expected = codes([0x7E, 0xFE], dtype_row("float8e4m3fn"))
    run_case(Case("opset19", "Cast", (x,), {"to": 17}, opset=19, expected=(expected,)), checks)


@pytest.mark.parametrize("name", ["Cast", "CastLike"])
def test_unknown_rounding_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} expects round_mode 'up', 'down', 'nearest', got 'even'"):
        build(name, {"round_mode": "even", **({"to": 24} if name == "Cast" else {})})


@pytest.mark.parametrize("dtype", FLOAT8, ids=lambda each: each.name)
def test_nan_and_infinity_are_found(checks: str, dtype: np.dtype[Any]) -> None:
    row = dtype_row(dtype)
    x = every_code(row)
    values = np.array([value_of(row, code) for code in range(256)])
    run_case(Case("nan", "IsNaN", (x,), expected=(np.isnan(values),)), checks)
    run_case(Case("inf", "IsInf", (x,), expected=(np.isinf(values),)), checks)
    run_case(Case("positive", "IsInf", (x,), {"detect_negative": 0}, expected=(np.isposinf(values),)), checks)


@pytest.mark.parametrize("dtype", FLOAT8, ids=lambda each: each.name)
def test_dropout_scales_what_it_keeps(checks: str, dtype: np.dtype[Any]) -> None:
    x = (np.arange(400) % 7 + 1).astype(dtype)
    op = build("Dropout", {"seed": 3})
    ratio, mode = np.array(0.5, np.float32), np.array(True)
    y, mask = op.compute(x, ratio, mode)
    assert y is not None and mask is not None and 100 < mask.sum() < 300
    np.testing.assert_array_equal(y.astype(np.float32), np.where(mask, 2 * x.astype(np.float32), 0))
    case = Case(dtype.name, "Dropout", (x, ratio, mode), {"seed": 3}, (1, 2), (True, True), expected=(y, mask))
    run_case(case, checks)
