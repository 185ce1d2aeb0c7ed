"""Table of elementwise operators with one input."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuexec.ir.graphs import RawNode
from gpuexec.ir.operator import Array, Derivative, PreparedCalls, Tolerance, upgrade
from gpuexec.ir.prepared_calls import BLOCK
from gpuexec.ir.spec import BFLOAT16
from gpuexec.ops.elementwise.elementwise import Form, Row, add_table, unsigned_storage
from gpuexec.ops.elementwise.elementwise_cast import truncate
from gpuexec.ops.elementwise.elementwise_engine import (
    BOOL,
    FLOATS,
    INTEGERS,
    NUMBERS,
    SIGNED,
    choose_greater,
    choose_less,
)
from gpuexec.ops.elementwise.elementwise_erf import erf
from gpuexec.ops.lib.rounding import round_to
from gpuexec.ops.quant.narrow_types import FLOAT8

EXACT, REDUCTION = Tolerance.EXACT, Tolerance.REDUCTION
ROUND_OPERAND = "gpuexec.RoundOperand"


def _sigmoid(x: Array) -> Array:
    result = np.empty_like(x)
    _sigmoid_into(x, result)
    return result


# Below it exp(-x) may leave the range of float, and 1 + exp(x) is 1.
_SIGMOID_TAIL = -87.0


class _Sigmoid:
    """1 / (1 + exp(-x)), and exp(x) in the tail; where nothing lies there, it is not looked for element by element."""

    __slots__ = ()

    def __call__(self, x: Array, out: Array) -> None:
        for call in self.bind((x,), out, ()):
            call()

    def bind(self, operands: Sequence[Array], out: Array, constant: Sequence[bool]) -> PreparedCalls:
        (x,) = operands
        tail: list[tuple[Array, Array]] = []  # of the call under way: where it is, and what is there
        (one,) = _make_numbers(out.dtype, 1)

        def look() -> None:
            tail.clear()
            if x.size and not np.minimum.reduce(x, axis=None) >= _SIGMOID_TAIL:
                tail.append((np.asarray(x < _SIGMOID_TAIL), np.exp(np.minimum(x, 0))))

        def mend() -> None:
            for place, values in tail:
                np.copyto(out, values, where=place)

        return [
            look,
            functools.partial(np.negative, x, out=out),
            functools.partial(np.exp, out, out=out),
            functools.partial(np.add, out, one, out=out),
            functools.partial(np.divide, one, out, out=out),
            mend,
        ]


_sigmoid_into = _Sigmoid()


def _softplus(x: Array) -> Array:
    result = np.log1p(np.exp(-np.abs(x)))
    result += np.maximum(x, 0)
    return np.asarray(result)


def _clamp_to_unit(x: Array) -> Array:
    return np.asarray(np.minimum(np.maximum(x, 0), 1))


def _put(out: Array, value: Any) -> None:
    np.copyto(out, value, casting="unsafe")


class _Relu:
    __slots__ = ()

    def __call__(self, x: Array, out: Array) -> None:
        choose_greater(x, 0, out)

    def bind(self, operands: Sequence[Array], out: Array, constant: Sequence[bool]) -> PreparedCalls:
        return choose_greater.bind(operands[0], 0, out, is_constant=True)


def _is_nan(x: Array, out: Array) -> None:
    # NOTE: np.isnan of NumPy 2.4 writes a strided ``out`` wrongly.
    np.not_equal(x, x, out=out)


def _reciprocal(x: Array, out: Array) -> None:
    np.divide(1, x, out=out)


def _softplus_into(x: Array, out: Array) -> None:
    _put(out, _softplus(x))


def _softsign(x: Array, out: Array) -> None:
    np.divide(x, 1 + np.abs(x), out=out)


def _mish(x: Array, out: Array) -> None:
    np.multiply(x, np.tanh(_softplus(x)), out=out)


def _hard_swish(x: Array, out: Array) -> None:
    np.multiply(x, _clamp_to_unit(x * (1 / 6) + 0.5), out=out)


# Of x**2, lowest power first: atanh(erf(x / sqrt(2))) / x up to 3.92 * sqrt(2), beyond which tanh of the product rounds
# to 1. Our own fit by iteratively reweighted least squares of Chebyshev polynomials; erf is off by 3.1e-8 of itself.
_GELU = (
    *(0.797884586, 0.0363351468, -3.5735568e-05, -5.33585179e-05, 3.38045488e-06, -4.11358695e-08, -5.68987427e-09),
    *(2.97793702e-10, -4.5309827e-12),
)
_GELU_LIMIT = 30.7328


class _Gelu:
    """x * (1 + erf(x / sqrt(2))) / 2; in float32 by way of tanh, which NumPy has vector instructions for.

    It is off by 1.2e-7 of x there, as it is with erf rounded to float32, in a fifth of the time.
    """

    __slots__ = ()

    def __call__(self, x: Array, out: Array) -> None:
        if out.dtype == np.float64:
            scaled = erf(x * 0.7071067811865476)
            scaled += 1
            np.multiply(0.5 * x, scaled, out=out)
        else:
            for call in self._list_calls(x, out):
                call()

    def bind(self, operands: Sequence[Array], out: Array, constant: Sequence[bool]) -> PreparedCalls:
        (x,) = operands
        is_small = out.dtype == np.float32 and x.ndim == 1  # what the calls work in
        return self._list_calls(x, out) if is_small else [functools.partial(self, x, out=out)]

    def _list_calls(self, x: Array, out: Array) -> PreparedCalls:
        """Return the calls for float32, block by block where arrays have one axis."""
        parts: Sequence[Any] = [slice(first, first + BLOCK) for first in range(0, x.size, BLOCK)]
        parts = parts if x.ndim == 1 else [...]
        # Of a block, and where sums can't be in the output, which is the input.
        rooms = [np.empty_like(x[parts[0]]) for _ in range(1 + np.may_share_memory(x, out))] if parts else []
        calls: list[Callable[[], object]] = []
        for part in parts:
            a, y = x[part], out[part]
            square, *others = [room[: a.size] if x.ndim == 1 else room for room in rooms]
            calls += self._list_block(a, y, square, others[0] if others else y)
        return calls

    def _list_block(self, x: Array, out: Array, square: Array, total: Array) -> PreparedCalls:
        *terms, first, last = _make_numbers(x.dtype, *_GELU)
        one, half = _make_numbers(x.dtype, 1, 0.5)
        calls: list[Callable[[], object]] = [
            functools.partial(np.multiply, x, x, out=square),
            *choose_less.bind(square, _GELU_LIMIT, square, is_constant=True),
            functools.partial(np.multiply, square, last, out=total),
            functools.partial(np.add, total, first, out=total),
        ]
        for term in terms[::-1]:
            calls.append(functools.partial(np.multiply, total, square, out=total))
            calls.append(functools.partial(np.add, total, term, out=total))
        return [
            *calls,
            functools.partial(np.multiply, total, x, out=total),
            functools.partial(np.tanh, total, out=total),
            functools.partial(np.add, total, one, out=total),
            functools.partial(np.multiply, total, half, out=total),
            functools.partial(np.multiply, total, x, out=out),
        ]


def _gelu_tanh(x: Array, out: Array) -> None:
    cubic, linear, one, half = _make_numbers(x.dtype, 0.7978845608028654 * 0.044715, 0.7978845608028654, 1, 0.5)
    inner = np.asarray(x * x)
    inner *= cubic
    inner += linear
    inner *= x
    np.tanh(inner, out=inner)
    inner += one
    inner *= x
    np.multiply(inner, half, out=out)


@functools.cache
def _make_numbers(dtype: np.dtype[Any], *numbers: float) -> tuple[Array, ...]:
    """Return numbers as arrays without axes, which NumPy takes in half the time that it takes Python's in."""
    return tuple([np.array(number, dtype) for number in numbers])


def _swish(x: Array, alpha: float, out: Array) -> None:
    np.multiply(x, _sigmoid(np.asarray(x if alpha == 1 else alpha * x)), out=out)


def _leaky_relu(x: Array, alpha: float, out: Array) -> None:
    if 0 < alpha <= 1:
        np.maximum(x, alpha * x, out=out)  # the same, in a third of the time
    else:
        _put(out, np.where(x < 0, alpha * x, x))


def _elu(x: Array, alpha: float, out: Array) -> None:
    _put(out, np.where(x < 0, alpha * np.expm1(x), x))


def _selu(x: Array, alpha: float, gamma: float, out: Array) -> None:
    np.multiply(gamma, np.where(x > 0, x, alpha * np.expm1(x)), out=out)


def _celu(x: Array, alpha: float, out: Array) -> None:
    np.add(np.maximum(x, 0), np.minimum(alpha * np.expm1(x / alpha), 0), out=out)


def _hard_sigmoid(x: Array, alpha: float, beta: float, out: Array) -> None:
    _put(out, _clamp_to_unit(alpha * x + beta))


def _thresholded_relu(x: Array, alpha: float, out: Array) -> None:
    _put(out, np.where(x > alpha, x, 0))


def _shrink(x: Array, bias: float, lambd: float, out: Array) -> None:
    if x.dtype.kind == "f":
        _put(out, np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0)))
        return
    value = x.astype(np.float64)  # a threshold may be a fraction
    if bias.is_integer():
        step = truncate(np.array(bias), x.dtype)
        lower, upper = x + step, x - step
    else:
        lower, upper = truncate(value + bias, x.dtype), truncate(value - bias, x.dtype)
    _put(out, np.where(value < -lambd, lower, np.where(value > lambd, upper, 0)))


def _is_inf(x: Array, detect_negative: float, detect_positive: float, out: Array) -> None:
    _put(out, ((x == -np.inf) & (detect_negative != 0)) | ((x == np.inf) & (detect_positive != 0)))


def _erf_into(x: Array, out: Array) -> None:
    _put(out, erf(x))


def _round_to(precision: str) -> Callable[..., None]:
    def round_into(x: Array, out: Array) -> None:
        _put(out, round_to(x, precision))

    return round_into


ROWS = (
    Row("Abs", NUMBERS, Form(np.abs, "Abs"), tolerance=EXACT),
    Row("Neg", SIGNED, Form(np.negative, "Neg"), storage=unsigned_storage, tolerance=EXACT),
    Row("Sign", NUMBERS, Form(np.sign, "Sign"), tolerance=EXACT, derivative=Derivative.ZERO),
    Row("Relu", SIGNED, Form(_Relu(), "Relu"), tolerance=EXACT),
    Row(
        "Not",
        (BOOL,),
        Form(np.logical_not, "LogicalNot"),
        storage=unsigned_storage,
        tolerance=EXACT,
        derivative=Derivative.ZERO,
    ),
    Row(
        "BitwiseNot",
        INTEGERS,
        Form(np.invert, "BitwiseNot"),
        storage=unsigned_storage,
        tolerance=EXACT,
        derivative=Derivative.REFUSED,
    ),
    Row("Sqrt", FLOATS, Form(np.sqrt, "Sqrt"), tolerance=EXACT),
    Row("Reciprocal", FLOATS, Form(_reciprocal, "Reciprocal"), tolerance=EXACT),
    Row("Floor", FLOATS, Form(np.floor, "Floor"), tolerance=EXACT, derivative=Derivative.ZERO),
    Row("Ceil", FLOATS, Form(np.ceil, "Ceil"), tolerance=EXACT, derivative=Derivative.ZERO),
    Row("Round", FLOATS, Form(np.rint, "Round"), tolerance=EXACT, derivative=Derivative.ZERO),
    Row(
        "IsNaN", FLOATS, Form(_is_nan, "IsNaN"), result=BOOL, tolerance=EXACT, narrow=FLOAT8, derivative=Derivative.ZERO
    ),
    Row(
        "IsInf",
        FLOATS,
        Form(_is_inf, "IsInf"),
        (("detect_negative", 1), ("detect_positive", 1)),
        result=BOOL,
        tolerance=EXACT,
        narrow=FLOAT8,
        derivative=Derivative.ZERO,
    ),
    Row("Exp", FLOATS, Form(np.exp, "Exp")),
    Row("Log", FLOATS, Form(np.log, "Log")),
    Row("Erf", FLOATS, Form(_erf_into, "Erf"), widened=INTEGERS),  # which it took until opset 12
    Row("Tanh", FLOATS, Form(np.tanh, "Tanh")),
    Row("Sigmoid", FLOATS, Form(_sigmoid_into, "Sigmoid")),
    Row("Sin", FLOATS, Form(np.sin, "Sin")),
    Row("Cos", FLOATS, Form(np.cos, "Cos")),
    Row("Tan", FLOATS, Form(np.tan, "Tan")),
    Row("Asin", FLOATS, Form(np.arcsin, "Asin")),
    Row("Acos", FLOATS, Form(np.arccos, "Acos")),
    Row("Atan", FLOATS, Form(np.arctan, "Atan")),
    Row("Sinh", FLOATS, Form(np.sinh, "Sinh")),
    Row("Cosh", FLOATS, Form(np.cosh, "Cosh")),
    Row("Asinh", FLOATS, Form(np.arcsinh, "Asinh")),
    Row("Acosh", FLOATS, Form(np.arccosh, "Acosh")),
    Row("Atanh", FLOATS, Form(np.arctanh, "Atanh")),
    Row("LeakyRelu", FLOATS, Form(_leaky_relu, "LeakyRelu"), (("alpha", 0.01),), tolerance=EXACT),
    Row("Elu", FLOATS, Form(_elu, "Elu"), (("alpha", 1.0),)),
    Row(
        "Selu",
        FLOATS,
        Form(_selu, "Selu"),
        (("alpha", 1.67326319217681884765625), ("gamma", 1.05070102214813232421875)),
    ),
    Row("Celu", FLOATS, Form(_celu, "Celu"), (("alpha", 1.0),)),
    Row("HardSigmoid", FLOATS, Form(_hard_sigmoid, "HardSigmoid"), (("alpha", 0.2), ("beta", 0.5)), tolerance=EXACT),
    Row("HardSwish", FLOATS, Form(_hard_swish, "HardSwish"), tolerance=EXACT, derivative=Derivative.PARTS),
    Row("ThresholdedRelu", FLOATS, Form(_thresholded_relu, "ThresholdedRelu"), (("alpha", 1.0),), tolerance=EXACT),
    Row("Softsign", FLOATS, Form(_softsign, "Softsign"), tolerance=EXACT),
    Row("Softplus", FLOATS, Form(_softplus_into, "Softplus")),
    # Compositions cancel, so that a last bit of a function inside weighs more than 4 ulp of what comes out.
    Row("Mish", FLOATS, Form(_mish, "Mish"), tolerance=REDUCTION, derivative=Derivative.PARTS),
    Row("Swish", FLOATS, Form(_swish, "Swish"), (("alpha", 1.0),), tolerance=REDUCTION, derivative=Derivative.PARTS),
    Row(
        "Gelu",
        FLOATS,
        {"none": Form(_Gelu(), "Gelu"), "tanh": Form(_gelu_tanh, "GeluTanh")},
        (("approximate", "none"),),
        choice="approximate",
        tolerance=REDUCTION,
        derivative=Derivative.PARTS,
    ),
    Row(
        "Shrink",
        tuple(dtype for dtype in NUMBERS if dtype != BFLOAT16),
        Form(_shrink, "Shrink"),
        (("bias", 0.0), ("lambd", 0.5)),
        tolerance=EXACT,
        derivative=Derivative.REFUSED,
    ),
    # Operands of products in a lower precision (`gpuexec.passes.lower_precision`); no file has it.
    Row(
        ROUND_OPERAND.rpartition(".")[2],
        (np.dtype(np.float32), np.dtype(np.float16), BFLOAT16),
        {
            "fp16": Form(_round_to("fp16"), "RoundToHalf"),
            "bf16": Form(_round_to("bf16"), "RoundToBfloat16"),
            "tf32": Form(_round_to("tf32"), "RoundToTf32"),
        },
        (("to", "fp16"),),
        choice="to",
        tolerance=EXACT,
        derivative=Derivative.REFUSED,
        domain=ROUND_OPERAND.rpartition(".")[0],
    ),
)


@upgrade("Selu", below=6)
def _fill_rounded_constants(node: RawNode) -> RawNode:
    """Set the defaults of opset 5, which had fewer digits."""
    return node.with_attributes(**{"alpha": 1.6732, "gamma": 1.0507, **node.attributes})


globals().update(add_table(ROWS, "elementwise_unary.cu", "unary", 1, __name__))
