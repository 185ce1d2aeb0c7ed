"""Tiles of products and convolutions, and slices of their inner extent where tiles are few (split-K).

Which tile a launch takes, and into how many slices its inner extent is cut, follows from extents and from the standard
device of the target's architecture (`gpuexec.ir.gpus`) alone, so that all devices of an architecture add in the same
order. The tile is a kernel's and so the same for all sizes of a class; the number of slices is a number of the launch.

`TILES` are those of the FP32 units, `MMA_TILES` those of tensor cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuexec.errors import PlanError
from gpuexec.ir.command import Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.gpus import Gpu, find_gpu
from gpuexec.ir.operator import Emitter
from gpuexec.ir.symbolic_int import memoize
from gpuexec.ir.target import Target

SLAB_DEPTH = 16  # kSlabDepth of simt_tile.cuh
MAX_SLICES = 16
MIN_SLABS = 4  # of a slice on the FP32 units: adding one up takes the time of about three
# Blocks of all slices, in tenths of a wave: as many as the least, but no more than the most.
_LEAST_TENTHS, _MOST_TENTHS = 9, 39
# A block's time beside that of its slabs, in slabs: for itself, and for each slice that it adds up; and how much longer
# blocks take that are few on their multiprocessor, since nothing else is issued while their warps wait: one, two, more.
_FIXED_SLABS, _SLABS_PER_SLICE, _SLACK = 2.0, 0.5, (1.30, 1.15, 1.08)
# Of tensor cores, cycles that a launch takes to begin, and that a block waits whatever its slabs: for its first fetch;
# for the part of its sums that a thread finishes at a time, 32 of them, and by the bytes of them that leave in a clock;
# to join slices, and for each of them, where so many vectors of a thread's sums are under way together. And cycles from
# an mma of a warp to its next one where a scheduler has no other warp, and those of them that it waits; and the share
# of L2's bandwidth that products get. All from times on an H100 (tests/bench/results), of which half are met within a
# tenth. And instructions of a warp whatever its slabs, by which blocks delay each other.
_MMA_BEGIN_CYCLES, _MMA_FETCH_CYCLES = 700, 2300
_MMA_PART_CYCLES, _MMA_PART, _MMA_STORED_BYTES = 1200, 32, 32
# The same to add up the sums of groups of warps: an estimate, of two barriers and a tile through shared memory.
_MMA_FOLD_CYCLES = 300
_MMA_JOIN_CYCLES, _MMA_SLICE_CYCLES, _MMA_VECTORS = 3400, 550, 16
_MMA_CHAIN_CYCLES, _MMA_WAIT_CYCLES, _MMA_L2_SHARE = 14, 8, 0.7
MMA_AROUND = 500
# Of groups of warps: for the first fetch; from a slab to the next one, and for each column of that (an H100 takes 363
# and 485 cycles by 64 and 128 columns); for each sum that leaves; rows and warps of a group; their share of L2's
# bandwidth.
_GROUP_FETCH_CYCLES, _GROUP_CHAIN_CYCLES, _GROUP_COLUMN_CYCLES, _GROUP_SUM_CYCLES = 600, 240, 1.9, 0.25
_GROUP_ROWS, _GROUP_WARPS, _GROUP_L2_SHARE = 64, 4, 1.2
_MMA_LEAST_NBYTES = 256  # of the inner extent, that a slice has
_L2_BYTES_PER_CLOCK = 64  # of a multiprocessor
_MATRIX_BYTES, _MMA_BYTES, _MMA_PRODUCTS = 512, 32, 2048  # of an ldmatrix; along the inner extent; of an mma of 16 bits
_WAVEFRONT_BYTES, _WARP, _SCHEDULERS = 128, 32, 4

_BEGUN_SLABS = 1.5  # the same for itself, where several products and other launches are weighed against each other


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of ``simt_tile.cuh``.

    Attributes:
        name: Its C++ name.
        rows: Of a block's sums.
        columns: The same.
        threads: Of a block.
        efficiency: The share of multiply-adds in its loop; less where many blocks ask L2 for much.
    """

    name: str
    rows: int
    columns: int
    threads: int
    efficiency: float

    @property
    def size(self) -> int:
        """Elements of the tile, which are the floats of its scratch memory for each slice."""
        return self.rows * self.columns

    def count(self, rows: int, columns: int) -> int:
        """Return the number of tiles of a matrix."""
        return ceil_div(rows, self.rows) * ceil_div(columns, self.columns)


@dataclass(frozen=True, slots=True)
class SliceCosts:
    """Times of a block in slabs, and the fewest slabs of a slice.

    Attributes:
        fixed: Of a block beside its slabs.
        each_slice: Of adding up a slice.
        min_slabs: Of a slice.
        slack: How much longer blocks take, by how many a multiprocessor has; the last of them for more.
        least_tenths: The least blocks of all slices, in tenths of a wave, where there may be as many.
        join: Of a tile in slices, beside that of each.
    """

    fixed: float = _FIXED_SLABS
    each_slice: float = _SLABS_PER_SLICE
    min_slabs: int = MIN_SLABS
    slack: tuple[float, ...] = _SLACK
    least_tenths: int = _LEAST_TENTHS
    join: float = 0.0

    def find_time(self, tiles: int, slabs: int, slices: int, wave: int) -> float:
        """Return the time of a launch in slabs: that of the multiprocessor with most blocks.

        Args:
            tiles: Blocks of one slice.
            slabs: Steps of the inner extent.
            slices: How many there are.
            wave: The blocks of a wave.
        """
        joined = self.join + slices * self.each_slice if slices > 1 else 0.0
        block, at_once = self.fixed + ceil_div(slabs, slices) + joined, ceil_div(tiles * slices, wave)
        return block * at_once * self.slack[min(at_once, len(self.slack)) - 1]


_FP32_COSTS = SliceCosts()


@dataclass(frozen=True, slots=True)
class MmaTile:
    """A tile of ``mma_tile.cuh``.

    Attributes:
        name: Its C++ name.
        rows: Of a block's sums.
        columns: The same.
        slab_nbytes: Bytes of the inner extent of a slab.
        warps_down: Warps along the rows.
        warps_across: Warps along the columns.
        stages: Slabs in the ring.
        registers: Of a thread.
        groups: Of so many warps, each of which takes its share of a slab.
        is_by_groups: Whether four warps multiply 64 rows together, out of shared memory (``group_tile.cuh``).
    """

    name: str
    rows: int
    columns: int
    slab_nbytes: int
    warps_down: int
    warps_across: int
    stages: int
    registers: int
    groups: int = 1
    is_by_groups: bool = False

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return _WARP * self.warps_down * self.warps_across * self.groups

    @property
    def size(self) -> int:
        """Elements of the tile, which are the floats of its scratch memory for each slice."""
        return self.rows * self.columns

    @property
    def fetched_nbytes(self) -> int:
        """Bytes of a slab of both operands."""
        return (self.rows + self.columns) * self.slab_nbytes

    @property
    def ring_nbytes(self) -> int:
        """Dynamic shared memory of a block."""
        return self.stages * self.fetched_nbytes

    @property
    def products(self) -> int:
        """Instructions mma of a block for a slab."""
        return self.rows // 16 * (self.columns // 8) * (self.slab_nbytes // _MMA_BYTES)

    @property
    def matrices(self) -> int:
        """Instructions ldmatrix of a block for a slab: each fetches 16 rows of the left operand, or 16 columns."""
        if self.is_by_groups:
            return 0
        of_warp = self.rows // self.warps_down // 16 + self.columns // self.warps_across // 16
        return self.warps_down * self.warps_across * self.slab_nbytes // _MMA_BYTES * of_warp

    @property
    def slab_wavefronts(self) -> int:
        """Wavefronts of shared memory of a block for a slab: of what is stored, and of fragments, or by each group."""
        by_groups = (
            self.rows // _GROUP_ROWS * (_GROUP_ROWS + self.columns) * self.slab_nbytes if self.is_by_groups else 0
        )
        return (self.fetched_nbytes + self.matrices * _MATRIX_BYTES + by_groups) // _WAVEFRONT_BYTES

    @property
    def warp_products(self) -> float:
        """Instructions mma of a warp for a slab."""
        return self.products * _WARP / self.threads

    @property
    def chain_cycles(self) -> float:
        """Cycles from a slab to the next one where a multiprocessor has no other block."""
        if self.is_by_groups:
            return _GROUP_CHAIN_CYCLES + self.columns * _GROUP_COLUMN_CYCLES
        return self.warp_products * _MMA_CHAIN_CYCLES

    def count_waits(self, slices: int, slabs: int = 0) -> float:
        """Return the cycles that a block waits, the last one of a tile in slices.

        Args:
            slices: How many there are.
            slabs: Of the block, whose warps wait for results between one mma and the next; a scheduler of several
                warps has others meanwhile.
        """
        of_scheduler = max(1, self.threads // (_WARP * _SCHEDULERS))
        waits = float(_GROUP_FETCH_CYCLES if self.is_by_groups else _MMA_FETCH_CYCLES)
        if self.is_by_groups:  # their slabs take what their warps issue meanwhile
            waits += self.size * _GROUP_SUM_CYCLES
        else:
            waits += slabs * self.warp_products / of_scheduler * _MMA_WAIT_CYCLES
        waits += self.size / (self.threads * _MMA_PART) * _MMA_PART_CYCLES
        waits += 4 * self.size / _MMA_STORED_BYTES + (_MMA_FOLD_CYCLES if self.groups > 1 else 0)
        if slices > 1:
            vectors = max(1, _MMA_VECTORS * self.threads * 4 // self.size)
            waits += _MMA_JOIN_CYCLES
            waits += slices * max(self.size * 4 / _L2_BYTES_PER_CLOCK, _MMA_SLICE_CYCLES / vectors)
        return waits

    def count(self, rows: int, columns: int) -> int:
        """Return the number of tiles of a matrix."""
        return ceil_div(rows, self.rows) * ceil_div(columns, self.columns)

    def count_cycles(self, gpu: Gpu, busy: int) -> float:
        """Return the cycles of a multiprocessor for a slab of one block: of the slowest of its pipes.

        Args:
            gpu: Which.
            busy: Multiprocessors that ask L2 at the same time.
        """
        tensor = self.products * _MMA_PRODUCTS / (gpu.group_products if self.is_by_groups else gpu.matrix_products)
        l2_bytes = (
            (_GROUP_L2_SHARE if self.is_by_groups else _MMA_L2_SHARE) * gpu.l2_bytes_per_second / busy / gpu.clock_hertz
        )
        return max(tensor, self.slab_wavefronts, self.fetched_nbytes / min(l2_bytes, _L2_BYTES_PER_CLOCK))


@dataclass(frozen=True, slots=True)
class MmaCosts:
    """Times of a launch by a tile of tensor cores on a GPU, in cycles."""

    tile: MmaTile
    gpu: Gpu
    least_tenths: int = 0  # fewer may be faster than slices that are joined

    @property
    def min_slabs(self) -> int:
        """The fewest slabs of a slice."""
        return max(1, _MMA_LEAST_NBYTES // self.tile.slab_nbytes)

    def find_time(self, tiles: int, slabs: int, slices: int, wave: int) -> float:
        """Return the cycles of a launch: blocks that a multiprocessor holds together wait at the same time.

        Arguments are those of `SliceCosts.find_time`.
        """
        tile, at_once = self.tile, ceil_div(tiles * slices, wave)
        waits = _MMA_BEGIN_CYCLES + tile.count_waits(slices)
        of_slab = tile.count_cycles(self.gpu, max(1, min(tiles * slices, wave)))
        together = max(1, self.gpu.count_blocks(tile.threads, tile.registers, tile.ring_nbytes))
        own, chain = ceil_div(slabs, slices), tile.chain_cycles
        around = MMA_AROUND * tile.threads / (_WARP * _SCHEDULERS)
        # Blocks one after the other in each place for one, or as many slabs as a multiprocessor takes.
        in_turn = max(1.0, at_once / together) * (waits + own * chain)
        return max(in_turn, waits + at_once * own * of_slab) + (at_once - 1) * around


LARGE_TILE = Tile("LargeTile", 128, 128, 256, 0.88)
SMALL_TILE = Tile("SmallTile", 64, 64, 128, 0.78)
TILES = (LARGE_TILE, SMALL_TILE)
LARGE_MMA = MmaTile("LargeMma", 128, 256, 64, 2, 4, 3, 255)
MEDIUM_MMA = MmaTile("MediumMma", 128, 128, 64, 2, 2, 4, 255)
SMALL_MMA = MmaTile("SmallMma", 64, 64, 128, 2, 2, 3, 168)
FLAT_MMA = MmaTile("FlatMma", 16, 64, 256, 1, 2, 4, 192)
MMA_TILES = (LARGE_MMA, MEDIUM_MMA, SMALL_MMA, FLAT_MMA)
# Those of several groups of warps, which kernels have that store sums by `store_product`.
SMALL_DEEP_MMA = MmaTile("SmallDeepMma", 64, 64, 128, 2, 2, 3, 128, groups=2)
FLAT_DEEP_MMA = MmaTile("FlatDeepMma", 16, 64, 256, 1, 2, 4, 128, groups=2)
DEEP_MMA_TILES = (*MMA_TILES, SMALL_DEEP_MMA, FLAT_DEEP_MMA)
# Those of groups of warps, of operands of 16 bits (sm_90a alone), and with them those of few rows.
SMALL_GROUP = MmaTile("SmallGroup", 64, 64, 128, 4, 1, 6, 128, is_by_groups=True)
WIDE_GROUP = MmaTile("WideGroup", 64, 128, 128, 4, 2, 5, 128, is_by_groups=True)
LARGE_GROUP = MmaTile("LargeGroup", 128, 256, 128, 8, 1, 4, 255, is_by_groups=True)
GROUP_TILES = (LARGE_GROUP, WIDE_GROUP, SMALL_GROUP)
GROUP_ARCHITECTURE = 90


@dataclass(frozen=True, slots=True)
class Slices:
    """Slices of a launch, and the last arguments of its kernel; both None where no size of the class has slices."""

    count: int
    scratch: Slot | None
    counters: Slot | None

    def writes(self, result: int, scratch: int, tiles: int) -> list[int]:
        """Return the positions of what the launch writes: the result, the scratch memory and the counters behind it.

        Where there are no tiles it is the result alone, so that the launch of an empty one is dropped.
        """
        return [result] if self.scratch is None or not tiles else [result, scratch, scratch + 1]


# Of sums that are taken in the order of their terms.
ONE_SLICE = Slices(1, None, None)


def choose_tile(emit: Emitter, rows: int, columns: int, inner: int, batch: int = 1) -> Tile:
    """Return the tile that a product takes at all sizes of a class: the faster one at the upper end."""

    def find_time(tile: Tile) -> float:
        tiles = batch * tile.count(rows, columns)
        slices = count_slices(tiles, ceil_div(inner, SLAB_DEPTH), multiprocessors)
        time = _FP32_COSTS.find_time(tiles, ceil_div(inner, SLAB_DEPTH), slices, multiprocessors)
        return time * tile.size / tile.efficiency

    multiprocessors = find_gpu(emit.target.architecture).multiprocessors
    return TILES[emit.choose(min(range(len(TILES)), key=lambda index: find_time(TILES[index])))]


def count_cycles(gpu: Gpu, rows: int, columns: int, inner: int, batch: int) -> float:
    """Return about how many cycles a product takes by the better tile, where operands come as fast as they are used."""

    def count(tile: Tile) -> float:
        tiles, slabs = batch * tile.count(rows, columns), ceil_div(inner, SLAB_DEPTH)
        slices = count_slices(tiles, slabs, gpu.multiprocessors)
        block = _BEGUN_SLABS + ceil_div(slabs, slices) + (slices * _SLABS_PER_SLICE if slices > 1 else 0.0)
        at_once = ceil_div(tiles * slices, gpu.multiprocessors)
        return block * at_once * tile.size * SLAB_DEPTH / (tile.efficiency * gpu.fp32_lanes)

    return min(count(tile) for tile in TILES)


def choose_mma_tile(
    emit: Emitter,
    rows: int,
    columns: int,
    inner_nbytes: int,
    batch: int = 1,
    tiles: Sequence[MmaTile] = MMA_TILES,
) -> MmaTile:
    """Return the tile of tensor cores that a product takes at all sizes of a class: the fastest at the upper end.

    Args:
        emit: Emitter of the launch.
        rows: Of a product.
        columns: The same.
        inner_nbytes: Bytes of a row of the left operand: an mma takes 32 of them, whatever the elements are.
        batch: How many products there are.
        tiles: Those that there are kernels for.
    """

    def find_time(tile: MmaTile) -> float:
        blocks, slabs = batch * tile.count(rows, columns), ceil_div(inner_nbytes, tile.slab_nbytes)
        costs = MmaCosts(tile, gpu)
        slices = count_slices(blocks, slabs, gpu.multiprocessors, costs)
        # Lines behind the last one repeat it, the same for all blocks: a convolution into 64 channels took an H100
        # three times as long by 128 columns as by 64.
        wasted = 1 - batch * rows * columns / (blocks * tile.size) if blocks else 0.0
        return costs.find_time(blocks, slabs, slices, gpu.multiprocessors) * (1 + wasted)

    gpu = find_gpu(emit.target.architecture)
    return tiles[emit.choose(min(range(len(tiles)), key=lambda index: find_time(tiles[index])))]


def slice_mma_tiles(emit: Emitter, tile: MmaTile, tiles: int, inner_nbytes: int) -> Slices:
    """Return the slices of a launch by a tile of tensor cores; see `slice_tiles`."""
    costs = MmaCosts(tile, find_gpu(emit.target.architecture))
    return slice_tiles(emit, tiles, ceil_div(inner_nbytes, tile.slab_nbytes), tile.size, costs=costs)


def slice_tiles(
    emit: Emitter,
    tiles: int,
    slabs: int,
    floats: int,
    blocks_at_once: int = 1,
    costs: SliceCosts | MmaCosts = _FP32_COSTS,
    *,
    is_fixed: bool = False,
) -> Slices:
    """Return the slices of a launch with scratch memory for their sums.

    Buffers are laid out at the upper end of a class. So there is room for what any size needs that has a quarter of the
    upper end's tiles or more; one with fewer tiles, which would take more slices, takes as many as there is room for.
    Room comes in powers of two, so that classes whose plans differ in nothing else need no plans of their own. A plan
    for one size has the room that this one needs.

    Args:
        emit: Emitter of the launch.
        tiles: Blocks of one slice.
        slabs: The steps of the inner extent that slices are made of.
        floats: Of a tile's sums.
        blocks_at_once: How many blocks fill a multiprocessor.
        costs: Times of a block.
        is_fixed: Whether there are as many at all sizes of a class as at its upper end: a kernel that leaves out slices
            without a slab is launched alike at each of them.

    Raises:
        PlanError: Slices were fixed at the upper end, and this size has more tiles.
    """
    wave = find_gpu(emit.target.architecture).multiprocessors * blocks_at_once
    if is_fixed:
        count = emit.choose(lambda: count_slices(tiles, slabs, wave, costs))
        room = emit.choose(lambda: tiles * count if count > 1 else 0)
        return _reserve_slices(emit, tiles, count, room, floats) if room else ONE_SLICE
    slices = count_slices(tiles, slabs, wave, costs)
    of_one_size = tiles * slices if slices > 1 else 0
    room = emit.choose(lambda: of_one_size if emit.has_one_size else _find_room(tiles, slabs, wave, costs))
    if not room:
        return ONE_SLICE
    return _reserve_slices(emit, tiles, emit.divide(max(1, min(slices, room // max(tiles, 1)))), room, floats)


def _reserve_slices(emit: Emitter, tiles: int, count: int, room: int, floats: int) -> Slices:
    """Return so many slices with scratch memory for ``room`` of them, of all tiles."""
    if count > 1 and count * tiles > room:
        raise PlanError(f"{tiles} tiles in {count} slices need more room than the {room} of the upper end.")
    # A tile that is in slices has two at least.
    return Slices(count, emit.temp((room * floats,), np.float32), emit.counters(room // 2))


def least_blocks(target: Target, blocks_at_once: int = 1) -> int:
    """Return how many blocks fill the standard device of a target's architecture: 0.9 waves."""
    return ceil_div(_LEAST_TENTHS * find_gpu(target.architecture).multiprocessors * blocks_at_once, 10)


@memoize(4096)
def count_slices(tiles: int, slabs: int, wave: int, costs: SliceCosts | MmaCosts = _FP32_COSTS) -> int:
    """Return the number of slices: the fastest of those that leave at most 3.9 waves of blocks.

    On the FP32 units they leave 0.9 waves at least, or as many blocks as there may be. Where tensor cores wait for
    slices to join, fewer blocks may be faster.

    Args:
        tiles: Blocks of one slice.
        slabs: Steps of the inner extent.
        wave: The blocks of a wave.
        costs: Times of a block.
    """
    if not tiles:
        return 1
    most = max(1, min(MAX_SLICES, slabs // costs.min_slabs, _MOST_TENTHS * wave // (10 * tiles)))
    least = max(1, min(most, ceil_div(costs.least_tenths * wave, 10 * tiles)))
    return min(range(least, most + 1), key=lambda slices: costs.find_time(tiles, slabs, slices, wave))


@memoize(4096)
def _find_room(tiles: int, slabs: int, wave: int, costs: SliceCosts | MmaCosts) -> int:
    """Return the most tiles times slices of any number of tiles down to a quarter, rounded up; 0 where none has any."""
    most = min(tiles, _MOST_TENTHS * wave // 20)  # with more tiles there are no two slices
    sizes = {each: count_slices(each, slabs, wave, costs) for each in range(max(ceil_div(tiles, 4), 1), most + 1)}
    room = max((each * slices for each, slices in sizes.items() if slices > 1), default=0)
    return 1 << (room - 1).bit_length() if room else 0
