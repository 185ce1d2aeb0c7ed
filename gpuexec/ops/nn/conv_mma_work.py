"""Work of convolutions on tensor cores: closed form of their launches.

`gpuexec.ops.nn.conv_mma` packs what is read here. Figures of machine code are those of sm_90.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from math import prod

from gpuexec.ir.command import Launch, Slot
from gpuexec.ir.geometry import ceil_div, round_up
from gpuexec.ir.work import SECTOR_BYTES, WARP, Work, count_slot_bytes, count_warps, work_of
from gpuexec.ops.lib.slices import MmaTile
from gpuexec.ops.lib.windows import Windows
from gpuexec.ops.linalg.mma_work import describe_mma, find_mma_tile
from gpuexec.ops.linalg.simt_work import find_itemsize, read_gemm

_GEMM_NBYTES, _AXES = 320, "<18i"  # sizeof(SimtGemm), and what stands behind it in MmaConv
_DIVISORS = "<15I"  # of the positions of an image, along each axis, and of channels
# Instructions of a warp for a slab beside mma and ldmatrix, and of a thread apart from slabs and sums: it finds which
# taps of its lines are inside.
_LOOP_INSTRUCTIONS = {
    "LargeMma": 35,
    "MediumMma": 41,
    "SmallMma": 41,
    "FlatMma": 66,
    "SmallDeepMma": 30,
    "FlatDeepMma": 41,
}
_AROUND = 900
# Words, rows and bytes of the left operand of an mma, and the instructions by which a word is rounded to tf32.
_FRAGMENT_WORDS, _MMA_ROWS, _STEP_NBYTES, _EACH_ROUNDING = 4, 16, 32, 2
_CHUNK_NBYTES, _FLOAT_NBYTES = 16, 4


@work_of("conv_mma.cu", "conv_mma")
def _count_conv_mma(launch: Launch) -> Work:
    rows, columns, inner, groups, *_ = read_gemm(launch)
    packed, y = launch.arguments[4], launch.arguments[3]
    assert isinstance(packed, bytes) and isinstance(y, Slot)
    fields = struct.unpack_from(_AXES, packed, _GEMM_NBYTES)
    extents, steps, dilations, starts, kernel, _ = (fields[first : first + 3] for first in range(0, 18, 3))
    divisors = struct.unpack_from(_DIVISORS, packed, _GEMM_NBYTES + struct.calcsize(_AXES))[::3]
    positions, counts, channels = divisors[0], divisors[1:4], divisors[4]
    begins = tuple(-start for start in starts)
    windows = Windows(extents, kernel, steps, dilations, begins, begins, counts)
    tile, itemsize = find_mma_tile(launch), find_itemsize(launch, 0)
    seen = rows // max(1, positions) * windows.count_taps_inside() if prod(counts) else 0
    # Where a slab has several taps, positions side by side ask for the same places, some of them at once.
    patches = seen * round_up(channels * itemsize, SECTOR_BYTES) * ceil_div(columns, tile.columns)
    weights = _count_lines(columns, tile) * inner * itemsize * ceil_div(rows, tile.rows)
    loop = _LOOP_INSTRUCTIONS[tile.name] + (_count_roundings(tile) if itemsize == _FLOAT_NBYTES else 0)
    work = describe_mma(launch, loop, groups * (patches + weights), _AROUND)
    return replace(work, flops=work.flops + (y.spec.size if launch.arguments[2] is not None else 0))


def _count_roundings(tile: MmaTile) -> int:
    """Return the instructions of a warp that round its floats of a slab."""
    down = tile.rows // tile.warps_down // _MMA_ROWS
    return tile.slab_nbytes // _STEP_NBYTES * down * _FRAGMENT_WORDS * _EACH_ROUNDING


def _count_lines(columns: int, tile: MmaTile) -> int:
    """Return the lines of weights that all blocks of a row of tiles ask for.

    Those beyond the last one repeat it, and a warp that copies nothing else asks for it once.
    """
    together = WARP * _CHUNK_NBYTES // tile.slab_nbytes
    return columns + (round_up(columns, tile.columns) - columns) // together


@work_of("pad_channels.cu", "pad_channels")
def _count_padding(launch: Launch) -> Work:
    x, made = launch.arguments[0], launch.arguments[1]
    assert isinstance(x, Slot) and isinstance(made, Slot)
    return Work(
        flops=0,
        instructions=count_warps(launch) * 110,
        l2_nbytes=count_slot_bytes(x) + count_slot_bytes(made),
        rounds=1,
        registers=48,
    )
