"""Fusion of convolutions with the normalisation of what they make."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.precision import TF32
from gpuexec.ir.spec import BFLOAT16, TensorSpec
from gpuexec.ops.elementwise.fused import Fused
from gpuexec.ops.nn.conv_normalized import NormalizedConv, takes_normalized
from gpuexec.ops.nn.norm_channels import InstanceNormalization
from gpuexec.passes.joined_pairs import find_conv, join_pairs
from gpuexec.passes.known_specs import Shapes

_HALVES = (np.dtype(np.float16), BFLOAT16)


def fuse_normalized(graph: Graph, specs: Mapping[str, TensorSpec]) -> Graph:
    """Fuse convolutions with the InstanceNormalization behind them, as one launch may do both.

    Those of half, bf16 and tf32 into large images, with the epilogues that they have. Nothing else reads what the
    convolution makes. Results stay the same to the bit; whether it is one launch is decided as it is lowered.

    Args:
        graph: The graph as loaded.
        specs: Specs of the inputs, by name.
    """
    known = Shapes.of(graph, specs).specs
    return join_pairs(graph, NormalizedConv, lambda node: _is_conv(node, known), _is_normalization)


def _is_conv(node: Node, known: Mapping[Value, TensorSpec]) -> bool:
    """Return whether a node is a convolution of one group that may have a kernel that measures what it makes.

    One that sees each position once is a product, but for floats.
    """
    conv, specs = find_conv(node.operator), [None if value is None else known.get(value) for value in node.inputs]
    made = None if node.outputs[0] is None else known.get(node.outputs[0])
    if conv is None or made is None or len(specs) < 2 or specs[0] is None or specs[1] is None or conv.group != 1:
        return False
    x, w = specs[0], specs[1]
    is_multiplied = w.dtype in _HALVES or conv.precision == TF32
    is_product = prod(w.shape[2:]) == 1 and x.shape[2:] == made.shape[2:] and conv.precision != TF32
    return is_multiplied and not is_product and takes_normalized(made)


def _is_normalization(node: Node) -> bool:
    operator = node.operator
    producer = operator.parts.producer if isinstance(operator, Fused) else operator
    has_view = isinstance(operator, Fused) and operator.view is not None
    return isinstance(producer, InstanceNormalization) and not has_view
