"""Operators whose output size depends on data become one that sizes and others that write."""

from __future__ import annotations

from dataclasses import replace

from gpuexec.graph import Graph, Node
from gpuexec.operator import decomposition_for


def decompose(graph: Graph) -> Graph:
    """Replace operators whose output size depends on data by ones that size and ones that write.

    What a shape then depends on is a count that a node before it makes: eight bytes to be read, where NonZero itself
    would need all of its input. Every operator says beside its class what it becomes.
    """
    if all(decomposition_for(node.operator.name) is None for node in graph.nodes):
        return graph
    nodes: list[Node] = []
    for node in graph.nodes:
        function = decomposition_for(node.operator.name)
        nodes.extend((node,) if function is None else function(node))
    return replace(graph, nodes=tuple(nodes))
