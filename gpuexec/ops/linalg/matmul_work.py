"""Work of matrix products: closed forms of their launches, and of tiles of 64 x 64 that other kernels share.

`gpuexec.ops.linalg.product` packs what is read here. Figures of machine code are those of sm_90; other
architectures differ by little.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from gpuexec.ir.command import Launch, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.work import Work, count_run_bytes, count_slot_bytes, work_of
from gpuexec.ops.elementwise.epilogue import STEP_INSTRUCTIONS, count_epilogue_steps
from gpuexec.ops.linalg.matmul_launch import FEW_COLUMNS, FEW_ROWS, TILE
from gpuexec.ops.linalg.product import MAX_BATCH_AXES

_SLAB = 16  # kSlab of gemm_simt.cuh
_WARPS = 8  # of a block
_FOLDS = 32  # kFolds of matmul.cu
_BATCH_TABLES = 4  # extents and three rows of strides at the end of the struct


@dataclass(frozen=True, slots=True)
class TileLoop:
    """Machine code of a thread of a 64 x 64 tile.

    Attributes:
        instructions: Of the loop, for a slab of 16 along the inner extent.
        around: Before and behind the loop.
        registers: Of a thread.
        shared_nbytes: Of a block.
    """

    instructions: int
    around: int = 500
    registers: int = 113
    shared_nbytes: int = 21632


_LOOPS = {4: TileLoop(409), 2: TileLoop(424), 8: TileLoop(443, registers=128, shared_nbytes=43264)}
_FEW_ROWS_INSTRUCTIONS = {4: 23, 2: 27, 8: 25, 1: 27}  # for a weight, by the bytes of an element
_NARROW_INSTRUCTIONS = 60  # more for a slab where weights are widened


@dataclass(frozen=True, slots=True)
class TiledProduct:
    """Extents of products made by tiles of 64 x 64: ``batch`` of ``[rows, inner] @ [inner, columns]``.

    ``depth`` is how much of the inner extent a slab holds; elements of both are of four bytes in shared memory.
    """

    batch: int
    rows: int
    columns: int
    inner: int
    depth: int = _SLAB

    @property
    def row_tiles(self) -> int:
        """Tiles along the rows."""
        return ceil_div(self.rows, TILE)

    @property
    def column_tiles(self) -> int:
        """Tiles along the columns."""
        return ceil_div(self.columns, TILE)

    @property
    def slabs(self) -> int:
        """Slabs along the inner extent."""
        return ceil_div(self.inner, self.depth)

    @property
    def live_warps(self) -> int:
        """Warps of one product some of whose sums are wanted: a warp has eight rows of them."""
        return self.column_tiles * sum(ceil_div(rows, TILE // _WARPS) for rows in _split(self.rows))

    def count_wavefronts(self, store_wavefronts: int) -> int:
        """Return the wavefronts of shared memory.

        A warp has eight rows of sums and 64 columns: at each k it reads two vectors of four rows, which are two words
        of one wavefront, and up to sixteen of four columns. Warps whose rows lie beyond the last only store.

        Args:
            store_wavefronts: Of storing a slab of both operands.
        """
        tiles = self.batch * self.row_tiles * self.column_tiles
        live_warps = self.live_warps
        wide = live_warps // self.column_tiles * sum(columns > TILE // 2 for columns in _split(self.columns))
        return self.slabs * (self.batch * (2 * live_warps + wide) * self.depth + tiles * store_wavefronts)

    def describe(
        self,
        launch: Launch,
        loop: TileLoop,
        operand_nbytes: int,
        store_wavefronts: int,
        *,
        doubles: bool = False,
        result: int = 3,
    ) -> Work:
        """Return the work of such a launch.

        Args:
            launch: The launch.
            loop: Its machine code.
            operand_nbytes: Bytes of sectors that all blocks ask for, of both operands.
            store_wavefronts: As of `count_wavefronts`.
            doubles: Whether sums are doubles.
            result: The position of the result among the arguments.
        """
        y = launch.arguments[result]
        assert isinstance(y, Slot)
        warps = self.batch * self.row_tiles * self.column_tiles * _WARPS
        results = self.batch * self.rows * self.columns
        steps, sums = count_epilogue_steps(launch), TILE * TILE // (_WARPS * 32)
        multiply_adds = self.batch * self.live_warps * self.slabs * sums * self.depth
        beside = sum(count_slot_bytes(a) for a in launch.arguments[2:] if isinstance(a, Slot) and a is not y)
        return Work(
            flops=2 * results * self.inner + results * steps,
            instructions=warps * (loop.around + self.slabs * loop.instructions + steps * sums * STEP_INSTRUCTIONS),
            multiply_adds=multiply_adds,
            needed_multiply_adds=results * self.inner,
            doubles=multiply_adds if doubles else 0,
            wavefronts=self.count_wavefronts(store_wavefronts),
            # A thread stores four neighbours one after the other, so each sector of the result is written four times.
            l2_nbytes=operand_nbytes + 4 * results * y.dtype.itemsize + beside,
            rounds=self.slabs + 1,
            barriers=self.slabs + 1,
            registers=loop.registers,
            shared_nbytes=loop.shared_nbytes,
        )


def _split(extent: int) -> list[int]:
    return [min(TILE, extent - first) for first in range(0, extent, TILE)]


@work_of("matmul.cu", "gemm", "gemm_narrow")
def _count_gemm(launch: Launch) -> Work:
    b, y = launch.arguments[1], launch.arguments[3]
    assert isinstance(b, Slot) and isinstance(y, Slot)
    loop = _LOOPS.get(y.dtype.itemsize, _LOOPS[4])
    if launch.kernel.expression.startswith("gemm_narrow"):
        loop = TileLoop(loop.instructions + _NARROW_INSTRUCTIONS, registers=128)
    work = count_product(launch, loop, _FEW_ROWS_INSTRUCTIONS.get(b.dtype.itemsize, 27))
    parts = (
        0 if y.dtype.kind not in "iu" else 3 if y.dtype.itemsize == 8 else 1
    )  # 64 bits are multiplied in three parts
    return replace(work, integer_multiply_adds=parts * work.multiply_adds)


def count_product(launch: Launch, loop: TileLoop, each_weight: int, *, is_packed: bool = False) -> Work:
    """Return the work of a launch whose arguments begin with a, b, c, y and the bytes of `pack_gemm`.

    Args:
        launch: The launch.
        loop: The machine code of a tile.
        each_weight: Instructions of a thread for a weight where there are few rows.
        is_packed: Whether the right operand has a layout of its own, which blocks read as it lies.
    """
    a, b, y, packed = (launch.arguments[i] for i in (0, 1, 3, 4))
    assert isinstance(a, Slot) and isinstance(b, Slot) and isinstance(y, Slot) and isinstance(packed, bytes)
    fields = struct.unpack(f"<11q2dq{_BATCH_TABLES * MAX_BATCH_AXES}q", packed)
    rows, columns, inner, a_row, a_inner, b_inner, b_column = fields[:7]
    product = TiledProduct(prod(fields[14 : 14 + fields[13]]), rows, columns, inner)
    if rows <= FEW_ROWS:
        return _count_few_rows(launch, product, each_weight, b_inner == 1, is_packed=is_packed)
    left = count_slab_bytes(rows, inner, a_row, a_inner, a.dtype.itemsize) * product.column_tiles
    right = count_slab_bytes(columns, inner, b_column, b_inner, b.dtype.itemsize)
    right = (count_slot_bytes(b) if is_packed else right) * product.row_tiles
    # Neighbours along k are stored 68 elements apart, two to a bank.
    stores = sum(_WARPS * 4 * (2 if stride == 1 else 1) for stride in (a_inner, b_inner))
    return product.describe(launch, loop, product.batch * (left + right), stores, doubles=y.dtype == np.float64)


def count_slab_bytes(extent: int, inner: int, stride: int, inner_stride: int, itemsize: int) -> int:
    """Return the bytes of the sectors that an operand's slabs take, loaded once: 32 lanes along x or 16 along k."""
    if inner_stride == 1:
        full, rest = divmod(inner, _SLAB)
        of_row = full * count_run_bytes(_SLAB, 1, itemsize) + (count_run_bytes(rest, 1, itemsize) if rest else 0)
        return extent * of_row
    full, rest = divmod(extent, 32)
    of_k = full * count_run_bytes(32, stride, itemsize) + (count_run_bytes(rest, stride, itemsize) if rest else 0)
    return inner * of_k


def _count_few_rows(
    launch: Launch, product: TiledProduct, each_weight: int, is_dense_in_k: bool, *, is_packed: bool
) -> Work:
    """Return the work where 32 threads share a column: of eight columns along k, or of one where k is dense."""
    a, b, y = launch.arguments[0], launch.arguments[1], launch.arguments[3]
    assert isinstance(a, Slot) and isinstance(b, Slot) and isinstance(y, Slot)
    blocks = product.batch * ceil_div(product.columns, FEW_COLUMNS)
    trips, results = ceil_div(product.inner, _FOLDS), product.batch * product.rows * product.columns
    weights = product.batch * product.columns * product.inner
    steps = count_epilogue_steps(launch)
    asked_k = _FOLDS if is_dense_in_k else _FOLDS // _WARPS  # places of k that a warp reads at once
    requests = blocks * product.rows * (_WARPS * trips if is_dense_in_k else ceil_div(product.inner, asked_k))
    left = requests * count_run_bytes(asked_k, 1, a.dtype.itemsize)
    if is_packed:
        right = count_slot_bytes(b)
    elif is_dense_in_k:
        right = product.batch * product.columns * trips * count_run_bytes(_FOLDS, 1, b.dtype.itemsize)
    else:
        right = blocks * product.inner * count_run_bytes(FEW_COLUMNS, 1, b.dtype.itemsize)
    of_y = blocks * product.rows * count_run_bytes(FEW_COLUMNS, 1, y.dtype.itemsize)
    instructions = blocks * _WARPS * (_LOOPS[4].around + trips * (each_weight + 3 * (product.rows - 1)))
    return Work(
        flops=2 * weights * product.rows + results * steps,
        instructions=instructions + blocks * (2 * _FOLDS + STEP_INSTRUCTIONS * steps),
        multiply_adds=blocks * _WARPS * trips * product.rows,
        needed_multiply_adds=weights * product.rows,
        wavefronts=blocks * (_WARPS * FEW_ROWS * (1 if is_dense_in_k else 4) + _FOLDS),
        l2_nbytes=left + right + of_y,
        rounds=trips + 1,
        barriers=1,
        registers=113,
        shared_nbytes=21632,
    )
