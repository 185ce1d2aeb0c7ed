"""Arrays and kernels of a program as rows of JSON and bytes with an offset each, and back."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np

from gpuexec.devices.kernels.stored_code import StoredKernel
from gpuexec.errors import InputError, ModelError
from gpuexec.ir.command import Kernel
from gpuexec.ir.containers import describe
from gpuexec.ir.graphs import Array
from gpuexec.ir.spec import STRING, check_size, dtype_row, is_container, is_host_object
from gpuexec.ir.validate import is_of_type
from gpuexec.system.mapped import hash_content, read_content, read_small_content, read_view, view_bytes

ALIGNMENT = 256
_HEX = re.compile(r"[0-9a-f]{64}")
_SYMBOL = re.compile(r"[A-Za-z_$][\w$]*")
_KERNEL_NUMBERS = ("registers", "shared_bytes", "max_threads")


def pad(chunk: memoryview, filler: bytes = b"\0") -> list[memoryview]:
    """Return the chunk, and what fills it up to a multiple of the alignment."""
    missing = -chunk.nbytes % ALIGNMENT
    return [chunk, memoryview(filler * missing)] if missing else [chunk]


def take(data: Any, key: str, kind: type, where: str) -> Any:
    """Return an entry of a JSON object.

    Raises:
        ModelError: It is missing, or of another type.
    """
    value = data.get(key) if isinstance(data, dict) else None
    if not is_of_type(value, kind):
        raise ModelError(f"{where} has no {key!r}, or one that is no {kind.__name__}.")
    return value


class ArrayStore:
    """Numbers arrays, equal ones alike."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self.chunks: list[memoryview] = []
        self._numbers: dict[object, int] = {}
        self._same: dict[int, tuple[int, Array]] = {}
        self._end = 0

    def add(self, array: Array, name: str) -> int:
        """Return the number of an array."""
        known = self._same.get(id(array))
        if known is None:
            known = self._same[id(array)] = self._add(array, name), array
        return known[0]

    def _add(self, array: Array, name: str) -> int:
        try:
            row = dtype_row(array.dtype)
        except InputError as error:
            raise InputError(f"{name} can't be stored: {error}", value=name.lstrip("%")) from None
        if is_container(array.dtype):
            raise InputError(f"{name} can't be stored: it is {describe(array)}.", value=name.lstrip("%"))
        content = _encode_strings(array) if array.dtype == STRING else view_bytes(array)
        key = (row.name, array.shape, hash_content(content))
        if key not in self._numbers:
            self._numbers[key] = len(self.rows)
            self.rows.append([row.name, list(array.shape), self._end])
            if array.dtype == STRING:
                self.rows[-1].append(content.nbytes)
            self.chunks += pad(content)
            self._end += content.nbytes + -content.nbytes % ALIGNMENT
        return self._numbers[key]


def _encode_strings(array: Array) -> memoryview:
    """Return strings as a JSON list, in ASCII: as many bytes say nothing of how many they are."""
    return memoryview(json.dumps(array.reshape(-1).tolist()).encode("ascii"))


def _decode_strings(raw: bytes, shape: list[int]) -> Array:
    try:
        items = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"An array of strings can't be read: {error}") from error
    if (
        not is_of_type(items, list)
        or len(items) != math.prod(shape)
        or not all(isinstance(each, str) for each in items)
    ):
        raise ModelError(f"An array of strings is {str(items)[:60]!r}, expected {math.prod(shape)} texts.")
    array = np.array(items, STRING).reshape(shape)
    array.flags.writeable = False
    return array


def decode_array(row: Any, weights: memoryview, is_full: bool) -> Array:
    """Return the array of a row, as a window on the weights, or strings; ``is_full``: what a bool may be is checked.

    Raises:
        ModelError: The row is of another form, or outside the weights.
    """
    has_size = is_of_type(row, list) and len(row) == 4 and row[0] == "string"  # strings say how long they are
    if not is_of_type(row, list) or len(row) != 3 + has_size:
        raise ModelError(f"An array is {str(row)[:60]!r}, expected [dtype, shape, offset].")
    name, shape, offset, *size = row
    if not (
        isinstance(name, str) and isinstance(shape, list) and all(is_of_type(n, int) for n in (*shape, offset, *size))
    ):
        raise ModelError(f"An array is {str(row)[:60]!r}, expected [dtype, shape, offset].")
    try:
        dtype = dtype_row(name).numpy
        check_size(shape, dtype)
    except InputError as error:
        raise ModelError(f"An array is of no type or size: {error}") from None
    if is_host_object(dtype) != has_size:
        raise ModelError(f"An array is {str(row)[:60]!r}, which is no tensor that a file holds.")
    nbytes = size[0] if size else math.prod(shape) * dtype.itemsize
    if offset < 0 or nbytes < 0 or offset % ALIGNMENT or offset + nbytes > weights.nbytes:
        raise ModelError(f"An array of {nbytes} bytes at {offset} is outside the {weights.nbytes} of the weights.")
    if has_size:
        return _decode_strings(bytes(read_view(weights[offset : offset + nbytes])), shape)
    raw = np.frombuffer(weights, np.uint8, nbytes, offset) if nbytes else np.empty(0, np.uint8)
    raw = read_content(raw) if dtype == np.bool_ else read_small_content(raw)
    if is_full and dtype == np.bool_ and nbytes and int(raw.max()) > 1:
        raise ModelError(f"An array of bool at {offset} has bytes other than 0 and 1.")
    array = raw.view(dtype).reshape(shape)
    array.flags.writeable = False
    return array


def encode_kernel(kernel: StoredKernel, offset: int) -> dict[str, Any]:
    """Return a kernel as a row; its bytes lie at ``offset`` of the code."""
    return {
        "key": kernel.key,
        "source": kernel.kernel.source,
        "expression": kernel.kernel.expression,
        "architecture": kernel.architecture,
        "compiler": kernel.compiler,
        "symbol": kernel.lowered_name,
        **{name: getattr(kernel, name) for name in _KERNEL_NUMBERS},
        "offset": offset,
        "nbytes": kernel.image.nbytes,
    }


def decode_kernel(row: Any, code: memoryview) -> StoredKernel:
    """Return the kernel of a row, with a window on the code.

    Raises:
        ModelError: The row is of another form, or outside the code.
    """
    texts = {
        name: take(row, name, str, "A kernel")
        for name in ("key", "source", "expression", "architecture", "compiler", "symbol")
    }
    numbers = {name: take(row, name, int, "A kernel") for name in (*_KERNEL_NUMBERS, "offset", "nbytes")}
    offset, nbytes = numbers.pop("offset"), numbers.pop("nbytes")
    if offset < 0 or nbytes < 0 or offset + nbytes > code.nbytes:
        raise ModelError(f"A kernel of {nbytes} bytes at {offset} is outside the {code.nbytes} of the code.")
    if not _HEX.fullmatch(texts["key"]) or not _SYMBOL.fullmatch(texts["symbol"]):
        raise ModelError(f"The key or symbol of a kernel is none: {texts['key'][:64]!r}, {texts['symbol'][:64]!r}.")
    return StoredKernel(
        key=texts["key"],
        kernel=Kernel(texts["source"], texts["expression"]),
        architecture=texts["architecture"],
        compiler=texts["compiler"],
        lowered_name=texts["symbol"],
        image=code[offset : offset + nbytes],
        **numbers,
    )
