"""Decomposition of operators into others: count and write, cache and attention, or composites."""

from __future__ import annotations

from dataclasses import replace

from gpuexec.errors import name_after
from gpuexec.ir.graphs import Graph, Node
from gpuexec.ir.operator import decomposition_for


def decompose(graph: Graph) -> Graph:
    """Replace operators by their decompositions.

    Where an output's size depends on data, the shape then depends on a count that a node before it makes: eight bytes
    to be read, where NonZero itself would need all of its input. Where an operator keeps a cache, a Concat makes it,
    which may then grow in place. And one that others make up (`gpuexec.ops.lib.composite`) leaves nothing to do but
    for its
    parts. Every operator says beside its class what it becomes; what comes of it bears its node's name in messages.
    """
    nodes: list[Node] = []
    is_same = True
    for node in graph.nodes:
        function = decomposition_for(node.operator.name)
        if function is None:
            nodes.append(node)
            continue
        is_same = False
        for part in function(node):
            name, whole = name_after(part.name, node.name), node.part_of or f"{node}"
            nodes.append(part if part is node else replace(part, name=name, part_of=whole))
    return graph if is_same else replace(graph, nodes=tuple(nodes))
