"""Block quantization of weights, compared with the installed ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnxruntime.capi import _pybind_state as theirs

from gpuexec.compat.onnxruntime.capi import _pybind_state as ours

# Rows, columns, rows of a block; of the last ones blocks or bytes are not full.
SIZES = [(64, 5, 16), (128, 7, 64), (32, 1, 32), (40, 3, 16), (70, 4, 32), (33, 2, 128)]


def make_weight(rows: int, columns: int, dtype: Any) -> np.ndarray[Any, Any]:
    weight = np.random.default_rng(rows).standard_normal((rows, columns)).astype(dtype)
    weight[:16, 0] = 0
    weight[:, -1] = np.abs(weight[:, -1])
    return weight


def unpack(packed: np.ndarray[Any, Any], bits: int, count: int) -> np.ndarray[Any, Any]:
    """Return values along the last axis, those of the padding left out."""
    shifts = np.arange(8 // bits, dtype=np.uint8) * bits
    values = (packed[..., None] >> shifts) & ((1 << bits) - 1)
    return values.reshape(*packed.shape[:-1], -1)[..., :count]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("is_symmetric", [True, False])
@pytest.mark.parametrize(("rows", "columns", "block_size"), SIZES)
def test_blocks_are_the_same(
    bits: int, is_symmetric: bool, rows: int, columns: int, block_size: int, dtype: Any
) -> None:
    blocks, each = -(-rows // block_size), 8 // bits
    weight = np.zeros((blocks * block_size, columns), dtype)
    weight[:rows] = make_weight(rows, columns, dtype)
    made = []
    for module in (theirs, ours):
        packed = np.zeros((columns, blocks, block_size // each), np.uint8)
        scales, zeros = np.zeros((columns, blocks), dtype), np.zeros((columns, -(-blocks // each)), np.uint8)
        call = getattr(module, f"quantize_matmul_{bits}bits")
        call(packed, weight, scales, zeros, block_size, columns, rows, is_symmetric)
        values = unpack(packed.reshape(columns, -1), bits, rows).astype(np.int64)
        made.append((values, scales, unpack(zeros, bits, blocks)))
    np.testing.assert_array_equal(made[0][1], made[1][1])
    np.testing.assert_array_equal(made[0][2], made[1][2])
    np.testing.assert_array_equal(made[0][0], made[1][0])


@pytest.mark.parametrize("is_symmetric", [True, False])
@pytest.mark.parametrize(("rows", "columns", "block_size"), [(64, 6, 16), (64, 5, 16), (40, 4, 16), (64, 3, 64)])
def test_blocks_for_dequantize_linear_are_the_same(
    is_symmetric: bool, rows: int, columns: int, block_size: int
) -> None:
    weight, blocks = make_weight(rows, columns, np.float32), -(-rows // block_size)
    made = []
    for module in (theirs, ours):
        packed, zeros = np.zeros((rows * columns + 1) // 2, np.uint8), np.zeros((columns * blocks + 1) // 2, np.uint8)
        scales = np.zeros((blocks, columns), np.float32)
        arguments = (packed, weight, scales, zeros, block_size, columns, rows, is_symmetric)
        made.append((module.quantize_qdq_matmul_4bits(*arguments), packed, scales, zeros))
    assert made[0][0] == made[1][0] == is_symmetric
    for one, other in zip(made[0][1:], made[1][1:], strict=True):
        np.testing.assert_array_equal(one, other)


def test_arrays_of_another_size_are_refused() -> None:
    weight, scales = np.ones((32, 2), np.float32), np.zeros((2, 1), np.float32)
    zeros = np.zeros((2, 1), np.uint8)
    with pytest.raises(RuntimeError, match="packed has 3 elements; 32 are to be written"):
        ours.quantize_matmul_4bits(np.zeros(3, np.uint8), weight, scales, zeros, 32, 2, 32, True)
