"""Elementwise functions under NumPy's names, with NumPy's dtypes.

A row is NumPy's function and how its operands, cast to the loop's dtypes, become nodes. A single operator is a
name; the rest is composed in `recipes`.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from gpuexec.errors import InputError
from gpuexec.model.tracing import recipes
from gpuexec.model.tracing.nodes import add_node
from gpuexec.model.tracing.promotion import BOOL, FLOAT64, as_symbolic, cast, kind_of, promote, resolve, unify
from gpuexec.model.tracing.symbolic import SymbolicArray
from gpuexec.model.tracing.tracer import find_tracer

__all__ = [
    "abs", "absolute", "acos", "acosh", "add", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh",
    "around", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor",
    "cbrt", "ceil", "clamp", "clip", "copysign", "cos", "cosh", "deg2rad", "divide", "divmod", "equal", "erf", "exp",
    "exp2", "expm1", "fabs", "float_power", "floor", "floor_divide", "fmax", "fmin", "fmod", "frac", "greater",
    "greater_equal", "heaviside", "hypot", "invert", "isclose", "isfinite", "isinf", "isnan", "left_shift", "lerp",
    "less", "less_equal", "log", "log1p", "log2", "log10", "logaddexp", "logical_and", "logical_not", "logical_or",
    "logical_xor", "maximum", "minimum", "mod", "multiply", "nan_to_num", "negative", "not_equal", "positive", "pow",
    "power", "rad2deg", "reciprocal", "remainder", "right_shift", "rint", "round", "rsqrt", "sign", "sin", "sinh",
    "sqrt", "square", "subtract", "tan", "tanh", "true_divide", "trunc", "where",
]  # fmt: skip

Recipe = Callable[..., SymbolicArray]
# By NumPy's function; what __array_ufunc__ looks up.
UFUNCS: dict[np.ufunc, Callable[..., SymbolicArray]] = {}
_COMPARISONS = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)


def define(ufunc: np.ufunc, recipe: str | Recipe, *, on_bool: str | None = None) -> Callable[..., SymbolicArray]:
    """Return and register the symbolic counterpart of a NumPy function.

    Args:
        ufunc: NumPy's function; its loops decide the dtypes.
        recipe: An operator, or a function of the operands in the loop's dtypes.
        on_bool: The operator where the loop is one of bools.
    """

    def function(*values: Any) -> SymbolicArray:
        if len(values) != ufunc.nin:
            raise InputError(f"{ufunc.__name__} takes {ufunc.nin} arrays, got {len(values)}.")
        tracer = find_tracer(*values)
        if ufunc in _COMPARISONS:
            values = tuple(_widen(value, *values) for value in values)
        *dtypes, result = resolve(ufunc, values)
        operands = [as_symbolic(value, dtype, tracer) for value, dtype in zip(values, dtypes, strict=True)]
        chosen = on_bool if on_bool and all(dtype == BOOL for dtype in dtypes) else recipe
        made = add_node(chosen, *operands, dtype=result) if isinstance(chosen, str) else cast(chosen(*operands), result)
        return made.copy() if any(made is value for value in values) else made

    function.__name__ = function.__qualname__ = ufunc.__name__
    function.__doc__ = f"Do elementwise what numpy.{ufunc.__name__} does."
    UFUNCS[ufunc] = function
    return function


def _widen(value: Any, *operands: Any) -> Any:
    """Return a Python int as an int64 where the dtype it is compared with can't hold it, else the value itself."""
    if type(value) is not int or not -(2**63) <= value < 2**63 or any(kind_of(each) == np.uint64 for each in operands):
        return value
    kinds = [kind for kind in map(kind_of, operands) if isinstance(kind, np.dtype) and kind.kind in "iu"]
    is_held = all(np.iinfo(kind).min <= value <= np.iinfo(kind).max for kind in kinds)
    return value if is_held else np.int64(value)


add = define(np.add, "Add", on_bool="Or")
subtract = define(np.subtract, "Sub")
multiply = define(np.multiply, "Mul", on_bool="And")
divide = true_divide = define(np.true_divide, "Div")
floor_divide = define(np.floor_divide, recipes.floor_divide)
remainder = mod = define(np.remainder, recipes.remainder)
fmod = define(np.fmod, recipes.fmod)
power = pow = define(np.power, recipes.power)
float_power = define(np.float_power, "Pow")
maximum = define(np.maximum, "Max", on_bool="Or")
minimum = define(np.minimum, "Min", on_bool="And")
fmax = define(np.fmax, lambda x, y: recipes.ignore_nan("Max", x, y), on_bool="Or")
fmin = define(np.fmin, lambda x, y: recipes.ignore_nan("Min", x, y), on_bool="And")
arctan2 = atan2 = define(np.arctan2, recipes.arctan2)
hypot = define(np.hypot, recipes.hypot)
logaddexp = define(np.logaddexp, recipes.logaddexp)
copysign = define(np.copysign, recipes.copysign)
heaviside = define(np.heaviside, lambda x, y: choose(x == 0, y, choose(x < 0, 0, choose(x > 0, 1, x))))

equal = define(np.equal, "Equal")
not_equal = define(np.not_equal, lambda x, y: add_node("Not", add_node("Equal", x, y, dtype=BOOL)))
less = define(np.less, lambda x, y: recipes.compare("Less", x, y))
less_equal = define(np.less_equal, lambda x, y: recipes.compare("LessOrEqual", x, y))
greater = define(np.greater, lambda x, y: recipes.compare("Greater", x, y))
greater_equal = define(np.greater_equal, lambda x, y: recipes.compare("GreaterOrEqual", x, y))

logical_and = define(np.logical_and, lambda x, y: add_node("And", cast(x, BOOL), cast(y, BOOL)))
logical_or = define(np.logical_or, lambda x, y: add_node("Or", cast(x, BOOL), cast(y, BOOL)))
logical_xor = define(np.logical_xor, lambda x, y: add_node("Xor", cast(x, BOOL), cast(y, BOOL)))
logical_not = define(np.logical_not, lambda x: add_node("Not", cast(x, BOOL)))
bitwise_and = define(np.bitwise_and, "BitwiseAnd", on_bool="And")
bitwise_or = define(np.bitwise_or, "BitwiseOr", on_bool="Or")
bitwise_xor = define(np.bitwise_xor, "BitwiseXor", on_bool="Xor")
bitwise_not = invert = define(np.invert, "BitwiseNot", on_bool="Not")
left_shift = define(np.left_shift, lambda x, y: recipes.shift(x, y, "LEFT"))
right_shift = define(np.right_shift, lambda x, y: recipes.shift(x, y, "RIGHT"))

negative = define(np.negative, recipes.negative)
positive = define(np.positive, lambda x: x)
absolute = abs = define(np.absolute, recipes.absolute, on_bool="Identity")
fabs = define(np.fabs, "Abs")
sign = define(np.sign, "Sign")
ceil = define(np.ceil, lambda x: recipes.whole("Ceil", x))
floor = define(np.floor, lambda x: recipes.whole("Floor", x))
rint = define(np.rint, lambda x: recipes.whole("Round", x))
trunc = define(np.trunc, recipes.trunc)
sqrt = define(np.sqrt, "Sqrt")
cbrt = define(np.cbrt, lambda x: add_node("Sign", x) * add_node("Pow", abs(x), as_symbolic(1 / 3, x.dtype, x._tracer)))
square = define(np.square, lambda x: x & x if x.dtype == BOOL else add_node("Mul", x, x))
reciprocal = define(np.reciprocal, recipes.reciprocal)
exp = define(np.exp, "Exp")
exp2 = define(np.exp2, lambda x: add_node("Pow", as_symbolic(2, x.dtype, x._tracer), x))
expm1 = define(np.expm1, recipes.expm1)
log = define(np.log, "Log")
log2 = define(np.log2, lambda x: recipes.logarithm(x, 2))
log10 = define(np.log10, lambda x: recipes.logarithm(x, 10))
log1p = define(np.log1p, recipes.log1p)
sin = define(np.sin, "Sin")
cos = define(np.cos, "Cos")
tan = define(np.tan, "Tan")
arcsin = asin = define(np.arcsin, "Asin")
arccos = acos = define(np.arccos, "Acos")
arctan = atan = define(np.arctan, "Atan")
sinh = define(np.sinh, "Sinh")
cosh = define(np.cosh, "Cosh")
tanh = define(np.tanh, "Tanh")
arcsinh = asinh = define(np.arcsinh, "Asinh")
arccosh = acosh = define(np.arccosh, "Acosh")
arctanh = atanh = define(np.arctanh, "Atanh")
deg2rad = define(np.deg2rad, lambda x: x * float(np.pi / 180))
rad2deg = define(np.rad2deg, lambda x: x * float(180 / np.pi))
UFUNCS[np.radians], UFUNCS[np.degrees] = deg2rad, rad2deg
isnan = define(np.isnan, recipes.isnan)
isinf = define(np.isinf, recipes.isinf)
isfinite = define(np.isfinite, lambda x: ~(recipes.isnan(x) | recipes.isinf(x)))


def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """Choose elements of ``x`` where the condition holds, else of ``y``; without these, find where it holds."""
    if x is None and y is None:
        from gpuexec.model.tracing.finding import nonzero

        return nonzero(condition)
    return choose(condition, x, y)


def choose(condition: Any, x: Any, y: Any) -> SymbolicArray:
    """Choose elements of ``x`` where the condition holds, else of ``y``."""
    tracer = find_tracer(condition, x, y)
    dtype = promote(kind_of(x), kind_of(y))
    first, second = (as_symbolic(each, dtype, tracer) for each in (x, y))
    return add_node("Where", as_symbolic(condition, BOOL, tracer), first, second, dtype=dtype)


def clip(a: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> SymbolicArray:
    """Limit elements to an interval; a bound that is None is none."""
    low, high = a_min if a_min is not None else min, a_max if a_max is not None else max
    result = as_symbolic(a).copy()
    if low is not None:
        result = maximum(result, low)
    return result if high is None else minimum(result, high)


clamp = clip


def lerp(start: Any, end: Any, weight: Any) -> SymbolicArray:
    """Interpolate linearly from start to end by a weight."""
    first, last = unify(start, end)
    return add(first, multiply(weight, subtract(last, first)))


def frac(x: Any) -> SymbolicArray:
    """Return the fractional part, of the same sign."""
    return subtract(x, trunc(x))


def rsqrt(x: Any) -> SymbolicArray:
    """Return the reciprocal square root."""
    return reciprocal(sqrt(x))


def erf(x: Any) -> SymbolicArray:
    """Return the error function."""
    array = as_symbolic(x)
    return add_node("Erf", cast(array, resolve(np.sqrt, [x])[0]))


def round(a: Any, decimals: int = 0) -> SymbolicArray:
    """Round to even at a number of decimals."""
    array = as_symbolic(a)
    if array.dtype.kind in "iub" and decimals >= 0:
        return array.copy()
    if not decimals:
        return rint(array)
    scale = 10.0 ** builtins.abs(decimals)
    if array.dtype.kind in "iub":
        return cast(multiply(rint(divide(array, scale)), scale), array.dtype)
    return divide(rint(multiply(array, scale)), scale) if decimals > 0 else multiply(rint(divide(array, scale)), scale)


around = round


def divmod(x: Any, y: Any) -> tuple[SymbolicArray, SymbolicArray]:
    """Return floor quotient and remainder."""
    return floor_divide(x, y), remainder(x, y)


def isclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> SymbolicArray:
    """Test which elements differ by no more than ``atol`` and ``rtol`` of the second."""
    first, second = unify(a, b)
    if first.dtype.kind in "iub":
        first, second = (cast(each, FLOAT64) for each in (first, second))
    near = isfinite(second) & (absolute(first - second) <= atol + rtol * absolute(second))
    close = near | equal(first, second)
    return close | (isnan(first) & isnan(second)) if equal_nan else close


def nan_to_num(x: Any, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> SymbolicArray:
    """Replace NaN and infinities by numbers, infinities by default by the largest there are."""
    array = as_symbolic(x)
    if array.dtype.kind in "iub":
        return array.copy()
    limits: Any = ml_dtypes.finfo(array.dtype)  # type: ignore[no-untyped-call]
    bounds = [float(limits.max) if posinf is None else posinf, float(limits.min) if neginf is None else neginf]
    top, low = (as_symbolic(bound, array.dtype, array._tracer) for bound in bounds)
    return choose(isnan(array), nan, choose(isinf(array), choose(array > 0, top, low), array))
