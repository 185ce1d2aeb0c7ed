"""Removal of nodes that return their input unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gpuexec.ir.graphs import Array, Graph, Node, Value
from gpuexec.ir.operator import KnownInput

DTypes = Mapping[Value, np.dtype[Any]]


def remove_noops(graph: Graph) -> Graph:
    """Remove nodes whose output is their input: Identity, inference Dropout, Cast to the same type, adding nothing.

    A graph output keeps its name: the producer of the node's input then makes the output.
    """
    outputs, dtypes = set(graph.outputs), _find_dtypes(graph)
    used = outputs.union(value for node in graph.nodes for value in node.inputs if value is not None)
    stands_for: dict[Value, Value] = {}  # output of a node that goes -> what is read instead
    becomes: dict[Value, Value] = {}  # value -> graph output that its producer makes from now on
    made: set[Value] = set()
    nodes = []
    for node in graph.nodes:
        node = _redirect(node, stands_for)
        source = node.inputs[0] if node.inputs else None
        result = node.outputs[0] if node.outputs else None
        is_alone = source is not None and result is not None and used.isdisjoint(node.outputs[1:])
        if is_alone and _is_noop(node, graph.constants, dtypes):
            assert source is not None and result is not None
            is_renamed = result in outputs and source in made and source not in outputs and source not in becomes
            if is_renamed:
                becomes[source] = result
            if is_renamed or result not in outputs:
                stands_for[result] = source
                continue
        made.update(value for value in node.outputs if value is not None)
        nodes.append(node)
    return replace(graph, nodes=tuple(_redirect(node, becomes, outputs_too=True) for node in nodes))


def _redirect(node: Node, to: Mapping[Value, Value], outputs_too: bool = False) -> Node:
    inputs = tuple(value if value is None else to.get(value, value) for value in node.inputs)
    outputs = node.outputs
    if outputs_too:
        outputs = tuple(value if value is None else to.get(value, value) for value in outputs)
    return node if inputs == node.inputs and outputs == node.outputs else replace(node, inputs=inputs, outputs=outputs)


def _is_noop(node: Node, constants: Mapping[Value, Array], dtypes: DTypes) -> bool:
    """Return whether a node's first output always equals its first input, which is present."""
    known = [None if value is None else KnownInput(dtypes.get(value), constants.get(value)) for value in node.inputs]
    return node.operator.is_noop(known)


def _find_dtypes(graph: Graph) -> DTypes:
    """Return the certain types: of inputs, constants, and results whose operators know them."""
    dtypes = {value: value.declared.dtype for value in graph.inputs if value.declared is not None}
    dtypes.update({value: array.dtype for value, array in graph.constants.items()})
    for node in graph.nodes:
        result = node.outputs[0] if node.outputs else None
        dtype = node.operator.find_dtype([None if value is None else dtypes.get(value) for value in node.inputs])
        if dtype is not None and result is not None:
            dtypes[result] = dtype
    return dtypes
