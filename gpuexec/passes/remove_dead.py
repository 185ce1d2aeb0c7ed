"""Dead-code elimination."""

from __future__ import annotations

from dataclasses import replace

from gpuexec.ir.graphs import Graph, Node, Value, bodies, body_fields, with_bodies
from gpuexec.passes.narrow_bodies import drop_captures, drop_outputs


def remove_dead(graph: Graph) -> Graph:
    """Remove nodes and constants that no output depends on; unread outputs of the others become None.

    Inputs stay: they are what the caller gives. Bodies are cleaned with the nodes that have them, which then take only
    what their bodies read; unread outputs of If and unread scan outputs are removed altogether.
    """
    needed: set[Value | None] = set(graph.outputs)
    nodes = []
    for node in reversed(graph.nodes):
        if needed.isdisjoint(node.outputs):
            continue
        if not needed.issuperset(node.outputs):
            outputs = tuple([value if value in needed else None for value in node.outputs])
            node = node if outputs == node.outputs else replace(node, outputs=outputs)
        if body_fields(type(node.operator)):
            node = _clean_bodies(node)
        needed.update(node.inputs)
        needed.discard(None)
        nodes.append(node)
    constants = {value: array for value, array in graph.constants.items() if value in needed}
    nodes.reverse()
    if len(constants) == len(graph.constants) and nodes == list(graph.nodes):
        return graph
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _clean_bodies(node: Node) -> Node:
    if not bodies(node.operator):
        return node
    node = drop_outputs(node)
    cleaned = [remove_dead(body) for body in bodies(node.operator)]
    return drop_captures(replace(node, operator=with_bodies(node.operator, cleaned)))
