"""Conversion of TensorProto, ValueInfoProto and attributes to NumPy arrays, specs and Python values."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from gpuexec.errors import AccessError, InputError, ModelError
from gpuexec.importer.origin import Origin
from gpuexec.ir.containers import to_strings
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.spec import MAP, OPTIONAL, SEQUENCE, STRING, DeclaredSpec, Dim, TensorSpec, check_size, dtype_row
from gpuexec.system.mapped import MAPPED_NBYTES, read_content, read_view

Array = np.ndarray[Any, Any]
# Types of which several elements share a byte, as far as this version of onnx knows them.
_BITS_BY_NAME = {"UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2, "FLOAT6E2M3": 6, "FLOAT6E3M2": 6}
# Digits of a 63-bit number after any zeros. Python refuses to parse thousands of digits.
_MAX_DIGITS = 19
_NUMBER = re.compile(rf"0*[0-9]{{1,{_MAX_DIGITS}}}", re.ASCII)
_SHOWN_CHARACTERS = 40
_LONGEST_PATH = 400
_PACKED_BITS = {code: _BITS_BY_NAME[name] for name, code in TensorProto.DataType.items() if name in _BITS_BY_NAME}

# Names that onnx's inference gives to dimensions that have none.
_GENERATED = re.compile(r"unk__\d+")


class UnsupportedFormError(Exception):
    """A type or attribute that is right in ONNX and not supported here; the importer collects them."""


def to_array(tensor: TensorProto, origin: Origin, what: str) -> Array:
    """Return the content of a tensor, read-only. Large content in another file is a view of that file.

    Args:
        tensor: Dense, with its content inside or elsewhere.
        origin: Where content lies that is elsewhere.
        what: The tensor in words, for messages.

    Raises:
        ModelError: The content does not fit the shape, or the external data is missing.
        UnsupportedFormError: The element type has no NumPy form here.
    """
    dtype = element_dtype(tensor.data_type, what)
    _check_size(tensor.dims, dtype, what, tensor.name)
    if dtype == STRING:
        return _read_strings(tensor, what)
    content: memoryview | bytes | None
    if tensor.data_location == TensorProto.EXTERNAL:
        elsewhere = content = _read_elsewhere(tensor, dtype, origin, what)
    else:
        _check_content(tensor, dtype, what)
        elsewhere, content = None, tensor.raw_data if tensor.HasField("raw_data") else None
    try:
        if content is not None and tensor.data_type not in _PACKED_BITS and sys.byteorder == "little":
            array = np.frombuffer(content, dtype).reshape(tuple(tensor.dims))
        else:
            whole = tensor if elsewhere is None else _with_content(tensor, elsewhere)
            array = np.asarray(numpy_helper.to_array(whole))
    except (ValueError, TypeError) as error:
        expected = f"{dtype_row(tensor.data_type).name}{list(tensor.dims)}"
        raise ModelError(f"{what}: the content does not fill {expected}: {error}.", value=tensor.name) from error
    if array.dtype == np.bool_:
        # Any byte but 0 is true in a file; NumPy would compute with the byte.
        array = np.asarray(read_content(array.view(np.uint8)) != 0)
    array.flags.writeable = False
    return array


def take_given(tensor: TensorProto, given: Array, origin: Origin, what: str) -> Array:
    """Return a caller's array for a tensor with external data, as `to_array` would return it.

    Raises:
        InputError: Its content is in the model's own file, or the given array has another type or shape.
    """
    is_elsewhere = tensor.data_location == TensorProto.EXTERNAL
    if not is_elsewhere or origin.measure_piece(_read_location(tensor)) is not None:
        raise InputError(f"{what} has its content in the model; only external data can be given.")
    expected, got = (
        TensorSpec(tuple(tensor.dims), element_dtype(tensor.data_type, what)),
        TensorSpec(given.shape, given.dtype),
    )
    if got != expected:
        raise InputError(f"{what}: expected {expected}, got {got}.", value=tensor.name)
    array = given.copy()
    array.flags.writeable = False
    return array


def element_dtype(code: int, what: str) -> np.dtype[Any]:
    """Return the NumPy dtype of an ONNX element type; ``what`` names its owner in messages.

    Raises:
        ModelError: The code is unknown to ONNX.
        UnsupportedFormError: The type is not in the dtype table.
    """
    try:
        return dtype_row(code).numpy
    except InputError:
        pass
    if code in TensorProto.DataType.values() and code != TensorProto.UNDEFINED:
        raise UnsupportedFormError(f"element type {TensorProto.DataType.Name(code).lower()}")
    raise ModelError(f"{what}: element type {code} is none that ONNX defines.")


def declared_spec(info: onnx.ValueInfoProto) -> DeclaredSpec | None:
    """Return a value's declared spec, or None where the model declares no type.

    Raises:
        UnsupportedFormError: It is a sparse tensor, or has an unsupported element type.
    """
    return read_type(info.type, info.name)


def refine(declared: DeclaredSpec | None, known: DeclaredSpec | None) -> DeclaredSpec | None:
    """Return a declared type completed by other knowledge: element type, rank, content."""
    if declared is None or known is None or declared.dtype != known.dtype:
        return declared or known
    return DeclaredSpec(
        declared.dtype,
        known.dims if declared.dims is None else declared.dims,
        refine(declared.item, known.item),
        declared.key or known.key,
    )


def inferred_spec(info: onnx.ValueInfoProto) -> DeclaredSpec | None:
    """Return a value's spec by ONNX's inference; dimensions named by the inference itself stay unnamed.

    Raises:
        UnsupportedFormError: As `declared_spec`.
    """
    spec = declared_spec(info)
    if spec is None or spec.dims is None:
        return spec
    return replace(spec, dims=tuple([None if isinstance(d, str) and _GENERATED.fullmatch(d) else d for d in spec.dims]))


def read_type(proto: onnx.TypeProto, name: str) -> DeclaredSpec | None:
    """Return the spec of a type in the file, for the value of this name, or None where it is empty.

    Raises:
        ModelError: It is a map by keys that ONNX does not have.
        UnsupportedFormError: It is a sparse tensor, or has an unsupported element type.
    """
    kind = proto.WhichOneof("value")
    if kind is None:
        return None
    if kind == "sequence_type":
        return DeclaredSpec(SEQUENCE, (), read_type(proto.sequence_type.elem_type, name))
    if kind == "optional_type":
        return DeclaredSpec(OPTIONAL, (), read_type(proto.optional_type.elem_type, name))
    if kind == "map_type":
        key = element_dtype(proto.map_type.key_type, f"%{name}")
        if key != STRING and key.kind not in "iu":
            raise ModelError(f"%{name}: expected a map's keys to be integers or strings, got {dtype_row(key).name}.")
        return DeclaredSpec(MAP, (), read_type(proto.map_type.value_type, name), key)
    if kind != "tensor_type":
        raise UnsupportedFormError(f"value type {kind.removesuffix('_type').replace('_', ' ')}")
    tensor = proto.tensor_type
    if not tensor.elem_type:
        return None
    dims = tuple([_dim(dim, name) for dim in tensor.shape.dim]) if tensor.HasField("shape") else None
    dtype = element_dtype(tensor.elem_type, f"%{name}")
    _check_size([dim if isinstance(dim, int) else 1 for dim in dims or ()], dtype, f"%{name}", name)
    return DeclaredSpec(dtype, dims)


def attribute_value(attribute: AttributeProto, origin: Origin, what: str) -> Any:
    """Return an attribute as int, float, str, read-only array or DeclaredSpec (a type), or as a tuple of such.

    Raises:
        ModelError: The attribute is malformed.
        UnsupportedFormError: It is a graph, or a sparse tensor.
    """
    kind = attribute.type
    if attribute.ref_attr_name:
        raise ModelError(f"{what} refers to attribute {attribute.ref_attr_name!r} of a function, but stands in none.")
    if kind == AttributeProto.FLOAT:
        return attribute.f
    if kind == AttributeProto.INT:
        return attribute.i
    if kind == AttributeProto.STRING:
        return _text(attribute.s, what)
    if kind == AttributeProto.FLOATS:
        return tuple(attribute.floats)
    if kind == AttributeProto.INTS:
        return tuple(attribute.ints)
    if kind == AttributeProto.STRINGS:
        return tuple(_text(item, what) for item in attribute.strings)
    if kind == AttributeProto.TENSOR:
        return to_array(attribute.t, origin, what)
    if kind == AttributeProto.TENSORS:
        return tuple(to_array(item, origin, what) for item in attribute.tensors)
    if kind == AttributeProto.TYPE_PROTO:
        return read_type(attribute.tp, what)
    if kind in AttributeProto.AttributeType.values() and kind != AttributeProto.UNDEFINED:
        raise UnsupportedFormError(AttributeProto.AttributeType.Name(kind).lower().replace("_", " "))
    raise ModelError(f"{what} has no type.")


def _read_strings(tensor: TensorProto, what: str) -> Array:
    """Return the content of a tensor of strings, stored as UTF-8."""
    expected = prod(map(int, tensor.dims))
    if expected != len(tensor.string_data) or tensor.HasField("raw_data"):
        raise ModelError(
            f"{what}: the content does not fill string{list(tensor.dims)}: expected {expected} entries of string_data,"
            f" got {len(tensor.string_data)}.",
            value=tensor.name,
        )
    try:
        array = to_strings(np.array(tensor.string_data, STRING)).reshape(tuple(tensor.dims))
    except InputError as error:
        raise ModelError(f"{what}: {error}", value=tensor.name) from None
    array.flags.writeable = False
    return array


def _dim(dim: onnx.TensorShapeProto.Dimension, name: str) -> Dim:
    kind = dim.WhichOneof("value")
    if kind == "dim_value":
        # Some exporters write an unknown extent as -1.
        if dim.dim_value < -1:
            raise ModelError(f"%{name} declares an extent of {dim.dim_value}; expected 0 or more.", value=name)
        return dim.dim_value if dim.dim_value >= 0 else None
    return (dim.dim_param or None) if kind == "dim_param" else None


def _text(content: bytes, what: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ModelError(f"{what} is not text in UTF-8: {content[:20]!r}.") from error


def _check_size(shape: Sequence[int], dtype: np.dtype[Any], what: str, name: str) -> None:
    try:
        check_size(shape, dtype)
    except InputError as error:
        raise ModelError(f"{what}: {error}", value=name) from None


def _check_content(tensor: TensorProto, dtype: np.dtype[Any], what: str) -> None:
    """Check that the content is as long as the shape requires, before anything is made of it."""
    if tensor.HasField("segment"):
        message = f"{what} is a segment of a larger tensor, which ONNX never said how to join; export the model anew."
        raise ModelError(message, value=tensor.name)
    if tensor.HasField("raw_data"):
        expected, got, unit = _count_bytes(tensor, dtype), len(tensor.raw_data), "bytes"
    else:
        field = helper.tensor_dtype_to_field(tensor.data_type)
        expected, got, unit = _count_entries(tensor, dtype), len(getattr(tensor, field)), f"entries of {field}"
    if expected != got:
        row = f"{helper.tensor_dtype_to_np_dtype(tensor.data_type).name}{list(tensor.dims)}"
        message = f"{what}: the content does not fill {row}: expected {expected} {unit}, got {got}."
        raise ModelError(message, value=tensor.name)


def _count_bytes(tensor: TensorProto, dtype: np.dtype[Any]) -> int:
    """Return how many bytes the content of a tensor has."""
    count, bits = prod(tensor.dims), _PACKED_BITS.get(tensor.data_type)
    return count * dtype.itemsize if bits is None else ceil_div(count * bits, 8)


def _count_entries(tensor: TensorProto, dtype: np.dtype[Any]) -> int:
    """Return how many numbers the field of a tensor's type holds, where its content is not bytes."""
    if _PACKED_BITS.get(tensor.data_type, 8) in (2, 4):
        return _count_bytes(tensor, dtype)
    is_complex = tensor.data_type in (TensorProto.COMPLEX64, TensorProto.COMPLEX128)
    return prod(map(int, tensor.dims)) * (2 if is_complex else 1)


def _read_elsewhere(tensor: TensorProto, dtype: np.dtype[Any], origin: Origin, what: str) -> memoryview:
    """Return the content of a tensor that is not in its message, as many bytes as its shape wants."""
    location = _read_location(tensor)
    expected, got = _count_bytes(tensor, dtype), origin.measure_piece(location)
    if got is not None:
        if got != expected:
            row = f"{helper.tensor_dtype_to_np_dtype(tensor.data_type).name}{list(tensor.dims)}"
            message = f"{what}: the content does not fill {row}: expected {expected} bytes, got {got}."
            raise ModelError(message, value=tensor.name)
        return origin.read_piece(location, tensor.name)
    if not origin.has_files:
        message = f"{what} has its content in the file {location!r} beside the model; load the model from its path."
        raise ModelError(message, value=tensor.name)
    rows = {entry.key: entry.value for entry in tensor.external_data}
    where = f"{what}: its content in the file {location[:_LONGEST_PATH]!r}"
    length, offset = (_read_place(rows, key, where, tensor.name) for key in ("length", "offset"))
    if length not in (None, expected):
        raise ModelError(f"{where} is {length} bytes long; expected {expected}.", value=tensor.name)
    offset = offset or 0
    try:
        whole = origin.map_external(location)
    except (OSError, ValueError, AccessError) as error:
        raise ModelError(f"{where} can't be read: {error}", value=tensor.name) from error
    if not 0 <= offset <= whole.nbytes - expected:
        message = f"{where} can't be read: {expected} bytes at offset {offset} of the {whole.nbytes} it has."
        raise ModelError(message, value=tensor.name)
    content = whole[offset : offset + expected]
    return content if expected >= MAPPED_NBYTES else read_view(content)


def _read_place(rows: Mapping[str, str], key: str, where: str, name: str) -> int | None:
    """Return length or offset of external data, which a file gives as text of any length; None where it gives none.

    Raises:
        ModelError: It is no number of bytes that a file could have.
    """
    text = rows.get(key)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        got = (
            repr(text)
            if len(text) <= _SHOWN_CHARACTERS
            else f"{text[:_SHOWN_CHARACTERS]!r}... ({len(text)} characters)"
        )
        raise ModelError(f"{where} can't be read: its {key} is {got}, expected a number of bytes.", value=name)
    return int(text[-_MAX_DIGITS:])


def _read_location(tensor: TensorProto) -> str:
    """Return the file that has the content of a tensor."""
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def _with_content(tensor: TensorProto, content: memoryview) -> TensorProto:
    """Return a tensor with its content inside."""
    own = TensorProto(data_type=tensor.data_type, dims=tensor.dims, name=tensor.name)
    own.raw_data = bytes(read_view(content))
    return own
