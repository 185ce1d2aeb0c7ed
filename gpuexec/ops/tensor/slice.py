"""Slice and Split, as windows on the input's bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.geometry import normalize_axes, normalize_axis, slice_axis, split_at
from gpuexec.ir.graphs import RawNode
from gpuexec.ir.operator import (
    Array,
    Derivative,
    Emitter,
    FormatUse,
    Operator,
    Out,
    Slots,
    Tolerance,
    operator,
    upgrade,
)
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.lib.checks import require_ints
from gpuexec.ops.tensor.layout import attributes_to_inputs, read_ints, window

Walks = tuple[tuple[int, int, int], ...]  # first index, count and step, per axis


@operator("Slice")
@dataclass(frozen=True, slots=True)
class Slice(Operator):
    """Every ``steps``-th element from ``starts`` to before ``ends`` on some axes; a negative step walks back."""

    makes_views = True
    tolerance = Tolerance.EXACT
    example = "float32[4,5] int64[1]=1 int64[1]=3"
    flops_per_output = 0
    keeps_dtype = True
    derivative = Derivative.RULE
    has_blits = True
    format_use = FormatUse.FOLLOWS

    def infer(
        self,
        x: TensorSpec,
        starts: TensorSpec,
        ends: TensorSpec,
        axes: TensorSpec | None = None,
        steps: TensorSpec | None = None,
    ) -> tuple[TensorSpec, ...]:
        """Clamp to the extents and count."""
        walks = self._read(x.shape, (starts, ends, axes, steps))
        return (x.with_shape(tuple(count for _, count, _ in walks)),)

    def compute(
        self,
        x: Array,
        starts: Array,
        ends: Array,
        axes: Array | None = None,
        steps: Array | None = None,
        *,
        out: Out = None,
    ) -> tuple[Array, ...]:
        """Index; always a view."""
        lists = (None if given is None else read_ints(given) for given in (starts, ends, axes, steps))
        walks = _resolve(x.shape, *lists)
        return (x[tuple(_as_slice(*walk) for walk in walks)] if walks else x,)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Alias the input's bytes from the first element taken, with strides times steps."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        walks = self._read(x.shape, [None if slot is None else slot.spec for slot in inputs[1:]])
        offset = sum(first * stride for (first, _, _), stride in zip(walks, x.strides, strict=True))
        strides = [step * stride for (_, _, step), stride in zip(walks, x.strides, strict=True)]
        emit.alias(y, window(x, y.shape, strides, 0 if y.spec.size == 0 else offset))

    def _read(self, shape: tuple[int, ...], specs: Sequence[TensorSpec | None]) -> Walks:
        starts, ends, axes, steps = (*specs, None, None)[:4]
        return _resolve(
            shape,
            require_ints(starts, "starts", 1),
            require_ints(ends, "ends", 2),
            None if axes is None else require_ints(axes, "axes", 3),
            None if steps is None else require_ints(steps, "steps", 4),
        )


@operator("Split")
@dataclass(frozen=True, slots=True)
class Split(Operator):
    """Parts of an axis given by ``split``, or ``num_outputs`` equal ones (the last may be smaller)."""

    makes_views = True

    axis: int = 0
    num_outputs: int | None = None
    tolerance = Tolerance.EXACT
    example = "float32[6] int64[3]=1,2,3"
    flops_per_output = 0
    keeps_dtype = True
    derivative = Derivative.RULE
    has_blits = True
    format_use = FormatUse.FOLLOWS

    def infer(self, x: TensorSpec, split: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        """Return a spec for each part."""
        parts, axis = self._parts(x.shape, None if split is None else require_ints(split, "split", 1))
        return tuple(x.with_shape((*x.shape[:axis], part, *x.shape[axis + 1 :])) for part in parts)

    def compute(self, x: Array, split: Array | None = None, *, out: Out = None) -> tuple[Array, ...]:
        """Index; always views."""
        parts, axis = self._parts(x.shape, None if split is None else read_ints(split))
        return tuple(np.split(x, np.cumsum(parts[:-1]), axis))

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Alias a run of the input's bytes for each part."""
        x = inputs[0]
        assert x is not None
        split = inputs[1] if len(inputs) > 1 else None
        parts, axis = self._parts(x.shape, None if split is None else require_ints(split.spec, "split", 1))
        if len(parts) != len(outputs):
            raise InputError(f"Split expects an output for each of {len(parts)} parts, got {len(outputs)}.")
        first = 0
        for part, y in zip(parts, outputs, strict=True):
            if y is not None:
                emit.alias(y, window(x, y.shape, x.strides, first * x.strides[axis] if y.spec.size else 0))
            first += part

    def _parts(self, shape: tuple[int, ...], split: tuple[int, ...] | None) -> tuple[tuple[int, ...], int]:
        axis = normalize_axis(self.axis, len(shape))
        if split is None:
            if self.num_outputs is None:
                raise InputError("Split takes either the input split or the attribute num_outputs, got neither.")
            return split_at(shape[axis], self.num_outputs), axis
        if self.num_outputs is not None:
            raise InputError("Split takes either the input split or the attribute num_outputs, got both.")
        if min(split, default=-1) < 0 or sum(split) != shape[axis]:
            wanted = f"add up to {shape[axis]}, the extent of axis {axis}"
            raise InputError(f"split must hold parts of 0 or more that {wanted}, got {list(split)}.")
        return split, axis


@upgrade("Slice", below=10)
def take_bounds_as_inputs(node: RawNode) -> RawNode:
    """Move starts, ends and axes, attributes until opset 9, to inputs; there were no steps."""
    return attributes_to_inputs(node, "starts", "ends", "axes")


@upgrade("Split", below=13)
def take_split_as_input(node: RawNode) -> RawNode:
    """Move the parts, an attribute until opset 12, to an input."""
    return attributes_to_inputs(node, "split")


@upgrade("Split", below=18)
def count_outputs(node: RawNode) -> RawNode:
    """Set the number of equal parts, which until opset 17 followed from the number of outputs."""
    return node if len(node.inputs) > 1 and node.inputs[1] else node.with_attributes(num_outputs=len(node.outputs))


def _resolve(
    shape: tuple[int, ...],
    starts: tuple[int, ...] | None,
    ends: tuple[int, ...] | None,
    axes: tuple[int, ...] | None,
    steps: tuple[int, ...] | None,
) -> Walks:
    """Return the walk of every axis; axes that are not sliced are walked whole."""
    assert starts is not None and ends is not None
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        lengths = f"{len(starts)}, {len(ends)}, {len(axes)} and {len(steps)}"
        raise InputError(f"starts, ends, axes and steps must be equally long, got lengths {lengths}.")
    walks = [(0, extent, 1) for extent in shape]
    for start, end, axis, step in zip(starts, ends, normalize_axes(axes, len(shape)), steps, strict=True):
        walks[axis] = slice_axis(start, end, step, shape[axis])
    return tuple(walks)


def _as_slice(first: int, count: int, step: int) -> slice:
    stop = first + count * step
    return slice(first, stop if stop >= 0 else None, step)
