"""What a graph of the file starts from and ends in: initializers, inputs, declared outputs. The same for bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

from gpuexec.errors import ModelError
from gpuexec.graphs import Value
from gpuexec.importer.problems import Problems
from gpuexec.importer.sparse import to_dense
from gpuexec.importer.tensors import Array, UnsupportedFormError, declared_spec, take_given, to_array
from gpuexec.spec import DeclaredSpec

if TYPE_CHECKING:
    from gpuexec.importer.nodes import NodeReader


def read_constants(graph: onnx.GraphProto, reader: NodeReader, problems: Problems) -> None:
    """Enter the initializers; one without a name, with a name that is taken, or whose content does not fit is noted."""
    for index, tensor in enumerate(graph.initializer):
        with problems.noting(reader.path):
            if not tensor.name:
                raise ModelError(f"Initializer {index} of the graph has no name: %{tensor.name}.")
            value = reader.add(Value(tensor.name, reader.declared_spec(tensor.name)), "initializer")
            try:
                reader.constants[value] = _read_constant(tensor, reader)
            except UnsupportedFormError as error:
                problems.add(str(error), f"initializer %{reader.path}{tensor.name}")
    for sparse in graph.sparse_initializer:
        with problems.noting(reader.path):
            name = sparse.values.name
            value = reader.add(Value(name, reader.declared_spec(name)), "initializer")
            try:
                reader.constants[value] = to_dense(sparse, reader.origin, f"Initializer %{name}")
            except UnsupportedFormError as error:
                problems.add(str(error), f"initializer %{reader.path}{name}")


def _read_constant(tensor: onnx.TensorProto, reader: NodeReader) -> Array:
    """Return the content of an initializer, or what is given in its place."""
    given = None if reader.is_body else reader.origin.external.tensors.get(tensor.name)
    what = f"Initializer %{tensor.name}"
    return to_array(tensor, reader.origin, what) if given is None else take_given(tensor, given, reader.origin, what)


def read_inputs(graph: onnx.GraphProto, reader: NodeReader, problems: Problems) -> tuple[Value, ...]:
    """Enter the inputs, but for those that are initializers, and return them.

    One that has a name that is taken, or no element type, is noted; those of a body may lack a type.
    """
    initialized = {tensor.name for tensor in graph.initializer} | {s.values.name for s in graph.sparse_initializer}
    inputs = []
    for info in graph.input:
        if info.name in initialized:
            continue
        spec = None
        with problems.noting(reader.path):
            try:
                spec = declared_spec(info)
                if spec is None and not reader.is_body:
                    raise ModelError(f"Input %{info.name} declares no element type.", value=info.name)
            except UnsupportedFormError as error:
                problems.add(str(error), f"input %{reader.path}{info.name}")
        with problems.noting(reader.path):
            inputs.append(reader.add(Value(info.name, spec), "input"))
    return tuple(inputs)


def read_outputs(graph: onnx.GraphProto, problems: Problems, path: str = "") -> dict[str, DeclaredSpec | None]:
    """Return what the graph declares of its outputs, by name; ``path`` says in messages where a body stands."""
    specs: dict[str, DeclaredSpec | None] = {}
    for info in graph.output:
        specs[info.name] = None
        with problems.noting(path):
            try:
                specs[info.name] = declared_spec(info)
            except UnsupportedFormError as error:
                problems.add(str(error), f"output %{path}{info.name}")
    return specs
