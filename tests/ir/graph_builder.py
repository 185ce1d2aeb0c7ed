"""Graph builder for test operators, with a node-by-node evaluator."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from gpuexec.ir.graphs import Graph, Node, Value, check
from gpuexec.ir.operator import Array, Operator
from gpuexec.ir.spec import DeclaredSpec
from tests.ops.operators import FLOAT


class GraphBuilder:
    """Builds a graph node by node.

    >>> build = GraphBuilder()
    >>> x = build.input("x", "n", 4)
    >>> graph = build.graph(build.node(Scale(), x))
    """

    def __init__(self) -> None:
        self._inputs: list[Value] = []
        self._nodes: list[Node] = []
        self._constants: dict[Value, Array] = {}

    def input(self, name: str, *dims: int | str | None, dtype: np.dtype[Any] = FLOAT) -> Value:
        value = Value(name, DeclaredSpec(dtype, dims))
        self._inputs.append(value)
        return value

    def constant(self, array: Array, name: str = "") -> Value:
        value = Value(name or f"c{len(self._constants)}")
        array = np.asarray(array)
        array.flags.writeable = False
        self._constants[value] = array
        return value

    def node(self, op: Operator, *inputs: Value | None, name: str = "") -> Value:
        return self.nodes(op, *inputs, count=1, name=name)[0]

    def nodes(
        self, op: Operator, *inputs: Value | None, count: int, name: str = "", absent: Collection[int] = ()
    ) -> list[Value]:
        name = name or f"{type(op).__name__.lower()}{len(self._nodes)}"
        outputs = [Value(f"{name}.{i}" if count > 1 else f"{name}.out") for i in range(count)]
        named = tuple(None if i in absent else output for i, output in enumerate(outputs))
        self._nodes.append(Node(op, inputs, named, name))
        return outputs

    def graph(self, *outputs: Value) -> Graph:
        graph = Graph(tuple(self._inputs), outputs, tuple(self._nodes), self._constants, "test")
        check(graph)
        return graph


def compute_graph(graph: Graph, arrays: dict[str, Array]) -> list[Array]:
    """Return the outputs of a graph by calling ``compute`` node after node: the oracle for plans."""
    content: dict[Value, Any] = {value: arrays[value.name] for value in graph.inputs} | dict(graph.constants)
    for node in graph.nodes:
        results = node.operator.compute(*[None if v is None else content[v] for v in node.inputs])
        content.update((v, r) for v, r in zip(node.outputs, results, strict=False) if v is not None)
    return [np.array(content[value]) for value in graph.outputs]
