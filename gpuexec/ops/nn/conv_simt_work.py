"""Work of convolutions of float by tiles and of depthwise ones: closed forms of their launches.

`gpuexec.ops.nn.conv_simt` and `gpuexec.ops.nn.conv_depthwise` pack what is read here. Figures of machine code are those
of sm_90.
"""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from math import prod

from gpuexec.ir.command import Launch, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.work import WARP, Work, count_slot_bytes, count_warps, work_of
from gpuexec.ops.elementwise.epilogue import STEP_INSTRUCTIONS, count_epilogue_steps
from gpuexec.ops.lib.windows import Windows
from gpuexec.ops.linalg.simt_work import WIDENING, SlicedTiles, find_itemsize, find_tile_code

_HEAD, _COUNT, _PHASES, _PHASE = (
    "<16i",
    112,
    128,
    "<10i12I2q",
)  # of SimtConv, where their number and its phases stand, and one of them
_SLAB = 16  # kSlabDepth of simt_tile.cuh
# Of conv_depthwise.cu: instructions of a thread around, to bring a place of the input, for an output and for a tap.
_AROUND, _EACH_PLACE, _EACH_OUTPUT, _EACH_TAP = 300, 12, 20, 1.7
_OUTPUTS_TOGETHER = 8  # of a thread


@work_of("conv_simt.cu", "simt_conv", "simt_conv_transpose", "simt_conv_narrow", "simt_conv_transpose_narrow")
def _count_simt_conv(launch: Launch) -> Work:
    x, y, packed = launch.arguments[0], launch.arguments[3], launch.arguments[4]
    assert isinstance(x, Slot) and isinstance(y, Slot) and isinstance(packed, bytes)
    batch, groups, channels, outs, *axes = struct.unpack_from(_HEAD, packed)
    extents, steps, dilations = (tuple(axes[first : first + 3]) for first in (0, 3, 6))
    count, _, has_positions = struct.unpack_from("<3i", packed, _COUNT)
    code, block, weight_nbytes = find_tile_code(launch), _find_block(launch), find_itemsize(launch, 1)
    terms = slabs = longest = 0
    is_ragged = False
    asked = 0.0
    for number in range(count):
        fields = struct.unpack_from(_PHASE, packed, _PHASES + number * struct.calcsize(_PHASE))
        inner, starts, kernel, counts = fields[3], fields[4:7], fields[7:10], fields[13:22:3]
        windows, is_ragged = batch * prod(counts), prod(counts) % 4 != 0
        row_tiles, column_tiles = ceil_div(outs, code.rows), ceil_div(windows, code.columns)
        tiles = groups * row_tiles * column_tiles
        slabs, longest = slabs + tiles * ceil_div(inner, _SLAB), max(longest, ceil_div(inner, _SLAB))
        begins = tuple(-start for start in starts)
        plane = Windows(extents, kernel, steps, tuple(abs(each) for each in dilations), begins, begins, counts)
        # Taps of a channel see much the same places: L1 has them after the first.
        seen = plane.count_seen(min(code.columns, max(prod(counts), 1))) * channels
        asked += groups * column_tiles * (weight_nbytes * outs * inner + 4 * row_tiles * seen)
        terms += groups * outs * windows * channels * prod(kernel)
    bias = y.spec.size if launch.arguments[2] is not None else 0
    more = {1: 0 if has_positions else code.elements, 16: code.patches[0], 4: code.patches[1]}[block]
    more += WIDENING.get(weight_nbytes, 0)
    sliced = SlicedTiles(code, launch.grid[0], launch.grid[1], slabs, longest)
    is_wide = "transpose" not in launch.kernel.expression and not is_ragged
    work = sliced.describe(launch, terms, asked, more=more, is_wide=is_wide)
    # Sums pass through shared memory, so that neighbours are stored together.
    stored = 2 * launch.grid[0] * code.rows * code.columns // WARP
    return replace(work, flops=work.flops + bias, wavefronts=work.wavefronts + stored)


def _find_block(launch: Launch) -> int:
    """Return the channels of a tap that lie together, 1 for windows copied four at a time."""
    match = re.search(r"Tile, (\d+)", launch.kernel.expression)
    assert match is not None
    return int(match[1])


@work_of("conv_depthwise.cu", "conv_depthwise")
def _count_depthwise(launch: Launch) -> Work:
    x, y, packed = launch.arguments[0], launch.arguments[3], launch.arguments[4]
    assert isinstance(x, Slot) and isinstance(y, Slot) and isinstance(packed, bytes)
    taps = prod(struct.unpack_from("<2i", packed, 32))
    steps, outputs = count_epilogue_steps(launch), y.spec.size
    each = _EACH_OUTPUT + taps * _EACH_TAP + steps * STEP_INSTRUCTIONS
    own = ceil_div(outputs, max(1, prod(launch.grid) * prod(launch.block)))
    bias = outputs if launch.arguments[2] is not None else 0
    return Work(
        flops=2 * taps * outputs + bias + steps * outputs,
        instructions=count_warps(launch) * _AROUND + (outputs * each + x.spec.size * _EACH_PLACE) / WARP,
        multiply_adds=taps * outputs / WARP,
        needed_multiply_adds=taps * outputs,
        wavefronts=(outputs * (taps / 2 + 3) + x.spec.size) / WARP,
        l2_nbytes=sum(count_slot_bytes(slot) for slot in (*launch.reads_from(), *launch.writes_to())),
        rounds=2 + ceil_div(own, _OUTPUTS_TOGETHER),
        barriers=4,
        registers=64,
        shared_nbytes=4 * (4096 + 2112 + 512),
    )
