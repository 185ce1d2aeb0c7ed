"""Normalisation of channels of images that may lie channels last: the launches of ``norm_channels.cu``, and their work.

A large channel is cut into parts, which are measured by blocks of their own and merged in a fixed order; other blocks
of the same launch map them. Small channels that lie last are those of a block, in the order that `norm` adds row-major
ones in. So numbers are the same however an image lies.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod

import numpy as np

from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.gpus import find_gpu
from gpuexec.ir.kernel_values import int32, join_bytes, pack_struct
from gpuexec.ir.operator import Emitter
from gpuexec.ir.spec import BFLOAT16, dtype_row
from gpuexec.ir.work import WARP, Work, count_slot_bytes, count_warps, work_of
from gpuexec.ops.elementwise.epilogue import (
    STEP_INSTRUCTIONS,
    STORED,
    count_epilogue_steps,
    instantiate_finished,
)
from gpuexec.ops.lib.strided import pack_fast_div32
from gpuexec.ops.lib.team import BLOCK_THREADS, choose_team
from gpuexec.ops.nn.conv_mma import has_channels_last
from gpuexec.ops.tensor.layout import in_order_of

_SOURCE, _FLOAT = "norm_channels.cu", np.dtype(np.float32)
_DTYPES = (_FLOAT, np.dtype(np.float16), BFLOAT16)
# Constants of channel_parts.cuh.
PART_POSITIONS, _SIDE_BY_SIDE, _TILE_THREADS = 1024, 4, 4 * WARP
_BLOCK = (BLOCK_THREADS, 1, 1)
LEAST_POSITIONS = 16 * BLOCK_THREADS  # of small channels; beyond them `norm.cu` does not hold a row in registers
_CHANNELS, _FOUR, _LIMIT = 8, 4, 2**31
_VECTOR_BYTES = 16
_L2_SHARE = 3  # a third of L2 is for what was measured and is read again, beside other bytes that pass


def _find_width(dtype: np.dtype[np.generic], *, is_last: bool) -> int:
    """Return the channels of a thread."""
    return _VECTOR_BYTES // dtype.itemsize if is_last else 1


def find_tile_channels(dtype: np.dtype[np.generic]) -> int:
    """Return the channels that lie last of a tile that blocks of `describe_map` map, 16 bytes to a thread."""
    return _SIDE_BY_SIDE * _find_width(dtype, is_last=True)


def _name_large(dtype: np.dtype[np.generic], *, is_last: bool) -> Kernel:
    return Kernel(_SOURCE, f"normalize_large_channels<{dtype_row(dtype).cuda}, {'true' if is_last else 'false'}>")


def _name_small(dtype: np.dtype[np.generic]) -> Kernel:
    return Kernel(_SOURCE, f"normalize_small_channels<{dtype_row(dtype).cuda}>")


for _dtype in _DTYPES:
    _stored = STORED if _dtype == _FLOAT else ()
    _kernels = [_name_large(_dtype, is_last=False), _name_small(_dtype)]
    instantiate_finished(_dtype, _kernels, stored=_stored, vector=_FOUR)
    _last = _name_large(_dtype, is_last=True)
    instantiate_finished(_dtype, [_last], stored=_stored, vector=_find_width(_dtype, is_last=True))


def launch_large_channels(emit: Emitter, x: Slot, scale: Slot, bias: Slot, y: Slot, epsilon: float) -> bool:
    """Launch the normalisation of each channel of each image; False where channels are small or odd.

    Args:
        emit: Emitter of the launches.
        x: The images ``[n, channels, ...]``.
        scale: Of each channel.
        bias: The same.
        y: The result, row-major or channels last.
        epsilon: What is added to the variance.
    """
    n, channels, positions = x.shape[0], x.shape[1], prod(x.shape[2:])
    able = (
        x.dtype in _DTYPES
        and positions > LEAST_POSITIONS
        and positions % _FOUR == 0
        and channels % _CHANNELS == 0
        and not any(slot.offset_bytes % (_CHANNELS * slot.dtype.itemsize) for slot in (x, scale, bias, y))
        and 0 < x.spec.size < _LIMIT - PART_POSITIONS
        and emit.target.has_kernels
        and not emit.target.has_textures
    )
    if not (emit.choose(able) and able):
        return False
    is_last = bool(emit.choose(not y.is_contiguous and has_channels_last(y)))
    x = in_order_of(emit, x, y)
    scale, bias = emit.contiguous(scale), emit.contiguous(bias)
    width = _find_width(x.dtype, is_last=is_last)
    tiles, parts = ceil_div(channels, _SIDE_BY_SIDE * width), ceil_div(positions, PART_POSITIONS)
    units = n * tiles * parts
    nbytes = _SIDE_BY_SIDE * width * positions * x.dtype.itemsize
    room = find_gpu(emit.target.architecture).l2_nbytes // _L2_SHARE
    group = n * tiles
    if group * nbytes > room:
        group = next((each for each in range(tiles, 1, -1) if tiles % each == 0 and each * nbytes <= room), 1)
    sizes = pack_struct("<6i", channels, positions, parts, units, group * parts, group)
    sizes += join_bytes(map(pack_fast_div32, (group * parts, group, tiles)))
    partial, statistics = emit.temp((n, parts, 2, channels), _FLOAT), emit.temp((n, 2, channels), _FLOAT)
    arguments: list[Argument] = [
        x, scale, bias, y, partial, statistics, emit.counters(1 + 2 * n * tiles), sizes, np.float32(epsilon),
    ]  # fmt: skip
    kernel, grid = _name_large(x.dtype, is_last=is_last), (2 * units, 1, 1)
    emit.launch(kernel, grid, (_TILE_THREADS, 1, 1), arguments, writes=[3, 4, 5, 6])
    return True


def launch_small_channels(emit: Emitter, x: Slot, scale: Slot, bias: Slot, y: Slot, epsilon: float) -> bool:
    """Launch the normalisation of small channels that lie last; False where they are large, odd or row-major.

    Args:
        emit: Emitter of the launch.
        x: The images ``[n, channels, ...]``.
        scale: Of each channel.
        bias: The same.
        y: The result.
        epsilon: What is added to the variance.
    """
    n, channels, positions = x.shape[0], x.shape[1], prod(x.shape[2:])
    able = (
        x.dtype in _DTYPES
        and not y.is_contiguous
        and has_channels_last(y)
        and 0 < positions <= LEAST_POSITIONS
        and channels % _CHANNELS == 0
        and not any(slot.offset_bytes % (_FOUR * slot.dtype.itemsize) for slot in (x, scale, bias, y))
        and emit.target.has_kernels
        and not emit.target.has_textures
    )
    if not (emit.choose(able) and able):
        return False
    x, eights = in_order_of(emit, x, y), channels // _CHANNELS
    lanes = int32(choose_team(positions, n * channels).lanes)
    arguments: list[Argument] = [x, emit.contiguous(scale), emit.contiguous(bias), y]
    arguments += [int32(positions), int32(channels), lanes, pack_fast_div32(eights), np.float32(epsilon)]
    emit.launch(_name_small(x.dtype), (max(n * eights, 1), 1, 1), _BLOCK, arguments, writes=[3])
    return True


# Instructions of a thread of large channels around, for a load that is measured, and for one that is mapped; for an
# element of either.
_AROUND_UNIT, _EACH_MEASURED, _EACH_MAPPED, _EACH_OF_ONE, _EACH_OF_OTHER = 300, 11, 15, 5, 4
EACH_MEASURED_FMA = 23 / 32  # fused multiply-adds for an element that is measured: of fours, and of eight of them
PARTS_TOGETHER = 32  # that chains fetch
_SHARED_NBYTES = {1: 18692, 4: 6536, 8: 12680}  # by the channels of a thread
_HELD = 400  # blocks that a large device runs at once


@work_of(_SOURCE, "normalize_large_channels")
def _count_large(launch: Launch) -> Work:
    x, y, packed = launch.arguments[0], launch.arguments[3], launch.arguments[7]
    assert isinstance(x, Slot) and isinstance(packed, bytes)
    channels, _, parts = struct.unpack_from("<3i", packed)
    is_last, blocks = ", true" in launch.kernel.expression, launch.grid[0]
    width = _find_width(x.dtype, is_last=is_last)
    mapped = describe_map(launch, (x, y, *launch.arguments[9:]), blocks // 2, _TILE_THREADS, is_last=is_last)
    measured = _EACH_MEASURED * x.spec.size / width + _EACH_OF_ONE * x.spec.size
    warps = count_warps(launch)
    return Work(
        flops=mapped.flops,
        instructions=mapped.instructions + warps / 2 * _AROUND_UNIT + measured / WARP,
        multiply_adds=x.spec.size * EACH_MEASURED_FMA / WARP,
        # Moments of runs; rows of a row-major image go through shared memory.
        wavefronts=warps * 3 * width + (0 if is_last else 2 * x.spec.size / WARP),
        l2_nbytes=mapped.l2_nbytes + count_slot_bytes(x) + 2 * 4 * x.shape[0] * parts * 2 * channels,
        # A turn, loads and two counts; once, the parts of a channel.
        rounds=mapped.rounds + 4 / 2 + ceil_div(parts, PARTS_TOGETHER) * min(1, _HELD / blocks),
        barriers=6,
        registers=168 if is_last else 80,
        shared_nbytes=_SHARED_NBYTES[width],
        operand_nbytes={4: 0, 5: 0, 6: 0},  # no other command has anything of them
    )


def describe_map(
    launch: Launch, arguments: Sequence[Argument], blocks: int, threads: int, *, is_last: bool = True
) -> Work:
    """Return the work of blocks that map images of large channels, which are measured.

    Args:
        launch: Their launch, with the epilogue.
        arguments: The images and the result, and those of the epilogue.
        blocks: How many there are.
        threads: Of a block.
        is_last: Whether channels lie last.
    """
    images = [slot for slot in arguments if isinstance(slot, Slot)]
    x, steps = images[0], count_epilogue_steps(launch)
    size, vector = x.spec.size, _find_width(x.dtype, is_last=True) if is_last else _FOUR
    groups = ceil_div(min(prod(x.shape[2:]), PART_POSITIONS) * (vector if is_last else 1), WARP * _FOUR)
    return Work(
        flops=size * (8 + steps),
        instructions=blocks * ceil_div(threads, WARP) * _AROUND_UNIT
        + (_EACH_MAPPED * size / vector + size * (_EACH_OF_OTHER + steps * STEP_INSTRUCTIONS)) / WARP,
        l2_nbytes=sum(map(count_slot_bytes, images)),
        # A turn, a signal, what was measured, and loads. Of rounds of these blocks, and of those that measure, half are
        # waited for, since others are under way.
        rounds=(3 + ceil_div(groups, 8 if is_last else 4)) / 2,
        barriers=2,
        blocks=blocks,
        again_nbytes=count_slot_bytes(x),
    )


# The same of small channels.
_AROUND, _EACH_LOAD, _EACH, _EACH_SMALL = 400, 6, 4, 14


@work_of(_SOURCE, "normalize_small_channels")
def _count_small(launch: Launch) -> Work:
    x, steps = launch.arguments[0], count_epilogue_steps(launch)
    assert isinstance(x, Slot)
    positions, *_ = (int(argument) for argument in launch.arguments if isinstance(argument, np.integer))
    own = ceil_div(positions, BLOCK_THREADS // 2)
    each = 2 * (_EACH_LOAD / _FOUR + _EACH) + _EACH_SMALL + steps * STEP_INSTRUCTIONS
    return Work(
        flops=x.spec.size * (7 + steps),
        instructions=count_warps(launch) * (_AROUND + own * _FOUR * each),
        wavefronts=count_warps(launch) * 16 * _FOUR,
        l2_nbytes=sum(count_slot_bytes(slot) for slot in (*launch.reads_from(), *launch.writes_to())),
        rounds=1 + 3 * ceil_div(own, _FOUR),
        barriers=14,
        registers=80,
        shared_nbytes=4 * BLOCK_THREADS * _CHANNELS,
    )
