"""Host objects: string tensors, sequences, optionals and maps, as NumPy arrays.

A container is a 0-d array of a dtype of its own (`gpuexec.ir.spec`), whose one field holds a list or a dict, with the
type
of its elements, or an element or None; so code for arrays works on it too, and its `dtype` says what it is. The
elements of a container are arrays, never changed once they are in one. Callers give and get Python objects: lists,
None, dicts, arrays of str.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.spec import (
    MAP,
    OPTIONAL,
    SEQUENCE,
    STRING,
    DeclaredSpec,
    TensorSpec,
    convert_numbers,
    dtype_row,
    is_container,
    name_dtype,
)

Array = np.ndarray[Any, Any]


def make_blank(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Return a default value of a spec: zeros, False, empty strings, or an empty container."""
    if dtype == STRING:
        return np.full(shape, "", STRING)
    if dtype == SEQUENCE:
        return make_sequence([])
    if dtype == MAP:
        return make_map({})
    return make_optional(None) if dtype == OPTIONAL else np.zeros(shape, dtype)


def hold(array: Array) -> Array:
    """Return an array that a container may keep: read-only, in memory that no caller can write to."""
    if array.flags.writeable or array.base is not None or not array.flags.owndata:
        array = array.copy()
        array.flags.writeable = False
    return array


def make_sequence(items: Sequence[Array], held: np.dtype[Any] | None = None) -> Array:
    """Return a sequence that holds these arrays; ``held`` is their type, needed where there are none."""
    return np.array(((list(items), held),), SEQUENCE)


def make_optional(item: Array | None) -> Array:
    """Return an optional that holds an array, or an empty one."""
    return np.array((item,), OPTIONAL)


def make_map(items: Mapping[Any, Array], held: np.dtype[Any] | None = None) -> Array:
    """Return a map that holds these arrays by key, an int or a str; ``held`` as of `make_sequence`."""
    return np.array(((dict(items), held),), MAP)


def read_sequence(array: Array) -> list[Array]:
    """Return the elements of a sequence; the list is the caller's own."""
    return list(array["sequence"].item()[0])


def read_optional(array: Array) -> Array | None:
    """Return the element of an optional, or None where it is empty."""
    found: Array | None = array["optional"].item()
    return found


def read_map(array: Array) -> dict[Any, Array]:
    """Return the entries of a map; the dict is the caller's own."""
    return dict(array["map"].item()[0])


def find_held(array: Array) -> np.dtype[Any] | None:
    """Return the element type of a sequence or map, or None where it is unknown."""
    is_map = array.dtype == MAP
    items, held = array["map" if is_map else "sequence"].item()
    found: np.dtype[Any] | None = next((item.dtype for item in (items.values() if is_map else items)), held)
    return found


def to_strings(given: Any) -> Array:
    """Convert str, bytes of UTF-8, and arrays and nested lists of them, to an array of str.

    Raises:
        InputError: An element is neither.
    """
    # A value that is no array yet becomes one of objects: a str array pads all texts to the longest and drops trailing
    # NULs.
    array = given if isinstance(given, np.ndarray) else np.array(given, STRING)
    if array.dtype.kind not in "OUST" or (array.dtype.kind == "O" and array.dtype != STRING):
        raise InputError(f"expected strings, got {name_dtype(array.dtype)}.")
    strings = array.astype(STRING)  # a copy, of str or bytes
    flat = strings.reshape(-1)
    for index, item in enumerate(flat):
        if type(item) is not str:
            flat[index] = _to_string(item)
    return flat.reshape(strings.shape)


def pack(given: Any, declared: DeclaredSpec) -> Array:
    """Convert a caller's value to the array that represents it, by its declared spec.

    A sequence comes as a list or tuple, an optional as None or what it holds, a map as a mapping; arrays that stand for
    containers already are taken as they are. Numbers are converted to the declared type where that loses nothing but
    precision; one that is no array becomes a tensor of one element, of any declared rank.

    Raises:
        InputError: It is something else.
    """
    if isinstance(given, np.ndarray) and given.dtype == declared.dtype and declared.dtype in (SEQUENCE, OPTIONAL, MAP):
        return given
    item = declared.item
    if declared.dtype == SEQUENCE:
        if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
            raise InputError(f"expected a list of values, got a {type(given).__name__}.")
        items = [_pack_item(each, item, f"element {index}") for index, each in enumerate(given)]
        return make_sequence(items, None if item is None else item.dtype)
    if declared.dtype == OPTIONAL:
        return make_optional(None if given is None else _pack_item(given, item, "what the optional holds"))
    if declared.dtype == MAP:
        if not isinstance(given, Mapping):
            raise InputError(f"expected a dict, got a {type(given).__name__}.")
        keys = [_pack_key(key, declared.key) for key in given]
        packed = [_pack_item(each, item, f"the value of {key!r}") for key, each in given.items()]
        return make_map(dict(zip(keys, packed, strict=True)), None if item is None else item.dtype)
    return to_strings(given) if declared.dtype == STRING else _pack_tensor(given, declared)


def check_no_objects(given: Any, array: Array, declared: DeclaredSpec) -> None:
    """Check that NumPy's conversion of a caller's value gave no array of Python objects.

    Raises:
        InputError: They are.
    """
    if array.dtype == STRING and not isinstance(given, np.ndarray):
        got = "Python objects" if array.ndim else f"a {type(given).__name__}"
        raise InputError(f"expected {declared}, got {got}.")


def unpack(array: Array) -> Any:
    """Convert a host object to what callers get: lists, None, dicts, and writable arrays, strings as arrays of str.

    What a map holds by key comes as a scalar where it is one.
    """
    if array.dtype == SEQUENCE:
        return [unpack(item) for item in read_sequence(array)]
    if array.dtype == OPTIONAL:
        item = read_optional(array)
        return None if item is None else unpack(item)
    if array.dtype == MAP:
        return {key: _unpack_held(each) for key, each in read_map(array).items()}
    return array.copy()


def describe(array: Array) -> str:
    """Describe the type of an array in words, with the content of a container: ``"sequence(2 of float32[3])"``."""
    if array.dtype == SEQUENCE:
        items = read_sequence(array)
        kinds = dict.fromkeys(map(describe, items))
        return f"sequence({len(items)} of {', '.join(kinds)})" if items else "sequence(empty)"
    if array.dtype == OPTIONAL:
        item = read_optional(array)
        return "optional(empty)" if item is None else f"optional({describe(item)})"
    return str(TensorSpec(array.shape, array.dtype))


def _unpack_held(array: Array) -> Any:
    is_scalar = array.shape == () and not is_container(array.dtype)
    return array[()] if is_scalar else unpack(array)


def _pack_item(given: Any, declared: DeclaredSpec | None, where: str) -> Array:
    try:
        return _pack_freely(given) if declared is None else pack(given, declared)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _pack_freely(given: Any) -> Array:
    """Convert a caller's value of which nothing is declared."""
    if isinstance(given, np.ndarray) and given.dtype in (SEQUENCE, OPTIONAL, MAP):
        return given
    if isinstance(given, (list, tuple)):
        return make_sequence([_pack_freely(each) for each in given])
    if isinstance(given, Mapping):
        return make_map({key: _pack_freely(each) for key, each in given.items()})
    array = np.asarray(given)
    if array.dtype.kind in "OUST":
        return to_strings(given)
    dtype_row(array.dtype)
    return array


def _pack_tensor(given: Any, declared: DeclaredSpec) -> Array:
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise InputError(f"expected {declared}, got a {type(given).__name__} that is no array: {error}") from None
    check_no_objects(given, array, declared)
    array = array.copy() if isinstance(given, np.ndarray) else convert_numbers(array, declared.dtype)
    if array.ndim == 0 and not isinstance(given, np.ndarray) and _has_room_for_one(declared):
        array = array.reshape((1,) * len(declared.dims or ()))
    spec = TensorSpec(array.shape, array.dtype)
    if array.dtype != declared.dtype:
        raise InputError(f"expected {declared}, got {spec}.")
    if declared.dims is not None and (
        len(declared.dims) != array.ndim
        or any(isinstance(d, int) and d != n for d, n in zip(declared.dims, array.shape, strict=True))
    ):
        raise InputError(f"expected {declared}, got {spec}.")
    return array


def _has_room_for_one(declared: DeclaredSpec) -> bool:
    """Return whether a tensor of one element fits the declared dims."""
    return all(dim == 1 or not isinstance(dim, int) for dim in declared.dims or ())


def _pack_key(key: Any, dtype: np.dtype[Any] | None) -> Any:
    if isinstance(key, (bytes, str)) and dtype in (None, STRING):
        return _to_string(key)
    if hasattr(key, "__index__") and dtype != STRING:
        return int(key)
    expected = "int or str" if dtype is None else name_dtype(dtype)
    raise InputError(f"expected keys of type {expected}, got {key!r}.")


def _to_string(item: Any) -> str:
    if isinstance(item, str):
        return str(item)
    if isinstance(item, bytes):
        try:
            return item.decode()
        except UnicodeDecodeError:
            raise InputError(f"{item[:20]!r} is not text in UTF-8.") from None
    raise InputError(f"expected strings, got an element of type {type(item).__name__}.")
