"""Dead-code elimination."""

from __future__ import annotations

from dataclasses import replace

from gpuexec.ir.graphs import Graph, Node, bodies, with_bodies
from gpuexec.passes.narrow_bodies import drop_captures, drop_outputs


def remove_dead(graph: Graph) -> Graph:
    """Remove nodes and constants that no output depends on; unread outputs of the others become None.

    Inputs stay: they are what the caller gives. Bodies are cleaned with the nodes that have them, which then take only
    what their bodies read; unread outputs of If and unread scan outputs are removed altogether.
    """
    needed = set(graph.outputs)
    nodes = []
    for node in reversed(graph.nodes):
        outputs = tuple(value if value in needed else None for value in node.outputs)
        if any(outputs):
            node = _clean_bodies(node if outputs == node.outputs else replace(node, outputs=outputs))
            needed.update(value for value in node.inputs if value is not None)
            nodes.append(node)
    constants = {value: array for value, array in graph.constants.items() if value in needed}
    return replace(graph, nodes=tuple(reversed(nodes)), constants=constants)


def _clean_bodies(node: Node) -> Node:
    if not bodies(node.operator):
        return node
    node = drop_outputs(node)
    cleaned = [remove_dead(body) for body in bodies(node.operator)]
    return drop_captures(replace(node, operator=with_bodies(node.operator, cleaned)))
