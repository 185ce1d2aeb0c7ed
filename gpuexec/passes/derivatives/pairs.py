"""Derivative rules of broadcast elementwise operators of several inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuexec.ir.graphs import Node, Value
from gpuexec.passes.derivatives.tape import Derivatives, Rule, Tape, first_of, given, input_at, output_of

# Derivative by one of two inputs before the sum over broadcast axes, from the output's derivative and both inputs.
Part = Callable[[Tape, Value, Value, Value], Value]


def _pair(*parts: Part) -> Rule:
    def pass_back(tape: Tape, node: Node, g: Value) -> Derivatives:
        a, b = given(node)
        return [tape.sum_to(part(tape, g, a, b), x) for part, x in zip(parts, (a, b), strict=True)]

    return pass_back


def _sum(tape: Tape, node: Node, g: Value) -> Derivatives:
    return [tape.sum_to(g, x) for x in given(node)]


def _mean(tape: Tape, node: Node, g: Value) -> Derivatives:
    return _sum(tape, node, tape.scale(g, 1 / len(node.inputs)))


def _extreme(tape: Tape, node: Node, g: Value) -> Derivatives:
    """Divide the derivative evenly between equal extremes of several inputs."""
    return share(tape, given(node), output_of(node), g)


def share(tape: Tape, xs: Sequence[Value], y: Value, g: Value) -> list[Value]:
    """Return the derivatives by those of some values that equal y, divided evenly between them."""
    hits = [tape.apply("Equal", x, y) for x in xs]
    weights = [tape.apply("CastLike", hit, g) for hit in hits]
    count = tape.apply("Sum", *weights)
    part = tape.apply("Div", g, count)
    return [tape.sum_to(tape.select(hit, part), x) for hit, x in zip(hits, xs, strict=True)]


def _choice(tape: Tape, node: Node, g: Value) -> Derivatives:
    condition, a, b = given(node)
    other = tape.apply("Not", condition)
    return [None, tape.sum_to(tape.select(condition, g), a), tape.sum_to(tape.select(other, g), b)]


def _clip(tape: Tape, node: Node, g: Value) -> Derivatives:
    """Pass back through Clip: a bound counts as inside; of two equal bounds the higher takes all outside."""
    x, low, high, y = first_of(node), input_at(node, 1), input_at(node, 2), output_of(node)
    is_moved = tape.apply("Not", tape.apply("Equal", x, y))
    by_bounds: list[Value | None] = []
    for bound in (high, low):
        hits = None if bound is None else tape.apply("And", is_moved, tape.apply("Equal", y, bound))
        by_bounds.append(None if bound is None or hits is None else tape.sum_to(tape.select(hits, g), bound))
        is_moved = is_moved if hits is None else tape.apply("And", is_moved, tape.apply("Not", hits))
    return [tape.select(tape.apply("Equal", x, y), g), *by_bounds[::-1]]


def _power(tape: Tape, node: Node, g: Value) -> Derivatives:
    """Pass back through Pow: slope 0 for an exponent of 0, and by the exponent where x is 0.

    Infinite intermediate results are not computed at all, so that second derivatives are right too.
    """
    x, exponent = given(node)
    zero, one = tape.number(0, exponent), tape.number(1, exponent)
    is_flat = tape.apply("Equal", exponent, zero)
    lower = tape.apply("Where", is_flat, zero, tape.apply("Sub", exponent, one))
    by_x = tape.times(g, tape.apply("CastLike", exponent, x), tape.apply("Pow", x, lower))
    is_zero = tape.apply("Equal", x, tape.number(0, x))
    is_flat = tape.apply("And", is_zero, tape.apply("GreaterOrEqual", exponent, zero))
    base = tape.apply("Where", is_flat, tape.number(1, x), x)
    turn = tape.times(g, output_of(node), tape.apply("Log", base))
    return [tape.sum_to(by_x, x), tape.sum_to(tape.apply("CastLike", turn, exponent), exponent)]


def _leaky(tape: Tape, node: Node, g: Value) -> Derivatives:
    x, slope = given(node)
    is_above = tape.apply("Greater", x, tape.number(0, x))
    is_below = tape.apply("Less", x, tape.number(0, x))
    by_x = tape.apply("Where", is_above, g, tape.apply("Mul", g, slope))
    return [by_x, tape.sum_to(tape.select(is_below, tape.apply("Mul", g, x)), slope)]


PAIRS: dict[str, Rule] = {
    "Add": _pair(lambda tape, g, a, b: g, lambda tape, g, a, b: g),
    "Sub": _pair(lambda tape, g, a, b: g, lambda tape, g, a, b: tape.apply("Neg", g)),
    "Mul": _pair(lambda tape, g, a, b: tape.apply("Mul", g, b), lambda tape, g, a, b: tape.apply("Mul", g, a)),
    "Div": _pair(
        lambda tape, g, a, b: tape.apply("Div", g, b),
        lambda tape, g, a, b: tape.apply("Neg", tape.apply("Mul", tape.apply("Div", g, b), tape.apply("Div", a, b))),
    ),
    "Pow": _power,
    "Sum": _sum,
    "Mean": _mean,
    "Max": _extreme,
    "Min": _extreme,
    "Where": _choice,
    "Clip": _clip,
    "PRelu": _leaky,
}
