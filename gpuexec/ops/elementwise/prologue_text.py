"""Text of prologues: a row region as the blocks of a product make it for themselves (``prologue.cuh``).

It is that of `row_kernel` but for two things. A thread stands in for several of a block of `row_kernel`, so what it has
of a team is there once for each. And an element is kept where the block needs it; without folds a block makes its own
part of rows alone.
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
from gpuexec.ops.elementwise.row_lines import Line
from gpuexec.ops.lib.team import BLOCK_THREADS

MAX_OPERANDS = 4  # kPrologueOperands of prologue.cuh
_KIND = "Prologue"
_NAME = re.compile(rf", ({_KIND}_\w+)")
_PART = 4  # elements of a lane that are made together where rows have no folds
_END = "#endif\n"
_AROUND = 40  # instructions of a thread apart from its elements, about, for each it stands in for and each phase
_MOST_HELD = 16  # elements of a lane: a thread has those of several, and code for each
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
    threads: int,
) -> MadeRows:
    """Return the rows that steps make for blocks of so many threads.

    Args:
        emit: Emitter of the launch.
        rows: The steps, the last of which makes the result.
        forms: What they make of these inputs.
        layout: Of their rows.
        inputs: The slots that steps read; None: absent.
        y: Where a launch of its own would store the result.
        threads: Of a block.

    Raises:
        PlanError: Rows or operands are not as at the upper end of the size class.
    """
    structure, _, walk, numbers = describe_rows(emit, rows, forms, layout, [len(rows) - 1], inputs, [y])
    own = BLOCK_THREADS // threads
    if _has_folds(structure):
        phases = structure.phases
        words = len(phases.loads) + len(phases.kept_lines)  # all loads are under way together
        structure = hold_rows(emit, structure, walk, words * own, _MOST_HELD)
    name, text = write_prologue(structure, threads)
    return MadeRows(name, text, walk, numbers, tuple([slot for slot in inputs if slot is not None]))


@memoize(1024)
def write_prologue(structure: RowStructure, threads: int) -> tuple[str, str]:
    """Return the name of the type of made rows, and its text, which may stand there more than once."""
    name, text = name_text(_KIND, _PrologueText(structure, threads).write())
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
    is_folded = "fold_teams<" in text
    total = 0
    for k, slot in enumerate(operands):
        needed = whole if is_folded and f"held{k}[i] = {IN_ROW}{_WANTED}" not in text else kept
        total += ceil_div(count_slot_bytes(slot) * needed, whole)
    return total


def describe_work(text: str, walk: tuple[int, int, int], kept: int, threads: int) -> RowsWork:
    """Return what a block does for rows.

    Args:
        text: That of the rows alone.
        walk: Rows, their length, and lanes of a team.
        kept: The columns that the block needs.
        threads: Of the block.
    """
    rows, columns, lanes = walk
    folds = text.count("fold_teams<")
    steps = count_steps(text) + folds
    columns = columns if folds else kept
    blocks = ceil_div(rows * lanes, BLOCK_THREADS)
    held = re.search(r"kHeld = (\d+)", text)
    assert held is not None
    each = int(held[1])
    # Rows that are not held are read in each phase, by loops that have one element of each stand-in under way.
    own = ceil_div(columns, lanes) * (BLOCK_THREADS // threads)
    rounds = (1 if folds else ceil_div(columns, each * lanes)) if each else (folds + 1) * own
    passes, warps = 1 if each else folds + 1, BLOCK_THREADS // WARP
    around = _AROUND * (folds + 1) * warps
    return RowsWork(
        blocks * (passes * warps * ceil_div(columns, lanes) * steps * STEP_INSTRUCTIONS + around),
        blocks * (rounds + (folds + 1) * (BLOCK_THREADS // threads)),  # a thread waits for each that it stands in for
        blocks * folds * (2 if lanes > WARP else 0) + 1,
        blocks * folds * (warps + warps * lanes // WARP if lanes > WARP else 0) + rows * kept / WARP,
    )


def _has_folds(structure: RowStructure) -> bool:
    return any(line.fold for line in structure.lines)


class _PrologueText(RowText):
    """The text of a structure, for blocks that stand in for one with a team for each of its rows."""

    first_column = "start + team.lane"

    def __init__(self, structure: RowStructure, threads: int) -> None:
        self._has_parts = not _has_folds(structure)
        if self._has_parts:
            structure = RowStructure(
                structure.lines, structure.operands, structure.results, structure.counts, structure.is_wide, _PART
            )
        super().__init__(structure)
        self._own = BLOCK_THREADS // threads

    def write(self) -> str:
        """Return the text of made rows, with ``@`` for their name."""
        structure = self._structure
        operands = [operand.cuda for operand in structure.operands]
        operands += [_ABSENT] * (MAX_OPERANDS - len(operands))
        parameters = ["const Walk& walk, const Numbers& numbers, i64 block, const MadeRows<T>& made"]
        pointers = [f"const In{k}* in{k}" for k in range(MAX_OPERANDS)]
        lines = [
            *self._write_head(),
            f"  typedef {operands[0]} In0;",
            *[f"  typedef {cuda} In{k};" for k, cuda in enumerate(operands) if k],
            "",
            *self._write_place(),
            "",
            "  template <int Threads, class T>",
            f"  static __device__ void make({', '.join([*parameters, *pointers])}) {{",
            "    constexpr int kOwn = kBlockThreads / Threads;",
            *self._write_state(),
        ]
        if self._has_parts:
            lines += [
                f"    for ({self._offset} start = made.first; start < made.end; start += kHeld * walk.lanes) {{",
                *self._write_own(0, self._write_all_loads(), needs_values=False),
                *self._write_own(0, self._write_loop(0)),
                "    }",
            ]
            return "\n".join([*lines, "  }", "};"]) + "\n"
        lines.append(f"    constexpr {self._offset} start = 0;")
        if structure.held:
            lines += self._write_own(0, self._write_all_loads(), needs_values=False)
        for phase in range(self._phases.count):
            loop = self._write_loop(phase)
            if loop:
                lines += self._write_own(phase, loop)
            for line, own in zip(structure.lines, self._phases.of_lines, strict=True):
                if line.fold and own == phase:
                    lines.append(f"    fold_teams<{line.fold}, Threads>(walk.lanes, made.scratch, parts_{line.name});")
        return "\n".join([*lines, "  }", "};"]) + "\n"

    def _write_state(self) -> list[str]:
        """Return what a thread has for each one that it stands in for."""
        structure, phases = self._structure, self._phases
        lines = [f"    typename {line.fold}::Partial parts_{line.name}[kOwn];" for line in structure.lines if line.fold]
        if structure.held:
            lines += [f"    {structure.operands[k].cuda} all_held{k}[kOwn][kHeld];" for k in phases.loads]
            lines += [
                f"    {structure.lines[n].work} all_kept_{structure.lines[n].name}[kOwn][kHeld];"
                for n in phases.kept_lines
            ]
        return lines

    def _write_own(self, phase: int, body: Sequence[str], *, needs_values: bool = True) -> list[str]:
        """Return a body for each thread that a thread stands in for, with the values of its row."""
        structure, phases = self._structure, self._phases
        lines = [
            "#pragma unroll",
            "    for (int own = 0; own < kOwn; ++own) {",
            "    const Team team(walk.lanes, 1, int(threadIdx.x) + own * Threads, block);",
            "    const Place place(walk, team);",
        ]
        if needs_values:
            lines += self._write_still()
            for before in range(phase + 1):
                lines += self._write_row_lines(before)
            lines += [
                f"    auto& part_{line.name} = parts_{line.name}[own];"
                for line, when in zip(structure.lines, phases.of_lines, strict=True)
                if line.fold and when == phase
            ]
            if structure.held:
                lines += [
                    f"    auto& kept_{structure.lines[n].name} = all_kept_{structure.lines[n].name}[own];"
                    for n, last in phases.kept_lines.items()
                    if phases.of_lines[n] <= phase <= last
                ]
        if structure.held:
            lines += [
                f"    auto& held{k} = all_held{k}[own];"
                for k, last in phases.last_uses.items()
                if not needs_values or phases.loads[k] <= phase <= last
            ]
        return [*lines, *body, "    }"]

    def _write_all_loads(self) -> list[str]:
        """Return the loads of all operands, so that they are under way together; the last phase needs a part alone."""
        last, lines = self._phases.count - 1, []
        for k, first in self._phases.loads.items():
            lines += [*self._begin_held_loop(), self._write_load(k, IN_ROW + _WANTED * (first == last)), "    }"]
        return lines

    def _write_folded(self, line: Line) -> str:
        return f"parts_{line.name}[own]"

    def _declare_part(self, line: Line) -> str:
        return f"part_{line.name}"

    def _write_skip(self, folds: Sequence[int]) -> list[str]:
        """Return what passes over elements of other blocks, where nothing is folded of them."""
        return [] if folds else ["      if (column < made.first || column >= made.end) continue;"]

    def _write_held(self, phase: int, own: Sequence[int]) -> list[str]:
        """Return nothing: what is held and kept is there for each thread that one stands in for."""
        return []

    def _write_store(self, k: int, value: str) -> str:
        return f"made.put(place.row, column, {value})"
