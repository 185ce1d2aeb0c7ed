"""Lines of row regions: what their kernels compute, in phases between folds.

Steps become lines: values of each element, values of a row, and folds. A fold needs all elements of a row before its
result is there, so lines are divided into phases, each a loop over the elements of a lane. A value of an element is
computed in the first phase that uses it, and what a later one uses too is kept.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuexec.ir.pointwise import Pointwise
from gpuexec.ir.row_form import RowForm
from gpuexec.ir.spec import accumulator, dtype_row
from gpuexec.ops.elementwise.region_steps import RegionStep, StepForms, StepRow, read_steps, step_of
from gpuexec.ops.elementwise.region_text import RegionNumbers
from gpuexec.ops.elementwise.row_layout import Level, RowLayout


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the text.

    Attributes:
        name: Of its value.
        code: Expression of the value of an element, or of a row; of a fold, of what an element adds.
        is_of_row: Whether a row has one value without a fold.
        fold: C++ type of a fold, or empty.
        finish: Of a fold, the expression of the row's value, with ``@`` for what is folded.
        cuda: C++ type that its value is rounded to; empty: it is not.
        work: C++ type of the value.
        step: The operator whose result it is, or empty.
        lines: The lines that it reads.
        operands: The operands that it reads, in the order of pointers.
    """

    name: str
    code: str
    is_of_row: bool
    fold: str
    finish: str
    cuda: str
    work: str
    step: str
    lines: tuple[int, ...]
    operands: tuple[int, ...]

    @property
    def is_element(self) -> bool:
        """Whether it has a value for each element."""
        return not self.is_of_row and not self.fold


def write_lines(
    rows: tuple[StepRow, ...], forms: StepForms, layout: RowLayout, is_given: Sequence[bool]
) -> tuple[tuple[Line, ...], tuple[int, ...], RegionNumbers]:
    """Return the lines of steps, the line of each step's result, and the numbers that they take.

    Args:
        rows: The steps.
        forms: What they make of their inputs.
        layout: Of their rows.
        is_given: Of each input, whether it is an operand; those that are there are counted.
    """
    writing = _Writing(layout, is_given)
    assert forms.forms is not None
    for place, (step, form) in enumerate(zip(read_steps(rows), forms.forms, strict=True)):
        if isinstance(form, RowForm):
            writing.add_row(step, form, place)
        else:
            writing.add_pointwise(step, form, place)
    return tuple(writing.lines), tuple(writing.results), writing.numbers


class _Writing:
    """Lines as far as they are written."""

    def __init__(self, layout: RowLayout, is_given: Sequence[bool]) -> None:
        self.lines: list[Line] = []
        self.results: list[int] = []
        self.numbers = RegionNumbers()
        self._layout = layout
        self._operands = {position: k for k, position in enumerate(p for p, given in enumerate(is_given) if given)}

    def add_pointwise(self, step: RegionStep, form: Pointwise, place: int) -> None:
        """Add a step on elements, or on rows that have one value each."""
        names = [self._name(step, position) for position in range(len(step.inputs))]
        attributes = {f"n{k}": self.numbers.add_float(number) for k, number in enumerate(form.numbers)}
        code = form.code.format(*names, **attributes)
        lines, operands = self._list_sources(step, range(len(step.inputs)))
        cuda, work = dtype_row(form.dtype).cuda, dtype_row(accumulator(form.dtype)).cuda
        is_of_row = self._layout.levels[place] is not Level.ELEMENT
        self.results.append(len(self.lines))
        self.lines.append(Line(f"v{place}", code, is_of_row, "", "", cuda, work, step.operator.name, lines, operands))

    def add_row(self, step: RegionStep, form: RowForm, place: int) -> None:
        """Add the lines of a step on rows."""
        first, last = len(self.lines), len(form.lines) - 1
        names = ["" if k in form.read else self._name(step, k) for k in range(len(step.inputs))]
        fields = {f"n{k}": self.numbers.add_double(number) for k, number in enumerate(form.numbers)}
        fields |= {"column": "i64(column)", "columns": "i64(walk.columns)", "p": "@"}
        for k, line in enumerate(form.lines):
            name = f"v{place}" if k == last else f"t{place}_{k}"
            lines, operands = set[int](), set[int]()
            for used in (*_list_fields(line.code), *_list_fields(line.finish)):
                if used.isdecimal():
                    more = self._list_sources(step, [int(used)])
                    lines.update(more[0])
                    operands.update(more[1])
                elif used[0] == "t":
                    lines.add(first + int(used[1:]))
            code, finish = line.code.format(*names, **fields), line.finish.format(*names, **fields)
            cuda, work = dtype_row(form.dtype).cuda if k == last else "", form.work
            if k == last:
                work = dtype_row(accumulator(form.dtype)).cuda
            self.lines.append(
                Line(
                    *(name, code, line.is_of_row, line.fold, finish if line.fold else "", cuda, work),
                    *(step.operator.name if k == last else "", tuple(sorted(lines)), tuple(sorted(operands))),
                )
            )
            fields[f"t{k}"] = name
        self.results.append(len(self.lines) - 1)

    def _name(self, step: RegionStep, position: int) -> str:
        """Return the expression of an input."""
        given = step.inputs[position]
        if given is None:
            return ""
        if isinstance(given, str):
            return self.numbers.add(given)
        return f"x{self._operands[given]}" if given >= 0 else f"v{step_of(given)}"

    def _list_sources(self, step: RegionStep, positions: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the lines and the operands that are some inputs of a step."""
        given = [step.inputs[position] for position in positions]
        lines = dict.fromkeys(self.results[step_of(g)] for g in given if isinstance(g, int) and g < 0)
        return tuple(lines), tuple(dict.fromkeys(self._operands[g] for g in given if isinstance(g, int) and g >= 0))


def _list_fields(text: str) -> Iterator[str]:
    """Yield the names of the fields of a format, but for those that tell numbers and places."""
    for _, name, _, _ in string.Formatter().parse(text):
        name = (name or "").partition(".")[0]
        if name and (name.isdecimal() or (name[0] == "t" and name[1:].isdecimal())):
            yield name


@dataclass(frozen=True, slots=True)
class Phases:
    """When lines are computed, and what is kept until when.

    Attributes:
        of_lines: The phase of each line; the value of a fold is there in the next one.
        kept_lines: Of each line of an element that later phases use, the last one of these.
        loads: Of each operand that moves along the row, the phase that uses it first.
        last_uses: Of each such operand, the phase that uses it last.
    """

    of_lines: tuple[int, ...]
    kept_lines: dict[int, int]
    loads: dict[int, int]
    last_uses: dict[int, int]

    @property
    def count(self) -> int:
        """How many there are."""
        return max(self.of_lines, default=0) + 1


def divide_into_phases(lines: Sequence[Line], moving: Sequence[bool]) -> Phases:
    """Return the phases of lines.

    Args:
        lines: The lines in order.
        moving: Of each operand, whether it moves along the row.
    """
    earliest: list[int] = []
    for line in lines:
        earliest.append(max([earliest[source] + bool(lines[source].fold) for source in line.lines], default=0))
    of_lines, users = list(earliest), [list[int]() for _ in lines]
    for number in range(len(lines) - 1, -1, -1):
        line = lines[number]
        if line.is_element and users[number]:
            of_lines[number] = min(of_lines[user] for user in users[number])
        for source in line.lines:
            users[source].append(number)
    kept_lines = {}
    for number, line in enumerate(lines):
        last = max([of_lines[user] for user in users[number] if not lines[user].is_of_row], default=0)
        if line.is_element and last > of_lines[number]:
            kept_lines[number] = last
    loads: dict[int, int] = {}
    last_uses: dict[int, int] = {}
    for operand, moves in enumerate(moving):
        used = [of_lines[number] for number, line in enumerate(lines) if operand in line.operands]
        if moves and used:
            loads[operand], last_uses[operand] = min(used), max(used)
    return Phases(tuple(of_lines), kept_lines, loads, last_uses)
