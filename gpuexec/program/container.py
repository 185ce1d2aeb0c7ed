"""Program file format: three tensors of bytes in the layout of safetensors, with a hash of each.

    file = length of header (8 bytes, little-endian), header (JSON, padded with spaces), program, weights, code

``program`` is JSON (`gpuexec.program.contents_json`), ``weights`` the arrays, ``code`` compiled kernels. Every offset
is a multiple of 256, so that what is mapped can be used as it lies. The header's metadata is one JSON text under one
key: the format, and the SHA-256 of each tensor. Equal contents give equal bytes, and reading runs nothing of them.

The format has a number, major.minor. A minor step only adds what may be left unread. Files of format 1.x are read by
every later release that reads any 1.x; a major step is refused by its number, before anything else is looked at.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from gpuexec.errors import AccessError, InputError, ModelError, abridge
from gpuexec.program.contents import FORMAT, Contents, Verification
from gpuexec.program.contents_json import ALIGNMENT, decode_contents, encode_contents, pad
from gpuexec.program.fetching import fetch, measure
from gpuexec.system.atomic_file import atomic_file
from gpuexec.system.mapped import hash_content, read_pieces, read_view

PARTS = ("program", "weights", "code")
_KEY = "gpuexec"
# Far above what three rows take; safetensors' own limit is 100 MB.
_LARGEST_HEADER = 1 << 20
_MAX_DIGITS = 20
# How a ModelProto begins: ``ir_version``, one of its first fields, and any other field of its behind it.
_IR_VERSION_TAG = 0x08
_ONNX_TAGS = frozenset({0x12, 0x1A, 0x22, 0x28, 0x32, 0x3A, 0x42, 0x72, 0xA2, 0xCA})
_Chunks = Sequence[memoryview]


def read_contents(loader: Any, verification: Verification = Verification.FULL) -> Contents:
    """Read a program.

    Args:
        loader: Where its bytes are: a DataLoader, or what has the same methods.
        verification: What to check.

    Raises:
        InputError: ``verification`` is none.
        ModelError: The file is no program, was cut or altered, is of a newer format, or contradicts itself.
        UnsupportedError: It uses operators that are not registered here.
        AccessError: The loader fails.
    """
    if not isinstance(verification, Verification):
        raise InputError(f"verification takes a Verification (FULL, MINIMAL), got {verification!r}.")
    try:
        header, start = _read_header(loader)
    except ModelError as error:
        if _is_onnx(loader):
            raise ModelError(
                "Expected a program, got an ONNX model. Load it with gpuexec.load(path), run it with"
                " gpuexec.Module('model.onnx'), or make a program of it: gpuexec.Program.build({'forward': path}), or"
                " `gpuexec compile` on the command line, where programs are files that end in .gxp."
            ) from error
        raise
    version, hashes = _read_metadata(header)
    places = _find_parts(header, start, measure(loader))
    parts = {}
    for name in PARTS:
        low, high = places[name]
        parts[name] = _align(fetch(loader, low, high - low))
        if verification is Verification.FULL:
            _check_hash(name, parts[name], hashes)
    program = parse_json(parts["program"], "The program")
    try:
        return decode_contents(program, parts["weights"], parts["code"], version, verification)
    except RecursionError as error:
        raise ModelError("The program's text is nested too deep.") from error
    except ModelError as error:
        error.args = (abridge(error.message),)
        raise


def write_contents(contents: Contents, target: str | os.PathLike[str] | BinaryIO) -> int:
    """Write a program to a file, whole or not at all, or to a binary file object; return its size in bytes.

    Args:
        contents: What to write.
        target: A path, behind whose links the file takes the place of an older one, or a binary file.

    Raises:
        InputError: Something in it can't be stored, and the method and node or value are named; or ``target`` is none.
        AccessError: The file can't be written.
    """
    where = _name_target(target)
    program, weights, code = encode_contents(contents)
    try:
        text = json.dumps(program, separators=(",", ":"), allow_nan=False).encode()
        _check_texts(text.decode(), program)
    except (TypeError, ValueError) as error:
        raise InputError(f"The program can't be stored: {error}.") from error
    chunks = {"program": pad(memoryview(text), b" "), "weights": weights, "code": code}
    header = _make_header(chunks)
    rows = [memoryview(header), *(chunk for name in PARTS for chunk in chunks[name])]
    try:
        if not isinstance(target, str | os.PathLike):
            return _write(target, rows)
        with atomic_file(target) as file:
            return _write(file, rows)
    except (OSError, ValueError) as error:  # ValueError: a closed file object, a path with a zero byte
        reason = getattr(error, "strerror", None) or str(error)
        raise AccessError(f"{where} can't be written: {reason}.") from error


def parse_json(text: bytes | memoryview, what: str) -> Any:
    """Return JSON data; numbers must be finite, and texts such that they can be written.

    Raises:
        ModelError: The text is no JSON, or nested too deep.
    """
    try:
        decoded = bytes(read_view(memoryview(text))).decode()
        data = json.loads(decoded, parse_constant=_refuse_constant, parse_float=_parse_float, parse_int=_parse_int)
        _check_texts(decoded, data)
        return data
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{what} can't be read: {str(error)[:200]}.") from error


def _check_texts(text: str, data: Any) -> None:
    """Check that no text of JSON data has half a character, which can be neither printed nor encoded."""
    if "\\ud" in text.lower():
        json.dumps(data, ensure_ascii=False).encode()


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _parse_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} is no number of 64 bits")
    return number


def _parse_int(text: str) -> int:
    # More could be computed with, and then not be printed.
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"{text[:40]}... is no number of 64 bits")
    return int(text)


def _read_header(loader: Any) -> tuple[dict[str, Any], int]:
    """Return the header, and where the first tensor begins."""
    size = measure(loader)
    if size < 8:
        raise ModelError(f"The file has {size} bytes, which is no program: expected a header of safetensors.")
    length = int.from_bytes(read_view(fetch(loader, 0, 8)), "little")
    if not 2 <= length <= min(size - 8, _LARGEST_HEADER):
        raise ModelError(
            f"The file is no program, or was cut: its header would take {length} bytes of {size}, expected at most "
            f"{_LARGEST_HEADER}."
        )
    header = parse_json(fetch(loader, 8, length), "The header")
    if not isinstance(header, dict):
        raise ModelError("The file is no program: its header is no JSON object.")
    return header, 8 + length


def _is_onnx(loader: Any) -> bool:
    """Return whether a file that is no program begins as ONNX models do: the IR version, and the tag of a field."""
    first = bytes(fetch(loader, 0, min(measure(loader), 3)))
    return len(first) == 3 and first[0] == _IR_VERSION_TAG and first[1] < 64 and first[2] in _ONNX_TAGS


def _read_metadata(header: Mapping[str, Any]) -> tuple[tuple[int, int], Mapping[str, Any]]:
    """Return format and hashes."""
    metadata = header.get("__metadata__")
    text = metadata.get(_KEY) if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        raise ModelError("The file is no program of gpuexec: its metadata has no such entry. Make one: gpuexec compile")
    described = parse_json(text.encode("utf-8", "replace"), "The metadata")
    version = described.get("format") if isinstance(described, dict) else None
    if not (isinstance(version, list) and len(version) == 2 and all(type(n) is int and n >= 0 for n in version)):
        raise ModelError("The metadata names no format, expected [major, minor].")
    if version[0] != FORMAT[0]:
        raise ModelError(
            f"The program is of format {version[0]}.{version[1]}, this release reads {FORMAT[0]}.x. "
            f"{'Update gpuexec.' if version[0] > FORMAT[0] else 'Compile it anew.'}"
        )
    hashes = described.get("sha256")
    if not isinstance(hashes, dict):
        raise ModelError("The metadata names no hashes.")
    return (version[0], version[1]), hashes


def _find_parts(header: Mapping[str, Any], start: int, size: int) -> dict[str, tuple[int, int]]:
    """Return the bytes of each tensor in the file; all together must be what there is."""
    places = {}
    for name, row in header.items():
        if name == "__metadata__":
            continue
        span = row.get("data_offsets") if isinstance(row, dict) else None
        if not (isinstance(span, list) and len(span) == 2 and all(type(n) is int and 0 <= n <= size for n in span)):
            raise ModelError(f"The header gives {name[:40]!r} no place within {size} bytes; was it cut?")
        if row.get("dtype") != "U8" or row.get("shape") != [span[1] - span[0]]:
            raise ModelError(f"The header gives {name[:40]!r} another type or shape than bytes [{span[1] - span[0]}].")
        places[name] = (start + span[0], start + span[1])
    missing = [name for name in PARTS if name not in places]
    if missing:
        raise ModelError(f"The file lacks {', '.join(missing)}.")
    end = start
    for name, (low, high) in sorted(places.items(), key=lambda row: row[1]):
        if low != end or high < low or low % ALIGNMENT:
            raise ModelError(f"The tensor {name[:40]!r} lies at {low} to {high}, expected {end} on, in steps of 256.")
        end = high
    if end != size:
        raise ModelError(f"The file has {size} bytes, its header speaks of {end}: it was cut, or something was added.")
    return places


def _check_hash(name: str, content: memoryview, hashes: Mapping[str, Any]) -> None:
    found = hash_content(content).hex()
    if found != hashes.get(name):
        raise ModelError(
            f"The program was altered or damaged: SHA-256 of its {name} is {found[:16]}..., expected "
            f"{str(hashes.get(name))[:16]}..."
        )


def _align(view: memoryview) -> memoryview:
    """Return bytes at an address that suits every element type: those given, or a copy of them."""
    if not view.nbytes or np.frombuffer(view, np.uint8).ctypes.data % 16 == 0:
        return view
    room = np.empty(view.nbytes + 16, np.uint8)
    skip = -room.ctypes.data % 16
    copied = room[skip : skip + view.nbytes].data
    copied[:] = read_view(view)
    return copied.toreadonly()


def _name_target(target: Any) -> str:
    if isinstance(target, str | os.PathLike):
        return str(target)
    if isinstance(target, io.TextIOBase) or not callable(getattr(target, "write", None)):
        raise InputError(f"Expected a path or a binary file to write to, got {type(target).__name__}.")
    return str(getattr(target, "name", None) or type(target).__name__)


def _make_header(chunks: Mapping[str, _Chunks]) -> bytes:
    hashes, rows, offset = {}, {}, 0
    for name in PARTS:
        found, nbytes = hashlib.sha256(), 0
        for chunk in chunks[name]:
            for piece in read_pieces(chunk):
                found.update(piece)
            nbytes += chunk.nbytes
        hashes[name] = found.hexdigest()
        rows[name] = {"dtype": "U8", "shape": [nbytes], "data_offsets": [offset, offset + nbytes]}
        offset += nbytes
    described = json.dumps({"format": list(FORMAT), "sha256": hashes}, separators=(",", ":"))
    header = json.dumps({"__metadata__": {_KEY: described}, **rows}, separators=(",", ":")).encode()
    header += b" " * (-(8 + len(header)) % ALIGNMENT)
    return len(header).to_bytes(8, "little") + header


def _write(file: Any, rows: _Chunks) -> int:
    for row in (piece for chunk in rows for piece in read_pieces(chunk)):
        done = file.write(row)
        while done is not None and done < row.nbytes:  # a raw file may take less
            if not done:
                raise OSError(f"it took nothing of {row.nbytes} bytes")
            row = row[done:]
            done = file.write(row)
    return sum(row.nbytes for row in rows)
