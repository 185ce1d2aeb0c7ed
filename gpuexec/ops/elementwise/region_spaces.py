"""Spaces of a region with index maps: the coordinates that each step is evaluated at, and where inputs lie by them.

The root space has the coordinates of the results. A step that is made of windows (`gpuexec.ir.index_map.Windows`)
evaluates each part in a space of its own: coordinates are shifted back by the window's start, and are inside where
they are within its extents. All spaces have the axes of the root; a value of fewer axes, or of extent 1, is broadcast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuexec.ir.command import Slot
from gpuexec.ir.geometry import broadcast_strides
from gpuexec.ir.index_map import Picked, Windows
from gpuexec.ops.elementwise.region_steps import Given, StepForms, StepRow, read_steps, step_of

Strides = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Space:
    """Coordinates of a part.

    Attributes:
        parent: Number of the space that it is a window of; -1: it is the root.
        shape: Extents of the window.
        windows: Axes along which it is a window, and its starts there.
    """

    parent: int
    shape: tuple[int, ...]
    windows: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where an input lies by the coordinates of a space.

    Attributes:
        source: The input.
        space: Number of the space.
        strides: Along each axis.
        picked: Where slices of it are picked: the number of the place of the indices, the input's stride along the
            axis that is picked along, and the extent of that axis.
    """

    source: int
    space: int
    strides: Strides
    picked: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A step in a space.

    Attributes:
        step: Its number.
        space: Number of the space.
        given: For each input the name of a value: ``x0`` for a place, ``v0`` for an evaluation, a number as text, or
            None.
        inside: Of a step made of windows, the numbers of the parts' spaces.
    """

    step: int
    space: int
    given: tuple[str | None, ...]
    inside: tuple[int, ...] = ()


class CannotMapError(Exception):
    """The steps can't be evaluated at coordinates of the results."""


@dataclass(slots=True)
class Spaces:
    """The spaces, places and evaluations that make the results of a region, in order.

    Attributes:
        spaces: Number 0 is the root.
        places: Where inputs lie.
        evaluations: In an order in which each finds its inputs.
    """

    spaces: list[Space]
    places: list[Place] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    _numbers: dict[tuple[int, int, int], int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, rows: tuple[StepRow, ...], forms: StepForms, results: Sequence[int], inputs: Sequence[Slot | None]
    ) -> tuple[Spaces, tuple[str, ...]]:
        """Return the spaces of a region and the names of its results.

        Args:
            rows: The steps.
            forms: What they make of the inputs; all have a kind.
            results: The steps that make the results, all of one shape.
            inputs: Where they lie.

        Raises:
            CannotMapError: There are none.
        """
        found = cls([Space(-1, forms.specs[results[0]].shape)])
        finder = _Finder(found, rows, forms, inputs)
        return found, tuple([finder.find_step(step, 0) for step in results])

    def add_place(self, place: Place, step: int = -1) -> int:
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


class _Finder:
    """Walk from the results back to the inputs."""

    def __init__(
        self, spaces: Spaces, rows: tuple[StepRow, ...], forms: StepForms, inputs: Sequence[Slot | None]
    ) -> None:
        self._spaces, self._steps, self._forms, self._inputs = spaces, read_steps(rows), forms, inputs
        self._names: dict[tuple[int, int], str] = {}

    def find(self, given: Given, space: int) -> str | None:
        """Return the name of a source in a space."""
        if given is None or isinstance(given, str):
            return given
        if given < 0:
            return self.find_step(step_of(given), space)
        slot = self._find_slot(given)
        strides = spread(slot.shape, slot.strides, self._spaces.spaces[space].shape)
        return f"x{self._spaces.add_place(Place(given, space, strides))}"

    def find_step(self, step: int, space: int) -> str:
        """Return the name of what a step makes in a space."""
        if (step, space) not in self._names:
            assert self._forms.kinds is not None
            kind, given = self._forms.kinds[step], self._steps[step].inputs
            if isinstance(kind, Picked):
                name = self._pick(step, kind, space)
            elif isinstance(kind, Windows):
                name = self._add(self._open(step, kind, space))
            else:
                name = self._add(Evaluation(step, space, tuple([self.find(each, space) for each in given])))
            self._names[step, space] = name
        return self._names[step, space]

    def _add(self, evaluation: Evaluation) -> str:
        self._spaces.evaluations.append(evaluation)
        return f"v{len(self._spaces.evaluations) - 1}"

    def _open(self, step: int, kind: Windows, space: int) -> Evaluation:
        """Return the evaluation of windows, each in a space of its own."""
        parent, made = self._spaces.spaces[space], self._forms.specs[step]
        first = len(parent.shape) - made.rank
        if first < 0 or any(made.shape[axis] != parent.shape[first + axis] for axis in kind.axes):
            raise CannotMapError
        given, inside = [], []
        for part in kind.parts:
            source = self._steps[step].inputs[part.source]
            own = self._find_shape(source)
            shape = list(parent.shape)
            for axis in kind.axes:
                shape[first + axis] = own[axis]
            windows = tuple([(first + axis, part.starts[axis]) for axis in kind.axes])
            self._spaces.spaces.append(Space(space, tuple(shape), windows))
            inside.append(len(self._spaces.spaces) - 1)
            given.append(self.find(source, inside[-1]))
        if not kind.is_whole:
            given.append(None if kind.filler is None else self.find(self._steps[step].inputs[kind.filler], space))
        return Evaluation(step, space, tuple(given), tuple(inside))

    def _pick(self, step: int, kind: Picked, space: int) -> str:
        """Return the place of slices of an input."""
        data, indices = (self._find_slot(each) for each in self._steps[step].inputs)
        shape, made = self._spaces.spaces[space].shape, self._forms.specs[step].shape
        axis, behind = kind.axis, data.spec.rank - kind.axis - 1
        strides = (*data.strides[:axis], *(0,) * kind.rank, *data.strides[axis + 1 :])
        of_index = ((0,) * axis) + indices.strides + (0,) * behind
        source, index = self._steps[step].inputs
        assert isinstance(source, int) and isinstance(index, int)
        number = self._spaces.add_place(Place(index, space, spread(made, of_index, shape)))
        picked = (number, data.strides[axis], data.shape[axis])
        return f"x{self._spaces.add_place(Place(source, space, spread(made, strides, shape), picked), step)}"

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
    if len(shape) > len(to):
        raise CannotMapError
    for extent, want in zip(reversed(shape), reversed(to)):
        if extent not in (1, want):
            raise CannotMapError
    strides = broadcast_strides(shape, strides, to)
    return tuple([0 if extent == 1 else stride for extent, stride in zip(to, strides, strict=True)])
