"""Roundings of operands whose readers round them by themselves: left out of a plan.

In tf32 a precision rounds operands from float to float, by a launch or as the last step of an epilogue. A kernel that
rounds what it multiplies, as convolutions on tensor cores do (`Operator.rounds_to`), needs neither, and a residual
beside it goes on with the same memory. So does one that narrows what it multiplies need no Cast: it reads floats where
the operator says halves. Numbers stay the same to the bit, since what is rounded twice is what is rounded
once. What else reads an operand, and what a graph gives out, is rounded as it says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.operator import Operator
from gpuexec.ir.precision import STORED
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ir.target import Target
from gpuexec.ops.elementwise.elementwise_unary import ROUND_OPERAND
from gpuexec.ops.elementwise.fused import Fused


def leave_out_roundings(graph: Graph, specs: Mapping[Value, TensorSpec], target: Target) -> Graph:
    """Return a graph without the roundings all of whose readers round to that precision themselves.

    Args:
        graph: The graph.
        specs: Specs of all values, at the upper end of the size class.
        target: What it is planned for.
    """
    left_out = _find_left_out(graph, specs, target)
    if not left_out:
        return graph
    sources: dict[Value | None, Value | None] = {}
    nodes = []
    for node in graph.nodes:
        inputs = tuple([sources.get(value, value) for value in node.inputs])
        operator, outputs = node.operator, node.outputs
        gone = [position for position, value in enumerate(outputs) if value in left_out]
        if gone and not isinstance(operator, Fused):
            sources[outputs[0]] = inputs[0]
            continue
        if gone:
            assert isinstance(operator, Fused)
            operator, places = operator.without_roundings(gone)
            outputs = tuple([node.outputs[places.index(place)] for place in range(max(places) + 1)])
            sources.update({value: outputs[place] for value, place in zip(node.outputs, places, strict=True)})
        is_same = operator is node.operator and inputs == node.inputs
        nodes.append(node if is_same else replace(node, operator=operator, inputs=inputs, outputs=outputs))
    return replace(graph, nodes=tuple(nodes))


def _find_left_out(graph: Graph, specs: Mapping[Value, TensorSpec], target: Target) -> set[Value | None]:
    """Return the rounded values that nothing wants rounded."""
    precisions: dict[Value | None, str] = {}
    for node in graph.nodes:
        for position, value in enumerate(node.outputs):
            precision = _find_narrowing(node, specs) or _find_rounding(node.operator, position)
            if precision and value not in graph.outputs:
                precisions[value] = precision
    left_out = set(precisions)
    for node in graph.nodes if left_out else ():
        given = [None if value is None else specs[value] for value in node.inputs]
        for position, value in enumerate(node.inputs):
            if value in left_out and node.operator.rounds_to(position, given, target) != precisions[value]:
                left_out.remove(value)
    return left_out


def _find_narrowing(node: Node, specs: Mapping[Value, TensorSpec]) -> str:
    """Return the precision that a Cast of floats stores them in; empty where a node is none.

    One among other steps stays, since they store as few bytes then.
    """
    source, made = node.inputs[0] if node.inputs else None, node.outputs[0]
    if node.operator.name != "Cast" or source is None or made is None or specs[source].dtype != np.float32:
        return ""
    stored = specs[made].dtype
    return next((name for name, dtype in STORED.items() if stored == dtype_row(dtype).numpy), "")


def _find_rounding(operator: Operator, position: int) -> str:
    """Return the precision that an operator does nothing but round to where it makes an output; empty: none."""
    if isinstance(operator, Fused):
        result = operator.results[position]
        is_alone = len(operator.steps) == 1 and operator.view is not None
        return _find_rounding(operator.parts.steps[result - 1].operator, 0) if result and not is_alone else ""
    return str(operator.to) if operator.name == ROUND_OPERAND else ""  # type: ignore[attr-defined]
