"""Joining of attention over a cache with the Appends that make its keys and values: one operator, and one launch.

Done for a target, when it is known which memories grow in place: elsewhere there is nothing to gain, and the graph says
what it said. Results stay the same to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.operator import describe
from gpuexec.ir.target import Target
from gpuexec.ops.elementwise.region_steps import StepRow, made_by
from gpuexec.ops.nn.appending_attention import AppendingAttention
from gpuexec.ops.nn.attention_few import FEW_QUERIES
from gpuexec.ops.nn.dot_product_attention import ScaledDotProductAttention
from gpuexec.ops.nn.heads import GroupHeads
from gpuexec.ops.tensor.append import Append
from gpuexec.ops.tensor.copy import Concat
from gpuexec.ops.tensor.layout import Expand, Reshape, Squeeze, Transpose, Unsqueeze
from gpuexec.planner.analyse import Analysis
from gpuexec.planner.caches import Cache, Caches

_VIEWS = (Transpose, Unsqueeze, Squeeze, Expand, Reshape, GroupHeads)
_MAX_VIEWS = 8


def join_appends(graph: Graph, analysis: Analysis, caches: Caches, target: Target) -> Graph:
    """Return a graph in which attention of few queries appends to the memories that its keys and values are of.

    Args:
        graph: The graph.
        analysis: Of the upper end of the size class.
        caches: Inputs that are memories with room for more rows.
        target: What it is planned for.
    """
    if not caches or not target.has_kernels or target.has_textures:
        return graph
    joined = graph
    for node in graph.nodes:
        found = _find(joined, node, analysis, caches)
        if found is not None:
            joined = _join(joined, found, analysis) or joined
    return joined


@dataclass(frozen=True, slots=True)
class _CachedAttention:
    """Attention, the Appends of keys and of values, and the views of what these make, the one nearest to it first."""

    attention: Node
    appends: tuple[Node, Node]
    views: tuple[list[Node], list[Node]]


def _find(graph: Graph, node: Node, analysis: Analysis, caches: Caches) -> _CachedAttention | None:
    """Return attention of few queries over two memories that grow; None where the node is none."""
    operator, q = node.operator, node.inputs[0] if node.inputs else None
    if not isinstance(operator, ScaledDotProductAttention) or q is None:
        return None
    if not operator.takes_new_rows(analysis.specs[q]):
        return None
    producers = graph.producers()
    ways = [_climb(value, producers) for value in node.inputs[1:3]]
    grown: dict[Value | None, Cache] = {cache.output: cache for cache in caches.values()}
    for way in ways:
        cache = None if way is None else grown.get(way[-1].outputs[0])
        if cache is None or analysis.specs[cache.rows].shape[cache.axis] > FEW_QUERIES:
            return None
    (*k_views, k_append), (*v_views, v_append) = (way for way in ways if way is not None)
    return None if k_append is v_append else _CachedAttention(node, (k_append, v_append), (k_views, v_views))


def _climb(value: Value | None, producers: dict[Value, Node]) -> list[Node] | None:
    """Return the views from a value up to an Append, and that last; None where there is no such way."""
    way: list[Node] = []
    while value is not None and len(way) <= _MAX_VIEWS:
        node = producers.get(value)
        if node is None:
            return None
        way.append(node)
        if isinstance(node.operator, Append):
            return way
        if not isinstance(node.operator, _VIEWS):
            return None
        value = node.inputs[0]
    return None


def _join(graph: Graph, found: _CachedAttention, analysis: Analysis) -> Graph | None:
    """Return the graph with one node for them; None where attention waits for something else made of the memories."""
    joined = _make_node(found)
    late = set(joined.outputs[1:])
    before: list[Node] = []
    behind: list[Node] = []
    is_there = False
    for node in graph.nodes:
        if node is found.attention:
            is_there = True
            if any(value in late and value not in analysis.known for value in joined.inputs):
                return None
            before.append(joined)
            before += behind
        elif node in found.appends:
            continue
        elif not is_there and not late.isdisjoint(node.inputs):
            late.update(value for value in node.outputs if value is not None)
            behind.append(node)
        else:
            before.append(node)
    return replace(graph, nodes=tuple(before))


def _make_node(found: _CachedAttention) -> Node:
    """Return the node, under the name of the attention."""
    inputs: list[Value | None] = []
    rows: list[StepRow] = []
    sources: dict[Value | None, int] = {}

    def add(node: Node, name: str, attributes: Sequence[tuple[str, object]]) -> None:
        for value in node.inputs:
            if value is not None and value not in sources:
                sources[value] = len(inputs)
                inputs.append(value)
        given = [None if value is None else sources[value] for value in node.inputs]
        sources[node.outputs[0]] = made_by(len(rows))
        rows.append((name, tuple(attributes), tuple(given)))

    for append in found.appends:
        assert isinstance(append.operator, Append)
        # That there is room the graph has been asked for already, and layers that are alike are lowered once.
        add(append, *describe(Concat(append.operator.axis)))
    for views in found.views:
        for view in reversed(views):
            if view.outputs[0] not in sources:
                add(view, *describe(view.operator))
    add(found.attention, *describe(found.attention.operator))
    outputs = (found.attention.outputs[0], *(append.outputs[0] for append in found.appends))
    return replace(found.attention, operator=AppendingAttention(tuple(rows)), inputs=tuple(inputs), outputs=outputs)
