"""Convolutions and the normalisation of the channels that they make, as one launch.

Where both come to two launches, ``conv_mma`` on tensor cores and ``normalize_large_channels`` of what it makes channels
last, one of ``conv_normalized`` can take their place: it is made of the arguments of both, by the same tile in the same
slices. The pass `gpuexec.passes.fuse_normalized` makes the operator.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from gpuexec.ir.command import Command, Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import pack_struct
from gpuexec.ir.operator import Emitter, Join, operator
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from gpuexec.ir.work import WARP, Work, find_form, work_of
from gpuexec.ops.elementwise.epilogue import count_type_steps, split_epilogue
from gpuexec.ops.lib.slices import LARGE_MMA, MEDIUM_MMA, SMALL_MMA, MmaTile
from gpuexec.ops.linalg.mma_work import find_mma_tile
from gpuexec.ops.linalg.product import VECTOR_NBYTES, read_left
from gpuexec.ops.nn.conv_mma import FLOAT_TILES, find_pitch
from gpuexec.ops.nn.norm_channels_launch import (
    EACH_MEASURED_FMA,
    LEAST_POSITIONS,
    PART_POSITIONS,
    PARTS_TOGETHER,
    describe_map,
    find_tile_channels,
)
from gpuexec.ops.nn.paired import PairedOperators, guard_texts, read_types

_SOURCE, _CONV, _NORM = "conv_normalized.cu", "conv_mma", "normalize_large_channels"
_FLOAT = np.dtype(np.float32)
_TILES = (LARGE_MMA, MEDIUM_MMA, SMALL_MMA)  # of whole runs, whose rows a lane has
_UNIT_THREADS, _RUN_POSITIONS, _EIGHT, _FOUR = 128, 32, 8, 4  # kTileThreads and kRunPositions of channel_parts.cuh
_MOST_ROWS, _LEAST_COLUMNS = max(tile.rows for tile in _TILES), min(tile.columns for tile in _TILES)
_TURN_NBYTES = 16  # behind the ring
_OWN_ARGUMENTS, _CONV_ARGUMENTS, _NORM_ARGUMENTS = 17, 7, 9  # without epilogues


def name_normalized(steps: str, types: Sequence[str], tile: MmaTile) -> Kernel:
    """Return the kernel.

    Args:
        steps: C++ type of the convolution's epilogue.
        types: C++ types of the operands, and of sums in front of their steps.
        tile: What a block makes of the convolution.
    """
    return Kernel(_SOURCE, f"conv_normalized<{', '.join([steps, *types])}, {tile.name}>")


for _types, _tiles in [
    *[((each, result), _TILES) for each in (np.dtype(np.float16), BFLOAT16) for result in (each, _FLOAT)],
    ((_FLOAT, _FLOAT), [tile for tile in FLOAT_TILES if tile in _TILES]),
]:
    _names = [dtype_row(dtype).cuda for dtype in _types]
    instantiate(_SOURCE, [name_normalized(f"NoSteps<{_names[1]}>", _names, tile).expression for tile in _tiles])


def takes_normalized(made: TensorSpec) -> bool:
    """Return whether images of a size may be measured by what makes them: of large channels, in whole tiles.

    Args:
        made: What the convolution makes.
    """
    positions = prod(made.shape[2:])
    is_large = positions > LEAST_POSITIONS and made.dtype in (_FLOAT, np.dtype(np.float16), BFLOAT16)
    return is_large and positions % _MOST_ROWS == 0 and made.shape[1] % _EIGHT == 0


@operator("NormalizedConv", "gpuexec")
@dataclass(frozen=True, slots=True)
class NormalizedConv(PairedOperators):
    """A Conv and an InstanceNormalization of what it makes, each perhaps with an epilogue."""

    example = (
        "float16[1,8,4,4] float16[16,8,3,3] float16[16] float16[16] steps=(('Conv',(),(0,1)),("
        "'InstanceNormalization',(),(-1,2,3)))"
    )

    def _prepare_join(self, emit: Emitter, made: Slot) -> Join | None:
        able = takes_normalized(made.spec) and emit.target.has_kernels and not emit.target.has_textures
        if not emit.choose(able):
            return None
        images, channels, positions = made.shape[0], made.shape[1], prod(made.shape[2:])
        runs = emit.temp((ceil_div(images * positions, _RUN_POSITIONS), 2, channels), _FLOAT)
        parts, columns = ceil_div(positions, PART_POSITIONS), ceil_div(channels, _LEAST_COLUMNS)
        return partial(join_launches, runs=runs, turns=emit.counters(1 + images * columns * (parts + 2)))


def join_launches(commands: Sequence[Command], runs: Slot, turns: Slot) -> list[list[Command]]:
    """Return the way to do what commands do with one launch for two; none where these can't be joined.

    Args:
        commands: Of both operators, among them those that pack weights which are computed.
        runs: Scratch memory for the moments of runs.
        turns: Numbers that are 0.
    """
    launches = [each for each in commands if isinstance(each, Launch)]
    firsts = [each for each in launches if read_types(each.kernel)[0] == _CONV]
    if len(firsts) != 1 or launches[-1] is not commands[-1] or read_types(launches[-1].kernel)[0] != _NORM:
        return []
    first, last = firsts[0], launches[-1]
    types, its, made, x = read_types(first.kernel)[1], read_types(last.kernel)[1], first.arguments[3], last.arguments[0]
    others = [each for each in commands if each is not first and each is not last]
    assert isinstance(made, Slot) and isinstance(x, Slot)
    epilogue, operands = split_epilogue(first.kernel)
    tile = next((each for each in _TILES if each.name == types[2]), None)
    if tile is None or its[1] != "true" or operands or not _is_whole(first, made, x):
        return []
    if any(slot.buffer == made.buffer for each in others for slot in (*each.reads_from(), *each.writes_to())):
        return []
    if not epilogue and types[1] != its[0]:
        return []  # it is not what the convolution makes that is normalised
    if not takes_normalized(made.spec):
        return []
    # Tiles whose slabs are as long read what was packed for each other, and sum alike where there is one slice.
    alike = [each for each in _TILES if each.slab_nbytes == tile.slab_nbytes and _has_kernel(types[0], each)]
    tiles = [tile] if first.arguments[5] is not None else alike
    return [[*others, _join(first, last, each, epilogue, runs, turns)] for each in tiles]


def _join(first: Launch, last: Launch, tile: MmaTile, epilogue: str, runs: Slot, turns: Slot) -> Launch:
    """Return the launch of both."""
    x, w, bias, made, packed, scratch, counters, *own_steps = first.arguments
    _, scale, shift, y, parts_sums, statistics, _, _, epsilon, *rest = last.arguments
    assert isinstance(made, Slot)
    images, channels = made.shape[:2]
    parts = ceil_div(prod(made.shape[2:]), PART_POSITIONS)
    (rows, columns, _), *_ = read_left(packed)  # type: ignore[arg-type]
    tiles, slices = tile.count(rows, columns), first.grid[1]
    types = read_types(first.kernel)[1]
    units = ceil_div(channels, find_tile_channels(made.dtype) * (tile.threads // _UNIT_THREADS))
    kernel = name_normalized(epilogue or f"NoSteps<{types[1]}>", types[:2], tile)
    steps, pointers = split_epilogue(last.kernel)
    expression = ", ".join([kernel.expression[:-1], *([steps, *pointers] if steps else [])]) + ">"
    struct_bytes = pack_struct("<5i", channels, prod(made.shape[2:]), parts, tiles, slices)
    arguments = (
        x, w, bias, y, packed, scratch, counters, scale, shift, made, runs, parts_sums, statistics, turns,
        struct_bytes, epsilon, own_steps[0] if epilogue else bytes(8), *rest,
    )  # fmt: skip
    shift_by = _OWN_ARGUMENTS - _NORM_ARGUMENTS
    behind = [position + shift_by for position in last.writes if position >= _NORM_ARGUMENTS]
    joined = [] if scratch is None else [position for position in first.writes if position in (5, 6)]
    return Launch(
        Kernel(_SOURCE, expression, guard_texts({epilogue: first.kernel.text, steps: last.kernel.text})),
        (tiles * slices + images * parts * units, 1, 1),
        (tile.threads, 1, 1),
        arguments,
        (3, *joined, 9, 10, 11, 12, 13, *behind),
        tile.ring_nbytes + _TURN_NBYTES,
    )


def _has_kernel(operand: str, tile: MmaTile) -> bool:
    return operand != dtype_row(_FLOAT).cuda or tile in FLOAT_TILES


def _is_whole(first: Launch, made: Slot, x: Slot) -> bool:
    """Return whether all that a convolution of one group makes, dense and channels last, is what is normalised."""
    bias, (_, axes, _, _) = first.arguments[2], read_left(first.arguments[4])  # type: ignore[arg-type]
    is_dense = find_pitch(made) == made.shape[1] and made.offset_bytes % VECTOR_NBYTES == 0
    is_same = (made.buffer, made.offset_bytes, made.shape, made.strides) == (
        x.buffer,
        x.offset_bytes,
        x.shape,
        x.strides,
    )
    is_aligned = not isinstance(bias, Slot) or bias.offset_bytes % (_FOUR * bias.dtype.itemsize) == 0
    return is_dense and is_same and is_aligned and not axes and made.dtype == x.dtype


# Instructions of a thread for a sum that is measured and waits in shared memory, and its wavefronts of 128 bytes; fused
# multiply-adds to merge the runs of a part.
_EACH_MEASURED, _PARK_WAVEFRONTS, _WAVEFRONT_NBYTES = 7.5, 2, 128
_MERGED_RUNS = PART_POSITIONS // _RUN_POSITIONS - 1
_HELD = 260  # blocks that a large device runs at once


@work_of(_SOURCE, "conv_normalized")
def _count_conv_normalized(launch: Launch) -> Work:
    x, w, made, y, packed = (launch.arguments[position] for position in (0, 1, 9, 3, 14))
    assert isinstance(made, Slot) and isinstance(packed, bytes)
    channels, positions, parts, tiles, slices = struct.unpack_from("<5i", packed)
    steps, *types = read_types(launch.kernel)[1][:4]
    tile, has_steps = find_mma_tile(launch), not steps.startswith("NoSteps")
    own_steps = [launch.arguments[16]] if has_steps else []
    conv = replace(
        launch,
        kernel=Kernel(
            "conv_mma.cu", f"{_CONV}<{', '.join([*types, *([steps] if has_steps else [])])}>", launch.kernel.text
        ),
        grid=(tiles, slices, 1),
        arguments=(x, w, launch.arguments[2], made, *launch.arguments[4:_CONV_ARGUMENTS], *own_steps),
        writes=(3,),
    )
    form = find_form(conv.kernel)
    assert form is not None
    work, blocks, sums = form(conv), launch.grid[0] - tiles * slices, tiles * tile.size
    runs_nbytes = 2 * _FLOAT.itemsize * made.spec.size // _RUN_POSITIONS
    statistics_nbytes = 2 * _FLOAT.itemsize * made.shape[0] * channels
    is_parked = 0 if count_type_steps(launch.kernel.text, steps) else _PARK_WAVEFRONTS
    merged = made.shape[0] * (positions // PART_POSITIONS) * ceil_div(channels, WARP)  # warps
    mapped = describe_map(launch, (made, y, *launch.arguments[_OWN_ARGUMENTS:]), blocks, tile.threads)
    return replace(
        work,
        flops=work.flops + mapped.flops,
        instructions=work.instructions + sums / WARP * _EACH_MEASURED,
        multiply_adds=sums / WARP * EACH_MEASURED_FMA + merged * _MERGED_RUNS,
        wavefronts=work.wavefronts + is_parked * sums * _FLOAT.itemsize // _WAVEFRONT_NBYTES,
        l2_nbytes=work.l2_nbytes + 2 * (runs_nbytes + parts * statistics_nbytes) + statistics_nbytes,
        # A turn, two counts and the runs of a part, half of which are waited for; once, the parts of a channel.
        rounds=work.rounds + 4 / 2 + ceil_div(parts, PARTS_TOGETHER) * min(1, _HELD / (tiles * slices)),
        barriers=work.barriers + 3,
        operand_nbytes=dict.fromkeys((5, 6, 10, 11, 12, 13), 0),  # no other command has anything of it
        behind=replace(mapped, registers=work.registers),
    )
