"""Text of prologues: a row region as the blocks of a product make it for themselves (``prologue.cuh``).

It is that of `row_kernel`, but an element is kept where the block needs it, and loads are all under way together.
Without folds a block makes its own part of rows alone.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from gpuexec.ir.command import Argument, Kernel, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.operator import Emitter
from gpuexec.ir.symbolic_int import memoize
from gpuexec.ir.work import WARP, count_slot_bytes
from gpuexec.ops.elementwise.region_steps import StepForms, StepRow
from gpuexec.ops.elementwise.region_text import RegionNumbers, count_steps, name_text
from gpuexec.ops.elementwise.row_kernel import (
    IN_ROW,
    STEP_INSTRUCTIONS,
    RowStructure,
    RowText,
    RowWalk,
    describe_rows,
    hold_rows,
)
from gpuexec.ops.elementwise.row_layout import RowLayout
from gpuexec.ops.lib.team import BLOCK_THREADS

MAX_OPERANDS = 4  # kPrologueOperands of prologue.cuh
_KIND = "Prologue"
_NAME = re.compile(rf", ({_KIND}_\w+)")
_PART = 16  # elements of a lane that are made together where rows have no folds
_END = "#endif\n"
_AROUND = 40  # instructions of a thread apart from its elements, about, for each phase
_MOST_HELD = 16  # elements of a lane: there is code for each
_WANTED = " && column >= made.first && column < made.end"  # of a load: that the block needs it
_ABSENT = "u8"  # what a pointer is to that there is no operand for


@dataclass(frozen=True, slots=True)
class MadeRows:
    """Rows that every block of a product makes itself.

    Attributes:
        name: Of their type.
        text: Its text.
        walk: Of the rows.
        numbers: Those of the text.
        operands: What they are made of.
    """

    name: str
    text: str
    walk: RowWalk
    numbers: RegionNumbers
    operands: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class RowsWork:
    """What a block does for its rows, about.

    Attributes:
        instructions: Of all its warps.
        rounds: Times in a row that it waits for what it reads.
        barriers: In a row.
        wavefronts: Of shared memory.
    """

    instructions: float
    rounds: int
    barriers: int
    wavefronts: float


def make_rows(
    emit: Emitter,
    rows: tuple[StepRow, ...],
    forms: StepForms,
    layout: RowLayout,
    inputs: Sequence[Slot | None],
    y: Slot,
) -> MadeRows:
    """Return the rows that steps make.

    Args:
        emit: Emitter of the launch.
        rows: The steps, the last of which makes the result.
        forms: What they make of these inputs.
        layout: Of their rows.
        inputs: The slots that steps read; None: absent.
        y: Where a launch of its own would store the result.

    Raises:
        PlanError: Rows or operands are not as at the upper end of the size class.
    """
    structure, _, walk, numbers = describe_rows(emit, rows, forms, layout, [len(rows) - 1], inputs, [y])
    if _has_folds(structure):
        phases = structure.phases
        words = len(phases.loads) + len(phases.kept_lines)  # all loads are under way together
        structure = hold_rows(emit, structure, walk, words, _MOST_HELD)
    name, text = write_prologue(structure)
    return MadeRows(name, text, walk, numbers, tuple([slot for slot in inputs if slot is not None]))


@memoize(1024)
def write_prologue(structure: RowStructure) -> tuple[str, str]:
    """Return the name of the type of made rows, and its text, which may stand there more than once."""
    name, text = name_text(_KIND, _PrologueText(structure).write())
    return name, guard_text(name, text)


@dataclass(frozen=True, slots=True)
class FoundPrologue:
    """The name and text of a kernel's made rows, and the rest of its text."""

    name: str
    text: str
    rest: str


def guard_text(name: str, text: str) -> str:
    """Return the text of a type so that it counts once, where kernels of a file that share it are compiled together."""
    return f"#ifndef HAS_{name}\n#define HAS_{name}\n{text}{_END}"


def find_prologue(kernel: Kernel) -> FoundPrologue:
    """Return the made rows of a kernel that has some."""
    match = _NAME.search(kernel.expression)
    assert match is not None
    text, end, rest = kernel.text.partition(_END)
    return FoundPrologue(match[1], text + end, rest)


def read_walk(text: str, packed: Argument) -> tuple[int, int, int]:
    """Return the rows, their length, and the lanes of a team that the walk of made rows says."""
    assert isinstance(packed, bytes)
    return struct.unpack_from("<qqi" if "RowWalk<i64" in text else "<iii", packed)


def count_read_bytes(text: str, operands: Sequence[Slot], columns: tuple[int, int]) -> int:
    """Return the bytes that a block reads for its rows.

    Args:
        text: Of the rows.
        operands: What they are made of.
        columns: Elements of a row, and those that the block needs.
    """
    whole, kept = columns
    is_folded = "fold_team<" in text
    total = 0
    for k, slot in enumerate(operands):
        needed = whole if is_folded and f"held{k}[i] = {IN_ROW}{_WANTED}" not in text else kept
        total += ceil_div(count_slot_bytes(slot) * needed, whole)
    return total


def describe_work(text: str, walk: tuple[int, int, int], kept: int) -> RowsWork:
    """Return what a block does for rows.

    Args:
        text: That of the rows alone.
        walk: Rows, their length, and lanes of a team.
        kept: The columns that the block needs.
    """
    rows, columns, lanes = walk
    folds = text.count("fold_team<")
    steps = count_steps(text) + folds
    columns = columns if folds else kept
    blocks = ceil_div(rows * lanes, BLOCK_THREADS)
    held = re.search(r"kHeld = (\d+)", text)
    assert held is not None
    each = int(held[1])
    own = ceil_div(columns, lanes)  # rows that are not held are read in each phase, one element after the other
    rounds = (1 if folds else ceil_div(columns, each * lanes)) if each else (folds + 1) * own
    passes, warps = 1 if each else folds + 1, BLOCK_THREADS // WARP
    around = _AROUND * (folds + 1) * warps
    return RowsWork(
        blocks * (passes * warps * ceil_div(columns, lanes) * steps * STEP_INSTRUCTIONS + around),
        blocks * (rounds + folds + 1),
        blocks * folds * (2 if lanes > WARP else 0) + 1,
        blocks * folds * (warps + warps * lanes // WARP if lanes > WARP else 0) + rows * kept / WARP,
    )


def _has_folds(structure: RowStructure) -> bool:
    return any(line.fold for line in structure.lines)


class _PrologueText(RowText):
    """The text of a structure, for blocks that make all of its rows."""

    first_column = "start + team.lane"

    def __init__(self, structure: RowStructure) -> None:
        self._has_parts = not _has_folds(structure)
        if self._has_parts:
            structure = RowStructure(
                structure.lines, structure.operands, structure.results, structure.counts, structure.is_wide, _PART
            )
        super().__init__(structure)

    def write(self) -> str:
        """Return the text of made rows, with ``@`` for their name."""
        operands = [operand.cuda for operand in self._structure.operands]
        operands += [_ABSENT] * (MAX_OPERANDS - len(operands))
        parameters = ["const Walk& walk, const Numbers& numbers, const Team& team, const Place& place"]
        pointers = [f"const In{k}* in{k}" for k in range(MAX_OPERANDS)]
        lines = [
            *self._write_head(),
            *[f"  typedef {cuda} In{k};" for k, cuda in enumerate(operands)],
            "",
            *self._write_place(),
            "",
            "  template <class Made>",
            f"  static __device__ void make({', '.join([*parameters, 'const Made& made', *pointers])}) {{",
            *self._write_still(),
        ]
        if self._has_parts:
            lines += [
                *self._write_row_lines(0),
                f"    for ({self._offset} start = made.first; start < made.end; start += kHeld * walk.lanes) {{",
                *self._write_loop(0),
                "    }",
            ]
        else:
            lines.append(f"    constexpr {self._offset} start = 0;")
            for phase in range(self._phases.count):
                lines += [*self._write_row_lines(phase), *self._write_loop(phase)]
        return "\n".join([*lines, "  }", "};"]) + "\n"

    def _write_held(self, phase: int, own: Sequence[int]) -> list[str]:
        """Return the loads of all operands in front of the first phase; the last one needs a part of them alone."""
        last, lines = self._phases.count - 1, []
        for k, first in self._phases.loads.items() if phase == 0 else ():
            lines += [
                f"    {self._structure.operands[k].cuda} held{k}[kHeld];",
                *self._begin_held_loop(),
                self._write_load(k, IN_ROW + _WANTED * (first == last)),
                "    }",
            ]
        return [*lines, *self._write_kept(own)]

    def _write_skip(self, folds: Sequence[int]) -> list[str]:
        """Return what passes over elements of other blocks, where nothing is folded of them, as where rows are kept."""
        return [] if folds else ["      if (column < made.first || column >= made.end) continue;"]

    def _write_store(self, k: int, value: str) -> str:
        return f"made.put(place.row, column, {value})"
