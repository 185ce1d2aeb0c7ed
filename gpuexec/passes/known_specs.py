"""Specs of a graph's values, as far as they follow from the specs of its inputs."""

from __future__ import annotations

from collections.abc import Mapping

from gpuexec.errors import GpuexecError
from gpuexec.ir.apply import infer_specs
from gpuexec.ir.graphs import Graph, Value
from gpuexec.ir.spec import TensorSpec
from gpuexec.passes.fold_constants import fold_node

_CONTENT_NBYTES = 1 << 10  # of shapes and axes; longer content is no shape


def infer_known(graph: Graph, specs: Mapping[str, TensorSpec]) -> dict[Value, TensorSpec]:
    """Return the specs of those values whose shapes follow, with content where they are made of shapes.

    Content of inputs is not looked at; a node that can't be inferred is left for the planner to report.

    Args:
        graph: The graph.
        specs: Specs of its inputs, by name.
    """
    known = {value: TensorSpec(specs[value.name].shape, specs[value.name].dtype) for value in graph.inputs}
    known.update({value: TensorSpec.of(array) for value, array in graph.constants.items()})
    for node in graph.nodes:
        if any(value is not None and value not in known for value in node.inputs):
            continue
        inputs = [None if value is None else known[value] for value in node.inputs]
        arrays = [None if spec is None or spec.value is None else spec.value.array for spec in inputs]
        if inputs and all(spec is None or spec.value is not None for spec in inputs):
            folded = fold_node(node, arrays, _CONTENT_NBYTES)
            if folded is not None:
                known.update({value: TensorSpec.of(array) for value, array in folded.items()})
                continue
        try:
            made = infer_specs(node.operator, inputs)
        except GpuexecError:
            continue
        known.update({value: spec for value, spec in zip(node.outputs, made) if value is not None})
    return known
