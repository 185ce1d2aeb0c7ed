"""SplitToSequence and ConcatFromSequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.containers import describe, hold, make_sequence, read_sequence
from gpuexec.ir.geometry import normalize_axis
from gpuexec.ir.host_values import require_const
from gpuexec.ir.operator import Array, Operator, Out, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.containers.sequence import HOST_REASON, SEQUENCE_SPEC, check_sequence


@operator("SplitToSequence")
@dataclass(frozen=True, slots=True)
class SplitToSequence(Operator):
    """A sequence of the parts of a tensor along an axis.

    ``split`` is how long each part is (the last may be shorter), or a list of the lengths; without it parts have one
    row, and lose the axis where ``keepdims`` is 0.
    """

    axis: int = 0
    keepdims: int = 1
    tolerance = Tolerance.EXACT
    host_reason = HOST_REASON
    flops_per_output = None

    def infer(self, x: TensorSpec, split: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        """Return a sequence."""
        normalize_axis(self.axis, x.rank)
        if split is not None and (split.rank > 1 or split.dtype.kind != "i"):
            raise InputError(f"SplitToSequence expects split to be integers of rank 0 or 1, got {split}.")
        return (SEQUENCE_SPEC,)

    def compute(self, x: Array, split: Array | None = None, *, out: Out = None) -> tuple[Array, ...]:
        """Cut, and copy each part."""
        axis = normalize_axis(self.axis, x.ndim)
        extent = x.shape[axis]
        if split is None:
            rows = np.moveaxis(x, axis, 0)
            parts = [np.expand_dims(row, axis) if self.keepdims else row for row in rows]
        else:
            ends = np.cumsum(_list_lengths(split, extent))
            parts = np.split(x, ends[:-1].tolist(), axis) if len(ends) else []
        return (make_sequence([hold(np.asarray(part).copy()) for part in parts], x.dtype),)


@operator("ConcatFromSequence")
@dataclass(frozen=True, slots=True)
class ConcatFromSequence(Operator):
    """The elements of a sequence joined along an axis, or stacked along a new one (``new_axis``)."""

    axis: int
    new_axis: int = 0
    tolerance = Tolerance.EXACT
    takes_containers = True
    host_reason = HOST_REASON
    example = "sequence axis=0"
    flops_per_output = None

    def infer(self, sequence: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the spec of the whole; the sequence must be known for that."""
        check_sequence("ConcatFromSequence", sequence)
        items = read_sequence(require_const(sequence, "sequence", 0))
        axis = self._check(items)
        shape = list(items[0].shape)
        if self.new_axis:
            shape.insert(axis, len(items))
        else:
            shape[axis] = sum(item.shape[axis] for item in items)
        return (TensorSpec(tuple(shape), items[0].dtype),)

    def compute(self, sequence: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Join."""
        items = read_sequence(sequence)
        axis = self._check(items)
        return (np.stack(items, axis) if self.new_axis else np.concatenate(items, axis),)

    def _check(self, items: Sequence[Array]) -> int:
        """Return the axis from 0 up, if the elements fit together."""
        if not items:
            raise InputError("ConcatFromSequence expects a sequence of at least one tensor, got an empty one.")
        first = items[0]
        axis = normalize_axis(self.axis, first.ndim + bool(self.new_axis))
        for index, item in enumerate(items):
            shape = list(item.shape)
            if not self.new_axis and len(shape) == first.ndim:
                shape[axis] = first.shape[axis]
            if tuple(shape) != first.shape or item.dtype != first.dtype:
                where = "" if self.new_axis else f" beside axis {axis}"
                raise InputError(
                    f"ConcatFromSequence joins tensors of one type whose shapes agree{where}: element {index} is"
                    f" {describe(item)}, element 0 is {describe(first)}."
                )
        return axis


def _list_lengths(split: Array, extent: int) -> list[int]:
    """Return the length of each part."""
    given = split.reshape(-1).tolist()
    if any(length < 0 for length in given) or (split.ndim == 0 and given[0] == 0):
        raise InputError(f"SplitToSequence expects positive lengths, got {given}.")
    if split.ndim == 0:
        length = given[0]
        return [min(length, extent - start) for start in range(0, extent, length)]
    if sum(given) != extent:
        raise InputError(f"SplitToSequence: the lengths {given} must sum up to {extent}, the extent of the axis.")
    return given
