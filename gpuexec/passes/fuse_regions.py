"""Fusion of neighbouring operators on elements, and of such as move elements, into regions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from gpuexec.errors import name_after
from gpuexec.ir.graphs import Graph, Node, Value, take_free
from gpuexec.ir.index_map import IndexMap, Picked, Windows
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.elementwise.elementwise_unary import ROUND_OPERAND
from gpuexec.ops.elementwise.region import Region
from gpuexec.ops.elementwise.region_steps import made_by
from gpuexec.ops.lib.strided import MAX_RANK
from gpuexec.passes.pointwise_nodes import PointwiseNodes, order_nodes

# Registers and time to compile grow with the steps, arguments of the launch with the operands.
_MAX_STEPS, _MAX_OPERANDS = 48, 16


@dataclass(slots=True)
class _Cluster:
    """Nodes that are to be one region, by position.

    Attributes:
        members: The nodes.
        inner: Those that make parts of windows, or slices that are broadcast, and no results.
    """

    members: list[int] = field(default_factory=list)
    inner: set[int] = field(default_factory=set)

    def take(self, other: _Cluster, *, is_inner: bool = False) -> None:
        """Add the nodes of another cluster."""
        self.members = sorted(self.members + other.members)
        self.inner |= {*other.members} if is_inner else other.inner


def fuse_regions(graph: Graph, specs: Mapping[str, TensorSpec]) -> Graph:
    """Fuse operators on elements that make values of one shape, one from another, into one operator.

    What passes between them stays in registers or in the cache. Values with readers elsewhere are results of the
    region. Values that a shape depends on stay with the nodes that make them, since the host computes these. Results
    stay the same to the bit.

    Operators with an index map are among them: what only a Concat or Pad reads is made part by part, and slices that a
    Gather picks are read where they lie.

    Args:
        graph: The graph as loaded.
        specs: Specs of the inputs, by name.
    """
    fusing = _RegionFusing(graph, PointwiseNodes(graph, specs))
    fusing.cluster()
    return fusing.finish()


class _RegionFusing:
    """Clusters of a graph's nodes; `_cluster_of` has one for each node that may be in a region."""

    def __init__(self, graph: Graph, nodes: PointwiseNodes) -> None:
        self._graph, self._nodes = graph, nodes
        maps = {position: nodes.find_map(node) for position, node in enumerate(graph.nodes)}
        self._maps: dict[int, IndexMap] = {position: each for position, each in maps.items() if each is not None}
        # A rounding in front of a product is one that its kernel may do itself.
        self._cluster_of: dict[int, _Cluster] = {
            position: _Cluster([position])
            for position, node in enumerate(graph.nodes)
            if node.operator.name != ROUND_OPERAND and (position in self._maps or nodes.is_pointwise(node))
        }
        for position, each in list(self._maps.items()):
            if isinstance(each, Windows) and not self._gains(position, each):
                del self._cluster_of[position]

    def cluster(self) -> None:
        """Join each node with those that make its inputs, where shapes are one and no way leads out and back."""
        for position in sorted(self._cluster_of):
            for value in dict.fromkeys(self._graph.nodes[position].inputs):
                made_at = self._nodes.made_at.get(value, -1) if value is not None else -1
                own, other = self._cluster_of[position], self._cluster_of.get(made_at)
                if value is None or other is None or other is own:
                    continue
                is_inner = self._is_inner(position, value, own, other)
                if not is_inner and position in self._maps:
                    continue
                if not self._fits(own, other, is_inner=is_inner):
                    continue
                if is_inner:
                    own.take(other, is_inner=True)
                    self._note(own)
                else:
                    other.take(own)
                    self._note(other)

    def _note(self, cluster: _Cluster) -> None:
        for member in cluster.members:
            self._cluster_of[member] = cluster

    def _is_inner(self, position: int, value: Value, own: _Cluster, other: _Cluster) -> bool:
        """Return whether a cluster makes a value for windows of it alone, or slices that are broadcast."""
        reader, members = self._maps.get(position), {*own.members, *other.members}
        made = [each for member in other.members for each in self._list_made(member)]
        if any(self._nodes.is_read_beside(each, members) for each in made):
            return False
        if isinstance(reader, Windows):
            inputs = self._graph.nodes[position].inputs
            return value in [inputs[part.source] for part in reader.parts] and inputs.count(value) <= len(reader.parts)
        # To pick a slice several times costs no more than to read it several times.
        is_slice = reader is None and all(isinstance(self._maps.get(member), Picked) for member in other.members)
        return is_slice and self._find_shape(other) != self._find_shape(own)

    def _gains(self, position: int, windows: Windows) -> bool:
        """Return whether windows cost less inside a region: by themselves, what others make may be placed in them."""
        node = self._graph.nodes[position]
        made = self._nodes.specs[self._list_made(position)[0]]
        if not windows.is_whole or prod(made.shape[: min(windows.axes, default=0)]) != 1:
            return True
        placed = copied = 0
        for part in windows.parts:
            value = node.inputs[part.source]
            maker = self._nodes.made_at.get(value, -1) if value is not None else -1
            if maker < 0 or self._graph.nodes[maker].operator.makes_views:
                copied += 1
            elif maker not in self._cluster_of:
                placed += 1
        return copied > 0 or not placed

    def _find_shape(self, cluster: _Cluster) -> tuple[int, ...]:
        """Return the shape of a cluster's results."""
        return self._nodes.specs[self._list_made(max({*cluster.members} - cluster.inner))[0]].shape

    def finish(self) -> Graph:
        """Return the graph with each cluster of several nodes as one."""
        clusters = {id(each): each for each in self._cluster_of.values() if len(each.members) > 1}
        if not clusters:
            return self._graph
        taken = {node.name for node in self._graph.nodes}
        fused = {cluster.members[-1]: self._make_node(cluster, taken) for cluster in clusters.values()}
        gone = {member for cluster in clusters.values() for member in cluster.members[:-1]}
        nodes = [fused.get(n, node) for n, node in enumerate(self._graph.nodes) if n not in gone]
        return replace(self._graph, nodes=order_nodes(nodes))

    def _fits(self, own: _Cluster, other: _Cluster, *, is_inner: bool) -> bool:
        """Return whether two clusters may be one."""
        members = {*own.members, *other.members}
        if not is_inner and self._find_shape(own) != self._find_shape(other):
            return False
        if len(members) > _MAX_STEPS or len(self._find_shape(own)) > MAX_RANK:
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
