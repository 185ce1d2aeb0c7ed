"""Convolutions of images with few channels on tensor cores: patches gathered and rounded by the kernel, in one launch.

The first convolution of a model sees one to four channels, row-major, mostly as floats. ``conv_few.cu`` reads it as it
lies: threads gather patches, round them to the type of the weights (`Conv.rounds_to`, so that a Cast or a rounding in
front is left out of the plan by `gpuexec.planner.own_rounding`), and put them into shared memory. The inner extent has
no gaps: channels, and in a channel taps, as weights lie, which are packed only where their rows are not aligned.
Results are written as they are to lie, by rows of output positions: of all images, channels last, or of each image.

Where rows of a kernel are whole vectors of the image, as where a transformer cuts it into patches, they are read so.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from gpuexec.errors import PlanError
from gpuexec.ir.command import Argument, Kernel, Slot
from gpuexec.ir.geometry import round_up
from gpuexec.ir.kernel_values import join_bytes, pack_struct
from gpuexec.ir.operator import Emitter
from gpuexec.ir.precision import TF32
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from gpuexec.ir.target import Target
from gpuexec.ops.elementwise.epilogue import instantiate_finished
from gpuexec.ops.lib.slices import SMALL_MMA, slice_mma_tiles
from gpuexec.ops.lib.strided import pack_fast_div32
from gpuexec.ops.lib.windows import MAX_AXES, Windows
from gpuexec.ops.linalg.mma_launch import PaddedRows, has_tensor_cores, multiplies
from gpuexec.ops.linalg.product import ALONG_K, VECTOR_NBYTES, Product, fits_extents
from gpuexec.ops.nn.conv_mma import count_chunk, has_channels_last
from gpuexec.ops.nn.conv_simt import ConvSum
from gpuexec.ops.tensor.layout import window

MAX_CHANNELS = 7  # with eight, those of a tap are 16 bytes, which conv_mma.cu copies as they lie
# What waits in registers leaves none to larger tiles.
TILE = SMALL_MMA
_FLOAT, _DTYPES = np.dtype(np.float32), (np.dtype(np.float16), BFLOAT16)
_MAX_TAP_BITS = 31  # of conv_few.cu
_PLACE_NBYTES, _MAX_LISTED_NBYTES = 8, 1 << 14  # sizeof(PatchPlace); of shared memory behind the ring
_LIMIT = 2**31


def name_few(dtypes: tuple[np.dtype[Any], ...], width: int) -> Kernel:
    """Return the kernel of a convolution of few channels.

    Args:
        dtypes: Of the image, the weights and the result.
        width: Elements of a patch that are read together: 1, or those of 16 bytes of weights.
    """
    types = ", ".join([dtype_row(dtype).cuda for dtype in dtypes])
    return Kernel("conv_few.cu", f"conv_few<{types}, {TILE.name}, {width}>")


def _list_kernels(*dtypes: np.dtype[Any]) -> list[Kernel]:
    return [name_few(dtypes, width) for width in (1, count_chunk(dtypes[1]))]


for _dtype in _DTYPES:
    instantiate_finished(_dtype, _list_kernels(_dtype, _dtype, _dtype))
    _to_floats = _list_kernels(_dtype, _dtype, _FLOAT) + _list_kernels(_FLOAT, _dtype, _FLOAT)
    instantiate_finished(_FLOAT, _to_floats, stored=[_dtype])
instantiate_finished(_FLOAT, _list_kernels(_FLOAT, _FLOAT, _FLOAT))


@dataclass(frozen=True, slots=True)
class FewSum:
    """What a convolution of few channels sums, along three axes, and where its taps may be outside.

    Attributes:
        total: Extents, strides and windows.
        taps: Of a channel.
        first_bits: The bit of the first tap along each axis; -1 where no window leaves the image.
    """

    total: ConvSum
    taps: int
    first_bits: tuple[int, ...]

    @staticmethod
    def of(x: Slot, windows: Windows, outs: int) -> FewSum:
        """Return the sum over windows of an image."""
        total = ConvSum.of(x, windows, 1, x.shape[1], outs, is_transposed=False)
        padded, first = _find_padded(windows), 0
        bits = [-1] * (MAX_AXES - len(padded))
        for taps, is_padded in zip(windows.kernel, padded, strict=True):
            bits.append(first if is_padded else -1)
            first += taps * is_padded
        return FewSum(total, windows.taps, tuple(bits))

    @property
    def inner(self) -> int:
        """Terms of a sum."""
        return self.total.channels * self.taps

    @property
    def has_numbers(self) -> bool:
        """Whether places of an image, by its strides, are numbers of 31 bits."""
        _, channel, *axes = self.total.x_strides
        reach = sum(d * k * abs(step) for d, k, step in zip(self.total.dilations, self.total.kernel, axes, strict=True))
        return self.total.channels * abs(channel) + reach < _LIMIT

    def has_vectors(self, x: Slot, width: int) -> bool:
        """Return whether so many elements of a row of a patch lie side by side, aligned, and inside."""
        batch, channel, *axes = self.total.x_strides
        steps = [step * axis for step, axis in zip(self.total.steps, axes, strict=True)]
        begins = [self.total.phases[0].axes[place].start * axis for place, axis in enumerate(axes)]
        aligned = VECTOR_NBYTES // x.dtype.itemsize
        rows = [axis for axis, extent in zip(axes[:-1], self.total.kernel[:-1], strict=True) if extent > 1]
        return (
            (axes[-1] == 1 or self.total.kernel[-1] == 1)
            and (self.total.dilations[-1], self.first_bits[-1]) == (1, -1)
            and self.total.kernel[-1] % width == 0
            and x.offset_bytes % VECTOR_NBYTES == 0
            and not any(each % aligned for each in (batch, channel, *rows, *steps, *begins))
        )

    def pack(self, product: Product) -> bytes:
        """Return the bytes of ``FewConv``."""
        total = self.total
        starts = [axis.start for axis in total.phases[0].axes]
        rows = (total.extents, total.steps, total.dilations, starts, self.first_bits)
        divisors = (prod(total.outputs), *total.outputs, *total.kernel)
        return join_bytes((
            product.pack_mma(ALONG_K, ALONG_K),
            pack_struct("<15i", *[number for row in rows for number in row]),
            *[pack_fast_div32(max(1, divisor)) for divisor in divisors],
            pack_struct("<5q", *total.x_strides),
        ))  # fmt: skip


def takes_few(
    dtypes: tuple[np.dtype[Any], np.dtype[Any]],
    windows: Windows,
    channels: int,
    groups: int,
    target: Target,
    precision: str = "",
) -> bool:
    """Return whether a convolution is one of few channels on tensor cores.

    Args:
        dtypes: Of w and y.
        windows: Those over x.
        channels: Of x.
        groups: Groups of channels.
        target: What it runs on.
        precision: Of the operands; those of float are multiplied as tf32 alone.
    """
    dtype, result = dtypes
    is_tf32 = precision == TF32 and dtype == result == _FLOAT and has_tensor_cores(target)
    if groups != 1 or not 0 < channels <= MAX_CHANNELS or not (is_tf32 or multiplies(target, result, dtype)):
        return False
    bits = sum(taps for taps, is_padded in zip(windows.kernel, _find_padded(windows), strict=True) if is_padded)
    return bits <= _MAX_TAP_BITS and _count_listed(channels * windows.taps, dtype, 1) <= _MAX_LISTED_NBYTES


def fits_few(x: TensorSpec, windows: Windows, outs: int) -> bool:
    """Return whether the kernel's numbers of 32 bits hold results, and places of an image that lies dense.

    Args:
        x: The images.
        windows: Those over x.
        outs: Output channels.
    """
    reach = [e + d * k for e, d, k in zip(windows.extents, windows.dilations, windows.kernel, strict=True)]
    return fits_extents(x.shape[0] * prod(windows.counts) * outs) and x.shape[1] * prod(reach) < _LIMIT


def launch_few(
    emit: Emitter, slots: tuple[Slot, Slot, Slot | None, Slot], windows: Windows, groups: int, precision: str = ""
) -> bool:
    """Launch a convolution of few channels on tensor cores; False where there is no kernel for it.

    Args:
        emit: Emitter of the launch.
        slots: x, w, bias (or None), y. x may be of floats whatever w is of.
        windows: Those over x.
        groups: Groups of channels.
        precision: Of the operands.

    Raises:
        PlanError: There is none for this size, as there is at the upper end: what rounds its operand in front may have
            been left out, or rows of its patches are no vectors.
    """
    x, w, bias, y = slots
    outs = w.shape[0]
    is_few = takes_few((w.dtype, y.dtype), windows, x.shape[1], groups, emit.target, precision)
    is_able = is_few and fits_few(x.spec, windows, outs)
    chosen = emit.choose(is_able)
    if chosen != is_able:
        raise PlanError(f"A convolution of {x.spec} has another kernel than at the upper end.")
    if not chosen:
        return False
    if emit.choose(not FewSum.of(x, windows, outs).has_numbers):
        x = emit.contiguous(x)
    total, width = FewSum.of(x, windows, outs), count_chunk(w.dtype)
    if not total.has_numbers:
        raise PlanError(f"Places of {x} are beyond the numbers of a kernel, as they are not at the upper end.")
    has_vectors = total.has_vectors(x, width)
    if emit.choose(has_vectors):
        if not has_vectors:
            raise PlanError(f"Rows of patches of {x.spec} are no vectors, as they are at the upper end.")
    else:
        width = 1
    bias = None if bias is None else emit.contiguous(bias)
    product = _pose(emit, (x, w, bias, y), total.inner, windows)
    rows, _, inner = product.extents
    nbytes = inner * w.dtype.itemsize
    tiles = product.count * TILE.count(rows, outs)
    slices = slice_mma_tiles(emit, TILE, tiles, nbytes)
    arguments: list[Argument] = [*product.slots, total.pack(product), slices.scratch, slices.counters]
    emit.launch(
        name_few((x.dtype, w.dtype, y.dtype), width),
        (tiles, slices.count, 1),
        (TILE.threads, 1, 1),
        arguments,
        slices.writes(3, 5, tiles),
        shared_bytes=TILE.ring_nbytes + _count_listed(inner, w.dtype, width),
    )
    return True


def _pose(emit: Emitter, slots: tuple[Slot, Slot, Slot | None, Slot], inner: int, windows: Windows) -> Product:
    """Return the product of patches and weights: all images in one, or each for itself, as the result lies."""
    x, w, bias, y = slots
    outs, batch, positions = w.shape[0], x.shape[0], prod(windows.counts)
    weights = _lay_weights(emit, w, inner)
    pitch = weights.strides[0]
    if has_channels_last(y):
        return Product(
            (x, weights, bias, y), (batch * positions, outs, inner), (0, 1), (1, pitch), (0, 1), (outs, 1), (1.0, 1.0),
            (), ((), (), ()),
        )  # fmt: skip
    if not y.is_contiguous:
        raise PlanError(f"A convolution writes {y} neither row-major nor channels last.")
    return Product(
        (x, weights, bias, y), (positions, outs, inner), (0, 1), (1, pitch), (0, 1), (1, positions), (1.0, 1.0),
        (batch,), ((x.strides[0],), (0,), (outs * positions,)),
    )  # fmt: skip


def _lay_weights(emit: Emitter, w: Slot, inner: int) -> Slot:
    """Return the weights as a matrix of rows aligned to 16 bytes: as they lie, packed once, or copied."""
    chunk, outs = count_chunk(w.dtype), w.shape[0]
    is_dense = w.is_contiguous
    if emit.choose(is_dense and inner % chunk == 0 and w.offset_bytes % VECTOR_NBYTES == 0):
        return window(w, (outs, inner), (inner, 1))
    if emit.choose(is_dense):
        packed = emit.packed(window(w, (outs, inner), (inner, 1)), PaddedRows(chunk))
        if packed is not None:
            return packed
    w = emit.contiguous(w)
    made = emit.temp((outs, round_up(inner, chunk)), w.dtype)
    lines = window(made, (outs, inner), (made.shape[1], 1))
    emit.copy(lines, window(w, (outs, inner), (inner, 1)))
    return lines


def _find_padded(windows: Windows) -> tuple[bool, ...]:
    """Return along which axes some window leaves the image."""
    axes = zip(
        windows.extents, windows.kernel, windows.strides, windows.dilations, windows.begins, windows.counts, strict=True
    )
    return tuple([b > 0 or (n - 1) * s + (k - 1) * d - b >= e for e, k, s, d, b, n in axes])


def _count_listed(inner: int, dtype: np.dtype[Any], width: int) -> int:
    """Return the bytes of the list of places: of whole slabs."""
    return round_up(inner, TILE.slab_nbytes // dtype.itemsize) // width * _PLACE_NBYTES
