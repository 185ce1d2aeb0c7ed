"""Fusion of reductions of rows with the operators on elements around them into regions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from gpuexec.ir.geometry import normalize_axis
from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.operator import FormatUse, Operator
from gpuexec.ir.row_form import RowForm
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ops.elementwise.region import RowRegion
from gpuexec.ops.elementwise.region_steps import list_keys
from gpuexec.ops.reduce.reduce_arg import ArgMax
from gpuexec.ops.reduce.topk import TopElement, TopK, TopPlace
from gpuexec.passes.clusters import Cluster, Clusters
from gpuexec.passes.fuse_epilogues import find_epilogues
from gpuexec.passes.known_specs import Shapes
from gpuexec.passes.pointwise_nodes import PointwiseNodes

# A row is worked on by one block. Where it is longer than a block keeps on chip, and rows are too few to keep a device
# busy, operators on elements are faster by themselves.
_LONG, _MANY_ROWS = 8192, 128


def fuse_rows(
    graph: Graph, specs: Mapping[str, TensorSpec], limit: int | None = None, *, target: Target | None = None
) -> Graph:
    """Fuse operators that reduce the same rows, and those on elements in front, between and behind, into one operator.

    Rows are the elements along the last axes. A row is read once and stays in registers, as far as it fits. An operator
    that an epilogue takes stays there, be it behind a product or, alone, behind a reduction to one element for each
    row: that moves as few bytes. Results stay the same to the bit.

    Args:
        graph: The graph as loaded.
        specs: Specs of the inputs, by name.
        limit: The most regions to make, the first ones; None: all.
        target: What is planned for: where memory is textures, what has no blits stays operators. None: any kernels.
    """
    graph = _take_apart(graph, specs)
    nodes, gains = PointwiseNodes.of(graph, specs), any(map(_gains_by_format, graph.nodes))
    forms = {
        n: form
        for n, node in enumerate(graph.nodes)
        if not (gains and node.operator.format_use is FormatUse.FOLLOWS)  # images may lie channels last
        and (form := nodes.find_row_form(node)) is not None
    }
    if not forms:
        return graph
    fusing = _RowFusing(graph, nodes, forms)
    for position in forms:
        fusing.grow(position)
    return fusing.finish(limit, target)


def _gains_by_format(node: Node) -> bool:
    """Return whether a node may gain where images lie channels last."""
    return type(node.operator).count_format_gain is not Operator.count_format_gain


def _take_apart(graph: Graph, specs: Mapping[str, TensorSpec]) -> Graph:
    """Return a graph in which the first element of a row, and its place, are made by an operator each."""
    if not any(isinstance(node.operator, TopK) for node in graph.nodes):
        return graph
    found, nodes = Shapes.of(graph, specs).specs, list[Node]()
    wanted = {*graph.consumers(), *graph.outputs}
    for node in graph.nodes:
        x = node.inputs[0] if node.inputs else None
        if isinstance(node.operator, TopK) and x in found and _is_first(node, graph, found[x]):
            axis, largest = node.operator.axis, node.operator.largest
            place = ArgMax(axis) if largest else TopPlace(axis, largest)  # of the smallest, NaN come last
            parts = zip(node.outputs, (TopElement(axis, largest), place), strict=False)
            made = [replace(node, operator=part, inputs=(x,), outputs=(y,)) for y, part in parts if y in wanted]
        else:
            made = []
        nodes += made or [node]
    return replace(graph, nodes=tuple(nodes))


def _is_first(node: Node, graph: Graph, x: TensorSpec) -> bool:
    """Return whether a TopK takes one element of each row, and rows are such that a region may be made of them."""
    assert isinstance(node.operator, TopK)
    count = graph.constants.get(node.inputs[1]) if node.inputs[1] is not None else None
    is_last = x.rank > 0 and normalize_axis(node.operator.axis, x.rank) == x.rank - 1
    is_one = count is not None and count.size == 1 and int(count.reshape(())[()]) == 1
    return is_last and is_one and not _is_long(prod(x.shape[:-1]), x.shape[-1])


def _is_long(rows: int, columns: int) -> bool:
    """Return whether rows are longer than a block keeps on chip, and too few to keep a device busy."""
    return columns > _LONG and rows < _MANY_ROWS


class _RowFusing:
    """Clusters that grow from reductions."""

    def __init__(self, graph: Graph, nodes: PointwiseNodes, forms: Mapping[int, RowForm]) -> None:
        self._graph, self._nodes, self._forms = graph, nodes, forms
        taken = {member for group in find_epilogues(graph, nodes, forms) for member in group.members}
        others = (n for n, node in enumerate(graph.nodes) if n not in taken and nodes.can_be_step(node))
        self._clusters = Clusters(graph, nodes, [*others, *forms])

    def grow(self, position: int) -> None:
        """Join a reduction with its neighbours, and with theirs, as long as rows are the same."""
        whole = self._list_shapes(position)
        if not whole:
            return
        own = self._clusters.find(position)
        while own is not None:
            found = (self._clusters.find(each) for each in self._list_neighbours(own, whole))
            other = next((each for each in found if each is not None and self._fits(own, each)), None)
            if other is None:
                return
            self._clusters.join(other, own)

    def finish(self, limit: int | None, target: Target | None) -> Graph:
        """Return the graph with the first clusters that an epilogue can't do as one node each."""
        found = [cluster for cluster in self._clusters.list_all() if len(cluster.members) > 1]
        if not found:
            return self._graph
        # A norm's row takes 3.2 us on an H100 where its own kernel with an epilogue takes 4.6 (128 rows of 768).
        elements = {position for position, form in self._forms.items() if not form.is_reduced}
        epilogues = {group.position: set(group.members) for group in find_epilogues(self._graph, self._nodes, elements)}
        wanted = [
            cluster
            for cluster in found
            if not any(set(cluster.members) <= {n, *epilogues.get(n, ())} for n in cluster.members)
        ]
        return self._clusters.replace(self._clusters.list_able(wanted, RowRegion, target)[:limit], RowRegion)

    def _list_shapes(self, position: int) -> set[tuple[int, ...]]:
        """Return the shapes of values that go with the rows of a reduction; none where it is better left alone."""
        value, axis = self._graph.nodes[position].inputs[0], self._forms[position].axis
        assert value is not None
        shape = self._nodes.specs[value].shape
        if _is_long(prod(shape[:axis]), prod(shape[axis:])):
            return set()
        return {shape, (*shape[:axis], *(1,) * (len(shape) - axis)), shape[:axis]}

    def _list_neighbours(self, cluster: Cluster, shapes: set[tuple[int, ...]]) -> Iterator[int]:
        """Yield the nodes that make what a cluster reads, those that read what it makes, and reductions of its rows."""
        inside = set(cluster.members)
        makers = [
            maker for value in self._clusters.list_borders(cluster.members)[0]
            if (maker := self._nodes.made_at.get(value, -1)) >= 0
        ]  # fmt: skip
        readers = {
            reader for member in cluster.members for value in self._clusters.list_made(member)
            for reader in self._nodes.list_readers(value) if reader not in inside
        }  # fmt: skip
        beside = {
            reader for member in cluster.members if member in self._forms
            for reader in self._nodes.list_readers(self._find_source(member))
            if reader in self._forms and reader not in inside
        }  # fmt: skip
        for position in (*sorted(makers, reverse=True), *sorted(readers | beside)):
            if all(self._nodes.specs[value].shape in shapes for value in self._clusters.list_made(position)):
                yield position

    def _find_source(self, position: int) -> Value:
        """Return the value whose rows a node reduces."""
        value = self._graph.nodes[position].inputs[0]
        assert value is not None
        return value

    def _fits(self, own: Cluster, other: Cluster) -> bool:
        """Return whether two clusters may be one: rows are the same, and no way leads out and back."""
        members = sorted({*own.members, *other.members})
        if not self._clusters.is_small(members) or self._clusters.leads_back(set(members)):
            return False
        operator, inputs, _ = self._clusters.write_steps(members, RowRegion)
        assert isinstance(operator, RowRegion)
        return operator.find_layout(list_keys([self._nodes.specs[value] for value in inputs])) is not None
