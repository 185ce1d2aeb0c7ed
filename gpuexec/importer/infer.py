"""Types of undeclared values by ONNX's shape inference, with the names of free dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx
from onnx import shape_inference

from gpuexec.errors import GpuexecError
from gpuexec.importer.expand import REFUSALS, hide_fatal
from gpuexec.importer.export import to_model
from gpuexec.importer.tensors import UnsupportedFormError, inferred_spec
from gpuexec.ir.graphs import Graph, Value
from gpuexec.ir.spec import DeclaredSpec

# Shape constants have up to this many elements.
_SMALL_ELEMENTS = 64


def infer_declared(graph: Graph, values: Sequence[Value], *, follows_content: bool = True) -> dict[Value, DeclaredSpec]:
    """Return the types of values, of those that ONNX's own inference finds; weights are not looked at.

    Args:
        graph: With the nodes that make them.
        values: Of the graph.
        follows_content: Let it compute with shapes as data. A chain of Concat makes that any amount of work, so calls
            that were not asked for, such as in loading a file, leave it out.
    """
    large = {
        value: Value(value.name, DeclaredSpec(array.dtype, array.shape))
        for value, array in graph.constants.items()
        if array.size > _SMALL_ELEMENTS
    }
    nodes = [
        replace(node, inputs=tuple([None if value is None else large.get(value, value) for value in node.inputs]))
        for node in graph.nodes
    ]
    small = {value: array for value, array in graph.constants.items() if value not in large}
    wanted = [large.get(value, value) for value in values]
    try:
        model = to_model(Graph((*graph.inputs, *large.values()), tuple(wanted), tuple(nodes), small, graph.name))
        names = [info.name for info in model.graph.output]
        hide_fatal(model)
        inferred = shape_inference.infer_shapes(model, data_prop=follows_content).graph
        infos = {info.name: info for info in (*inferred.value_info, *inferred.input, *inferred.output)}
        found = [inferred_spec(infos.get(name, onnx.ValueInfoProto(name=name))) for name in names]
    except (*REFUSALS, GpuexecError, UnsupportedFormError):
        return {}
    return {value: spec for value, spec in zip(values, found, strict=True) if spec is not None}
