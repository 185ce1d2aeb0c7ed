"""Work of products on tensor cores: closed forms of tiles and slices.

`gpuexec.ops.linalg.product` packs what is read here. Figures of machine code are those of sm_90; other
architectures differ by little.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod

import numpy as np

from gpuexec.ir.command import Launch, Slot
from gpuexec.ir.geometry import ceil_div, round_up
from gpuexec.ir.spec import BFLOAT16
from gpuexec.ir.work import SECTOR_BYTES, WARP, Work, count_slot_bytes, read_int, work_of
from gpuexec.ops.elementwise.epilogue import STEP_INSTRUCTIONS, count_epilogue_steps
from gpuexec.ops.lib.slices import DEEP_MMA_TILES, GROUP_TILES, MMA_AROUND, MmaTile
from gpuexec.ops.linalg.product import ACROSS, ALONG_K, WIDE_A, WIDE_B, WIDE_Y
from gpuexec.ops.linalg.simt_work import (
    find_itemsize,
    find_scratch,
    list_beside,
    read_gemm,
)

# Instructions of a warp for a slab beside mma and ldmatrix where operands are dense along the inner extent, and more
# for each that lies across it.
LOOP_INSTRUCTIONS = {
    "LargeMma": (21, 8),
    "MediumMma": (23, 8),
    "SmallMma": (23, 12),
    "FlatMma": (47, 48),
    "SmallDeepMma": (15, 4),
    "FlatDeepMma": (22, 14),
    "SmallGroup": (75, 10),
    "WideGroup": (70, 10),
    "LargeGroup": (80, 10),
}
_EACH_CHUNK = 70  # instructions for eight elements that are copied one by one
AROUND, _EACH_SUM = MMA_AROUND, 4  # instructions of a thread apart from slabs: in all, and to scale and store a sum
# Instructions of a thread for a weight of int8 that is widened, and for one that stays an integer, in half and bf16.
_EACH_WEIGHT, _EACH_INTEGER = 3.9, {np.dtype(np.float16): 1.45, BFLOAT16: 2.95}
_EACH_COLUMN_SCALE = 4  # instructions of a thread for a column whose sums are scaled
_EACH_FLOAT8_WORD, _EACH_SCALED = 3.0, 2.5  # of a warp to widen a word of a fragment; of a thread to scale a sum
_EACH_SLICE = 1.5  # instructions of a thread to add up a sum of a slice
_PARK_WAVEFRONTS = 2  # of 128 bytes of sums that wait in shared memory for an epilogue
_MMA_PRODUCTS, _STEP_NBYTES, _MATRIX_WAVEFRONTS = 2048, 32, 4
_CHUNK_NBYTES, _WAVEFRONT_NBYTES = 16, 128


def find_mma_tile(launch: Launch) -> MmaTile:
    """Return the tile that a launch names in its expression."""
    return next(
        tile for tile in (*DEEP_MMA_TILES, *GROUP_TILES) if re.search(rf"\b{tile.name}\b", launch.kernel.expression)
    )


@work_of("mma_gemm.cu", "mma_gemm")
def _count_mma_gemm(launch: Launch) -> Work:
    left, right = (each.strip(" >") for each in launch.kernel.expression.split(",")[3:5])
    loop, asked = _count_fetches(launch, (left, right))
    return describe_mma(launch, loop, asked, AROUND)


@work_of("mma_float8.cu", "mma_float8")
def _count_mma_float8(launch: Launch) -> Work:
    tile = find_mma_tile(launch)
    loop, asked = _count_fetches(launch, (ALONG_K, ALONG_K))
    warps, down, across = tile.threads // WARP, tile.rows // tile.warps_down, tile.columns // tile.warps_across
    around = AROUND + _EACH_SCALED * tile.size / tile.threads
    # Scales pass through shared memory, from where a warp reads eight of columns as two vectors, and those of its rows.
    row_step, column_step = (read_int(each) for each in launch.arguments[9:11])
    blocks, stored = prod(launch.grid), ceil_div(tile.rows, WARP) + tile.columns // WARP
    asked += blocks * (4 * tile.rows if row_step else SECTOR_BYTES * ceil_div(tile.rows, WARP))
    asked += blocks * (4 * tile.columns if column_step else SECTOR_BYTES * tile.columns // WARP)
    if is_widened := "Widened" in launch.kernel.expression:  # each product is two, and each word of a fragment, too
        words = tile.slab_nbytes // _STEP_NBYTES * (down + across) // 4
        loop += tile.products / warps + words * _EACH_FLOAT8_WORD
    work = describe_mma(launch, loop, asked, around)
    scales = [each for each in launch.arguments[7:9] if isinstance(each, Slot)]  # counted above, by blocks
    return replace(
        work,
        l2_nbytes=work.l2_nbytes - sum(map(count_slot_bytes, scales)),
        matrix_products=work.matrix_products * (1 + is_widened),
        wavefronts=work.wavefronts + blocks * (stored + warps * (across // 32) * (down // 8 + 8)),
        barriers=work.barriers + 2,
    )


def _count_fetches(launch: Launch, lies: tuple[str, str]) -> tuple[float, float]:
    """Return instructions of a warp for a slab beside mma and ldmatrix, and bytes of sectors that blocks ask for.

    Args:
        launch: The launch.
        lies: How operands lie.
    """
    rows, columns, inner, batch, wide, _ = read_gemm(launch)
    tile = find_mma_tile(launch)
    own, across = LOOP_INSTRUCTIONS[tile.name]
    loop, asked = float(own), 0
    for lie, flag, extent, lines, times in (
        (lies[0], WIDE_A, rows, tile.rows, ceil_div(columns, tile.columns)),
        (lies[1], WIDE_B, columns, tile.columns, ceil_div(rows, tile.rows)),
    ):
        is_across = lie == ACROSS
        loop += across * is_across
        if not wide & flag:
            loop += lines * tile.slab_nbytes // _CHUNK_NBYTES / tile.threads * _EACH_CHUNK
        # Lines beyond the last one repeat it, or are not read.
        asked += times * inner * (extent if is_across else round_up(extent, lines)) * find_itemsize(launch, 0)
    return loop, batch * asked


@work_of("mma_narrow.cu", "mma_narrow")
def _count_mma_narrow(launch: Launch) -> Work:
    rows, columns, inner, *_ = read_gemm(launch)
    tile = find_mma_tile(launch)
    asked = inner * find_itemsize(launch, 0) * round_up(rows, tile.rows) * ceil_div(columns, tile.columns)
    asked += inner * find_itemsize(launch, 1) * round_up(columns, tile.columns) * ceil_div(rows, tile.rows)
    weights = tile.columns * tile.slab_nbytes // find_itemsize(launch, 0) / tile.threads
    a, y = launch.arguments[0], launch.arguments[3]
    assert isinstance(a, Slot) and isinstance(y, Slot)
    scales = find_itemsize(launch, 7)
    if scales == a.dtype.itemsize:
        return describe_mma(launch, LOOP_INSTRUCTIONS[tile.name][0] + weights * _EACH_WEIGHT, asked, AROUND)
    own_columns = tile.columns // tile.warps_across // 4
    around = AROUND + own_columns * _EACH_COLUMN_SCALE + tile.size // tile.threads
    return describe_mma(launch, LOOP_INSTRUCTIONS[tile.name][0] + weights * _EACH_INTEGER[a.dtype], asked, around)


def describe_mma(launch: Launch, loop: float, asked: float, around: float) -> Work:
    """Return the work of a launch of tiles of tensor cores, whose struct begins with ``SimtGemm``.

    Args:
        launch: The launch.
        loop: Instructions of a warp for a slab beside mma and ldmatrix.
        asked: Bytes of sectors that all blocks ask for, of both operands.
        around: Instructions of a thread apart from slabs and sums.
    """
    rows, columns, inner, batch, wide, _ = read_gemm(launch)
    y = launch.arguments[3]
    assert isinstance(y, Slot)
    written = 1 if wide & WIDE_Y else 4
    nbytes, is_parked = inner * find_itemsize(launch, 0), waits_in_memory(launch, wide, columns)
    results = batch * rows * columns
    return describe_mma_tiles(
        launch, (results, inner, nbytes), loop, asked, around, written=written, is_parked=is_parked
    )


def waits_in_memory(launch: Launch, wide: int, columns: int) -> bool:
    """Return whether sums wait in shared memory: for steps, or where they don't leave by whole vectors.

    Args:
        launch: The launch.
        wide: Its flags of operands that vectors copy.
        columns: Of the result.
    """
    y = launch.arguments[3]
    assert isinstance(y, Slot)
    leaves_whole = wide & WIDE_Y and columns % (_CHUNK_NBYTES // y.dtype.itemsize) == 0
    return count_epilogue_steps(launch) > 0 or not leaves_whole


def describe_mma_tiles(
    launch: Launch,
    sizes: tuple[int, int, int],
    loop: float,
    asked: float,
    around: float,
    *,
    written: int = 1,
    is_parked: bool = True,
) -> Work:
    """Return the work of a launch of tiles of tensor cores.

    Args:
        launch: The launch.
        sizes: Results, the terms of each, and bytes of the inner extent.
        loop: Instructions of a warp for a slab beside mma and ldmatrix.
        asked: Bytes of sectors that all blocks ask for, of both operands.
        around: Instructions of a thread apart from slabs and sums.
        written: How often a sector of the result is written.
        is_parked: Whether sums go through shared memory.
    """
    (results, inner, nbytes), y = sizes, launch.arguments[3]
    tile, tiles, slices = find_mma_tile(launch), launch.grid[0], launch.grid[1]
    assert isinstance(y, Slot)
    slabs = ceil_div(nbytes, tile.slab_nbytes)
    warps, blocks = tile.threads // WARP, tiles * slices
    steps, scratch = count_epilogue_steps(launch), find_scratch(launch)
    # A group begins all products of a step by one instruction of each of its warps.
    products = warps * tile.slab_nbytes // _STEP_NBYTES if tile.is_by_groups else tile.products
    loop += (products + tile.matrices) / warps
    sums, own_slabs = tile.size // tile.threads, ceil_div(slabs, slices)
    of_sum = _EACH_SUM + steps * STEP_INSTRUCTIONS + (slices * _EACH_SLICE if slices > 1 else 0)
    partial_nbytes = 4 * blocks * tile.size if slices > 1 else 0
    counted = 2 * SECTOR_BYTES * blocks if slices > 1 else 0
    parked = tiles * tile.size * 4 // _WAVEFRONT_NBYTES * _PARK_WAVEFRONTS if is_parked else 0
    # A group of warps reads fragments of one step more than it has; its sums are written for the others, and read.
    first = blocks * tile.groups * tile.matrices // (tile.slab_nbytes // _STEP_NBYTES) * _MATRIX_WAVEFRONTS
    folded = blocks * 2 * tile.groups * tile.size * 4 // _WAVEFRONT_NBYTES if tile.groups > 1 else 0
    beside = sum(count_slot_bytes(each) for each in list_beside(launch, scratch))
    return Work(
        flops=2 * results * inner + results * steps,
        instructions=warps
        * (tiles * slabs * loop + blocks * (around + sums / 4 * (slices > 1)) + tiles * sums * of_sum),
        needed_multiply_adds=results * inner,
        matrix_products=tiles * slabs * tile.products * _MMA_PRODUCTS,
        is_by_groups=tile.is_by_groups,
        wavefronts=tiles * slabs * tile.slab_wavefronts + first + folded + parked,
        l2_nbytes=asked + y.spec.nbytes * written + 2 * partial_nbytes + counted + beside,
        rounds=0,
        fetches=ceil_div(own_slabs, tile.stages - 1) + 1,
        cycles=tile.count_waits(slices, own_slabs),
        barriers=own_slabs + (3 if tile.groups > 1 else 1),
        registers=tile.registers,
        operand_nbytes={scratch: 0, scratch + 1: 0},  # no other command has anything of it
    )
