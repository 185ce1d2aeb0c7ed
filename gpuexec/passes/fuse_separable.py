"""Fusion of depthwise separable convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np

from gpuexec.errors import name_after
from gpuexec.ir.graphs import Graph, Node, Value, take_free
from gpuexec.ir.operator import Operator, build, describe
from gpuexec.ir.spec import BFLOAT16, TensorSpec
from gpuexec.ops.elementwise.fused import Fused
from gpuexec.ops.nn.conv import Conv
from gpuexec.ops.nn.conv_depthwise_last import takes_depthwise_last
from gpuexec.ops.nn.conv_separable import SeparableConv, list_rows
from gpuexec.passes.known_specs import Shapes

_HALVES = (np.dtype(np.float16), BFLOAT16)


def fuse_separable(graph: Graph, specs: Mapping[str, TensorSpec]) -> Graph:
    """Fuse depthwise convolutions with the convolutions of one tap behind them, as one launch may do both.

    Those of half and bf16, with the epilogues that they have. Nothing else reads what the
    first one makes. Results stay the same to the bit; whether it is one launch is decided as it is lowered.

    Args:
        graph: The graph as loaded.
        specs: Specs of the inputs, by name.
    """
    known = Shapes.of(graph, specs).specs
    readers, outputs = graph.consumers(), set(graph.outputs)
    taken = {node.name for node in graph.nodes}
    joined: dict[int, Node] = {}
    gone: set[int] = set()
    for node in graph.nodes:
        made = node.outputs[0] if _is_depthwise(node, known) else None
        reading = [] if made is None or made in outputs else readers.get(made, [])
        if made is None or len(reading) != 1:
            continue
        reader = reading[0]
        if reader.inputs.count(made) == 1 and reader.inputs[0] is made and _is_single(reader, known):
            joined[id(reader)] = _join(node, reader, made, taken)
            gone.add(id(node))
    if not joined:
        return graph
    nodes = [joined.get(id(node), node) for node in graph.nodes if id(node) not in gone]
    return replace(graph, nodes=tuple(nodes))


def _is_depthwise(node: Node, known: Mapping[Value, TensorSpec]) -> bool:
    """Return whether a node is a depthwise convolution that makes one value, and that has a kernel channels last."""
    conv, specs = _find_conv(node.operator), [None if value is None else known.get(value) for value in node.inputs]
    made = known.get(node.outputs[0]) if node.outputs[0] is not None and len(node.outputs) == 1 else None
    if conv is None or made is None or len(specs) < 2 or specs[0] is None or specs[1] is None:
        return False
    x, w = specs[0], specs[1]
    is_depthwise = conv.group == x.shape[1] == w.shape[0]
    dtypes = (w.dtype, w.dtype, made.dtype)
    return is_depthwise and made.dtype == w.dtype in _HALVES and takes_depthwise_last(dtypes, conv.group, w.shape[2:])


def _is_single(node: Node, known: Mapping[Value, TensorSpec]) -> bool:
    """Return whether a node is a convolution of one group and tap that sees each position once."""
    conv, specs = _find_conv(node.operator), [None if value is None else known.get(value) for value in node.inputs]
    if conv is None or len(specs) < 2 or specs[0] is None or specs[1] is None or conv.group != 1:
        return False
    x, w = specs[0], specs[1]
    is_single = prod(w.shape[2:]) == 1 and w.dtype == x.dtype
    return is_single and conv.windows(x.shape, w.shape).counts == x.shape[2:]


def _find_conv(operator: Operator) -> Conv | None:
    """Return the convolution that an operator is, perhaps with an epilogue."""
    if isinstance(operator, Fused):
        operator = operator.parts.producer
    return operator if isinstance(operator, Conv) else None


def _join(first: Node, second: Node, made: Value, taken: set[str]) -> Node:
    """Return two nodes as one."""
    parts = [describe(node.operator) for node in (first, second)]
    rows, inputs = list_rows(parts, (first.inputs, second.inputs), made)
    name = name_after(take_free(f"{first.name}+{second.name}", taken), second.name)
    part_of = first.part_of if first.part_of == second.part_of else ""
    operator = build(SeparableConv.name, {"steps": rows})
    return Node(operator, tuple(inputs), second.outputs, name, part_of)
