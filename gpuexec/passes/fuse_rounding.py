"""Omission of the roundings between the steps of fused operators."""

from __future__ import annotations

from dataclasses import replace

from gpuexec.ir.graphs import Graph
from gpuexec.ir.operator import Operator, describe
from gpuexec.ops.elementwise.fused import Fused
from gpuexec.ops.elementwise.prologue import ProductOfRows
from gpuexec.ops.elementwise.region import Steps
from gpuexec.ops.nn.paired import PairedOperators


def fuse_rounding(graph: Graph) -> Graph:
    """Leave out what rounds half and bfloat16 between the steps of fused operators.

    Steps then see each other's results as they are computed, in float. What an operator gives out is rounded to its
    type, and casts to integers stay.

    Args:
        graph: The graph with its fused operators.
    """
    made = [(node, _leave_out(node.operator)) for node in graph.nodes]
    nodes = tuple([node if operator is node.operator else replace(node, operator=operator) for node, operator in made])
    return replace(graph, nodes=nodes)


def _leave_out(operator: Operator) -> Operator:
    """Return an operator whose steps see what others compute; one that has no steps as it is."""
    if isinstance(operator, ProductOfRows):
        maker, product = (_leave_out(each) for each in (operator.parts.maker, operator.parts.product))
        return replace(operator, maker=describe(maker), product=describe(product))
    if isinstance(operator, PairedOperators):
        return operator.without_roundings()
    return replace(operator, rounds=False) if isinstance(operator, (Fused, Steps)) else operator  # type: ignore[type-var]
