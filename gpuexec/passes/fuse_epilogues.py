"""Epilogue fusion of an operator with the operators on elements behind it."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from gpuexec.errors import name_after
from gpuexec.ir.graphs import Graph, Node, Value, take_free
from gpuexec.ir.operator import build, describe
from gpuexec.ir.spec import BFLOAT16, TensorSpec
from gpuexec.ops.elementwise.epilogue import STORED, find_place, fused_name
from gpuexec.ops.elementwise.fused import PRODUCERS
from gpuexec.ops.linalg.matmul import Gemm, MatMul
from gpuexec.ops.linalg.scaled_matmul import ScaledMatMul
from gpuexec.ops.tensor.layout import Reshape
from gpuexec.passes.pointwise_nodes import PointwiseNodes, order_nodes

# Registers of a kernel with sums grow with operands and results, the time to compile with the steps.
_MAX_STEPS, _MAX_OPERANDS, _MAX_RESULTS = 24, 3, 3
_FLOAT = np.dtype(np.float32)
_FLOATS = (_FLOAT, np.dtype(np.float16), BFLOAT16)
# Producers whose results steps may see under another shape: those that are never images in another memory format.
_RESHAPED = (Gemm.name, MatMul.name, ScaledMatMul.name)


@dataclass(slots=True)
class EpilogueGroup:
    """A producer, and the steps that its kernel takes.

    Attributes:
        position: Of the producer.
        value: What steps see of what it makes.
        depth: How many operators that are no steps stand one behind the other in front of it.
        view: The Reshape between producer and steps; None: there is none.
        members: Positions of the steps.
    """

    position: int
    value: Value
    depth: int
    view: Node | None = None
    members: list[int] = field(default_factory=list)


def fuse_epilogues(graph: Graph, specs: Mapping[str, TensorSpec], limit: int | None = None) -> Graph:
    """Fuse operators on elements into the operator with sums before them.

    Its kernel applies them before it stores, and stores all that others read. What else they read must be there when
    the producer runs by no longer way through the graph than the producer's own inputs: a branch that takes longer is
    not waited for. It may not stretch the result; if the planner finds that it does, since content or another size says
    so, the steps run behind the producer. Results stay the same to the bit.

    Args:
        graph: The graph as loaded.
        specs: Specs of the inputs, by name.
        limit: The most operators to make, the first ones; None: all.
    """
    fusing = _Fusing(graph, PointwiseNodes.of(graph, specs), ())
    fusing.walk()
    return fusing.finish(limit)


def find_epilogues(graph: Graph, nodes: PointwiseNodes, without: Container[int] = ()) -> list[EpilogueGroup]:
    """Return the producers that `fuse_epilogues` finds, each with the steps that it puts into it.

    Args:
        graph: The graph.
        nodes: Its nodes.
        without: Positions of nodes that are to be no producers.
    """
    fusing = _Fusing(graph, nodes, without)
    return fusing.walk()


class _Fusing:
    """Walk over a graph; `_cluster_of` has the cluster that makes a value."""

    def __init__(self, graph: Graph, nodes: PointwiseNodes, without: Container[int]) -> None:
        self._graph, self._nodes, self._without = graph, nodes, without
        self._cluster_of: dict[Value, EpilogueGroup] = {}
        self._clusters: list[EpilogueGroup] = []
        self._depths: dict[Value, int] = {}

    def walk(self) -> list[EpilogueGroup]:
        """Visit all nodes and return the clusters, as long as kernels can store what they make."""
        for position, node in enumerate(self._graph.nodes):
            self._visit(position, node)
        for cluster in self._clusters:
            self._shorten(cluster)
        return self._clusters

    def _visit(self, position: int, node: Node) -> None:
        """Make a node a step of a cluster, or begin one with it."""
        is_pointwise = self._nodes.is_pointwise(node)
        if is_pointwise:
            self._extend(position, node)
        elif node.operator.name == Reshape.name:
            self._view(node)
        elif position not in self._without:
            self._begin(position, node)
        depth = self._find_depth(node) + (not is_pointwise)
        for value in node.outputs:
            if value is not None:
                self._depths[value] = 0 if value in self._nodes.on_host else depth

    def finish(self, limit: int | None) -> Graph:
        """Return the graph with each of the first clusters as one node."""
        taken = {node.name for node in self._graph.nodes}
        fused: dict[int, Node] = {}
        gone: set[int] = set()
        for cluster in [each for each in self._clusters if each.members][:limit]:
            fused[cluster.position] = self._make_node(cluster, taken)
            gone.update(cluster.members)
            gone.update([] if cluster.view is None else [self._nodes.made_at[cluster.value]])
        if not fused:
            return self._graph
        nodes = [fused.get(n, node) for n, node in enumerate(self._graph.nodes) if n not in gone]
        return replace(self._graph, nodes=order_nodes(nodes))

    def _begin(self, position: int, node: Node) -> None:
        value, *others = node.outputs
        is_producer = node.operator.name in PRODUCERS
        spec = None if value is None else self._nodes.specs.get(value)
        if not is_producer or value is None or spec is None or spec.dtype not in _FLOATS:
            return
        if any(other is not None and self._nodes.is_read_beside(other, ()) for other in others):
            return
        cluster = EpilogueGroup(position, value, self._find_depth(node))
        self._cluster_of[value] = cluster
        self._clusters.append(cluster)

    def _view(self, node: Node) -> None:
        """Let steps see what a product makes under a known shape, where nothing else reads it."""
        source, shape = node.inputs
        cluster, made = self._cluster_of.get(source) if source is not None else None, node.outputs[0]
        if cluster is None or cluster.members or cluster.view is not None or made is None or source is None:
            return
        operator = node.operator
        assert isinstance(operator, Reshape)
        is_product = self._graph.nodes[cluster.position].operator.name in _RESHAPED
        is_known = shape in self._graph.constants and made in self._nodes.specs
        is_alone = not self._nodes.is_read_beside(source, (self._nodes.made_at[made],))
        if is_product and is_known and is_alone and not operator.allowzero:
            del self._cluster_of[source]
            cluster.value, cluster.view = made, node
            self._cluster_of[made] = cluster

    def _extend(self, position: int, node: Node) -> None:
        """Make a node a step of the last cluster among those that make its inputs."""
        found = {id(each): each for value in node.inputs if value is not None and (each := self._cluster_of.get(value))}
        for cluster in sorted(found.values(), key=lambda each: each.position, reverse=True):
            made = node.outputs[0]
            if made is not None and self._fits(cluster, node, made):
                cluster.members.append(position)
                self._cluster_of[made] = cluster
                return

    def _fits(self, cluster: EpilogueGroup, node: Node, made: Value) -> bool:
        """Return whether a node can be the next step of a cluster."""
        shape = self._nodes.specs[cluster.value].shape
        if self._nodes.specs[made].shape != shape or len(cluster.members) >= _MAX_STEPS:
            return False
        operands = self._list_operands(cluster)
        for value in self._nodes.list_operands(node):
            if self._cluster_of.get(value) is cluster:
                continue
            if self._depths.get(value, 0) > cluster.depth or find_place(self._nodes.specs[value].shape, shape) is None:
                return False
            operands[value] = None
        return len(operands) <= _MAX_OPERANDS

    def _list_operands(self, cluster: EpilogueGroup) -> dict[Value, None]:
        """Return the values that the steps of a cluster read of others, in order."""
        nodes = [self._graph.nodes[member] for member in cluster.members]
        made = {cluster.value, *(node.outputs[0] for node in nodes)}
        return {value: None for node in nodes for value in self._nodes.list_operands(node) if value not in made}

    def _list_results(self, cluster: EpilogueGroup) -> list[Value]:
        """Return what the producer and the steps make that others read."""
        made = [cluster.value, *(self._graph.nodes[member].outputs[0] for member in cluster.members)]
        return [value for value in made if value is not None and self._nodes.is_read_beside(value, cluster.members)]

    def _shorten(self, cluster: EpilogueGroup) -> None:
        """Take the last steps away as long as no kernel stores what others read then."""
        dtype = self._nodes.specs[cluster.value].dtype
        stored = (dtype, *(STORED if dtype == _FLOAT else ()))
        while cluster.members:
            results = self._list_results(cluster)
            if len(results) <= _MAX_RESULTS and any(self._nodes.specs[value].dtype in stored for value in results):
                return
            cluster.members.pop()

    def _find_depth(self, node: Node) -> int:
        return max([self._depths.get(value, 0) for value in node.inputs if value is not None], default=0)

    def _make_node(self, cluster: EpilogueGroup, taken: set[str]) -> Node:
        """Return a cluster as a node; what its steps read stands behind what the producer does."""
        producer = self._graph.nodes[cluster.position]
        members = [self._graph.nodes[member] for member in cluster.members]
        operands, made = list(self._list_operands(cluster)), [cluster.value, *(node.outputs[0] for node in members)]
        sources = {value: -1 - place for place, value in enumerate(made) if value is not None}
        sources.update({value: len(producer.inputs) + place for place, value in enumerate(operands)})
        results = self._list_results(cluster)
        _, attributes = describe(producer.operator)
        added: dict[str, object] = {
            "steps": tuple([self._nodes.write_row(node, sources) for node in members]),
            "results": tuple([made.index(value) for value in results]),
        }
        nodes = [producer, *members]
        if cluster.view is not None:
            shape = cluster.view.inputs[1]
            assert shape is not None
            added["view"] = tuple(self._graph.constants[shape].tolist())
            nodes.insert(1, cluster.view)
        name = name_after(take_free("+".join(node.name for node in nodes), taken), producer.name)
        part_of = producer.part_of if len({node.part_of for node in nodes}) == 1 else ""
        operator = build(fused_name(producer.operator.name), {**dict(attributes), **added})
        return Node(operator, (*producer.inputs, *operands), tuple(results), name, part_of)
