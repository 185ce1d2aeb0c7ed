"""Clusters of a graph's nodes that are to be one operator each, so that no way leads out of one and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuexec.errors import name_after
from gpuexec.ir.graphs import Graph, Node, Value, take_free
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ops.elementwise.region import Steps
from gpuexec.ops.elementwise.region_steps import made_by
from gpuexec.passes.known_specs import Shapes
from gpuexec.passes.pointwise_nodes import PointwiseNodes, order_nodes

# Registers and time to compile grow with the steps, arguments of the launch with the operands.
MAX_STEPS, MAX_OPERANDS = 48, 16


def explain_blits(graph: Graph, specs: Mapping[str, TensorSpec]) -> dict[str, str]:
    """Return the regions of a graph that are none where memory is textures, by their node's name, each with the reason.

    Args:
        graph: As fused for a device with kernels.
        specs: Specs of the inputs, by name.
    """
    regions = [(node, node.operator) for node in graph.nodes if isinstance(node.operator, Steps)]
    known = Shapes.of(graph, specs).specs if regions else {}
    reasons = {
        node.name: steps.refuse_blits([None if value is None else known[value] for value in node.inputs])
        for node, steps in regions
    }
    return {name: reason for name, reason in reasons.items() if reason}


@dataclass(slots=True)
class Cluster:
    """Nodes that are to be one region, by position.

    Attributes:
        members: The nodes.
        inner: Those that make parts of windows, or slices that are broadcast, and no results.
    """

    members: list[int] = field(default_factory=list)
    inner: set[int] = field(default_factory=set)


class Clusters:
    """Clusters of a graph's nodes: at first, one for each node that may be in a region."""

    def __init__(self, graph: Graph, nodes: PointwiseNodes, members: Iterable[int]) -> None:
        self._graph, self._nodes = graph, nodes
        self._cluster_of = {position: Cluster([position]) for position in members}
        self._reach = -1  # the last node that is in a cluster with others

    @property
    def positions(self) -> list[int]:
        """The nodes that are in clusters."""
        return sorted(self._cluster_of)

    def find(self, position: int) -> Cluster | None:
        """Return the cluster of a node."""
        return self._cluster_of.get(position)

    def leave_out(self, position: int) -> None:
        """Take a node that is a cluster by itself out of these."""
        del self._cluster_of[position]

    def join(self, own: Cluster, other: Cluster) -> None:
        """Put the members of a cluster into another one."""
        other.inner |= own.inner
        self._add(own.members, other)

    def take_in(self, own: Cluster, inner: Cluster) -> None:
        """Add nodes to a cluster that make values for others in it alone."""
        own.inner |= {*inner.members}
        self._add(inner.members, own)

    def is_small(self, members: Sequence[int]) -> bool:
        """Return whether nodes are few enough for one launch, and so are their operands."""
        if len(members) > MAX_STEPS:
            return False
        inputs, results = self.list_borders(members)
        return len(inputs) + len(results) <= MAX_OPERANDS

    def list_made(self, position: int) -> list[Value]:
        """Return the values that a node makes."""
        return [value for value in self._graph.nodes[position].outputs if value is not None]

    def list_borders(self, members: Sequence[int]) -> tuple[list[Value], list[Value]]:
        """Return the values that members read of others but for numbers, and those that others read of them."""
        nodes = [self._graph.nodes[member] for member in members]
        made = {value: None for node in nodes for value in node.outputs if value is not None}
        inputs = dict.fromkeys(v for node in nodes for v in self._nodes.list_operands(node) if v not in made)
        inside = set(members)
        return list(inputs), [value for value in made if self._nodes.is_read_beside(value, inside)]

    def leads_back(self, members: set[int]) -> bool:
        """Return whether a way leads from members through others to a member, clusters taken as one node each.

        No cluster with several nodes reaches beyond ``_reach``, so no way from there leads back.
        """
        last = max(*members, self._reach)
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

    def list_all(self) -> list[Cluster]:
        """Return the clusters in the order of their last nodes."""
        found = {id(each): each for each in self._cluster_of.values()}
        return sorted(found.values(), key=lambda cluster: cluster.members[-1])

    def list_able(self, clusters: Sequence[Cluster], operator: type[Steps], target: Target | None) -> Sequence[Cluster]:
        """Return the clusters that are to be one node on a target: where memory is textures, those that have blits."""
        if target is None or not target.has_textures:
            return clusters
        made = ((each, *self.write_steps(each.members, operator)) for each in clusters)
        specs = self._nodes.specs
        return [each for each, steps, inputs, _ in made if not steps.refuse_blits([specs[value] for value in inputs])]

    def replace(self, clusters: Sequence[Cluster], operator: type[Steps]) -> Graph:
        """Return the graph with clusters as one node each, of an operator."""
        if not clusters:
            return self._graph
        taken = {node.name for node in self._graph.nodes}
        fused = {cluster.members[-1]: self._make_node(operator, cluster, taken) for cluster in clusters}
        gone = {member for cluster in clusters for member in cluster.members[:-1]}
        nodes = [fused.get(n, node) for n, node in enumerate(self._graph.nodes) if n not in gone]
        return replace(self._graph, nodes=order_nodes(nodes))

    def write_steps(self, members: Sequence[int], operator: type[Steps]) -> tuple[Steps, list[Value], list[Value]]:
        """Return nodes as an operator, with the values that it reads and makes."""
        nodes = [self._graph.nodes[member] for member in members]
        inputs, results = self.list_borders(members)
        made_at = {value: place for place, node in enumerate(nodes) for value in node.outputs if value is not None}
        sources = {value: made_by(place) for value, place in made_at.items()}
        sources.update({value: place for place, value in enumerate(inputs)})
        rows = [self._nodes.write_row(node, sources) for node in nodes]
        made = operator(tuple(rows), tuple([made_at[value] for value in results]))  # type: ignore[call-arg]
        return made, inputs, results

    def _add(self, members: Sequence[int], cluster: Cluster) -> None:
        cluster.members = sorted([*cluster.members, *members])
        self._reach = max(self._reach, cluster.members[-1])
        for member in members:
            self._cluster_of[member] = cluster

    def _list_next(self, group: set[int]) -> Iterator[int]:
        """Yield the positions behind a group that read what it makes."""
        for member in group:
            for value in self.list_made(member):
                for position in self._nodes.list_readers(value):
                    if position not in group:
                        yield position

    def _make_node(self, operator: type[Steps], cluster: Cluster, taken: set[str]) -> Node:
        """Return a cluster as a node."""
        nodes = [self._graph.nodes[member] for member in cluster.members]
        made, inputs, results = self.write_steps(cluster.members, operator)
        name = nodes[0].name if len(nodes) == 1 else take_free("+".join(node.name for node in nodes), taken)
        part_of = nodes[0].part_of if len({node.part_of for node in nodes}) == 1 else ""
        return Node(made, tuple(inputs), tuple(results), name_after(name, nodes[0].name), part_of)
