"""Steps of a region: operators on elements or rows, or ones that move elements, with the sources of their inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from gpuexec.ir.index_map import IndexMap, Picked
from gpuexec.ir.operator import Array, Operator, build
from gpuexec.ir.pointwise import Pointwise
from gpuexec.ir.row_form import RowForm
from gpuexec.ir.spec import COMPUTED, TensorSpec, accumulator, dtype_row
from gpuexec.ir.symbolic_int import memoize
from gpuexec.ops.lib.view_probe import find_view

# An input of a step: the position of one of the region's inputs, `made_by` of an earlier step, a number as text (see
# `write_number`) or a list of integers (`write_integers`), or None where it is absent.
Given = int | str | None
# The name of an operator, its attributes that differ from their defaults, and its inputs.
StepRow = tuple[str, tuple[tuple[str, Any], ...], tuple[Given, ...]]


@dataclass(frozen=True, slots=True)
class RegionStep:
    """An operator with the sources of its inputs."""

    operator: Operator
    inputs: tuple[Given, ...]

    def pick(self, inputs: Sequence[Any], made: Sequence[Any], wrap: Callable[[Array], Any]) -> tuple[Any, ...]:
        """Return the inputs of the operator, be they specs, arrays or slots.

        Args:
            inputs: Of the region.
            made: Of each step before, what it made.
            wrap: Makes one of a number.
        """
        picked: list[Any] = []
        for given in self.inputs:
            if isinstance(given, str):
                picked.append(wrap(read_number(given)))
            elif given is None:
                picked.append(None)
            else:
                picked.append(inputs[given] if given >= 0 else made[step_of(given)])
        return tuple(picked)


StepKind = Pointwise | IndexMap
_Form = TypeVar("_Form", bound=Pointwise | RowForm)
_DTYPES = frozenset(row.numpy for row in COMPUTED)


@dataclass(frozen=True, slots=True, eq=False)
class StepForms:
    """What steps make of inputs of certain types and shapes.

    Attributes:
        specs: Of the result of each step.
        forms: The pointwise form of each, or its form on rows; None where one of them has none for these inputs.
        kinds: The pointwise form or the index map of each; None where one of them has neither.
    """

    specs: tuple[TensorSpec, ...]
    forms: tuple[Pointwise | RowForm, ...] | None
    kinds: tuple[StepKind, ...] | None

    @property
    def pointwise(self) -> tuple[Pointwise, ...] | None:
        """The pointwise form of each; None where one of them has none."""
        found = tuple([form for form in self.forms or () if isinstance(form, Pointwise)])
        return found if self.forms is not None and len(found) == len(self.forms) else None

    def without_roundings(self) -> StepForms:
        """Return the forms with what makes a float in its accumulator, which others see as it is computed."""
        forms = [_widen(form) for form in self.forms or ()]
        kinds = [_widen(kind) if isinstance(kind, Pointwise) else kind for kind in self.kinds or ()]
        return StepForms(
            self.specs,
            None if self.forms is None else tuple(forms),
            None if self.kinds is None else tuple(kinds),
        )


def made_by(step: int) -> int:
    """Return the source that stands for the result of a step."""
    return -1 - step


def step_of(given: int) -> int:
    """Return the step whose result a negative source stands for."""
    return -1 - given


@memoize(4096)
def read_steps(rows: tuple[StepRow, ...]) -> tuple[RegionStep, ...]:
    """Return the steps of a region's attribute."""
    return tuple([RegionStep(build(name, dict(attributes)), tuple(inputs)) for name, attributes, inputs in rows])


def write_number(array: Array) -> str | None:
    """Return a tensor of one element as text, its type in front; None where there is no text for it."""
    row = dtype_row(array.dtype)
    if row.is_narrow or row.kind == "bool":
        return None
    number = array.reshape(())[()]
    return f"{row.name} {float(number)!r}" if row.is_float else f"{row.name} {int(number)}"


def write_integers(array: Array) -> str:
    """Return a list of integers as text, its type and ``[]`` in front."""
    return f"{dtype_row(array.dtype).name}[] {','.join(map(str, array.reshape(-1).tolist()))}"


@memoize(4096)
def read_number(text: str) -> Array:
    """Return the 0-d array that `write_number` made a text of, or the list of `write_integers`; it is read-only."""
    name, _, digits = text.partition(" ")
    row = dtype_row(name.removesuffix("[]"))
    if name.endswith("[]"):
        array = np.array([int(each) for each in digits.split(",") if each], row.numpy)
    else:
        array = np.array(float(digits) if row.is_float else int(digits), np.float64 if row.is_float else None)
    array = array.astype(row.numpy)
    array.flags.writeable = False
    return array


@memoize(4096)
def widen_number(text: str) -> Array:
    """Return a number as a 0-d array of the type that it is computed with."""
    array = read_number(text)
    return array.astype(accumulator(array.dtype))


def _widen(form: _Form) -> _Form:
    return replace(form, dtype=accumulator(form.dtype)) if dtype_row(form.dtype).is_float else form


# A shape and an element type.
SpecKey = tuple[tuple[int, ...], np.dtype[Any]]


@memoize(4096)
def find_forms(rows: tuple[StepRow, ...], inputs: tuple[SpecKey | None, ...], rounds: bool = True) -> StepForms:
    """Return what steps make of inputs of these shapes and types.

    Args:
        rows: The steps.
        inputs: Shapes and types of the region's inputs; None: absent.
        rounds: Whether floats that pass between steps are rounded to their type.

    Raises:
        InputError: They don't fit a step.
    """
    given = [None if key is None else TensorSpec(*key) for key in inputs]
    specs: list[TensorSpec] = []
    forms: list[Pointwise | RowForm | None] = []
    kinds: list[StepKind | None] = []
    for step in read_steps(rows):
        picked = step.pick(given, specs, TensorSpec.of)
        specs.append(step.operator.infer(*picked)[0])
        form = step.operator.as_pointwise(picked)
        kind = form or find_map(step.operator, picked)
        is_picked = isinstance(kind, Picked) and not all(isinstance(each, int) and each >= 0 for each in step.inputs)
        kinds.append(None if is_picked else kind)  # slices are picked of what is in memory
        forms.append(form or step.operator.as_row(picked))
    known = [form for form in forms if form is not None]
    moved = [kind for kind in kinds if kind is not None]
    found = StepForms(
        tuple(specs),
        tuple(known) if len(known) == len(forms) else None,
        tuple(moved) if len(moved) == len(kinds) else None,
    )
    return found if rounds else found.without_roundings()


def find_map(operator: Operator, inputs: Sequence[TensorSpec | None]) -> IndexMap | None:
    """Return the index map of an operator that a region can have; None: it has none of such inputs.

    Args:
        operator: Which.
        inputs: Specs, with content where that is known; None: absent.
    """
    if any(spec is not None and spec.dtype not in _DTYPES for spec in inputs):
        return None
    return (find_view(operator, inputs) if operator.makes_views else None) or operator.as_index_map(inputs)


def list_keys(items: Sequence[Any]) -> tuple[SpecKey | None, ...]:
    """Return the shapes and types of specs, arrays or slots, for `find_forms`."""
    return tuple([None if item is None else (item.shape, item.dtype) for item in items])


def list_moved(rows: tuple[StepRow, ...], forms: StepForms) -> set[int]:
    """Return the inputs of a region that some step reads at places other than those of the results.

    Args:
        rows: The steps.
        forms: What they make of the inputs.
    """
    if forms.pointwise is not None or forms.kinds is None:
        return set()
    moved: set[int] = set()
    for place in range(len(rows) - 1, -1, -1):
        given = {each for each in rows[place][2] if isinstance(each, int)}
        if made_by(place) in moved or not isinstance(forms.kinds[place], Pointwise):
            moved |= given
    return {position for position in moved if position >= 0}
