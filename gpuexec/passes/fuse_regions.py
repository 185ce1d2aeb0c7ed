"""Fusion of neighbouring operators on elements into regions."""

from __future__ import annotations

from collections.abc import Mapping

from gpuexec.ir.graphs import Graph, Value
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.work import SECTOR_BYTES
from gpuexec.ops.elementwise.region import Region
from gpuexec.ops.elementwise.tiled import MIN_EXCESS
from gpuexec.ops.tensor.layout import Transpose
from gpuexec.passes.clusters import Cluster, Clusters
from gpuexec.passes.pointwise_nodes import PointwiseNodes


def fuse_regions(graph: Graph, specs: Mapping[str, TensorSpec], limit: int | None = None) -> Graph:
    """Fuse operators on elements that make values of one shape, one from another, into one operator.

    What passes between them stays in registers or in the cache. Values with readers elsewhere are results of the
    region. One operator that reads a large transposed view is a region too, since the kernels of regions read whole
    sectors of it. Values that a shape depends on stay with the nodes that make them, since the host computes these.
    Results stay the same to the bit.

    Args:
        graph: The graph as loaded.
        specs: Specs of the inputs, by name.
        limit: The most regions to make, the first ones; None: all.
    """
    nodes = PointwiseNodes(graph, specs)
    positions = [position for position, node in enumerate(graph.nodes) if nodes.can_be_step(node)]
    clusters = Clusters(graph, nodes, positions)
    for position in positions:
        for value in dict.fromkeys(graph.nodes[position].inputs):
            made_at = nodes.made_at.get(value, -1) if value is not None else -1
            own, other = clusters.find(position), clusters.find(made_at)
            if own is not None and other is not None and other is not own and _fits(clusters, nodes, own, other):
                clusters.join(own, other)
    wanted = [each for each in clusters.list_all() if _is_region(graph, nodes, each)]
    return clusters.replace(wanted[:limit], Region)


def _fits(clusters: Clusters, nodes: PointwiseNodes, own: Cluster, other: Cluster) -> bool:
    """Return whether two clusters may be one: shapes are one, and no way leads out and back."""
    members = {*own.members, *other.members}
    shapes = {nodes.specs[value].shape for member in members for value in clusters.list_made(member)}
    return len(shapes) == 1 and clusters.is_small(sorted(members)) and not clusters.leads_back(members)


def _is_region(graph: Graph, nodes: PointwiseNodes, cluster: Cluster) -> bool:
    """Return whether a cluster is better one region than the nodes that it has."""
    node = graph.nodes[cluster.members[0]]
    return len(cluster.members) > 1 or any(_lies_across(graph, nodes, v) for v in node.inputs if v is not None)


def _lies_across(graph: Graph, nodes: PointwiseNodes, value: Value) -> bool:
    """Return whether a value is a view whose elements along the last axis lie apart, and there are many of them."""
    made_at = nodes.made_at.get(value)
    operator = None if made_at is None else graph.nodes[made_at].operator
    if not isinstance(operator, Transpose):
        return False
    spec = nodes.specs[value]
    is_across = operator.perm is None or operator.perm[-1] != spec.rank - 1
    return is_across and spec.size * SECTOR_BYTES >= MIN_EXCESS
