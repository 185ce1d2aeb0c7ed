"""How derivatives pass backwards through operators: a table of rules.

A rule takes a tape, a node and the derivative by the node's first output, and gives those by its inputs, in order; None
where nothing passes. What it computes, it puts on the tape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from gpuexec.errors import UnsupportedError
from gpuexec.graph import Array, Node, Value
from gpuexec.operator import build
from gpuexec.spec import dtype_row

Derivatives = Iterable[Value | None]


class Tape:
    """Nodes being made, for one Gradient: ``name`` is its node's, ``taken`` are the names of values in use."""

    def __init__(self, name: str, taken: set[str]) -> None:
        self.nodes: list[Node] = []
        self.constants: dict[Value, Array] = {}
        self._name, self._taken = name, taken

    def apply(self, operator: str, *inputs: Value | None, **attributes: Any) -> Value:
        """Put a node on the tape and return what it makes."""
        value = self.make_value()
        self.nodes.append(Node(build(operator, attributes), inputs, (value,), value.name))
        return value

    def make_value(self) -> Value:
        """Return a value of a name that is free."""
        name = f"{self._name}/{len(self._taken)}"
        while name in self._taken:
            name += "'"
        self._taken.add(name)
        return Value(name)

    def constant(self, array: Any) -> Value:
        """Return a constant."""
        value = self.make_value()
        self.constants[value] = np.asarray(array)
        self.constants[value].flags.writeable = False
        return value

    def number(self, number: float, like: Value) -> Value:
        """Return a number in the type of another value."""
        return self.apply("CastLike", self.constant(np.float64(number)), like)

    def full(self, number: float, like: Value) -> Value:
        """Return a number in the type and shape of another value."""
        return self.apply("Expand", self.number(number, like), self.apply("Shape", like))

    def scale(self, x: Value, factor: float) -> Value:
        """Return x times a number."""
        return x if factor == 1 else self.apply("Mul", x, self.number(factor, x))

    def sum_to(self, x: Value, like: Value) -> Value:
        """Return x summed to the shape of a value that was stretched."""
        return self.apply("gpuexec.SumTo", x, like)

    def spread(self, x: Value, like: Value) -> Value:
        """Return x stretched to the shape of a value."""
        return self.apply("Expand", x, self.apply("Shape", like))


Rule = Callable[[Tape, Node, Value], Derivatives]


def _inputs(node: Node) -> list[Value]:
    return [value for value in node.inputs if value is not None]


def _output(node: Node) -> Value:
    assert node.outputs[0] is not None
    return node.outputs[0]


def _elementwise(rule: Callable[[Tape, Value, Value, Value], Value]) -> Rule:
    """Return the rule of an operator of one input, by the derivative, its input and its output."""
    return lambda tape, node, g: [rule(tape, g, _inputs(node)[0], _output(node))]


def _stretched(*rules: Callable[[Tape, Value, Value, Value], Value]) -> Rule:
    """Return the rule of an operator of two inputs that stretch, by the derivative and both of them."""

    def pass_back(tape: Tape, node: Node, g: Value) -> Derivatives:
        a, b = _inputs(node)
        return [tape.sum_to(rule(tape, g, a, b), x) for rule, x in zip(rules, (a, b), strict=True)]

    return pass_back


def _sum(tape: Tape, node: Node, g: Value) -> Derivatives:
    return [tape.sum_to(g, x) for x in _inputs(node)]


def _where(tape: Tape, node: Node, g: Value) -> Derivatives:
    condition, a, b = _inputs(node)
    zero = tape.number(0, g)
    return [
        None,
        tape.sum_to(tape.apply("Where", condition, g, zero), a),
        tape.sum_to(tape.apply("Where", condition, zero, g), b),
    ]


def _relu(tape: Tape, g: Value, x: Value, y: Value) -> Value:
    return tape.apply("Where", tape.apply("Greater", x, tape.number(0, x)), g, tape.number(0, g))


def _cast(tape: Tape, node: Node, g: Value) -> Derivatives:
    op: Any = node.operator
    is_float = dtype_row(op.to).kind == "float"  # to others a step: its slope is 0
    return [tape.apply("CastLike", g, _inputs(node)[0]) if is_float else None]


def _power(tape: Tape, node: Node, g: Value) -> Derivatives:
    x, exponent = _inputs(node)
    lower = tape.apply("Pow", x, tape.apply("Sub", exponent, tape.number(1, exponent)))
    return [tape.sum_to(tape.apply("Mul", g, tape.apply("Mul", tape.apply("CastLike", exponent, x), lower)), x), None]


def _matmul(tape: Tape, node: Node, g: Value) -> Derivatives:
    a, b = _inputs(node)
    a_turned, b_turned = (tape.apply("Einsum", each, equation="...ij->...ji") for each in (a, b))
    return [tape.sum_to(tape.apply("MatMul", g, b_turned), a), tape.sum_to(tape.apply("MatMul", a_turned, g), b)]


def _gemm(tape: Tape, node: Node, g: Value) -> Derivatives:
    op: Any = node.operator
    a, b, *c = _inputs(node)
    a_term, b_term = "ji" if op.transA else "ij", "kj" if op.transB else "jk"
    left = tape.apply("Einsum", g, b, equation=f"ik,{b_term}->{a_term}")
    right = tape.apply("Einsum", a, g, equation=f"{a_term},ik->{b_term}")
    rest = [tape.sum_to(tape.scale(g, op.beta), each) for each in c]
    return [tape.scale(left, op.alpha), tape.scale(right, op.alpha), *rest]


def _reshape(tape: Tape, node: Node, g: Value) -> Derivatives:
    return [tape.apply("Reshape", g, tape.apply("Shape", _inputs(node)[0]), allowzero=1)]


def _transpose(tape: Tape, node: Node, g: Value) -> Derivatives:
    op: Any = node.operator
    back = {} if op.perm is None else {"perm": tuple(int(axis) for axis in np.argsort(op.perm))}
    return [tape.apply("Transpose", g, **back)]


def _reduce(is_mean: bool) -> Rule:
    def pass_back(tape: Tape, node: Node, g: Value) -> Derivatives:
        op: Any = node.operator
        x, *axes = _inputs(node)
        if is_mean:
            sizes = [tape.apply("CastLike", tape.apply("Size", each), g) for each in (_output(node), x)]
            g = tape.apply("Mul", g, tape.apply("Div", *sizes))
        if axes and not op.keepdims:
            g = tape.apply("Unsqueeze", g, axes[0])
        return [tape.spread(g, x)]

    return pass_back


def _softmax(is_logarithm: bool) -> Rule:
    def pass_back(tape: Tape, node: Node, g: Value) -> Derivatives:
        op: Any = node.operator
        y, axis = _output(node), tape.constant(np.array([op.axis]))
        if op.flatten:
            raise UnsupportedError(f"{node} of an opset before 13 has no derivative here.")
        p = tape.apply("Exp", y) if is_logarithm else y
        weighed = g if is_logarithm else tape.apply("Mul", g, y)
        return [tape.apply("Sub", weighed, tape.apply("Mul", p, tape.apply("ReduceSum", weighed, axis)))]

    return pass_back


def _negated(tape: Tape, x: Value) -> Value:
    return tape.apply("Neg", x)


RULES: dict[str, Rule] = {
    "Identity": lambda tape, node, g: [g],
    "Cast": _cast,
    "CastLike": lambda tape, node, g: [],
    "Neg": _elementwise(lambda tape, g, x, y: _negated(tape, g)),
    "Abs": _elementwise(lambda tape, g, x, y: tape.apply("Mul", g, tape.apply("Sign", x))),
    "Exp": _elementwise(lambda tape, g, x, y: tape.apply("Mul", g, y)),
    "Log": _elementwise(lambda tape, g, x, y: tape.apply("Div", g, x)),
    "Sqrt": _elementwise(lambda tape, g, x, y: tape.apply("Div", g, tape.apply("Add", y, y))),
    "Reciprocal": _elementwise(lambda tape, g, x, y: _negated(tape, tape.apply("Mul", g, tape.apply("Mul", y, y)))),
    "Sin": _elementwise(lambda tape, g, x, y: tape.apply("Mul", g, tape.apply("Cos", x))),
    "Cos": _elementwise(lambda tape, g, x, y: _negated(tape, tape.apply("Mul", g, tape.apply("Sin", x)))),
    "Tanh": _elementwise(lambda tape, g, x, y: tape.apply("Sub", g, tape.apply("Mul", g, tape.apply("Mul", y, y)))),
    "Sigmoid": _elementwise(lambda tape, g, x, y: tape.apply("Mul", g, tape.apply("Sub", y, tape.apply("Mul", y, y)))),
    "Relu": _elementwise(_relu),
    "Add": _stretched(lambda tape, g, a, b: g, lambda tape, g, a, b: g),
    "Sub": _stretched(lambda tape, g, a, b: g, lambda tape, g, a, b: _negated(tape, g)),
    "Mul": _stretched(lambda tape, g, a, b: tape.apply("Mul", g, b), lambda tape, g, a, b: tape.apply("Mul", g, a)),
    "Div": _stretched(
        lambda tape, g, a, b: tape.apply("Div", g, b),
        lambda tape, g, a, b: _negated(tape, tape.apply("Div", tape.apply("Div", tape.apply("Mul", g, a), b), b)),
    ),
    "Pow": _power,
    "Sum": _sum,
    "Where": _where,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Reshape": _reshape,
    "Flatten": _reshape,
    "Squeeze": _reshape,
    "Unsqueeze": _reshape,
    "Transpose": _transpose,
    "Expand": lambda tape, node, g: [tape.sum_to(g, _inputs(node)[0])],
    "gpuexec.SumTo": lambda tape, node, g: [tape.spread(g, _inputs(node)[0])],
    "ReduceSum": _reduce(is_mean=False),
    "ReduceMean": _reduce(is_mean=True),
    "Softmax": _softmax(is_logarithm=False),
    "LogSoftmax": _softmax(is_logarithm=True),
}
# Inputs by which there is no derivative here; one that changes is refused.
CONSTANT_INPUTS: dict[str, tuple[int, ...]] = {"Pow": (1,), "CastLike": (0,)}
# What takes nothing but shapes and signs of its inputs: nothing passes, and nothing is lost.
WITHOUT_SLOPE = frozenset(
    (
        "Shape",
        "Size",
        "Greater",
        "GreaterOrEqual",
        "Less",
        "LessOrEqual",
        "Equal",
        "Sign",
        "Floor",
        "Ceil",
        "Round",
        "Not",
        "And",
        "Or",
    )
)
