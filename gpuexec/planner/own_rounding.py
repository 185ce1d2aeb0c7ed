"""Roundings of operands whose readers round them by themselves: left out of a plan.

In tf32 a precision rounds operands from float to float. A kernel that rounds what it multiplies, as convolutions on
tensor cores do, needs no launch in front of it, and a residual beside it goes on with the same memory. Numbers stay the
same to the bit, since what is rounded twice is what is rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ops.elementwise.elementwise_unary import ROUND_OPERAND


def leave_out_roundings(graph: Graph, specs: Mapping[Value, TensorSpec], target: Target) -> Graph:
    """Return a graph without the roundings all of whose readers round to that precision themselves.

    Args:
        graph: The graph.
        specs: Specs of all values, at the upper end of the size class.
        target: What it is planned for.
    """
    roundings = {node.outputs[0]: node for node in graph.nodes if node.operator.name == ROUND_OPERAND}
    left_out = {value for value in roundings if value is not None and value not in graph.outputs}
    for node in graph.nodes:
        for position, value in enumerate(node.inputs):
            if value in left_out and _find_precision(node, position, specs, target) != roundings[value].operator.to:  # type: ignore[attr-defined]
                left_out.remove(value)
    if not left_out:
        return graph
    sources: dict[Value | None, Value | None] = {}
    nodes = []
    for node in graph.nodes:
        inputs = tuple([sources.get(value, value) for value in node.inputs])
        if node.outputs[0] in left_out:
            sources[node.outputs[0]] = inputs[0]
        else:
            nodes.append(node if inputs == node.inputs else replace(node, inputs=inputs))
    return replace(graph, nodes=tuple(nodes))


def _find_precision(node: Node, position: int, specs: Mapping[Value, TensorSpec], target: Target) -> str:
    """Return the precision that a node rounds an operand to itself."""
    return node.operator.rounds_to(position, [None if value is None else specs[value] for value in node.inputs], target)
