"""Shared base of all elementwise operators: checks of inputs, the NumPy computation, the launch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import BUFFER_ALIGNMENT, Kernel, Slot
from gpuexec.ir.geometry import broadcast_strides, ceil_div
from gpuexec.ir.operator import Array, Emitter
from gpuexec.ir.spec import TensorSpec, accumulator, dtypes_of, name_dtype
from gpuexec.ops.lib.strided import Walk, join

DType = np.dtype[Any]

FLOATS = dtypes_of("float")
INTEGERS = dtypes_of("int", "uint")
NUMBERS = dtypes_of("float", "int", "uint")
SIGNED = dtypes_of("float", "int")
BOOL = np.dtype(np.bool_)
UNSIGNED_BY_SIZE = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}

THREADS = 256  # kThreads of elementwise.cuh
VECTOR_BYTES, VECTOR_LANES = BUFFER_ALIGNMENT, 8  # kWidth of elementwise.cuh
BLOCK = 1 << 15  # elements of one pass of a composed NumPy form, so that its temporaries stay in cache
Place = tuple[tuple[int, ...], tuple[int, ...], int, int]  # shape, strides, bytes of an element, bytes of misalignment


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
        if _gains_from_blocks(function, arrays, result):
            flat, target = [x.reshape(-1) for x in arrays], result.reshape(-1)
            for first in range(0, target.size, BLOCK):
                part = slice(first, first + BLOCK)
                _apply_once(function, [x if x.size == 1 else x[part] for x in flat], target[part], parameters)
        else:
            _apply_once(function, arrays, result, parameters)
    return result


def _gains_from_blocks(function: Callable[..., Any], arrays: Sequence[Array], result: Array) -> bool:
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


def launch_units(
    emit: Emitter,
    kernel: Kernel,
    inputs: Sequence[Slot],
    output: Slot,
    scalars: Sequence[np.generic] = (),
    *,
    between: Sequence[Slot] = (),
    width: int | None = None,
    in_place: bool = True,
) -> None:
    """Launch a kernel built on ``Unit`` of ``elementwise.cuh``.

    Its parameters are the inputs, what stands ``between``, the output, the walk, size, is_vector, and ``scalars``.

    Args:
        emit: Emitter of the launch.
        kernel: The instance.
        inputs: Slots that broadcast to the output.
        output: A dense slot.
        scalars: Further parameters, in their exact types.
        between: Slots read as they are, not walked.
        width: Lanes of a unit where it isn't what the element types allow.
        in_place: Whether the output may take the bytes of an input of its shape and type.
    """
    slots = (*inputs, output)
    lanes = vector_width(slots) if width is None else width
    places = tuple([(x.shape, x.strides, x.spec.dtype.itemsize, x.offset_bytes % VECTOR_BYTES) for x in slots])
    blocks, packed, count, is_vector = _divide_work(places, lanes)
    if in_place:
        for x in dict.fromkeys(inputs):
            if x.shape == output.shape and x.dtype == output.dtype and x.is_contiguous:
                emit.in_place(output, x)
    emit.launch(
        kernel,
        (blocks, 1, 1),
        (THREADS, 1, 1),
        [*inputs, *between, output, packed, count, is_vector, *scalars],
        writes=[len(inputs) + len(between)],
    )


@functools.lru_cache(4096)
def _divide_work(places: tuple[Place, ...], lanes: int) -> tuple[int, bytes, np.int64, np.int32]:
    """Return blocks, packed walk, size and is_vector; the output is the last place.

    Kept, because a model repeats few combinations in many nodes, and is lowered again for each size.
    """
    shape = places[-1][0]
    walk = join(shape, [broadcast_strides(own, strides, shape) for own, strides, _, _ in places])
    is_vector = lanes > 1 and can_vectorize(walk, [(itemsize, offset) for _, _, itemsize, offset in places], lanes)
    units = walk.in_units(lanes) if is_vector else walk
    return max(1, ceil_div(units.count, THREADS)), units.pack(), np.int64(walk.count), np.int32(is_vector)


def vector_width(slots: Sequence[Slot]) -> int:
    """Return kWidth of ``elementwise.cuh`` for the element types of the operands."""
    return min(VECTOR_LANES, VECTOR_BYTES // max(slot.dtype.itemsize for slot in slots))


def can_vectorize(walk: Walk, operands: Sequence[tuple[int, int]], width: int) -> bool:
    """Return whether each operand can be read ``width`` neighbours at a time, or is one element along the inner axis.

    Only a walk of one axis may end with a short unit.

    Args:
        walk: Of all operands.
        operands: Bytes of an element, and offset in bytes, of each.
        width: Lanes of a unit.
    """
    if not walk.shape or (len(walk.shape) > 1 and walk.shape[-1] % width):
        return False
    for (itemsize, offset_bytes), strides in zip(operands, walk.strides, strict=True):
        if strides[-1] == 0:
            continue
        if strides[-1] != 1 or offset_bytes % (width * itemsize) or any(stride % width for stride in strides[:-1]):
            return False
    return True
