"""Launches of matrix products: strided and batched operands, alpha, beta and an addend.

A block makes a tile of 64 x 64, or of 4 x 8 where there are few rows; a product with few columns is made as that of the
transposed.
"""

from __future__ import annotations

import struct
from math import prod

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.operator import Emitter
from gpuexec.ir.spec import dtype_row, dtypes_of
from gpuexec.ops.quant.narrow_weight import NARROW_TYPES, NarrowWeight, name_types

DTYPES = (*dtypes_of("float"), *(np.dtype(t) for t in (np.int32, np.int64, np.uint32, np.uint64)))
TILE = 64  # rows and columns of a block; kTile of tile.cuh
FEW_ROWS, FEW_COLUMNS = 4, 8  # kFewRows and kFewColumns of matmul.cu
MAX_BATCH_AXES = 8  # kMaxBatchAxes of matmul.cu

instantiate("matmul.cu", [f"gemm<{dtype_row(dtype).cuda}>" for dtype in DTYPES])
instantiate("matmul.cu", [f"gemm_narrow<{types}>" for types in NARROW_TYPES])


def launch_gemm(
    emit: Emitter,
    slots: tuple[Slot, Slot, Slot | None, Slot],
    extents: tuple[int, int, int],
    strides: tuple[int, ...],
    *,
    scale: tuple[float, float] = (1.0, 1.0),
    batch: tuple[tuple[int, ...], tuple[tuple[int, ...], ...]] = ((), ((), (), ())),
    y_column: int = 1,
    narrow: NarrowWeight | None = None,
    scale_steps: tuple[int, int] = (0, 0),
) -> None:
    """Launch ``y = alpha * a @ b + beta * c`` over batches.

    Args:
        emit: Emitter of the launch.
        slots: a, b, c (or None), y; only their first elements and types count.
        extents: Rows, columns and the inner extent of one product.
        strides: a by row and inner, b by inner and column, c by row and column, y by row.
        scale: alpha, beta.
        batch: Extents of the batch axes, and the strides of a, b and y along them.
        y_column: The stride of y by column.
        narrow: The scales of b, where it is narrow.
        scale_steps: Their strides along the inner extent and the columns.

    Raises:
        InputError: More batch axes than the kernel's table holds.
    """
    (a, b, c, y), (rows, columns, inner), (batch_extents, walks) = slots, extents, batch
    a_row, a_inner, b_inner, b_column, c_row, c_column, y_row = strides
    if columns <= FEW_ROWS < rows and narrow is None:  # the product of the transposed has few rows
        a, b, rows, columns, walks = b, a, columns, rows, (walks[1], walks[0], walks[2])
        a_row, a_inner, b_inner, b_column = b_column, b_inner, a_inner, a_row
        c_row, c_column, y_row, y_column = c_column, c_row, y_column, y_row
    if len(batch_extents) > MAX_BATCH_AXES:
        raise InputError(f"MatMul expects batch axes that join to at most {MAX_BATCH_AXES}, got {len(batch_extents)}.")
    walk = (a_row, a_inner, b_inner, b_column, c_row, c_column, y_row, y_column)
    packed = pack_gemm((rows, columns, inner), walk, scale, (batch_extents, walks))
    tiles = count_tiles(rows, columns)
    kernel = Kernel("matmul.cu", f"gemm<{dtype_row(y.dtype).cuda}>")
    arguments: list[Argument] = [a, b, c, y, packed]
    if narrow is not None:
        kernel = Kernel("matmul.cu", f"gemm_narrow<{name_types(y.dtype, b.dtype)}>")
        arguments += [*narrow.dense(emit), struct.pack("<2q", *scale_steps)]
    emit.launch(kernel, (tiles * prod(batch_extents), 1, 1), (256, 1, 1), arguments, writes=[3])


def pack_gemm(
    extents: tuple[int, int, int],
    walk: tuple[int, ...],
    scale: tuple[float, float] = (1.0, 1.0),
    batch: tuple[tuple[int, ...], tuple[tuple[int, ...], ...]] = ((), ((), (), ())),
) -> bytes:
    """Return the bytes of ``Gemm`` of ``matmul.cu``; arguments as of `launch_gemm`, y by column behind its strides."""
    batch_extents, walks = batch
    pad = (0,) * (MAX_BATCH_AXES - len(batch_extents))
    tables = [entry for row in (batch_extents, *walks) for entry in (*row, *pad)]
    return struct.pack(f"<11q2dq{4 * MAX_BATCH_AXES}q", *extents, *walk, *scale, len(batch_extents), *tables)


def count_tiles(rows: int, columns: int) -> int:
    """Return the number of blocks of one product."""
    return ceil_div(rows, TILE) * ceil_div(columns, FEW_COLUMNS if rows <= FEW_ROWS else TILE)
