"""Header of an ONNX model file: producer, version, domain, overridable initializers, denotations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx

from gpuexec.errors import ModelError
from gpuexec.importer.order import walk_graphs, walk_nodes
from gpuexec.importer.tensors import UnsupportedFormError, declared_spec, refine
from gpuexec.ir.spec import DeclaredSpec, dtype_row


@dataclass(frozen=True, slots=True)
class ModelHeader:
    """Header fields of a ModelProto and its graph.

    ``model_version`` is None where it isn't said. ``overridable`` are initializers that are inputs too, which ONNX lets
    callers give anew from IR version 4 on, with the types they are declared with; of these, no node reads the ``idle``.
    ``denotations`` are meanings of inputs' dimensions (``"DATA_BATCH"``), by input and axis; ``""``: none is given.
    """

    producer_name: str = ""
    producer_version: str = ""
    domain: str = ""
    model_version: int | None = None
    graph_description: str = ""
    overridable: Mapping[str, DeclaredSpec] = field(default_factory=dict)
    idle: frozenset[str] = frozenset()
    denotations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def read_header(model: onnx.ModelProto) -> ModelHeader:
    """Return a model's header."""
    graph = model.graph
    overridable = _list_overridable(graph) if model.ir_version >= 4 else {}
    read = {name for node in walk_nodes(graph.node) for name in node.input}
    read.update(info.name for each in (graph, *walk_graphs(graph.node)) for info in each.output)
    return ModelHeader(
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version if model.HasField("model_version") else None,
        graph_description=graph.doc_string,
        overridable=overridable,
        idle=frozenset(overridable) - read,
        denotations={
            info.name: tuple(dim.denotation for dim in info.type.tensor_type.shape.dim)
            for info in graph.input
            if any(dim.denotation for dim in info.type.tensor_type.shape.dim)
        },
    )


def _list_overridable(graph: onnx.GraphProto) -> dict[str, DeclaredSpec]:
    """Return the types of inputs that are initializers too; free dimensions stay free."""
    arrays = {
        tensor.name: DeclaredSpec(dtype_row(tensor.data_type).numpy, tuple(tensor.dims)) for tensor in graph.initializer
    }
    specs = {}
    for info in graph.input:
        if info.name in arrays:
            try:
                declared = declared_spec(info)
            except (UnsupportedFormError, ModelError):
                declared = None
            own = arrays[info.name]
            specs[info.name] = own if declared is None or declared.dtype != own.dtype else refine(declared, own) or own
    return specs
