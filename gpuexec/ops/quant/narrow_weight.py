"""Narrow weights (half, or integers with scales): their scales on a device, their values on the host.

int8 by ``(q - zero) * scale``, with one scale and zero point, or one of each for every place along an axis; half
without either. Which pairs of types kernels know stands here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.ir.command import Slot
from gpuexec.ir.operator import Array, Emitter
from gpuexec.ir.spec import BFLOAT16, dtype_row
from gpuexec.ops.quant.quantize import dequantize

INT8: np.dtype[Any] = np.dtype(np.int8)
HALF: np.dtype[Any] = np.dtype(np.float16)
# What is computed in, and what the weight is stored in.
PAIRS: tuple[tuple[np.dtype[Any], np.dtype[Any]], ...] = (
    (np.dtype(np.float32), HALF),
    (np.dtype(np.float32), INT8),
    (HALF, INT8),
    (BFLOAT16, INT8),
)


def name_types(wide: np.dtype[Any], narrow: np.dtype[Any]) -> str:
    """Return a pair as kernels spell it."""
    return f"{dtype_row(wide).cuda}, {dtype_row(narrow).cuda}"


NARROW_TYPES = tuple(name_types(*pair) for pair in PAIRS)


# Of weights of products in float.
STORED = tuple(narrow for wide, narrow in PAIRS if wide == np.float32)


def name_stored(weight: np.dtype[Any]) -> str:
    """Return the type of a weight as kernels spell it."""
    return dtype_row(weight).cuda


@dataclass(frozen=True, slots=True)
class NarrowWeight:
    """Quantisation of a weight in a lowering: scale and zero point (None: none), and their axis (None: of it all)."""

    scale: Slot | None
    zero: Slot | None
    axis: int | None

    def dense(self, emit: Emitter) -> list[Slot | None]:
        """Return scale and zero point, dense."""
        return [None if slot is None else emit.contiguous(slot) for slot in (self.scale, self.zero)]

    def steps(self, inner: int, column: int | None) -> tuple[int, int]:
        """Return the strides of the scales along two axes of the weight; the second may not be there."""
        return int(self.axis == inner), int(column is not None and self.axis == column)


def widen(weight: Array, scale: Array | None, zero: Array | None, axis: int | None, dtype: np.dtype[Any]) -> Array:
    """Return a narrow weight widened."""
    if scale is None:
        return weight.astype(dtype)
    return dequantize(weight, scale, zero, 0 if axis is None else axis, 0, dtype)
