"""Folding of shape arithmetic once all extents are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpuexec.errors import GpuexecError
from gpuexec.ir.apply import infer_specs
from gpuexec.ir.graphs import Array, Graph, Node, Value
from gpuexec.ir.spec import TensorSpec
from gpuexec.passes.fold_constants import fold_node, freeze, room_for

Specs = Mapping[Value, TensorSpec]


def fold_shapes(graph: Graph, specs: Mapping[str, TensorSpec]) -> Graph:
    """Replace nodes that follow from shapes and constants by their content, if no extent of any input may change.

    Where one may, the graph stays: the planner propagates these values anew for each size. Content of inputs is not
    looked at, and a node that can't be inferred is left for the planner to report.

    Args:
        graph: The graph as loaded.
        specs: Specs of the inputs, by name.
    """
    if not all(map(_is_fixed, graph.inputs)):
        return graph
    known = {value: TensorSpec(specs[value.name].shape, specs[value.name].dtype) for value in graph.inputs}
    known.update({value: TensorSpec.of(array) for value, array in graph.constants.items()})
    constants = dict(graph.constants)
    nodes, room = [], room_for(graph)
    for node in graph.nodes:
        folded = _fold(node, known, room)
        if folded is None:
            nodes.append(node)
            continue
        for value, array in folded.items():
            constants[value] = array
            known[value] = TensorSpec.of(array)
            room -= array.nbytes
    return graph if len(nodes) == len(graph.nodes) else replace(graph, nodes=tuple(nodes), constants=constants)


def _is_fixed(value: Value) -> bool:
    dims = value.declared.dims if value.declared is not None else None
    return dims is not None and {int}.issuperset(map(type, dims))


def _fold(node: Node, known: dict[Value, TensorSpec], room: int) -> dict[Value, Array] | None:
    """Return the content of a node's outputs, or None where the host does not know it, and note their specs."""
    inputs = [None if value is None else known.get(value) for value in node.inputs]
    if [value for value, spec in zip(node.inputs, inputs) if spec is None and value is not None]:
        return None
    arrays = [None if spec is None or spec.value is None else spec.value.array for spec in inputs]
    if inputs and not [spec for spec in inputs if spec is not None and spec.value is None]:
        folded = fold_node(node, arrays, room)
        if folded is not None:
            return folded
    try:
        outputs = dict(zip(node.outputs, infer_specs(node.operator, inputs), strict=False))
    except GpuexecError:
        return None
    wanted = {value: spec for value, spec in outputs.items() if value is not None}
    content = {value: freeze(spec.value.array) for value, spec in wanted.items() if spec.value is not None}
    if content and len(content) == len(wanted):
        return content
    known.update({value: TensorSpec(spec.shape, spec.dtype) for value, spec in wanted.items()})
    return None
