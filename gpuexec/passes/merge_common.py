"""Common-subexpression elimination.

Exporters write the same Shape and Gather before every Reshape.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

from gpuexec.ir.graphs import Array, Graph, Node, Value, bodies
from gpuexec.system.mapped import read_content

# Constants up to this size are compared by content.
_COMPARED_NBYTES = 4096


def merge_common(graph: Graph) -> Graph:
    """Merge nodes of equal operators and inputs, and small constants of equal content. Graph outputs stay."""
    outputs = set(graph.outputs)
    stands_for = _merge_constants(graph.constants)
    first: dict[Hashable, int] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = tuple(value if value is None else stands_for.get(value, value) for value in node.inputs)
        if inputs != node.inputs:
            node = replace(node, inputs=inputs)
        key = _key(node)
        is_final = any(value in outputs for value in node.outputs)
        if key is None or (is_final and key in first):
            nodes.append(node)
        elif key not in first:
            first[key] = len(nodes)
            nodes.append(node)
        else:
            place = first[key]
            nodes[place] = _merge(nodes[place], node, stands_for)
    return replace(graph, nodes=tuple(nodes))


def _merge(kept: Node, other: Node, stands_for: dict[Value, Value]) -> Node:
    """Replace the outputs of ``other`` by those of ``kept``, with outputs added that only ``other`` has readers for."""
    outputs = []
    for mine, theirs in zip(kept.outputs, other.outputs, strict=True):
        if mine is not None and theirs is not None:
            stands_for[theirs] = mine
        outputs.append(mine or theirs)
    return replace(kept, outputs=tuple(outputs))


def _key(node: Node) -> Hashable | None:
    """Return a key that nodes with the same result share; None for nodes that are never merged, as with bodies."""
    if bodies(node.operator):
        return None
    # Equal operators may differ in the sign of a zero, which their text shows.
    key = (node.operator, repr(node.operator), node.inputs, len(node.outputs))
    try:
        hash(key)
    except TypeError:  # an attribute is an array
        return None
    return None if node.operator.is_random else key


def _merge_constants(constants: Mapping[Value, Array]) -> dict[Value, Value]:
    stands_for: dict[Value, Value] = {}
    first: dict[Hashable, Value] = {}
    for value, array in constants.items():
        if array.nbytes <= _COMPARED_NBYTES:
            kept = first.setdefault((array.dtype, array.shape, read_content(array).tobytes()), value)
            if kept is not value:
                stands_for[value] = kept
    return stands_for
