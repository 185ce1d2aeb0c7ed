"""Launches of products of few rows with codes, and their work in closed form.

Those of float are ``few_nbits.cu``, those of half and bfloat16 ``mma_few_nbits.cu``, and ``mma_rows_nbits.cu`` where
blocks make the rows (`gpuexec.ops.elementwise.prologue`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from gpuexec.errors import PlanError
from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.operator import Emitter
from gpuexec.ir.spec import BFLOAT16, dtype_row
from gpuexec.ir.work import WARP, Work, count_slot_bytes, work_of
from gpuexec.ops.elementwise.epilogue import STEP_INSTRUCTIONS, count_epilogue_steps, instantiate_finished
from gpuexec.ops.elementwise.prologue import ProductSizes, PrologueForm, allow_prologue
from gpuexec.ops.lib.slices import SliceCosts, slice_tiles
from gpuexec.ops.linalg.few_launch import count_kept, count_made_rows
from gpuexec.ops.linalg.product import ALONG_K, Product, read_sizes
from gpuexec.ops.linalg.simt_launch import RowsShape, find_shape
from gpuexec.ops.linalg.simt_work import JOIN_ROUNDS, find_itemsize, find_scratch, list_beside, read_gemm

MOST_ROWS = 4  # of which an mma has one for each lane of a column
_FLOAT_ROWS = (1, 2, 4)  # of kernels of float
_FLOAT, _DTYPES = np.dtype(np.float32), (np.dtype(np.float16), BFLOAT16)
_THREADS, _WARPS, _BLOCKS = 256, 8, 1  # of a block, and blocks of a multiprocessor
_COLUMNS, _STEP, _TOGETHER = 32, 128, 2  # of CodedColumns: columns of a warp, k of a step, and steps of a turn
_SHAPES = [RowsShape(folds, _WARPS // folds * _COLUMNS, _STEP * folds) for folds in (2, 4, 8)]
# In steps of a block, which take as long as five of mma_few.
_COSTS = SliceCosts(fixed=1.0, each_slice=0.2, min_slabs=1, slack=(1.0,), least_tenths=0, join=3.0)
# Instructions of a warp for a step, and for each pair of rows, or for all that its block has made; of float without
# multiply-adds, and for each row; and of a thread in all.
_STEP_INSTRUCTIONS, _ROW_INSTRUCTIONS, _MADE_INSTRUCTIONS = 262, 45, 8
_FLOAT_INSTRUCTIONS, _FLOAT_ROW_INSTRUCTIONS, _AROUND = 350, 30, 450
_EACH_SUM, _EACH_SLICE = 4, 1.5
_REGISTERS = 232
_PAIR_READ_WAVEFRONTS = 32  # of a warp that reads a step of one or two rows that its block has made
_WAVEFRONT_NBYTES = 128
_ROW_WAVEFRONTS = 5  # of a warp that stores its sums of a row, and of those that read them
_MMA_PRODUCTS = 2048
_BITS_AT = 28  # of bits_shift in ``PackedShape``


def name_few_nbits(dtype: np.dtype[np.generic], result: np.dtype[np.generic], bits: int, rows: int = 1) -> Kernel:
    """Return the kernel of a product of few rows with codes.

    Args:
        dtype: Of the other operand.
        result: Of the result and the scales.
        bits: Of a code.
        rows: How many there are; only kernels of float differ by them.
    """
    if dtype == _FLOAT:
        return Kernel("few_nbits.cu", f"few_nbits<{bits}, {next(most for most in _FLOAT_ROWS if rows <= most)}>")
    types = ", ".join([dtype_row(each).cuda for each in (dtype, result)])
    return Kernel("mma_few_nbits.cu", f"mma_few_nbits<{types}, {bits}>")


def _takes(dtype: np.dtype[np.generic], bits: int) -> bool:
    """Return whether differences of codes are widened two at a time: bf16 has no room for those of 8 bits."""
    return dtype != BFLOAT16 or bits < 8


instantiate_finished(_FLOAT, [name_few_nbits(_FLOAT, _FLOAT, bits, rows) for bits in (2, 4, 8) for rows in _FLOAT_ROWS])
for _dtype in _DTYPES:
    _bits = [each for each in (2, 4, 8) if _takes(_dtype, each)]
    instantiate_finished(_dtype, [name_few_nbits(_dtype, _dtype, each) for each in _bits])
    instantiate_finished(_FLOAT, [name_few_nbits(_dtype, _FLOAT, each) for each in _bits], stored=[_dtype])


def _name_made(dtype: np.dtype[np.generic], result: np.dtype[np.generic], bits: int) -> PrologueForm:
    """Return the kernel of a product whose blocks make its rows."""
    types = ", ".join([dtype_row(each).cuda for each in (dtype, result)])

    def read_few(arguments: Sequence[Argument], grid: tuple[int, int, int]) -> ProductSizes:
        own = read_sizes(arguments[4])
        kept = count_kept(own.inner, grid[1], own.lanes, _STEP)
        is_able = min(own.rows, own.inner, own.columns) > 0
        return ProductSizes(own.rows, own.inner, kept, is_able, _count_held_rows(own.rows))

    return PrologueForm("mma_rows_nbits.cu", f"mma_of_rows_nbits<{types}, {bits}", dtype, _REGISTERS, read_few)


allow_prologue(
    (name_few_nbits(dtype, result, bits), _name_made(dtype, result, bits))
    for dtype in _DTYPES
    for result in (dtype, _FLOAT)
    for bits in (2, 4, 8)
    if _takes(dtype, bits)
)


def takes_few(emit: Emitter, product: Product, bits: int) -> bool:
    """Return whether a product with aligned codes has few rows.

    Raises:
        PlanError: It has more rows than the upper end's kernel takes.
    """
    fits = product.extents[0] <= MOST_ROWS and _takes(product.slots[0].dtype, bits)
    takes = bool(emit.choose(int(fits)))
    if takes and not fits:
        raise PlanError("A product with codes has more rows than that of the upper end.")
    return takes


def launch_few(emit: Emitter, product: Product, weights: tuple[Slot, Slot | None], shape: bytes, bits: int) -> None:
    """Launch a product that `takes_few` has found right.

    Args:
        emit: Emitter of the launch.
        product: The product, whose right operand are the codes.
        weights: Scales and zero points.
        shape: ``PackedShape`` of the weights.
        bits: Of a code.
    """
    (rows, columns, inner), (a, codes, bias, y) = product.extents, product.slots
    chosen = _SHAPES[emit.choose(find_shape(emit, product, _SHAPES))]
    blocks = ceil_div(columns, chosen.columns)
    slices = slice_tiles(emit, blocks, ceil_div(inner, chosen.depth), rows * chosen.columns, _BLOCKS, _COSTS)
    packed = product.pack_mma(ALONG_K, ALONG_K, lanes=chosen.lanes)
    arguments: list[Argument] = [a, codes, bias, y, packed, slices.scratch, slices.counters, *weights, shape]
    writes = slices.writes(3, 5, blocks)
    most = emit.choose(min(rows, MOST_ROWS))
    kernel = name_few_nbits(a.dtype, y.dtype, bits, most)
    emit.launch(kernel, (blocks, slices.count, 1), (_THREADS, 1, 1), arguments, writes)


@work_of("few_nbits.cu", "few_nbits")
@work_of("mma_few_nbits.cu", "mma_few_nbits")
def _count_few_nbits(launch: Launch) -> Work:
    rows, columns, inner, _, _, folds = read_gemm(launch)
    a, shape = launch.arguments[0], launch.arguments[9]
    assert isinstance(a, Slot) and isinstance(shape, bytes)
    (bits_shift,) = struct.unpack_from("<i", shape, _BITS_AT)
    blocks, slices, parts = prod(launch.grid), launch.grid[1], launch.grid[1] * folds
    block_columns = _WARPS // folds * _COLUMNS
    own_steps, warp_steps = ceil_div(ceil_div(inner, _STEP), parts), _count_warp_steps(launch)
    results, own, scratch = rows * columns, count_epilogue_steps(launch), find_scratch(launch)
    joined = 4 * blocks * rows * block_columns if slices > 1 else 0
    finished = launch.grid[0] * rows * block_columns
    beside = sum(count_slot_bytes(each) for each in list_beside(launch, scratch))
    of_sum = _EACH_SUM + own * STEP_INSTRUCTIONS + (slices * _EACH_SLICE if joined else 0)
    is_float = a.dtype == _FLOAT
    at_once = next(most for most in _FLOAT_ROWS if rows <= most)
    of_step = _STEP_INSTRUCTIONS + (1 + (rows > 2)) * _ROW_INSTRUCTIONS
    # Each warp multiplies as many rows as its kernel takes, of which those beyond the last are the last again.
    multiply_adds = warp_steps * at_once * _COLUMNS * _STEP / WARP if is_float else 0.0
    if is_float:
        of_step = _FLOAT_INSTRUCTIONS + at_once * (_FLOAT_ROW_INSTRUCTIONS + _COLUMNS * _STEP // WARP)
    read = launch.grid[0] * block_columns * inner * (1 << bits_shift) // 8 + _count_row_bytes(launch, a.dtype.itemsize)
    return Work(
        flops=2 * results * inner + results * own,
        instructions=warp_steps * of_step + blocks * _WARPS * _AROUND + finished * of_sum / WARP,
        multiply_adds=multiply_adds,
        needed_multiply_adds=results * inner,
        matrix_products=0 if is_float else warp_steps * (_STEP // 16) * (_COLUMNS // 8) * _MMA_PRODUCTS,
        wavefronts=blocks * _WARPS * rows * _ROW_WAVEFRONTS,
        l2_nbytes=read + results * find_itemsize(launch, 3) + 2 * joined + beside,
        rounds=ceil_div(own_steps, _TOGETHER) + 1 + (slices / 4 + JOIN_ROUNDS if joined else 0),
        barriers=1,
        registers=_REGISTERS,
        shared_nbytes=_WARPS * 8 * (_COLUMNS + 4) * 4,
        operand_nbytes={scratch: 0, scratch + 1: 0},  # no other command has anything of it
    )


@work_of("mma_rows_nbits.cu", "mma_of_rows_nbits")
def _count_mma_of_rows_nbits(launch: Launch) -> Work:
    """Count the product, and the rows of each block, which stay in shared memory."""
    rows, _, inner, _, _, folds = read_gemm(launch)
    dtype = next(each for each in _DTYPES if f"<{dtype_row(each).cuda}," in launch.kernel.expression)
    kept = count_kept(inner, launch.grid[1], folds, _STEP)
    cleared = prod(launch.grid) * _count_held_rows(rows) * kept * dtype.itemsize
    steps = _count_warp_steps(launch)
    work = count_made_rows(
        launch,
        _count_few_nbits,
        dtype,
        kept,
        _count_row_bytes(launch, dtype.itemsize),
        steps * min(rows, 2) * _PAIR_READ_WAVEFRONTS + cleared // _WAVEFRONT_NBYTES,
    )
    saved = steps * ((1 + (rows > 2)) * _ROW_INSTRUCTIONS - _MADE_INSTRUCTIONS)
    return replace(work, instructions=work.instructions - saved)


def _count_held_rows(rows: int) -> int:
    """Return for how many rows a block has room in shared memory: rows r and r + 2 lie side by side."""
    return 2 * min(rows, 2)


def _count_warp_steps(launch: Launch) -> int:
    """Return the steps of all warps."""
    _, _, inner, _, _, folds = read_gemm(launch)
    return launch.grid[0] * (_WARPS // folds) * ceil_div(inner, _STEP)


def _count_row_bytes(launch: Launch, itemsize: int) -> int:
    """Return the bytes of rows that warps ask for: those side by side each read them."""
    return _count_warp_steps(launch) * read_gemm(launch)[0] * _STEP * itemsize
