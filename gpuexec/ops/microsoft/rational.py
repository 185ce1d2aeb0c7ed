"""Sigmoid and tanh as rational functions, bit-identical on every device.

Coefficients are of Padé-like fits that mathematical libraries share, within 3e-7 of the functions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuexec.ir.operator import Array

_FLOAT = np.float32
# Coefficients of numerator / x and of the denominator, from the highest power of x * x down; the bound of x.
_TANH = (
    (
        *(-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08),
        *(1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03),
    ),
    (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03),
    9.0,
)
_SIGMOID = (
    (4.37031012579801e-11, 1.15627324459942e-07, 6.08574864600143e-05, 8.51377133304701e-03, 2.48287947061529e-01),
    (
        *(6.10247389755681e-13, 5.76102136993427e-09, 6.29106785017040e-06),
        *(1.70198817374094e-03, 1.16817656904453e-01, 9.93151921023180e-01),
    ),
    18.0,
)


def rational_tanh(x: Array) -> Array:
    """Return tanh of floats."""
    return _divide(x, *_TANH)


def rational_sigmoid(x: Array) -> Array:
    """Return ``1 / (1 + exp(-x))`` of floats."""
    return np.asarray(np.clip(_divide(x, *_SIGMOID) + _FLOAT(0.5), _FLOAT(0), _FLOAT(1)))


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
