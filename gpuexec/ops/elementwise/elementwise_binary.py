"""Table of elementwise operators with two broadcast inputs."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from gpuexec.ir.operator import Array, Derivative, PreparedCalls, Tolerance
from gpuexec.ir.spec import STRING, dtypes_of
from gpuexec.ops.elementwise.elementwise import Form, Row, add_table, unsigned_storage
from gpuexec.ops.elementwise.elementwise_engine import BOOL, FLOATS, INTEGERS, NUMBERS

EXACT = Tolerance.EXACT
_SLOPED = (*FLOATS, *(dtype for dtype in INTEGERS if dtype.itemsize >= 4))  # PRelu takes 32- and 64-bit integers


class _Divide:
    """Division; of integers toward zero, by zero to 0."""

    __slots__ = ()

    def __call__(self, a: Array, b: Array, out: Array) -> None:
        if out.dtype.kind == "f":
            np.divide(a, b, out=out)
            return
        quotient = np.asarray(np.floor_divide(a, b))
        if out.dtype.kind == "i":
            # NumPy rounds down: one too low where the signs differ and something is left.
            has_rest = np.multiply(quotient, b) != a
            quotient = quotient + (has_rest & ((a < 0) != (b < 0)) & (b != 0)).astype(out.dtype)
        np.copyto(out, quotient)

    def bind(self, operands: Sequence[Array], out: Array, constant: Sequence[bool]) -> PreparedCalls:
        a, b = operands
        return [functools.partial(np.divide if out.dtype.kind == "f" else self, a, b, out=out)]


def _prelu(x: Array, slope: Array, out: Array) -> None:
    np.copyto(out, np.where(x < 0, x * slope, x))


def _shift_left(a: Array, amount: Array, out: Array) -> None:
    inside = (amount >= 0) & (amount < 8 * a.dtype.itemsize)
    np.copyto(out, np.where(inside, np.left_shift(a, np.where(inside, amount, 0)), 0))


def _shift_right(a: Array, amount: Array, out: Array) -> None:
    """Shift in the sign where the value is signed."""
    inside = (amount >= 0) & (amount < 8 * a.dtype.itemsize)
    last = a.dtype.type(8 * a.dtype.itemsize - 1)
    beyond = np.right_shift(a, last) if a.dtype.kind == "i" else a.dtype.type(0)
    np.copyto(out, np.where(inside, np.right_shift(a, np.where(inside, amount, 0)), beyond))


def _exact(name: str, function: np.ufunc, neutral: float) -> Row:
    return Row(name, NUMBERS, Form(function, name), storage=unsigned_storage, tolerance=EXACT, neutral=neutral)


def _logical(name: str, function: np.ufunc) -> Row:
    form = Form(function, f"Bitwise{name}")
    return Row(name, (BOOL,), form, storage=unsigned_storage, tolerance=EXACT, derivative=Derivative.ZERO)


def _bitwise(name: str, function: np.ufunc) -> Row:
    form = Form(function, name)
    return Row(name, INTEGERS, form, storage=unsigned_storage, tolerance=EXACT, derivative=Derivative.REFUSED)


def _compare(name: str, function: np.ufunc, functor: str, is_swapped: bool = False) -> Row:
    form, zero = Form(function, functor), Derivative.ZERO
    return Row(name, NUMBERS, form, result=BOOL, tolerance=EXACT, is_swapped=is_swapped, derivative=zero)


ROWS = (
    _exact("Add", np.add, -0.0),  # adding 0.0 makes 0.0 of -0.0
    _exact("Sub", np.subtract, 0.0),
    _exact("Mul", np.multiply, 1.0),
    Row("Div", NUMBERS, Form(_Divide(), "Div"), tolerance=EXACT, neutral=1.0),
    Row(
        "Mod",
        NUMBERS,
        {0: Form(np.mod, "FlooringMod"), 1: Form(np.fmod, "TruncatingMod")},
        (("fmod", 0),),
        choice="fmod",
        tolerance=EXACT,
        derivative=Derivative.REFUSED,
    ),
    Row("PRelu", _SLOPED, Form(_prelu, "PRelu"), tolerance=EXACT, is_unidirectional=True),
    _logical("And", np.logical_and),
    _logical("Or", np.logical_or),
    _logical("Xor", np.logical_xor),
    _bitwise("BitwiseAnd", np.bitwise_and),
    _bitwise("BitwiseOr", np.bitwise_or),
    _bitwise("BitwiseXor", np.bitwise_xor),
    Row(
        "BitShift",
        INTEGERS,
        {"LEFT": Form(_shift_left, "ShiftLeft"), "RIGHT": Form(_shift_right, "ShiftRight")},
        (("direction", str),),
        choice="direction",
        tolerance=EXACT,
        example="int32[2] int32[2] direction='LEFT'",
        derivative=Derivative.REFUSED,
    ),
    Row(
        "Equal",
        (*dtypes_of("bool"), *NUMBERS),
        Form(np.equal, "Equal"),
        storage=unsigned_storage,
        result=BOOL,
        tolerance=EXACT,
        hosted=(STRING,),
        derivative=Derivative.ZERO,
    ),
    _compare("Less", np.less, "Less"),
    _compare("LessOrEqual", np.less_equal, "LessOrEqual"),
    _compare("Greater", np.greater, "Less", is_swapped=True),
    _compare("GreaterOrEqual", np.greater_equal, "LessOrEqual", is_swapped=True),
)

globals().update(add_table(ROWS, "elementwise_binary.cu", "binary", 2, __name__))
