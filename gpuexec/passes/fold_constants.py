"""Constant folding at load."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

import numpy as np

from gpuexec.errors import GpuexecError
from gpuexec.ir.apply import compute_arrays, infer_specs
from gpuexec.ir.graphs import Array, Graph, Node, Value, bodies
from gpuexec.ir.spec import TensorSpec, is_container
from gpuexec.system.mapped import count_copied, find_source, read_small_content

# A result may take this much, or this many times the bytes of its inputs: a weight may be converted, but a
# shape is not expanded to gigabytes that a kernel would fill in no time.
FREE_NBYTES = 1 << 20
GROWTH = 4
# Limit of all results, or as many times the file's size: repeated doubling would fill any memory.
FREE_NBYTES_IN_ALL = 1 << 26
# Limit of results made of content in files, so that a model's weights are not read to the host.
COPIED_NBYTES = 1 << 26


def fold_constants(graph: Graph, kept: Container[str] = ()) -> Graph:
    """Replace nodes whose inputs are all constants by their results.

    Nodes that can't be inferred or computed stay; planning reports them with their place.

    Args:
        graph: The graph.
        kept: Names of operators that stay all the same.
    """
    constants = dict(graph.constants)
    known: set[Value | None] = {None, *constants}
    nodes, room, copies = [], room_for(graph), COPIED_NBYTES
    for node in graph.nodes:
        folded = None
        if known.issuperset(node.inputs) and node.operator.name not in kept:
            arrays = [None if value is None else constants[value] for value in node.inputs]
            folded = fold_node(node, arrays, room)
            if folded is not None:
                copied = count_copied(folded.values(), [array for array in arrays if array is not None])
                folded, copies = (None, copies) if copied > copies else (folded, copies - copied)
        if folded is None:
            nodes.append(node)
            continue
        constants.update(folded)
        known.update(folded)
        room -= sum(array.nbytes for array in folded.values())
    return graph if len(nodes) == len(graph.nodes) else replace(graph, nodes=tuple(nodes), constants=constants)


def room_for(graph: Graph) -> int:
    """Return how many bytes folding may add to a graph."""
    return max(FREE_NBYTES_IN_ALL, GROWTH * sum([array.nbytes for array in graph.constants.values()]))


def fold_node(node: Node, arrays: Sequence[Array | None], room: int) -> dict[Value, Array] | None:
    """Return the content of a node's outputs, dense and read-only, or None where it is random, too large or wrong.

    Nodes with bodies stay: their running time is unknown. So do those whose class says so, and those that make
    sequences, optionals or maps, which no file holds as constants.
    """
    if node.operator.is_random or not node.operator.is_foldable or bodies(node.operator):
        return None
    limit = max(FREE_NBYTES, GROWTH * sum(0 if array is None else array.nbytes for array in arrays))
    try:
        specs = infer_specs(node.operator, [None if array is None else TensorSpec.of(array) for array in arrays])
        if sum(spec.nbytes for spec in specs) > min(limit, room) or any(is_container(spec.dtype) for spec in specs):
            return None
        computed = compute_arrays(node.operator, arrays)
    except GpuexecError:
        return None
    made = dict(zip(node.outputs, computed, strict=False))
    content = {value: freeze(array) for value, array in made.items() if value is not None and array is not None}
    return content if len(content) == sum(value is not None for value in node.outputs) else None


def freeze(array: Array) -> Array:
    """Return the array dense and read-only; a large view of a file stays a view."""
    array = read_small_content(array)
    dense = (array if find_source(array) is not None else np.asarray(array, order="C")).view()
    dense.flags.writeable = False
    return dense
