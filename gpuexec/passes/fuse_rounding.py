"""Omission of the roundings between the steps of fused operators."""

from __future__ import annotations

from dataclasses import replace

from gpuexec.ir.graphs import Graph
from gpuexec.ops.elementwise.fused import Fused
from gpuexec.ops.elementwise.region import Region


def fuse_rounding(graph: Graph) -> Graph:
    """Leave out what rounds half and bfloat16 between the steps of fused operators.

    Steps then see each other's results as they are computed, in float. What an operator gives out is rounded to its
    type, and casts to integers stay.

    Args:
        graph: The graph with its fused operators.
    """
    nodes = tuple([
        replace(node, operator=replace(node.operator, rounds=False))  # type: ignore[type-var]
        if isinstance(node.operator, (Fused, Region))
        else node
        for node in graph.nodes
    ])  # fmt: skip
    return replace(graph, nodes=nodes)
