"""Removal of nodes that return their input unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpuexec.ir.graphs import Array, Graph, Node, Value
from gpuexec.ir.operator import KnownInput, Operator

DTypes = Mapping[Value | None, np.dtype[Any]]


def remove_noops(graph: Graph) -> Graph:
    """Remove nodes whose output is their input: Identity, inference Dropout, Cast to the same type, adding nothing.

    A graph output keeps its name: the producer of the node's input then makes the output.
    """
    # Most operators never are.
    candidates = {node for node in graph.nodes if type(node.operator).is_noop is not Operator.is_noop}
    if not candidates:
        return graph
    outputs, dtypes = set(graph.outputs), find_dtypes(graph)
    used: set[Value | None] = set(graph.outputs)
    for node in graph.nodes:
        used.update(node.inputs)
    used.discard(None)
    stands_for: dict[Value | None, Value] = {}  # output of a node that goes -> what is read instead
    becomes: dict[Value | None, Value] = {}  # value -> graph output that its producer makes from now on
    made: set[Value | None] = set()
    nodes = []
    for node in graph.nodes:
        is_candidate = node in candidates
        if not stands_for.keys().isdisjoint(node.inputs):
            node = replace(node, inputs=_redirect(node.inputs, stands_for))
        source = node.inputs[0] if node.inputs else None
        result = node.outputs[0] if node.outputs else None
        is_alone = source is not None and result is not None and used.isdisjoint(node.outputs[1:])
        if is_candidate and is_alone and _is_noop(node, graph.constants, dtypes):
            assert source is not None and result is not None
            is_renamed = result in outputs and source in made and source not in outputs and source not in becomes
            if is_renamed:
                becomes[source] = result
            if is_renamed or result not in outputs:
                stands_for[result] = source
                continue
        made.update(node.outputs)
        nodes.append(node)
    if not stands_for:
        return graph
    for position, node in enumerate(nodes):
        if not becomes.keys().isdisjoint((*node.inputs, *node.outputs)):
            inputs, made_now = _redirect(node.inputs, becomes), _redirect(node.outputs, becomes)
            nodes[position] = replace(node, inputs=inputs, outputs=made_now)
    return replace(graph, nodes=tuple(nodes))


def _redirect(values: Sequence[Value | None], to: Mapping[Value | None, Value]) -> tuple[Value | None, ...]:
    return tuple([to.get(value, value) for value in values])


def _is_noop(node: Node, constants: Mapping[Value, Array], dtypes: DTypes) -> bool:
    """Return whether a node's first output always equals its first input, which is present."""
    known = [None if value is None else KnownInput(dtypes.get(value), constants.get(value)) for value in node.inputs]
    return node.operator.is_noop(known)


def find_dtypes(graph: Graph) -> DTypes:
    """Return the certain types: of inputs, constants, and results whose operators know them."""
    dtypes: dict[Value | None, np.dtype[Any]] = {}
    for value in graph.inputs:
        if value.declared is not None:
            dtypes[value] = value.declared.dtype
    for value, array in graph.constants.items():
        dtypes[value] = array.dtype
    for node in graph.nodes:
        dtype = node.operator.find_dtype(list(map(dtypes.get, node.inputs)))
        # Of several views, as Split gives, all are of one type.
        results = node.outputs if node.operator.makes_views else node.outputs[:1]
        if dtype is not None:
            dtypes.update({result: dtype for result in results if result is not None})
    return dtypes
