"""Exact products of integer matrices by BLAS, tens of times as fast as NumPy's own integer loop.

A float holds a sum of products of integers exactly as long as it stays below 2**24 (float32) or 2**53 (float64). The
inner extent is cut into pieces whose sums can't get there, and the pieces are added as integers. Batches are walked in
slabs, so that what is widened is small beside the operands.
"""

from __future__ import annotations

import numpy as np

from gpuexec.ir.geometry import broadcast
from gpuexec.ir.operator import Array
from gpuexec.ops.lib.shared_products import matmul

# Float types, the integers that hold their whole numbers, and the limit of exactness.
_EXACT = (
    (np.dtype(np.float32), np.dtype(np.int32), 1 << 24),
    (np.dtype(np.float64), np.dtype(np.int64), 1 << 53),
)
# Pieces of fewer products cost more than the next wider type, or than NumPy's loop.
_SHORTEST_PIECE = 128
# Elements of operands and product that are widened at once, where there are batches to walk.
_SLAB = 1 << 22
# Inner extents so small that NumPy's loop is faster than widening.
_FEW = 1 << 12


def multiply_exactly(
    a: Array, b: Array, dtype: np.dtype[np.generic], a_zero: Array | None = None, b_zero: Array | None = None
) -> Array:
    """Return ``(a - a_zero) @ (b - b_zero)`` modulo the range of an integer type.

    Args:
        a: Integers ``[..., rows, inner]`` or ``[inner]``.
        b: Integers ``[..., inner, columns]`` or ``[inner]``; batch axes broadcast.
        dtype: The type of the product; at least as wide as the operands.
        a_zero: Bytes that broadcast with ``a``, which has bytes too; None: 0.
        b_zero: The same for ``b``.
    """
    keeps_rows, keeps_columns = a.ndim > 1, b.ndim > 1
    a, b = a if keeps_rows else a[None, :], b if keeps_columns else b[:, None]
    out = np.zeros((*broadcast(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), dtype)
    _multiply(a, b, out, a_zero, b_zero)
    return drop_axes(out, keeps_rows, keeps_columns)


def drop_axes(values: Array, keeps_rows: bool, keeps_columns: bool) -> Array:
    """Drop the axes that 1-D operands leave out; scalars have none."""
    if not values.ndim:
        return values
    values = values if keeps_columns else values[..., 0]
    return values if keeps_rows else values[..., 0, :] if keeps_columns else values[..., 0]


def _multiply(a: Array, b: Array, out: Array, a_zero: Array | None, b_zero: Array | None) -> None:
    if out.ndim > 2 and a.size + b.size + out.size > _SLAB:
        for place, slab in enumerate(out):
            left, right = _take(a, place, out.ndim), _take(b, place, out.ndim)
            zeros = [None if zero is None else _take(zero, place, out.ndim) for zero in (a_zero, b_zero)]
            _multiply(left, right, slab, *zeros)
    else:
        _multiply_slab(_subtract(a, a_zero), _subtract(b, b_zero), out)


def _multiply_slab(a: Array, b: Array, out: Array) -> None:
    inner = a.shape[-1]
    if out.size * inner <= _FEW:
        np.matmul(a.astype(out.dtype), b.astype(out.dtype), out=out)
        return
    largest = max(1, _find_largest(a) * _find_largest(b))
    for wide, whole, limit in _EXACT:
        length = (limit - 1) // largest
        if length >= min(inner, _SHORTEST_PIECE):
            for first in range(0, inner, length):
                left, right = a[..., first : first + length], b[..., first : first + length, :]
                out += matmul(left.astype(wide), right.astype(wide)).astype(whole).astype(out.dtype, copy=False)
            return
    matmul(a.astype(out.dtype), b.astype(out.dtype), out)


def _take(x: Array, place: int, ndim: int) -> Array:
    """Return the part of a broadcast operand that a slab of the product's first axis reads."""
    if x.ndim < ndim:
        return x
    return np.asarray(x[place if x.shape[0] > 1 else 0])


def _subtract(values: Array, zero: Array | None) -> Array:
    return values if zero is None else np.asarray(values.astype(np.int16) - zero.astype(np.int16))


def _find_largest(values: Array) -> int:
    """Return the largest absolute value."""
    return max(int(values.max()), -int(values.min()))
