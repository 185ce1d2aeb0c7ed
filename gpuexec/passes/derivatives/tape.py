"""Tape of a Gradient: the nodes under construction and the functions that rules build them with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from gpuexec.errors import ModelError, UnsupportedError
from gpuexec.ir.graphs import Array, Node, Value, list_needed, take_free
from gpuexec.ir.operator import build

Derivatives = Iterable[Value | None]
# Each order of gradients multiplies the values; the largest known models have ten thousand.
MAX_VALUES = 1 << 17


class Tape:
    """Nodes being made: ``name`` is that of the Gradient, ``taken`` are the names of values in use."""

    def __init__(self, name: str, taken: set[str]) -> None:
        self.nodes: list[Node] = []
        self.constants: dict[Value, Array] = {}
        self._name, self._taken = name, taken

    def apply(self, operator: str, *inputs: Value | None, **attributes: Any) -> Value:
        """Add a node to the tape and return its first output."""
        return self.apply_all(operator, 1, *inputs, **attributes)[0]

    def apply_all(self, operator: str, count: int, *inputs: Value | None, **attributes: Any) -> tuple[Value, ...]:
        """Add a node to the tape and return so many outputs."""
        values = tuple(self.make_value() for _ in range(count))
        self.nodes.append(Node(build(operator, attributes), inputs, values, values[0].name))
        return values

    def make_value(self) -> Value:
        """Return a value of a name that is free.

        Raises:
            ModelError: There are too many.
        """
        if len(self._taken) >= MAX_VALUES:
            raise ModelError(f"with its computation the model has more than {MAX_VALUES} values.")
        return Value(take_free(f"{self._name}/{len(self._taken)}", self._taken))

    def add(self, nodes: Iterable[Node]) -> None:
        """Add nodes to the tape; their values have names of their own."""
        for node in nodes:
            self.nodes.append(node)
            self._taken.update(value.name for value in node.outputs if value is not None)

    def keep_needed(self, wanted: Iterable[Value | None]) -> None:
        """Remove nodes that none of these values needs: rules give derivatives by all inputs."""
        self.nodes, needed = list_needed(self.nodes, [value for value in wanted if value is not None])
        self.constants = {value: array for value, array in self.constants.items() if value in needed}

    def constant(self, array: Any) -> Value:
        """Return a constant."""
        value = self.make_value()
        self.constants[value] = np.asarray(array)
        self.constants[value].flags.writeable = False
        return value

    def ints(self, *numbers: int) -> Value:
        """Return a constant vector of int64."""
        return self.constant(np.array(numbers, np.int64))

    def number(self, number: float, like: Value) -> Value:
        """Return a number in the type of another value."""
        return self.apply("gpuexec.NumberLike", like, value=float(number))

    def full(self, number: float, like: Value) -> Value:
        """Return a number in the type and shape of another value."""
        return self.spread(self.number(number, like), like)

    def scale(self, x: Value, factor: float) -> Value:
        """Return x times a number."""
        return x if factor == 1 else self.apply("Mul", x, self.number(factor, x))

    def shift(self, x: Value, number: float) -> Value:
        """Return x plus a number."""
        return self.apply("Add", x, self.number(number, x))

    def times(self, *factors: Value) -> Value:
        """Return a product of two or more."""
        product, *rest = factors
        for factor in rest:
            product = self.apply("Mul", product, factor)
        return product

    def select(self, condition: Value, x: Value) -> Value:
        """Return x where a condition holds, else 0."""
        return self.apply("Where", condition, x, self.number(0, x))

    def sum_to(self, x: Value, like: Value) -> Value:
        """Return x summed to the shape of a value that was stretched."""
        return self.apply("gpuexec.SumTo", x, like)

    def spread(self, x: Value, like: Value) -> Value:
        """Return x stretched to the shape of a value."""
        return self.apply("Expand", x, self.apply("Shape", like))

    def reshape_like(self, x: Value, like: Value) -> Value:
        """Return x in the shape of a value of as many elements."""
        return self.apply("Reshape", x, self.apply("Shape", like), allowzero=1)

    def flatten(self, x: Value) -> Value:
        """Return x as a vector."""
        return self.apply("Reshape", x, self.apply("Reshape", self.apply("Size", x), self.ints(1)), allowzero=1)

    def axes_from(self, first: int, x: Value) -> Value:
        """Return the axes of x from one on, counted from the end where that is negative."""
        if first < 0:
            return self.ints(*range(first, 0))
        rank = self.apply("Size", self.apply("Shape", x))
        return self.apply("Range", self.constant(np.int64(first)), rank, self.constant(np.int64(1)))


# Rule from the derivative by the node's first output to those by its inputs, in order; None for 0.
Rule = Callable[[Tape, Node, Value], Derivatives]
# Adds the node's decomposition to the tape, and returns its outputs.
Parts = Callable[[Tape, Node], tuple[Value, ...]]


def refuse(node: Node, what: str) -> UnsupportedError:
    """Return the error for a form of an operator that has no derivative here."""
    return UnsupportedError(f"{node} has no derivative here {what}.")


def first_of(node: Node) -> Value:
    """Return the first input, which must be there."""
    assert node.inputs[0] is not None
    return node.inputs[0]


def output_of(node: Node) -> Value:
    """Return the first output, which is present."""
    assert node.outputs[0] is not None
    return node.outputs[0]


def given(node: Node) -> list[Value]:
    """Return the inputs that are there."""
    return [value for value in node.inputs if value is not None]


def input_at(node: Node, index: int) -> Value | None:
    """Return an input, None where it is absent."""
    return node.inputs[index] if index < len(node.inputs) else None
