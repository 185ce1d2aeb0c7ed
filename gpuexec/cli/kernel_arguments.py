"""Kernel arguments on the command line: ``float[1024]=random``, ``int=1024``, ``null``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from gpuexec.cli.array_arguments import load_array
from gpuexec.errors import InputError

Array = np.ndarray[Any, Any]
SYNTAX = """\
arguments, in the order of the kernel's parameters, one --arg each:
  float[1024]=random     an array in memory of its own; the pointer is the argument. Contents: random (floats from 0 to
                         1, integers from 0 to 99), zeros, ones, arange, a number, FILE.npy or FILE.npz:KEY
  float[32,64]           the same, of several axes; without a content it is random
  =FILE.npy              an array as the file has it
  int=1024               a scalar; also true and false for bool
  null                   a null pointer
  bytes=0a0b0c0d         a struct by value, as hexadecimal bytes
types: bool char uchar short ushort int unsigned longlong ulonglong half bf16 float double, or int8 ... uint64,
  float16, float32, float64"""

_TYPES: dict[str, Any] = {
    "char": np.int8, "uchar": np.uint8, "short": np.int16, "ushort": np.uint16, "int": np.int32, "unsigned": np.uint32,
    "uint": np.uint32, "long": np.int64, "longlong": np.int64, "ulonglong": np.uint64, "size_t": np.uint64,
    "half": np.float16, "bf16": ml_dtypes.bfloat16, "bfloat16": ml_dtypes.bfloat16, "float": np.float32,
    "double": np.float64, "bool": np.bool_,
}  # fmt: skip
_TYPES |= {name: np.dtype(name).type for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")}
_TYPES |= {name: np.dtype(name).type for name in ("uint64", "float16", "float32", "float64")}
_ARRAY = re.compile(r"\s*(?P<type>\w+)\s*\[(?P<shape>[\d,\s]+)\]\s*(?:=(?P<content>.*))?")
_SCALAR = re.compile(r"\s*(?P<type>\w+)\s*=(?P<value>.*)")


@dataclass(frozen=True, slots=True)
class KernelArgument:
    """An argument: an array for a pointer, a NumPy scalar, bytes for a struct, or None for a null pointer."""

    text: str
    value: Array | np.generic | bytes | None


def parse_argument(text: str, rng: np.random.Generator) -> KernelArgument:
    """Parse the text of an argument; see SYNTAX.

    Raises:
        InputError: It is not valid; the message has the text and the reason.
    """
    try:
        return KernelArgument(text, _parse(text, rng))
    except (ValueError, OverflowError, OSError, KeyError) as error:
        raise InputError(f"--arg {text!r}: {error}") from error


def _parse(text: str, rng: np.random.Generator) -> Array | np.generic | bytes | None:
    if text.strip() in ("null", "nullptr"):
        return None
    if text.startswith("="):
        return np.ascontiguousarray(load_array(text[1:]))
    array = _ARRAY.fullmatch(text)
    if array is not None:
        shape = tuple(int(extent) for extent in array["shape"].split(","))
        return _fill(shape, _dtype(array["type"]), (array["content"] or "random").strip(), rng)
    scalar = _SCALAR.fullmatch(text)
    if scalar is None:
        raise ValueError("it is none of TYPE[EXTENTS]=CONTENT, TYPE=VALUE and null, as in float[1024]=random or int=16")
    if scalar["type"] == "bytes":
        return bytes.fromhex(scalar["value"])
    return _scalar(_dtype(scalar["type"]), scalar["value"].strip())


def _dtype(name: str) -> np.dtype[Any]:
    if name not in _TYPES:
        raise ValueError(f"there is no type {name!r}; types are {' '.join(_TYPES)}")
    dtype: np.dtype[Any] = np.dtype(_TYPES[name])
    return dtype


def _scalar(dtype: np.dtype[Any], text: str) -> np.generic:
    if dtype == np.bool_:
        if text.lower() not in ("true", "false", "0", "1"):
            raise ValueError(f"{text!r} is neither true nor false")
        return np.bool_(text.lower() in ("true", "1"))
    number: np.generic = dtype.type(int(text, 0) if dtype.kind in "iu" else float(text))
    return number


def _fill(shape: tuple[int, ...], dtype: np.dtype[Any], content: str, rng: np.random.Generator) -> Array:
    match content:
        case "random" if dtype == np.bool_:
            return rng.integers(0, 2, shape).astype(dtype)
        case "random" if dtype.kind in "iu":
            return rng.integers(0, 100, shape).astype(dtype)
        case "random":
            return rng.random(shape).astype(dtype)
        case "zeros":
            return np.zeros(shape, dtype)
        case "ones":
            return np.ones(shape, dtype)
        case "arange":
            return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    if Path(content.partition(".npz:")[0]).suffix == ".npy" or ".npz:" in content:
        loaded = np.ascontiguousarray(load_array(content))
        if loaded.shape != shape or loaded.dtype != dtype:
            raise ValueError(f"the file holds {loaded.dtype}{list(loaded.shape)}, expected {dtype}{list(shape)}")
        return loaded
    return np.full(shape, _scalar(dtype, content), dtype)
