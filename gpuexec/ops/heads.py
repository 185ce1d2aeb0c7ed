"""Heads: a tensor ``[batch, rows, heads * size]`` seen as ``[batch, heads, rows, size]``, without moving anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuexec.command import Slot
from gpuexec.errors import InputError
from gpuexec.geometry import Shape
from gpuexec.operator import Array, Emitter, Operator, Tolerance, operator
from gpuexec.ops.layout import Slots, window
from gpuexec.spec import TensorSpec


def split_shape(name: str, role: str, shape: Shape, heads: int | None) -> tuple[int, int, int, int]:
    """Return ``[batch, heads, rows, size]``; a shape of four axes is that already.

    Raises:
        InputError: Another rank, or heads that are not given or don't divide the last axis.
    """
    if len(shape) == 4:
        return shape[0], shape[1], shape[2], shape[3]
    if len(shape) != 3:
        raise InputError(
            f"{name} expects {role} [batch, heads, rows, size] or [batch, rows, heads * size], got {list(shape)}."
        )
    if heads is None or heads < 1 or shape[2] % heads:
        raise InputError(
            f"{name} expects the number of heads of {role} for three axes, a divisor of the last, got {heads} for "
            f"shape {list(shape)}."
        )
    return shape[0], heads, shape[1], shape[2] // heads


def split_array(x: Array, heads: int | None) -> Array:
    """Return an array with four axes."""
    batch, count, rows, size = split_shape("", "", x.shape, heads)
    return x if x.ndim == 4 else x.reshape(batch, rows, count, size).transpose(0, 2, 1, 3)


def split_slot(slot: Slot, heads: int | None) -> Slot:
    """Return a slot with four axes."""
    if slot.spec.rank == 4:
        return slot
    shape = split_shape("", "", slot.shape, heads)
    batch, row, column = slot.strides
    return window(slot, shape, (batch, shape[3] * column, row, column))


def join_heads(x: Array) -> Array:
    """Return an array of four axes as ``[batch, rows, heads * size]``."""
    batch, heads, rows, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, rows, heads * size)


@operator("SplitHeads", "gpuexec")
@dataclass(frozen=True, slots=True)
class SplitHeads(Operator):
    """Show ``[batch, rows, heads * size]`` as ``[batch, heads, rows, size]``; what has four axes stays."""

    heads: int | None = None
    tolerance = Tolerance.EXACT

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Divide the last axis."""
        return (x.with_shape(split_shape(self.name, "its input", x.shape, self.heads)),)

    def compute(self, x: Array, out: Any = None) -> tuple[Array, ...]:
        """Reorder the strides; a view where NumPy can."""
        return (split_array(x, self.heads),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Alias the input's bytes."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        emit.alias(y, split_slot(x, self.heads))
