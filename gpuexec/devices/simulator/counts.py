"""Memory requests and arithmetic of warps by source line, as count mode of the simulator counts them.

A request is what the lanes of a warp access by one instruction, in lockstep; ``kernels/simulator/count.h`` says how
accesses become requests. Counted are the sectors of 32 bytes of global memory and the wavefronts of shared memory (32
banks of 4 bytes) that requests take. Not counted are kernel arguments, variables and constants of the module, and what
a thread keeps on its stack.

Of arithmetic, calls are counted that are one instruction of the device, or a known number of them: fused multiply-adds
(``fmaf`` and its kind, ``__dp4a``, wrappers of matrix units), and special functions of float by the MUFU instructions
that they take (``kernels/simulator/operations.h``, from machine code). Operators are not counted: ``a * b + c`` is
plain code of the host compiler's, which says nothing of the device's. Kernels are compiled without contraction, so on
the device it is no multiply-add either; kernels of this package write ``fmaf`` where it matters. A division by ``/``
takes a MUFU instruction that is not seen, as does the root of a float by C++'s overload ``sqrt``. A warp issues an
instruction for 32 lanes, whichever take part.

The figures are exact but for these:

- Lanes that skip an access or a call in some trips of a loop without a barrier are paired by number, not by trip.
- What the host compiler moves out of a loop, or computes once for two calls, is counted as it stands then.
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
from typing import Any, Literal, get_args

from gpuexec.devices.simulator.findings import Place
from gpuexec.devices.simulator.library import CountsStruct, CountStruct, Extent, OperationCountStruct
from gpuexec.ir.gpus import find_gpu
from gpuexec.ir.target import Target

Space = Literal["global", "shared"]
SPACES: tuple[Space, ...] = get_args(Space)
Unit = Literal["ffma", "dfma", "hfma", "dp4a", "mma", "mufu"]
UNITS: tuple[Unit, ...] = get_args(Unit)
MULTIPLY_ADD_UNITS = UNITS[:-1]
_WRITE, _ATOMIC = 1, 2
_WARP = 32
_MOST_ROWS = 4096
_MOST_OPERATIONS = 1024


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
class OperationCounts:
    """Operations of a unit: multiply-adds, or instructions of the unit of special functions (``mufu``).

    Warps made ``calls``. They ``issued`` operations for all 32 lanes of each; lanes took part in those ``taken``.
    """

    calls: int = 0
    issued: int = 0
    taken: int = 0

    def __add__(self, other: OperationCounts) -> OperationCounts:
        return OperationCounts(self.calls + other.calls, self.issued + other.issued, self.taken + other.taken)

    @property
    def lanes_off(self) -> float:
        """Share of the operations issued that no lane took part in, from 0 to 1."""
        return 1 - self.taken / self.issued if self.issued else 0.0


@dataclass(frozen=True, slots=True)
class LineOperations:
    """Operations of one unit that a source line calls for; ``places`` as in `LineCounts`."""

    places: tuple[Place, ...]
    unit: Unit
    counts: OperationCounts


@dataclass(frozen=True, slots=True)
class LaunchCounts:
    """What count mode counted of a launch.

    ``lines`` and ``operations`` are in the order of the source. ``l2_*`` bytes go between multiprocessors and L2, whole
    sectors each: there is no L1 in the model. ``dram_*`` bytes go between device memory and an L2 of ``l2_nbytes`` that
    is empty at first, evicts the line least recently used, fetches no sector that is written first, and writes back at
    the end.
    ``missing_rows`` instructions had no room: lines and totals lack them, the bytes of caches do not. ``origin`` is the
    node that the launch stems from, and ``needed_multiply_adds`` what its results need by its kernel's closed form
    (`gpuexec.ir.work`), None where there is none.
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
    operations: tuple[LineOperations, ...] = ()
    needed_multiply_adds: int | None = None

    def total(self, space: Space) -> RequestCounts:
        """Return the sum over all lines that access a space."""
        return sum((line.counts for line in self.lines if line.space == space), RequestCounts())

    def total_operations(self, *units: Unit) -> OperationCounts:
        """Return the sum over all lines that call for one of the units."""
        return sum((line.counts for line in self.operations if line.unit in units), OperationCounts())

    @property
    def multiply_adds(self) -> OperationCounts:
        """The sum over the units that multiply and add."""
        return self.total_operations(*MULTIPLY_ADD_UNITS)

    @property
    def issue_ratio(self) -> float | None:
        """Multiply-adds issued for one that is needed; None where none is needed or none was seen."""
        issued = self.multiply_adds.issued
        return issued / self.needed_multiply_adds if issued and self.needed_multiply_adds else None


class CountBuffer:
    """Memory that the runtime library writes the figures of a launch to.

    Args:
        target: Whose L2 is modelled.
    """

    def __init__(self, target: Target) -> None:
        self._rows = (CountStruct * _MOST_ROWS)()
        self._operations = (OperationCountStruct * _MOST_OPERATIONS)()
        addresses = ctypes.addressof(self._rows), ctypes.addressof(self._operations)
        self.struct = CountsStruct(l2_nbytes(target), *addresses, _MOST_ROWS, _MOST_OPERATIONS)

    @property
    def rows(self) -> Sequence[CountStruct]:
        """The rows written."""
        return self._rows[: self.struct.row_count]

    @property
    def operations(self) -> Sequence[OperationCountStruct]:
        """The rows of operations written."""
        return self._operations[: self.struct.operation_count]

    @property
    def places(self) -> set[int]:
        """The instructions of all rows."""
        return {row.place for row in (*self.rows, *self.operations)}


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
    operations: dict[tuple[tuple[Place, ...], Unit], OperationCounts] = {}
    for each in buffer.operations:
        where = (places.get(each.place, ()), UNITS[each.unit])
        made = OperationCounts(each.calls, _WARP * each.calls * each.operations, each.lanes * each.operations)
        operations[where] = operations.get(where, OperationCounts()) + made
    raw = buffer.struct
    return LaunchCounts(
        kernel, grid, block, tuple(LineCounts(*key, lines[key]) for key in sorted(lines, key=_source_order)),
        raw.l2_bytes, raw.l2_read_bytes, raw.l2_written_bytes, raw.dram_read_bytes, raw.dram_written_bytes,
        raw.missing_count,
        operations=tuple(LineOperations(*key, operations[key]) for key in sorted(operations, key=_source_order)),
    )  # fmt: skip


def _source_order(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return key[0][::-1], *key[1:]
