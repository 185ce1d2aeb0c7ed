"""Tiled regions on a device with kernels: one launch, by tiles of two axes, where operands lie across.

An operand lies across where its elements that are neighbours in memory are not neighbours in the results, as those of
a transposed view. Read in the order of the results, each element costs a sector of 32 bytes. A block of the kernel
takes a tile of the results' inner axis and the axis along which such operands lie closely, and turns it in registers or
in shared memory (``across.cuh``). The text follows from a structure as that of `flat` does, and the steps are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import prod

from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div, contiguous_strides
from gpuexec.ir.kernel_values import join_bytes, pack_struct
from gpuexec.ir.operator import Emitter
from gpuexec.ir.spec import dtype_row
from gpuexec.ir.symbolic_int import memoize
from gpuexec.ir.work import SECTOR_BYTES, Work, count_slot_bytes, count_warps, work_of
from gpuexec.ops.elementwise.flat import JoinedWalk, OperandKind
from gpuexec.ops.elementwise.region_steps import StepForms, StepRow
from gpuexec.ops.elementwise.region_text import CodeRow, count_steps, name_text, write_compute, write_steps
from gpuexec.ops.lib.across import (
    ACROSS_TILE_BYTES,
    MIN_TILED_ELEMENTS,
    SQUARES_INNER,
    TILE_STAGED,
    TILE_THREADS,
    can_take_squares,
    divide_across,
    read_lanes,
)
from gpuexec.ops.lib.broadcast import vector_width
from gpuexec.ops.lib.strided import pack_fast_div32

SOURCE = "tiled.cu"
# Bytes that a flat launch asks of L2 beyond those of its operands: with less, tiles are not worth it.
MIN_EXCESS = 1 << 20
_SHARED_BYTES = 48 << 10  # of a block
_SQUARE_BYTES = 256  # of operands that a thread holds
_FILLING_SQUARES = 1 << 15  # so many before these grow
_MOST_OTHER = 2**31 - 1
_AXIS_BITS, _WIDTH_BITS, _READ_BITS = 4, 3, 2
# Instructions of a thread apart from its steps, of a step for an element, and of an element that is turned, about.
_AROUND, _STEP_INSTRUCTIONS, _TURNED_INSTRUCTIONS = 90, 8, 4


class TileRead(IntEnum):
    """How an operand is read."""

    ALONG = 0  # by neighbours along the results' inner axis, which the operand has, or stands still
    ACROSS = 1  # by neighbours along the other axis of a tile
    SCATTERED = 2  # element by element


@dataclass(frozen=True, slots=True)
class TiledOperand:
    """The type of an input and how it lies.

    Attributes:
        cuda: Element type in C++.
        itemsize: Bytes of an element.
        kind: How it lies.
        read: How it is read.
        moves: Whether it moves along inner, and along the other axis of a tile.
    """

    cuda: str
    itemsize: int
    kind: OperandKind
    read: TileRead
    moves: tuple[bool, bool]


@dataclass(frozen=True, slots=True)
class TiledStructure:
    """All that the text of a tiled region depends on.

    Attributes:
        rows: The steps, without attributes and numbers that are arguments.
        operands: The inputs.
        results: Of each result, the step that makes it and its element type in C++.
        counts: How many numbers are floats, doubles and integers.
        others: Axes beside those of a tile.
        is_wide: Whether offsets need 64 bits.
        width: Lanes of a square; 1: there are none.
    """

    rows: tuple[CodeRow, ...]
    operands: tuple[TiledOperand, ...]
    results: tuple[tuple[int, str], ...]
    counts: tuple[int, int, int]
    others: int
    is_wide: bool
    width: int


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a walk is tiled, at all sizes of a class.

    Attributes:
        axis: Of the walk, along which operands lie across.
        width: Lanes of a square.
        reads: How each input is read.
    """

    axis: int
    width: int
    reads: tuple[TileRead, ...]

    @classmethod
    def unpack(cls, number: int, operands: int) -> Tiling:
        """Return what `pack` made a number of."""
        axis, number = number & (1 << _AXIS_BITS) - 1, number >> _AXIS_BITS
        width, number = 1 << (number & (1 << _WIDTH_BITS) - 1), number >> _WIDTH_BITS
        reads = [TileRead(number >> _READ_BITS * k & (1 << _READ_BITS) - 1) for k in range(operands)]
        return cls(axis, width, tuple(reads))

    def pack(self) -> int:
        """Return a number above 0."""
        reads = sum(read << _READ_BITS * k for k, read in enumerate(self.reads))
        return (reads << _WIDTH_BITS | self.width.bit_length() - 1) << _AXIS_BITS | self.axis


def choose_tiling(emit: Emitter, walk: JoinedWalk, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> Tiling | None:
    """Return how a walk is tiled, as at the upper end of the size class; None where it is better flat."""
    now = _find_tiling(walk, inputs, outputs)
    chosen = emit.choose(0 if now is None else now.pack())
    return Tiling.unpack(chosen, len(inputs)) if chosen else None


def launch_tiled(
    emit: Emitter,
    walk: JoinedWalk,
    tiling: Tiling,
    rows: tuple[StepRow, ...],
    forms: StepForms,
    results: Sequence[int],
    inputs: Sequence[Slot | None],
    outputs: Sequence[Slot],
) -> None:
    """Launch a region whose results have one shape and lie alike.

    Args:
        emit: Emitter of the launch.
        walk: Of the inputs and results.
        tiling: How it is tiled.
        rows: The steps.
        forms: What they make of these inputs.
        results: The step that makes each output.
        inputs: The slots that steps read; None: absent.
        outputs: The slots of the results.
    """
    used = [slot for slot in inputs if slot is not None]
    code, numbers = write_steps(rows, forms, tuple([slot is not None for slot in inputs]))
    structure = TiledStructure(
        code,
        tuple(_list_operands(walk, tiling, used)),
        tuple([(step, dtype_row(slot.dtype).cuda) for step, slot in zip(results, outputs, strict=True)]),
        numbers.counts,
        len(walk.extents) - 2,
        walk.is_wide,
        tiling.width,
    )
    lanes = tiling.width if _can_take_squares(walk, tiling, used, outputs) else 1
    packed, blocks = _pack_walk(walk, tiling, structure, lanes)
    arguments: list[Argument] = [packed, numbers.pack(), *used, *outputs]
    emit.launch(
        write_kernel(structure),
        (max(1, blocks), 1, 1),
        (TILE_THREADS, 1, 1),
        arguments,
        writes=range(len(arguments) - len(outputs), len(arguments)),
    )


def _find_tiling(walk: JoinedWalk, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> Tiling | None:
    """Return how a walk is best tiled; None where a flat launch asks little more than the operands' bytes of L2."""
    excess: dict[int, int] = {}
    for slot, strides in zip(inputs, walk.strides, strict=True):
        for axis in range(1, len(walk.extents)):
            if min(walk.extents[0], walk.extents[axis]) > 1 and _lies_across(strides, axis):
                excess[axis] = excess.get(axis, 0) + _count_excess(walk, slot, strides, axis)
    axis = max(excess, key=lambda each: excess[each], default=0)
    if not axis or excess[axis] < MIN_EXCESS or walk.extents[0] * walk.extents[axis] < MIN_TILED_ELEMENTS:
        return None
    reads, shared = [], 0
    for slot, strides in zip(inputs, walk.strides, strict=True):
        nbytes = TILE_STAGED * slot.dtype.itemsize
        read = TileRead.ALONG if abs(strides[0]) <= 1 else TileRead.SCATTERED
        if _lies_across(strides, axis) and shared + nbytes <= _SHARED_BYTES:
            read, shared = TileRead.ACROSS, shared + nbytes
        reads.append(read)
    return Tiling(axis, _choose_width(walk, axis, inputs, outputs, reads), tuple(reads))


def _lies_across(strides: tuple[int, ...], axis: int) -> bool:
    """Return whether neighbours along an axis lie closely, and those along the inner one apart."""
    return abs(strides[0]) > 1 and abs(strides[axis]) == 1


def _count_excess(walk: JoinedWalk, slot: Slot, strides: tuple[int, ...], axis: int) -> int:
    """Return the bytes that a flat launch asks L2 for beyond those of an operand that lies across.

    Each element is a sector of its own; the rows of one block find what they share in L1.
    """
    itemsize = slot.dtype.itemsize
    elements = prod(extent for extent, stride in zip(walk.extents, strides, strict=True) if stride)
    apart = min(SECTOR_BYTES, abs(strides[0]) * itemsize)
    rows = max(1, TILE_THREADS // walk.extents[0]) if axis == 1 else 1
    return elements * max(0, apart // rows - itemsize)


def _choose_width(
    walk: JoinedWalk, axis: int, inputs: Sequence[Slot], outputs: Sequence[Slot], reads: Sequence[TileRead]
) -> int:
    """Return the lanes of a square: as many as a vector has, while registers hold it and there are squares enough."""
    width = vector_width((*inputs, *outputs))
    held = sum(
        slot.dtype.itemsize
        for slot, strides, read in zip(inputs, walk.strides, reads, strict=True)
        if read is not TileRead.SCATTERED and strides[0] and strides[axis]
    )
    while width > 1 and width * width * held > _SQUARE_BYTES:
        width //= 2
    # A warp writes rows of SQUARES_INNER squares, which may not be less than a sector.
    least = ceil_div(SECTOR_BYTES, SQUARES_INNER * min(slot.dtype.itemsize for slot in outputs))
    while width > max(1, least) and prod(walk.extents) < _FILLING_SQUARES * width * width:
        width //= 2
    return width


def _list_operands(walk: JoinedWalk, tiling: Tiling, inputs: Sequence[Slot]) -> Iterator[TiledOperand]:
    for slot, operand, read in zip(inputs, walk.operands, tiling.reads, strict=True):
        is_dense = operand.kind is OperandKind.DENSE
        moves = (operand.moves[0], operand.moves[tiling.axis]) if operand.moves else (is_dense, is_dense)
        yield TiledOperand(operand.cuda, slot.dtype.itemsize, operand.kind, read, moves)


def _can_take_squares(walk: JoinedWalk, tiling: Tiling, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> bool:
    """Return whether the vectors of all squares are neighbours and aligned."""
    width, axis = tiling.width, tiling.axis
    if not can_take_squares(walk.extents[0], walk.extents[axis], width):
        return False
    if any(slot.offset_bytes % (width * slot.dtype.itemsize) for slot in outputs):
        return False
    for slot, strides, operand in zip(inputs, walk.strides, _list_operands(walk, tiling, inputs), strict=True):
        if operand.read is TileRead.SCATTERED or not operand.moves[0]:
            continue
        along = axis if operand.read is TileRead.ACROSS else 0
        steps = [
            s for k, (s, extent) in enumerate(zip(strides, walk.extents, strict=True)) if k != along and extent > 1
        ]
        is_aligned = slot.offset_bytes % (width * slot.dtype.itemsize) == 0
        if strides[along] != 1 or not is_aligned or any(step % width for step in steps):
            return False
    return True


def _pack_walk(walk: JoinedWalk, tiling: Tiling, structure: TiledStructure, lanes: int) -> tuple[bytes, int]:
    """Return the bytes of ``TileWalk``, and the number of blocks."""
    others = [axis for axis in range(1, len(walk.extents)) if axis != tiling.axis]
    order = (0, tiling.axis, *others)
    inner, across, *rest = (walk.extents[axis] for axis in order)
    staged = max(operand.itemsize for operand in structure.operands if operand.read is TileRead.ACROSS)
    tile, tiles = divide_across(inner, across, lanes, staged)
    offset = "q" if walk.is_wide else "i"
    divisors = [pack_fast_div32(max(1, min(extent, _MOST_OTHER))) for extent in rest[:-1]] or [pack_fast_div32(1)]
    # Offsets of 64 bits start at a multiple of 8.
    gap = b"" if offset == "i" else bytes(-(ACROSS_TILE_BYTES + 16 + 12 * len(divisors)) % 8)
    results = contiguous_strides(walk.extents[::-1])[::-1]
    strides = [results, *(own for own, each in zip(walk.strides, structure.operands) if _has_row(each))]
    moved = [own[axis] for own in strides for axis in order]
    packed = tile + pack_struct(f"<2{offset}", inner, across) + join_bytes(divisors) + gap
    return packed + pack_struct(f"<{len(moved)}{offset}", *moved), tiles * prod(rest)


def _has_row(operand: TiledOperand) -> bool:
    """Return whether an operand has strides of its own."""
    return operand.kind is OperandKind.STRIDED


@memoize(1024)
def write_kernel(structure: TiledStructure) -> Kernel:
    """Return the kernel of a structure, with the text of its `Region`."""
    name, text = name_text("Tiled", _TiledText(structure).write())
    operands = [f"const {operand.cuda}" for operand in structure.operands] + [cuda for _, cuda in structure.results]
    return Kernel(SOURCE, f"tiled<{', '.join([name, *operands])}>", text)


class _TiledText:
    """The text of a region's type, with ``@`` for its name."""

    def __init__(self, structure: TiledStructure) -> None:
        self._structure = structure
        self._operands = list(enumerate(structure.operands))
        self._results = [cuda for _, cuda in structure.results]
        self._rows: list[int | None] = []  # of each input in the walk
        own = 0
        for operand in structure.operands:
            own += _has_row(operand)
            self._rows.append(None if operand.kind is OperandKind.ONE else own if _has_row(operand) else 0)
        self._row_count = own + 1

    def write(self) -> str:
        """Return the whole text."""
        structure = self._structure
        offset = "i64" if structure.is_wide else "i32"
        inputs = [f"const {operand.cuda}* in{k}" for k, operand in self._operands]
        outputs = [f"{cuda}* out{k}" for k, cuda in enumerate(self._results)]
        operands = ", ".join([*inputs, *outputs])
        staged = sum(TILE_STAGED * operand.itemsize for operand in self._list_staged())
        lines = [
            f"// {', '.join(row.name for row in structure.rows)}, squares of {structure.width} x {structure.width}.",
            "struct @ {",
            f"  typedef TileWalk<{offset}, {structure.others}, {self._row_count}> Walk;",
            f"  typedef RegionNumbers<{', '.join(map(str, structure.counts))}> Numbers;",
            f"  static constexpr int kWidth = {structure.width}, kShared = {max(1, staged // 8)};",
            "",
            *write_compute(
                [operand.cuda for operand in structure.operands],
                structure.rows,
                [(f"v{step}", cuda) for step, cuda in structure.results],
            ),
            "",
            *(self._write_square(operands) if structure.width > 1 else []),
            *self._write_staged(operands),
            "};",
        ]
        return "\n".join(lines) + "\n"

    def _list_staged(self) -> list[TiledOperand]:
        return [operand for operand in self._structure.operands if operand.read is TileRead.ACROSS]

    def _place(self, k: int, element: str) -> str:
        return "0" if self._rows[k] is None else f"{element}.at[{self._rows[k]}]"

    def _call(self, given: Sequence[str], made: str) -> str:
        results = [made.format(k) for k in range(len(self._results))]
        return f"compute({', '.join(['numbers', *given, *results])});"

    def _write_square(self, operands: str) -> list[str]:
        """Return the function that computes a square of whole vectors."""
        parameters = f"const Walk& walk, const TileElement<Walk>& first, const Numbers& numbers, {operands}"
        lines = [f"  static __device__ void run_square({parameters}) {{"]
        given = []
        for k, operand in self._operands:
            loads, element = self._write_square_loads(k, operand)
            lines += loads
            given.append(element)
        lines += [
            "#pragma unroll",
            "    for (int j = 0; j < kWidth; ++j) {",
            *[f"      Vec<{cuda}, kWidth> made{k};" for k, cuda in enumerate(self._results)],
            "#pragma unroll",
            f"      for (int i = 0; i < kWidth; ++i) {self._call(given, 'made{}.lanes[i]')}",
            *[
                f"      store_vec(out{k} + first.at[0] + j * walk.strides[0][1], made{k});"
                for k in range(len(self._results))
            ],
            "    }",
            "  }",
            "",
        ]
        return lines

    def _write_square_loads(self, k: int, operand: TiledOperand) -> tuple[list[str], str]:
        """Return the loads of an operand in a square, and the C++ of its element (i, j)."""
        at, row = self._place(k, "first"), self._rows[k]
        source = f"in{k} + {at}"
        if operand.read is TileRead.SCATTERED:
            return [], f"in{k}[{at} + i * walk.strides[{row}][0] + j * walk.strides[{row}][1]]"
        if operand.read is TileRead.ACROSS or all(operand.moves):
            step, lanes = (
                ("0", "vector{}[i].lanes[j]") if operand.read is TileRead.ACROSS else ("1", "vector{}[j].lanes[i]")
            )
            return [
                f"    Vec<{operand.cuda}, kWidth> vector{k}[kWidth];",
                "#pragma unroll",
                f"    for (int n = 0; n < kWidth; ++n) vector{k}[n] = "
                f"load_vec<kWidth>({source} + n * walk.strides[{row}][{step}]);",
            ], lanes.format(k)
        if operand.moves[0]:
            return [f"    const auto vector{k} = load_vec<kWidth>({source});"], f"vector{k}.lanes[i]"
        if operand.moves[1]:
            return [
                f"    {operand.cuda} column{k}[kWidth];",
                "#pragma unroll",
                f"    for (int n = 0; n < kWidth; ++n) column{k}[n] = in{k}[{at} + n * walk.strides[{row}][1]];",
            ], f"column{k}[j]"
        return [f"    const {operand.cuda} shared{k} = in{k}[{at}];"], f"shared{k}"

    def _write_staged(self, operands: str) -> list[str]:
        """Return the function that computes a thread's part of a tile that goes through shared memory."""
        parameters = (
            "const Walk& walk, const StagedPlaces& places, const TileElement<Walk>& read, "
            f"const TileElement<Walk>& written, const Numbers& numbers, u64* shared, {operands}"
        )
        declared, loads, puts, given, staged = [], [], [], [], 0
        for k, operand in self._operands:
            row, cuda = self._rows[k], operand.cuda
            if row is None:
                declared.append(f"    const {cuda} given{k} = in{k}[0];")
                given.append(f"given{k}")
                continue
            declared.append(f"    {cuda} given{k}[kTileUnits];")
            if operand.read is TileRead.ACROSS:
                declared.append(f"    {cuda}* staged{k} = reinterpret_cast<{cuda}*>(shared + {staged // 8});")
                staged += TILE_STAGED * operand.itemsize
                loads.append(
                    f"if (is_read) given{k}[n] = in{k}[read.at[{row}] + n * read_step * walk.strides[{row}][0]];"
                )
                puts.append(f"if (is_read) staged{k}[places.put + n * read_step] = given{k}[n];")
                given.append(f"staged{k}[places.take + n * places.take_step]")
            else:
                place = f"written.at[{row}] + n * written_step * walk.strides[{row}][1]"
                loads.append(f"if (is_written) given{k}[n] = in{k}[{place}];")
                given.append(f"given{k}[n]")
        call = self._call(given, "out{}[written.at[0] + n * written_step * walk.strides[0][1]]")
        return [
            f"  static __device__ void run_staged({parameters}) {{",
            "    const int read_step = places.read_step, written_step = places.written_step;",
            *declared,
            *_write_loop(loads),
            *_write_loop(puts),
            "    __syncthreads();",
            *_write_loop([f"if (is_written) {call}"]),
            "  }",
        ]


def _write_loop(lines: Sequence[str]) -> list[str]:
    """Return a loop over a thread's elements of a staged tile, with what lines ask of whether these are inside."""
    asked = {
        "is_read": "read.across_left > 0 && read.inner_left > n * read_step",
        "is_written": "written.inner_left > 0 && written.across_left > n * written_step",
    }
    return [
        "#pragma unroll",
        "    for (int n = 0; n < kTileUnits; ++n) {",
        *[f"      const bool {name} = {code};" for name, code in asked.items() if any(name in line for line in lines)],
        *[f"      {line}" for line in lines],
        "    }",
    ]


@work_of(SOURCE, "tiled")
def count_tiled(launch: Launch) -> Work:
    """Count the steps of a tiled region by the lines of its text, and its turned elements by the bytes of its walk."""
    steps = count_steps(launch.kernel.text)
    elements = launch.writes_to()[0].spec.size
    own = elements / max(1, prod(launch.grid) * prod(launch.block))
    walk = launch.arguments[0]
    assert isinstance(walk, bytes)
    slots = [slot for slot in launch.arguments if isinstance(slot, Slot)]
    return Work(
        flops=steps * elements,
        instructions=count_warps(launch) * (_AROUND + own * (steps * _STEP_INSTRUCTIONS + _TURNED_INSTRUCTIONS)),
        l2_nbytes=sum(map(count_slot_bytes, slots)),
        barriers=read_lanes(walk) == 1,
    )
