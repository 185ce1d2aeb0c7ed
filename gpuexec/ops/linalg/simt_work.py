"""Work of products of float on the FP32 units: closed forms of tiles, slices, and few rows.

`gpuexec.ops.linalg.product` packs what is read here; convolutions share the tiles. Figures of machine code are
those of sm_90; other architectures differ by little.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from math import prod

from gpuexec.ir.command import Launch, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.work import SECTOR_BYTES, WARP, Work, count_slot_bytes, count_warps, work_of
from gpuexec.ops.elementwise.epilogue import STEP_INSTRUCTIONS, count_epilogue_steps
from gpuexec.ops.linalg.product import WIDE_A, WIDE_B, WIDE_Y, read_sizes
from gpuexec.ops.linalg.simt_launch import find_gemv_width

_DEPTH = 16  # kSlabDepth of simt_tile.cuh
_AROUND, _EACH_SUM = 400, 4  # instructions of a thread apart from slabs: in all, and to scale and store a sum
_EACH_SLICE = 1.5  # instructions of a thread to add up a sum of a slice
JOIN_ROUNDS = 3  # waits of the last block of a tile beside those for slices: its counter, and what it wrote


@dataclass(frozen=True, slots=True)
class TileCode:
    """A tile of ``simt_tile.cuh`` and its machine code.

    Attributes:
        rows: Of a block's sums.
        columns: The same.
        threads: Of a block.
        instructions: Of a thread for a slab whose operands are copied 16 bytes at a time.
        elements: More, for each operand that is copied four bytes at a time.
        either: The same of a loop that has copies of 16 bytes, too.
        patches: More, where the right operand is gathered: of 16 channels of a tap, and of four.
        read_wavefronts: Of a block, to read a slab: four floats of each lane take two, two floats take one.
        first_wavefronts: Of a block, for what it reads before the loop.
        ahead: Slabs that are under way while one is multiplied.
        shared_nbytes: Of a block.
    """

    rows: int
    columns: int
    threads: int
    instructions: int
    elements: int
    either: int
    patches: tuple[int, int]
    read_wavefronts: int
    first_wavefronts: int
    ahead: int
    shared_nbytes: int

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.threads // WARP

    @property
    def sums(self) -> int:
        """Sums of a thread."""
        return self.rows * self.columns // self.threads


_TILES = {
    "LargeTile": TileCode(128, 128, 256, 1155, 25, 50, (40, 52), 8 * (16 * 4 + 8 * 8), 8 * (4 + 8), 1, 37376),
    "SmallTile": TileCode(64, 64, 128, 602, 20, 27, (27, 46), 4 * (16 * 4 + 4 * 4 * 2), 4 * (4 + 4 * 2), 3, 37888),
}
_REGISTERS = 128
# Instructions of a thread for a slab, more where weights are narrow: by the bytes of one, for a loader that takes
# vectors; and more where it takes single weights.
WIDENING, _NARROW_ELEMENTS = {2: 33, 1: 50}, 20


def find_tile_code(launch: Launch) -> TileCode:
    """Return the tile that a launch names in its expression."""
    return next(code for name, code in _TILES.items() if f"<{name}" in launch.kernel.expression)


@dataclass(frozen=True, slots=True)
class SlicedTiles:
    """Tiles of a launch and the slices that the slabs of their inner extents are cut into.

    ``slabs`` are those of all tiles together, ``longest`` those of the tile that has most.
    """

    code: TileCode
    tiles: int
    slices: int
    slabs: int
    longest: int

    def describe(
        self, launch: Launch, terms: int, operand_nbytes: float, *, more: float = 0.0, is_wide: bool = True
    ) -> Work:
        """Return the work of a launch whose arguments end with y, the struct, scratch and counters, and an epilogue.

        Args:
            launch: The launch.
            terms: Multiply-adds that the results need.
            operand_nbytes: Bytes of sectors that all blocks ask for, of both operands.
            more: Instructions of a thread for a slab beyond those of the loop with wide copies.
            is_wide: Whether results are stored 16 bytes at a time.
        """
        code, y, steps = self.code, launch.arguments[3], count_epilogue_steps(launch)
        assert isinstance(y, Slot)
        blocks, is_joined, scratch = self.tiles * self.slices, self.slices > 1, find_scratch(launch)
        partial_nbytes = 4 * blocks * code.rows * code.columns if is_joined else 0
        own_slabs = ceil_div(self.longest, self.slices)
        of_sum = _EACH_SUM + steps * STEP_INSTRUCTIONS + (self.slices * _EACH_SLICE if is_joined else 0)
        of_blocks = blocks * (_AROUND + (code.sums / 4 if is_joined else 0)) + self.tiles * code.sums * of_sum
        stored = self.slabs * _DEPTH * (code.rows + code.columns) // WARP
        beside = sum(count_slot_bytes(each) for each in list_beside(launch, scratch))
        return Work(
            flops=2 * terms + y.spec.size * steps,
            instructions=code.warps * (self.slabs * (code.instructions + more) + of_blocks),
            multiply_adds=code.warps * self.slabs * code.sums * _DEPTH,
            needed_multiply_adds=terms,
            wavefronts=self.slabs * code.read_wavefronts + blocks * code.first_wavefronts + stored,
            l2_nbytes=operand_nbytes + y.spec.nbytes * (1 if is_wide else 4) + 2 * partial_nbytes + beside,
            rounds=ceil_div(own_slabs, code.ahead) + 1 + (self.slices / 2 + JOIN_ROUNDS if is_joined else 0),
            barriers=own_slabs + 1,
            registers=_REGISTERS,
            shared_nbytes=code.shared_nbytes,
            operand_nbytes={scratch: 0, scratch + 1: 0},  # no other command has anything of it
        )


@work_of("simt_gemm.cu", "simt_gemm", "simt_gemm_narrow")
def _count_simt_gemm(launch: Launch) -> Work:
    rows, columns, inner, batch, wide, _ = read_gemm(launch)
    itemsize = find_itemsize(launch, 1)
    code, tiles, slabs = find_tile_code(launch), launch.grid[0], ceil_div(inner, _DEPTH)
    left = rows * _count_asked(launch, 0) * ceil_div(columns, code.columns)
    right = columns * _count_asked(launch, 1) * ceil_div(rows, code.rows)
    if itemsize == 4:
        more = code.either * ((not wide & WIDE_A) + (not wide & WIDE_B))
    else:  # both by vectors, or both by elements
        has_vectors = wide & (WIDE_A | WIDE_B) == WIDE_A | WIDE_B
        more = WIDENING[itemsize] + (0 if has_vectors else code.elements + _NARROW_ELEMENTS)
    sliced = SlicedTiles(code, tiles, launch.grid[1], tiles * slabs, slabs)
    terms = batch * rows * columns * inner
    return sliced.describe(launch, terms, batch * inner * (left + right), more=more, is_wide=bool(wide & WIDE_Y))


_GEMV_WARPS, _GEMV_COLUMNS = 8, 4  # of a block; of a warp or thread
# Instructions of a lane for a weight of one row, by its bytes, for each row more, and more where they come one by one.
_EACH_WEIGHT, _EACH_ROW, _EACH_SINGLE = {4: 2.4, 2: 2.9, 1: 4.9}, 1.45, 4.0


@work_of("gemv.cu", "gemv_along_k", "gemv_along_columns", "gemv_along_k_narrow", "gemv_along_columns_narrow")
def _count_gemv(launch: Launch) -> Work:
    rows, columns, inner, batch, wide, lanes = read_gemm(launch)
    match = re.search(r"<(\d)", launch.kernel.expression)
    assert match is not None
    together, slices = int(match[1]), launch.grid[1]
    row_blocks, blocks = launch.grid[2], prod(launch.grid)
    is_along_k = launch.kernel.expression.startswith("gemv_along_k")
    itemsize = find_itemsize(launch, 1)
    own = find_gemv_width(itemsize, together, is_along_k=is_along_k)  # k or columns of a lane
    block_columns = _GEMV_WARPS // lanes * _GEMV_COLUMNS if is_along_k else own * lanes
    is_wide = wide & (WIDE_A | WIDE_B) == WIDE_A | WIDE_B if is_along_k else bool(wide & WIDE_B)
    width = own if is_wide else 1
    if is_along_k:  # terms of a warp, and those that are under way together
        terms, ahead = inner / (slices * lanes), WARP * width * (2 if together <= 4 else 1)
    else:
        terms, ahead = inner / slices / (_GEMV_WARPS * WARP // lanes), (8 if together <= 4 else 4) if is_wide else 1
    weights = batch * columns * inner * row_blocks
    each = _EACH_WEIGHT[itemsize] + _EACH_ROW * (together - 1) + (0 if is_wide else _EACH_SINGLE)
    results, steps, scratch = batch * rows * columns, count_epilogue_steps(launch), find_scratch(launch)
    joined = 4 * blocks * together * block_columns if slices > 1 else 0
    read = ceil_div(blocks, slices) * together * inner * 4 + weights * itemsize
    beside = sum(count_slot_bytes(a) for a in list_beside(launch, scratch))
    return Work(
        flops=2 * results * inner + results * steps,
        instructions=weights / WARP * each
        + count_warps(launch) * (_AROUND + _GEMV_COLUMNS * steps * STEP_INSTRUCTIONS),
        multiply_adds=weights / WARP * together,
        needed_multiply_adds=results * inner,
        l2_nbytes=read + results * 4 + 2 * joined + beside,
        rounds=ceil_div(int(terms), ahead) + 1 + (slices / 4 + JOIN_ROUNDS if joined else 0),
        barriers=1,
        registers=72 if together <= 2 else 128,
        shared_nbytes=_GEMV_WARPS * together * 4 * (_GEMV_COLUMNS if is_along_k else WARP * own),
        operand_nbytes={scratch: 0, scratch + 1: 0},
    )


def read_gemm(launch: Launch) -> tuple[int, int, int, int, int, int]:
    """Return rows, columns, inner extent, batch, operands that are wide, and lanes of the struct ``SimtGemm``."""
    packed = launch.arguments[4]
    assert isinstance(packed, bytes)
    sizes = read_sizes(packed)
    return sizes.rows, sizes.columns, sizes.inner, sizes.batch, sizes.wide, sizes.lanes


def _count_asked(launch: Launch, operand: int) -> int:
    """Return the bytes asked of L2 for an element of an operand: a sector where none lies beside another."""
    packed = launch.arguments[4]
    assert isinstance(packed, bytes)
    strides = struct.unpack_from("<4q", packed, 16)[2 * operand : 2 * operand + 2]
    return find_itemsize(launch, operand) if 1 in strides or 0 in strides else SECTOR_BYTES


def find_itemsize(launch: Launch, position: int) -> int:
    """Return the bytes of an element of an argument."""
    slot = launch.arguments[position]
    assert isinstance(slot, Slot)
    return slot.dtype.itemsize


def find_scratch(launch: Launch) -> int:
    """Return the position of scratch memory, in front of the counters."""
    return next(index for index, each in enumerate(launch.arguments) if isinstance(each, bytes)) + 1


def list_beside(launch: Launch, scratch: int) -> list[Slot]:
    """Return the operands beside the first two that are read: an addend, and those of an epilogue."""
    arguments = enumerate(launch.arguments)
    return [a for i, a in arguments if isinstance(a, Slot) and i not in (0, 1, 3, scratch, scratch + 1)]
