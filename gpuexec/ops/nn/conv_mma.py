"""Convolutions of half, bf16 and tf32 images, channels last, on tensor cores: tables of taps, packed weights, tiles.

``conv_mma.cu`` multiplies patches of the input, which are copied as they lie, by weights packed as ``[out channels,
taps, channels]``; groups are batches. A kernel of one tap that sees each position once is a product of matrices, and so
`launch_gemm`'s; so are patches of more taps than its tables have, which vision transformers cut an image into. Channels
are copied 16 bytes at a time: an input that has others (`count_chunk`) is padded first (``pad_channels.cu``), if not so
few that they are gathered (`gpuexec.ops.nn.conv_few`), and one that is not aligned is copied.

Floats are multiplied as tf32. The kernel rounds those of the image itself, as they come out of shared memory, so that a
rounding in front is left out of the plan (`gpuexec.planner.own_rounding`), and one tap is this kernel's, too. Weights
are rounded where they are packed.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from gpuexec.errors import PlanError
from gpuexec.ir.command import Argument, Kernel, Slot
from gpuexec.ir.geometry import ceil_div, contiguous_strides, round_up
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import join_bytes, pack_struct
from gpuexec.ir.operator import Array, Emitter
from gpuexec.ir.precision import REFERENCE, TF32
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from gpuexec.ir.target import Target
from gpuexec.ir.weight_forms import WeightForm, weight_form
from gpuexec.ir.work import LAUNCH_NBYTES
from gpuexec.ops.elementwise.epilogue import instantiate_finished
from gpuexec.ops.lib.slices import (
    DEEP_MMA_TILES,
    FLAT_MMA,
    MEDIUM_MMA,
    MMA_TILES,
    SMALL_MMA,
    MmaTile,
    choose_mma_tile,
    slice_mma_tiles,
)
from gpuexec.ops.lib.strided import pack_fast_div32
from gpuexec.ops.lib.windows import MAX_AXES, Windows
from gpuexec.ops.linalg.matmul_launch import launch_gemm
from gpuexec.ops.linalg.mma_launch import has_tensor_cores, multiplies
from gpuexec.ops.linalg.product import ALONG_K, VECTOR_NBYTES, Product
from gpuexec.ops.nn.conv_simt import MAX_TAPS, ConvSum
from gpuexec.ops.tensor.layout import window

_SOURCE, _FLOAT = "conv_mma.cu", np.dtype(np.float32)
_DTYPES = (np.dtype(np.float16), BFLOAT16)
_TAPS_BEHIND, _MAX_TAP_BITS = 16, 31  # of conv_mma.cu, whose table has as many taps as that of conv_simt.cu
_BEHIND = 1 << 31  # bits of a tap behind the last one
_PAD_THREADS = 256  # kPadThreads of pad_channels.cu
_LIMIT, _ROWS_BEHIND = 2**31, 128  # rows: that a tile may reach beyond the last one
_SMALL_POSITIONS = 4096  # LEAST_POSITIONS of norm_channels_launch.py


def name_conv(dtypes: tuple[np.dtype[Any], np.dtype[Any]], tile: MmaTile) -> Kernel:
    """Return the kernel of a convolution on tensor cores.

    Args:
        dtypes: Of operands and result.
        tile: What a block makes.
    """
    return Kernel(_SOURCE, f"conv_mma<{', '.join([dtype_row(dtype).cuda for dtype in dtypes])}, {tile.name}>")


# Tiles of floats. By the large one 32 images of ResNet-50 are predicted to take 3 % less, and one image as long.
FLOAT_TILES = (MEDIUM_MMA, SMALL_MMA, FLAT_MMA)
for _dtype in _DTYPES:
    instantiate_finished(_dtype, [name_conv((_dtype, _dtype), tile) for tile in DEEP_MMA_TILES])
    instantiate_finished(_FLOAT, [name_conv((_dtype, _FLOAT), tile) for tile in DEEP_MMA_TILES], stored=[_dtype])
instantiate_finished(_FLOAT, [name_conv((_FLOAT, _FLOAT), tile) for tile in FLOAT_TILES])


def _name_pad(source: np.dtype[Any], stored: np.dtype[Any]) -> Kernel:
    return Kernel("pad_channels.cu", f"pad_channels<{dtype_row(source).cuda}, {dtype_row(stored).cuda}>")


instantiate("pad_channels.cu", [_name_pad(dtype, dtype).expression for dtype in (*_DTYPES, _FLOAT)])


def count_chunk(dtype: np.dtype[Any]) -> int:
    """Return the channels of a type that are copied at once, kChunkElements of mma_tile.cuh: eight, or four floats."""
    return VECTOR_NBYTES // dtype.itemsize


@weight_form("conv_lines")
@dataclass(frozen=True, slots=True)
class ConvLines(WeightForm):
    """Weights ``[outs, channels, taps...]`` as ``[outs, taps * channels]``, channels padded by zeros to 16 bytes."""

    def infer(self, source: TensorSpec) -> TensorSpec:
        """Return the spec, with the channels that only pad."""
        outs, channels, *kernel = source.shape
        return source.with_shape((outs, prod(kernel) * round_up(channels, count_chunk(source.dtype))))

    def pack(self, block: Array, at: tuple[int, ...], packed: Array) -> None:
        """Write a part of the weights, whose taps are all there: they are fewer than any part has rows."""
        outs, channels, *kernel = block.shape
        lines = packed.reshape(packed.shape[0], prod(kernel), -1)
        part = block.reshape(outs, channels, -1).swapaxes(1, 2)
        lines[at[0] : at[0] + outs, :, at[1] : at[1] + channels] = part


def has_channels_last(slot: Slot) -> bool:
    """Return whether the elements of an image lie dense with its channels last; axes of extent 1 don't count."""
    order = (0, *range(2, slot.spec.rank), 1)
    dense = contiguous_strides([slot.shape[axis] for axis in order])
    return all(slot.shape[axis] == 1 or slot.strides[axis] == step for axis, step in zip(order, dense, strict=True))


def find_pitch(slot: Slot) -> int | None:
    """Return how many elements lie from a position of an image to the next, whose channels lie last.

    None where channels don't, or positions lie otherwise; axes of extent 1 don't count.
    """
    channels, pitch = slot.shape[1], 0
    if channels > 1 and slot.strides[1] != 1:
        return None
    expected = 0
    for axis in (*range(slot.spec.rank - 1, 1, -1), 0):
        if slot.shape[axis] == 1:
            continue
        pitch = pitch or slot.strides[axis]
        if slot.strides[axis] != (expected or pitch):
            return None
        expected = slot.strides[axis] * slot.shape[axis]
    pitch = pitch or channels
    return pitch if pitch >= channels else None


def runs_on_tensor_cores(
    dtypes: tuple[np.dtype[Any], np.dtype[Any], np.dtype[Any]],
    kernel: tuple[int, ...],
    target: Target,
    groups: int = 1,
    channels: int = 0,
    precision: str = "",
) -> bool:
    """Return whether a convolution runs on tensor cores: of one group, or of groups whose channels are copied at once.

    It is a matter of types and taps, so that results don't depend on how images lie, and thereby on what else reads
    them.

    Args:
        dtypes: Of x, w and y.
        kernel: Its taps along each axis.
        target: What it runs on.
        groups: Groups of channels.
        channels: Of the input, in a group; they count where there are several.
        precision: Of the operands; those of float are multiplied as tf32 alone.
    """
    x, w, y = dtypes
    if groups > 1 and (channels % count_chunk(x) or not channels):
        return False
    has_tables = prod(kernel) <= MAX_TAPS and sum(kernel) + MAX_AXES - len(kernel) <= _MAX_TAP_BITS
    return has_tables and (takes_tf32(dtypes, target, precision) or multiplies(target, y, x, w))


def takes_tf32(dtypes: tuple[np.dtype[Any], ...], target: Target, precision: str) -> bool:
    """Return whether operands and result are floats that tensor cores of a target multiply as tf32.

    Args:
        dtypes: Of x, w and y.
        target: What it runs on.
        precision: Of the operands.
    """
    return precision == TF32 and has_tensor_cores(target) and all(each == _FLOAT for each in dtypes)


def count_transposed(x: TensorSpec, y: TensorSpec) -> int:
    """Return the bytes that are read and written where both images of a convolution are transposed for it.

    A launch is the bytes that could be moved in its time.
    """
    return 2 * (x.nbytes + y.nbytes + LAUNCH_NBYTES)


def launch_mma_conv(
    emit: Emitter, slots: tuple[Slot, Slot, Slot | None, Slot], windows: Windows, groups: int, precision: str = ""
) -> bool:
    """Launch a convolution on tensor cores; False where there are none for it.

    Args:
        emit: Emitter of the launch.
        slots: x, w, bias (or None), y.
        windows: Those over x.
        groups: Groups of channels.
        precision: Of the operands.

    Raises:
        PlanError: There are none for one of tf32 of this size, as there are at the upper end: what rounds its operand
            in front may have been left out.
    """
    x, w, bias, y = slots
    dtypes = (x.dtype, w.dtype, y.dtype)
    if not runs_on_tensor_cores(dtypes, windows.kernel, emit.target, groups, w.shape[1], precision):
        return False
    able = fits_numbers(x.spec, windows, w.shape[0])
    chosen = emit.choose(able)
    if chosen and not able and x.dtype == _FLOAT:
        raise PlanError(
            f"A convolution of {x.spec} is beyond the numbers of its kernel, as it is not at the upper end."
        )
    if not (chosen and able):
        return False
    if not emit.choose(find_pitch(y) is not None):
        turned = make_channels_last(emit, y)
        _launch(emit, (x, w, bias, turned), windows, groups)
        emit.copy(y, turned)
        return True
    _launch(emit, slots, windows, groups)
    return True


def launch_patches(
    emit: Emitter, slots: tuple[Slot, Slot, Slot | None, Slot], windows: Windows, groups: int, precision: str = ""
) -> bool:
    """Launch a convolution of patches that neither overlap nor leave gaps; False where it is none.

    They are laid out as rows of a product, which copies each element once at most, however many taps there are. Floats
    that tensor cores don't multiply have kernels of their own for as many taps as these have tables for.

    Args:
        emit: Emitter of the launches.
        slots: x, w, bias (or None), y.
        windows: Those over x.
        groups: Groups of channels.
        precision: Of the operands.
    """
    x, w, bias, y = slots
    dtypes = x.dtype, w.dtype, y.dtype
    is_on_tensor_cores = takes_tf32(dtypes, emit.target, precision) or multiplies(
        emit.target, y.dtype, x.dtype, w.dtype
    )
    has_long_rows = dtypes == (_FLOAT,) * 3 and windows.taps > MAX_TAPS and precision != REFERENCE
    if groups > 1 or emit.target.has_textures or not (is_on_tensor_cores or has_long_rows):
        return False
    is_apart = windows.strides == windows.kernel and not any((*windows.begins, *windows.ends))
    is_dense = w.is_contiguous and w.offset_bytes % VECTOR_NBYTES == 0 and y.is_contiguous
    outs, inner = w.shape[0], prod(w.shape[1:])
    is_able = is_apart and is_dense and set(windows.dilations) <= {1} and inner % count_chunk(w.dtype) == 0
    if not (emit.choose(is_able) and is_able):
        return False
    batch, positions = x.shape[0], prod(windows.counts)
    shape = (batch, *windows.counts, *w.shape[1:])
    rows = emit.temp(shape, x.dtype)
    steps = tuple([stride * step for stride, step in zip(x.strides[2:], windows.strides, strict=True)])
    emit.copy(rows, window(x, shape, (x.strides[0], *steps, *x.strides[1:])))
    weights, patches = window(w, (outs, inner), (inner, 1)), window(rows, (batch * positions, inner), (inner, 1))
    bias = None if bias is None else emit.contiguous(bias)
    walks = ((0,), (positions * inner,), (outs * positions,))
    strides = (inner, 1, 1, inner, 1, 0, positions)
    launch_gemm(
        emit,
        (weights, patches, bias, y),
        (outs, positions, inner),
        strides,
        batch=((batch,), walks),
        precision=precision,
    )
    return True


def _launch(emit: Emitter, slots: tuple[Slot, Slot, Slot | None, Slot], windows: Windows, groups: int) -> None:
    """Launch a convolution whose result lies channels last."""
    x, w, bias, y = slots
    bias = None if bias is None else emit.contiguous(bias)
    outs, rows = w.shape[0] // groups, x.shape[0] * prod(windows.counts)
    channels = round_up(w.shape[1], count_chunk(x.dtype))  # of a group
    x, y_pitch = align_channels(emit, x, groups * channels, windows), find_pitch(y)
    if y_pitch is None:
        raise PlanError(f"A convolution writes {y}, whose channels lie last at the upper end.")
    weights = _pack_weights(emit, w, channels)
    inner = windows.taps * channels
    if groups == 1 and x.dtype != _FLOAT and _sees_positions(windows):
        strides = (find_pitch(x) or channels, 1, 1, channels, 0, 1, y_pitch)
        launch_gemm(emit, (x, weights, bias, y), (rows, outs, inner), strides)
        return
    nbytes = inner * x.dtype.itemsize
    # Channels of large images may be measured by what makes them (`conv_normalized`), by tiles of one group of warps.
    others = DEEP_MMA_TILES if prod(windows.counts) <= _SMALL_POSITIONS else MMA_TILES
    tile = choose_mma_tile(emit, rows, outs, nbytes, groups, FLOAT_TILES if x.dtype == _FLOAT else others)
    tiles = groups * tile.count(rows, outs)
    slices = slice_mma_tiles(emit, tile, tiles, nbytes)
    batch: tuple[int, ...] = ()
    walks: tuple[tuple[int, ...], ...] = ((), (), ())
    if groups > 1:
        batch, walks = (groups,), ((channels,), (outs * inner,), (outs,))
    product = Product(
        (x, weights, bias, y), (rows, outs, inner), (inner, 1), (1, inner), (0, 1), (y_pitch, 1), (1.0, 1.0),
        batch, walks,
    )  # fmt: skip
    arguments: list[Argument] = [
        x, weights, bias, y, pack_conv(product, x, windows, channels, tile), slices.scratch, slices.counters,
    ]  # fmt: skip
    emit.launch(
        name_conv((x.dtype, y.dtype), tile),
        (tiles, slices.count, 1),
        (tile.threads, 1, 1),
        arguments,
        slices.writes(3, 5, tiles),
        shared_bytes=tile.ring_nbytes,
    )


def _pad_channels(emit: Emitter, made: Slot, x: Slot) -> None:
    """Launch the padding of an image, of any strides, into dense memory ``[n, axes..., channels]``."""
    axes, strides, chunk = x.shape[2:], x.strides[2:], count_chunk(made.dtype)
    lead = MAX_AXES - len(axes)
    vectors = made.spec.size // chunk
    divisors = (prod(axes), made.shape[-1] // chunk, *((1,) * lead + axes)[1:])
    packed = join_bytes(
        (
            *[pack_fast_div32(max(1, divisor)) for divisor in divisors],
            pack_struct("<2i", vectors, x.shape[1]),
            pack_struct("<5q", *x.strides[:2], *(0,) * lead, *strides),
        )
    )
    blocks = max(1, ceil_div(vectors, _PAD_THREADS))
    emit.launch(_name_pad(x.dtype, made.dtype), (blocks, 1, 1), (_PAD_THREADS, 1, 1), [x, made, packed], writes=[1])


def make_channels_last(emit: Emitter, y: Slot) -> Slot:
    """Return scratch memory like a row-major image whose channels lie last."""
    return _turn(emit.temp((y.shape[0], *y.shape[2:], y.shape[1]), y.dtype))


def align_channels(emit: Emitter, x: Slot, channels: int, windows: Windows | None = None) -> Slot:
    """Return an image, channels last, whose positions are 16 bytes apart or a multiple of that; zeros only pad.

    Args:
        emit: Emitter of a copy.
        x: The image.
        channels: That it is to have, with those that pad.
        windows: Over x, whose positions may be further apart than it has channels then; None: they may not.
    """
    pitch = find_pitch(x)
    is_aligned = x.shape[1] == channels and x.offset_bytes % VECTOR_NBYTES == 0 and pitch is not None
    if pitch is not None and pitch != channels:
        whole = x.spec.with_shape((x.shape[0], pitch, *x.shape[2:]))
        fits = windows is not None and fits_numbers(whole, windows, 1)
        is_aligned = is_aligned and fits and pitch % count_chunk(x.dtype) == 0
    if emit.choose(is_aligned):
        return x
    batch, own, *extents = x.shape
    made = emit.temp((batch, *extents, channels), x.dtype)
    turned = _turn(made)
    if emit.choose(own != channels):
        _pad_channels(emit, made, x)
    else:
        emit.copy(turned, x)
    return turned


def pack_conv(product: Product, x: Slot, windows: Windows, channels: int, tile: MmaTile) -> bytes:
    """Return the bytes of ``MmaConv``.

    Args:
        product: Output positions by output channels.
        x: The input, by its strides.
        windows: Those over x.
        channels: Of a tap, a multiple of those that are copied at once.
        tile: What a block makes.
    """
    total = ConvSum.of(x, windows, 1, channels, product.extents[1], is_transposed=False)
    batch, _, *axes = total.x_strides
    starts = [axis.start for axis in total.phases[0].axes]
    first_bits = (0, total.kernel[0], total.kernel[0] + total.kernel[1])
    taps = []
    for places in itertools.product(*map(range, total.kernel)):
        offset = sum(t * d * step for t, d, step in zip(places, total.dilations, axes, strict=True))
        taps.append((offset, sum(1 << first + t for first, t in zip(first_bits, places, strict=True))))
    taps += [(0, _BEHIND)] * (MAX_TAPS + _TAPS_BEHIND - len(taps))
    rows = (total.extents, total.steps, total.dilations, starts, total.kernel, first_bits)
    divisors = (prod(total.outputs), *total.outputs, channels)
    return join_bytes((
        product.pack_mma(ALONG_K, ALONG_K),
        pack_struct("<18i", *itertools.chain(*rows)),
        *[pack_fast_div32(max(1, divisor)) for divisor in divisors],
        pack_struct("<7i", batch, *axes, *divmod(tile.slab_nbytes // x.dtype.itemsize, max(1, channels)), 0),
        *[pack_struct("<iI", *tap) for tap in taps],
    ))  # fmt: skip


def fits_numbers(x: TensorSpec, windows: Windows, outs: int) -> bool:
    """Return whether the kernel's numbers of 32 bits hold places in x, also those of taps outside, and rows of y.

    Args:
        x: The images.
        windows: Those over x.
        outs: Output channels.
    """
    channels = round_up(x.shape[1], count_chunk(x.dtype))
    padded = [
        extent + begin + end + dilation * taps
        for extent, begin, end, dilation, taps in zip(
            windows.extents, windows.begins, windows.ends, windows.dilations, windows.kernel, strict=True
        )
    ]
    images = x.shape[0] + ceil_div(_ROWS_BEHIND, max(1, prod(windows.counts)))
    results = x.shape[0] * outs * prod(windows.counts)
    return max(images * channels * prod(padded), results, outs * windows.taps * channels) < _LIMIT


def _sees_positions(windows: Windows) -> bool:
    """Return whether each window is one position of the input, in order."""
    return windows.taps == 1 and windows.counts == windows.extents and not any(windows.begins)


def _turn(slot: Slot) -> Slot:
    """Return memory of ``[batch, axes..., channels]`` as an image ``[batch, channels, axes...]``."""
    order = (0, slot.spec.rank - 1, *range(1, slot.spec.rank - 1))
    shape, strides = (tuple([row[axis] for axis in order]) for row in (slot.shape, slot.strides))
    return Slot(slot.buffer, slot.offset_bytes, slot.spec.with_shape(shape), strides)


def _pack_weights(emit: Emitter, w: Slot, channels: int) -> Slot:
    """Return the weights as the kernel reads them: packed once where they are a weight of the model, else now."""
    packed = emit.packed(w, ConvLines())
    if packed is not None:
        return packed
    outs, own, *kernel = w.shape
    made = emit.temp((outs, prod(kernel) * channels), w.dtype)
    if own != channels:
        emit.fill(made, 0)
    taps = [step * channels for step in contiguous_strides(kernel)]
    shown = Slot(made.buffer, made.offset_bytes, w.spec.with_shape(w.shape), (made.shape[1], 1, *taps))
    emit.copy(shown, w)
    return made
