"""Block quantization of matrix weights, as MatMulNBits and DequantizeLinear store them.

ONNX Runtime's quantizers call these functions of its compiled module, which write into arrays of the caller's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuexec.compat.onnxruntime.errors import BindingError, make_error

Array = np.ndarray[Any, Any]
# Of outputs, inputs, scales and zero points; block size, columns, rows, and whether zero points are in the middle.
Quantize = Callable[[Array, Array, Array, Array, int, int, int, bool], None]


def make_quantizer(bits: int) -> Quantize:
    """Return the function that quantizes to ``bits`` for MatMulNBits, column by column in blocks."""

    def quantize(
        packed: Array,
        weight: Array,
        scales: Array,
        zero_points: Array,
        block_size: int,
        columns: int,
        rows: int,
        is_symmetric: bool,
    ) -> None:
        """Quantize a weight [rows or more, columns] into packed [columns, blocks, bytes] and scales [columns, blocks].

        Zero points [columns, bytes] are written unless they are all in the middle.

        Raises:
            BindingError: An array is of another size.
        """
        values, found, zeros = _quantize_blocks(weight[:rows], block_size, bits, is_symmetric)
        _write("packed", packed, _pack(values.transpose(2, 0, 1), bits, 0))
        _write("scales", scales, found.T)
        if not is_symmetric:
            _write("zero_points", zero_points, _pack(zeros.T, bits, 1 << (bits - 1)))

    return quantize


def quantize_qdq_matmul_4bits(
    packed: Array,
    weight: Array,
    scales: Array,
    zero_points: Array,
    block_size: int,
    columns: int,
    rows: int,
    is_symmetric: bool,
) -> bool:
    """Quantize a weight [rows, columns] to 4 bits for DequantizeLinear; return whether they are signed.

    Packed are [rows, columns], signed where zero points are in the middle; scales and zero points [blocks, columns].

    Raises:
        BindingError: An array is of another size.
    """
    values, found, zeros = _quantize_blocks(weight[:rows], block_size, 4, is_symmetric)
    flat = values.reshape(-1, columns)[:rows].reshape(-1)
    _write("packed", packed, _pack((flat ^ 8) if is_symmetric else flat, 4, 0))
    _write("scales", scales, found)
    if not is_symmetric:
        _write("zero_points", zero_points, _pack(zeros.reshape(-1), 4, 0))
    return bool(is_symmetric)


def _quantize_blocks(weight: Array, block_size: int, bits: int, is_symmetric: bool) -> tuple[Array, Array, Array]:
    """Return values [blocks, block_size, columns], and scales and zero points [blocks, columns]."""
    rows, columns = weight.shape
    blocks, top, middle = -(-rows // block_size), np.float32((1 << bits) - 1), 1 << (bits - 1)
    wide = np.zeros((blocks * block_size, columns), np.float32)
    wide[:rows] = weight
    wide = wide.reshape(blocks, block_size, columns)
    is_there = (np.arange(blocks * block_size) < rows).reshape(blocks, block_size, 1)
    low = np.min(wide, 1, where=is_there, initial=np.inf)
    high = np.max(wide, 1, where=is_there, initial=-np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        if is_symmetric:
            # The element farthest from 0 takes the lowest value, of which there is one more than above the middle.
            scales = np.where(np.abs(high) > np.abs(low), high, low) / np.float32(-middle)
            zeros = np.full_like(scales, middle)
        else:
            low, high = np.minimum(low, 0), np.maximum(high, 0)
            scales = (high - low) / top
            zeros = np.where(scales != 0, np.clip(_round(-low / scales), 0, top), 0)
            # Values are divided by the scale as it is stored; zero points were computed with the unrounded one.
            scales = scales.astype(weight.dtype).astype(np.float32)
        inverse = np.where(scales != 0, np.float32(1) / scales, np.float32(0))
    values = np.clip(_round(wide * inverse[:, None] + zeros[:, None]), 0, top)
    return values.astype(np.uint8), scales.astype(weight.dtype), zeros.astype(np.uint8)


def _round(numbers: Array) -> Array:
    """Round to the nearest integers, halves away from 0."""
    return np.asarray(np.trunc(numbers + np.copysign(np.float32(0.5), numbers)))


def _pack(values: Array, bits: int, fill: int) -> Array:
    """Pack values into bytes along the last axis, the first in the lowest bits; the last byte is padded."""
    each, count = 8 // bits, values.shape[-1]
    whole = np.full((*values.shape[:-1], -(-count // each) * each), fill, np.uint8)
    whole[..., :count] = values
    shifted = whole.reshape(*values.shape[:-1], -1, each) << (np.arange(each, dtype=np.uint8) * bits)
    return np.asarray(np.bitwise_or.reduce(shifted, axis=-1), np.uint8)


def _write(name: str, target: Array, content: Array) -> None:
    if target.size != content.size:
        raise make_error(BindingError, f"{name} has {target.size} elements; {content.size} are to be written.")
    target[...] = content.reshape(target.shape)
