"""What nobody reads goes."""

from __future__ import annotations

from dataclasses import replace

from gpuexec.graph import Graph


def remove_dead(graph: Graph) -> Graph:
    """Remove nodes and constants that no output depends on; outputs of the others that nobody reads become None.

    Inputs stay: they are what the caller gives.
    """
    needed = set(graph.outputs)
    nodes = []
    for node in reversed(graph.nodes):
        outputs = tuple(value if value in needed else None for value in node.outputs)
        if any(outputs):
            needed.update(value for value in node.inputs if value is not None)
            nodes.append(node if outputs == node.outputs else replace(node, outputs=outputs))
    constants = {value: array for value, array in graph.constants.items() if value in needed}
    return replace(graph, nodes=tuple(reversed(nodes)), constants=constants)
