"""Depthwise separable convolutions: a depthwise convolution and one of a single tap behind it, as one launch.

Where both come to two launches, ``conv_depthwise_last`` and a product of what it makes on tensor cores, one of
``conv_separable`` can take their place: it is made of the arguments of both. A product in one slice may take any tile
of one group of warps then, since these add along the inner extent alike; one in slices, or of several groups, keeps its
own. The pass `gpuexec.passes.fuse_separable` makes the operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuexec.ir.command import Command, Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div, round_up
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import join_bytes
from gpuexec.ir.operator import Emitter, Join, operator
from gpuexec.ir.spec import BFLOAT16, dtype_row
from gpuexec.ir.work import SECTOR_BYTES, WARP, Work, work_of
from gpuexec.ops.elementwise.epilogue import STEP_INSTRUCTIONS, count_type_steps, split_epilogue
from gpuexec.ops.lib.slices import FLAT_DEEP_MMA, SMALL_DEEP_MMA, SMALL_GROUP, SMALL_MMA, MmaTile
from gpuexec.ops.lib.strided import pack_fast_div32
from gpuexec.ops.linalg.mma_work import AROUND, LOOP_INSTRUCTIONS, describe_mma, find_mma_tile
from gpuexec.ops.linalg.product import ALONG_K, WIDE_B, read_left, transpose_mma
from gpuexec.ops.linalg.simt_work import read_gemm
from gpuexec.ops.nn.conv_depthwise_last import LAST_FORMS, PackedWindows
from gpuexec.ops.nn.paired import PairedOperators, guard_texts, read_types

_SOURCE, _DEPTHWISE, _PRODUCT = "conv_separable.cu", "conv_depthwise_last", "mma_gemm"
_TILES = (SMALL_MMA, SMALL_DEEP_MMA, FLAT_DEEP_MMA, SMALL_GROUP)
_HALVES = (np.dtype(np.float16), BFLOAT16)
_EXTENTS = tuple(dict.fromkeys(extent for extent, _ in LAST_FORMS))  # of a thread's windows none are side by side


def name_separable(steps: str, types: Sequence[str], tile: MmaTile, extent: int) -> Kernel:
    """Return the kernel.

    Args:
        steps: C++ type of the depthwise convolution's epilogue.
        types: C++ types of the operands, of depthwise sums in front of their steps, and of the product.
        tile: What a block makes of the product.
        extent: Of a row of taps, of `_EXTENTS`.
    """
    return Kernel(_SOURCE, f"conv_separable<{', '.join([steps, *types])}, {tile.name}, {extent}>")


for _type in [dtype_row(dtype).cuda for dtype in _HALVES]:
    instantiate(
        _SOURCE,
        [
            name_separable(f"NoSteps<{_type}>", (_type,) * 3, tile, extent).expression
            for tile in _TILES
            for extent in _EXTENTS
        ],
    )


@operator("SeparableConv", "gpuexec")
@dataclass(frozen=True, slots=True)
class SeparableConv(PairedOperators):
    """A depthwise Conv and a Conv of one tap over what it makes, each perhaps with an epilogue."""

    example = (
        "float16[1,8,4,4] float16[8,1,3,3] float16[16,8,1,1] steps=(('Conv',(('group',8),('pads',(1,1,1,1))),(0,1)),("
        "'Conv',(),(-1,2)))"
    )

    def _prepare_join(self, emit: Emitter, made: Slot) -> Join:
        """Return what makes one launch of two."""
        return join_launches


def join_launches(commands: Sequence[Command]) -> list[list[Command]]:
    """Return the ways to do what commands do with one launch for two; none where these can't be joined.

    Args:
        commands: Of both operators, among them those that pack weights which are computed.
    """
    launches = [each for each in commands if isinstance(each, Launch)]
    firsts = [each for each in launches if read_types(each.kernel)[0] == _DEPTHWISE]
    if len(firsts) != 1 or launches[-1] is not commands[-1] or read_types(launches[-1].kernel)[0] != _PRODUCT:
        return []
    first, last = firsts[0], launches[-1]
    types, its = read_types(first.kernel)[1], read_types(last.kernel)[1]
    epilogue, operands = split_epilogue(first.kernel)
    made = first.arguments[3]
    others = [each for each in commands if each is not first and each is not last]
    assert isinstance(made, Slot)
    second = _turn(last, made)
    if operands or types[0] != its[0] or its[3:5] != [ALONG_K, ALONG_K] or not _is_left_operand(made, second):
        return []
    if not epilogue and types[0] != its[1]:
        return []  # an instance that no operators of one type ask for
    if any(slot.buffer == made.buffer for each in others for slot in (*each.reads_from(), *each.writes_to())):
        return []
    its_tile = find_mma_tile(second)
    is_alike = second.arguments[5] is None and its_tile.groups == 1
    tiles = [tile for tile in _TILES if tile == its_tile or (is_alike and _add_alike(tile, its_tile))]
    return [[*others, _join(first, second, tile, (*types[:2], its[1]), int(types[2]), epilogue)] for tile in tiles]


def _add_alike(tile: MmaTile, other: MmaTile) -> bool:
    """Return whether tiles add the terms of a sum in the same order."""
    return tile.groups == other.groups and tile.is_by_groups == other.is_by_groups


def _join(first: Launch, second: Launch, tile: MmaTile, types: Sequence[str], extent: int, epilogue: str) -> Launch:
    """Return the launch of both by a tile."""
    packed: Any = second.arguments[4]
    (rows, columns, _), *_ = read_left(packed)
    windows = PackedWindows.read(first.arguments[4])
    positions = join_bytes([windows.packed, *[pack_fast_div32(max(1, count)) for count in windows.counts]])
    own = [first.arguments[5]] if epilogue else [bytes(8)]
    kernel = name_separable(epilogue or f"NoSteps<{types[1]}>", types, tile, extent)
    steps, pointers = split_epilogue(second.kernel)
    expression = ", ".join([kernel.expression[:-1], *([steps, *pointers] if steps else [])]) + ">"
    texts = {epilogue: first.kernel.text, steps: second.kernel.text}
    head, rest = second.arguments[1:7], second.arguments[7:]
    before = [first.arguments[0], *head, first.arguments[1], first.arguments[2], positions, *own]
    shift = len(before) - 7  # of what stands behind the arguments of mma_gemm
    return Launch(
        Kernel(_SOURCE, expression, guard_texts(texts)),
        (tile.count(rows, columns), second.grid[1], 1),
        (tile.threads, 1, 1),
        (*before, *rest),
        tuple([position if position < 7 else position + shift for position in second.writes]),
        tile.ring_nbytes,
    )


def _turn(product: Launch, made: Slot) -> Launch:
    """Return the launch of a product, or of the transposed where its right operand is what was made.

    Products in one slice alone: those of few columns are launched as the transposed.
    """
    a, b, c, y, *_ = product.arguments
    packed: Any
    packed, *others = product.arguments[4:]
    assert isinstance(b, Slot) and isinstance(y, Slot)
    if b.buffer != made.buffer or others[0] is not None or read_left(packed)[1]:
        return product
    return replace(product, arguments=(b, a, c, y, transpose_mma(packed, y), *others))


def _is_left_operand(made: Slot, second: Launch) -> bool:
    """Return whether a product's left operand is what was made, as it lies, and its right one is read by vectors."""
    a, packed = second.arguments[0], second.arguments[4]
    (rows, _, inner), axes, strides, wide = read_left(packed)  # type: ignore[arg-type]
    if not isinstance(a, Slot) or a.buffer != made.buffer or a.offset_bytes:
        return False
    is_whole = rows * inner == made.spec.size and inner == made.shape[1] and not axes
    return is_whole and bool(wide & WIDE_B) and strides == (inner, 1)


# Instructions of a thread on sm_90, of half: for a slab apart from its places, and to find one; for a vector that is
# read and widened, and to finish an element beside the steps.
_AROUND_SLAB, _EACH_PLACE, _EACH_READ, _EACH_FINISHED = 40, 45, 15, 5
_LANES = 8  # of a vector of 16 bytes
_REGISTERS = {SMALL_MMA.name: 218, SMALL_DEEP_MMA.name: 160, FLAT_DEEP_MMA.name: 152, SMALL_GROUP.name: 218}


@work_of(_SOURCE, "conv_separable")
def _count_conv_separable(launch: Launch) -> Work:
    rows, columns, inner, *_ = read_gemm(launch)
    x, w, tile = launch.arguments[0], launch.arguments[1], find_mma_tile(launch)
    assert isinstance(x, Slot) and isinstance(w, Slot)
    windows, (_, types) = PackedWindows.read(launch.arguments[9]), read_types(launch.kernel)
    steps = count_type_steps(launch.kernel.text, types[0])
    depth, itemsize = tile.slab_nbytes // x.dtype.itemsize, x.dtype.itemsize
    places = tile.rows * depth // _LANES // tile.threads  # of a thread, in a slab
    # Taps of a row are read once for all places, those of any number for each.
    reads = windows.taps * (places + 1 if types[5] != "0" else 2 * places)
    finished = _LANES * (windows.taps + steps * STEP_INSTRUCTIONS + _EACH_FINISHED)
    loop = LOOP_INSTRUCTIONS[tile.name][0] + _AROUND_SLAB + reads * _EACH_READ + places * (_EACH_PLACE + finished)
    # What a block sees of the image is as good as rectangles: L1 has a place after the first time.
    width = max(1, windows.counts[1])
    lines = min(tile.rows, rows)
    seen = windows.count_seen(min(ceil_div(lines - 1, width) + 1, windows.counts[0]), min(lines, width))
    row_tiles, column_tiles = ceil_div(rows, tile.rows), ceil_div(columns, tile.columns)
    asked = row_tiles * column_tiles * inner * itemsize * (seen + windows.taps)
    asked += row_tiles * round_up(columns, tile.columns) * max(inner * itemsize, SECTOR_BYTES)
    work = describe_mma(launch, loop, asked, AROUND)
    slabs = ceil_div(ceil_div(inner, depth), launch.grid[1])
    made = rows * inner
    return replace(
        work,
        flops=work.flops + made * (2 * windows.taps + steps + (launch.arguments[8] is not None)),
        multiply_adds=row_tiles * column_tiles * tile.rows * round_up(inner, depth) * windows.taps / WARP,
        needed_multiply_adds=work.needed_multiply_adds + made * windows.taps,
        rounds=work.rounds + slabs * windows.kernel[0],
        registers=_REGISTERS[tile.name],
    )
