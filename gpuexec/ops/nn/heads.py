"""Heads: a tensor ``[batch, rows, heads * size]`` viewed as ``[batch, heads, rows, size]``.

And heads in groups, ``[batch, heads, group, rows, size]``: each of so many query heads that share keys and values has
its own place there, but not its own bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuexec.errors import InputError
from gpuexec.ir.command import Slot
from gpuexec.ir.geometry import Shape, reshape_shape
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.lib.checks import require_ints
from gpuexec.ops.tensor.layout import View, read_ints, reshaped, window


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
    """View of ``[batch, rows, heads * size]`` as ``[batch, heads, rows, size]``; four axes stay as they are."""

    heads: int | None = None
    tolerance = Tolerance.EXACT
    flops_per_output = 0
    keeps_dtype = True
    has_blits = True

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Divide the last axis."""
        return (x.with_shape(split_shape(self.name, "its input", x.shape, self.heads)),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Reorder the strides; a view where NumPy can."""
        return (split_array(x, self.heads),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Alias the input's bytes."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        emit.alias(y, split_slot(x, self.heads))


@operator("GroupHeads", "gpuexec")
@dataclass(frozen=True, slots=True)
class GroupHeads(View):
    """A Reshape to four axes, ``[batch, heads * group, rows, size]``, that leaves the groups apart.

    What has the five axes ``[batch, heads, group, rows, size]`` stays as it is; anything else gets groups of one.
    """

    allowzero: int = 0

    def infer(self, x: TensorSpec, shape: TensorSpec) -> tuple[TensorSpec, ...]:
        """Resolve 0 and -1 as Reshape does."""
        return (x.with_shape(self._group(x.shape, require_ints(shape, "shape", 1))),)

    def compute(self, x: Array, shape: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Reshape; a view where NumPy can."""
        return (x.reshape(self._group(x.shape, read_ints(shape))),)

    def _group(self, shape: Shape, target: Shape) -> Shape:
        joined = reshape_shape(shape, target, bool(self.allowzero))
        if len(shape) == 5 and joined == join_groups(shape):
            return shape
        return (*joined[:2], 1, *joined[2:]) if len(joined) == 4 else joined


def join_groups(shape: Shape) -> Shape:
    """Return the shape of heads in groups without the groups; one of four axes is that already."""
    return shape if len(shape) == 4 else (shape[0], shape[1] * shape[2], *shape[3:])


def share_heads(emit: Emitter, keys: Slot, values: Slot) -> tuple[Slot, Slot]:
    """Return keys and values with four axes: as few heads as they have bytes for, or dense copies of all."""
    slots = (keys, values)
    if all(slot.spec.rank == 5 and slot.strides[2] == 0 for slot in slots) and keys.shape[:3] == values.shape[:3]:
        keys, values = (
            window(slot, (*slot.shape[:2], *slot.shape[3:]), (*slot.strides[:2], *slot.strides[3:])) for slot in slots
        )
    else:
        keys, values = (reshaped(emit, slot, join_groups(slot.shape)) for slot in slots)
    return keys, values
