"""Saving of a graph as an ONNX file, with weights inside or in a file beside it."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import onnx
from onnx import TensorProto, external_data_helper, helper

from gpuexec.errors import AccessError, InputError
from gpuexec.importer.export import choose_opset, store_inside, to_model
from gpuexec.importer.load import ImportedModel
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.graphs import Array, Graph, Node, walk
from gpuexec.ir.operator import describe
from gpuexec.ir.spec import dtype_row, is_host_object
from gpuexec.system.atomic_file import atomic_file
from gpuexec.system.mapped import read_pieces, view_bytes

# Size limit of a protobuf message, less the room for the graph itself.
_LARGEST_INSIDE_BYTES = 2**31 - 2**26
# Weights from this size on lie in the file beside the model, where there is one: shapes stay with the graph.
_SMALL_NBYTES = 1024
_ALIGNMENT = 4096


def save_graph(
    graph: Graph,
    path: str | os.PathLike[str],
    info: ImportedModel,
    *,
    external_data: bool | str | None = None,
    external_from_nbytes: int = _SMALL_NBYTES,
    allow_custom: bool = False,
    keep_sources: bool = False,
) -> None:
    """Write a graph as an ONNX file, atomically, as the file of its weights before it.

    Args:
        graph: Graph to write.
        path: Of the file.
        info: The model's header.
        external_data: Whether weights lie in a file beside it, or the name of that; None: where they must.
        external_from_nbytes: From which size on they do; smaller ones stay with the graph.
        allow_custom: Write operators that neither ONNX nor gpuexec defines.
        keep_sources: Write the line of source that each node stems from, with its path.

    Raises:
        InputError: The path is none, operators have no form in ONNX, or weights don't fit.
        AccessError: A file can't be written.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"Expected a path to save to, got a {type(path).__name__}.")
    beside = _name_beside(Path(path), graph, external_data)
    if not allow_custom:
        _check_known(graph)
    try:
        with ExitStack() as stack:
            file = stack.enter_context(atomic_file(path))
            weights = (
                None
                if beside is None
                else _ExternalWeights(stack.enter_context(atomic_file(beside)), beside.name, external_from_nbytes)
            )
            store = store_inside if weights is None else weights.store
            model = to_model(graph, choose_opset(graph), store=store, keep_sources=keep_sources)
            _write_header(model, info)
            content = model.SerializeToString()
            file.write(content)
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise AccessError(f"{os.fsdecode(path)} can't be written: {reason}.") from error


def _write_header(model: onnx.ModelProto, info: ImportedModel) -> None:
    """Write the descriptions and metadata that the model came with, of values that are still there by name."""
    header, graph = info.header, model.graph
    model.doc_string, model.domain, graph.doc_string = info.description, header.domain, header.graph_description
    if header.model_version is not None:
        model.model_version = header.model_version
    helper.set_model_props(model, dict(info.metadata))
    helper.set_model_props(graph, dict(header.graph_metadata))
    for each in (*graph.input, *graph.output, *graph.initializer):
        helper.set_model_props(each, dict(header.value_metadata.get(each.name, {})))


class _ExternalWeights:
    """The file beside a model that holds its weights; each content once."""

    def __init__(self, file: BinaryIO, name: str, from_nbytes: int) -> None:
        self._file, self._name, self._from_nbytes, self._end = file, name, from_nbytes, 0
        self._places: dict[int, int] = {}

    def store(self, array: Array, name: str) -> TensorProto:
        """Return a tensor of this content, large ones by their place in the file."""
        if array.nbytes < self._from_nbytes or is_host_object(array.dtype):
            return store_inside(array, name)
        offset = self._places.get(id(array))
        if offset is None:
            offset = self._places[id(array)] = self._end + -self._end % _ALIGNMENT
            self._file.write(bytes(offset - self._end))
            content = _pack(array)
            for piece in read_pieces(content):
                self._file.write(piece)
            self._end = offset + content.nbytes
        row = dtype_row(array.dtype)
        tensor = TensorProto(name=name, data_type=row.code, dims=array.shape)
        tensor.raw_data = b""
        external_data_helper.set_external_data(tensor, self._name, offset, ceil_div(array.size * row.width, 8))
        tensor.ClearField("raw_data")
        return tensor


def _pack(array: Array) -> memoryview:
    """Return the bytes of an array as ONNX stores them: elements of less than 8 bits share theirs."""
    if dtype_row(array.dtype).width < 8:
        return memoryview(store_inside(array, "").raw_data)
    return view_bytes(array)


def _name_beside(path: Path, graph: Graph, external_data: bool | str | None) -> Path | None:
    """Return the file for weights, or None where they are stored in the model's own."""
    nbytes = sum(array.nbytes for each in walk(graph) for array in each.constants.values())
    if not external_data and nbytes > _LARGEST_INSIDE_BYTES:
        if external_data is False:
            raise InputError(
                f"{graph.name!r} has {nbytes} bytes of weights, more than one file of ONNX can hold"
                f" ({_LARGEST_INSIDE_BYTES}); leave external_data to None."
            )
        external_data = True
    if not external_data:
        return None
    name = external_data if isinstance(external_data, str) else f"{path.name}.data"
    if Path(name).name != name or name in (path.name, "..", "."):
        raise InputError(f"external_data is {name!r}; expected the name of a file beside {path.name!r}.")
    return path.with_name(name)


def _check_known(graph: Graph) -> None:
    """Check that ONNX or gpuexec defines every operator."""
    custom: dict[str, list[Node]] = {}
    for each in walk(graph):
        for node in each.nodes:
            if not type(node.operator).__module__.startswith("gpuexec.ops."):
                custom.setdefault(describe(node.operator)[0], []).append(node)
    if custom:
        rows = [f"{name} ({', '.join(repr(node.name) for node in nodes[:3])})" for name, nodes in custom.items()]
        raise InputError(
            f"{graph.name!r} has operators that ONNX does not define: {', '.join(rows)}. Save it with"
            " allow_custom=True, for engines where they are registered too.",
            node=next(iter(custom.values()))[0].name,
        )
