"""Fusion of depthwise separable convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.spec import BFLOAT16, TensorSpec
from gpuexec.ops.nn.conv_depthwise_last import takes_depthwise_last
from gpuexec.ops.nn.conv_separable import SeparableConv
from gpuexec.passes.joined_pairs import find_conv, join_pairs
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
    return join_pairs(
        graph, SeparableConv, lambda node: _is_depthwise(node, known), lambda node: _is_single(node, known)
    )


def _is_depthwise(node: Node, known: Mapping[Value, TensorSpec]) -> bool:
    """Return whether a node is a depthwise convolution that makes one value, and that has a kernel channels last."""
    conv, specs = find_conv(node.operator), [None if value is None else known.get(value) for value in node.inputs]
    made = None if node.outputs[0] is None else known.get(node.outputs[0])
    if conv is None or made is None or len(specs) < 2 or specs[0] is None or specs[1] is None:
        return False
    x, w = specs[0], specs[1]
    is_depthwise = conv.group == x.shape[1] == w.shape[0]
    dtypes = (w.dtype, w.dtype, made.dtype)
    return is_depthwise and made.dtype == w.dtype in _HALVES and takes_depthwise_last(dtypes, conv.group, w.shape[2:])


def _is_single(node: Node, known: Mapping[Value, TensorSpec]) -> bool:
    """Return whether a node is a convolution of one group and tap that sees each position once."""
    conv, specs = find_conv(node.operator), [None if value is None else known.get(value) for value in node.inputs]
    if conv is None or len(specs) < 2 or specs[0] is None or specs[1] is None or conv.group != 1:
        return False
    x, w = specs[0], specs[1]
    is_single = prod(w.shape[2:]) == 1 and w.dtype == x.dtype
    return is_single and conv.windows(x.shape, w.shape).counts == x.shape[2:]
