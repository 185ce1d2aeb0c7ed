"""Row regions on a device with kernels: one launch over rows, a team of threads each, by generated text.

A row that the lanes of a team can hold stays in registers between the phases (`row_lines`); a longer one is read anew
in each. Teams, the order of folds and the arithmetic are those of the operators' own kernels, so results are the same
to the bit. The text is generated for a *structure*, as that of flat regions is: the lines, the types, how many elements
a lane holds, how many axes rows have once neighbours are joined, and along which of them operands move.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from math import prod

from gpuexec.errors import PlanError
from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div, coalesce, max_offset
from gpuexec.ir.kernel_values import join_bytes, pack_struct
from gpuexec.ir.operator import Emitter
from gpuexec.ir.row_form import RowForm
from gpuexec.ir.spec import dtype_row
from gpuexec.ir.symbolic_int import memoize
from gpuexec.ir.work import WARP, Work, count_slot_bytes, count_warps, work_of
from gpuexec.ops.elementwise.joined_axes import group_axes, join_strides, list_joined, spread_strides
from gpuexec.ops.elementwise.region_steps import StepForms, StepRow, read_steps
from gpuexec.ops.elementwise.region_text import RegionNumbers, count_steps, name_text
from gpuexec.ops.elementwise.row_layout import RowLayout
from gpuexec.ops.elementwise.row_lines import Line, Phases, divide_into_phases, write_lines
from gpuexec.ops.lib.strided import MAX_RANK, pack_fast_div32, pack_fast_div64
from gpuexec.ops.lib.team import BLOCK_THREADS, Team, choose_team, choose_walking_team, walk_rows

SOURCE = "rows.cu"
# Elements that a lane may hold: of a row of up to 8192 in the largest team.
_HELD = (4, 8, 16, 32)
_MOST_WORDS = 128  # of a thread, that hold elements
_TWO_WORDS = frozenset(("double", "i64", "u64"))
_NARROW = 2**31 - 2**16  # offsets of more need 64 bits; columns are counted beyond the end
IN_ROW = "column < place.end"  # of an element: that the row has it
# Instructions of a thread apart from its elements, and of a step for an element, about.
_AROUND, STEP_INSTRUCTIONS = 120, 8
_FOLD_NBYTES = BLOCK_THREADS // WARP * 16  # of shared memory, at most: a value for each warp


class ColumnKind(IntEnum):
    """How an operand moves along a row."""

    STILL = 0
    NEXT = 1  # to the next element in memory
    STRIDED = 2


@dataclass(frozen=True, slots=True)
class RowOperand:
    """The type of an operand and how it moves.

    Attributes:
        cuda: Element type in C++.
        kind: Along a row.
        moves: Whether it moves along each axis of rows, the innermost first.
    """

    cuda: str
    kind: ColumnKind
    moves: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class RowStructure:
    """All that the text of a row region depends on.

    Attributes:
        lines: The lines.
        operands: The operands.
        results: Of each result, its line and element type in C++.
        counts: How many numbers are floats, doubles and integers.
        is_wide: Whether offsets need 64 bits.
        held: Elements that a lane holds; 0: it reads them anew.
    """

    lines: tuple[Line, ...]
    operands: tuple[RowOperand, ...]
    results: tuple[tuple[int, str], ...]
    counts: tuple[int, int, int]
    is_wide: bool
    held: int

    @property
    def phases(self) -> Phases:
        """When lines are computed."""
        return divide_into_phases(self.lines, [operand.kind is not ColumnKind.STILL for operand in self.operands])


def can_launch(
    rows: tuple[StepRow, ...],
    forms: StepForms,
    layout: RowLayout,
    inputs: Sequence[Slot | None],
    outputs: Sequence[Slot],
) -> bool:
    """Return whether one launch gives the bits of the operators' own kernels.

    Results are dense, operands move along a row by one stride, and the teams that read rows as they lie are that of
    dense rows.
    """
    if not can_walk_rows(layout, inputs, outputs):
        return False
    own = choose_team(prod(layout.shape[layout.axis :]), 1)
    assert forms.forms is not None
    for step, form in zip(read_steps(rows), forms.forms, strict=True):
        given = step.inputs[0]
        slot = inputs[given] if isinstance(given, int) and given >= 0 else None
        if isinstance(form, RowForm) and form.is_strided and slot is not None and slot.spec.size:
            team = choose_walking_team(*walk_rows(slot, tuple(range(layout.axis, slot.spec.rank))))
            if not _folds_alike(own, team):
                return False
    return True


def can_walk_rows(layout: RowLayout, inputs: Sequence[Slot | None], outputs: Sequence[Slot]) -> bool:
    """Return whether results are dense, and operands move along a row by one stride."""
    if layout.axis > MAX_RANK or not all(slot.is_contiguous for slot in outputs):
        return False
    return all(
        slot is None or _find_column_stride(layout, _spread(layout, number, slot)) is not None
        for number, slot in enumerate(inputs)
    )


def launch_rows(
    emit: Emitter,
    rows: tuple[StepRow, ...],
    forms: StepForms,
    layout: RowLayout,
    results: Sequence[int],
    inputs: Sequence[Slot | None],
    outputs: Sequence[Slot],
) -> Callable[[int, int], bool]:
    """Launch a region of rows.

    Args:
        emit: Emitter of the launch.
        rows: The steps.
        forms: What they make of these inputs.
        layout: Of their rows.
        results: The step that makes each output.
        inputs: The slots that steps read; None: absent.
        outputs: The slots of the results.

    Returns:
        What says of a step whose result it is, and the position of an input, whether the result may take its bytes.

    Raises:
        PlanError: Rows or operands are not as at the upper end of the size class.
    """
    used = [slot for slot in inputs if slot is not None]
    structure, made, walk, numbers = describe_rows(emit, rows, forms, layout, results, inputs, outputs)
    structure = hold_rows(emit, structure, walk, _count_words(structure))
    arguments: list[Argument] = [walk.pack(), numbers.pack(), *used, *outputs]
    emit.launch(
        write_kernel(structure),
        walk.team.grid(walk.rows),
        (BLOCK_THREADS, 1, 1),
        arguments,
        writes=range(len(arguments) - len(outputs), len(arguments)),
    )
    phases = structure.phases
    given = [position for position, slot in enumerate(inputs) if slot is not None]

    def allows(step: int, position: int) -> bool:
        line, loaded = made[step], phases.loads.get(given.index(position))
        is_kept = structure.held and loaded is not None and loaded <= phases.of_lines[line]
        return bool(is_kept and structure.lines[line].is_element)

    return allows


def describe_rows(
    emit: Emitter,
    rows: tuple[StepRow, ...],
    forms: StepForms,
    layout: RowLayout,
    results: Sequence[int],
    inputs: Sequence[Slot | None],
    outputs: Sequence[Slot],
) -> tuple[RowStructure, tuple[int, ...], RowWalk, RegionNumbers]:
    """Return a region of rows as a structure that holds nothing yet; then the line of each step, the walk, and numbers.

    Arguments are those of `launch_rows`.

    Raises:
        PlanError: Rows or operands are not as at the upper end of the size class.
    """
    lines, made, numbers = write_lines(rows, forms, layout, [slot is not None for slot in inputs])
    _repeat(emit, sum(level << 2 * place for place, level in enumerate(layout.levels)))
    _repeat(emit, sum(form.variant << k for k, form in enumerate(forms.forms or ()) if isinstance(form, RowForm)))
    walk = RowWalk.of(emit, layout, inputs, outputs)
    stored = [(made[step], dtype_row(slot.dtype).cuda) for step, slot in zip(results, outputs, strict=True)]
    structure = RowStructure(lines, walk.operands, tuple(stored), numbers.counts, walk.is_wide, held=0)
    return structure, made, walk, numbers


def _repeat(emit: Emitter, now: int) -> None:
    """Check that something is as at the upper end of the size class.

    Raises:
        PlanError: It is not.
    """
    if emit.choose(now) != now:
        raise PlanError("Rows of a region are not computed as at the upper end of the size class.")


def _folds_alike(own: Team, other: Team) -> bool:
    """Return whether lanes of two teams have the same elements and fold in the same order."""
    return own.lanes == other.lanes and (own.lane_stride == other.lane_stride or own.lanes <= WARP)


def _spread(layout: RowLayout, number: int, slot: Slot) -> tuple[int, ...]:
    """Return the strides of an operand over all elements."""
    strides = spread_strides(slot, layout.spread(number))
    return strides + (0,) * (len(layout.shape) - len(strides))


def _find_column_stride(layout: RowLayout, strides: tuple[int, ...]) -> int | None:
    """Return the stride of an operand along a row; None where there is no such number."""
    shape, (found,) = coalesce(layout.shape[layout.axis :], (strides[layout.axis :],))
    return None if len(shape) > 1 else found[0] if shape else 0


def hold_rows(emit: Emitter, structure: RowStructure, walk: RowWalk, words: int, most: int = _HELD[-1]) -> RowStructure:
    """Return the structure with as many held elements as a lane has at the upper end, if registers allow.

    Args:
        emit: Emitter of the launch.
        structure: The structure.
        walk: Of the launch.
        words: The most that a thread has of 32 bits for an element of a lane.
        most: The most elements of a lane.

    Raises:
        PlanError: A lane has more here.
    """
    own = ceil_div(walk.columns, walk.team.lanes)
    fitting = [held for held in _HELD if own <= held <= most and held * words <= _MOST_WORDS]
    held = emit.choose(min(fitting, default=0))
    if held and own > held:
        raise PlanError("Rows of a region are longer than at the upper end of the size class.")
    return replace(structure, held=held)


def _count_words(structure: RowStructure) -> int:
    """Return the most words of 32 bits that are held for an element at a time."""
    phases = structure.phases
    spans = [
        (phases.of_lines[number], last, structure.lines[number].work) for number, last in phases.kept_lines.items()
    ]
    spans += [
        (first, phases.last_uses[operand], structure.operands[operand].cuda) for operand, first in phases.loads.items()
    ]
    return max(
        sum(2 if cuda in _TWO_WORDS else 1 for first, last, cuda in spans if first <= phase <= last)
        for phase in range(phases.count)
    )


@dataclass(frozen=True, slots=True)
class RowWalk:
    """Rows of a launch: extents of the joined axes of rows, the innermost first, and how operands move."""

    team: Team
    rows: int
    columns: int
    extents: tuple[int, ...]
    operands: tuple[RowOperand, ...]
    strides: tuple[tuple[int, ...], ...]  # of every operand along every axis of rows
    along: tuple[int, ...]  # of every operand along a row
    is_wide: bool

    @classmethod
    def of(cls, emit: Emitter, layout: RowLayout, inputs: Sequence[Slot | None], outputs: Sequence[Slot]) -> RowWalk:
        """Return the walk of operands, joined as at the upper end of the size class."""
        shape = layout.shape[: layout.axis]
        count, columns = prod(shape), prod(layout.shape[layout.axis :])
        given = [(number, slot) for number, slot in enumerate(inputs) if slot is not None]
        spread = [_spread(layout, number, slot) for number, slot in given]
        laid = [strides[: layout.axis] for strides in spread]
        joined = emit.choose(sum(1 << axis for axis in list_joined(shape, laid)))
        groups = group_axes(len(shape), joined)
        walked = [join_strides(shape, own, groups)[::-1] for own in laid]
        sizes = tuple([prod(shape[axis] for axis in group) for group in groups])[::-1]
        slots = [*(slot for _, slot in given), *outputs]
        limit = max((max_offset(slot.shape, slot.strides) for slot in slots), default=0)
        is_wide = bool(emit.choose(max(limit, count * columns, columns + BLOCK_THREADS * _HELD[-1]) >= _NARROW))
        along = [_find_column_stride(layout, strides) for strides in spread]
        assert None not in along, "checked by can_launch"
        operands = [
            _choose_moves(emit, slot, sizes, own, stride or 0, columns)
            for (_, slot), own, stride in zip(given, walked, along, strict=True)
        ]
        found = tuple([stride or 0 for stride in along])
        team = choose_team(columns, count)
        return cls(team, count, columns, sizes, tuple(operands), tuple(walked), found, is_wide)

    def pack(self) -> bytes:
        """Return the bytes of ``RowWalk``."""
        divide = pack_fast_div64 if self.is_wide else pack_fast_div32
        packed = pack_struct("<qqi4x" if self.is_wide else "<iii4x", self.rows, self.columns, self.team.lanes)
        packed += join_bytes([divide(max(1, size)) for size in self.extents[:-1]] or [divide(1)])
        moved = [
            stride
            for operand, strides in zip(self.operands, self.strides, strict=True)
            for moves, stride in zip(operand.moves, strides, strict=True)
            if moves
        ]
        moved += [
            stride
            for operand, stride in zip(self.operands, self.along, strict=True)
            if operand.kind is ColumnKind.STRIDED
        ]
        return packed + pack_struct(f"<{max(1, len(moved))}{'q' if self.is_wide else 'i'}", *(moved or [0]))


def _choose_moves(
    emit: Emitter, slot: Slot, extents: tuple[int, ...], strides: tuple[int, ...], stride: int, columns: int
) -> RowOperand:
    """Return how an operand moves, as at the upper end of the size class.

    Raises:
        PlanError: It does not.
    """
    if not slot.spec.size:
        stride = 1  # nothing is read
    now = ColumnKind.STRIDED if stride not in (0, 1) else ColumnKind(stride)
    kind = ColumnKind(emit.choose(now))
    moves = sum(
        1 << axis for axis, (own, extent) in enumerate(zip(strides, extents, strict=True)) if own and extent > 1
    )
    mask = emit.choose(moves)
    fits = kind is ColumnKind.STRIDED or columns <= 1 or stride == kind
    if not fits or moves & ~mask or (kind is ColumnKind.STILL and not slot.spec.size):
        raise PlanError(f"{slot} does not lie as at the upper end of the size class.")
    return RowOperand(dtype_row(slot.dtype).cuda, kind, tuple([bool(mask >> k & 1) for k in range(len(extents))]))


@memoize(1024)
def write_kernel(structure: RowStructure) -> Kernel:
    """Return the kernel of a structure, with the text of its `Region`."""
    name, text = name_text("Rows", RowText(structure).write())
    operands = [f"const {operand.cuda}" for operand in structure.operands] + [cuda for _, cuda in structure.results]
    return Kernel(SOURCE, f"rows<{', '.join([name, *operands])}>", text)


class RowText:
    """The text of a structure, for a block that has a team for each of its rows.

    Attributes:
        first_column: The expression of a lane's first column.
        place: The type of a row's place in results, then what it is made of beside the walk: parameter and argument.
    """

    first_column = "team.lane"
    place = ("RowPlace", "const Team& team", "team")

    def __init__(self, structure: RowStructure) -> None:
        self._structure, self._phases = structure, structure.phases
        self._offset = "i64" if structure.is_wide else "i32"
        strided = [operand for operand in structure.operands if operand.kind is ColumnKind.STRIDED]
        self._rank = max((len(operand.moves) for operand in structure.operands), default=0)
        self._moved = sum(sum(operand.moves) for operand in structure.operands)
        self._strides = self._moved + len(strided)

    def write(self) -> str:
        """Return the text of a region, with ``@`` for its name."""
        structure = self._structure
        inputs = [f"const {operand.cuda}* in{k}" for k, operand in enumerate(structure.operands)]
        outputs = [f"{cuda}* out{k}" for k, (_, cuda) in enumerate(structure.results)]
        parameters = ["const Walk& walk, const Numbers& numbers, const Team& team, const Place& place"]
        lines = [
            *self._write_head(),
            *self._write_place(),
            "",
            f"  static __device__ void run({', '.join([*parameters, *inputs, *outputs])}) {{",
            *self._write_still(),
        ]
        for phase in range(self._phases.count + 1):
            lines += self._write_row_lines(phase)
            lines += self._write_loop(phase)
        lines += self._write_row_results()
        return "\n".join([*lines, "  }", "};"]) + "\n"

    def _write_head(self) -> list[str]:
        """Return the beginning of the type: what it is for, and what a launch is told."""
        structure = self._structure
        return [
            f"// {', '.join(line.step for line in structure.lines if line.step)}, "
            + (f"{structure.held} elements of a row in each lane." if structure.held else "rows read in each phase."),
            "struct @ {",
            f"  typedef RowWalk<{self._offset}, {max(0, self._rank - 1)}, {self._strides}> Walk;",
            f"  typedef RegionNumbers<{', '.join(map(str, structure.counts))}> Numbers;",
            f"  static constexpr int kHeld = {structure.held};",
            "",
        ]

    def _write_place(self) -> list[str]:
        """Return the type that finds where the row of a team lies in operands."""
        name, parameter, argument = self.place
        base = f"{name}<{self._offset}>"
        moving = [(k, operand) for k, operand in enumerate(self._structure.operands) if any(operand.moves)]
        if not moving:
            return [f"  typedef {base} Place;"]
        unsigned = "u64" if self._structure.is_wide else "u32"
        lines = [
            f"  struct Place : {base} {{",
            f"    {self._offset} {', '.join(f'at{k}' for k, _ in moving)};  // of the row's first element",
            "",
            f"    __device__ Place(const Walk& walk, {parameter}) : {base}(walk, {argument}) {{",
            f"      {unsigned} rest = {unsigned}(row);",
        ]
        last, number = self._rank - 1, 0
        for axis in range(last):
            lines += [f"      {unsigned} c{axis};", f"      rest = walk.extents[{axis}].divide(rest, c{axis});"]
        for k, operand in moving:
            terms = []
            for axis, moves in enumerate(operand.moves):
                if moves:
                    coordinate = "rest" if axis == last else f"c{axis}"
                    terms.append(f"{self._offset}({coordinate}) * walk.strides[{number}]")
                    number += 1
            lines.append(f"      at{k} = {' + '.join(terms)};")
        return [*lines, "    }", "  };"]

    def _write_still(self) -> list[str]:
        """Return the loads of operands that have one element for a row."""
        used = {operand for line in self._structure.lines for operand in line.operands}
        return [
            f"    const auto x{k} = widen(in{k}[{self._find_row(k)}]);"
            for k, operand in enumerate(self._structure.operands)
            if operand.kind is ColumnKind.STILL and k in used
        ]

    def _write_row_lines(self, phase: int) -> list[str]:
        """Return values of rows that are there when a phase begins."""
        lines = []
        for line, own in zip(self._structure.lines, self._phases.of_lines, strict=True):
            if line.fold and own + 1 == phase:
                folded = f"folded_{line.name}"
                lines.append(f"    const auto {folded} = {self._write_folded(line)};")
                lines.append(self._write_value(line, line.finish.replace("@", folded), "    "))
            elif line.is_of_row and own == phase:
                lines.append(self._write_value(line, line.code, "    "))
        return lines

    def _write_loop(self, phase: int) -> list[str]:
        """Return the loop of a phase over the elements of a lane."""
        structure, phases = self._structure, self._phases
        folds = [n for n, line in enumerate(structure.lines) if line.fold and phases.of_lines[n] == phase]
        own = [n for n, line in enumerate(structure.lines) if line.is_element and phases.of_lines[n] == phase]
        if not folds and not own:
            return []
        lines = [
            f"    {self._declare_part(structure.lines[n])} = {structure.lines[n].fold}::identity();" for n in folds
        ]
        body = [*self._write_skip(folds), *self._write_body(phase, own, folds)]
        if structure.held:
            begin = [*self._write_held(phase, own), *self._begin_held_loop(), "      if (column >= place.end) break;"]
            return [*lines, *begin, *body, "    }"]
        return [
            *lines,
            f"    for ({self._offset} column = team.lane; column < place.end; column += team.lanes) {{",
            *body,
            "    }",
        ]

    def _begin_held_loop(self) -> list[str]:
        """Return the beginning of a loop over the elements that a lane holds."""
        return [
            "#pragma unroll",
            "    for (int i = 0; i < kHeld; ++i) {",
            f"      const {self._offset} column = {self.first_column} + i * team.lanes;",
        ]

    def _write_folded(self, line: Line) -> str:
        """Return the expression of what all lanes of a team have folded."""
        return f"fold_team<{line.fold}>(team, part_{line.name})"

    def _declare_part(self, line: Line) -> str:
        """Return what begins a lane's own part of a fold."""
        return f"typename {line.fold}::Partial part_{line.name}"

    def _write_skip(self, folds: Sequence[int]) -> list[str]:
        """Return the statements that pass over elements of a phase with these folds."""
        return []

    def _write_held(self, phase: int, own: Sequence[int]) -> list[str]:
        """Return the loads of operands that a phase reads first, all under way together, and room for what it keeps."""
        lines = []
        for k, first in self._phases.loads.items():
            if first == phase:
                cuda = self._structure.operands[k].cuda
                lines += [f"    {cuda} held{k}[kHeld];", *self._begin_held_loop(), self._write_load(k, IN_ROW), "    }"]
        return [*lines, *self._write_kept(own)]

    def _write_kept(self, own: Sequence[int]) -> list[str]:
        """Return room for what a phase of these lines keeps."""
        kept = [self._structure.lines[number] for number in own if number in self._phases.kept_lines]
        return [f"    {line.work} kept_{line.name}[kHeld];" for line in kept]

    def _write_load(self, k: int, condition: str) -> str:
        """Return the statement that loads an element that is held, where a condition holds."""
        cuda = self._structure.operands[k].cuda
        return f"      held{k}[i] = {condition} ? in{k}[{self._find_element(k)}] : cast<{cuda}>(0);"

    def _write_body(self, phase: int, own: Sequence[int], folds: Sequence[int]) -> list[str]:
        """Return what a phase does with an element."""
        structure, phases = self._structure, self._phases
        needed = self._find_needed([*own, *folds])
        computed = (*own, *folds) if structure.held else needed
        read = {k for number in computed for k in structure.lines[number].operands if k in phases.loads}
        lines = []
        for k in sorted(read):
            source = f"held{k}[i]" if structure.held else f"in{k}[{self._find_element(k)}]"
            lines.append(f"      const auto x{k} = widen({source});")
        for number in needed:
            line = structure.lines[number]
            if line.fold:
                part = f"part_{line.name}"
                lines.append(f"      {part} = {line.fold}::merge({part}, {line.code});")
            elif structure.held and phases.of_lines[number] < phase:
                lines.append(f"      const auto {line.name} = kept_{line.name}[i];")
            else:
                lines.append(self._write_value(line, line.code, "      "))
                if structure.held and number in phases.kept_lines:
                    lines.append(f"      kept_{line.name}[i] = {line.name};")
        for k, (number, cuda) in enumerate(structure.results):
            if number in own:
                name = structure.lines[number].name
                lines.append(f"      {self._write_store(k, f'cast<{cuda}>({name})')};")
        return lines

    def _write_store(self, k: int, value: str) -> str:
        """Return the statement that stores an element of a result."""
        return f"out{k}[place.first + column] = {value}"

    def _find_needed(self, numbers: Sequence[int]) -> list[int]:
        """Return these lines and the lines of elements that they read, in order; where rows are held, those kept."""
        structure, needed = self._structure, set(numbers)
        stack = list(numbers)
        while stack:
            number = stack.pop()
            is_kept = structure.held and number not in numbers
            for source in () if is_kept else structure.lines[number].lines:
                if structure.lines[source].is_element and source not in needed:
                    needed.add(source)
                    stack.append(source)
        return sorted(needed)

    def _write_value(self, line: Line, code: str, indent: str) -> str:
        """Return a line of text that gives a value its name."""
        if not line.cuda:
            return f"{indent}const auto {line.name} = {code};"
        return f"{indent}const auto {line.name} = round_to<{line.cuda}>({code});  // {line.step}"

    def _write_row_results(self) -> list[str]:
        """Return the stores of results that rows have one of."""
        stores = [
            f"      out{k}[place.row] = cast<{cuda}>({self._structure.lines[number].name});"
            for k, (number, cuda) in enumerate(self._structure.results)
            if not self._structure.lines[number].is_element
        ]
        return ["    if (place.is_live && team.lane == 0) {", *stores, "    }"] if stores else []

    def _find_row(self, k: int) -> str:
        """Return the offset of a row's first element in an operand."""
        return f"place.at{k}" if any(self._structure.operands[k].moves) else "0"

    def _find_element(self, k: int) -> str:
        """Return the offset of an element of a row."""
        operand = self._structure.operands[k]
        column = "column"
        if operand.kind is ColumnKind.STRIDED:
            number = self._moved + sum(each.kind is ColumnKind.STRIDED for each in self._structure.operands[:k])
            column = f"column * walk.strides[{number}]"
        return f"place.at{k} + {column}" if any(operand.moves) else column


@work_of(SOURCE, "rows")
def count_rows_region(launch: Launch) -> Work:
    """Count the steps of a row region by the lines of its text, which has those computed anew once more."""
    text, walk = launch.kernel.text, launch.arguments[0]
    assert isinstance(walk, bytes)
    rows, columns, lanes = struct.unpack_from("<qqi" if "RowWalk<i64" in text else "<iii", walk)
    slots = [slot for slot in launch.arguments if isinstance(slot, Slot)]
    steps, own, is_held = count_steps(text), ceil_div(columns, lanes), "kHeld = 0;" not in text
    folds = text.count("fold_team<")
    passes = 1 if is_held else folds + 1
    return Work(
        flops=steps * rows * columns,
        instructions=count_warps(launch) * (_AROUND + own * steps * STEP_INSTRUCTIONS),
        l2_nbytes=passes * sum(map(count_slot_bytes, slots)),
        rounds=1 if is_held else passes * ceil_div(own, 4),
        barriers=folds * (2 if lanes > WARP else 1),
        registers=64,
        shared_nbytes=_FOLD_NBYTES * folds,
    )
