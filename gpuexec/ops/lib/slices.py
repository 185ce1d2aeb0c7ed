"""Tiles of products and convolutions on the FP32 units, and slices of their inner extent where tiles are few (split-K).

Which tile a launch takes, and into how many slices its inner extent is cut, follows from extents and from the standard
device of the target's architecture (`gpuexec.ir.gpus`) alone, so that all devices of an architecture add in the same
order. The tile is a kernel's and so the same for all sizes of a class; the number of slices is a number of the launch.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from gpuexec.errors import PlanError
from gpuexec.ir.command import Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.gpus import Gpu, find_gpu
from gpuexec.ir.operator import Emitter
from gpuexec.ir.target import Target

SLAB_DEPTH = 16  # kSlabDepth of simt_tile.cuh
MAX_SLICES = 16
MIN_SLABS = 4  # of a slice: adding one up takes the time of about three
# Blocks of all slices, in tenths of a wave: as many as the least, but no more than the most.
_LEAST_TENTHS, _MOST_TENTHS = 9, 39
# A block's time beside that of its slabs, in slabs: for itself, and for each slice that it adds up; and how much longer
# blocks take that are few on their multiprocessor, since nothing else is issued while their warps wait: one, two, more.
_FIXED_SLABS, _SLABS_PER_SLICE, _SLACK = 2.0, 0.5, (1.30, 1.15, 1.08)

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


LARGE_TILE = Tile("LargeTile", 128, 128, 256, 0.88)
SMALL_TILE = Tile("SmallTile", 64, 64, 128, 0.78)
TILES = (LARGE_TILE, SMALL_TILE)


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
        time = _find_time(tiles, ceil_div(inner, SLAB_DEPTH), slices, multiprocessors)
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


def slice_tiles(emit: Emitter, tiles: int, slabs: int, floats: int, blocks_at_once: int = 1) -> Slices:
    """Return the slices of a launch with scratch memory for their sums.

    Buffers are laid out at the upper end of a class. So there is room for what any size needs that has a quarter of the
    upper end's tiles or more; one with fewer tiles, which would take more slices, takes as many as there is room for.
    Room comes in powers of two, so that classes whose plans differ in nothing else need no plans of their own.

    Args:
        emit: Emitter of the launch.
        tiles: Blocks of one slice.
        slabs: The steps of the inner extent that slices are made of.
        floats: Of a tile's sums.
        blocks_at_once: How many blocks fill a multiprocessor.

    Raises:
        PlanError: Slices were fixed at the upper end, and this size has more tiles.
    """
    wave = find_gpu(emit.target.architecture).multiprocessors * blocks_at_once
    room = emit.choose(_find_room(tiles, slabs, wave))
    if not room:
        return ONE_SLICE
    count = emit.divide(max(1, min(count_slices(tiles, slabs, wave), room // max(tiles, 1))))
    if count > 1 and count * tiles > room:
        raise PlanError(f"{tiles} tiles in {count} slices need more room than the {room} of the upper end.")
    # A tile that is in slices has two at least.
    return Slices(count, emit.temp((room * floats,), np.float32), emit.counters(room // 2))


def least_blocks(target: Target, blocks_at_once: int = 1) -> int:
    """Return how many blocks fill the standard device of a target's architecture: 0.9 waves."""
    return ceil_div(_LEAST_TENTHS * find_gpu(target.architecture).multiprocessors * blocks_at_once, 10)


@functools.lru_cache(4096)
def count_slices(tiles: int, slabs: int, wave: int) -> int:
    """Return the number of slices: the fastest of those that leave 0.9 to 3.9 waves of blocks.

    Where none fills 0.9 waves, it is the most that there may be.

    Args:
        tiles: Blocks of one slice.
        slabs: Steps of the inner extent.
        wave: The blocks of a wave.
    """
    if not tiles:
        return 1
    most = max(1, min(MAX_SLICES, slabs // MIN_SLABS, _MOST_TENTHS * wave // (10 * tiles)))
    least = min(most, ceil_div(_LEAST_TENTHS * wave, 10 * tiles))
    return min(range(least, most + 1), key=lambda slices: _find_time(tiles, slabs, slices, wave))


def _find_time(tiles: int, slabs: int, slices: int, wave: int) -> float:
    """Return the time of a launch in slabs: that of the multiprocessor with most blocks."""
    block = _FIXED_SLABS + ceil_div(slabs, slices) + (slices * _SLABS_PER_SLICE if slices > 1 else 0.0)
    at_once = ceil_div(tiles * slices, wave)
    return block * at_once * _SLACK[min(at_once, len(_SLACK)) - 1]


@functools.lru_cache(4096)
def _find_room(tiles: int, slabs: int, wave: int) -> int:
    """Return the most tiles times slices of any number of tiles down to a quarter, rounded up; 0 where none has any."""
    most = min(tiles, _MOST_TENTHS * wave // 20)  # with more tiles there are no two slices
    sizes = {each: count_slices(each, slabs, wave) for each in range(max(ceil_div(tiles, 4), 1), most + 1)}
    room = max((each * slices for each, slices in sizes.items() if slices > 1), default=0)
    return 1 << (room - 1).bit_length() if room else 0
