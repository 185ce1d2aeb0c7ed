"""Omission of the roundings between the steps of fused operators."""

from __future__ import annotations

from dataclasses import replace

from gpuexec.ir.graphs import Graph
from gpuexec.ir.operator import Operator
from gpuexec.ops.elementwise.fused import Fused
from gpuexec.ops.elementwise.region import Steps
from gpuexec.ops.nn.conv_separable import SeparableConv


def fuse_rounding(graph: Graph) -> Graph:
    """Leave out what rounds half and bfloat16 between the steps of fused operators.

    Steps then see each other's results as they are computed, in float. What an operator gives out is rounded to its
    type, and casts to integers stay.

    Args:
        graph: The graph with its fused operators.
    """
    return replace(graph, nodes=tuple([replace(node, operator=_leave_out(node.operator)) for node in graph.nodes]))


def _leave_out(operator: Operator) -> Operator:
    """Return an operator without the roundings between its steps."""
    if isinstance(operator, SeparableConv):
        return operator.without_roundings()
    if isinstance(operator, (Fused, Steps)):
        return replace(operator, rounds=False)  # type: ignore[type-var]
    return operator
