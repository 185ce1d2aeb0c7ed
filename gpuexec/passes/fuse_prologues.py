"""Prologue fusion of products with the operators on rows before them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from gpuexec.errors import name_after
from gpuexec.ir.graphs import Graph, Node, Value, take_free
from gpuexec.ir.operator import describe
from gpuexec.ir.spec import BFLOAT16, TensorSpec
from gpuexec.ops.elementwise.epilogue import fused_name
from gpuexec.ops.elementwise.fused import Fused
from gpuexec.ops.elementwise.prologue import MOST_ROWS, ProductOfRows, read_maker
from gpuexec.ops.elementwise.prologue_text import MAX_OPERANDS
from gpuexec.ops.elementwise.region import Steps
from gpuexec.ops.elementwise.region_steps import list_keys
from gpuexec.ops.linalg.matmul import Gemm, MatMul
from gpuexec.ops.microsoft.few_nbits import MOST_ROWS as MOST_CODED_ROWS
from gpuexec.ops.microsoft.matmul_nbits import MatMulNBits
from gpuexec.ops.tensor.layout import Reshape
from gpuexec.passes.pointwise_nodes import PointwiseNodes, order_nodes

_CODED = (MatMulNBits.name, fused_name(MatMulNBits.name))
_PRODUCTS = {*_CODED, *[name for each in (MatMul.name, Gemm.name) for name in (each, fused_name(each))]}
_DTYPES = (np.dtype(np.float16), BFLOAT16)  # of operands whose products take prologues
_MAX_READERS = 3  # products that make the same rows, each for itself


def fuse_prologues(graph: Graph, specs: Mapping[str, TensorSpec], limit: int | None = None) -> Graph:
    """Fuse products of few rows with the operators on rows before them, which every block then runs itself.

    Operators are those that a region of rows or an epilogue has, or one of them by itself, whose result products alone
    read, as their left operand. Results stay the same to the bit. If the planner finds that a kernel takes no prologue,
    or that blocks would take longer for the rows than a launch takes, the rows are made in front.

    Args:
        graph: The graph as loaded.
        specs: Specs of the inputs, by name.
        limit: The most operators to make, the first ones; None: all.
    """
    if not any(node.operator.name in _PRODUCTS for node in graph.nodes):
        return graph
    return _PrologueFusing(graph, PointwiseNodes.of(graph, specs)).finish(limit)


@dataclass(frozen=True, slots=True)
class _Maker:
    """What makes a product's left operand: its node, and the view in front of the product, or None."""

    node: Node
    view: Node | None


class _PrologueFusing:
    """The makers of products' left operands."""

    def __init__(self, graph: Graph, nodes: PointwiseNodes) -> None:
        self._graph, self._nodes = graph, nodes

    def finish(self, limit: int | None) -> Graph:
        """Return the graph with the first products that have a maker as one node with it each."""
        found = {n: maker for n, node in enumerate(self._graph.nodes) if (maker := self._find_maker(node)) is not None}
        found = {n: maker for n, maker in found.items() if self._is_alone(maker.node, found.keys())}
        if not found:
            return self._graph
        taken = {node.name for node in self._graph.nodes}
        fused = {n: self._make_node(self._graph.nodes[n], found[n], taken) for n in list(found)[:limit]}
        nodes = [fused.get(n, node) for n, node in enumerate(self._graph.nodes)]
        return replace(self._graph, nodes=order_nodes(nodes))

    def _find_maker(self, node: Node) -> _Maker | None:
        """Return what makes the left operand of a product of few rows, where that may go into the product."""
        if not self._takes_rows(node):
            return None
        (value, *_), view = node.inputs, None
        assert value is not None
        position = self._nodes.made_at.get(value, -1)
        if position >= 0 and self._graph.nodes[position].operator.name == Reshape.name:
            view = self._graph.nodes[position]
            source, shape = view.inputs
            if source is None or shape not in self._graph.constants or view.operator.allowzero:  # type: ignore[attr-defined]
                return None
            if self._nodes.specs[source].shape[-1:] != self._nodes.specs[value].shape[-1:]:
                return None
            position = self._nodes.made_at.get(source, -1)
        if position < 0:
            return None
        maker = self._graph.nodes[position]
        given = [each for each in maker.inputs if each is not None]
        if len(given) > MAX_OPERANDS or any(each not in self._nodes.specs for each in given):
            return None
        if any(each is not None and self._nodes.is_read_beside(each, ()) for each in maker.outputs[1:]):
            return None
        specs = [None if each is None else self._nodes.specs[each] for each in maker.inputs]
        form = maker.operator.as_row(specs)
        is_row = form is not None and not form.read  # what a form holds is no operand
        if not is_row and not isinstance(maker.operator, (Fused, Steps)) and not self._nodes.is_pointwise(maker):
            return None
        is_able = maker.outputs[0] not in self._nodes.on_host
        return _Maker(maker, view) if is_able and read_maker(maker.operator, list_keys(specs)) is not None else None

    def _takes_rows(self, node: Node) -> bool:
        """Return whether a node is a product of few rows of a type that kernels take with a prologue."""
        if node.operator.name not in _PRODUCTS or getattr(node.operator, "transA", False):
            return False
        a, b, *others = node.inputs
        left, right = (None if each is None else self._nodes.specs.get(each) for each in (a, b))
        is_coded = node.operator.name in _CODED
        if left is None or right is None or left.dtype not in _DTYPES or left.rank < 2:
            return False
        if not is_coded and right.rank != 2:
            return False
        most = MOST_CODED_ROWS if is_coded else MOST_ROWS
        return 0 < prod(left.shape[:-1]) <= most and left.size > 0 and a not in (b, *others)

    def _is_alone(self, maker: Node, products: Collection[int]) -> bool:
        """Return whether a few products are all that reads what a node makes, through views or not."""
        waiting = [value for value in maker.outputs if value is not None]
        readers: set[int] = set()
        while waiting:
            value = waiting.pop()
            if self._nodes.is_output(value):
                return False
            for reader in self._nodes.list_readers(value):
                if reader in products:
                    readers.add(reader)
                elif self._graph.nodes[reader].operator.name == Reshape.name:
                    waiting += [each for each in self._graph.nodes[reader].outputs if each is not None]
                else:
                    return False
        return len(readers) <= _MAX_READERS

    def _make_node(self, product: Node, maker: _Maker, taken: set[str]) -> Node:
        """Return a product with what makes its left operand as one node."""
        nodes = [maker.node, *([] if maker.view is None else [maker.view]), product]
        view = None
        if maker.view is not None:
            shape: Value | None = maker.view.inputs[1]
            assert shape is not None
            view = tuple(self._graph.constants[shape].tolist())
        own = maker.node.inputs
        operator = ProductOfRows(describe(maker.node.operator), describe(product.operator), len(own), view)
        name = name_after(take_free("+".join(node.name for node in nodes), taken), product.name)
        part_of = product.part_of if len({node.part_of for node in nodes}) == 1 else ""
        return Node(operator, (*own, *product.inputs[1:]), product.outputs, name, part_of)
