"""Initializers, inputs and declared outputs of a graph or body."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import onnx
from onnx import helper

from gpuexec.errors import ModelError
from gpuexec.importer.problems import Problems
from gpuexec.importer.sparse import to_dense
from gpuexec.importer.tensors import UnsupportedFormError, declared_spec, refine, take_given, to_array
from gpuexec.ir.graphs import Value
from gpuexec.ir.spec import DeclaredSpec

if TYPE_CHECKING:
    from gpuexec.importer.node_reader import NodeReader


def read_constants(graph: onnx.GraphProto, reader: NodeReader, problems: Problems) -> None:
    """Enter the initializers; one without a name, with a name that is taken, or whose content does not fit is noted."""
    given = {} if reader.is_body else reader.origin.external.tensors
    for index, tensor in enumerate(graph.initializer):
        name, what = tensor.name, f"Initializer %{tensor.name}"
        try:
            if not name:
                raise ModelError(f"Initializer {index} of the graph has no name: %{name}.")
            value = reader.add(Value(name, reader.declared.get(name)), "initializer")
            if name in given:
                reader.constants[value] = take_given(tensor, given[name], reader.origin, what)
            else:
                reader.constants[value] = to_array(tensor, reader.origin, what)
        except UnsupportedFormError as error:
            problems.add(str(error), f"initializer %{reader.path}{name}")
        except ModelError as error:
            problems.note(error, reader.path)
    for sparse in graph.sparse_initializer:
        name = sparse.values.name
        try:
            value = reader.add(Value(name, reader.declared.get(name)), "initializer")
            reader.constants[value] = to_dense(sparse, reader.origin, f"Initializer %{name}")
        except UnsupportedFormError as error:
            problems.add(str(error), f"initializer %{reader.path}{name}")
        except ModelError as error:
            problems.note(error, reader.path)


def read_inputs(graph: onnx.GraphProto, reader: NodeReader, problems: Problems) -> tuple[Value, ...]:
    """Enter the inputs, but for those that are initializers, and return them.

    What an input does not say of its type is taken from the graph's ``value_info``. One that has a name that is taken,
    or no element type, is noted; those of a body may lack a type.
    """
    known = _list_known(graph, graph.input)
    initialized = {tensor.name for tensor in graph.initializer}.union([s.values.name for s in graph.sparse_initializer])
    inputs = []
    for info in graph.input:
        if info.name in initialized:
            continue
        spec = None
        try:
            spec = _read_declared(info, known)
            if spec is None and not reader.is_body:
                raise ModelError(f"Input %{info.name} declares no element type.", value=info.name)
        except UnsupportedFormError as error:
            problems.add(str(error), f"input %{reader.path}{info.name}")
        except ModelError as error:
            problems.note(error, reader.path)
        try:
            inputs.append(reader.add(Value(info.name, spec), "input"))
        except ModelError as error:
            problems.note(error, reader.path)
    return tuple(inputs)


def read_outputs(graph: onnx.GraphProto, problems: Problems, path: str = "") -> dict[str, DeclaredSpec | None]:
    """Return the declared specs of the graph's outputs, by name; ``path`` locates a body in messages.

    Where the declaration of an output lacks an element type or a shape, what the graph says of that value elsewhere
    counts: in ``value_info``, among its inputs or its initializers.
    """
    known = _list_known(graph, graph.output)
    specs: dict[str, DeclaredSpec | None] = {}
    for info in graph.output:
        specs[info.name] = None
        try:
            specs[info.name] = _read_declared(info, known)
        except UnsupportedFormError as error:
            problems.add(str(error), f"output %{path}{info.name}")
        except ModelError as error:
            problems.note(error, path)
    return specs


def is_whole(info: onnx.ValueInfoProto) -> bool:
    """Return whether a declaration has a value's type and rank; of a container no more is needed."""
    kind = info.type.WhichOneof("value")
    tensor = info.type.tensor_type
    return kind is not None and (kind != "tensor_type" or (tensor.elem_type != 0 and tensor.HasField("shape")))


def _list_known(graph: onnx.GraphProto, infos: Iterable[onnx.ValueInfoProto]) -> dict[str, list[onnx.ValueInfoProto]]:
    """Return what the graph says elsewhere, other than of outputs, of the values whose declarations lack something."""
    wanted = {info.name for info in infos if not is_whole(info)}
    if not wanted:
        return {}
    known: dict[str, list[onnx.ValueInfoProto]] = {}
    for info in (*graph.input, *graph.value_info):
        if info.name in wanted:
            known.setdefault(info.name, []).append(info)
    sparse = [(each.values.name, each.values.data_type, each.dims) for each in graph.sparse_initializer]
    for name, code, dims in (*[(t.name, t.data_type, t.dims) for t in graph.initializer], *sparse):
        if name in wanted:
            known.setdefault(name, []).append(helper.make_tensor_value_info(name, code, dims))
    return known


def _read_declared(info: onnx.ValueInfoProto, known: Mapping[str, list[onnx.ValueInfoProto]]) -> DeclaredSpec | None:
    """Return the declared spec of a value, completed by what is known elsewhere.

    Errors elsewhere are reported where that is read.
    """
    spec = declared_spec(info)
    for other in known.get(info.name, ()):
        with suppress(ModelError, UnsupportedFormError):
            spec = refine(spec, declared_spec(other))
    return spec
