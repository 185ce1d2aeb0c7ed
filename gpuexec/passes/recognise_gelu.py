"""Recognition of the GELU activation in the nodes that exporters write it as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import sqrt

import numpy as np

from gpuexec.ir.graphs import Array, Graph, Node, Value
from gpuexec.ir.operator import build
from gpuexec.system.mapped import read_content

# Numbers of 16 bits are rounded after each of the nodes, which one operator would not do.
_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


def recognise_gelu(graph: Graph) -> Graph:
    """Replace the nodes of ``x / 2 * (1 + erf(x / sqrt(2)))`` by one Gelu.

    The last two of the nodes are products of x, the sum and a half, in any order. What is between them must have no
    other reader. Results differ by the rounding of as many products.
    """
    found = _Recognition(graph).find()
    if not found:
        return graph
    gone = {id(node) for nodes, _ in found for node in nodes}
    made = {id(nodes[-1]): source for nodes, source in found}
    nodes: list[Node] = []
    for node in graph.nodes:
        source = made.get(id(node))
        if source is not None:
            nodes.append(Node(build("Gelu", {}), (source,), node.outputs, node.name, node.part_of))
        elif id(node) not in gone:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


class _Recognition:
    """Search of a graph for GELU."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._constants = graph, graph.constants
        self._producers, self._consumers = graph.producers(), graph.consumers()
        self._outputs = set(graph.outputs)

    def find(self) -> list[tuple[list[Node], Value]]:
        """Return the nodes of each GELU, the last one last, and what it is computed of."""
        return [found for node in self._graph.nodes if (found := self._match(node)) is not None]

    def _match(self, erf: Node) -> tuple[list[Node], Value] | None:
        if erf.operator.name != "Erf" or erf.inputs[0] is None:
            return None
        scaled = self._producers.get(erf.inputs[0])
        source = None if scaled is None or self._find_reader(erf.inputs[0]) is not erf else self._find_source(scaled)
        one = self._find_reader(erf.outputs[0])
        if scaled is None or source is None or one is None or one.operator.name != "Add":
            return None
        value = one.outputs[0]
        if value is None or self._split(one, erf.outputs[0], 1.0) is None:
            return None
        nodes = [scaled, erf, one]
        # Left to multiply by are x and a half: each by itself in either order, or the product of both.
        has_x = has_half = False
        while not (has_x and has_half):
            product = self._find_reader(value)
            if value is None or product is None or product.operator.name != "Mul":
                return None
            other = self._other(product, value)
            if other is None:
                return None
            if not has_half and self._is_number(other, 0.5):
                has_half = True
            elif not has_x and other == source:
                has_x = True
            elif not (has_x or has_half) and self._is_half_of(other, source):
                has_x = has_half = True
                nodes.append(self._producers[other])
            else:
                return None
            nodes.append(product)
            value = product.outputs[0]
        return nodes, source

    def _find_source(self, scaled: Node) -> Value | None:
        """Return x where a node computes ``x / sqrt(2)``."""
        first, second = (*scaled.inputs, None, None)[:2]
        if scaled.operator.name == "Div" and first is not None and self._is_number(second, sqrt(2)):
            return first
        if scaled.operator.name != "Mul":
            return None
        numbers = [self._is_number(value, sqrt(0.5)) for value in (first, second)]
        return (second if numbers[0] else first) if any(numbers) else None

    def _find_reader(self, value: Value | None) -> Node | None:
        """Return the only reader of a value that is no output of the graph."""
        readers = [] if value is None or value in self._outputs else self._consumers.get(value, [])
        return readers[0] if len(readers) == 1 else None

    def _split(self, node: Node, value: Value | None, number: float) -> Value | None:
        """Return the other input of a node, where it is that number."""
        other = None if value is None else self._other(node, value)
        return other if self._is_number(other, number) else None

    def _other(self, node: Node, value: Value) -> Value | None:
        first, second = (*node.inputs, None, None)[:2]
        return second if first == value else first

    def _is_half_of(self, value: Value, source: Value) -> bool:
        product = self._producers.get(value)
        if product is None or product.operator.name != "Mul" or self._find_reader(value) is None:
            return False
        return self._split(product, source, 0.5) is not None and source in product.inputs

    def _is_number(self, value: Value | None, number: float) -> bool:
        """Return whether a value is a constant without axes, and that number as far as its type holds it."""
        array: Array | None = _find(self._constants, value)
        if array is None or array.ndim or array.dtype not in _DTYPES:
            return False
        content = read_content(array)
        return bool(abs(content - number) <= 2 * np.finfo(array.dtype).eps * number)


def _find(constants: Mapping[Value, Array], value: Value | None) -> Array | None:
    return None if value is None else constants.get(value)
