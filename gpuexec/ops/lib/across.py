"""Tiles of ``across.cuh``: of two axes, of which one operand lies closely along the one and another along the other."""

from __future__ import annotations

import struct

from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.kernel_values import join_bytes, pack_struct
from gpuexec.ops.lib.strided import pack_fast_div32

TILE_THREADS, TILE_STAGED = 256, 1536  # kTileThreads and kTileStaged of across.cuh
ACROSS_TILE_BYTES = 40  # sizeof(AcrossTile)
MIN_TILED_ELEMENTS = 256  # of two axes: with less a tile would stand three quarters empty
_TILE_SHIFT, _SIDE_SHIFT = 10, 5  # of a staged tile, and half of it: a square one
_MOST_SHIFT = 8  # a side is at most kTileThreads
_SQUARES_SHIFT = 8  # a thread has a square
SQUARES_INNER, SQUARES_ACROSS = 4, 8  # of a warp along each axis
_MOST_TILES = 2**31 - 1  # of a grid
_BANKS, _BANK_BYTES = 32, 4  # of shared memory
_LANES = struct.Struct("<24xi")


def can_take_squares(inner: int, across: int, lanes: int) -> bool:
    """Return whether two axes are divided into squares of some lanes, of which half a warp's lie beside one another."""
    if lanes == 1 or inner % lanes or across % lanes:
        return False
    return 2 * inner >= SQUARES_INNER * lanes and 2 * across >= SQUARES_ACROSS * lanes


def divide_across(inner: int, across: int, lanes: int, itemsize: int) -> tuple[bytes, int]:
    """Return the bytes of ``AcrossTile``, and the number of tiles.

    Args:
        inner: Extent of the axis along which is written.
        across: Extent of the other.
        lanes: Of a side of a thread's square; 1: tiles are staged.
        itemsize: Bytes of an element that is staged.
    """
    pitch = 0
    if lanes == 1:
        shift = _TILE_SHIFT - _ceil_log2(across) if across < 1 << _SIDE_SHIFT else _SIDE_SHIFT
        shift = min(shift, _ceil_log2(inner))
        shift = max(_TILE_SHIFT - _MOST_SHIFT, min(shift, _MOST_SHIFT))
        across_shift = _TILE_SHIFT - shift
        pitch = _find_pitch(1 << shift, 1 << across_shift, itemsize)
    else:
        shift = _SQUARES_SHIFT // 2
        if across <= SQUARES_ACROSS * lanes:
            shift = _SQUARES_SHIFT - _ceil_log2(SQUARES_ACROSS)
        elif inner <= 2 * SQUARES_INNER * lanes:
            shift = _ceil_log2(SQUARES_INNER) + (inner > SQUARES_INNER * lanes)
        across_shift = _SQUARES_SHIFT - shift
    inner_tiles, across_tiles = ceil_div(inner, lanes << shift), ceil_div(across, lanes << across_shift)
    # What no grid holds is refused with the launch.
    divisors = [pack_fast_div32(max(1, min(tiles, _MOST_TILES))) for tiles in (inner_tiles, across_tiles)]
    packed = pack_struct("<4i", lanes, shift, across_shift, pitch)
    return join_bytes((*divisors, packed)), inner_tiles * across_tiles


def _find_pitch(inner: int, across: int, itemsize: int) -> int:
    """Return the elements from row to row of a staged tile, by which neighbours along both axes are in other banks."""
    banks = _BANKS * _BANK_BYTES // max(_BANK_BYTES, itemsize)
    if across < banks:  # rows of a warp take their parts of the banks one after the other
        return inner + banks // across
    per_word = max(1, _BANK_BYTES // itemsize)
    return (inner // per_word | 1) * per_word


def read_lanes(packed: bytes) -> int:
    """Return the lanes of what begins with the bytes of ``AcrossTile``; 0 where there are no tiles."""
    (lanes,) = _LANES.unpack_from(packed)
    return int(lanes)


def _ceil_log2(extent: int) -> int:
    return (extent - 1).bit_length() if extent > 0 else 0
