"""Structs of ``index.cuh``: invariant division and strided iteration of several operands.

A kernel that takes ``Strided<8, 3> walk`` is launched with ``walk.pack()`` at that place, where ``walk`` comes from

    walk = join(output.shape, (x_strides, y_strides, output.strides))

Strides of operands that stretch come from `geometry.broadcast_strides`. Joining drops axes of extent 1, puts axes in
the order of the last operand's strides (the output: so that neighbouring threads write neighbouring elements) and
merges neighbours that every operand walks as one; most nodes end with rank 1 to 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuexec.errors import InputError
from gpuexec.ir.geometry import Shape, Strides, ceil_div, coalesce, element_count, max_offset
from gpuexec.ir.kernel_values import join_bytes, pack_struct
from gpuexec.ir.symbolic_int import memoize

MAX_RANK = 8  # kMaxRank of index.cuh
_NARROW = 2**31


@dataclass(frozen=True, slots=True)
class Walk:
    """A common shape and, per operand, the strides in elements to walk it with. Rank is at most `MAX_RANK`."""

    shape: Shape
    strides: tuple[Strides, ...]

    @property
    def count(self) -> int:
        """Number of elements of the common shape."""
        return element_count(self.shape)

    @property
    def is_wide(self) -> bool:
        """Return whether an index or an offset needs more than 31 bits."""
        return self.count >= _NARROW or any(max_offset(self.shape, strides) >= _NARROW for strides in self.strides)

    @property
    def inner_strides(self) -> tuple[int, ...]:
        """Stride of each operand along the innermost axis; 0 where the walk has rank 0."""
        return tuple(strides[-1] if strides else 0 for strides in self.strides)

    def in_units(self, width: int) -> Walk:
        """Return the walk over groups of ``width`` neighbours of the innermost axis; the last group may be short."""
        if width == 1 or not self.shape:
            return self
        shape = (*self.shape[:-1], ceil_div(self.shape[-1], width))
        return Walk(shape, tuple((*strides[:-1], strides[-1] * width) for strides in self.strides))

    def pack(self) -> bytes:
        """Return the bytes of ``Strided<8, number of operands>``."""
        rank = len(self.shape)
        is_wide = self.is_wide
        pack_extent = _pack_wide if is_wide else _pack_narrow
        parts = [pack_struct("<q2i", self.count, rank, is_wide)]
        parts += [pack_extent(extent) for extent in reversed(self.shape)]
        parts.append(pack_extent(1) * (MAX_RANK - rank))
        for strides in self.strides:
            parts.append(pack_struct(f"<{rank}q{8 * (MAX_RANK - rank)}x", *reversed(strides)))
        return join_bytes(parts)


def join(shape: Sequence[int], strides_per_operand: Sequence[Sequence[int]]) -> Walk:
    """Return the shortest walk over ``shape``; the last operand (the output) orders the axes.

    Raises:
        InputError: More than `MAX_RANK` axes are left.
    """
    leader = strides_per_operand[-1]
    order = sorted((axis for axis in range(len(shape)) if shape[axis] != 1), key=lambda axis: -abs(leader[axis]))
    merged, strides = coalesce(
        [shape[axis] for axis in order], [[strides[axis] for axis in order] for strides in strides_per_operand]
    )
    if len(merged) > MAX_RANK:
        raise InputError(
            f"kernels walk at most {MAX_RANK} axes that can't be merged, got {len(merged)} of shape {list(shape)}; "
            f"make the inputs contiguous or of equal shape."
        )
    return Walk(merged, strides)


def pack_fast_div32(divisor: int) -> bytes:
    """Return the bytes of ``FastDiv32``, which divides 0 <= n < 2**31."""
    return pack_struct("<3I", divisor, *_magic32(divisor))


def pack_fast_div64(divisor: int) -> bytes:
    """Return the bytes of ``FastDiv64``, which divides 0 <= n < 2**63."""
    return pack_struct("<2Q2I", divisor, *_magic64(divisor), 0)


@memoize(4096)
def _pack_narrow(extent: int) -> bytes:
    return pack_struct("<2Q2I", extent, *_magic32(extent), 0) if extent else bytes(24)  # no elements, no division


@memoize(4096)
def _pack_wide(extent: int) -> bytes:
    return pack_struct("<2Q2I", extent, *_magic64(extent), 0) if extent else bytes(24)


def _magic32(divisor: int) -> tuple[int, int]:
    return _magic(divisor, 32)


def _magic64(divisor: int) -> tuple[int, int]:
    return _magic(divisor, 64)


def _magic(divisor: int, bits: int) -> tuple[int, int]:
    """Return multiplier and shift such that n // divisor == (high word of n * multiplier, plus n) >> shift."""
    if not 1 <= divisor < 1 << (bits - 1):
        raise InputError(f"a divisor of {bits}-bit indices must lie in [1, 2**{bits - 1}), got {divisor}.")
    shift = (divisor - 1).bit_length()
    return ((1 << shift) - divisor << bits) // divisor + 1, shift
