"""Bytes of any origin -> ModelProto, and the folder its external data lies in."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import BinaryIO

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from gpuexec.errors import InputError, ModelError
from gpuexec.importer.text import check_text

Source = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO | onnx.ModelProto
# What protobuf can hold in one message; larger weights lie in files of their own.
_LARGEST_BYTES = 2**31 - 1
_PIECE_BYTES = 1 << 20
# A repository checked out without its large files has this text in their place.
_LFS_POINTER = b"version https://git-lfs"


def read_model(source: Source) -> tuple[onnx.ModelProto, Path | None, str]:
    """Return the model, the folder that external data is relative to, and what to call the source in messages.

    The folder is None where the source has no place of its own: bytes, a stream without a file name, a ModelProto.

    Raises:
        InputError: The source is no path, bytes, binary file or ModelProto.
        ModelError: The file can't be read, or is no ONNX model.
    """
    if isinstance(source, onnx.ModelProto):
        return _check(source, "ModelProto"), None, "ModelProto"
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        return _parse(_read_file(path), str(path)), path.absolute().parent, str(path)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _parse(bytes(source), "bytes"), None, "bytes"
    if hasattr(source, "read"):
        return _read_stream(source)
    raise InputError(f"Expected a path, bytes, a binary file or a ModelProto to load, got {type(source).__name__}.")


def _read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            # A device or a pipe may have no end, so it is read in pieces, up to the first that is too much.
            size, content = os.fstat(file.fileno()).st_size, bytearray()
            if 0 < size <= _LARGEST_BYTES:
                return file.read()
            while len(content) <= _LARGEST_BYTES and (piece := file.read(_PIECE_BYTES)):
                content += piece
            return bytes(content)
    except OSError as error:
        raise ModelError(f"{path}: the model can't be read: {error.strerror or error}.") from error


def _read_stream(stream: BinaryIO) -> tuple[onnx.ModelProto, Path | None, str]:
    name = getattr(stream, "name", None)
    where = name if isinstance(name, str) else type(stream).__name__
    try:
        content = stream.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{where}: the model can't be read: {error}.") from error
    if isinstance(stream, io.TextIOBase) or not isinstance(content, bytes):
        raise InputError(f"{where} gives {type(content).__name__}; open the model in binary mode: open(path, 'rb').")
    folder = Path(name).absolute().parent if isinstance(name, str) and os.path.isfile(name) else None
    return _parse(content, where), folder, where


def _parse(content: bytes, where: str) -> onnx.ModelProto:
    if not content:
        raise ModelError(f"{where}: expected an ONNX model, got 0 bytes.")
    if len(content) > _LARGEST_BYTES:
        raise ModelError(f"{where}: expected an ONNX model, got more than the {_LARGEST_BYTES} bytes one can have.")
    if content.startswith(_LFS_POINTER):
        raise ModelError(f"{where}: expected an ONNX model, got a Git LFS pointer. Fetch the file: git lfs pull.")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError as error:
        got = f"{len(content)} bytes that are no protobuf of one"
        raise ModelError(f"{where}: expected an ONNX model, got {got}: cut short, or another format.") from error
    return _check(model, where)


def _check(model: onnx.ModelProto, where: str) -> onnx.ModelProto:
    if not model.HasField("graph") or not model.ir_version:
        got = "a protobuf without " + ("graph" if not model.HasField("graph") else "ir_version")
        raise ModelError(f"{where}: expected an ONNX model, got {got}: cut short, or another format.")
    check_text(model, where)
    return model
