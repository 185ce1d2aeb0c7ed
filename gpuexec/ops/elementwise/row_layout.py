"""Layout of row regions: which values have an element for each element of a row, and which one for each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import prod

from gpuexec.ir.row_form import RowForm
from gpuexec.ir.symbolic_int import distinct, memoize
from gpuexec.ops.elementwise.region_steps import Given, SpecKey, StepForms, StepRow, read_steps, step_of


class Level(IntEnum):
    """Where the elements of a value lie."""

    ELEMENT = 0  # one for each element of a row
    KEPT = 1  # one for each row, in as many axes
    GONE = 2  # one for each row, in the axes of rows alone


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The rows of a region.

    Attributes:
        shape: Of a value with all elements: the axes of rows, then those that a row lies along.
        axis: The first of the latter.
        levels: Of the steps' results.
        ranks: Of each input, how many axes it goes with: all, those of rows, or none where it has one element.
    """

    shape: tuple[int, ...]
    axis: int
    levels: tuple[Level, ...]
    ranks: tuple[int, ...]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return prod(self.shape[: self.axis])

    @property
    def columns(self) -> int:
        """The elements of a row."""
        return prod(self.shape[self.axis :])

    def spread(self, number: int) -> tuple[int, ...]:
        """Return the shape that an input broadcasts to."""
        return self.shape[: self.ranks[number]]


def find_row_layout(
    rows: tuple[StepRow, ...], forms: StepForms, inputs: tuple[SpecKey | None, ...], *, is_reduced: bool = True
) -> RowLayout | None:
    """Return the layout of steps that reduce the same rows alone; None where others are among them, or no reduction.

    Args:
        rows: The steps.
        forms: What they make of these inputs.
        inputs: Shapes and types.
        is_reduced: Whether a reduction is asked for; without one, rows lie along the last axis of the last result.
    """
    return _find(rows, forms, inputs, is_reduced)


@memoize(1024)
def _find(
    rows: tuple[StepRow, ...], forms: StepForms, inputs: tuple[SpecKey | None, ...], is_reduced: bool
) -> RowLayout | None:
    if forms.forms is None:
        return None
    whole = distinct(
        (_shape_of(step.inputs[0], forms, inputs), form.axis)
        for step, form in zip(read_steps(rows), forms.forms, strict=True)
        if isinstance(form, RowForm)
    )
    last = forms.specs[-1]
    if not whole and not is_reduced and last.rank:
        whole.append((last.shape, last.rank - 1))
    if len(whole) != 1:
        return None
    ((shape, axis),) = whole
    return None if shape is None else _Levels(shape, axis, forms, inputs).assign(rows)


def _shape_of(given: Given, forms: StepForms, inputs: Sequence[SpecKey | None]) -> tuple[int, ...] | None:
    """Return the shape of a value that a step reads; None of one that is absent or a number."""
    if not isinstance(given, int):
        return None
    if given < 0:
        return forms.specs[step_of(given)].shape
    key = inputs[given]
    return None if key is None else key[0]


class _Levels:
    """The levels of a region's values, as far as they are known."""

    def __init__(self, shape: tuple[int, ...], axis: int, forms: StepForms, inputs: tuple[SpecKey | None, ...]) -> None:
        self._shape, self._axis, self._forms, self._inputs = shape, axis, forms, inputs
        self._kept = (*shape[:axis], *(1,) * (len(shape) - axis))
        self._folded: set[int] = set()  # inputs that are reduced, so have all elements
        self._levels: list[Level] = []
        self._ranks: dict[int, int] = {}  # of inputs

    def assign(self, rows: tuple[StepRow, ...]) -> RowLayout | None:
        """Return the layout, or None where a step fits none."""
        assert self._forms.forms is not None
        pairs = zip(read_steps(rows), self._forms.forms, strict=True)
        self._folded = {g for step, form in pairs if isinstance(form, RowForm) and isinstance(g := step.inputs[0], int)}
        for place, (step, form) in enumerate(zip(read_steps(rows), self._forms.forms, strict=True)):
            left_out = (*form.read, *form.of_rows) if isinstance(form, RowForm) else ()
            given = [g for position, g in enumerate(step.inputs) if isinstance(g, int) and position not in left_out]
            level = self._reduce(place, form, given) if isinstance(form, RowForm) else self._map(place, given)
            rank = self._axis if level is Level.GONE and not isinstance(form, RowForm) else len(self._shape)
            if level is None or not self._place_inputs(given, rank):
                return None
            of_rows = [step.inputs[position] for position in form.of_rows] if isinstance(form, RowForm) else []
            if not self._place_inputs([g for g in of_rows if isinstance(g, int)], self._axis):
                return None
            self._levels.append(level)
        ranks = tuple([self._ranks.get(number, 0) for number in range(len(self._inputs))])
        return RowLayout(self._shape, self._axis, tuple(self._levels), ranks)

    def _reduce(self, place: int, form: RowForm, given: Sequence[int]) -> Level | None:
        """Return the level of what an operator on rows makes."""
        first, *others = given
        made = [self._levels[step_of(g)] for g in others if g < 0]
        if (first < 0 and self._levels[step_of(first)] is not Level.ELEMENT) or Level.GONE in made:
            return None
        if not form.is_reduced:
            return Level.ELEMENT
        return Level.KEPT if self._forms.specs[place].rank == len(self._shape) else Level.GONE

    def _map(self, place: int, given: Sequence[int]) -> Level | None:
        """Return the level of what an operator on elements makes."""
        made = {self._levels[step_of(g)] for g in given if g < 0}
        shape = self._forms.specs[place].shape
        if Level.GONE in made:
            return Level.GONE if len(made) == 1 and shape == self._shape[: self._axis] else None
        # Where rows have one column, either shape would do.
        if made == {Level.KEPT} and shape == self._kept and self._folded.isdisjoint(given):
            return Level.KEPT
        if shape == self._shape:
            return Level.ELEMENT
        if made:
            return None
        return Level.KEPT if shape == self._kept else Level.GONE if shape == self._shape[: self._axis] else None

    def _place_inputs(self, given: Sequence[int], rank: int) -> bool:
        """Note with how many axes inputs go; return whether that is one number. One element goes with any."""
        for number in given:
            if number < 0 and rank < len(self._shape) and self._levels[step_of(number)] is not Level.GONE:
                return False
            key = self._inputs[number] if number >= 0 else None
            if key is None or (all(extent == 1 for extent in key[0]) and number not in self._folded):
                continue
            if self._ranks.setdefault(number, rank) != rank:
                return False
        return True
