"""Fusion of neighbouring operators on elements into regions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuexec.errors import name_after
from gpuexec.ir.graphs import Graph, Node, Value, take_free
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.work import SECTOR_BYTES
from gpuexec.ops.elementwise.elementwise_unary import ROUND_OPERAND
from gpuexec.ops.elementwise.region import Region
from gpuexec.ops.elementwise.region_steps import made_by
from gpuexec.ops.elementwise.tiled import MIN_EXCESS
from gpuexec.ops.tensor.layout import Transpose
from gpuexec.passes.pointwise_nodes import PointwiseNodes, order_nodes

# Registers and time to compile grow with the steps, arguments of the launch with the operands.
_MAX_STEPS, _MAX_OPERANDS = 48, 16


@dataclass(slots=True)
class _Cluster:
    """Nodes that are to be one region, by position."""

    members: list[int] = field(default_factory=list)


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
    fusing = _RegionFusing(graph, PointwiseNodes(graph, specs))
    fusing.cluster()
    return fusing.finish(limit)


class _RegionFusing:
    """Clusters of a graph's nodes; `_cluster_of` has one for each node that may be in a region."""

    def __init__(self, graph: Graph, nodes: PointwiseNodes) -> None:
        self._graph, self._nodes = graph, nodes
        # A rounding in front of a product is one that its kernel may do itself.
        self._cluster_of: dict[int, _Cluster] = {
            position: _Cluster([position])
            for position, node in enumerate(graph.nodes)
            if node.operator.name != ROUND_OPERAND and nodes.is_pointwise(node)
        }

    def cluster(self) -> None:
        """Join each node with those that make its inputs, where shapes are one and no way leads out and back."""
        for position in sorted(self._cluster_of):
            for value in dict.fromkeys(self._graph.nodes[position].inputs):
                made_at = self._nodes.made_at.get(value, -1) if value is not None else -1
                own, other = self._cluster_of[position], self._cluster_of.get(made_at)
                if other is not None and other is not own and self._fits(own, other):
                    other.members = sorted(own.members + other.members)
                    for member in own.members:
                        self._cluster_of[member] = other

    def finish(self, limit: int | None) -> Graph:
        """Return the graph with each of the first clusters of several nodes, or with an operand across, as one."""
        found = {id(each): each for each in self._cluster_of.values() if self._is_region(each)}
        clusters = sorted(found.values(), key=lambda cluster: cluster.members[-1])[:limit]
        if not clusters:
            return self._graph
        taken = {node.name for node in self._graph.nodes}
        fused = {cluster.members[-1]: self._make_node(cluster, taken) for cluster in clusters}
        gone = {member for cluster in clusters for member in cluster.members[:-1]}
        nodes = [fused.get(n, node) for n, node in enumerate(self._graph.nodes) if n not in gone]
        return replace(self._graph, nodes=order_nodes(nodes))

    def _is_region(self, cluster: _Cluster) -> bool:
        """Return whether a cluster is better one region than the nodes that it has."""
        node = self._graph.nodes[cluster.members[0]]
        return len(cluster.members) > 1 or any(self._lies_across(v) for v in node.inputs if v is not None)

    def _lies_across(self, value: Value) -> bool:
        """Return whether a value is a view whose elements along the last axis lie apart, and there are many of them."""
        made_at = self._nodes.made_at.get(value)
        operator = None if made_at is None else self._graph.nodes[made_at].operator
        if not isinstance(operator, Transpose):
            return False
        spec = self._nodes.specs[value]
        is_across = operator.perm is None or operator.perm[-1] != spec.rank - 1
        return is_across and spec.size * SECTOR_BYTES >= MIN_EXCESS

    def _fits(self, own: _Cluster, other: _Cluster) -> bool:
        """Return whether two clusters may be one."""
        members = {*own.members, *other.members}
        shapes = {self._nodes.specs[value].shape for member in members for value in self._list_made(member)}
        if len(shapes) > 1 or len(members) > _MAX_STEPS:
            return False
        inputs, results = self._list_borders(sorted(members))
        return len(inputs) + len(results) <= _MAX_OPERANDS and not self._leads_back(members)

    def _list_made(self, position: int) -> list[Value]:
        return [value for value in self._graph.nodes[position].outputs if value is not None]

    def _list_borders(self, members: Sequence[int]) -> tuple[list[Value], list[Value]]:
        """Return the values that members read of others but for numbers, and those that others read of them."""
        nodes = [self._graph.nodes[member] for member in members]
        made = {value: None for node in nodes for value in node.outputs if value is not None}
        inputs = dict.fromkeys(v for node in nodes for v in self._nodes.list_operands(node) if v not in made)
        inside = set(members)
        return list(inputs), [value for value in made if self._nodes.is_read_beside(value, inside)]

    def _leads_back(self, members: set[int]) -> bool:
        """Return whether a way leads from members through others to a member, clusters taken as one node each.

        No cluster reaches beyond the last member yet, so no way from there leads back.
        """
        last = max(members)
        stack, seen = list(self._list_next(members)), set(members)
        while stack:
            position = stack.pop()
            if position in members:
                return True
            if position in seen:
                continue
            cluster = self._cluster_of.get(position)
            group = {position} if cluster is None else set(cluster.members)
            seen |= group
            if min(group) < last:
                stack += self._list_next(group)
        return False

    def _list_next(self, group: set[int]) -> Iterator[int]:
        """Yield the positions behind a group that read what it makes."""
        for member in group:
            for value in self._list_made(member):
                for position in self._nodes.list_readers(value):
                    if position not in group:
                        yield position

    def _make_node(self, cluster: _Cluster, taken: set[str]) -> Node:
        """Return a cluster as a node."""
        nodes = [self._graph.nodes[member] for member in cluster.members]
        inputs, results = self._list_borders(cluster.members)
        made_at = {value: place for place, node in enumerate(nodes) for value in node.outputs if value is not None}
        sources = {value: made_by(place) for value, place in made_at.items()}
        sources.update({value: place for place, value in enumerate(inputs)})
        rows = [self._nodes.write_row(node, sources) for node in nodes]
        operator = Region(tuple(rows), tuple([made_at[value] for value in results]))
        name = take_free("+".join(node.name for node in nodes), taken)
        part_of = nodes[0].part_of if len({node.part_of for node in nodes}) == 1 else ""
        return Node(operator, tuple(inputs), tuple(results), name_after(name, nodes[0].name), part_of)
