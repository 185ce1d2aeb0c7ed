"""Grouped-query attention: removal of repeated key and value heads in front of Attention."""

from __future__ import annotations

from dataclasses import fields, replace

from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ops.nn.attention import Attention, AttentionOverCache
from gpuexec.ops.nn.heads import GroupHeads
from gpuexec.ops.tensor.layout import Expand, Reshape


def group_heads(graph: Graph) -> Graph:
    """Replace repeated heads of keys and values, a Reshape of an Expand, by groups that are not copied.

    An exporter that does not know of shared heads puts a new axis behind the heads, stretches it and joins the two. The
    joining alone needs a copy. Whether it is heads that are joined is decided when sizes are known; see `GroupHeads`.
    The result has the same bits, unless a kernel deals keys out to blocks by the rows that share them: with more than
    256 keys and 64 rows of a group, or with a left window, they may be summed up in another order.
    """
    producers = graph.producers()
    names = {value.name for value in graph.values()}
    grouped: dict[Value, Node] = {}  # by what the Reshape makes
    nodes: list[Node] = []
    for node in graph.nodes:
        attention = _as_over_cache(node)
        joined = None if attention is None else _find_joined(attention, producers)
        if attention is None or joined is None:
            nodes.append(node)
            continue
        for value in joined:
            if value not in grouped:
                reshape = producers[value]
                name = f"{value.name}.grouped"
                while name in names:
                    name += "_"
                names.add(name)
                operator = GroupHeads(getattr(reshape.operator, "allowzero"))  # noqa: B009
                grouped[value] = Node(operator, reshape.inputs, (Value(name),), name)
                nodes.append(grouped[value])
        query, _, _, *rest = attention.inputs
        keys, values = (grouped[value].outputs[0] for value in joined)
        nodes.append(replace(attention, inputs=(query, keys, values, *rest)))
    return replace(graph, nodes=tuple(nodes)) if grouped else graph


def _as_over_cache(node: Node) -> Node | None:
    """Return a node of attention as one over whole keys and values of four axes; None where it is none."""
    op = node.operator
    if isinstance(op, AttentionOverCache):
        return node
    # With a number of heads they may have three axes; with a past they are not whole.
    if not isinstance(op, Attention) or op.kv_num_heads is not None:
        return None
    query, keys, values, mask, past_keys, past_values, lengths = (*node.inputs, *(None,) * 7)[:7]
    y, present_keys, present_values, scores = (*node.outputs, *(None,) * 4)[:4]
    if any((past_keys, past_values, present_keys, present_values)):
        return None
    inner = AttentionOverCache(**{f.name: getattr(op, f.name) for f in fields(op)})
    return Node(inner, (query, keys, values, mask, None, lengths), (y, scores), node.name, node.part_of)


def _find_joined(attention: Node, producers: dict[Value, Node]) -> tuple[Value, Value] | None:
    """Return keys and values where both are results of a Reshape of an Expand."""
    keys, values = attention.inputs[1:3]
    if keys is None or values is None:
        return None
    for value in (keys, values):
        reshape = producers.get(value)
        if reshape is None or not isinstance(reshape.operator, Reshape) or reshape.inputs[0] is None:
            return None
        expand = producers.get(reshape.inputs[0])
        if expand is None or not isinstance(expand.operator, Expand):
            return None
    return keys, values
