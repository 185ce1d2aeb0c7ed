"""DLPack capsules, read and made by ctypes without an array package.

The structs are those of DLPack 1.0 (https://github.com/dmlc/dlpack/blob/v1.0/include/dlpack/dlpack.h): a capsule holds
a ``DLManagedTensorVersioned``, or from older producers a ``DLManagedTensor``. A consumer renames the capsule and calls
the deleter once done; a capsule without a consumer calls it itself.
"""

from __future__ import annotations

import ctypes
import weakref
from ctypes import (
    POINTER,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
    py_object,
)
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.spec import BFLOAT16, COMPUTED, DTYPES, TensorSpec, dtype_row

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
MAX_VERSION = (1, 0)
_READ_ONLY = 1
_FLOAT, _BFLOAT, _BOOL = 2, 4, 6
_CODES = {"int": 0, "uint": 1, "float": _FLOAT, "bool": _BOOL}
# DLPack 1.1 has a code for each float of 8 bits. Narrower elements share bytes there, and take a byte each here.
_FLOAT8_CODES = {"float8e4m3fn": 10, "float8e4m3fnuz": 11, "float8e5m2": 12, "float8e5m2fnuz": 13, "float8e8m0": 14}
_NEW, _OLD = b"dltensor_versioned", b"dltensor"
_USED = {_NEW: b"used_dltensor_versioned", _OLD: b"used_dltensor"}

_Deleter = ctypes.CFUNCTYPE(None, c_void_p)
_Destructor = ctypes.PYFUNCTYPE(None, c_void_p)


class _Device(ctypes.Structure):
    _fields_ = (("type", c_int32), ("id", c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device", _Device),
        ("ndim", c_int32),
        ("dtype", _DataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", c_void_p), ("deleter", _Deleter))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", _Deleter),
        ("flags", c_uint64),
        ("tensor", _Tensor),
    )


_LAYOUTS: dict[bytes, type[_Managed] | type[_Versioned]] = {_NEW: _Versioned, _OLD: _Managed}


def _call(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_new_capsule = _call("PyCapsule_New", py_object, c_void_p, c_char_p, _Destructor)
# By address, since a capsule that is being destroyed must not be referenced again.
_is_valid = _call("PyCapsule_IsValid", c_int, c_void_p, c_char_p)
_get_pointer = _call("PyCapsule_GetPointer", c_void_p, c_void_p, c_char_p)
_set_name = _call("PyCapsule_SetName", c_int, c_void_p, c_char_p)


@dataclass(frozen=True, slots=True)
class Import:
    """An array taken over from its producer. ``strides`` are in elements; ``owner`` keeps the bytes."""

    spec: TensorSpec
    address: int
    strides: tuple[int, ...]
    device: tuple[int, int]
    is_read_only: bool
    owner: object


def take(item: Any, stream: int | None = None) -> Import:
    """Import an array from an object with ``__dlpack__``, without a copy.

    Args:
        item: The producer's array.
        stream: Handle of the stream that will read it, which the producer makes wait for its own; None for host arrays.

    Raises:
        InputError: The capsule holds an element type that is not supported, or no tensor.
    """
    given = {} if stream is None else {"stream": stream}
    try:
        capsule = item.__dlpack__(**given, max_version=MAX_VERSION)
    except TypeError:
        # Producers from before DLPack 1.0 don't know the argument.
        capsule = item.__dlpack__(**given)
    name, pointer, managed = _open(capsule, f"{type(item).__name__}.__dlpack__() returned")
    _set_name(id(capsule), _USED[name])
    owner = _Owner()
    weakref.finalize(owner, _delete, managed.deleter, pointer).atexit = False
    tensor = managed.tensor
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    strides = tuple(tensor.strides[axis] for axis in range(tensor.ndim)) if tensor.strides else dense_strides(shape)
    read_only = isinstance(managed, _Versioned) and bool(managed.flags & _READ_ONLY)
    return Import(
        TensorSpec(shape, _to_numpy(tensor.dtype)),
        (tensor.data or 0) + tensor.byte_offset,
        strides,
        (tensor.device.type, tensor.device.id),
        read_only,
        owner,
    )


def peek(capsule: object) -> tuple[np.dtype[Any], tuple[int, int]]:
    """Return the element type and device of a capsule's tensor, without consuming it.

    Raises:
        InputError: It holds an element type that is not supported, or is no capsule, or a consumed one.
    """
    tensor = _open(capsule, f"a {type(capsule).__name__} is")[2].tensor
    return _to_numpy(tensor.dtype), (tensor.device.type, tensor.device.id)


def give(address: int, spec: TensorSpec, device: tuple[int, int], owner: object, *, is_versioned: bool) -> object:
    """Export dense bytes as a capsule; ``owner`` stays alive until the consumer calls the deleter.

    Raises:
        InputError: DLPack lays the element type out in another way.
    """
    code = _find_code(spec.dtype)
    managed = _Versioned() if is_versioned else _Managed()
    tensor = managed.tensor
    tensor.data, tensor.byte_offset = address if spec.size else None, 0
    tensor.device.type, tensor.device.id = device
    tensor.ndim = spec.rank
    tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes = code, 8 * spec.dtype.itemsize, 1
    shape = (c_int64 * spec.rank)(*spec.shape)
    strides = (c_int64 * spec.rank)(*dense_strides(spec.shape))
    tensor.shape, tensor.strides = ctypes.cast(shape, POINTER(c_int64)), ctypes.cast(strides, POINTER(c_int64))
    managed.deleter = _forget
    if isinstance(managed, _Versioned):
        managed.major, managed.minor, managed.flags = *MAX_VERSION, 0
    pointer = ctypes.addressof(managed)
    _given[pointer] = (managed, shape, strides, owner)
    return _new_capsule(pointer, _NEW if is_versioned else _OLD, _destroy)


def view_host(taken: Import) -> np.ndarray[Any, Any]:
    """Return host bytes as an array that keeps their owner."""
    itemsize = taken.spec.dtype.itemsize
    if not taken.spec.size:
        return np.empty(taken.spec.shape, taken.spec.dtype)
    return np.asarray(_HostBytes(taken, itemsize)).view(taken.spec.dtype)


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a dense array, in elements."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


class _Owner:
    """The obligation to call a producer's deleter once the array is released."""

    __slots__ = ("__weakref__",)


class _HostBytes:
    """Host memory as NumPy reads it: unsigned words of the element's size, since NumPy can't name all types."""

    def __init__(self, taken: Import, itemsize: int) -> None:
        self.taken = taken
        self.__array_interface__ = {
            "shape": taken.spec.shape,
            "typestr": f"<u{itemsize}",
            "strides": tuple(stride * itemsize for stride in taken.strides),
            "data": (taken.address, taken.is_read_only),
            "version": 3,
        }


# Memory referenced by exported capsules, by address.
_given: dict[int, tuple[object, ...]] = {}


def _forget_given(pointer: int) -> None:
    _given.pop(pointer, None)


def _destroy_untaken(capsule: int) -> None:
    for name, layout in _LAYOUTS.items():
        if _is_valid(capsule, name):
            pointer = _get_pointer(capsule, name)
            _delete(ctypes.cast(pointer, POINTER(layout)).contents.deleter, pointer)


# Kept for ever: capsules may call them at any time.
_forget, _destroy = _Deleter(_forget_given), _Destructor(_destroy_untaken)


def _delete(deleter: Any, pointer: int) -> None:
    if deleter:
        deleter(pointer)


def _open(capsule: object, source: str) -> tuple[bytes, int, Any]:
    """Return the name of a capsule, its pointer, and the struct there."""
    name = next((name for name in (_NEW, _OLD) if _is_valid(id(capsule), name)), None)
    if name is None:
        raise InputError(f"{source} no DLPack capsule.")
    pointer = _get_pointer(id(capsule), name)
    return name, pointer, ctypes.cast(pointer, POINTER(_LAYOUTS[name])).contents


def _find_code(dtype: np.dtype[Any]) -> int:
    row = dtype_row(dtype)
    if row.width < 8:
        raise InputError(f"DLPack has several elements of {row.name} in a byte, a tensor here one: read it back.")
    return _FLOAT8_CODES[row.name] if row.is_narrow else _BFLOAT if dtype == BFLOAT16 else _CODES[row.kind]


def _to_numpy(given: _DataType) -> np.dtype[Any]:
    rows = [row for row in DTYPES if row in COMPUTED or row.name in _FLOAT8_CODES]
    names = {(_find_code(row.numpy), 8 * row.numpy.itemsize): row.numpy for row in rows}
    dtype = names.get((given.code, given.bits)) if given.lanes == 1 else None
    if dtype is None:
        raise InputError(
            f"A DLPack array of type code {given.code}, {given.bits} bits, {given.lanes} lanes is not supported."
        )
    return dtype
