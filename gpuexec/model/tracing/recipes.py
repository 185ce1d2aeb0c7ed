"""Elementwise functions composed of several operators.

Operands are in the dtype of NumPy's loop already. Functions that lose digits near a point (log1p, expm1) are written so
that they do not, and finite results do not overflow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuexec.model.tracing.nodes import add_node
from gpuexec.model.tracing.promotion import BOOL, as_symbolic, cast
from gpuexec.model.tracing.symbolic import SymbolicArray

_UINT8 = np.dtype(np.uint8)


def constant(like: SymbolicArray, value: Any) -> SymbolicArray:
    """Return a scalar of an array's dtype."""
    return as_symbolic(value, like.dtype, like._tracer)


def select(condition: SymbolicArray, x: Any, y: Any) -> SymbolicArray:
    """Return ``x`` where the condition holds, else ``y``; one of them is an array, and gives the dtype."""
    like = x if isinstance(x, SymbolicArray) else y
    first, second = (v if isinstance(v, SymbolicArray) else constant(like, v) for v in (x, y))
    return add_node("Where", condition, first, second, dtype=like.dtype)


def is_float(x: SymbolicArray) -> bool:
    """Return whether the elements are floating-point numbers, bfloat16 among them."""
    return x.dtype.kind not in "iub"


def compare(name: str, x: SymbolicArray, y: SymbolicArray) -> SymbolicArray:
    """Compare; bools as 0 and 1, which ONNX does not."""
    x, y = (cast(v, _UINT8) if v.dtype == BOOL else v for v in (x, y))
    return add_node(name, x, y, dtype=BOOL)


def remainder(x: SymbolicArray, y: SymbolicArray) -> SymbolicArray:
    """Return the remainder with the sign of the divisor. ONNX's has it for integers only."""
    if not is_float(x):
        return add_node("Mod", x, y)
    rest = add_node("Mod", x, y, fmod=1)
    is_other = (rest != 0) & ((rest < 0) != (y < 0))
    return select(is_other, rest + y, rest)


def fmod(x: SymbolicArray, y: SymbolicArray) -> SymbolicArray:
    """Return the remainder with the sign of the dividend."""
    return add_node("Mod", x, y, fmod=1)


def floor_divide(x: SymbolicArray, y: SymbolicArray) -> SymbolicArray:
    """Divide and round down. ONNX's Div rounds integers towards zero."""
    if x.dtype.kind in "ub":
        return add_node("Div", x, y)
    if not is_float(x):
        # The remainders differ where the two ways of rounding do; x less the remainder might be no number of the type.
        is_below = add_node("Not", add_node("Equal", add_node("Mod", x, y), fmod(x, y), dtype=BOOL))
        return add_node("Div", x, y) - cast(is_below, x.dtype)
    rest = add_node("Mod", x, y, fmod=1)
    quotient = (x - rest) / y
    quotient = select((rest != 0) & ((rest < 0) != (y < 0)), quotient - 1, quotient)
    whole = add_node("Floor", quotient)
    whole = select(quotient - whole > 0.5, whole + 1, whole)
    return select(y == 0, x / y, whole)


def shift(x: SymbolicArray, y: SymbolicArray, direction: str) -> SymbolicArray:
    """Shift bits; ONNX does so for unsigned integers alone. Negative ones are shifted right as their complement."""
    if x.dtype.kind == "u":
        return add_node("BitShift", x, y, direction=direction)
    unsigned = np.dtype(f"u{x.dtype}")
    is_flipped = (x < 0) & (direction == "RIGHT")
    plain = select(is_flipped, ~x, x)
    shifted = cast(add_node("BitShift", cast(plain, unsigned), cast(y, unsigned), direction=direction), x.dtype)
    return select(is_flipped, ~shifted, shifted)


def power(x: SymbolicArray, y: SymbolicArray) -> SymbolicArray:
    """Raise to a power; ONNX does so in 32 bits and more, signed."""
    if x.dtype.kind in "iub" and x.dtype not in (np.dtype(np.int32), np.dtype(np.int64)):
        wide = np.int32 if x.dtype.itemsize < 4 else np.int64
        return cast(add_node("Pow", cast(x, wide), cast(y, wide)), x.dtype)
    return add_node("Pow", x, y)


def negative(x: SymbolicArray) -> SymbolicArray:
    """Negate; unsigned integers wrap, as NumPy's do."""
    return constant(x, 0) - x if x.dtype.kind == "u" else add_node("Neg", x)


def absolute(x: SymbolicArray) -> SymbolicArray:
    """Return the absolute value."""
    return x if x.dtype.kind == "u" else add_node("Abs", x)


def whole(name: str, x: SymbolicArray) -> SymbolicArray:
    """Round by an operator; integers are whole already."""
    return add_node(name, x) if is_float(x) else x


def trunc(x: SymbolicArray) -> SymbolicArray:
    """Round towards zero."""
    if not is_float(x):
        return x
    return select(x < 0, add_node("Ceil", x), add_node("Floor", x))


def reciprocal(x: SymbolicArray) -> SymbolicArray:
    """Return the reciprocal, of integers its whole part."""
    return add_node("Reciprocal", x) if is_float(x) else add_node("Div", constant(x, 1), x)


def log1p(x: SymbolicArray) -> SymbolicArray:
    """Return log(1 + x); a factor makes up for what adding 1 rounds away."""
    one_more = x + 1
    is_tiny = one_more == 1
    is_end = isinf(one_more) | (one_more == 0)
    exact = add_node("Log", one_more)
    factor = x / select(is_tiny | is_end, 1, one_more - 1)
    return select(is_tiny, x, select(is_end, exact, exact * factor))


def expm1(x: SymbolicArray) -> SymbolicArray:
    """Return exp(x) - 1; a factor makes up for what the exponential rounds away."""
    power = add_node("Exp", x)
    less = power - 1
    is_plain = (power == 1) | (less == -1) | isinf(power)
    factor = x / add_node("Log", select(is_plain, 2, power))
    return select(power == 1, x, select(is_plain, less, less * factor))


def logarithm(x: SymbolicArray, base: int) -> SymbolicArray:
    """Return the logarithm to a base; of its powers exactly the exponent, so that it may be rounded down."""
    exponent = add_node("Log", x) / float(np.log(base))
    nearest = add_node("Round", exponent)
    return select(add_node("Pow", constant(x, base), nearest) == x, nearest, exponent)


def copysign(x: SymbolicArray, y: SymbolicArray) -> SymbolicArray:
    """Return x with the sign of y, that of a zero too. A NaN has none."""
    is_negative = (y < 0) | ((y == 0) & (add_node("Reciprocal", y) < 0))
    size = add_node("Abs", x)
    return select(is_negative, add_node("Neg", size), size)


def logaddexp(x: SymbolicArray, y: SymbolicArray) -> SymbolicArray:
    """Return log(exp(x) + exp(y)) without overflow."""
    top = add_node("Max", x, y)
    apart = select(x == y, 0, add_node("Neg", add_node("Abs", x - y)))
    return top + log1p(add_node("Exp", apart))


def hypot(x: SymbolicArray, y: SymbolicArray) -> SymbolicArray:
    """Return the hypotenuse sqrt(x * x + y * y) without overflow."""
    x, y = add_node("Abs", x), add_node("Abs", y)
    long, short = add_node("Max", x, y), add_node("Min", x, y)
    is_end = (long == 0) | isinf(long)
    ratio = short / select(is_end, 1, long)
    return select(is_end, long, long * add_node("Sqrt", ratio * ratio + 1))


def arctan2(y: SymbolicArray, x: SymbolicArray) -> SymbolicArray:
    """Return the angle of the point (x, y), from -pi to pi. A zero has no sign here, and two infinities no angle."""
    plain = add_node("Atan", y / select(x == 0, 1, x))
    turned = select(y < 0, plain - float(np.pi), plain + float(np.pi))
    upright = select(y > 0, constant(y, np.pi / 2), select(y < 0, -np.pi / 2, select(x == 0, y * 0, y)))
    return select(x == 0, upright, select(x < 0, turned, plain))


def ignore_nan(name: str, x: SymbolicArray, y: SymbolicArray) -> SymbolicArray:
    """Choose by Max or Min, and of a NaN and a number the number."""
    if not is_float(x):
        return add_node(name, x, y)
    return select(isnan(x), y, select(isnan(y), x, add_node(name, x, y)))


def isnan(x: SymbolicArray) -> SymbolicArray:
    """Test which elements are NaN; no integer is."""
    return add_node("IsNaN", x, dtype=BOOL) if is_float(x) else add_node("Not", add_node("Equal", x, x, dtype=BOOL))


def isinf(x: SymbolicArray) -> SymbolicArray:
    """Test which elements are infinite; no integer is."""
    if not is_float(x):
        return isnan(x)
    if x.dtype.itemsize == 2:
        # ONNX's IsInf takes 16-bit types only from opset 20 on, and other engines lag behind.
        x = cast(x, np.float32)
    return add_node("IsInf", x, dtype=BOOL)
