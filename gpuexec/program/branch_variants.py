"""Branch variants of a graph: the same partitions with some Ifs taking their other branch."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace

from gpuexec.ir.graphs import Graph, Node, Value, bodies, take_free, with_bodies
from gpuexec.ir.operator import Operator, build
from gpuexec.ops.control.control import If


class BranchVariants:
    """Ifs of a graph, those in bodies too, by number, and the graph with some of them negated."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._names: list[str] = []
        # By operator, which an inlined If keeps; the operator itself is kept, so that its id stays its own.
        self._numbers: dict[int, tuple[int, Operator]] = {}
        self._count(graph)

    @property
    def numbers(self) -> range:
        """The numbers of all."""
        return range(len(self._names))

    def name(self, number: int) -> str:
        """Return the name of an If, for messages."""
        return self._names[number]

    def number(self, node: Node) -> int:
        """Return the number of an If of the graph, or of one with some negated."""
        return self._numbers[id(node.operator)][0]

    def negate(self, chosen: AbstractSet[int]) -> Graph:
        """Return the graph with the condition of each of these negated.

        So a host reads what it would read, and every cut stays where it is.
        """
        return self._negate(self._graph, chosen) if chosen else self._graph

    def _count(self, graph: Graph) -> None:
        for node in graph.nodes:
            if isinstance(node.operator, If):
                self._numbers[id(node.operator)] = len(self._names), node.operator
                self._names.append(str(node))
            for body in bodies(node.operator):
                self._count(body)

    def _negate(self, graph: Graph, chosen: AbstractSet[int]) -> Graph:
        names = {value.name for value in graph.values()}
        nodes: list[Node] = []
        for node in graph.nodes:
            inner = bodies(node.operator)
            if not inner:
                nodes.append(node)
                continue
            operator = with_bodies(node.operator, [self._negate(body, chosen) for body in inner])
            changed = replace(node, operator=operator)
            if isinstance(node.operator, If):
                number = self.number(node)
                self._numbers[id(operator)] = number, operator
                if number in chosen:
                    condition, *captures = node.inputs
                    turned = Value(take_free(f"{node.name}/turned", names))
                    nodes.append(Node(build("Not", {}), (condition,), (turned,), turned.name))
                    changed = replace(changed, inputs=(turned, *captures))
            nodes.append(changed)
        return replace(graph, nodes=tuple(nodes))
