"""Shape arithmetic on plain ints and tuples: axes, broadcasting, strides, views.

Strides count elements, not bytes, and may be zero (a broadcast axis) or negative (a reversed one). Errors name what was
expected and what was given; callers add the node. ONNX rules follow the operator specifications of opset 26.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpuexec.errors import InputError

Shape = tuple[int, ...]
Strides = tuple[int, ...]
_MOST_PARTS = 2**16  # of an axis: a list of more would take longer than anything that is done with them


def ceil_div(numerator: int, denominator: int) -> int:
    """Divide and round towards positive infinity."""
    return -(-numerator // denominator)


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple of ``multiple`` that is not below ``value``."""
    return -(-value // multiple) * multiple


def element_count(shape: Sequence[int]) -> int:
    """Count the elements of a shape; one for a scalar."""
    return math.prod(shape)


def normalize_axis(axis: int, rank: int, *, inclusive: bool = False, name: str = "axis") -> int:
    """Count a negative axis from the back.

    Args:
        axis: From ``-rank`` to ``rank - 1``.
        rank: How many axes there are.
        inclusive: Whether ``axis == rank`` is legal too, as it is where axes name gaps (Flatten).
        name: Name of the argument in the message.

    Raises:
        InputError: The axis is out of range.
    """
    last = rank if inclusive else rank - 1
    if not -rank <= axis <= last:
        legal = f"{-rank} to {last}" if last >= -rank else "no axis at all"
        raise InputError(f"{name} is out of range for rank {rank}: expected {legal}, got {axis}.")
    return axis + rank if axis < 0 else axis


def normalize_axes(axes: Sequence[int], rank: int, *, name: str = "axes") -> tuple[int, ...]:
    """Count negative axes from the back, keeping their order.

    Raises:
        InputError: An axis is out of range or given twice.
    """
    normalized = tuple(normalize_axis(axis, rank, name=name) for axis in axes)
    if len(set(normalized)) != len(normalized):
        raise InputError(f"{name} must name each axis once (rank {rank}), got {list(axes)}.")
    return normalized


def permute(items: Sequence[int], perm: Sequence[int]) -> tuple[int, ...]:
    """Reorder a shape or strides so that entry ``i`` of the result is ``items[perm[i]]``.

    Raises:
        InputError: ``perm`` is not a permutation of the axes.
    """
    if sorted(perm) != list(range(len(items))):
        raise InputError(f"perm must hold each axis from 0 to {len(items) - 1} once, got {list(perm)}.")
    return tuple(items[axis] for axis in perm)


def split_at(extent: int, num_outputs: int) -> tuple[int, ...]:
    """Divide an extent into equal parts, the last ones smaller (Split with ``num_outputs``).

    Raises:
        InputError: ``num_outputs`` is below one, or more than a node could have outputs.
    """
    if not 1 <= num_outputs <= _MOST_PARTS:
        raise InputError(f"num_outputs must be from 1 to {_MOST_PARTS}, got {num_outputs}.")
    part = ceil_div(extent, num_outputs)
    return tuple(max(0, min(part, extent - index * part)) for index in range(num_outputs))


def slice_axis(start: int, stop: int, step: int, extent: int) -> tuple[int, int, int]:
    """Resolve one axis of Slice by its clamping rules.

    Returns:
        First index, count, step. Of an empty slice the first index is 0, so that a view never starts outside its
        tensor; of fewer than two elements the step is 1, so that no stride grows with a step that is never taken.

    Raises:
        InputError: The step is 0.
    """
    if step == 0:
        raise InputError("steps must not hold 0; use a positive step, or a negative one to walk backwards.")
    start = start + extent if start < 0 else start
    stop = stop + extent if stop < 0 else stop
    if step > 0:
        first = min(max(start, 0), extent)
        count = ceil_div(min(max(stop, 0), extent) - first, step)
    else:
        first = min(max(start, 0), extent - 1)
        count = ceil_div(min(max(stop, -1), extent - 1) - first, step)
    if count <= 0:
        return 0, 0, 1
    return first, count, step if count > 1 else 1


def channels_last_strides(shape: Sequence[int]) -> Strides:
    """Return the strides of ``[batch, channels, ...]`` whose channels lie last in memory, dense."""
    batch, channels, *spatial = shape
    dense = contiguous_strides((batch, *spatial, channels))
    return (dense[0], dense[-1], *dense[1:-1])


def memory_axes(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Return the axes in the order of memory, the one with the largest stride first; of extent 1 before all others."""
    return tuple(sorted(range(len(shape)), key=lambda axis: (shape[axis] > 1, -abs(strides[axis]))))


def close_gaps(shape: Sequence[int], strides: Sequence[int]) -> Strides:
    """Return the strides of dense memory whose axes lie in the order in which these do."""
    order = memory_axes(shape, strides)
    dense = dict(zip(order, contiguous_strides([shape[axis] for axis in order])))
    return tuple([dense[axis] for axis in range(len(shape))])


def find_rows(shape: Sequence[int], strides: Sequence[int]) -> tuple[tuple[int, ...], int, int] | None:
    """Return how elements lie as rows of one width and pitch, in elements; None where they don't.

    Returns:
        The axes in the order of memory, the elements of a row, and those from a row to the next: where both are equal,
        all lie dense.
    """
    if is_contiguous(shape, strides):
        return tuple(range(len(shape))), 1, 1
    order = memory_axes(shape, strides)
    width = pitch = 0
    expected = 1
    for axis in reversed(order):
        if shape[axis] == 1:
            break
        if strides[axis] != expected:
            if pitch or strides[axis] < expected:
                return None
            width, pitch = expected, strides[axis]
        expected = strides[axis] * shape[axis]
    return order, width or 1, pitch or 1


def broadcast(*shapes: Sequence[int]) -> Shape:
    """Combine shapes by NumPy's rule: aligned at the back, an extent of 1 stretches.

    Raises:
        InputError: Two extents of an axis differ and neither is 1.
    """
    rank = max((len(shape) for shape in shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for axis, extent in enumerate(shape, rank - len(shape)):
            if extent != 1 and result[axis] not in (1, extent):
                listed = ", ".join(str(list(each)) for each in shapes)
                raise InputError(
                    f"shapes do not broadcast: expected equal extents or 1 on axis {axis - rank}, "
                    f"got {result[axis]} and {extent} (shapes {listed})."
                )
            if extent != 1:
                result[axis] = extent
    return tuple(result)


def broadcast_strides(shape: Sequence[int], strides: Sequence[int], to: Sequence[int]) -> Strides:
    """Return the strides with which a tensor is read as if it had shape ``to``; stretched axes get 0.

    Raises:
        InputError: ``shape`` does not stretch to ``to``.
    """
    lead = len(to) - len(shape)
    if lead < 0 or any(extent not in (1, to[lead + axis]) for axis, extent in enumerate(shape)):
        raise InputError(f"shape {list(shape)} does not broadcast to {list(to)}.")
    stretched = (
        stride if extent == to[lead + axis] else 0 for axis, (extent, stride) in enumerate(zip(shape, strides))
    )
    return (0,) * lead + tuple(stretched)


def contiguous_strides(shape: Sequence[int]) -> Strides:
    """Return row-major strides, in elements; an axis of extent 0 counts as 1."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * max(1, shape[axis])
    return tuple(strides)


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether the elements lie row-major without gaps; strides of axes of extent 1 do not matter."""
    if 0 in shape:
        return True
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


def span(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """Return the half-open range of elements a view touches, relative to its first element."""
    if 0 in shape:
        return 0, 0
    reaches = [(extent - 1) * stride for extent, stride in zip(shape, strides)]
    return sum(min(0, reach) for reach in reaches), sum(max(0, reach) for reach in reaches) + 1


def max_offset(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return ``sum((extent - 1) * |stride|)``: the largest index into this view, in elements."""
    low, high = span(shape, strides)
    return max(0, high - 1 - low)


def coalesce(shape: Sequence[int], strides_per_operand: Sequence[Sequence[int]]) -> tuple[Shape, tuple[Strides, ...]]:
    """Drop axes of extent 1 and merge neighbours that every operand walks as one axis. The order of axes stays.

    Returns:
        The shorter shape, and the strides of each operand for it.
    """
    extents: list[int] = []
    walks: list[tuple[int, ...]] = []  # per kept axis, the stride of every operand
    for axis, extent in enumerate(shape):
        if extent == 1:
            continue
        walk = tuple(strides[axis] for strides in strides_per_operand)
        if walks and all(outer == inner * extent for outer, inner in zip(walks[-1], walk)):
            extents[-1] *= extent
            walks[-1] = walk
        else:
            extents.append(extent)
            walks.append(walk)
    return tuple(extents), tuple(tuple(walk[i] for walk in walks) for i in range(len(strides_per_operand)))


def try_view(shape: Sequence[int], strides: Sequence[int], new_shape: Sequence[int]) -> Strides | None:
    """Return strides that show the same elements as ``new_shape`` without a copy, or None where there are none.

    Works as NumPy's reshape does: a new axis may divide or join old axes only where these are walked as one.
    Both shapes must hold equally many elements.
    """
    if 0 in shape:
        return contiguous_strides(new_shape)
    runs, (run_strides,) = coalesce(shape, (strides,))
    result = [0] * len(new_shape)
    run = len(runs)
    left, stride = 1, 1  # what is left of the current run, and the stride of its next axis
    for axis in range(len(new_shape) - 1, -1, -1):
        extent = new_shape[axis]
        if left == 1 and extent != 1:
            run -= 1
            left, stride = runs[run], run_strides[run]
        if left % extent:
            return None
        result[axis] = stride
        left //= extent
        stride *= extent
    return tuple(result)


def reshape_shape(shape: Sequence[int], target: Sequence[int], allowzero: bool = False) -> Shape:
    """Resolve the 0 and -1 of Reshape's second input.

    A 0 copies the extent of the input at its place, unless ``allowzero`` makes it an extent of zero. A -1 takes what is
    left; extents that were copied cancel out first, so ``[0, 3, 4]`` to ``[0, -1]`` is ``[0, 12]``.

    Raises:
        InputError: The target is malformed, leaves -1 undetermined, or holds another number of elements.
    """
    got = f"shape {list(target)} for input {list(shape)}"
    if any(extent < -1 for extent in target) or list(target).count(-1) > 1:
        raise InputError(f"Reshape expects extents of 0 or more and at most one -1, got {got}.")
    if allowzero and 0 in target and -1 in target:
        raise InputError(f"Reshape with allowzero=1 can't hold both 0 and -1, got {got}.")
    copied = [] if allowzero else [axis for axis, extent in enumerate(target) if extent == 0]
    if copied and copied[-1] >= len(shape):
        raise InputError(f"Reshape copies axis {copied[-1]}, which an input of rank {len(shape)} lacks, got {got}.")
    result = list(target)
    for axis in copied:
        result[axis] = shape[axis]
    if -1 in target:
        rest = math.prod(extent for axis, extent in enumerate(shape) if axis not in copied)
        given = math.prod(extent for axis, extent in enumerate(target) if axis not in copied and extent != -1)
        if given == 0 or rest % given:
            raise InputError(f"Reshape can't determine -1: expected {rest} elements to divide by {given}, got {got}.")
        result[target.index(-1)] = rest // given
    if math.prod(result) != math.prod(shape):
        raise InputError(f"Reshape expects {math.prod(shape)} elements, got {math.prod(result)}: {got}.")
    return tuple(result)
