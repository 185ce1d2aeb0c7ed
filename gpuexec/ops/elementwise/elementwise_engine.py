"""Shared base of all elementwise operators: checks of inputs, and the computation in NumPy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.operator import Array, PreparedCalls
from gpuexec.ir.prepared_calls import BLOCK
from gpuexec.ir.spec import TensorSpec, accumulator, dtypes_of, name_dtype

DType = np.dtype[Any]

FLOATS = dtypes_of("float")
INTEGERS = dtypes_of("int", "uint")
NUMBERS = dtypes_of("float", "int", "uint")
SIGNED = dtypes_of("float", "int")
BOOL = np.dtype(np.bool_)
UNSIGNED_BY_SIZE = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}

ROW = 1 << 13  # elements of a row of one number; NumPy takes shorter rows one by one


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


class Extreme:
    """``np.maximum`` or ``np.minimum`` of an array and one number, to the same bits as by a call of it.

    NumPy has vector instructions for two arrays alone: against an array of the number it takes a fifth of the time.

    Args:
        function: One of the two.
    """

    __slots__ = ("_function",)

    def __init__(self, function: np.ufunc) -> None:
        self._function = function

    def __call__(self, x: Array, bound: Array | float, out: Array) -> None:
        """Compute it; ``out`` may be ``x``."""
        if x.size < ROW:
            self._function(x, bound, out=out)
        else:
            for call in self.bind(x, bound, out, is_constant=True):
                call()

    def bind(self, x: Array, bound: Array | float, out: Array, *, is_constant: bool) -> PreparedCalls:
        """Return calls that do what a call does, for arrays that stay where they are, and maybe a bound that does."""
        function, dtype = self._function, x.dtype
        is_whole = x.size >= ROW and dtype.kind == "f" and dtype == out.dtype and x.shape == out.shape
        if not (is_whole and x.flags.c_contiguous and out.flags.c_contiguous):
            return [functools.partial(function, x, bound, out=out)]
        whole = x.size // ROW * ROW
        flat, target = x.reshape(-1), out.reshape(-1)
        parts = [(flat[:whole].reshape(-1, ROW), target[:whole].reshape(-1, ROW))]
        if whole < x.size:
            parts.append((flat[whole:], target[whole:]))
        if is_constant:
            row = _repeat(np.asarray(bound, dtype).tobytes(), dtype)
            return [functools.partial(function, part, row[: part.shape[-1]], out=made) for part, made in parts]

        def call() -> None:
            row = _repeat(np.asarray(bound, dtype).tobytes(), dtype)
            for part, made in parts:
                function(part, row[: part.shape[-1]], out=made)

        return [call]


choose_greater, choose_less = Extreme(np.maximum), Extreme(np.minimum)


@functools.lru_cache(8)
def _repeat(number: bytes, dtype: DType) -> Array:
    """Return a row of a number, given by its bytes: 0 is not -0."""
    return np.frombuffer(number * ROW, dtype)


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
