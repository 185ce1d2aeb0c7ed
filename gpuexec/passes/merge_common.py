"""Common-subexpression elimination.

Exporters write the same Shape and Gather before every Reshape.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from gpuexec.ir.graphs import Array, Graph, Node, Value, bodies
from gpuexec.system.mapped import read_content

# Constants up to this size are compared by content.
_COMPARED_NBYTES = 4096


def merge_common(graph: Graph) -> Graph:
    """Merge nodes of equal operators and inputs, and small constants of equal content. Graph outputs stay."""
    outputs = set(graph.outputs)
    stands_for = _merge_constants(graph.constants)
    alike: dict[Hashable, list[int]] = {}  # places of nodes of one class with the same inputs
    nodes: list[Node] = []
    for node in graph.nodes:
        if not stands_for.keys().isdisjoint(node.inputs):
            node = replace(node, inputs=tuple([stands_for.get(value, value) for value in node.inputs]))
        places = alike.setdefault((type(node.operator), node.inputs, len(node.outputs)), [])
        place = _find_equal(node, nodes, places) if places else None
        if place is None or not outputs.isdisjoint(node.outputs):
            if place is None:
                places.append(len(nodes))
            nodes.append(node)
        else:
            nodes[place] = _merge(nodes[place], node, stands_for)
    is_same = not stands_for and len(nodes) == len(graph.nodes)
    return graph if is_same else replace(graph, nodes=tuple(nodes))


def _find_equal(node: Node, nodes: Sequence[Node], places: Sequence[int]) -> int | None:
    """Return the place of an earlier node with the same result, if there is one."""
    key = _key(node)
    for place in places:
        if key is not None and _key(nodes[place]) == key:
            return place
    return None


def _merge(kept: Node, other: Node, stands_for: dict[Value | None, Value]) -> Node:
    """Replace the outputs of ``other`` by those of ``kept``, with outputs added that only ``other`` has readers for."""
    outputs = []
    for mine, theirs in zip(kept.outputs, other.outputs, strict=True):
        if mine is not None and theirs is not None:
            stands_for[theirs] = mine
        outputs.append(mine or theirs)
    return replace(kept, outputs=tuple(outputs))


def _key(node: Node) -> Hashable | None:
    """Return a key that operators with the same result share; None for those never merged, as with bodies."""
    if node.operator.is_random or bodies(node.operator):
        return None
    # Equal operators may differ in the sign of a zero, which their text shows.
    key = (node.operator, repr(node.operator))
    try:
        hash(key)
    except TypeError:  # an attribute is an array
        return None
    return key


def _merge_constants(constants: Mapping[Value, Array]) -> dict[Value | None, Value]:
    """Return what stands for each small constant whose content an earlier one has too."""
    stands_for: dict[Value | None, Value] = {}
    rows: dict[Hashable, list[Value]] = {}
    for value, array in constants.items():
        if array.nbytes <= _COMPARED_NBYTES:
            rows.setdefault((array.dtype, array.shape), []).append(value)
    for values in rows.values():
        first: dict[bytes, Value] = {}
        for value in values if len(values) > 1 else ():
            kept = first.setdefault(read_content(constants[value]).tobytes(), value)
            if kept is not value:
                stands_for[value] = kept
    return stands_for
