"""Conv followed by BatchNormalization is one Conv."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from gpuexec.graph import Array, Graph, Node, Value


@dataclass(frozen=True, slots=True)
class _Pair:
    """A Conv and the BatchNormalization that alone reads it."""

    conv: Node
    norm: Node


def fuse_conv_batchnorm(graph: Graph) -> Graph:
    """Fold BatchNormalization into the weights of the Conv before it.

    ``y = (conv(x, w) + b - mean) * s + beta`` with ``s = scale / sqrt(var + epsilon)`` is ``conv(x, w * s) + (b - mean) * s +
    beta``. The new weights are computed in float64 and rounded once. Results differ from the unfused ones as much as any
    other order of summation does: the product ``w * s`` is rounded instead of ``conv(x, w) * s``.
    """
    pairs = _find_pairs(graph)
    if not pairs:
        return graph
    constants = dict(graph.constants)
    nodes = []
    gone = {pair.norm for pair in pairs.values()}
    for node in graph.nodes:
        if node in pairs:
            nodes.append(_fuse(pairs[node], constants))
        elif node not in gone:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _find_pairs(graph: Graph) -> dict[Node, _Pair]:
    """Return by Conv the pairs in which everything but the data is constant."""
    producers, consumers, outputs = graph.producers(), graph.consumers(), set(graph.outputs)
    pairs = {}
    for norm in graph.nodes:
        if norm.operator.name != "BatchNormalization" or getattr(norm.operator, "training_mode", 0):
            continue
        source, *parameters = norm.inputs
        conv = producers.get(source) if source is not None else None
        if source is None or conv is None or conv.operator.name != "Conv":
            continue
        is_private = len(consumers[source]) == 1 and source not in outputs
        has_extra = any(value in outputs or consumers.get(value) for value in norm.outputs[1:] if value is not None)
        weights = [value for value in (*conv.inputs[1:], *parameters) if value is not None]
        if is_private and not has_extra and norm.outputs[0] is not None and _are_floats(weights, graph.constants):
            pairs[conv] = _Pair(conv, norm)
    return pairs


def _are_floats(values: list[Value], constants: Mapping[Value, Array]) -> bool:
    return all(value in constants and constants[value].dtype.kind not in "biu" for value in values)


def _fuse(pair: _Pair, constants: dict[Value, Array]) -> Node:
    """Return the Conv that does both, and add its weights to the constants."""
    conv, norm = pair.conv, pair.norm
    data, weight, *bias = conv.inputs
    assert weight is not None
    scale, beta, mean, variance = (constants[v].astype(np.float64) for v in norm.inputs[1:5] if v is not None)
    old = constants[weight]
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + getattr(norm.operator, "epsilon", 1e-5))
        shift = constants[bias[0]].astype(np.float64) if bias and bias[0] is not None else np.float64(0)
        new = (old.astype(np.float64) * factor.reshape(-1, *[1] * (old.ndim - 1))).astype(old.dtype)
        offset = ((shift - mean) * factor + beta).astype(old.dtype)
    inputs = (data, _add(f"{norm.name}.weight", new, constants), _add(f"{norm.name}.bias", offset, constants))
    return Node(conv.operator, inputs, norm.outputs[:1], conv.name)


def _add(name: str, array: Array, constants: dict[Value, Array]) -> Value:
    array.flags.writeable = False
    value = Value(name)
    constants[value] = array
    return value
