"""Fusion of neighbouring operators on elements into regions."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuexec.errors import name_after
from gpuexec.ir.graphs import Array, Graph, Node, Value, take_free
from gpuexec.ir.operator import describe
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.elementwise.elementwise_unary import ROUND_OPERAND
from gpuexec.ops.elementwise.region import Region
from gpuexec.ops.elementwise.region_steps import Given, StepRow, made_by, write_number
from gpuexec.passes.known_specs import Shapes

# Registers and time to compile grow with the steps, arguments of the launch with the operands.
_MAX_STEPS, _MAX_OPERANDS = 48, 16


@dataclass(slots=True)
class _Cluster:
    """Nodes that are to be one region, by position."""

    members: list[int] = field(default_factory=list)


def fuse_regions(graph: Graph, specs: Mapping[str, TensorSpec]) -> Graph:
    """Fuse operators on elements that make values of one shape, one from another, into one operator.

    What passes between them stays in registers or in the cache. Values with readers elsewhere are results of the
    region. Values that a shape depends on stay with the nodes that make them, since the host computes these. Results
    stay the same to the bit.

    Args:
        graph: The graph as loaded.
        specs: Specs of the inputs, by name.
    """
    fusing = _RegionFusing(graph, Shapes.of(graph, specs))
    fusing.cluster()
    return fusing.finish()


class _RegionFusing:
    """Clusters of a graph's nodes; `_cluster_of` has one for each node that may be in a region."""

    def __init__(self, graph: Graph, shapes: Shapes) -> None:
        self._graph, self._known = graph, shapes.specs
        self._readers, self._outputs = graph.consumers(), set(graph.outputs)
        self._positions = {id(node): position for position, node in enumerate(graph.nodes)}
        self._made_at = {value: n for n, node in enumerate(graph.nodes) for value in node.outputs if value is not None}
        demanded = shapes.find_demanded(graph)
        self._host = shapes.on_host
        self._cluster_of: dict[int, _Cluster] = {
            position: _Cluster([position])
            for position, node in enumerate(graph.nodes)
            if self._is_pointwise(node) and demanded.isdisjoint(node.outputs)
        }

    def cluster(self) -> None:
        """Join each node with those that make its inputs, where shapes are one and no way leads out and back."""
        for position in sorted(self._cluster_of):
            for value in dict.fromkeys(self._graph.nodes[position].inputs):
                made_at = self._made_at.get(value, -1) if value is not None else -1
                own, other = self._cluster_of[position], self._cluster_of.get(made_at)
                if other is not None and other is not own and self._fits(own, other):
                    other.members = sorted(own.members + other.members)
                    for member in own.members:
                        self._cluster_of[member] = other

    def finish(self) -> Graph:
        """Return the graph with each cluster of several nodes as one."""
        clusters = {id(each): each for each in self._cluster_of.values() if len(each.members) > 1}
        if not clusters:
            return self._graph
        taken = {node.name for node in self._graph.nodes}
        fused = {cluster.members[-1]: self._make_node(cluster, taken) for cluster in clusters.values()}
        gone = {member for cluster in clusters.values() for member in cluster.members[:-1]}
        nodes = [fused.get(n, node) for n, node in enumerate(self._graph.nodes) if n not in gone]
        return replace(self._graph, nodes=_order(nodes))

    def _is_pointwise(self, node: Node) -> bool:
        """Return whether a node can be a step: it makes one value of known shape that the host does not know."""
        inputs = [None if value is None else self._known.get(value) for value in node.inputs]
        made = [None if value is None else self._known.get(value) for value in node.outputs]
        if len(made) != 1 or made[0] is None or node.outputs[0] in self._host:
            return False
        if any(value is not None and spec is None for value, spec in zip(node.inputs, inputs, strict=True)):
            return False
        # A rounding in front of a product is one that its kernel may do itself.
        return node.operator.name != ROUND_OPERAND and node.operator.as_pointwise(inputs) is not None

    def _fits(self, own: _Cluster, other: _Cluster) -> bool:
        """Return whether two clusters may be one."""
        members = {*own.members, *other.members}
        shapes = {self._known[value].shape for member in members for value in self._list_made(member)}
        if len(shapes) > 1 or len(members) > _MAX_STEPS:
            return False
        inputs, results = self._list_borders(sorted(members))
        return len(inputs) + len(results) <= _MAX_OPERANDS and not self._leads_back(members)

    def _list_made(self, position: int) -> list[Value]:
        return [value for value in self._graph.nodes[position].outputs if value is not None]

    def _list_borders(self, members: Sequence[int]) -> tuple[list[Value], list[Value]]:
        """Return the values that members read of others but for numbers, and those that others read of them."""
        nodes = [self._graph.nodes[member] for member in members]
        made = {value for node in nodes for value in node.outputs if value is not None}
        inputs: dict[Value, None] = {}
        for node in nodes:
            rank = self._find_rank(node)
            for value in node.inputs:
                if value is not None and value not in made and self._write_number(value, rank) is None:
                    inputs[value] = None
        inside = set(members)
        results = [
            value
            for node in nodes
            for value in node.outputs
            if value is not None
            and (
                value in self._outputs
                or any(self._positions[id(reader)] not in inside for reader in self._readers.get(value, ()))
            )
        ]
        return list(inputs), results

    def _find_rank(self, node: Node) -> int:
        """Return how many axes a number may have that stretches nothing: those of another input."""
        found = [self._known[value].rank for value in node.inputs if value is not None and not self._is_number(value)]
        return max(found, default=-1)

    def _is_number(self, value: Value) -> bool:
        array = self._graph.constants.get(value)
        return array is not None and array.size == 1

    def _write_number(self, value: Value, rank: int) -> str | None:
        array: Array | None = self._graph.constants.get(value)
        return write_number(array) if array is not None and array.size == 1 and array.ndim <= rank else None

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
                for reader in self._readers.get(value, ()):
                    position = self._positions[id(reader)]
                    if position not in group:
                        yield position

    def _make_node(self, cluster: _Cluster, taken: set[str]) -> Node:
        """Return a cluster as a node."""
        nodes = [self._graph.nodes[member] for member in cluster.members]
        inputs, results = self._list_borders(cluster.members)
        made_at = {value: place for place, node in enumerate(nodes) for value in node.outputs if value is not None}
        rows: list[StepRow] = []
        for node in nodes:
            rank = self._find_rank(node)
            given: list[Given] = []
            for value in node.inputs:
                if value is None:
                    given.append(None)
                elif value in made_at:
                    given.append(made_by(made_at[value]))
                else:
                    number = self._write_number(value, rank)
                    given.append(inputs.index(value) if number is None else number)
            rows.append((*describe(node.operator), tuple(given)))
        operator = Region(tuple(rows), tuple([made_at[value] for value in results]))
        name = take_free("+".join(node.name for node in nodes), taken)
        part_of = nodes[0].part_of if len({node.part_of for node in nodes}) == 1 else ""
        return Node(operator, tuple(inputs), tuple(results), name_after(name, nodes[0].name), part_of)


def _order(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return nodes in an order in which each finds its inputs, as near as can be to the one given."""
    made_by_node = {value: n for n, node in enumerate(nodes) for value in node.outputs if value is not None}
    before = [{made_by_node[value] for value in node.inputs if value in made_by_node} for node in nodes]
    after: list[list[int]] = [[] for _ in nodes]
    for position, makers in enumerate(before):
        for maker in makers:
            after[maker].append(position)
    waits = [len(makers) for makers in before]
    ready = [position for position, count in enumerate(waits) if not count]
    heapq.heapify(ready)
    ordered = []
    while ready:
        position = heapq.heappop(ready)
        ordered.append(nodes[position])
        for behind in after[position]:
            waits[behind] -= 1
            if not waits[behind]:
                heapq.heappush(ready, behind)
    assert len(ordered) == len(nodes), "a way leads out of a region and back"
    return tuple(ordered)
