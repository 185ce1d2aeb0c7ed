"""Fusion of neighbouring operators on elements, and of such as move elements, into regions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from gpuexec.errors import name_after
from gpuexec.ir.command import Slot
from gpuexec.ir.geometry import contiguous_strides
from gpuexec.ir.graphs import Graph, Node, Value, take_free
from gpuexec.ir.index_map import Assembled, IndexMap, Picked, Reshaped, Viewed
from gpuexec.ir.operator import Tolerance
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.work import LAUNCH_NBYTES
from gpuexec.ops.elementwise.elementwise_unary import ROUND_OPERAND
from gpuexec.ops.elementwise.flat_maps import can_map
from gpuexec.ops.elementwise.region import Region
from gpuexec.ops.elementwise.region_steps import find_forms, list_keys, made_by
from gpuexec.ops.lib.strided import MAX_RANK
from gpuexec.passes.pointwise_nodes import PointwiseNodes, order_nodes

# Registers and time to compile grow with the steps, arguments of the launch with the operands.
_MAX_STEPS, _MAX_EVALUATIONS, _MAX_OPERANDS = 48, 96, 16
# What it costs to read a byte of elements that lie apart, about.
_SCATTERED = 4


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


def fuse_regions(graph: Graph, specs: Mapping[str, TensorSpec], limit: int | None = None) -> Graph:
    """Fuse operators on elements that make values of one shape, one from another, into one operator.

    What passes between them stays in registers or in the cache. Values with readers elsewhere are results of the
    region. Values that a shape depends on stay with the nodes that make them, since the host computes these. Results
    stay the same to the bit.

    Operators with an index map are among them: what only a Concat or Pad reads is made part by part, slices that a
    Gather picks are read where they lie, and so is what is behind a view. A Concat by itself is a region too: one
    launch where its parts can't be made in place.

    Args:
        graph: The graph as loaded.
        specs: Specs of the inputs, by name.
        limit: The most regions to make, the first ones; None: all.
    """
    fusing = _RegionFusing(graph, PointwiseNodes(graph, specs))
    fusing.cluster()
    fusing.absorb()
    return fusing.finish(limit)


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
        for position, each in self._maps.items():
            if isinstance(each, Viewed | Reshaped) or (isinstance(each, Assembled) and not self._gains(position, each)):
                del self._cluster_of[position]

    def cluster(self) -> None:
        """Join each node with those that make its inputs, where shapes are one and no way leads out and back."""
        for position in sorted(self._cluster_of):
            for value in dict.fromkeys(self._graph.nodes[position].inputs):
                made_at = self._find_maker(value)
                own, other = self._cluster_of[position], self._cluster_of.get(made_at)
                if value is None or other is None or other is own:
                    continue
                inner = self._find_inner(position, value, own, other)
                if inner is not None and self._fits(own, inner, is_inner=True):
                    own.take(inner, is_inner=True)
                    self._note(own)
                elif position not in self._maps and made_at == self._nodes.made_at[value] and self._fits(own, other):
                    other.take(own)
                    self._note(other)

    def absorb(self) -> None:
        """Add to clusters what makes values that they alone read, as it turned out."""
        for own in list({id(each): each for each in self._cluster_of.values() if len(each.members) > 1}.values()):
            waiting = [(member, value) for member in own.members for value in self._graph.nodes[member].inputs]
            while waiting:
                position, value = waiting.pop()
                other = self._cluster_of.get(self._find_maker(value))
                if value is None or other is None or other is own or self._cluster_of[position] is not own:
                    continue
                inner = self._find_inner(position, value, own, other)
                if inner is not None and self._fits(own, inner, is_inner=True, is_ordered=False):
                    own.take(inner, is_inner=True)
                    self._note(own)
                    waiting += [(each, read) for each in inner.members for read in self._graph.nodes[each].inputs]

    def _note(self, cluster: _Cluster) -> None:
        for member in cluster.members:
            self._cluster_of[member] = cluster

    def _find_inner(self, position: int, value: Value, own: _Cluster, other: _Cluster) -> _Cluster | None:
        """Return a cluster with the views through which a node reads it, where it makes values for that alone.

        They are parts of windows, or of the shape that the node has behind views, or slices that are broadcast.
        """
        views: set[int] = set()
        if not self._is_shown_to(own, other, views):
            return None
        reader = self._maps.get(position)
        if isinstance(reader, Assembled):
            inputs = self._graph.nodes[position].inputs
            if value not in [inputs[part.source] for part in reader.parts]:
                return None
        else:
            # To pick a slice, or show a window, several times costs no more than to read it several times.
            is_moved = all(member in self._maps for member in other.members)
            has_shape = self._nodes.specs[value].shape == self._nodes.specs[self._list_made(position)[0]].shape
            if reader is not None or not (has_shape if views and not is_moved else is_moved):
                return None
        return _Cluster(sorted({*other.members, *views}))

    def _is_shown_to(self, own: _Cluster, cluster: _Cluster, views: set[int]) -> bool:
        """Return whether a cluster alone reads what another makes, through views or not, and each element once.

        Args:
            own: The one that reads.
            cluster: The one that makes.
            views: Gets the positions of the views.
        """
        made = [value for member in cluster.members for value in self._list_made(member)]
        waiting = [value for value in made if self._nodes.is_read_beside(value, cluster.members)]
        most, shown = sum(self._nodes.specs[value].size for value in waiting), 0
        while waiting:
            value = waiting.pop()
            readers = [reader for reader in self._nodes.list_readers(value) if reader not in cluster.members]
            through = [reader for reader in readers if self._is_free_view(reader)]
            views.update(through)
            waiting += [each for reader in through for each in self._list_made(reader)]
            if self._nodes.is_output(value) or any(reader not in (*own.members, *through) for reader in readers):
                return False
            shown += self._nodes.specs[value].size * (len(through) < len(readers))
        return self._is_worth(cluster, views, shown / max(1, most))

    def _is_free_view(self, position: int) -> bool:
        """Return whether a node makes a view and is in no cluster."""
        return isinstance(self._maps.get(position), Viewed | Reshaped) and position not in self._cluster_of

    def _is_worth(self, cluster: _Cluster, views: set[int], times: float) -> bool:
        """Return whether to read a cluster's inputs through views costs no more than to write what it makes.

        Args:
            cluster: The cluster.
            views: The views.
            times: How often each element is made then; more than once only where that takes exact operations alone.
        """
        factor = _SCATTERED if any(self._is_scattered(view) for view in views) else 1
        if factor == 1 and times <= 1:
            return True
        if times > 1 and any(self._graph.nodes[m].operator.tolerance is not Tolerance.EXACT for m in cluster.members):
            return False
        made = max(self._nodes.specs[value].nbytes for member in cluster.members for value in self._list_made(member))
        inputs, _ = self._list_borders(cluster.members)
        shape = self._find_shape(cluster)
        read = sum(self._nodes.specs[value].nbytes for value in inputs if self._nodes.specs[value].shape == shape)
        return (factor * times - 1) * read <= (factor + 1) * made + LAUNCH_NBYTES

    def _is_scattered(self, view: int) -> bool:
        """Return whether neighbours of a view lie apart."""
        found, shown = self._maps[view], self._graph.nodes[view].inputs[0]
        assert shown is not None
        if not isinstance(found, Viewed):
            return False
        own, made = self._nodes.specs[shown].shape, self._nodes.specs[self._list_made(view)[0]].shape
        moved = [axis.moves for axis, extent in zip(found.axes, own, strict=True) if extent > 1]
        inner = max([axis for axis, extent in enumerate(made) if extent > 1], default=0)
        return bool(moved) and (inner, 1) not in moved[-1]

    def _find_maker(self, value: Value | None) -> int:
        """Return the position of the node that makes a value, or what the view that makes it shows; -1: none."""
        made_at = self._nodes.made_at.get(value, -1) if value is not None else -1
        while self._is_free_view(made_at):
            shown = self._graph.nodes[made_at].inputs[0]
            made_at = self._nodes.made_at.get(shown, -1) if shown is not None else -1
        return made_at

    def _gains(self, position: int, windows: Assembled) -> bool:
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

    def _is_joined(self, position: int) -> bool:
        """Return whether a node joins several parts, which one launch moves where they can't be made in place."""
        found = self._maps[position]
        if not isinstance(found, Assembled) or not found.is_whole or not 1 < len(found.parts) < _MAX_OPERANDS:
            return False
        return self._nodes.specs[self._list_made(position)[0]].rank <= MAX_RANK

    def _find_shape(self, cluster: _Cluster) -> tuple[int, ...]:
        """Return the shape of a cluster's results."""
        return self._nodes.specs[self._list_made(max({*cluster.members} - cluster.inner))[0]].shape

    def finish(self, limit: int | None) -> Graph:
        """Return the graph with each of the first clusters of several nodes as one."""
        found = {id(each): each for each in self._cluster_of.values() if len(each.members) > 1}
        taken_in = {member for each in found.values() for member in each.members}
        found.update({~n: _Cluster([n]) for n in self._maps if n not in taken_in and self._is_joined(n)})
        clusters = sorted(found.values(), key=lambda cluster: cluster.members[-1])[:limit]
        if not clusters:
            return self._graph
        taken = {node.name for node in self._graph.nodes}
        fused = {cluster.members[-1]: self._make_node(cluster, taken) for cluster in clusters}
        gone = {member for cluster in clusters for member in cluster.members[:-1]}
        nodes = [fused.get(n, node) for n, node in enumerate(self._graph.nodes) if n not in gone]
        return replace(self._graph, nodes=order_nodes(nodes))

    def _fits(self, own: _Cluster, other: _Cluster, *, is_inner: bool = False, is_ordered: bool = True) -> bool:
        """Return whether two clusters may be one.

        Args:
            own: One of them.
            other: Another one.
            is_inner: Whether the other one's values are for windows or views in the first.
            is_ordered: Whether no cluster reaches beyond the last of these nodes yet.
        """
        members = {*own.members, *other.members}
        if not is_inner and self._find_shape(own) != self._find_shape(other):
            return False
        if len(members) > _MAX_STEPS or len(self._find_shape(own)) > MAX_RANK:
            return False
        inputs, results = self._list_borders(sorted(members))
        if any(isinstance(self._maps.get(member), Picked) and not self._reads(member, inputs) for member in members):
            return False  # slices are picked of what is in memory
        if is_inner and self._count_evaluations(sorted(members)) > _MAX_EVALUATIONS:
            return False
        if any(isinstance(self._maps.get(member), Reshaped) for member in members) and not self._is_mapped(members):
            return False
        return len(inputs) + len(results) <= _MAX_OPERANDS and not self._leads_back(members, is_ordered=is_ordered)

    def _is_mapped(self, members: set[int]) -> bool:
        """Return whether a region of these nodes finds all that it reads by coordinates of its results."""
        node = self._make_node(_Cluster(sorted(members)), set())
        assert isinstance(node.operator, Region)
        specs = [None if value is None else self._nodes.specs[value] for value in node.inputs]
        slots = [None if s is None else Slot(n, 0, s, contiguous_strides(s.shape)) for n, s in enumerate(specs)]
        rows = node.operator.steps
        return not node.outputs or can_map(rows, find_forms(rows, list_keys(specs)), node.operator.results, slots)

    def _count_evaluations(self, members: Sequence[int]) -> int:
        """Return how many values of one element a region of these nodes has: one for each window or view of a node."""
        spaces: dict[int, set[int]] = {}
        count = fresh = 0
        for member in reversed(members):
            found, node = self._maps.get(member), self._graph.nodes[member]
            if any(self._nodes.is_read_beside(value, members) for value in self._list_made(member)):
                spaces.setdefault(member, set()).add(0)
            own = spaces.get(member, set())  # none, where nothing reads it
            count += len(own)
            for value in node.inputs:
                maker = self._nodes.made_at.get(value, -1) if value is not None else -1
                if maker in members and found is None:
                    spaces.setdefault(maker, set()).update(own)
                elif maker in members:
                    spaces.setdefault(maker, set()).update(range(fresh + 1, fresh + 1 + len(own)))
                    fresh += len(own)
        return count

    def _reads(self, position: int, inputs: Sequence[Value]) -> bool:
        """Return whether a node reads these values alone."""
        return all(value in inputs for value in self._graph.nodes[position].inputs)

    def _list_made(self, position: int) -> list[Value]:
        return [value for value in self._graph.nodes[position].outputs if value is not None]

    def _list_borders(self, members: Sequence[int]) -> tuple[list[Value], list[Value]]:
        """Return the values that members read of others but for numbers, and those that others read of them."""
        nodes = [self._graph.nodes[member] for member in members]
        made = {value: None for node in nodes for value in node.outputs if value is not None}
        inputs = dict.fromkeys(v for node in nodes for v in self._nodes.list_operands(node) if v not in made)
        inside = set(members)
        return list(inputs), [value for value in made if self._nodes.is_read_beside(value, inside)]

    def _leads_back(self, members: set[int], *, is_ordered: bool) -> bool:
        """Return whether a way leads from members through others to a member, clusters taken as one node each.

        Where no cluster reaches beyond the last member yet, no way from there leads back.
        """
        last = max(members) if is_ordered else len(self._graph.nodes)
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
        name = nodes[0].name if len(nodes) == 1 else take_free("+".join(node.name for node in nodes), taken)
        part_of = nodes[0].part_of if len({node.part_of for node in nodes}) == 1 else ""
        return Node(operator, tuple(inputs), tuple(results), name_after(name, nodes[0].name), part_of)
