"""Header of an ONNX model file: producer, version, domain, overridable initializers, denotations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx

from gpuexec.errors import ModelError
from gpuexec.importer.order import list_graphs, list_nodes
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
    return ModelHeader(
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version if model.HasField("model_version") else None,
        graph_description=graph.doc_string,
        overridable=overridable,
        idle=frozenset(overridable) - _list_read(graph) if overridable else frozenset(),
        denotations=_list_denotations(graph),
    )


def _list_read(graph: onnx.GraphProto) -> set[str]:
    """Return the names that nodes read or that are outputs, in bodies too."""
    read = {name for node in list_nodes(graph.node) for name in node.input}
    read.update(info.name for each in (graph, *list_graphs(graph.node)) for info in each.output)
    return read


def _list_denotations(graph: onnx.GraphProto) -> dict[str, tuple[str, ...]]:
    """Return the meanings of inputs' dimensions, of inputs that have any."""
    rows = {}
    for info in graph.input:
        meanings = tuple([dim.denotation for dim in info.type.tensor_type.shape.dim])
        if any(meanings):
            rows[info.name] = meanings
    return rows


def _list_overridable(graph: onnx.GraphProto) -> dict[str, DeclaredSpec]:
    """Return the types of inputs that are initializers too; free dimensions stay free."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    specs = {}
    for info in graph.input:
        tensor = tensors.get(info.name)
        if tensor is not None:
            try:
                declared = declared_spec(info)
            except (UnsupportedFormError, ModelError):
                declared = None
            own = DeclaredSpec(dtype_row(tensor.data_type).numpy, tuple(tensor.dims))
            specs[info.name] = own if declared is None or declared.dtype != own.dtype else refine(declared, own) or own
    return specs
