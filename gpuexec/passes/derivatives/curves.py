"""Derivative rules of unary elementwise operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gpuexec.ir.graphs import Node, Value
from gpuexec.ir.spec import dtype_row
from gpuexec.passes.derivatives.tape import Derivatives, Parts, Rule, Tape, first_of, output_of, refuse

# Derivative at an element from the input, the output and the operator.
Slope = Callable[[Tape, Value, Value, Any], Value]


def _curve(slope: Slope) -> Rule:
    """Return the rule of an operator by its slope."""

    def pass_back(tape: Tape, node: Node, g: Value) -> Derivatives:
        return [tape.apply("Mul", g, slope(tape, first_of(node), output_of(node), node.operator))]

    return pass_back


def _over(divisor: Slope) -> Rule:
    """Return the rule of an operator whose slope is 1 over something."""

    def pass_back(tape: Tape, node: Node, g: Value) -> Derivatives:
        return [tape.apply("Div", g, divisor(tape, first_of(node), output_of(node), node.operator))]

    return pass_back


def _where(condition: Slope) -> Rule:
    """Return the rule of an operator of slope 1 where a condition holds, and 0 elsewhere."""

    def pass_back(tape: Tape, node: Node, g: Value) -> Derivatives:
        return [tape.select(condition(tape, first_of(node), output_of(node), node.operator), g)]

    return pass_back


def _square(tape: Tape, x: Value) -> Value:
    return tape.apply("Mul", x, x)


def _from_one(tape: Tape, x: Value) -> Value:
    """Return 1 - x."""
    return tape.apply("Sub", tape.number(1, x), x)


def _is_above(tape: Tape, x: Value, number: float) -> Value:
    return tape.apply("Greater", x, tape.number(number, x))


def _choose(tape: Tape, x: Value, above: Value | float, below: Value | float) -> Value:
    """Return one slope where x is above 0, and another elsewhere."""
    sides = [tape.number(side, x) if not isinstance(side, Value) else side for side in (above, below)]
    return tape.apply("Where", _is_above(tape, x, 0), *sides)


def _exponential(tape: Tape, x: Value, factor: float, rate: float) -> Value:
    """Return factor * exp(rate * x) where x is below 0; elsewhere it stays finite."""
    below = tape.apply("Min", x, tape.number(0, x))
    return tape.scale(tape.apply("Exp", tape.scale(below, rate)), factor)


def _hard_sigmoid(tape: Tape, x: Value, y: Value, op: Any) -> Value:
    inside = tape.apply("And", _is_above(tape, y, 0), tape.apply("Less", y, tape.number(1, y)))
    return tape.select(inside, tape.full(op.alpha, x))


def _cast(tape: Tape, node: Node, g: Value) -> Derivatives:
    op: Any = node.operator
    if dtype_row(op.to).kind != "float":
        raise refuse(node, f"to {dtype_row(op.to).name}")
    return [tape.apply("CastLike", g, first_of(node))]


def _erf_slope(tape: Tape, x: Value, y: Value, op: Any) -> Value:
    return tape.scale(tape.apply("Exp", tape.apply("Neg", _square(tape, x))), 2 / math.sqrt(math.pi))


def _gelu(tape: Tape, node: Node) -> tuple[Value, ...]:
    x, op = first_of(node), node.operator
    inner = tape.scale(x, math.sqrt(0.5))
    bound = "Erf"
    if getattr(op, "approximate", "none") == "tanh":
        cube = tape.scale(tape.times(x, x, x), 0.044715)
        inner, bound = tape.scale(tape.apply("Add", x, cube), math.sqrt(2 / math.pi)), "Tanh"
    weight = tape.shift(tape.apply(bound, inner), 1)
    return (tape.times(tape.scale(x, 0.5), weight),)


def _swish(tape: Tape, node: Node) -> tuple[Value, ...]:
    x, op = first_of(node), node.operator
    return (tape.times(x, tape.apply("Sigmoid", tape.scale(x, getattr(op, "alpha", 1.0)))),)


def _mish(tape: Tape, node: Node) -> tuple[Value, ...]:
    x = first_of(node)
    return (tape.times(x, tape.apply("Tanh", tape.apply("Softplus", x))),)


def _hard_swish(tape: Tape, node: Node) -> tuple[Value, ...]:
    x = first_of(node)
    return (tape.times(x, tape.apply("HardSigmoid", x, alpha=1 / 6, beta=0.5)),)


CURVES: dict[str, Rule] = {
    "Identity": lambda tape, node, g: [g],
    "Cast": _cast,
    "Neg": lambda tape, node, g: [tape.apply("Neg", g)],
    "Abs": _curve(lambda tape, x, y, op: tape.apply("Sign", x)),
    "Exp": _curve(lambda tape, x, y, op: y),
    "Log": _over(lambda tape, x, y, op: x),
    "Sqrt": _over(lambda tape, x, y, op: tape.apply("Add", y, y)),
    "Reciprocal": _curve(lambda tape, x, y, op: tape.apply("Neg", _square(tape, y))),
    "Sin": _curve(lambda tape, x, y, op: tape.apply("Cos", x)),
    "Cos": _curve(lambda tape, x, y, op: tape.apply("Neg", tape.apply("Sin", x))),
    "Tan": _curve(lambda tape, x, y, op: tape.shift(_square(tape, y), 1)),
    "Asin": _over(lambda tape, x, y, op: tape.apply("Sqrt", _from_one(tape, _square(tape, x)))),
    "Acos": _over(lambda tape, x, y, op: tape.apply("Neg", tape.apply("Sqrt", _from_one(tape, _square(tape, x))))),
    "Atan": _over(lambda tape, x, y, op: tape.shift(_square(tape, x), 1)),
    "Sinh": _curve(lambda tape, x, y, op: tape.apply("Cosh", x)),
    "Cosh": _curve(lambda tape, x, y, op: tape.apply("Sinh", x)),
    "Tanh": _curve(lambda tape, x, y, op: _from_one(tape, _square(tape, y))),
    "Asinh": _over(lambda tape, x, y, op: tape.apply("Sqrt", tape.shift(_square(tape, x), 1))),
    "Acosh": _over(lambda tape, x, y, op: tape.apply("Sqrt", tape.shift(_square(tape, x), -1))),
    "Atanh": _over(lambda tape, x, y, op: _from_one(tape, _square(tape, x))),
    "Erf": _curve(_erf_slope),
    "Sigmoid": _curve(lambda tape, x, y, op: tape.apply("Mul", y, _from_one(tape, y))),
    "Softplus": _curve(lambda tape, x, y, op: tape.apply("Sigmoid", x)),
    "Softsign": _over(lambda tape, x, y, op: _square(tape, tape.shift(tape.apply("Abs", x), 1))),
    "Relu": _where(lambda tape, x, y, op: _is_above(tape, x, 0)),
    "ThresholdedRelu": _where(lambda tape, x, y, op: _is_above(tape, x, op.alpha)),
    "LeakyRelu": _curve(lambda tape, x, y, op: _choose(tape, x, 1, op.alpha)),
    "Elu": _curve(lambda tape, x, y, op: _choose(tape, x, 1, _exponential(tape, x, op.alpha, 1))),
    "Selu": _curve(lambda tape, x, y, op: _choose(tape, x, op.gamma, _exponential(tape, x, op.alpha * op.gamma, 1))),
    "Celu": _curve(lambda tape, x, y, op: _choose(tape, x, 1, _exponential(tape, x, 1, 1 / op.alpha))),
    "HardSigmoid": _curve(_hard_sigmoid),
}
CURVE_PARTS: dict[str, Parts] = {"Gelu": _gelu, "Swish": _swish, "Mish": _mish, "HardSwish": _hard_swish}
