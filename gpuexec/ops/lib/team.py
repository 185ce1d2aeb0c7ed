"""Teams of threads per row, shared by reductions, softmax and normalisation on a GPU.

A row is what one result is made of. A *team* of ``lanes`` threads (a power of two) works on a row; a block of 256
threads holds ``256 / lanes`` teams. Each lane folds every ``lanes``-th term in order, then the lanes fold in a fixed
tree, so the order of a sum follows from shapes and strides alone. ``reduce.cuh`` is the other half.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuexec.ir.command import Launch, Slot
from gpuexec.ir.geometry import ceil_div, coalesce
from gpuexec.ir.kernel_values import int32
from gpuexec.ir.work import WARP, Work, count_slot_bytes, count_warps
from gpuexec.ops.lib.strided import Walk, join

BLOCK_THREADS = 256
_TERMS_PER_LANE = 4  # below this a lane has too little to read to hide the latency of the fold
_NARROW = 8  # rows side by side that still fill a 32-byte sector of 4-byte elements
_FEW_ROWS = 4096
_LOADS_TOGETHER = 4  # of a lane, in a loop over terms that it does not keep


@dataclass(frozen=True, slots=True)
class Team:
    """The threads that share a row.

    ``lane_stride`` is the distance in threads between two lanes of a team: 1 where the row itself lies dense in memory,
    the number of teams where rows lie side by side. Either way neighbouring threads read neighbouring elements.
    """

    lanes: int
    lane_stride: int

    def grid(self, rows: int) -> tuple[int, int, int]:
        """Return the grid in which every row has a team."""
        return ceil_div(rows, BLOCK_THREADS // self.lanes), 1, 1

    def arguments(self) -> tuple[np.int32, np.int32]:
        """Return the two launch scalars ``lanes, lane_stride``."""
        return int32(self.lanes), int32(self.lane_stride)


def choose_team(terms: int, rows: int, neighbours: int = 1) -> Team:
    """Choose the team for rows of ``terms`` elements.

    Args:
        terms: Elements in a row.
        rows: Number of rows.
        neighbours: Rows that lie side by side in memory; 1 where the elements of a row do.
    """
    lanes = min(BLOCK_THREADS, _power_of_two(ceil_div(terms, _TERMS_PER_LANE)))
    if neighbours <= 1:
        return Team(lanes, 1)
    widest = _NARROW if rows < _FEW_ROWS else 32
    lanes = min(lanes, BLOCK_THREADS // min(widest, _power_of_two(neighbours)))
    return Team(lanes, BLOCK_THREADS // lanes)


def walk_rows(x: Slot, axes: tuple[int, ...]) -> tuple[Walk, Walk]:
    """Return the walk over rows, in the order of their axes, and that over the terms of a row, along some axes."""
    others = [axis for axis in range(x.spec.rank) if axis not in axes]
    shape, strides = coalesce([x.shape[axis] for axis in others], ([x.strides[axis] for axis in others],))
    return Walk(shape, strides), join([x.shape[axis] for axis in axes], ([x.strides[axis] for axis in axes],))


def choose_walking_team(kept: Walk, reduced: Walk) -> Team:
    """Choose the team for rows that are read as they lie."""
    return choose_team(reduced.count, kept.count, _count_neighbours(kept, reduced))


def _count_neighbours(kept: Walk, reduced: Walk) -> int:
    """Return how many rows lie side by side in memory: 1 where the terms of a row lie closer."""
    if not kept.shape:
        return 1
    near = abs(kept.inner_strides[0])
    return kept.shape[-1] if not reduced.shape or 0 < near < abs(reduced.inner_strides[0]) else 1


@dataclass(frozen=True, slots=True)
class RowLoop:
    """Machine code of a lane, about, and the arithmetic of a term.

    Attributes:
        around: Instructions apart from those of terms.
        each: Instructions for a term.
        held: Terms that are kept in registers, and whose loads are under way together.
        flops: Operations for a term.
        folds: Times that the lanes of a team fold their values.
    """

    around: int
    each: int
    held: int
    flops: int
    folds: int = 1


def count_rows(launch: Launch, terms: int, lanes: int, loop: RowLoop, *, flops: int | None = None) -> Work:
    """Return the work of a launch that gives each row of ``terms`` elements to a team.

    A row of more terms than its lanes hold is read twice, by four terms at a time.
    """
    own, tensors = ceil_div(terms, lanes), [*launch.reads_from(), *launch.writes_to()]
    is_held = own <= loop.held
    passes = 1 if is_held else loop.folds
    return Work(
        flops=max((slot.spec.size for slot in tensors), default=0) * loop.flops if flops is None else flops,
        instructions=count_warps(launch) * (loop.around + passes * own * loop.each),
        l2_nbytes=sum(count_slot_bytes(slot) for slot in tensors) + (passes - 1) * count_slot_bytes(tensors[0]),
        rounds=1 if is_held else passes * ceil_div(own, _LOADS_TOGETHER),
        barriers=loop.folds * (2 if lanes > WARP else 1),
        registers=64,
        shared_nbytes=1024,
    )


def _power_of_two(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()
