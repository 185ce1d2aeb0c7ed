"""Append: new rows written in place behind the rows of a memory, such as a KV cache.

Not of ONNX: a Concat of a memory with new rows becomes it (`gpuexec.passes.append_rows`), so that the memory is never
copied.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Slot
from gpuexec.ir.geometry import normalize_axis
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.tensor.copy import Concat
from gpuexec.ops.tensor.layout import window


@operator("Append", "gpuexec")
@dataclass(frozen=True, slots=True)
class Append(Operator):
    """Concatenation of a memory and new rows along an axis, of no more than ``capacity`` together.

    Where the memory lies in bytes of that capacity, its rows stay and the new ones are copied behind them; elsewhere
    it is a Concat. ``memory`` is its name, for messages.
    """

    axis: int
    capacity: int
    memory: str
    tolerance = Tolerance.EXACT
    flops_per_output = 0
    keeps_dtype = True
    has_blits = True

    def infer(self, held: TensorSpec, rows: TensorSpec) -> tuple[TensorSpec, ...]:
        """Add the extents of the axis.

        Raises:
            InputError: They don't fit each other, or the capacity.
        """
        specs = Concat(self.axis).infer(held, rows)
        axis = normalize_axis(self.axis, held.rank)
        if specs[0].shape[axis] > self.capacity:
            raise InputError(
                f"Memory {self.memory!r} is full: it holds {held.shape[axis]} rows, {rows.shape[axis]} more exceed its"
                f" capacity of {self.capacity}; bind it with a larger capacity, or reset the state.",
                value=self.memory,
            )
        return specs

    def compute(self, held: Array, rows: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Join."""
        return (np.concatenate((held, rows), self.axis, out=out[0] if out else None),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Copy the new rows behind the present ones."""
        held, rows, y = inputs[0], inputs[1], outputs[0]
        assert held is not None and rows is not None and y is not None
        new = grow_by(emit, held, rows, y, self.axis)
        if new is None:
            Concat(self.axis).lower(emit, inputs, outputs)
        else:
            new.store(emit)


@dataclass(frozen=True, slots=True)
class NewRows:
    """Rows that belong behind those of a memory, which lies in bytes of its capacity.

    Attributes:
        grown: The memory with them: they are not stored yet.
        room: Where they belong.
        rows: Where they were made.
        axis: The axis that they are counted along, from 0.
    """

    grown: Slot
    room: Slot
    rows: Slot
    axis: int

    def store(self, emit: Emitter) -> None:
        """Copy them there."""
        rows = self.rows
        if rows.buffer == self.room.buffer:
            # Source and destination are windows on the same bytes, so the copy goes through a temporary.
            rows = emit.temp(rows.shape, rows.dtype)
            emit.copy(rows, self.rows)
        emit.copy(self.room, rows)


def grow_by(emit: Emitter, held: Slot, rows: Slot, output: Slot, axis: int) -> NewRows | None:
    """Let an output of the operator be a memory and the rows behind it, which the caller stores.

    Args:
        emit: Emitter of the operator.
        held: The memory.
        rows: New rows.
        output: Both.
        axis: The axis that rows are counted along.

    Returns:
        The rows; None where the memory can't grow in place.
    """
    if not emit.grow(output, held):
        return None
    axis = normalize_axis(axis, output.spec.rank)
    room = window(held, rows.shape, held.strides, held.shape[axis] * held.strides[axis])
    return NewRows(Slot(held.buffer, held.offset_bytes, output.spec, held.strides), room, rows, axis)
