"""Sliding windows over spatial axes, shared by convolution and pooling on the host.

A window has taps; tap ``t`` of window ``o`` lies at ``o * stride + t * dilation - begin``. `Windows` counts windows,
says which of them see the input through a given tap, and packs ``Windows`` of ``windows.cuh``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

from gpuexec.errors import InputError
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.kernel_values import join_bytes, pack_struct
from gpuexec.ops.lib.strided import pack_fast_div32
from gpuexec.ops.lib.window_extents import conv_output_extent, window_pads

MAX_AXES = 3  # spatial axes the kernels walk; fewer are padded in front with extent 1
_INT_LIMIT = 2**31


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows over an input, one entry per spatial axis.

    ``begins`` is the padding before the input (it may be negative), ``ends`` the padding after it, ``counts`` the
    number of windows.
    """

    extents: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    counts: tuple[int, ...]

    @property
    def taps(self) -> int:
        """Number of taps of a window."""
        return prod(self.kernel)

    def drop_taps_behind(self) -> Windows:
        """Return the windows without the taps that lie behind the padded input in each of them, as in the first."""
        padded = zip(self.kernel, self.extents, self.begins, self.ends, self.dilations, strict=True)
        kernel = [min(k, max(1, ceil_div(extent + begin + end, d))) for k, extent, begin, end, d in padded]
        return replace(self, kernel=tuple(kernel))

    def seen(self) -> Iterator[tuple[int, tuple[slice, ...], tuple[slice, ...]]]:
        """Yield tap number, windows that see the input through that tap, and the positions they see, as slices.

        Taps come in row-major order; one that no window sees the input through is left out.
        """
        per_axis = [list(self.seen_along(axis)) for axis in range(len(self.kernel))]
        for taps in product(*per_axis):
            number = 0
            for (tap, _, _), count in zip(taps, self.kernel):
                number = number * count + tap
            yield number, tuple(windows for _, windows, _ in taps), tuple(positions for _, _, positions in taps)

    def count_inside(self, axis: int, *, with_padding: bool) -> list[int]:
        """Return how many taps of each window along an axis lie inside the input, or inside input and padding."""
        low = -self.begins[axis] if with_padding else 0
        high = self.extents[axis] + (self.ends[axis] if with_padding else 0)
        starts = [window * self.strides[axis] - self.begins[axis] for window in range(self.counts[axis])]
        steps = range(0, self.kernel[axis] * self.dilations[axis], self.dilations[axis])
        return [sum(low <= start + step < high for step in steps) for start in starts]

    def pack(self) -> bytes:
        """Return the bytes of the struct ``Windows``.

        Raises:
            InputError: More spatial axes than the kernels walk, or an extent beyond 31 bits.
        """
        rank = len(self.kernel)
        if rank > MAX_AXES:
            raise InputError(f"kernels walk at most {MAX_AXES} spatial axes, got {rank}.")
        lead = MAX_AXES - rank
        columns = (
            (self.extents, 1),
            (self.counts, 1),
            (self.kernel, 1),
            (self.strides, 1),
            (self.dilations, 1),
            (self.begins, 0),
            (self.ends, 0),
        )
        fields = [entry for values, filler in columns for entry in (*(filler,) * lead, *values)]
        if any(abs(entry) >= _INT_LIMIT for entry in fields):
            raise InputError(f"extents and padding of windows must fit 31 bits, got {self}.")
        divisors = [entry for values in (self.extents, self.counts, self.kernel) for entry in (*(1,) * lead, *values)]
        return pack_struct("<21i", *fields) + join_bytes(pack_fast_div32(max(1, divisor)) for divisor in divisors)

    @staticmethod
    def unpack(packed: bytes) -> Windows:
        """Return windows over three axes from the bytes of the struct ``Windows``."""
        fields = struct.unpack_from(f"<{7 * MAX_AXES}i", packed)
        rows = [fields[first : first + MAX_AXES] for first in range(0, len(fields), MAX_AXES)]
        extents, counts, kernel, strides, dilations, begins, ends = rows
        return Windows(extents, kernel, strides, dilations, begins, ends, counts)

    def count_taps_inside(self) -> int:
        """Return how many taps lie inside the input, over all windows."""
        return prod(sum(self.count_inside(axis, with_padding=False)) for axis in range(len(self.kernel)))

    def count_seen(self, positions: int) -> int:
        """Return how many places of the input so many windows that follow each other see, about."""
        seen = 1
        for axis in reversed(range(len(self.kernel))):
            windows = min(positions, self.counts[axis])
            positions = ceil_div(positions, max(1, windows))
            reach = (windows - 1) * self.strides[axis] + (self.kernel[axis] - 1) * self.dilations[axis] + 1
            # Taps and strides that jump over places see fewer than lie within reach.
            seen *= min(self.extents[axis], reach, windows * self.kernel[axis])
        return seen

    def seen_along(self, axis: int) -> Iterator[tuple[int, slice, slice]]:
        """Yield tap number, windows and positions as `seen` does, along one spatial axis alone."""
        stride, begin = self.strides[axis], self.begins[axis]
        for tap in range(self.kernel[axis]):
            shift = tap * self.dilations[axis] - begin
            first = max(0, ceil_div(-shift, stride))
            stop = max(first, min(self.counts[axis], (self.extents[axis] - 1 - shift) // stride + 1))
            if stop > first:
                yield tap, slice(first, stop), slice(first * stride + shift, (stop - 1) * stride + shift + 1, stride)


def resolve_windows(
    extents: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    auto_pad: str,
    ceil_mode: bool = False,
) -> Windows:
    """Return the windows of Conv or of pooling; empty ``strides``, ``dilations`` and ``pads`` mean their defaults.

    Raises:
        InputError: The attributes do not fit the number of spatial axes, or a window is longer than the padded input.
    """
    rank = len(extents)
    strides, dilations = tuple(strides) or (1,) * rank, tuple(dilations) or (1,) * rank
    pairs = window_pads(extents, kernel, strides, dilations, pads, auto_pad)
    counts = tuple(
        conv_output_extent(extent, taps, stride, dilation, pair, ceil_mode and auto_pad == "NOTSET")
        for extent, taps, stride, dilation, pair in zip(extents, kernel, strides, dilations, pairs)
    )
    begins, ends = tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
    return Windows(tuple(extents), tuple(kernel), strides, dilations, begins, ends, counts)


def trailing(slices: Iterable[slice]) -> tuple[Any, ...]:
    """Return the index of slices of the last axes."""
    return (..., *slices)


def pack_strides(strides: Sequence[int]) -> bytes:
    """Return the bytes of ``WindowStrides``: a tensor's strides by batch, channel and three spatial axes."""
    filler = (0,) * (MAX_AXES + 2 - len(strides))
    return pack_struct("<5q", *strides[:2], *filler, *strides[2:])
