"""Matrix products by NumPy, large ones in parts that threads share.

The parts follow from the shapes alone: matrices, rows, columns, or halves of the terms of few sums. So a product has
the same bits on one thread and on many, which OpenBLAS's own threads don't give: they divide it as many times as there
are of them, and sums at the edges of kernels differ.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

import numpy as np

from gpuexec.ir.operator import Array
from gpuexec.system.threads import share_work

# Operations from which on a product is shared, and of a part, where there are more than two: a core makes 50 to 100
# million in a millisecond, and handing a part over takes a twentieth of that.
SHARED = 10_000_000
_PART = 20_000_000
_OPERATIONS_PER_BYTE = 5  # made while a core reads one of memory: a product of few rows waits for its weights
_MOST_PARTS = 16
# Rows or columns of a part at least, or half as many of two: BLAS lays the other operand out anew for each.
_LEAST = 128
_LEAST_SIZE = 512  # sums of a part: NumPy keeps the interpreter's lock where they are fewer
_UNIT = 16  # rows or columns that parts are whole multiples of


def matmul(a: Array, b: Array, out: Array | None = None) -> Array:
    """Return ``np.matmul(a, b)``, in ``out`` where it is given."""
    if min(a.ndim, b.ndim) < 2:
        return np.asarray(np.matmul(a, b, out=out))
    if out is None:
        shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
        if _count_operations(a, b, prod(shape)) < SHARED:
            return np.asarray(np.matmul(a, b))
        out = np.empty(shape, np.result_type(a, b))
    prepare_matmul(a, b, out)()
    return out


def prepare_matmul(a: Array, b: Array, y: Array) -> Callable[[], object]:
    """Return the call that writes ``a @ b`` to ``y``; all have two axes at least."""
    if _count_operations(a, b, y.size) < SHARED:
        return partial(np.matmul, a, b, out=y)
    parts, rest = _divide(a, b, y), None
    if len(parts) == 1 and _LEAST_SIZE <= y.size == y.shape[-2] * y.shape[-1]:
        half, rest = a.shape[-1] // 2, np.empty_like(y)
        parts = [(a[..., :half], b[..., :half, :], y), (a[..., half:], b[..., half:, :], rest)]
    if len(parts) == 1:
        return partial(np.matmul, a, b, out=y)

    def multiply(number: int) -> None:
        left, right, target = parts[number]
        np.matmul(left, right, out=target)

    if rest is None:
        return partial(share_work, len(parts), multiply)

    def add_halves() -> None:
        share_work(2, multiply)
        np.add(y, rest, out=y)

    return add_halves


def _divide(a: Array, b: Array, y: Array) -> list[tuple[Array, Array, Array]]:
    """Return the parts of a large product, in equal numbers of matrices, or else of rows or columns; a power of two."""
    most = min(max(_count_operations(a, b, y.size) // _PART, 2), _MOST_PARTS, max(1, y.size // _LEAST_SIZE))
    rank = y.ndim
    axis = max(range(rank - 2), key=y.shape.__getitem__, default=0) if rank > 2 else rank
    count, unit = (min(most, y.shape[axis]), 1) if axis < rank - 2 else (1, _UNIT)
    if count < 2:
        axis = rank - 2 if y.shape[-2] > y.shape[-1] else rank - 1
        if y.shape[axis] < _LEAST or most < 2:
            return [(a, b, y)]
        count, unit = min(most, max(y.shape[axis] // _LEAST, 2)), _UNIT
    extent, count = y.shape[axis], 1 << count.bit_length() - 1
    step = -(-extent // (count * unit)) * unit
    return [
        (_take(a, axis, rank, part, rank - 1), _take(b, axis, rank, part, rank - 2), _take(y, axis, rank, part, None))
        for part in (slice(first, first + step) for first in range(0, extent, step))
    ]


def _count_operations(a: Array, b: Array, size: int) -> int:
    """Return the operations of a product of so many sums, or those that take as long as reading what it multiplies."""
    return int(max(2 * size * a.shape[-1], _OPERATIONS_PER_BYTE * (a.nbytes + b.nbytes)))


def _take(x: Array, axis: int, rank: int, part: slice, inner: int | None) -> Array:
    """Return the part along an axis of the result; all of what broadcasts along it, or has its inner extent there."""
    own = axis - (rank - x.ndim)
    if axis == inner or own < 0 or (axis < rank - 2 and x.shape[own] == 1):
        return x
    return x[(*[slice(None)] * own, part)]
