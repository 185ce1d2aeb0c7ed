"""Nodes that follow from constants alone are computed while loading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpuexec.errors import GpuexecError
from gpuexec.graph import Array, Graph, Node
from gpuexec.spec import TensorSpec

# What is computed may take this much, or this many times what it is computed from: a weight may be converted, but a shape
# is not expanded to gigabytes that a kernel would fill in no time.
FREE_NBYTES = 1 << 20
GROWTH = 4
# Every run gives another result.
RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)


def fold_constants(graph: Graph) -> Graph:
    """Replace nodes whose inputs are all constants by what they compute.

    Nodes that can't be inferred or computed stay; planning reports them with their place.
    """
    constants = dict(graph.constants)
    nodes = []
    for node in graph.nodes:
        folded = None
        if all(value is None or value in constants for value in node.inputs):
            folded = fold_node(node, [None if value is None else constants[value] for value in node.inputs])
        if folded is None:
            nodes.append(node)
            continue
        for value, array in zip(node.outputs, folded, strict=False):
            if value is not None:
                constants[value] = array
    return replace(graph, nodes=tuple(nodes), constants=constants)


def fold_node(node: Node, arrays: Sequence[Array | None]) -> tuple[Array, ...] | None:
    """Return a node's outputs as dense read-only arrays, or None where they are random, too large or wrong."""
    if node.operator.name in RANDOM:
        return None
    limit = max(FREE_NBYTES, GROWTH * sum(0 if array is None else array.nbytes for array in arrays))
    try:
        specs = node.operator.infer(*(None if array is None else TensorSpec.of(array) for array in arrays))
        if sum(spec.nbytes for spec in specs) > limit:
            return None
        computed = node.operator.compute(*arrays)
    except GpuexecError:
        return None
    outputs = []
    for array in computed[: len(node.outputs)]:
        if array is None:
            return None
        outputs.append(freeze(array))
    return tuple(outputs) if len(outputs) == len(node.outputs) else None


def freeze(array: Array) -> Array:
    """Return the array dense and closed to writing."""
    dense = np.asarray(array, order="C")
    dense = dense.view()
    dense.flags.writeable = False
    return dense
