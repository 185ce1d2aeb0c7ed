"""Row regions on a device with textures: a blit for each result, by generated text.

A thread makes the elements of a texel, and folds the row that they are of, from its first element on, as the blits of
the operators do. Where so many threads of a row would do that again, a blit of its own folds each row once and keeps
the values that others read of it, all in one texel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuexec.ir.command import Argument, Kernel, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.operator import Emitter
from gpuexec.ir.row_form import RowForm
from gpuexec.ir.spec import COMPUTED
from gpuexec.ir.work import LAUNCH_NBYTES
from gpuexec.ops.elementwise.region_blits import DRAWN, TEXEL_BYTES, launch_blit
from gpuexec.ops.elementwise.region_steps import StepForms, StepRow
from gpuexec.ops.elementwise.region_text import RegionNumbers, name_text
from gpuexec.ops.elementwise.row_kernel import ColumnKind, RowOperand, RowStructure, RowText, RowWalk, describe_rows
from gpuexec.ops.elementwise.row_layout import RowLayout
from gpuexec.ops.elementwise.row_lines import Line

SOURCE = "pixel/rows.cu"
_WORD = np.dtype(np.uint32)  # a texel has four
_KEPT = "kept.as"  # how text reads it
_NBYTES = {row.cuda: row.numpy.itemsize for row in COMPUTED}


def list_unordered(rows: tuple[StepRow, ...], forms: StepForms) -> list[str]:
    """Return the operators whose own blits don't give the bits of lines that fold rows from the first element on."""
    pairs = zip(rows, forms.forms or (), strict=False)
    return list(dict.fromkeys(row[0] for row, form in pairs if isinstance(form, RowForm) and not form.has_blit))


def draw_rows(
    emit: Emitter,
    rows: tuple[StepRow, ...],
    forms: StepForms,
    layout: RowLayout,
    results: Sequence[int],
    inputs: Sequence[Slot | None],
    outputs: Sequence[Slot],
) -> None:
    """Launch the blits of a region of rows.

    Args:
        emit: Emitter of the launches.
        rows: The steps.
        forms: What they make of these inputs.
        layout: Of their rows.
        results: The step that makes each output.
        inputs: The slots that steps read; None: absent.
        outputs: The slots of the results, dense.

    Raises:
        PlanError: Rows or operands are not as at the upper end of the size class.
    """
    structure, _, walk, numbers = describe_rows(emit, rows, forms, layout, results, inputs, outputs)
    drawing = _Drawing(
        emit,
        f"// {', '.join(name for name, _, _ in rows)}",
        structure,
        walk,
        numbers,
        [slot for slot in inputs if slot is not None],
    )
    kept = drawing.choose_kept(outputs)
    if kept:
        drawing.keep(kept)
    for number, y in enumerate(outputs):
        drawing.draw(number, y)


@dataclass(slots=True)
class _Drawing:
    """The blits of a region.

    Attributes:
        emit: Emitter of the launches.
        title: What their text begins with.
        structure: Of all results; once a blit keeps values of rows, these are lines that read them.
        walk: Of all operands.
        numbers: Attributes and constants.
        operands: The slots of the operands.
        kept: The values of rows, if a blit keeps them.
    """

    emit: Emitter
    title: str
    structure: RowStructure
    walk: RowWalk
    numbers: RegionNumbers
    operands: Sequence[Slot]
    kept: Slot | None = None

    def choose_kept(self, outputs: Sequence[Slot]) -> list[int]:
        """Return the lines of rows that a blit of its own is to make; none where each thread may as well."""
        lines = self.structure.lines
        of_elements = [number for number, _ in self.structure.results if lines[number].is_element]
        whole = [_close(lines, [number]) for number in of_elements]
        read = {n for each in whole for k in each if lines[k].is_element for n in lines[k].lines}
        kept = sorted(number for number in read if not lines[number].is_element)
        kept += [number for number, _ in self.structure.results if not lines[number].is_element]
        kept = list(dict.fromkeys(kept))
        if sum(_NBYTES[lines[number].work] for number in kept) > TEXEL_BYTES:
            return []
        by_element = [y for (number, _), y in zip(self.structure.results, outputs) if lines[number].is_element]
        columns, once = self.walk.columns, self._count_fetches(_close(lines, kept))
        again = sum(
            self._count_fetches(each) * ceil_div(y.spec.nbytes, TEXEL_BYTES) for each, y in zip(whole, by_element)
        )
        fetched = (again - once * self.walk.rows) * columns * TEXEL_BYTES
        return kept if self.emit.choose(bool(kept) and fetched > LAUNCH_NBYTES) else []

    def keep(self, kept: Sequence[int]) -> None:
        """Launch the blit that keeps values of rows, and let others read them."""
        lines = list(self.structure.lines)
        places = _place([lines[number] for number in kept])
        texels = self.emit.temp((self.walk.rows, TEXEL_BYTES // _WORD.itemsize), _WORD)
        self._launch("draw_kept_values", texels, kept, places=places)
        for number in kept:
            line = lines[number]
            code = f"{_KEPT}<{line.work}>()[i64(place.row) * {TEXEL_BYTES // _NBYTES[line.work]} + {places[line.name]}]"
            lines[number] = Line(line.name, code, True, "", "", "", line.work, "", (), ())
        self.structure, self.kept = replace(self.structure, lines=tuple(lines)), texels

    def draw(self, number: int, y: Slot) -> None:
        """Launch the blit of a result."""
        line, cuda = self.structure.results[number]
        kernel = "draw_rows" if self.structure.lines[line].is_element else "draw_row_values"
        self._launch(kernel, y, [line], result=cuda)

    def _count_fetches(self, numbers: Collection[int]) -> int:
        """Return how many texels folds among these lines fetch for each element of a row."""
        lines, phases, operands = self.structure.lines, self.structure.phases, self.structure.operands
        fetched = 0
        for phase in range(phases.count):
            folds = [n for n in numbers if lines[n].fold and phases.of_lines[n] == phase]
            read = {k for n in _close(lines, folds, of_elements=True) for k in lines[n].operands}
            fetched += sum(operands[k].kind is not ColumnKind.STILL for k in read)
        return fetched

    def _launch(
        self, kernel: str, y: Slot, wanted: Sequence[int], result: str = "", places: Mapping[str, int] | None = None
    ) -> None:
        """Launch a blit that makes some lines.

        Args:
            kernel: Its name.
            y: What it writes.
            wanted: The lines.
            result: Type of the one that is stored as a result.
            places: Else where each is kept in a texel, by name.
        """
        structure, operands = _reduce(self.structure, wanted, result)
        used = sorted({operand for line in structure.lines for operand in line.operands})
        read = [self.kept] if self.kept is not None and any(_KEPT in line.code for line in structure.lines) else []
        body = _DrawnRows(structure, self.title, used, places or {}, reads_kept=bool(read)).write()
        name, text = name_text(DRAWN, body)
        types = [*([result] if result else []), *(["u32"] if read else []), *(operands[k].cuda for k in used)]
        arguments: list[Argument] = [y, replace(self.walk, operands=operands).pack(), self.numbers.pack(), *read]
        arguments += [self.operands[k] for k in used]
        launch_blit(self.emit, Kernel(SOURCE, f"{kernel}<{', '.join([name, *types])}>", text), y, arguments)


def _close(lines: Sequence[Line], wanted: Sequence[int], *, of_elements: bool = False) -> list[int]:
    """Return these lines and those that they read, in order; through values of elements alone if asked."""
    found, stack = set(wanted), list(wanted)
    while stack:
        for source in lines[stack.pop()].lines:
            if source not in found and (lines[source].is_element or not of_elements):
                found.add(source)
                stack.append(source)
    return sorted(found)


def _reduce(structure: RowStructure, wanted: Sequence[int], result: str) -> tuple[RowStructure, tuple[RowOperand, ...]]:
    """Return a structure of some lines and what they read, and its operands: the others stand still.

    Args:
        structure: With more.
        wanted: The lines.
        result: Type of the one that is stored as a result; empty: none is.
    """
    found = _close(structure.lines, wanted)
    numbers = {number: place for place, number in enumerate(found)}
    lines = tuple([
        replace(line, lines=tuple([numbers[source] for source in line.lines]))
        for line in (structure.lines[number] for number in found)
    ])  # fmt: skip
    used = {operand for line in lines for operand in line.operands}
    operands = tuple([
        own if k in used else RowOperand(own.cuda, ColumnKind.STILL, (False,) * len(own.moves))
        for k, own in enumerate(structure.operands)
    ])  # fmt: skip
    results = ((numbers[wanted[0]], result),) if result else ()
    return replace(structure, lines=lines, operands=operands, results=results), operands


def _place(lines: Sequence[Line]) -> dict[str, int]:
    """Return the lane of a texel that each value is kept in, by name: the widest first, so that all are aligned."""
    places, first = {}, 0
    for line in sorted(lines, key=lambda line: -_NBYTES[line.work]):
        places[line.name] = first // _NBYTES[line.work]
        first += _NBYTES[line.work]
    return places


class _DrawnRows(RowText):
    """The text of a blit, whose thread works on one row after the other.

    Args:
        structure: The lines, and the result if one is stored.
        title: The comment in front.
        used: The operands that lines read.
        places: Of values that are kept, the lane of each, by name.
        reads_kept: Whether it is given a texture of such.
    """

    place = ("DrawnRow", "i64 row", "row")

    def __init__(
        self, structure: RowStructure, title: str, used: Sequence[int], places: Mapping[str, int], *, reads_kept: bool
    ) -> None:
        super().__init__(structure)
        self._title, self._places = title, places
        self._textures = ["const Texture<u32>& kept"] if reads_kept else []
        self._textures += [f"const Texture<{structure.operands[k].cuda}>& in{k}" for k in used]

    def write(self) -> str:
        """Return the text, with ``@`` for its name."""
        structure = self._structure
        made, name, parameters, end = self._find_function()
        given = ", ".join(["const Walk& walk, const Numbers& numbers, i64 row", *parameters, *self._textures])
        lines = [
            f"{self._title}.",
            "struct @ {",
            f"  typedef RowWalk<{self._offset}, {max(0, self._rank - 1)}, {self._strides}> Walk;",
            f"  typedef RegionNumbers<{', '.join(map(str, structure.counts))}> Numbers;",
            "",
            *self._write_place(),
            "",
            f"  static __device__ {made} {name}({given}) {{",
            "    const Place place(walk, row);",
            *self._write_still(),
        ]
        for phase in range(self._phases.count + 1):
            lines += [*self._write_row_lines(phase), *self._write_loop(phase)]
        return "\n".join([*lines, *end, "  }", "};"]) + "\n"

    def _find_function(self) -> tuple[str, str, list[str], list[str]]:
        """Return the function that a kernel calls: type, name, parameters of its own, and its last lines."""
        lines = self._structure.lines
        if self._places:
            work = {line.name: line.work for line in lines}
            puts = [f"    made.put<{work[name]}>({lane}, {name});" for name, lane in self._places.items()]
            return "void", "keep", ["Texel& made"], puts
        ((number, cuda),) = self._structure.results
        if not lines[number].is_element:
            return cuda, "find", [], [f"    return cast<{cuda}>({lines[number].name});"]
        loop = [
            f"    for ({self._offset} column = {self._offset}(first); column < end; ++column) {{",
            *self._write_body(self._phases.of_lines[number], [number], []),
            "    }",
        ]
        return "void", "draw", ["i64 first", "i64 end", f"const DrawnElements<{cuda}>& made"], loop

    def _write_loop(self, phase: int) -> list[str]:
        """Return the loop of a phase over the elements of a row, if it folds them."""
        lines, phases = self._structure.lines, self._phases
        folds = [number for number, line in enumerate(lines) if line.fold and phases.of_lines[number] == phase]
        if not folds:
            return []
        return [
            *(f"    {self._declare_part(lines[n])} = {lines[n].fold}::identity();" for n in folds),
            f"    for ({self._offset} column = 0; column < walk.columns; ++column) {{",
            *self._write_body(phase, [], folds),
            "    }",
        ]

    def _write_folded(self, line: Line) -> str:
        """Return what is folded."""
        return f"part_{line.name}"

    def _write_store(self, k: int, value: str) -> str:
        """Return the statement that puts an element of a result into the texel."""
        return f"made.put(int(column - first), {value})"
