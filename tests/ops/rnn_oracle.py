"""Reference recurrent layers, element by element in double, by ONNX's equations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
Scalar = Callable[[float], float]


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


# By name: the function of x, alpha, beta, then the defaults of alpha and beta as far as it takes them.
FUNCTIONS: dict[str, tuple[Callable[[float, float, float], float], tuple[float, ...]]] = {
    "Sigmoid": (lambda x, a, b: _sigmoid(x), ()),
    "Tanh": (lambda x, a, b: math.tanh(x), ()),
    "Relu": (lambda x, a, b: max(x, 0.0), ()),
    "Affine": (lambda x, a, b: a * x + b, (1.0, 0.0)),
    "LeakyRelu": (lambda x, a, b: x if x >= 0 else a * x, (0.01,)),
    "ThresholdedRelu": (lambda x, a, b: x if x >= a else 0.0, (1.0,)),
    "ScaledTanh": (lambda x, a, b: a * math.tanh(b * x), (1.0, 1.0)),
    "HardSigmoid": (lambda x, a, b: min(max(a * x + b, 0.0), 1.0), (0.2, 0.5)),
    "Elu": (lambda x, a, b: x if x >= 0 else a * (math.exp(x) - 1), (1.0,)),
    "Softsign": (lambda x, a, b: x / (1 + abs(x)), ()),
    "Softplus": (lambda x, a, b: math.log(1 + math.exp(x)), ()),
}


def run_layer(op: str, inputs: Sequence[Array | None], attributes: dict[str, Any]) -> tuple[Array, ...]:
    """Return Y, Y_h and (of an LSTM) Y_c in double."""
    x, w, r, bias, lengths, h0, c0, p = (*inputs, *(None,) * 8)[:8]
    assert x is not None and w is not None and r is not None
    if attributes.get("layout"):
        x = x.swapaxes(0, 1)
        h0, c0 = (None if each is None else each.swapaxes(0, 1) for each in (h0, c0))
    (steps, batch, _), (directions, _, hidden) = x.shape, r.shape
    y = np.zeros((steps, directions, batch, hidden))
    lasts = np.zeros((2, directions, batch, hidden))
    bound = _bind(attributes.get("activations") or DEFAULTS[op] * directions, attributes)
    each = len(bound) // directions
    for d, b in np.ndindex(directions, batch):
        both = np.zeros((2, GATES[op] * hidden))
        if bias is not None:
            both[...] = bias[d].astype(float).reshape(both.shape)
        h, c = (np.zeros(hidden) if first is None else first[d, b].astype(float) for first in (h0, c0))
        length = steps if lengths is None else min(max(int(lengths[b]), 0), steps)
        backwards = attributes.get("direction") == "reverse" or d == 1
        for t in range(length - 1, -1, -1) if backwards else range(length):
            entering = w[d].astype(float) @ x[t, b].astype(float) + both[0]
            peepholes = None if p is None else p[d].astype(float).reshape(3, hidden)
            functions = bound[d * each : (d + 1) * each]
            h, c = _step(op, entering, r[d].astype(float), both[1], h, c, peepholes, functions, attributes)
            y[t, d, b] = h
        lasts[:, d, b] = h, c
    outputs = [y, *lasts[: 2 if op == "LSTM" else 1]]
    if attributes.get("layout"):
        outputs = [y.transpose(2, 0, 1, 3), *(last.swapaxes(0, 1) for last in outputs[1:])]
    return tuple(outputs)


def _bind(names: Sequence[str], attributes: dict[str, Any]) -> list[Scalar]:
    given = [list(attributes.get(f"activation_{which}", ())) for which in ("alpha", "beta")]
    bound: list[Scalar] = []
    for name in names:
        function, defaults = FUNCTIONS[name]
        a, b = (*(given[i].pop(0) if given[i] else value for i, value in enumerate(defaults)), 0.0, 0.0)[:2]
        bound.append(lambda x, function=function, a=a, b=b: function(x, a, b))  # type: ignore[misc]
    return bound


def _step(
    op: str, entering: Array, r: Array, recurrent_bias: Array, h: Array, c: Array, peepholes: Array | None,
    functions: Sequence[Scalar], attributes: dict[str, Any],
) -> tuple[Array, Array]:  # fmt: skip
    n, clip = len(h), attributes.get("clip", 0)

    def gate(function: Scalar, x: Array) -> Array:
        return np.array([function(float(v)) for v in (np.clip(x, -clip, clip) if clip else x)])

    x = entering.reshape(GATES[op], n)
    product = (r @ h + recurrent_bias).reshape(GATES[op], n)
    if op == "RNN":
        return gate(functions[0], x[0] + product[0]), c
    if op == "GRU":
        z, reset = (gate(functions[0], x[k] + product[k]) for k in (0, 1))
        inner = reset * product[2]
        if not attributes.get("linear_before_reset"):
            inner = r[2 * n :] @ (reset * h) + recurrent_bias[2 * n :]
        return (1 - z) * gate(functions[1], x[2] + inner) + z * h, c
    i, o, f, candidate = x + product
    pi, po, pf = np.zeros((3, n)) if peepholes is None else peepholes
    i = gate(functions[0], i + pi * c)
    f = 1 - i if attributes.get("input_forget") else gate(functions[0], f + pf * c)
    c = f * c + i * gate(functions[1], candidate)
    return gate(functions[0], o + po * c) * np.array([functions[2](float(v)) for v in c]), c
