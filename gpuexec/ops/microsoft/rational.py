"""Sigmoid and tanh as rational functions, bit-identical on every device.

Coefficients are of Padé-like fits that mathematical libraries share, within 3e-7 of the functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from gpuexec.ir.operator import Array
from gpuexec.ir.prepared_calls import view_bytes

_FLOAT = np.float32
# Coefficients of numerator / x and of the denominator, from the highest power of x * x down; the bound of x.
Fit = tuple[tuple[float, ...], tuple[float, ...], float]
TANH: Fit = (
    (
        *(-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08),
        *(1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03),
    ),
    (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03),
    9.0,
)
SIGMOID: Fit = (
    (4.37031012579801e-11, 1.15627324459942e-07, 6.08574864600143e-05, 8.51377133304701e-03, 2.48287947061529e-01),
    (
        *(6.10247389755681e-13, 5.76102136993427e-09, 6.29106785017040e-06),
        *(1.70198817374094e-03, 1.16817656904453e-01, 9.93151921023180e-01),
    ),
    18.0,
)


def rational_tanh(x: Array) -> Array:
    """Return tanh of floats."""
    return _divide(x, *TANH)


def rational_sigmoid(x: Array) -> Array:
    """Return ``1 / (1 + exp(-x))`` of floats."""
    return np.asarray(np.clip(_divide(x, *SIGMOID) + _FLOAT(0.5), _FLOAT(0), _FLOAT(1)))


def _divide(x: Array, top: Sequence[float], bottom: Sequence[float], bound: float) -> Array:
    x = np.clip(x, _FLOAT(-bound), _FLOAT(bound))
    square = x * x
    return np.asarray(x * _evaluate(square, top) / _evaluate(square, bottom))


def _evaluate(square: Array, coefficients: Sequence[float]) -> Array:
    """Return the polynomial, one fused multiply-add each: doubles hold products of floats."""
    wide = square.astype(np.float64)
    total = np.full(square.shape, coefficients[0], _FLOAT)
    for coefficient in coefficients[1:]:
        total = (total * wide + np.float64(_FLOAT(coefficient))).astype(_FLOAT)
    return total


def prepare_rationals(x: Array, functions: Sequence[Fit], scratch: Sequence[Array]) -> list[Callable[[], object]]:
    """Return calls that write functions of floats over them, with the bits of those above.

    Args:
        x: Floats ``[..., functions, width]``: each slice takes its function.
        functions: `SIGMOID` or `TANH`, of those along the axis before the last.
        scratch: What calls work in; see `count_rational_scratch`.
    """
    square, wide = (view_bytes(each, (times, *x.shape), np.dtype(np.float64)) for each, times in zip(scratch, (1, 2)))
    total = view_bytes(scratch[2], wide.shape, np.dtype(_FLOAT))
    # Numerators and denominators, from one degree down: what is missing at the front is 0, and adds nothing.
    degree = max(len(each) for function in functions for each in function[:2])
    table = np.zeros((degree, 2, len(functions), 1), _FLOAT)
    for place, function in enumerate(functions):
        for side, coefficients in enumerate(function[:2]):
            table[degree - len(coefficients) :, side, place, 0] = coefficients
    table = table.reshape(degree, 2, *(1,) * (x.ndim - 2), len(functions), 1)
    bound = np.array([[function[2]] for function in functions], _FLOAT)
    calls: list[Callable[[], object]] = [
        partial(np.maximum, x, -bound, out=x),
        partial(np.minimum, x, bound, out=x),
        partial(np.multiply, x, x, out=square[0]),
        partial(np.copyto, total, table[0]),
    ]
    for coefficients in table[1:].astype(np.float64):
        calls.append(partial(np.multiply, total, square, out=wide))
        calls.append(partial(np.add, wide, coefficients, out=total))
    calls += [partial(np.multiply, x, total[0], out=x), partial(np.divide, x, total[1], out=x)]
    first = next((place for place, function in enumerate(functions) if function is not SIGMOID), len(functions))
    assert all(function is TANH for function in functions[first:]), "sigmoids come first"
    if first:
        part = x[..., :first, :]
        none, half, one = (np.array(number, _FLOAT) for number in (0, 0.5, 1))
        calls += [
            partial(np.add, part, half, out=part),
            partial(np.maximum, part, none, out=part),
            partial(np.minimum, part, one, out=part),
        ]
    return calls


def count_rational_scratch(size: int) -> tuple[int, int, int]:
    """Return the bytes that `prepare_rationals` works in, for so many floats."""
    return 8 * size, 16 * size, 8 * size
