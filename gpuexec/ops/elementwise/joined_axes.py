"""Joined axes of regions: neighbours that all operands walk as one, decided at the upper end of a size class."""

from __future__ import annotations

from collections.abc import Sequence

from gpuexec.errors import PlanError
from gpuexec.ir.command import Slot
from gpuexec.ir.geometry import broadcast_strides


def spread_strides(slot: Slot, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of an operand over a shape; one of a single element may have more axes."""
    return (0,) * len(shape) if slot.spec.size == 1 else broadcast_strides(slot.shape, slot.strides, shape)


def list_joined(extents: tuple[int, ...], strides: Sequence[tuple[int, ...]]) -> list[int]:
    """Return the axes that are joined with the next outer one: all operands walk the two as one."""
    joined = []
    outer: int | None = None  # the last axis of more than one element
    for axis, extent in enumerate(extents):
        if extent == 1:
            if axis:
                joined.append(axis)
            continue
        if axis and (outer is None or all(own[outer] == own[axis] * extent for own in strides)):
            joined.append(axis)
        outer = axis
    return joined


def group_axes(rank: int, joined: int) -> list[list[int]]:
    """Return the axes of each group, where a set bit says that an axis is joined with the one before it."""
    groups: list[list[int]] = []
    for axis in range(rank):
        if axis and joined >> axis & 1:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups


def join_strides(
    extents: tuple[int, ...], strides: tuple[int, ...], groups: Sequence[Sequence[int]]
) -> tuple[int, ...]:
    """Return the stride of an operand along each group of axes.

    Raises:
        PlanError: It does not walk the axes of a group as one.
    """
    found = []
    for group in groups:
        step, expected = 0, None
        for axis in reversed(group):
            if extents[axis] == 1:
                continue
            if expected is None:
                step = strides[axis]
            elif strides[axis] != expected:
                raise PlanError("An operand of a region does not lie as at the upper end, where axes are joined.")
            expected = strides[axis] * extents[axis]
        found.append(step)
    return tuple(found)
