"""What a model's file says beside its graph, for those who ask for it by ONNX's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx


@dataclass(frozen=True, slots=True)
class ModelHeader:
    """Fields of a ModelProto and its graph.

    ``model_version`` is None where it isn't said. ``overridable`` are initializers that are inputs too, which ONNX lets
    callers give anew from IR version 4 on.
    ``denotations`` are what inputs' dimensions stand for (``"DATA_BATCH"``), by input and axis; ``""``: it isn't said.
    """

    producer_name: str = ""
    producer_version: str = ""
    domain: str = ""
    model_version: int | None = None
    graph_description: str = ""
    overridable: tuple[str, ...] = ()
    denotations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def read_header(model: onnx.ModelProto) -> ModelHeader:
    """Return what a model says of itself."""
    graph = model.graph
    initialized = {tensor.name for tensor in graph.initializer}
    return ModelHeader(
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version if model.HasField("model_version") else None,
        graph_description=graph.doc_string,
        overridable=tuple(info.name for info in graph.input if info.name in initialized and model.ir_version >= 4),
        denotations={
            info.name: tuple(dim.denotation for dim in info.type.tensor_type.shape.dim)
            for info in graph.input
            if any(dim.denotation for dim in info.type.tensor_type.shape.dim)
        },
    )
