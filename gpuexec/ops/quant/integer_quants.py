"""Scales and zero points of matrix operands: per tensor, per row of the left, per column of the right.

Many are a vector, or, of batches of matrices, an array with extent 1 in place of columns or of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.geometry import broadcast_strides
from gpuexec.ir.operator import Array, Emitter
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.quant.integer import Quantized, dense
from gpuexec.ops.tensor.layout import window


def add_axes(shape: tuple[int, ...], left_rank: int, right_rank: int) -> tuple[int, ...]:
    """Return the shape of a product with the axes that 1-D operands leave out."""
    columns = shape[-1:] if right_rank > 1 else (1,)
    rest = shape[:-1] if right_rank > 1 else shape
    return (*(rest if left_rank > 1 else (*rest, 1)), *columns)


def view_quant(values: Array | None, *, is_row: bool) -> Array:
    """Return scales or zero points so that they broadcast with matrices: one of all, of each row, or of each column."""
    if values is None:
        return np.zeros((), np.int8)
    return values.reshape(_quant_shape(values.shape, is_row=is_row))


def check_quant(
    name: str, role: str, specs: Sequence[TensorSpec | None], matrix: tuple[int, ...], *, is_row: bool
) -> None:
    """Check a scale and a zero point, of which either may be absent, by the shape of the matrices.

    Raises:
        InputError: They are not one number, nor one for each row or column.
    """
    what = "row" if is_row else "column"
    for part, spec in zip(("scale", "zero_point"), specs, strict=True):
        if spec is None:
            continue
        axis, wanted = (-2, matrix[-2]) if is_row else (-1, matrix[-1])
        shape, other = _quant_shape(spec.shape, is_row=is_row), -3 - axis
        fits = not shape or (len(shape) <= len(matrix) and shape[axis] in (1, wanted) and shape[other] == 1)
        if not fits or any(n not in (1, m) for n, m in zip(shape[-3::-1], matrix[-3::-1], strict=False)):
            raise InputError(
                f"{name} expects {role}_{part} to be one number, or one for each {what} ({wanted}), got {spec}."
            )


def align_quant(emit: Emitter, given: Quantized) -> Quantized:
    """Return the tensor with scale and zero point dense and of one shape: one number is repeated beside many."""
    slots = [dense(emit, slot) for slot in (given.scale, given.zero)]
    largest = max((slot for slot in slots if slot is not None), key=lambda slot: slot.spec.size, default=None)
    for i, slot in enumerate(slots):
        if slot is not None and largest is not None and slot.spec.size != largest.spec.size:
            slots[i] = repeated = emit.temp(largest.shape, slot.dtype)
            emit.copy(repeated, window(slot, largest.shape, (0,) * largest.spec.rank))
    return Quantized(given.values, *slots)


def quant_strides(given: Quantized, matrix: tuple[int, ...], *, is_row: bool) -> tuple[int, ...]:
    """Return the strides that scale and zero point are walked with over the matrices; both have the same."""
    found = [slot for slot in (given.scale, given.zero) if slot is not None and slot.spec.size > 1]
    if not found:
        return (0,) * len(matrix)
    slot = found[0]
    shape = _quant_shape(slot.shape, is_row=is_row)
    strides = slot.strides if len(slot.shape) > 1 else (slot.strides[0], 0) if is_row else (0, slot.strides[0])
    return broadcast_strides(shape, strides, matrix)


def _quant_shape(shape: tuple[int, ...], *, is_row: bool) -> tuple[int, ...]:
    if prod(shape) == 1 and len(shape) <= 1:
        return ()
    return ((shape[0], 1) if is_row else (1, shape[0])) if len(shape) == 1 else shape
