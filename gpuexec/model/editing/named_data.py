"""Replacement weights from files: arrays by name."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpuexec.errors import InputError, ModelError, abridge
from gpuexec.importer.output_selection import shorten
from gpuexec.importer.read import open_model
from gpuexec.importer.tensors import UnsupportedFormError, to_array
from gpuexec.ir.graphs import Array
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.system.array_files import load_arrays
from gpuexec.system.mapped import MAPPED_NBYTES, map_file, open_regular, read_view

_KINDS = {"F": "float", "I": "int", "U": "uint"}
# Dtypes that safetensors does not name by letter and bits.
_NAMES = {
    "BF16": "bfloat16",
    "BOOL": "bool",
    "F8_E4M3": "float8e4m3fn",
    "F8_E5M2": "float8e5m2",
    "F8_E8M0": "float8e8m0",
}
_LENGTH_NBYTES = 8  # length field in front of a safetensors header


@dataclass(frozen=True, slots=True, eq=False)
class _NamedArray:
    """An array, possibly a view of a mapped file, and its source."""

    array: Array
    source: str

    @property
    def spec(self) -> TensorSpec:
        """Shape and dtype."""
        return TensorSpec(self.array.shape, self.array.dtype)


class NamedDataMap(Mapping[str, Array]):
    """Arrays by name, read on demand from .safetensors files and from large external data.

    A mapping of read-only arrays; ExecuTorch's other names for it are in `gpuexec.compat.executorch`.

    Example:
        >>> np.savez("bias.npz", **{"head.bias": np.zeros(10, np.float32)})
        >>> changed = model.with_weights("bias.npz")
        >>> [float(array.sum()) for value, array in changed.graph.constants.items() if value.name == "head.bias"]
        [0.0]
    """

    def __init__(self, rows: Mapping[str, _NamedArray], sources: Sequence[str]) -> None:
        self._rows, self._sources = dict(rows), tuple(sources)

    @staticmethod
    def load(*sources: str | os.PathLike[str] | Mapping[str, Any]) -> NamedDataMap:
        """Return the arrays of one or more sources together.

        Args:
            *sources: Paths of .safetensors, .npz or .onnx files (of those the initializers, external data too), or
                mappings of arrays. What is of a type that there is none for here is left out.

        Raises:
            InputError: A source is none of these, or two have the same key.
            ModelError: A file can't be read.
        """
        if not sources:
            raise InputError("Expected at least one file or mapping to load arrays from.")
        return NamedDataMap.merge(*(_open(source) for source in sources))

    @staticmethod
    def merge(*maps: NamedDataMap) -> NamedDataMap:
        """Merge several maps into one.

        Raises:
            InputError: Two have the same key; names key and sources.
        """
        rows: dict[str, _NamedArray] = {}
        for each in maps:
            if not isinstance(each, NamedDataMap):
                raise InputError(f"merge takes NamedDataMaps, as load gives them; got a {type(each).__name__}.")
            for key, row in each._rows.items():
                if key in rows:
                    raise InputError(f"The key {key!r} is in {rows[key].source} and in {row.source}.", value=key)
                rows[key] = row
        return NamedDataMap(rows, [source for each in maps for source in each._sources])

    def get_tensor_layout(self, key: str) -> TensorSpec:
        """Return shape and dtype of an array, without reading it.

        Raises:
            InputError: There is none of that name.
        """
        return self._find(key).spec

    def load_data_into(self, key: str, out: Any) -> None:
        """Copy an array into the caller's array, or into anything writable with the buffer protocol.

        Raises:
            InputError: There is none of that name, or ``out`` is of another size, or of another dtype or shape.
        """
        row = self._find(key)
        spec = row.spec
        try:
            target = out if isinstance(out, np.ndarray) else np.frombuffer(out, np.uint8)
        except (TypeError, ValueError, BufferError) as error:
            message = f"{key!r} is {spec}, {spec.nbytes} bytes; expected as much to write to, got {type(out).__name__}:"
            raise InputError(f"{message} {error}.", value=key) from None
        is_bytes = target.dtype == np.uint8 and target.ndim == 1 and spec.dtype != np.uint8
        fits = target.nbytes == spec.nbytes if is_bytes else (target.dtype, target.shape) == (spec.dtype, spec.shape)
        if not fits or not target.flags.writeable:
            got = f"{target.dtype.name}{list(target.shape)}{'' if target.flags.writeable else ', read-only'}"
            raise InputError(
                f"{key!r} is {spec}, {spec.nbytes} bytes; expected as much to write to, got {got}.", value=key
            )
        array = np.ascontiguousarray(row.array)
        target[...] = array.reshape(-1).view(np.uint8) if is_bytes else array

    def __getitem__(self, key: str) -> Array:
        if key not in self._rows:
            raise KeyError(key)
        array = self._rows[key].array.view()
        array.flags.writeable = False
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"NamedDataMap({len(self._rows)} arrays of {', '.join(self._sources)})"

    def _find(self, key: str) -> _NamedArray:
        if key not in self._rows:
            known = shorten(sorted(self._rows)) or "nothing"
            raise InputError(f"There is no {key!r} in {', '.join(self._sources)}; there is {known}.", value=key)
        return self._rows[key]


def _open(source: object) -> NamedDataMap:
    if isinstance(source, NamedDataMap):
        return source
    if isinstance(source, Mapping):
        arrays = {str(name): np.asarray(array) for name, array in source.items()}
        return _hold(arrays, "a mapping")
    if not isinstance(source, str | os.PathLike):
        raise InputError(f"Expected the path of a file of weights, or arrays by name, got a {type(source).__name__}.")
    path = Path(os.fsdecode(source))
    readers = {".safetensors": _open_safetensors, ".npz": _open_npz, ".onnx": _open_onnx}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path}: expected a file {', '.join(readers)}, got {path.suffix or 'one without suffix'}.")
    try:
        return reader(path)
    except OSError as error:
        raise ModelError(f"{path}: the weights can't be read: {error.strerror or error}.") from error


def _hold(arrays: Mapping[str, Array], source: str) -> NamedDataMap:
    return NamedDataMap({name: _NamedArray(array, source) for name, array in arrays.items()}, [source])


def safetensors_dtype(code: str) -> np.dtype[Any]:
    """Return the dtype of safetensors' name for it: F32, BF16, U8, BOOL.

    Raises:
        InputError: There is none here.
    """
    return dtype_row(_NAMES.get(code, f"{_KINDS.get(code[:1], code)}{code[1:]}")).numpy


def _open_safetensors(path: Path) -> NamedDataMap:
    """Map a file; its arrays are views of it."""
    from safetensors import SafetensorError, safe_open

    content = map_file(open_regular(path), str(path), path)
    try:
        with safe_open(path, framework="numpy"):
            pass  # the library checks the header against the file
        start = _LENGTH_NBYTES + int.from_bytes(read_view(content[:_LENGTH_NBYTES]), "little")
        header = json.loads(bytes(read_view(content[_LENGTH_NBYTES:start])))
        arrays = {}
        for name, row in header.items():
            if name == "__metadata__":
                continue
            try:
                dtype = safetensors_dtype(row["dtype"])
            except InputError:
                continue
            low, high = row["data_offsets"]
            piece = content[start + low : start + high]
            piece = piece if piece.nbytes >= MAPPED_NBYTES else read_view(piece)
            arrays[name] = np.frombuffer(piece, dtype).reshape(row["shape"])
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} holds no weights: {abridge(str(error), 300)}.") from error
    return _hold(arrays, str(path))


def _open_npz(path: Path) -> NamedDataMap:
    try:
        arrays = load_arrays(path)
    except InputError as error:
        raise ModelError(f"{path} holds no weights: {error}") from error
    if not isinstance(arrays, dict):
        raise ModelError(f"{path} holds no weights: expected arrays by name, got one array.")
    return _hold(arrays, str(path))


def _open_onnx(path: Path) -> NamedDataMap:
    """Open the initializers of a model's graph; those of types that have no NumPy form here are left out.

    Raises:
        ModelError: The file can't be read, or a name comes twice.
    """
    model, origin, where = open_model(path)
    arrays: dict[str, Array] = {}
    for tensor in model.graph.initializer:
        if tensor.name in arrays:
            raise ModelError(f"{where}: two initializers are called {tensor.name!r}.", value=tensor.name)
        try:
            arrays[tensor.name] = to_array(tensor, origin, f"Initializer %{tensor.name}")
        except UnsupportedFormError:
            continue
    return _hold(arrays, str(path))
