"""Reading of an ONNX model from a path, bytes or a stream, with the places of its external data."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from gpuexec.errors import InputError, ModelError
from gpuexec.importer.origin import ExternalData, Origin
from gpuexec.importer.strip import MalformedMessageError, strip_weights
from gpuexec.system.mapped import find_source, map_file, read_view
from gpuexec.system.progress import ProgressCallback


class ExportedProgram(Protocol):
    """What an exporter gives that holds a model, such as torch.onnx.ONNXProgram."""

    @property
    def model_proto(self) -> onnx.ModelProto:
        """The model."""


Source = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO | onnx.ModelProto | ExportedProgram
# Size limit of a protobuf message; larger weights lie in files of their own.
_LARGEST_BYTES = 2**31 - 1
_PIECE_BYTES = 1 << 20
# A program's header is JSON behind 8 bytes for its length, with an entry that identifies it.
_PROGRAM_ENTRY = b'"gpuexec"'
_HEADER_NBYTES = 4096
# Git LFS pointer, which stands in place of a large file that was not checked out.
_LFS_POINTER = b"version https://git-lfs"
_GRAPH_ATTRIBUTES = frozenset({onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS})


def read_model(source: Source) -> tuple[onnx.ModelProto, Path | None, str]:
    """Return the whole model, the folder of its external data, and the source's name for messages.

    The folder is None where the source has no place of its own: bytes, a stream without a file name, a ModelProto.

    Raises:
        InputError: The source is no path, bytes, binary file or ModelProto.
        ModelError: The file can't be read, or is no ONNX model.
    """
    source = _unwrap(source)
    if isinstance(source, onnx.ModelProto):
        return _check(source, "ModelProto"), None, "ModelProto"
    content, folder, where = _open(source)
    return _parse(content, where), folder, where


def open_model(
    source: Source, report: ProgressCallback | None = None, external: ExternalData | None = None
) -> tuple[onnx.ModelProto, Origin, str]:
    """Return the model without large tensor content, the place of that content, and the source's name for messages.

    Nothing of a file is on the host twice: stripped content is copied out of it tensor by tensor.

    Args:
        source: As for `read_model`. A ModelProto stays as it is, in an ExportedProgram too.
        report: Called with the progress of reading.
        external: Content in place of files beside the model.

    Raises:
        InputError: As `read_model`.
        ModelError: As `read_model`.
    """
    source = _unwrap(source)
    if isinstance(source, onnx.ModelProto):
        return _check(source, "ModelProto"), Origin(external=external), "ModelProto"
    content, folder, where = _open(source)
    try:
        stripped = strip_weights(content)
    except MalformedMessageError:
        return _parse(content, where), Origin(folder, external=external), where
    model = _parse(memoryview(stripped.message), where, content)
    file = find_source(np.frombuffer(content, np.uint8)) if content.nbytes else None

    def read_into(offset: int, buffer: memoryview) -> None:
        if file is not None:
            file.read_into(offset, buffer)
        else:
            buffer[:] = content[offset : offset + buffer.nbytes]

    return model, Origin(folder, stripped.pieces, read_into, report, external), where


def _unwrap(source: Source) -> Source:
    """Return the model in what an exporter gave, or the source as it is."""
    proto = getattr(source, "model_proto", None)
    return proto if isinstance(proto, onnx.ModelProto) else source


def _open(source: object) -> tuple[memoryview, Path | None, str]:
    """Return the bytes of a source, mapped where it is a file."""
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        return _read_file(path), path.absolute().parent, str(path)
    if isinstance(source, (bytes, bytearray, memoryview)):
        content = memoryview(source)
        return (content if content.c_contiguous else memoryview(bytes(content))).cast("B"), None, "bytes"
    if hasattr(source, "read"):
        return _read_stream(source)
    raise InputError(
        f"Expected a path, bytes, a binary file, a ModelProto or an ONNXProgram to load, got {type(source).__name__}."
    )


def _read_file(path: Path) -> memoryview:
    try:
        with path.open("rb") as file:
            # A device or a pipe may have no end, so it is read in pieces, up to the first that is too much.
            size, content = os.fstat(file.fileno()).st_size, bytearray()
            if 0 < size <= _LARGEST_BYTES and stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return map_file(os.dup(file.fileno()), str(path), path)
            while len(content) <= _LARGEST_BYTES and (piece := file.read(_PIECE_BYTES)):
                content += piece
            return memoryview(content)
    except OSError as error:
        raise ModelError(f"{path}: the model can't be read: {error.strerror or error}.") from error


def _read_stream(stream: Any) -> tuple[memoryview, Path | None, str]:
    name = getattr(stream, "name", None)
    where = name if isinstance(name, str) else type(stream).__name__
    try:
        content = stream.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{where}: the model can't be read: {error}.") from error
    if isinstance(stream, io.TextIOBase) or not isinstance(content, bytes):
        raise InputError(f"{where} gives {type(content).__name__}; open the model in binary mode: open(path, 'rb').")
    folder = Path(name).absolute().parent if isinstance(name, str) and os.path.isfile(name) else None
    return memoryview(content), folder, where


def _parse(content: memoryview, where: str, whole: memoryview | None = None) -> onnx.ModelProto:
    """Parse a message; ``whole`` is the content it was stripped from."""
    whole = content if whole is None else whole
    if not whole.nbytes:
        raise ModelError(f"{where}: expected an ONNX model, got 0 bytes.")
    if whole.nbytes > _LARGEST_BYTES:
        raise ModelError(f"{where}: expected an ONNX model, got more than the {_LARGEST_BYTES} bytes one can have.")
    header = bytes(read_view(whole[:_HEADER_NBYTES]))
    if header.startswith(_LFS_POINTER):
        raise ModelError(f"{where}: expected an ONNX model, got a Git LFS pointer. Fetch the file: git lfs pull.")
    if header[8:9] == b"{" and _PROGRAM_ENTRY in header:
        raise ModelError(
            f"{where}: expected an ONNX model, got a program of gpuexec. Read it with gpuexec.Program.load(path), or"
            " run it with gpuexec.Module(path); on the command line, programs are files that end in .gxp."
        )
    model = onnx.ModelProto()
    try:
        model.ParseFromString(bytes(read_view(content)))
    except DecodeError as error:
        got = f"{whole.nbytes} bytes that are no protobuf of one"
        raise ModelError(f"{where}: expected an ONNX model, got {got}: cut short, or another format.") from error
    return _check(model, where)


def _check(model: onnx.ModelProto, where: str) -> onnx.ModelProto:
    if not model.HasField("graph") or not model.ir_version:
        got = "a protobuf without " + ("graph" if not model.HasField("graph") else "ir_version")
        raise ModelError(f"{where}: expected an ONNX model, got {got}: cut short, or another format.")
    _check_text(model, where)
    return model


def _check_text(model: onnx.ModelProto, where: str) -> None:
    """Check that every name in a model is text; its tensors' content is not looked at.

    Raises:
        ModelError: One is not; shows its bytes.
    """
    found = _find_odd_text(model)
    if found is not None:
        raise ModelError(f"{where}: a name or text in the model is not UTF-8: {found[:40]!r}.")


def _find_odd_text(model: onnx.ModelProto) -> bytes | None:
    """Return a text that is not one, or None; a message's own stand before those of the messages in it."""
    waiting: list[Any] = [model]
    while waiting:
        item = waiting.pop()
        texts: list[str | bytes] = []
        parts: list[Any] = []
        # Nodes, tensors and extents are many, and listing all their fields would copy their content.
        if type(item) is onnx.TensorProto:
            texts.append(item.name)
        elif type(item) is onnx.TensorShapeProto:
            for dim in item.dim:
                texts += (dim.dim_param, dim.denotation)
        elif type(item) is onnx.NodeProto:
            texts += (item.op_type, item.name, item.domain, *item.input, *item.output)
            for attribute in item.attribute:
                texts += (attribute.name, attribute.ref_attr_name)
                if attribute.type in _GRAPH_ATTRIBUTES:
                    parts += (attribute.g, *attribute.graphs)
        else:
            for field, value in item.ListFields():
                if field.type == FieldDescriptor.TYPE_STRING:
                    texts += value if field.is_repeated else (value,)
                elif field.type == FieldDescriptor.TYPE_MESSAGE:
                    parts += value if field.is_repeated else (value,)
        if bytes in map(type, texts):
            return next(text for text in texts if isinstance(text, bytes))
        waiting += reversed(parts)
    return None
