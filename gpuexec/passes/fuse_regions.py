"""Fusion of neighbouring operators on elements, and of such as move elements, into regions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from gpuexec.ir.command import Slot
from gpuexec.ir.geometry import contiguous_strides
from gpuexec.ir.graphs import Graph, Value
from gpuexec.ir.index_map import Assembled, IndexMap, Picked, Reshaped, Viewed
from gpuexec.ir.operator import Tolerance
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ir.work import LAUNCH_NBYTES, SECTOR_BYTES
from gpuexec.ops.elementwise.flat_maps import can_map
from gpuexec.ops.elementwise.region import Region
from gpuexec.ops.elementwise.region_steps import find_forms, list_keys
from gpuexec.ops.elementwise.tiled import MIN_EXCESS
from gpuexec.ops.lib.strided import MAX_RANK
from gpuexec.ops.tensor.layout import Transpose
from gpuexec.passes.clusters import MAX_OPERANDS, Cluster, Clusters
from gpuexec.passes.pointwise_nodes import PointwiseNodes

# Values of one element that a kernel computes: registers and time to compile grow with them.
_MAX_EVALUATIONS = 96
# What it costs to read a byte of elements that lie apart, about.
_SCATTERED = 4


def fuse_regions(
    graph: Graph, specs: Mapping[str, TensorSpec], limit: int | None = None, *, target: Target | None = None
) -> Graph:
    """Fuse operators on elements that make values of one shape, one from another, into one operator.

    What passes between them stays in registers or in the cache. Values with readers elsewhere are results of the
    region. Values that a shape depends on stay with the nodes that make them, since the host computes these. Results
    stay the same to the bit.

    Operators with an index map are among them: what only a Concat or Pad reads is made part by part, slices that a
    Gather picks are read where they lie, and so is what is behind a view. A Concat by itself is a region too: one
    launch where its parts can't be made in place. So is one operator that reads a large transposed view, since kernels
    of regions read whole sectors of it.

    Args:
        graph: The graph as loaded.
        specs: Specs of the inputs, by name.
        limit: The most regions to make, the first ones; None: all.
        target: What is planned for: where memory is textures, what has no blits stays operators. None: any kernels.
    """
    fusing = _RegionFusing(graph, PointwiseNodes.of(graph, specs))
    fusing.cluster()
    fusing.absorb()
    return fusing.finish(limit, target)


class _RegionFusing:
    """Clusters of a graph's nodes, and the index maps of those that have one."""

    def __init__(self, graph: Graph, nodes: PointwiseNodes) -> None:
        self._graph, self._nodes = graph, nodes
        maps = {position: nodes.find_map(node) for position, node in enumerate(graph.nodes)}
        self._maps: dict[int, IndexMap] = {position: each for position, each in maps.items() if each is not None}
        members = [n for n, node in enumerate(graph.nodes) if n in self._maps or nodes.can_be_step(node)]
        self._clusters = Clusters(graph, nodes, members)
        for position in self._maps:
            if not self._begins(position):
                self._clusters.leave_out(position)

    def cluster(self) -> None:
        """Join each node with those that make its inputs, where shapes are one and no way leads out and back."""
        for position in self._clusters.positions:
            for value in dict.fromkeys(self._graph.nodes[position].inputs):
                made_at = self._find_maker(value)
                own, other = self._clusters.find(position), self._clusters.find(made_at)
                if value is None or own is None or other is None or other is own:
                    continue
                inner = self._find_inner(position, value, own, other)
                if inner is not None and self._fits(own, inner, is_inner=True):
                    self._clusters.take_in(own, inner)
                elif position not in self._maps and made_at == self._nodes.made_at[value] and self._fits(own, other):
                    self._clusters.join(own, other)

    def absorb(self) -> None:
        """Add to clusters what makes values that they alone read, as it turned out."""
        for own in [each for each in self._clusters.list_all() if len(each.members) > 1]:
            waiting = [(member, value) for member in own.members for value in self._graph.nodes[member].inputs]
            while waiting:
                position, value = waiting.pop()
                other = self._clusters.find(self._find_maker(value))
                if value is None or other is None or other is own or self._clusters.find(position) is not own:
                    continue
                inner = self._find_inner(position, value, own, other)
                if inner is not None and self._fits(own, inner, is_inner=True):
                    self._clusters.take_in(own, inner)
                    waiting += [(each, read) for each in inner.members for read in self._graph.nodes[each].inputs]

    def _find_inner(self, position: int, value: Value, own: Cluster, other: Cluster) -> Cluster | None:
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
            has_shape = self._nodes.specs[value].shape == self._nodes.specs[self._clusters.list_made(position)[0]].shape
            if reader is not None or not (has_shape if views and not is_moved else is_moved):
                return None
        return Cluster(sorted({*other.members, *views}))

    def _is_shown_to(self, own: Cluster, cluster: Cluster, views: set[int]) -> bool:
        """Return whether a cluster alone reads what another makes, through views or not, and each element once.

        Args:
            own: The one that reads.
            cluster: The one that makes.
            views: Gets the positions of the views.
        """
        made = [value for member in cluster.members for value in self._clusters.list_made(member)]
        waiting = [value for value in made if self._nodes.is_read_beside(value, cluster.members)]
        most, shown = sum(self._nodes.specs[value].size for value in waiting), 0
        while waiting:
            value = waiting.pop()
            readers = [reader for reader in self._nodes.list_readers(value) if reader not in cluster.members]
            through = [reader for reader in readers if self._is_free_view(reader)]
            views.update(through)
            waiting += [each for reader in through for each in self._clusters.list_made(reader)]
            if self._nodes.is_output(value) or any(reader not in (*own.members, *through) for reader in readers):
                return False
            shown += self._nodes.specs[value].size * (len(through) < len(readers))
        return self._is_worth(cluster, views, shown / max(1, most))

    def _is_free_view(self, position: int) -> bool:
        """Return whether a node makes a view and is in no cluster."""
        return isinstance(self._maps.get(position), Viewed | Reshaped) and self._clusters.find(position) is None

    def _is_worth(self, cluster: Cluster, views: set[int], times: float) -> bool:
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
        values = [value for member in cluster.members for value in self._clusters.list_made(member)]
        made = max(self._nodes.specs[value].nbytes for value in values)
        inputs, _ = self._clusters.list_borders(cluster.members)
        shape = self._find_shape(cluster)
        read = sum(self._nodes.specs[value].nbytes for value in inputs if self._nodes.specs[value].shape == shape)
        return (factor * times - 1) * read <= (factor + 1) * made + LAUNCH_NBYTES

    def _is_scattered(self, view: int) -> bool:
        """Return whether neighbours of a view lie apart."""
        found, shown = self._maps[view], self._graph.nodes[view].inputs[0]
        assert shown is not None
        if not isinstance(found, Viewed):
            return False
        own, made = self._nodes.specs[shown].shape, self._nodes.specs[self._clusters.list_made(view)[0]].shape
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
        made = self._nodes.specs[self._clusters.list_made(position)[0]]
        if not windows.is_whole or prod(made.shape[: min(windows.axes, default=0)]) != 1:
            return True
        placed = copied = 0
        for part in windows.parts:
            value = node.inputs[part.source]
            maker = self._nodes.made_at.get(value, -1) if value is not None else -1
            if maker < 0 or self._graph.nodes[maker].operator.makes_views:
                copied += 1
            elif self._clusters.find(maker) is None:
                placed += 1
        return copied > 0 or not placed

    def _is_joined(self, position: int) -> bool:
        """Return whether a node joins several parts, which one launch moves where they can't be made in place."""
        found = self._maps[position]
        if not isinstance(found, Assembled) or not found.is_whole or not 1 < len(found.parts) < MAX_OPERANDS:
            return False
        return self._nodes.specs[self._clusters.list_made(position)[0]].rank <= MAX_RANK

    def _find_shape(self, cluster: Cluster) -> tuple[int, ...]:
        """Return the shape of a cluster's results."""
        return self._nodes.specs[self._clusters.list_made(max({*cluster.members} - cluster.inner))[0]].shape

    def finish(self, limit: int | None, target: Target | None) -> Graph:
        """Return the graph with each of the first clusters that are regions as one node."""
        found = [each for each in self._clusters.list_all() if self._is_region(each)]
        taken_in = {member for each in found for member in each.members}
        found += [Cluster([n]) for n in self._maps if n not in taken_in and self._is_joined(n)]
        able = self._clusters.list_able(sorted(found, key=lambda each: each.members[-1]), Region, target)
        return self._clusters.replace(able[:limit], Region)

    def _is_region(self, cluster: Cluster) -> bool:
        """Return whether a cluster is better one region than the nodes that it has."""
        if len(cluster.members) > 1:
            return True
        (position,) = cluster.members
        inputs = self._graph.nodes[position].inputs
        return position not in self._maps and any(self._lies_across(v) for v in inputs if v is not None)

    def _lies_across(self, value: Value) -> bool:
        """Return whether a value is a view whose elements along the last axis lie apart, and there are many of them."""
        made_at = self._nodes.made_at.get(value)
        operator = None if made_at is None else self._graph.nodes[made_at].operator
        if not isinstance(operator, Transpose):
            return False
        spec = self._nodes.specs[value]
        is_across = operator.perm is None or operator.perm[-1] != spec.rank - 1
        return is_across and spec.size * SECTOR_BYTES >= MIN_EXCESS

    def _begins(self, position: int) -> bool:
        """Return whether a node with an index map has a cluster from the beginning, as views have not."""
        found = self._maps[position]
        return not isinstance(found, Viewed | Reshaped) and (
            not isinstance(found, Assembled) or self._gains(position, found)
        )

    def _fits(self, own: Cluster, other: Cluster, *, is_inner: bool = False) -> bool:
        """Return whether two clusters may be one.

        Args:
            own: One of them.
            other: Another one.
            is_inner: Whether the other one's values are for windows or views in the first.
        """
        members = {*own.members, *other.members}
        if not is_inner and self._find_shape(own) != self._find_shape(other):
            return False
        if len(self._find_shape(own)) > MAX_RANK or not self._clusters.is_small(sorted(members)):
            return False
        inputs, _ = self._clusters.list_borders(sorted(members))
        if any(isinstance(self._maps.get(member), Picked) and not self._reads(member, inputs) for member in members):
            return False  # slices are picked of what is in memory
        if is_inner and self._count_evaluations(sorted(members)) > _MAX_EVALUATIONS:
            return False
        if any(isinstance(self._maps.get(member), Reshaped) for member in members) and not self._is_mapped(members):
            return False
        return not self._clusters.leads_back(members)

    def _is_mapped(self, members: set[int]) -> bool:
        """Return whether a region of these nodes finds all that it reads by coordinates of its results."""
        made, inputs, results = self._clusters.write_steps(sorted(members), Region)
        specs = [self._nodes.specs[value] for value in inputs]
        slots = [Slot(n, 0, s, contiguous_strides(s.shape)) for n, s in enumerate(specs)]
        return not results or can_map(made.steps, find_forms(made.steps, list_keys(specs)), made.results, slots)

    def _count_evaluations(self, members: Sequence[int]) -> int:
        """Return how many values of one element a region of these nodes has: one for each window or view of a node."""
        spaces: dict[int, set[int]] = {}
        count = fresh = 0
        for member in reversed(members):
            found, node = self._maps.get(member), self._graph.nodes[member]
            if any(self._nodes.is_read_beside(value, members) for value in self._clusters.list_made(member)):
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
