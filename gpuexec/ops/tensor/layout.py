"""Layout operators, which make views of a tensor: Reshape, Flatten, Squeeze, Unsqueeze, Transpose, Expand.

None of them moves elements: on a device the output is a window on the input's bytes, on the host a NumPy
view. Only a Reshape that joins axes which are not walked as one asks for a dense copy first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuexec.errors import InputError, PlanError
from gpuexec.ir.command import Slot
from gpuexec.ir.geometry import (
    broadcast,
    broadcast_strides,
    contiguous_strides,
    element_count,
    normalize_axes,
    normalize_axis,
    permute,
    reshape_shape,
    try_view,
)
from gpuexec.ir.graphs import RawNode
from gpuexec.ir.index_map import IndexMap, Reshaped
from gpuexec.ir.operator import (
    Array,
    Derivative,
    Emitter,
    FormatUse,
    KnownInput,
    Operator,
    Out,
    Slots,
    Tolerance,
    operator,
    upgrade,
)
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.lib.checks import require_ints
from gpuexec.ops.lib.view_probe import find_view


def read_ints(array: Array) -> tuple[int, ...]:
    """Return an integer array as plain ints."""
    return tuple(array.reshape(-1).tolist())


def window(slot: Slot, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> Slot:
    """Return another view of a slot's bytes, ``offset`` elements after its first element."""
    spec = slot.spec.with_shape(tuple(shape))
    return Slot(slot.buffer, slot.offset_bytes + offset * slot.dtype.itemsize, spec, tuple(strides))


def in_order_of(emit: Emitter, x: Slot, y: Slot) -> Slot:
    """Return x, or a copy of it, with its elements in memory as those of y, which is of its shape and dense.

    Raises:
        PlanError: At the upper end of the size class they lie so, at this size they don't.
    """
    is_alike = x.order is not None and x.order == y.order
    if emit.choose(is_alike):
        if not is_alike:
            raise PlanError(f"{x} does not lie as {y}, as it does at the upper end.")
        return x
    made = emit.temp(x.shape, x.dtype)
    copy = Slot(made.buffer, made.offset_bytes, made.spec, y.strides)
    emit.copy(copy, x)
    return copy


def reshaped(emit: Emitter, slot: Slot, shape: Sequence[int]) -> Slot:
    """Return a slot under another shape of as many elements, or a dense copy where no strides can show it."""
    strides = try_view(slot.shape, slot.strides, shape)
    if strides is None:
        slot, strides = emit.contiguous(slot), contiguous_strides(shape)
    return window(slot, shape, strides)


def attributes_to_inputs(node: RawNode, *names: str, first: int = 1) -> RawNode:
    """Turn integer list attributes into the constant inputs that a later opset has in their place.

    An attribute that is absent leaves no input. The first name becomes input ``first``, the next the input after it.
    """
    for index, name in enumerate(names, first):
        if name in node.attributes:
            node = node.with_input(index, np.array(node.attributes[name], np.int64).reshape(-1))
    return node.without(*names)


class View(Operator):
    """Base of operators whose output holds the input's elements, in order, under another shape."""

    makes_views = True

    __slots__ = ()
    tolerance = Tolerance.EXACT
    flops_per_output = 0
    keeps_dtype = True
    has_blits = True

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Alias the input's bytes."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        emit.alias(y, reshaped(emit, x, y.shape))

    def as_index_map(self, inputs: Sequence[TensorSpec | None]) -> IndexMap | None:
        """Return that the elements keep their order."""
        return Reshaped(tuple(range(1, len(inputs))))


@operator("Reshape")
@dataclass(frozen=True, slots=True)
class Reshape(View):
    """Input under the shape of the second input, where 0 copies an extent and -1 takes what is left."""

    allowzero: int = 0
    derivative = Derivative.RULE

    def infer(self, x: TensorSpec, shape: TensorSpec) -> tuple[TensorSpec, ...]:
        """Resolve 0 and -1."""
        return (x.with_shape(reshape_shape(x.shape, require_ints(shape, "shape", 1), bool(self.allowzero))),)

    def compute(self, x: Array, shape: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Reshape; a view where NumPy can."""
        return (x.reshape(reshape_shape(x.shape, read_ints(shape), bool(self.allowzero))),)

    def find_format_use(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> FormatUse:
        """Return that it follows formats where images keep their channels, and joined or divided axes are others."""
        x, y = inputs[0], outputs[0]
        if x is None or y is None or min(x.rank, y.rank) < 3 or x.shape[:2] != y.shape[:2]:
            return self.format_use
        return FormatUse.FOLLOWS


@operator("Flatten")
@dataclass(frozen=True, slots=True)
class Flatten(View):
    """Input as a matrix: the axes before ``axis`` joined into one, and the others into another."""

    axis: int = 1
    derivative = Derivative.RULE

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Multiply the extents on each side."""
        return (x.with_shape(self._flatten(x.shape)),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Reshape; a view where NumPy can."""
        return (x.reshape(self._flatten(x.shape)),)

    def _flatten(self, shape: tuple[int, ...]) -> tuple[int, int]:
        axis = normalize_axis(self.axis, len(shape), inclusive=True)
        return element_count(shape[:axis]), element_count(shape[axis:])


@operator("Squeeze")
@dataclass(frozen=True, slots=True)
class Squeeze(View):
    """Input without the given axes, which must have extent 1; without axes, without all of extent 1."""

    derivative = Derivative.RULE

    def infer(self, x: TensorSpec, axes: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        """Drop the axes."""
        return (x.with_shape(_squeeze(x.shape, None if axes is None else require_ints(axes, "axes", 1))),)

    def compute(self, x: Array, axes: Array | None = None, *, out: Out = None) -> tuple[Array, ...]:
        """Reshape; always a view."""
        return (x.reshape(_squeeze(x.shape, None if axes is None else read_ints(axes))),)


@operator("Unsqueeze")
@dataclass(frozen=True, slots=True)
class Unsqueeze(View):
    """Input with axes of extent 1 inserted; ``axes`` count in the output."""

    derivative = Derivative.RULE

    def infer(self, x: TensorSpec, axes: TensorSpec) -> tuple[TensorSpec, ...]:
        """Insert the axes."""
        return (x.with_shape(_unsqueeze(x.shape, require_ints(axes, "axes", 1))),)

    def compute(self, x: Array, axes: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Reshape; always a view."""
        return (x.reshape(_unsqueeze(x.shape, read_ints(axes))),)


@operator("Transpose")
@dataclass(frozen=True, slots=True)
class Transpose(Operator):
    """Permuted axes: axis ``i`` of the output is axis ``perm[i]`` of the input; without ``perm``, in reverse."""

    makes_views = True

    perm: tuple[int, ...] | None = None
    tolerance = Tolerance.EXACT
    flops_per_output = 0
    keeps_dtype = True
    derivative = Derivative.RULE
    has_blits = True
    format_use = FormatUse.ANY

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Reorder the extents."""
        return (x.with_shape(permute(x.shape, self._order(x.rank))),)

    def is_noop(self, inputs: Sequence[KnownInput | None]) -> bool:
        """Return whether all axes stay where they are."""
        return self.perm is not None and self.perm == tuple(range(len(self.perm)))

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Reorder the strides; always a view."""
        return (x.transpose(self._order(x.ndim)),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Alias the input's bytes with reordered strides."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        emit.alias(y, window(x, y.shape, permute(x.strides, self._order(x.spec.rank))))

    def _order(self, rank: int) -> tuple[int, ...]:
        return tuple(range(rank))[::-1] if self.perm is None else self.perm


@operator("Expand")
@dataclass(frozen=True, slots=True)
class Expand(Operator):
    """Input broadcast against a shape; either may stretch."""

    tolerance = Tolerance.EXACT
    flops_per_output = 0
    keeps_dtype = True
    derivative = Derivative.RULE
    has_blits = True
    format_use = FormatUse.ANY

    def infer(self, x: TensorSpec, shape: TensorSpec) -> tuple[TensorSpec, ...]:
        """Broadcast both ways."""
        return (x.with_shape(_expand(x.shape, require_ints(shape, "shape", 1))),)

    def compute(self, x: Array, shape: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Broadcast; always a view."""
        return (np.broadcast_to(x, _expand(x.shape, read_ints(shape))),)

    def as_index_map(self, inputs: Sequence[TensorSpec | None]) -> IndexMap | None:
        """Return the axes that stand still."""
        return find_view(self, inputs)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Alias the input's bytes; stretched axes have stride 0."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        emit.alias(y, window(x, y.shape, broadcast_strides(x.shape, x.strides, y.shape)))


@upgrade("Reshape", below=5)
def _take_shape_as_input(node: RawNode) -> RawNode:
    """Move the shape, an attribute until opset 4, to an input."""
    return attributes_to_inputs(node, "shape")


@upgrade("Squeeze", below=13)
@upgrade("Unsqueeze", below=13)
def take_axes_as_input(node: RawNode) -> RawNode:
    """Move the axes, an attribute until opset 12, to an input."""
    return attributes_to_inputs(node, "axes")


def _squeeze(shape: tuple[int, ...], axes: tuple[int, ...] | None) -> tuple[int, ...]:
    if axes is None:
        return tuple(extent for extent in shape if extent != 1)
    dropped = normalize_axes(axes, len(shape))
    for axis in dropped:
        if shape[axis] != 1:
            raise InputError(f"Squeeze drops axes of extent 1 only, got axis {axis} of shape {list(shape)}.")
    return tuple(extent for axis, extent in enumerate(shape) if axis not in dropped)


def _unsqueeze(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    inserted = normalize_axes(axes, len(shape) + len(axes))
    rest = iter(shape)
    return tuple(1 if axis in inserted else next(rest) for axis in range(len(shape) + len(axes)))


def _expand(shape: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...]:
    if any(extent < 0 for extent in target):
        raise InputError(f"Expand takes extents of 0 or more, got shape {list(target)}.")
    return broadcast(shape, target)
