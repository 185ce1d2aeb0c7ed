"""Fusion of Conv and BatchNormalization."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from gpuexec.ir.graphs import Array, Graph, Node, Value, take_free
from gpuexec.passes.fold_constants import COPIED_NBYTES
from gpuexec.system.mapped import count_copied, read_content

_INPUTS_OF_NORM = 5  # data, scale, bias, mean, variance


def fuse_conv_batchnorm(graph: Graph) -> Graph:
    """Fold BatchNormalization into the weights of the Conv before it.

    With ``s = scale / sqrt(var + epsilon)``: ``(conv(x, w) + b - mean) * s + beta`` is
    ``conv(x, w * s) + (b - mean) * s + beta``. The new weights are computed in float64 and rounded once. Results differ
    from the unfused ones as with any other order of summation: ``w * s`` is rounded, not ``conv(x, w) * s``. Where new
    weights would leave the range of their type, nothing is fused.
    """
    pairs = _find_pairs(graph)
    if not pairs:
        return graph
    constants = dict(graph.constants)
    names = {value.name for value in graph.values()}
    fused: dict[Node, Node] = {}
    gone: set[Node] = set()
    copies = COPIED_NBYTES
    for conv, norm in pairs:
        arrays = _fold_weights(conv, norm, constants)
        copied = 0 if arrays is None else count_copied(arrays, _pick(conv, norm, constants))
        if arrays is not None and copied <= copies:
            copies -= copied
            weight = _add(norm, "weight", arrays[0], constants, names)
            bias = _add(norm, "bias", arrays[1], constants, names)
            fused[conv] = Node(conv.operator, (conv.inputs[0], weight, bias), norm.outputs[:1], conv.name, conv.part_of)
            gone.add(norm)
    nodes = tuple([fused.get(node, node) for node in graph.nodes if node not in gone])
    return replace(graph, nodes=nodes, constants=constants) if fused else graph


def _find_pairs(graph: Graph) -> list[tuple[Node, Node]]:
    """Return each Conv with the BatchNormalization that alone reads it, where everything but the data is constant."""
    producers, consumers, outputs = graph.producers(), graph.consumers(), set(graph.outputs)
    pairs = []
    for norm in graph.nodes:
        if norm.operator.name != "BatchNormalization" or getattr(norm.operator, "training_mode", False):
            continue
        source = norm.inputs[0]
        conv = producers.get(source) if source is not None else None
        if source is None or source in outputs or conv is None or conv.operator.name != "Conv":
            continue
        extra = [value for value in norm.outputs[1:] if value in outputs or value in consumers]
        parameters = [value for value in (*conv.inputs[1:], *norm.inputs[1:]) if value is not None]
        if len(consumers[source]) == 1 and not extra and _fit(parameters, graph.constants):
            pairs.append((conv, norm))
    return pairs


def _fit(parameters: Sequence[Value], constants: Mapping[Value, Array]) -> bool:
    """Return whether the weights and the vectors of both nodes are constant, floats, and of as many channels."""
    arrays = [constants[value] for value in parameters if value in constants]
    if len(arrays) < len(parameters) or len(arrays) < _INPUTS_OF_NORM:
        return False
    weight, *vectors = arrays
    is_float = {array.dtype.kind for array in arrays}.isdisjoint("biu")
    return is_float and weight.ndim > 0 and {vector.shape for vector in vectors} == {weight.shape[:1]}


def _fold_weights(conv: Node, norm: Node, constants: Mapping[Value, Array]) -> tuple[Array, Array] | None:
    """Return the weight and bias that do both, or None where they do not fit their type."""
    weight, *vectors = map(read_content, _pick(conv, norm, constants))
    *bias, scale, beta, mean, variance = [vector.astype(np.float64) for vector in vectors]
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + getattr(norm.operator, "epsilon", 1e-5))
        shifted = ((bias[0] if bias else 0) - mean) * factor + beta
        scaled = weight.astype(np.float64) * factor.reshape(-1, *[1] * (weight.ndim - 1))
        arrays = scaled.astype(weight.dtype), shifted.astype(weight.dtype)
    return arrays if np.isfinite(arrays[0]).all() and np.isfinite(arrays[1]).all() else None


def _pick(conv: Node, norm: Node, constants: Mapping[Value, Array]) -> list[Array]:
    return [constants[value] for value in (*conv.inputs[1:], *norm.inputs[1:]) if value is not None]


def _add(norm: Node, part: str, array: Array, constants: dict[Value, Array], names: set[str]) -> Value:
    """Add a constant under a name of its own."""
    array.flags.writeable = False
    value = Value(take_free(f"{norm.name}.{part}", names))
    constants[value] = array
    return value
