"""Attention over a cache together with what appends to it: new keys and values stored by the launch that reads them.

A Concat of past and new keys, another of values, views of what they make, and attention over those, as one operator.
Its results are, to the bit, what these would give one after the other: `infer` and `compute` are just that. Where the
memories grow in place, attention is handed the new rows where they were made (`lower_appending`), and the kernel of few
queries stores them; other kernels find them copied. No file has this operator; the planner makes it
(`gpuexec.planner.join_appends`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.errors import InputError, NeedsHostValue
from gpuexec.ir.command import Slot
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.elementwise.epilogue import StepEmitter
from gpuexec.ops.elementwise.region_steps import RegionStep, read_steps
from gpuexec.ops.nn.dot_product_attention import ScaledDotProductAttention
from gpuexec.ops.tensor.append import NewRows, grow_by
from gpuexec.ops.tensor.copy import Concat

_APPENDS = 2  # steps: of keys, of values


@operator("AppendingAttention", "gpuexec")
@dataclass(frozen=True, slots=True)
class AppendingAttention(Operator):
    """``softmax(steps(scale * Q @ K')) @ V`` over keys and values that are those of a past, and new ones behind them.

    Inputs: past keys, new keys, past values, new values, then what views and attention read beside these. Outputs: what
    attention gives, all keys, all values.

    ``steps`` are rows of (name, attributes, inputs), see `gpuexec.ops.elementwise.region_steps`: a Concat of keys, one
    of values, views, and last the attention.
    """

    steps: tuple  # type: ignore[type-arg]
    tolerance = Tolerance.REDUCTION
    uses_all_cores = True
    has_blits = True
    example = (
        "float32[1,2,3,4] float32[1,2,1,4] float32[1,2,3,4] float32[1,2,1,4] float32[1,2,1,4] steps=(('Concat',(('axis'"
        ",2),),(0,1)),('Concat',(('axis',2),),(2,3)),('Transpose',(('perm',(0,1,3,2)),),(-1,)),"
        "('gpuexec.ScaledDotProductAttention',(),(4,-3,-2)))"
    )

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Infer one operator after the other.

        Raises:
            InputError: As they do, or these are no such operators.
        """
        specs: list[TensorSpec] = []
        for step in self._read():
            try:
                specs.append(step.operator.infer(*step.pick(inputs, specs, TensorSpec.of))[0])
            except NeedsHostValue as need:
                given = step.inputs[need.index]
                assert isinstance(given, int)
                raise NeedsHostValue(need.message, index=given, role=need.role) from None
        return specs[-1], *specs[:_APPENDS]

    def find_dtype(self, dtypes: Sequence[np.dtype[Any] | None]) -> np.dtype[Any] | None:
        """Return the type that attention gives."""
        made: list[np.dtype[Any] | None] = []
        for step in self._read():
            made.append(step.operator.find_dtype(step.pick(dtypes, made, lambda array: array.dtype)))
        return made[-1]

    def count_flops(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> int | None:
        """Count those of attention."""
        specs: list[TensorSpec] = []
        for step in self._read()[:-1]:
            specs.append(step.operator.infer(*step.pick(inputs, specs, TensorSpec.of))[0])
        last = self._read()[-1]
        return last.operator.count_flops(last.pick(inputs, specs, TensorSpec.of), outputs[:1])

    def compute(self, *inputs: Array | None, out: Out = None) -> tuple[Array | None, ...]:
        """Compute one operator after the other, in dense memory: bits of a product depend on how its operands lie."""
        made: list[Array] = []
        for step in self._read():
            (result, *_) = step.operator.compute(*step.pick(inputs, made, np.asarray))
            assert result is not None
            made.append(result)
        return made[-1], *made[:_APPENDS]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch attention, which appends to memories that grow in place; else the operators one after the other."""
        y, *present = (*outputs, None, None)[: 1 + _APPENDS]
        *before, attention = self._read()
        made: list[Slot] = []
        new: list[NewRows] = []
        for step, output in zip(before[:_APPENDS], present, strict=True):
            made.append(_append(emit, step, inputs, output, new))
        if y is None or len(new) < _APPENDS:
            _store(emit, new)
        for step in before[_APPENDS:]:
            made.append(_view(emit, step, step.pick(inputs, made, emit.constant), new))
        if y is not None:
            assert isinstance(attention.operator, ScaledDotProductAttention)
            given = attention.pick(inputs, made, emit.constant)
            attention.operator.lower_appending(emit, given, (y,), new)

    def _read(self) -> tuple[RegionStep, ...]:
        steps = read_steps(self.steps)
        is_known = all(isinstance(step.operator, Concat) for step in steps[:_APPENDS])
        if len(steps) <= _APPENDS or not is_known or not isinstance(steps[-1].operator, ScaledDotProductAttention):
            raise InputError(f"{self.name} expects two Concats, views, and attention as its steps, got {self.steps}.")
        return steps


class _ViewEmitter(StepEmitter):
    """The emitter of a view; what it copies is stored before."""

    def __init__(self, emit: Emitter, output: Slot, new: list[NewRows]) -> None:
        super().__init__(emit, output)
        self.view: Slot | None = None
        self._new = new

    def alias(self, output: Slot, view: Slot) -> None:
        """Keep the view."""
        self.view = view

    def contiguous(self, slot: Slot) -> Slot:
        """Return a dense copy, once what is new is there."""
        _store(self._emit, self._new)
        return self._emit.contiguous(slot)


def _append(emit: Emitter, step: RegionStep, inputs: Slots, output: Slot | None, new: list[NewRows]) -> Slot:
    """Return a memory and the rows behind it, which are added to ``new`` where they are not stored yet."""
    held, rows = step.pick(inputs, (), emit.constant)
    concat = step.operator
    assert isinstance(concat, Concat) and concat.lower is not None
    grown = None if output is None else grow_by(emit, held, rows, output, concat.axis)
    if grown is not None:
        new.append(grown)
        return grown.grown
    (spec,) = concat.infer(held.spec, rows.spec)
    whole = emit.temp(spec.shape, spec.dtype) if output is None else output
    concat.lower(emit, (held, rows), (whole,))
    return whole


def _view(emit: Emitter, step: RegionStep, given: tuple[Slot, ...], new: list[NewRows]) -> Slot:
    """Return what a view shows."""
    assert step.operator.lower is not None
    spec = step.operator.infer(*(slot.spec for slot in given))[0]
    output = emit.temp(spec.shape, spec.dtype)
    emitter = _ViewEmitter(emit, output, new)
    step.operator.lower(emitter, given, (output,))
    assert emitter.view is not None, f"{step.operator.name} makes no view"
    return emitter.view


def _store(emit: Emitter, new: list[NewRows]) -> None:
    """Store the rows that are not stored yet."""
    for each in new:
        each.store(emit)
    new.clear()
