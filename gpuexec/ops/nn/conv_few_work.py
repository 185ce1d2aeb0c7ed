"""Work of convolutions of few channels on tensor cores: closed form of their launch.

`gpuexec.ops.nn.conv_few` packs what is read here. Figures of machine code are those of sm_90.
"""

from __future__ import annotations

import re
import struct
from dataclasses import replace

from gpuexec.ir.command import Launch, Slot
from gpuexec.ir.geometry import ceil_div, round_up
from gpuexec.ir.work import SECTOR_BYTES, WARP, Work, work_of
from gpuexec.ops.lib.windows import Windows
from gpuexec.ops.linalg.mma_work import describe_mma_tiles, waits_in_memory
from gpuexec.ops.linalg.product import WIDE_Y
from gpuexec.ops.linalg.simt_work import read_gemm
from gpuexec.ops.nn.conv_few import TILE

_GEMM_NBYTES, _ROWS, _DIVISORS = 320, "<15i", "<21I"  # sizeof(SimtGemm), and what stands behind it in FewConv
_Y_ROW = 64  # where SimtGemm has the stride of rows of the result
_AROUND = 800  # instructions of a thread apart from slabs and sums: it finds which taps of its line are inside
# Instructions of a warp for a slab beside mma and ldmatrix: for all else, for an element that it reads alone and makes
# part of a chunk, and for a vector of 16 bytes.
_LOOP, _EACH_ELEMENT, _EACH_VECTOR = 50, 8.0, 9.0
_VECTOR_NBYTES, _PLACE_NBYTES, _WAVEFRONT_NBYTES, _PLACE_WAVEFRONTS = 16, 8, 128, 2


@work_of("conv_few.cu", "conv_few")
def _count_conv_few(launch: Launch) -> Work:
    rows, columns, inner, batch, wide, _ = read_gemm(launch)
    x, w, packed, y = launch.arguments[0], launch.arguments[1], launch.arguments[4], launch.arguments[3]
    assert isinstance(x, Slot) and isinstance(w, Slot) and isinstance(packed, bytes) and isinstance(y, Slot)
    windows = _read_windows(packed)
    width = int(re.findall(r", (\d+)", launch.kernel.expression)[0])
    itemsize, depth = w.dtype.itemsize, TILE.slab_nbytes // w.dtype.itemsize
    row_tiles, column_tiles = ceil_div(rows, TILE.rows), ceil_div(columns, TILE.columns)
    # Taps see much the same places: L1 has them after the first.
    seen = min(windows.count_seen(min(TILE.rows, rows)) * x.shape[1], TILE.rows * inner) * x.dtype.itemsize
    weights = columns * round_up(inner * itemsize, SECTOR_BYTES)
    asked = batch * row_tiles * (column_tiles * seen + weights)
    own = TILE.rows * depth // TILE.threads  # elements of a thread and slab
    loop = _LOOP + own * (_EACH_ELEMENT if width == 1 else _EACH_VECTOR * x.dtype.itemsize / _VECTOR_NBYTES)
    (y_row,) = struct.unpack_from("<q", packed, _Y_ROW)
    # Eight rows of a warp lie side by side in each column of a row-major result.
    written = 1 if wide & WIDE_Y else max(1, 4 // y.dtype.itemsize) if y_row == 1 else 4
    work = describe_mma_tiles(
        launch, (batch * rows * columns, inner, inner * itemsize), loop, asked, _AROUND, written=written,
        is_parked=waits_in_memory(launch, wide, columns),
    )  # fmt: skip
    slabs, slices = ceil_div(inner, depth), launch.grid[1]
    listed = slabs * depth // width * _PLACE_NBYTES // _WAVEFRONT_NBYTES
    read = slabs * own // width * (TILE.threads // WARP) * _PLACE_WAVEFRONTS
    return replace(
        work,
        flops=work.flops + (y.spec.size if launch.arguments[2] is not None else 0),
        wavefronts=work.wavefronts + launch.grid[0] * (slices * listed + read),
        rounds=work.rounds + min(ceil_div(slabs, slices), TILE.stages),  # the first slabs are fetched one by one
        barriers=work.barriers + 1,
        registers=168,
    )


def _read_windows(packed: bytes) -> Windows:
    """Return the windows of a launch along three axes."""
    fields = struct.unpack_from(_ROWS, packed, _GEMM_NBYTES)
    extents, steps, dilations, starts, _ = (fields[first : first + 3] for first in range(0, 15, 3))
    divisors = struct.unpack_from(_DIVISORS, packed, _GEMM_NBYTES + struct.calcsize(_ROWS))[::3]
    begins = tuple(-start for start in starts)
    return Windows(extents, divisors[4:7], steps, dilations, begins, begins, divisors[1:4])
