"""Shared base of all elementwise operators: checks of inputs, and the computation in NumPy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.operator import Array
from gpuexec.ir.spec import TensorSpec, accumulator, dtypes_of, name_dtype

DType = np.dtype[Any]

FLOATS = dtypes_of("float")
INTEGERS = dtypes_of("int", "uint")
NUMBERS = dtypes_of("float", "int", "uint")
SIGNED = dtypes_of("float", "int")
BOOL = np.dtype(np.bool_)
UNSIGNED_BY_SIZE = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}

BLOCK = 1 << 15  # elements of one pass of a composed NumPy form, so that its temporaries stay in cache
# Elements of a block of one number, and those that it is worth one for.
_REPEATED, _FEW = 1 << 18, 1 << 12


def require_inputs(name: str, inputs: Sequence[TensorSpec | None], count: int) -> list[TensorSpec]:
    """Return the input specs, all of which must be given.

    Raises:
        InputError: One is absent, or there are more or fewer than ``count``.
    """
    specs = [spec for spec in inputs if spec is not None]
    if len(specs) != count or len(inputs) != count:
        raise InputError(f"{name} expects {count} input{'s' * (count != 1)}, got {len(specs)}.")
    return specs


def require_same_dtype(name: str, specs: Sequence[TensorSpec], dtypes: Sequence[DType]) -> DType:
    """Return the one dtype of all specs.

    Raises:
        InputError: They differ, or the dtype is not among ``dtypes``.
    """
    dtype = specs[0].dtype
    if any(spec.dtype != dtype for spec in specs):
        raise InputError(f"{name} expects inputs of one type, got {', '.join(map(str, specs))}.")
    if dtype not in dtypes:
        raise InputError(f"{name} expects {', '.join(map(name_dtype, dtypes))}, got {specs[0]}.")
    return dtype


def apply(
    function: Callable[..., Any],
    arrays: Sequence[Array],
    dtype: DType,
    out: Sequence[Array | None] | None,
    parameters: Sequence[Any] = (),
) -> Array:
    """Apply a NumPy form to arrays that broadcast; half and bfloat16 are computed in float32 and rounded once.

    Args:
        function: See `Form`.
        arrays: The inputs.
        dtype: Element type of the result.
        out: Array for the result, if the caller has one.
        parameters: Arguments of the function beside arrays.

    Returns:
        ``out[0]`` if it was given, else a fresh array.
    """
    wanted = out[0] if out else None
    result = np.empty(np.broadcast_shapes(*(x.shape for x in arrays)), dtype) if wanted is None else wanted
    with np.errstate(all="ignore"):
        if gains_from_blocks(function, arrays, result):
            flat, target = [x.reshape(-1) for x in arrays], result.reshape(-1)
            for first in range(0, target.size, BLOCK):
                part = slice(first, first + BLOCK)
                _apply_once(function, [x if x.size == 1 else x[part] for x in flat], target[part], parameters)
        else:
            _apply_once(function, arrays, result, parameters)
    return result


def choose_extreme(function: np.ufunc, x: Array, bound: Array | float, out: Array) -> Array:
    """Compute ``np.maximum`` or ``np.minimum`` of an array and one number, to the same bits as by a call of it.

    NumPy has vector instructions for two arrays alone: against an array of the number it takes a fifth of the time.

    Args:
        function: One of the two.
        x: Floats.
        bound: The number.
        out: For the result; it may be ``x``.
    """
    dtype = x.dtype
    whole = x.size >= _FEW and dtype.kind == "f" and dtype == out.dtype and x.shape == out.shape
    if not (whole and x.flags.c_contiguous and out.flags.c_contiguous):
        return np.asarray(function(x, bound, out=out))
    others = _repeat(np.asarray(bound, dtype).tobytes(), dtype)
    if x.ndim == 1 and x.size <= others.size:
        function(x, others[: x.size], out=out)
        return out
    flat, target = x.reshape(-1), out.reshape(-1)
    for first in range(0, x.size, others.size):
        part = slice(first, min(first + others.size, x.size))
        function(flat[part], others[: part.stop - first], out=target[part])
    return out


@functools.lru_cache(8)
def _repeat(number: bytes, dtype: DType) -> Array:
    """Return a block of a number, given by its bytes: 0 is not -0."""
    return np.frombuffer(number * _REPEATED, dtype)


def gains_from_blocks(function: Callable[..., Any], arrays: Sequence[Array], result: Array) -> bool:
    """Return whether temporaries would leave the cache, and the arrays can be walked in step."""
    if result.size <= BLOCK or not result.flags.c_contiguous:
        return False
    if isinstance(function, np.ufunc) and all(accumulator(x.dtype) == x.dtype for x in (*arrays, result)):
        return False  # no temporaries
    return all(x.size == 1 or (x.shape == result.shape and x.flags.c_contiguous) for x in arrays)


def _apply_once(
    function: Callable[..., Any], arrays: Sequence[Array], result: Array, parameters: Sequence[Any]
) -> None:
    wide = [x.astype(accumulator(x.dtype), copy=False) for x in arrays]
    if accumulator(result.dtype) == result.dtype:
        function(*wide, *parameters, out=result)
    else:
        rounded = np.empty(result.shape, np.float32)
        function(*wide, *parameters, out=rounded)
        result[...] = rounded
