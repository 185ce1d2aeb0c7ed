"""Memory requests of warps by source line, as count mode of the simulator counts them.

A request is what the lanes of a warp access by one instruction, in lockstep; ``kernels/simulator/count.h`` says how
accesses become requests. Counted are the sectors of 32 bytes of global memory and the wavefronts of shared memory (32
banks of 4 bytes) that requests take. Not counted are arithmetic, which is plain code of the host compiler's, kernel
arguments, variables and constants of the module, and what a thread keeps on its stack.

The figures are exact but for these:

- Lanes that skip an access in some trips of a loop without a barrier are paired by number, not by trip.
- The host compiler decides what one access is. Vectors are read and written whole by g++, but for a constructor written
  straight to memory (``y[i] = float4{...}``; ``make_float4`` stays whole); clang++ takes copies of vectors apart.
  A struct copied whole counts as the widest accesses that its size allows, at most 16 bytes.
- Lanes that want one address atomically are one transaction. Wavefronts of accesses of 8 and 16 bytes are those of
  halves and quarters of a warp, also where the device reads one address for all at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from gpuexec.devices.simulator.findings import Place
from gpuexec.devices.simulator.library import CountsStruct, CountStruct, Extent
from gpuexec.ir.gpus import find_gpu
from gpuexec.ir.target import Target

Space = Literal["global", "shared"]
SPACES: tuple[Space, ...] = get_args(Space)
_WRITE, _ATOMIC = 1, 2
_WARP = 32
_MOST_ROWS = 4096


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Requests of warps and what they take.

    ``lanes`` made an access in them; ``nbytes`` are the bytes asked for, one that several lanes of a request ask for
    once. ``transactions`` are sectors of global memory, or wavefronts of shared memory; ``least`` are as many as those
    bytes fill, request by request (in shared memory by halves of a warp for accesses of 8 bytes, by quarters for 16).
    """

    requests: int = 0
    lanes: int = 0
    nbytes: int = 0
    transactions: int = 0
    least: int = 0

    def __add__(self, other: RequestCounts) -> RequestCounts:
        return RequestCounts(
            self.requests + other.requests,
            self.lanes + other.lanes,
            self.nbytes + other.nbytes,
            self.transactions + other.transactions,
            self.least + other.least,
        )

    @property
    def ratio(self) -> float:
        """Transactions of one of the least; 1 where nothing was asked for."""
        return self.transactions / self.least if self.least else 1.0

    @property
    def lanes_off(self) -> float:
        """Share of lanes that made no access in a request, from 0 to 1."""
        return 1 - self.lanes / (_WARP * self.requests) if self.requests else 0.0


@dataclass(frozen=True, slots=True)
class LineCounts:
    """Requests of one kind made by a source line.

    ``places`` are file and line, and those that the code was inlined into, innermost first; empty without a
    symbolizer. ``access`` is ``"read"``, ``"write"`` or ``"atomic"``, by ``width`` bytes a lane.
    """

    places: tuple[Place, ...]
    space: Space
    access: str
    width: int
    counts: RequestCounts


@dataclass(frozen=True, slots=True)
class LaunchCounts:
    """What count mode counted of a launch.

    ``lines`` are in the order of the source. ``l2_*`` bytes go between multiprocessors and L2, whole sectors each:
    there is no L1 in the model. ``dram_*`` bytes go between device memory and an L2 of ``l2_nbytes`` that is empty at
    first, evicts the line least recently used, fetches no sector that is written first, and writes back at the end.
    ``missing_rows`` instructions had no room: lines and totals lack them, the bytes of caches do not. ``origin`` is the
    node that the launch stems from.
    """

    kernel: str
    grid: Extent
    block: Extent
    lines: tuple[LineCounts, ...]
    l2_nbytes: int
    l2_read_nbytes: int
    l2_written_nbytes: int
    dram_read_nbytes: int
    dram_written_nbytes: int
    missing_rows: int = 0
    origin: str = ""

    def total(self, space: Space) -> RequestCounts:
        """Return the sum over all lines that access a space."""
        return sum((line.counts for line in self.lines if line.space == space), RequestCounts())


class CountBuffer:
    """Memory that the runtime library writes the figures of a launch to.

    Args:
        target: Whose L2 is modelled.
    """

    def __init__(self, target: Target) -> None:
        self._rows = (CountStruct * _MOST_ROWS)()
        self.struct = CountsStruct(l2_nbytes(target), ctypes.addressof(self._rows), _MOST_ROWS)

    @property
    def rows(self) -> Sequence[CountStruct]:
        """The rows written."""
        return self._rows[: self.struct.row_count]


def l2_nbytes(target: Target) -> int:
    """Return the bytes of L2 that are modelled for a target: those of the GPU that stands for its architecture."""
    return find_gpu(target.architecture).l2_nbytes


def read_counts(
    buffer: CountBuffer, places: Mapping[int, tuple[Place, ...]], kernel: str, grid: Extent, block: Extent
) -> LaunchCounts:
    """Return the figures of a launch, instructions of one line added up.

    Args:
        buffer: As the runtime library left it.
        places: Source lines of instructions, as `findings.locate` returns them.
        kernel: Its name.
        grid: Blocks of the launch.
        block: Threads of a block.
    """
    lines: dict[tuple[tuple[Place, ...], Space, str, int], RequestCounts] = {}
    for row in buffer.rows:
        access = "atomic" if row.flags & _ATOMIC else "write" if row.flags & _WRITE else "read"
        key = (places.get(row.place, ()), SPACES[row.is_shared], access, row.nbytes)
        counts = RequestCounts(row.requests, row.lanes, row.nbytes_asked, row.transactions, row.least)
        lines[key] = lines.get(key, RequestCounts()) + counts
    raw = buffer.struct
    return LaunchCounts(
        kernel, grid, block, tuple(LineCounts(*key, lines[key]) for key in sorted(lines, key=_source_order)),
        raw.l2_bytes, raw.l2_read_bytes, raw.l2_written_bytes, raw.dram_read_bytes, raw.dram_written_bytes,
        raw.missing_count,
    )  # fmt: skip


def _source_order(key: tuple[tuple[Place, ...], Space, str, int]) -> tuple[object, ...]:
    return key[0][::-1], *key[1:]
