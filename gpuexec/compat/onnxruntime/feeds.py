"""Input conversion as ONNX Runtime does it: any object for a string, numbers for maps, lists for arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpuexec.compat.onnxruntime.errors import InvalidArgument, make_error
from gpuexec.compat.onnxruntime.values import unwrap
from gpuexec.errors import InputError
from gpuexec.ir.spec import MAP, OPTIONAL, SEQUENCE, STRING, DeclaredSpec, dtype_row, is_host_object

Array = np.ndarray[Any, Any]


def take_input(item: Any, spec: DeclaredSpec | None, name: str) -> object:
    """Convert an input to what a Worker takes.

    Of a tensor of strings, each object is the text that ``str`` makes of it, None and NaN too, and each element of a
    void array its bytes as UTF-8, with every NUL. A number that a map holds becomes one of the declared type. Lists
    become arrays of the input's dtype where that loses nothing.

    Raises:
        InvalidArgument: A list holds something else, or bytes or objects are no text.
    """
    if isinstance(item, np.generic):
        return np.asarray(item)
    if spec is None:
        return unwrap(item)
    if is_host_object(spec.dtype):
        try:
            return _take_object(unwrap(item), spec)
        except InputError as error:
            raise make_error(InvalidArgument, f"Input {name!r}: {error}") from error
    if isinstance(item, list | tuple):
        try:
            return np.asarray(item).astype(spec.dtype, casting="same_kind")
        except (TypeError, ValueError) as error:
            raise make_error(InvalidArgument, f"Input {name!r} expects {spec}, got a list: {error}") from error
    return unwrap(item)


def _take_object(item: Any, spec: DeclaredSpec) -> Any:
    """Convert strings or a container; leave anything else as it is, to be refused like any other input."""
    held = spec.item
    if spec.dtype == STRING:
        return _take_strings(item)
    if held is None or item is None:
        return item
    if spec.dtype == OPTIONAL:
        return _take_object(item, held)
    if spec.dtype == SEQUENCE and isinstance(item, list | tuple):
        return [_take_object(each, held) for each in item]
    if spec.dtype == MAP and isinstance(item, Mapping) and not is_host_object(held.dtype):
        return {key: _take_number(each, held) for key, each in item.items()}
    return item


def _take_strings(item: Any) -> Any:
    is_list = isinstance(item, list | tuple)
    if not is_list and not isinstance(item, np.ndarray):
        return item
    array = np.array(item, object) if is_list else item
    flat = array.reshape(-1)
    if array.dtype.kind == "V" and array.dtype.names is None:
        texts = [_decode(each.tobytes()) for each in flat]
    elif array.dtype == object and not (is_list and any(isinstance(each, list | tuple) for each in flat)):
        texts = [each if type(each) is str else _write(each) for each in flat]
    else:
        return item
    return np.array(texts, object).reshape(array.shape)


def _take_number(item: Any, held: DeclaredSpec) -> Any:
    """Convert a number to Python's, which becomes the declared type; return anything else as it is."""
    if isinstance(item, np.generic) or (isinstance(item, np.ndarray) and item.ndim == 0):
        item = item.item()
    return float(item) if isinstance(item, bool) and dtype_row(held.dtype).is_float else item


def _decode(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise InputError(f"{content[:20]!r} is not text in UTF-8.") from None


def _write(item: Any) -> str:
    try:
        return str(item)
    except Exception as error:
        raise InputError(f"a {type(item).__name__} can't be written as text: {error}.") from error
