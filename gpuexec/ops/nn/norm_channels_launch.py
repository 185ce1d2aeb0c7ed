"""Normalisation of channels of images that may lie channels last: the launches of ``norm_channels.cu``, and their work.

A large channel is cut into parts, which are measured by blocks of their own and merged in a fixed order; another launch
maps. Small channels that lie last are those of a block, in the order that `norm` adds row-major ones in. So numbers are
the same however an image lies.
"""

from __future__ import annotations

import struct
from math import prod

import numpy as np

from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32, int64, pack_struct
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
# Constants of norm_channels.cu.
_PART, _SIDE_BY_SIDE, _MAPPED = 1024, 8, 4 * 4 * BLOCK_THREADS
_BLOCK = (BLOCK_THREADS, 1, 1)
_LEAST_POSITIONS = 16 * BLOCK_THREADS  # beyond them `norm.cu` does not hold a row in registers
_CHANNELS, _FOUR, _LIMIT = 8, 4, 2**31


def _find_width(dtype: np.dtype[np.generic], *, is_last: bool) -> int:
    """Return the channels of a thread that measures."""
    return 16 // dtype.itemsize if is_last else 1


def _name_measure(dtype: np.dtype[np.generic], *, is_last: bool) -> Kernel:
    width = _find_width(dtype, is_last=is_last)
    return Kernel(_SOURCE, f"measure_large_channels<{dtype_row(dtype).cuda}, {width}>")


def _name_map(dtype: np.dtype[np.generic], *, is_last: bool) -> Kernel:
    return Kernel(_SOURCE, f"normalize_large_channels<{dtype_row(dtype).cuda}, {'true' if is_last else 'false'}>")


def _name_small(dtype: np.dtype[np.generic]) -> Kernel:
    return Kernel(_SOURCE, f"normalize_small_channels<{dtype_row(dtype).cuda}>")


for _dtype in _DTYPES:
    instantiate(_SOURCE, [_name_measure(_dtype, is_last=is_last).expression for is_last in (False, True)])
    _maps = [_name_map(_dtype, is_last=is_last) for is_last in (False, True)]
    _maps.append(_name_small(_dtype))
    instantiate_finished(_dtype, _maps, stored=STORED if _dtype == _FLOAT else (), vector=_FOUR)


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
        and positions > _LEAST_POSITIONS
        and positions % _FOUR == 0
        and channels % _CHANNELS == 0
        and not any(slot.offset_bytes % (_FOUR * slot.dtype.itemsize) for slot in (x, scale, bias, y))
        and 0 < x.spec.size < _LIMIT - _MAPPED
        and emit.target.has_kernels
        and not emit.target.has_textures
    )
    if not (emit.choose(able) and able):
        return False
    is_last = bool(emit.choose(not y.is_contiguous and has_channels_last(y)))
    x = in_order_of(emit, x, y)
    scale, bias = emit.contiguous(scale), emit.contiguous(bias)
    tiles = ceil_div(channels, _SIDE_BY_SIDE * _find_width(x.dtype, is_last=is_last))
    parts = ceil_div(positions, _PART)
    center, inverse = (emit.temp((n, channels), _FLOAT) for _ in range(2))
    partial, counters = emit.temp((n, parts, 2, channels), _FLOAT), emit.counters(n * tiles)
    arguments: list[Argument] = [
        x, center, inverse, partial, counters,
        pack_struct("<3i", channels, positions, parts) + pack_fast_div32(tiles), np.float32(epsilon),
    ]  # fmt: skip
    emit.launch(_name_measure(x.dtype, is_last=is_last), (n * tiles, parts, 1), _BLOCK, arguments, writes=[1, 2, 3, 4])
    inner, outer = (channels, positions) if is_last else (positions, channels)
    emit.launch(
        _name_map(x.dtype, is_last=is_last),
        (ceil_div(x.spec.size, _MAPPED), 1, 1),
        _BLOCK,
        [x, scale, bias, center, inverse, y, int64(x.spec.size), pack_fast_div32(inner), pack_fast_div32(outer)],
        writes=[5],
    )
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
        and 0 < positions <= _LEAST_POSITIONS
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


# Instructions of a thread around, for a load, and for an element; of a map, for an element.
_AROUND, _EACH_LOAD, _EACH, _EACH_MAPPED = 400, 6, 4, 14


@work_of(_SOURCE, "measure_large_channels")
def _count_measuring(launch: Launch) -> Work:
    x, packed = launch.arguments[0], launch.arguments[5]
    assert isinstance(x, Slot) and isinstance(packed, bytes)
    channels, positions, parts = struct.unpack_from("<3i", packed)
    width = int(launch.kernel.expression.rpartition(", ")[2].rstrip(">"))
    loads = 2 * x.spec.size / width
    own = 2 * ceil_div(min(positions, _PART), WARP)
    nbytes = count_slot_bytes(x)
    partial = 2 * 4 * x.shape[0] * parts * 2 * channels
    return Work(
        flops=4 * x.spec.size,
        instructions=count_warps(launch) * _AROUND + loads * (_EACH_LOAD + width * _EACH) / WARP,
        wavefronts=count_warps(launch) * 4 * width,
        # What a block reads again is in L1 where a part is small, else in L2.
        l2_nbytes=(2 if width > 1 else 1) * nbytes + partial,
        rounds=ceil_div(own, 4) + 2 + ceil_div(parts, 16),
        barriers=16,
        registers=64,
        shared_nbytes=4 * WARP * _SIDE_BY_SIDE * width + 96 * _SIDE_BY_SIDE * width,
        operand_nbytes={3: 0, 4: 0},  # no other command has anything of it
    )


@work_of(_SOURCE, "normalize_large_channels")
def _count_mapping(launch: Launch) -> Work:
    x, steps = launch.arguments[0], count_epilogue_steps(launch)
    assert isinstance(x, Slot)
    each = _EACH_MAPPED + steps * STEP_INSTRUCTIONS
    return Work(
        flops=x.spec.size * (4 + steps),
        instructions=count_warps(launch) * 120 + x.spec.size * each / WARP,
        l2_nbytes=sum(count_slot_bytes(slot) for slot in (*launch.reads_from(), *launch.writes_to())),
        rounds=2,
        registers=80,
    )


@work_of(_SOURCE, "normalize_small_channels")
def _count_small(launch: Launch) -> Work:
    x, steps = launch.arguments[0], count_epilogue_steps(launch)
    assert isinstance(x, Slot)
    positions, *_ = (int(argument) for argument in launch.arguments if isinstance(argument, np.integer))
    own = ceil_div(positions, BLOCK_THREADS // 2)
    each = 2 * (_EACH_LOAD / _FOUR + _EACH) + _EACH_MAPPED + steps * STEP_INSTRUCTIONS
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
