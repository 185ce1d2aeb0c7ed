"""Model descriptions of a session: inputs, outputs and metadata of the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.compat.onnxruntime.errors import BindingError, make_error
from gpuexec.errors import InputError
from gpuexec.importer.load import ImportedModel
from gpuexec.ir.graphs import Graph
from gpuexec.ir.operator import describe
from gpuexec.ir.spec import OPTIONAL, DeclaredSpec, dtype_row, is_container, is_host_object, name_dtype
from gpuexec.planner.classes import DeclaredDims

# ONNX Runtime's names of element types are C++'s.
_TYPE_NAMES = {"float32": "float", "float64": "double"}
_CONTAINER_NAMES = {"sequence": "seq", "optional": "optional", "map": "map"}
# ONNX Runtime's version of models that have none.
_NO_VERSION = 2**63 - 1


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input, output or initializer: free dimensions are names, or None where they have none.

    The shape of one whose rank is not declared is empty, as that of a scalar is.
    """

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """Metadata of a model's file."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


@dataclass(frozen=True, slots=True)
class AssignedNode:
    """A node of the executed graph."""

    name: str
    domain: str
    op_type: str


@dataclass(frozen=True, slots=True)
class AssignedSubgraph:
    """Nodes, and the provider that runs them."""

    ep_name: str
    nodes: tuple[AssignedNode, ...]

    def get_nodes(self) -> list[AssignedNode]:
        """Return the nodes."""
        return list(self.nodes)


def list_assigned(graph: Graph, provider: str) -> list[AssignedSubgraph]:
    """Return each node of a graph, as its passes left it, with the provider that runs it."""
    assigned = []
    for node in graph.nodes:
        domain, _, op_type = describe(node.operator)[0].rpartition(".")
        assigned.append(AssignedSubgraph(provider, (AssignedNode(node.name, domain, op_type),)))
    return assigned


def describe_value(name: str, spec: DeclaredSpec, dims: DeclaredDims) -> NodeArg:
    """Describe an input or output as ONNX Runtime does, with fixed dimensions in place."""
    fixed = {dim: bound for dim, bound in dims.items() if isinstance(bound, int)}
    held = spec.item if spec.dtype == OPTIONAL and spec.item is not None else spec
    shape = [fixed.get(dim, dim) if isinstance(dim, str) else dim for dim in held.dims or ()]
    return NodeArg(name, name_spec(spec), shape)


def describe_model(info: ImportedModel) -> ModelMetadata:
    """Return the metadata of the model's file."""
    header, metadata = info.header, dict(info.metadata)
    return ModelMetadata(
        producer_name=header.producer_name,
        graph_name=info.graph.name,
        domain=header.domain,
        description=info.description,
        graph_description=header.graph_description,
        version=_NO_VERSION if header.model_version is None else header.model_version,
        custom_metadata_map=metadata,
    )


def name_spec(spec: DeclaredSpec) -> str:
    """Name a type as ONNX Runtime does: ``"tensor(float)"``, ``"seq(map(int64,tensor(float)))"``."""
    if not is_container(spec.dtype):
        return name_type(spec.dtype)
    held = "" if spec.item is None else name_spec(spec.item)
    key = "" if spec.key is None else f"{name_dtype(spec.key)},"
    return f"{_CONTAINER_NAMES[name_dtype(spec.dtype)]}({key}{held})"


def name_type(dtype: np.dtype[Any]) -> str:
    """Name an element type as ONNX Runtime does: ``"tensor(float)"``."""
    name = name_dtype(dtype)
    return f"tensor({_TYPE_NAMES.get(name, name)})"


def find_dtype(given: Any) -> np.dtype[Any]:
    """Return the dtype of a NumPy type or dtype, a name, or an ONNX code.

    Raises:
        BindingError: It is none, is not supported, or its values are no numbers that lie in memory.
    """
    try:
        is_code = isinstance(given, int) and not isinstance(given, bool)
        dtype = dtype_row(given if is_code or isinstance(given, str) else np.dtype(given)).numpy
    except (InputError, TypeError) as error:
        raise make_error(BindingError, f"{given!r} is no element type that is supported: {error}") from error
    if is_host_object(dtype):
        raise make_error(BindingError, f"Only tensors of numbers are bound, got {name_dtype(dtype)}; use run().")
    return dtype


def list_denoted(info: ImportedModel, extents: Mapping[str, int]) -> dict[str, int]:
    """Return extents by name of dimension, given those by denotation."""
    named: dict[str, int] = {}
    for value in info.graph.inputs:
        dims = (value.declared and value.declared.dims) or ()
        for dim, denotation in zip(dims, info.header.denotations.get(value.name, ()), strict=False):
            if isinstance(dim, str) and denotation in extents:
                named[dim] = extents[denotation]
    return named
