"""Spaces of a region with index maps: the coordinates that each step is evaluated at, and where inputs lie by them.

The root space has the coordinates of the results. A step that shows views of another (`gpuexec.ir.index_map.Viewed`)
evaluates that in a space whose coordinates are sums of its own with steps. A step that is made of windows (`Assembled`)
evaluates each part in a space of its own: coordinates are shifted back by the window's start, and are inside where they
are within its extents. Coordinates of all spaces are `LinearForm`s: sums of those of the root, or of the nearest window
around, with factors. Where a step joins axes of another one's result, the root has these axes in place of the joined
one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import prod

from gpuexec.errors import PlanError
from gpuexec.ir.command import Slot
from gpuexec.ir.geometry import broadcast_strides
from gpuexec.ir.index_map import Assembled, Picked, Reshaped, Viewed
from gpuexec.ops.elementwise.region_steps import Given, StepForms, StepRow, read_steps, step_of
from gpuexec.ops.lib.strided import MAX_RANK

Strides = tuple[int, ...]
# A coordinate of a window that is none along an axis of the root: the numbers of its space and its axis there.
Variable = tuple[int, int]


@dataclass(frozen=True, slots=True)
class LinearForm:
    """A sum of coordinates with factors.

    Attributes:
        row: The factor of each axis of the root; where the space, or one around it, is a window along that axis, of the
            coordinate in the innermost such window.
        others: Coordinates of windows along no axis of the root, with their factors.
        offset: What is added.
    """

    row: tuple[int, ...]
    others: tuple[tuple[Variable, int], ...] = ()
    offset: int = 0

    def is_axis(self) -> int | None:
        """Return the axis of the root that it is the coordinate along, but for the offset; None: it is none."""
        moved = [axis for axis, factor in enumerate(self.row) if factor]
        return moved[0] if len(moved) == 1 and self.row[moved[0]] == 1 and not self.others else None


def add_forms(rank: int, terms: Sequence[tuple[LinearForm, int]], offset: int = 0) -> LinearForm:
    """Return the sum of forms with factors.

    Args:
        rank: Axes of the root.
        terms: Forms and their factors.
        offset: What is added.
    """
    row, others = [0] * rank, dict[Variable, int]()
    for form, factor in terms:
        row = [have + factor * more for have, more in zip(row, form.row, strict=True)]
        offset += factor * form.offset
        for variable, more in form.others:
            others[variable] = others.get(variable, 0) + factor * more
    return LinearForm(tuple(row), tuple(others.items()), offset)


@dataclass(frozen=True, slots=True)
class WindowAxis:
    """An axis of a space along which it is a window.

    Attributes:
        axis: Of the space.
        form: The coordinate around it, in the space that it is a window of.
        start: Of the window in that.
        extent: Of the window.
        root: The axis of the root that the coordinate is along; -1: none.
    """

    axis: int
    form: LinearForm
    start: int
    extent: int
    root: int


@dataclass(frozen=True, slots=True)
class Space:
    """Coordinates that steps are evaluated at.

    Attributes:
        parent: Number of the space that it was made of; -1: it is the root.
        shape: Its extents.
        axes: The coordinate along each axis.
        extents: Along the axes of the root, those of windows where there are some around.
        windows: Axes along which it is a window.
        guard: Number of the nearest space, of it and those around it, that is a window; 0: none is.
        is_shown: Whether it or one around it is the space of a view.
    """

    parent: int
    shape: tuple[int, ...]
    axes: tuple[LinearForm, ...]
    extents: tuple[int, ...]
    windows: tuple[WindowAxis, ...] = ()
    guard: int = 0
    is_shown: bool = False


@dataclass(frozen=True, slots=True)
class InputPlace:
    """Where an input lies by the coordinates of a space.

    Attributes:
        source: The input.
        space: Number of the space.
        form: Elements from its first one on.
        picked: Where slices of it are picked: the number of the place of the indices, the input's stride along the
            axis that is picked along, and the extent of that axis.
    """

    source: int
    space: int
    form: LinearForm
    picked: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A step in a space.

    Attributes:
        name: Of its value: ``v0`` for the first of step 0, ``v0_1`` for the next one.
        step: Its number.
        given: For each input the name of a value: ``x0`` for a place, that of an evaluation, a number as text, or None.
        inside: Of a step made of windows, the numbers of the parts' spaces.
    """

    name: str
    step: int
    given: tuple[str | None, ...]
    inside: tuple[int, ...] = ()


class CannotMapError(Exception):
    """The steps can't be evaluated at coordinates of the results."""


class _DivideAxisError(Exception):
    """An axis of the root must be several."""

    def __init__(self, axis: int, extents: Sequence[int]) -> None:
        super().__init__(axis, extents)
        self.axis, self.extents = axis, tuple(extents)


@dataclass(slots=True)
class Spaces:
    """The spaces, places and evaluations that make the results of a region, in order.

    Attributes:
        spaces: Number 0 is the root.
        divided: For each axis of the results the extents of the root's axes that it is.
        places: Where inputs lie.
        evaluations: In an order in which each finds its inputs.
    """

    spaces: list[Space]
    divided: tuple[tuple[int, ...], ...]
    places: list[InputPlace] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    _numbers: dict[tuple[int, int, int], int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        rows: tuple[StepRow, ...],
        forms: StepForms,
        results: Sequence[int],
        inputs: Sequence[Slot | None],
        choose: Callable[[int], int] = int,
    ) -> tuple[Spaces, tuple[str, ...]]:
        """Return the spaces of a region and the names of its results.

        Args:
            rows: The steps.
            forms: What they make of the inputs; all have a kind.
            results: The steps that make the results, all of one shape.
            inputs: Where they lie.
            choose: As `Emitter.choose`.

        Raises:
            CannotMapError: There are none.
            PlanError: A window is along another axis than at the upper end of the size class.
        """
        shape = forms.specs[results[0]].shape
        divided: tuple[tuple[int, ...], ...] = tuple([(extent,) for extent in shape])
        while True:
            found = cls([_make_root(shape, divided)], divided)
            finder = _Finder(found, rows, forms, inputs, int)
            try:
                for step in results:
                    finder.find_step(step, 0)
                break
            except _DivideAxisError as more:
                flat = [[(n, extent) for extent in each] for n, each in enumerate(divided)]
                pairs = [pair for each in flat for pair in each]
                owner = pairs[more.axis][0]
                pairs[more.axis : more.axis + 1] = [(owner, extent) for extent in more.extents]
                divided = tuple([tuple([e for n, e in pairs if n == axis]) for axis in range(len(shape))])
        if sum(map(len, divided)) > MAX_RANK:
            raise CannotMapError
        found = cls([_make_root(shape, divided)], divided)
        finder = _Finder(found, rows, forms, inputs, choose)
        return found, tuple([finder.find_step(step, 0) for step in results])

    @property
    def rank(self) -> int:
        """Axes of the root."""
        return len(self.spaces[0].extents)

    def add_place(self, place: InputPlace, step: int = -1) -> int:
        """Return the number of a place.

        Args:
            place: The place.
            step: The step that picks slices by it.
        """
        key = (place.source, place.space, step)
        if key not in self._numbers:
            self._numbers[key] = len(self.places)
            self.places.append(place)
        return self._numbers[key]

    def add_space(self, space: Space) -> int:
        """Return the number of a space."""
        self.spaces.append(space)
        return len(self.spaces) - 1


class _Finder:
    """Walk from the results back to the inputs."""

    def __init__(
        self,
        spaces: Spaces,
        rows: tuple[StepRow, ...],
        forms: StepForms,
        inputs: Sequence[Slot | None],
        choose: Callable[[int], int],
    ) -> None:
        self._spaces, self._steps, self._forms, self._inputs = spaces, read_steps(rows), forms, inputs
        self._choose = choose
        self._names: dict[tuple[int, int], str] = {}

    def find(self, given: Given, space: int) -> str | None:
        """Return the name of a source in a space."""
        if given is None or isinstance(given, str):
            return given
        if given < 0:
            return self.find_step(step_of(given), space)
        slot = self._find_slot(given)
        return f"x{self._spaces.add_place(InputPlace(given, space, self._locate(space, slot.shape, slot.strides)))}"

    def find_step(self, step: int, space: int) -> str:
        """Return the name of what a step makes in a space."""
        if (step, space) not in self._names:
            assert self._forms.kinds is not None
            kind, given = self._forms.kinds[step], self._steps[step].inputs
            if isinstance(kind, Picked):
                name = self._pick(step, kind, space)
            elif isinstance(kind, Viewed | Reshaped):
                inner = self._show(step, kind, space) if isinstance(kind, Viewed) else self._divide(step, space)
                found = self.find(given[0], inner)
                assert found is not None
                name = found
            elif isinstance(kind, Assembled):
                name = self._add(step, *self._open(step, kind, space))
            else:
                name = self._add(step, tuple([self.find(each, space) for each in given]))
            self._names[step, space] = name
        return self._names[step, space]

    def _add(self, step: int, given: tuple[str | None, ...], inside: tuple[int, ...] = ()) -> str:
        """Add the evaluation of a step, and return its name."""
        others = sum(each.step == step for each in self._spaces.evaluations)
        name = f"v{step}_{others}" if others else f"v{step}"
        self._spaces.evaluations.append(Evaluation(name, step, given, inside))
        return name

    def _locate(self, space: int, shape: Sequence[int], strides: Sequence[int]) -> LinearForm:
        """Return where an operand lies that broadcasts to a space."""
        here = self._spaces.spaces[space]
        return add_forms(self._spaces.rank, list(zip(here.axes, spread(shape, strides, here.shape), strict=True)))

    def _show(self, step: int, kind: Viewed, space: int) -> int:
        """Return the space of what a view shows."""
        parent, made = self._spaces.spaces[space], self._forms.specs[step].shape
        first = len(parent.shape) - len(made)
        if first < 0:
            raise CannotMapError
        axes = []
        for each in kind.axes:
            moved = [(parent.axes[first + axis], by) for axis, by in each.moves if made[axis] != 1]
            axes.append(add_forms(self._spaces.rank, moved, each.offset))
        shape = self._find_shape(self._steps[step].inputs[0])
        return self._spaces.add_space(
            Space(space, shape, tuple(axes), parent.extents, guard=parent.guard, is_shown=True)
        )

    def _divide(self, step: int, space: int) -> int:
        """Return the space of what holds the same elements under another shape."""
        parent, made = self._spaces.spaces[space], self._forms.specs[step].shape
        shape = self._find_shape(self._steps[step].inputs[0])
        if parent.shape != made:
            raise CannotMapError
        axes = [LinearForm((0,) * self._spaces.rank)] * len(shape)
        if 0 not in shape:
            parts = _list_common(made, shape)
            atoms: list[LinearForm] = []
            for form, extents in zip(parent.axes, _deal(made, parts), strict=True):
                atoms += self._divide_form(form, extents, parent.extents)
            counts = [len(each) for each in _deal(shape, parts)]
            firsts = [0, *accumulate(counts)]
            for axis, (first, count) in enumerate(zip(firsts, counts)):
                own = parts[first : first + count]
                terms = [(atoms[first + n], prod(own[n + 1 :])) for n in range(count)]
                axes[axis] = add_forms(self._spaces.rank, terms)
        return self._spaces.add_space(
            Space(space, shape, tuple(axes), parent.extents, guard=parent.guard, is_shown=True)
        )

    def _divide_form(self, form: LinearForm, parts: Sequence[int], extents: Sequence[int]) -> list[LinearForm]:
        """Return a coordinate as those of the parts that its axis is divided into.

        Raises:
            CannotMapError: It is none of coordinates of the root side by side.
            _DivideAxisError: The root must be divided first.
        """
        if len(parts) <= 1:
            return [form] * len(parts)
        root = self._spaces.spaces[0].extents
        moved = sorted([axis for axis, factor in enumerate(form.row) if factor], key=lambda axis: -form.row[axis])
        if form.others or form.offset or any(extents[axis] != root[axis] for axis in moved):
            raise CannotMapError
        own = [root[axis] for axis in moved]
        factors = [prod(own[n + 1 :]) for n in range(len(own))]
        if [form.row[axis] for axis in moved] != factors or prod(own) != prod(parts):
            raise CannotMapError
        common = _list_common(own, parts)
        for axis, each in zip(moved, _deal(own, common), strict=True):
            if len(each) > 1:
                raise _DivideAxisError(axis, each)
        found, left = [], list(moved)
        for each in _deal(parts, common):
            taken, left = left[: len(each)], left[len(each) :]
            row = [0] * self._spaces.rank
            for n, axis in enumerate(taken):
                row[axis] = prod(each[n + 1 :])
            found.append(LinearForm(tuple(row)))
        return found

    def _open(self, step: int, kind: Assembled, space: int) -> tuple[tuple[str | None, ...], tuple[int, ...]]:
        """Return the values of windows, and then of what is around them, and the space that each window has."""
        parent, made = self._spaces.spaces[space], self._forms.specs[step]
        first = len(parent.shape) - made.rank
        if first < 0 or any(made.shape[axis] != parent.shape[first + axis] for axis in kind.axes):
            raise CannotMapError
        given, inside = [], []
        for part in kind.parts:
            source = self._steps[step].inputs[part.source]
            own = self._find_shape(source)
            windows = [(first + axis, part.starts[axis], own[axis]) for axis in kind.axes]
            inside.append(self._add_window(space, windows))
            given.append(self.find(source, inside[-1]))
        if not kind.is_whole:
            given.append(None if kind.filler is None else self.find(self._steps[step].inputs[kind.filler], space))
        return tuple(given), tuple(inside)

    def _add_window(self, space: int, windows: Sequence[tuple[int, int, int]]) -> int:
        """Return the space of a window, which has a start and an extent along some axes."""
        parent, number = self._spaces.spaces[space], len(self._spaces.spaces)
        rank = self._spaces.rank
        shape, axes, extents, cut = list(parent.shape), list(parent.axes), list(parent.extents), []
        for axis, start, extent in windows:
            form = parent.axes[axis]
            root = self._choose_axis(form, parent.extents)
            cut.append(WindowAxis(axis, form, start, extent, root))
            shape[axis] = extent
            if root >= 0:
                axes[axis], extents[root] = LinearForm(tuple([int(each == root) for each in range(rank)])), extent
            else:
                axes[axis] = LinearForm((0,) * rank, (((number, axis), 1),))
        return self._spaces.add_space(
            Space(space, tuple(shape), tuple(axes), tuple(extents), tuple(cut), number, parent.is_shown)
        )

    def _choose_axis(self, form: LinearForm, extents: Sequence[int]) -> int:
        """Return the axis of the root that a coordinate is along, as at the upper end; -1: none."""
        along = form.is_axis()
        root = self._choose(0 if along is None else along + 1) - 1
        # Along an axis of one element a coordinate is 0, whatever its factor.
        stands = all(not factor or extent == 1 for factor, extent in zip(form.row, extents, strict=True))
        if root not in (-1, along) and not (extents[root] == 1 and stands and not form.others):
            raise PlanError("A window of a region is along another axis than at the upper end of the size class.")
        return root

    def _pick(self, step: int, kind: Picked, space: int) -> str:
        """Return the place of slices of an input."""
        data, indices = (self._find_slot(each) for each in self._steps[step].inputs)
        made = self._forms.specs[step].shape
        axis, behind = kind.axis, data.spec.rank - kind.axis - 1
        strides = (*data.strides[:axis], *(0,) * kind.rank, *data.strides[axis + 1 :])
        of_index = ((0,) * axis) + indices.strides + (0,) * behind
        source, index = self._steps[step].inputs
        assert isinstance(source, int) and isinstance(index, int)
        number = self._spaces.add_place(InputPlace(index, space, self._locate(space, made, of_index)), step)
        picked = (number, data.strides[axis], data.shape[axis])
        place = InputPlace(source, space, self._locate(space, made, strides), picked)
        # The two may be one input.
        return f"x{self._spaces.add_place(place, len(self._steps) + step)}"

    def _find_slot(self, given: Given) -> Slot:
        if not isinstance(given, int) or given < 0:
            raise CannotMapError
        slot = self._inputs[given]
        assert slot is not None
        return slot

    def _find_shape(self, given: Given) -> tuple[int, ...]:
        if isinstance(given, int):
            return self._forms.specs[step_of(given)].shape if given < 0 else self._find_slot(given).shape
        raise CannotMapError


def spread(shape: Sequence[int], strides: Sequence[int], to: Sequence[int]) -> Strides:
    """Return the strides of an operand over a shape, 0 along axes of one element; it may have more axes if it has one.

    Raises:
        CannotMapError: It does not broadcast to the shape.
    """
    if all(extent == 1 for extent in shape):
        return (0,) * len(to)
    if len(shape) > len(to) or any(extent not in (1, want) for extent, want in zip(reversed(shape), reversed(to))):
        raise CannotMapError
    strides = broadcast_strides(shape, strides, to)
    return tuple([0 if extent == 1 else stride for extent, stride in zip(to, strides, strict=True)])


def _make_root(shape: tuple[int, ...], divided: tuple[tuple[int, ...], ...]) -> Space:
    """Return the space of results, some of whose axes are several of the root."""
    extents = tuple([extent for each in divided for extent in each])
    axes, first = [], 0
    for each in divided:
        row = [0] * len(extents)
        for n in range(len(each)):
            row[first + n] = prod(each[n + 1 :])
        axes.append(LinearForm(tuple(row)))
        first += len(each)
    return Space(-1, shape, tuple(axes), extents)


def _list_common(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Return the fewest extents that axes of both shapes, which have as many elements, are products of neighbours of.

    Raises:
        CannotMapError: There are none.
    """
    ends = sorted({*_list_ends(first), *_list_ends(second)})
    parts = []
    for inner, outer in pairwise(ends):
        if outer % inner:
            raise CannotMapError
        parts.append(outer // inner)
    return parts[::-1]


def _list_ends(shape: Sequence[int]) -> list[int]:
    """Return the elements behind and in each axis, and 1."""
    return [1, *accumulate(reversed(shape), lambda a, b: a * b)]


def _deal(shape: Sequence[int], parts: Sequence[int]) -> list[list[int]]:
    """Return for each axis of a shape the parts that it is the product of; none for one of one element."""
    left, dealt = list(parts), []
    for extent in shape:
        own: list[int] = []
        while prod(own) < extent:
            own.append(left.pop(0))
        dealt.append(own)
    return dealt
