"""Dead-code elimination."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpuexec.ir.graphs import Graph, Node, Value, bodies, body_fields, with_bodies
from gpuexec.ops.control.control import LOOPS, If, Loop, Scan, count_own_inputs


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
    node = _drop_outputs(node)
    cleaned = [remove_dead(body) for body in bodies(node.operator)]
    return _drop_captures(replace(node, operator=with_bodies(node.operator, cleaned)))


def _drop_outputs(node: Node) -> Node:
    """Return the node without unwanted outputs, in its bodies too; carried values and states stay."""
    op = node.operator
    # Outputs that must stay, and outputs of the body that the node does not give.
    fixed, hidden = (op.carried, 1) if isinstance(op, Loop) else (op.states if isinstance(op, Scan) else 0, 0)
    kept = [index for index, value in enumerate(node.outputs) if index < fixed or value is not None]
    if len(kept) == len(node.outputs) or not isinstance(op, (If, *LOOPS)):
        return node
    if isinstance(op, Scan):
        rows = [index - fixed for index in kept if index >= fixed]
        op = replace(
            op,
            body=_with_outputs(op.body, kept),
            scan_output_axes=_pick(op.scan_output_axes, rows),
            scan_output_directions=_pick(op.scan_output_directions, rows),
        )
        return replace(node, operator=op, outputs=_pick(node.outputs, kept))
    places = [*range(hidden), *(index + hidden for index in kept)]
    graphs = [_with_outputs(body, places) for body in bodies(op)]
    return replace(node, operator=with_bodies(op, graphs), outputs=_pick(node.outputs, kept))


def _drop_captures(node: Node) -> Node:
    """Return the node without the captures that none of its bodies reads."""
    graphs, own = bodies(node.operator), count_own_inputs(node.operator)
    first = [len(body.inputs) - (len(node.inputs) - own) for body in graphs]
    read = [{*body.outputs, *(value for each in body.nodes for value in each.inputs)} for body in graphs]
    kept = [
        index
        for index in range(len(node.inputs) - own)
        if any(body.inputs[start + index] in used for body, start, used in zip(graphs, first, read, strict=True))
    ]
    if len(kept) == len(node.inputs) - own:
        return node
    changed = [
        replace(body, inputs=(*body.inputs[:start], *_pick(body.inputs[start:], kept)))
        for body, start in zip(graphs, first, strict=True)
    ]
    inputs = (*node.inputs[:own], *_pick(node.inputs[own:], kept))
    return replace(node, operator=with_bodies(node.operator, changed), inputs=inputs)


def _with_outputs(body: Graph, places: Sequence[int]) -> Graph:
    return replace(body, outputs=_pick(body.outputs, places))


def _pick(items: tuple[Any, ...], places: Sequence[int]) -> tuple[Any, ...]:
    return tuple(items[place] for place in places) if items else ()
