"""Rewriting of attention nodes at import: FlexAttention, and Attention with a KV cache."""

from __future__ import annotations

from dataclasses import fields, replace

from gpuexec.ir.graphs import Node, RawNode, Value
from gpuexec.ir.operator import decompose, upgrade
from gpuexec.ops.nn.attention import Attention, AttentionOverCache
from gpuexec.ops.nn.heads import SplitHeads
from gpuexec.ops.tensor.copy import Concat

_ROWS = 2  # axis of [batch, heads, rows, size]


@upgrade("ai.onnx.preview.FlexAttention", below=2)
def _take_for_attention(node: RawNode) -> RawNode:
    """Rewrite FlexAttention without graphs as Attention; with graphs, leave its ONNX body to be expanded."""
    return replace(node, op_type="Attention", domain="")


@decompose("Attention")
def _take_cache_out(node: Node) -> tuple[Node, ...]:
    """Rewrite Attention with a past as Concats of past and new rows, and attention over their results."""
    op = node.operator
    assert isinstance(op, Attention)
    q, k, v, mask, past_key, past_value, lengths = (*node.inputs, *(None,) * 7)[:7]
    y, present_key, present_value, scores = (*node.outputs, *(None,) * 4)[:4]
    is_whole = (past_key is None) == (past_value is None) and (past_key is None or lengths is None)
    if k is None or v is None or not is_whole or not (past_key or present_key or present_value):
        return (node,)
    nodes: list[Node] = []

    def extend(role: str, new: Value, past: Value | None, present: Value | None) -> tuple[Value, Value]:
        """Return the new rows with four axes, and all rows."""
        whole = Value(f"{node.name}.{role}") if present is None else present
        rows = new if past is not None and op.kv_num_heads is None else Value(f"{node.name}.new_{role}")
        if past is None:
            nodes.append(Node(SplitHeads(op.kv_num_heads), (new,), (whole,), whole.name))
            return whole, whole
        if rows is not new:
            nodes.append(Node(SplitHeads(op.kv_num_heads), (new,), (rows,), rows.name))
        nodes.append(Node(Concat(_ROWS), (past, rows), (whole,), whole.name))
        return rows, whole

    new_keys, keys = extend("keys", k, past_key, present_key)
    _, values = extend("values", v, past_value, present_value)
    inner = AttentionOverCache(**{f.name: getattr(op, f.name) for f in fields(op)})
    counted = None if past_key is None else new_keys
    nodes.append(Node(inner, (q, keys, values, mask, counted, lengths), (y, scores), node.name))
    return tuple(nodes)
