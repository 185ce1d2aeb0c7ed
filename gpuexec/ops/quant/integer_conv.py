"""Integer convolutions: ConvInteger, QLinearConv.

Sums are of integers, with zero points taken off, so a tap in the padding adds nothing. A convolution is a product of
words of four bytes: the input is packed first, channels last and with its padding, which moves it twice where the
product reads it once for each tap. From sm_80 on tensor cores make it where a sum has 32 terms or more
(``integer_conv_mma.cu``). Groups of a single input or output channel have a kernel of their own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError, PlanError
from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div, permute, round_up
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int64, join_bytes, pack_struct
from gpuexec.ir.operator import Array, Emitter, Out, PreparedCalls, Slots, Tolerance, operator
from gpuexec.ir.prepared_calls import has_scratch, view_bytes
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.weight_forms import WeightForm, weight_form
from gpuexec.ir.work import WARP, Work, count_slot_bytes, count_warps, work_of
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.slices import (
    MMA_TILES,
    SLAB_DEPTH,
    TILES,
    Slices,
    choose_mma_tile,
    choose_tile,
    slice_mma_tiles,
    slice_tiles,
)
from gpuexec.ops.lib.strided import pack_fast_div32
from gpuexec.ops.lib.windows import MAX_AXES, Windows, pack_strides
from gpuexec.ops.linalg.mma_launch import has_tensor_cores
from gpuexec.ops.linalg.mma_work import AROUND, LOOP_INSTRUCTIONS, describe_mma_tiles, find_mma_tile
from gpuexec.ops.linalg.simt_work import SlicedTiles, find_tile_code
from gpuexec.ops.nn.conv_host import convolve, count_convolution, prepare_convolution
from gpuexec.ops.nn.convolution import THREADS, Convolution, ConvSizes, check_channels, check_index, check_kernel
from gpuexec.ops.quant.integer import (
    BYTES,
    FLOAT,
    INT32,
    LARGEST_PRODUCT,
    Quantized,
    check_bytes,
    check_one,
    find_exact,
    multiply_scales,
    offset_of,
    pack_finish,
    prepare_rounding,
    requantize,
    subtract_zero,
    to_int32,
)
from gpuexec.ops.quant.integer_quants import align_quant
from gpuexec.ops.quant.integer_words import (
    MAX_STRIDE,
    MMA_DEPTH,
    VECTOR_BYTES,
    WORD,
    WORD_BYTES,
    count_line_bytes,
    find_pitch,
)
from gpuexec.ops.tensor.layout import window

_SOURCE, _MMA_SOURCE, _PACK_COLUMNS = "integer_conv.cu", "integer_conv_mma.cu", 32
_LIMIT = 2**31
_KEPT_NBYTES = 1 << 14  # of a wide weight that prepared calls keep from run to run: no larger than a table
_EXACT_ADDEND = 1 << 24  # of a bias: floats hold all integers up to it
_Calls = list[Callable[[], object]]
_ENTRIES_BEHIND = 32  # of the table of vectors: what kernels read ahead, 256 bytes of a slab, and one slab more

instantiate(_SOURCE, [f"integer_conv<{tile.name}, {y}>" for tile in TILES for y in ("i32", "u8")])
instantiate(_SOURCE, [*[f"integer_conv_direct<{y}>" for y in ("i32", "u8")], "pack_byte_windows", "pack_conv_bytes"])
instantiate(_MMA_SOURCE, [*[f"integer_conv_mma<{tile.name}>" for tile in MMA_TILES], "pack_conv_lines"])


@operator("ConvInteger")
@dataclass(frozen=True, slots=True)
class ConvInteger(Convolution):
    """Convolution of ``x - x_zero_point`` with ``w - w_zero_point`` in int32."""

    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    flops_per_output = None
    has_blits = False

    def infer(
        self,
        x: TensorSpec | None,
        w: TensorSpec | None,
        x_zero: TensorSpec | None = None,
        w_zero: TensorSpec | None = None,
    ) -> tuple[TensorSpec, ...]:
        """Return ``[batch, out channels, windows...]`` of int32.

        Raises:
            InputError: Ranks, types, channels, zero points or attributes do not fit together.
        """
        return (TensorSpec(_infer_shape(self, Quantized(x, None, x_zero), Quantized(w, None, w_zero)), INT32),)

    def compute(
        self, x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None, *, out: Out = None
    ) -> tuple[Array, ...]:
        """Convolve exactly; sums wrap."""
        return (_sum(self, Quantized(x, None, x_zero), Quantized(w, None, w_zero)),)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count what sums are made of."""
        return _count_sum(self, inputs[0], inputs[1])

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Convolve exactly in scratch, in floats, and convert."""
        (x, w, x_zero, w_zero), y = (*inputs, None, None)[:4], out[0]
        known = (*constant, True, True)[:4]
        if x is None or w is None or y is None:
            return None
        made = _prepare_sum(
            self, Quantized(x, None, x_zero), Quantized(w, None, w_zero), known[1] and known[3], scratch
        )
        return None if made is None else [*made[0], partial(np.copyto, y, made[1], casting="unsafe")]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch one kernel."""
        x, w, x_zero, w_zero = (*inputs, None, None)[:4]
        _launch(self, emit, Quantized(x, None, x_zero), Quantized(w, None, w_zero), Quantized(outputs[0]))


@operator("QLinearConv")
@dataclass(frozen=True, slots=True)
class QLinearConv(Convolution):
    """Convolution of bytes with a bias in int32, quantised again: ``round(sum * (x_scale * w_scale / y_scale))``.

    ``y_zero_point`` is added, halves are rounded to even, and the result saturates. ``channels_last`` is of
    com.microsoft alone.
    """

    channels_last: int = 0
    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    example = "uint8[2,3,6,6] float32[] uint8[] int8[4,3,3,3] float32[4] int8[4] float32[] uint8[] int32[4]"
    flops_per_output = None
    has_blits = False

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return ``[batch, out channels, windows...]`` of the type of y_zero_point.

        Raises:
            InputError: Ranks, types, channels, scales, zero points or attributes do not fit together.
        """
        x, w, y, bias = _split(inputs)
        shape = _infer_shape(self, x, w, is_last=bool(self.channels_last))
        for role, spec in (("x_scale", x.scale), ("w_scale", w.scale), ("y_scale", y.scale)):
            check_dtype(self.name, spec, (FLOAT,), role)
        check_one(self.name, x.scale, (FLOAT,), "x_scale")
        check_one(self.name, y.scale, (FLOAT,), "y_scale")
        zero = check_bytes(self.name, y.zero, "y_zero_point")
        check_one(self.name, zero, (zero.dtype,), "y_zero_point")
        if bias is not None and (bias.dtype != INT32 or bias.shape != (w.values.shape[0],)):
            raise InputError(f"{self.name} expects a bias of int32[{w.values.shape[0]}], got {bias}.")
        return (TensorSpec(shape, zero.dtype),)

    def compute(self, *inputs: Array | None, out: Out = None) -> tuple[Array, ...]:
        """Convolve exactly, scale, round."""
        x, w, y, bias = _split(inputs)
        rank = x.values.ndim
        if self.channels_last:
            x = Quantized(x.values.transpose(to_first(rank)), x.scale, x.zero)
        sums = _sum(self, x, w)
        if bias is not None:
            sums = sums + bias.reshape(-1, *(1,) * (rank - 2))
        scale = multiply_scales(1.0, x.scale.reshape(()), by_channel(w.scale, rank, 1))
        made = requantize(sums, scale, y.scale.reshape(()), y.zero.reshape(()), y.zero.dtype)
        return (made.transpose(to_last(rank)) if self.channels_last else made,)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count the sums as floats, which of them are no numbers, and what they are made of."""
        y = outputs[0]
        sums = () if self.channels_last or y is None else _count_sum(self, inputs[0], inputs[3])
        return (y.size * FLOAT.itemsize, y.size, *sums) if sums and y is not None else ()

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Convolve exactly in scratch, in floats, scale and round there: where scales and the bias are constant."""
        x, w, made, bias = _split(inputs)
        y = out[0]
        if self.channels_last or y is None or not all(constant[4:]) or not constant[1]:
            return None
        if bias is not None and np.abs(bias.astype(np.int64)).max(initial=0) >= _EXACT_ADDEND:
            return None
        if not has_scratch(scratch, (y.size * FLOAT.itemsize, y.size)):
            return None
        summed = _prepare_sum(self, x, w, constant[3], scratch[2:])
        if summed is None:
            return None
        (calls, sums), rank = summed, y.ndim
        if bias is not None:
            addend = bias.astype(sums.dtype).reshape(-1, *(1,) * (rank - 2))
            calls.append(partial(np.add, sums, addend, out=sums))
        values = sums
        if sums.dtype != FLOAT:
            values = view_bytes(scratch[0], y.shape, FLOAT)
            calls.append(partial(np.copyto, values, sums, casting="same_kind"))
        scale = multiply_scales(1.0, x.scale.reshape(()), by_channel(w.scale, rank, 1))
        calls.append(partial(np.multiply, values, scale / made.scale.reshape(()), out=values))
        is_nan = view_bytes(scratch[1], y.shape, np.dtype(np.bool_))
        return [*calls, *prepare_rounding(values, made.zero.reshape(()).astype(FLOAT), y, is_nan)]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch one kernel; the order of axes is a matter of strides."""
        x, w, y, bias = _split(inputs)
        made = outputs[0]
        assert made is not None
        if self.channels_last:
            x, made = Quantized(channels_first(x.values), x.scale, x.zero), channels_first(made)
        _launch(self, emit, x, w, Quantized(made, y.scale, y.zero), bias)


def _infer_shape(op: Convolution, x: Quantized, w: Quantized, *, is_last: bool = False) -> tuple[int, ...]:
    """Check all but the result's scale; return its shape, in the order of x."""
    name = op.name
    values, weight = check_bytes(name, x.values, "x"), check_bytes(name, w.values, "w")
    check_kernel(name, values, weight, op.kernel_shape, op.group)
    shape = permute(values.shape, to_first(values.rank)) if is_last else values.shape
    check_channels(name, values, shape[1], weight, op.group)
    check_one(name, x.zero, (values.dtype,), "x_zero_point")
    for role, spec, dtype in (("w_zero_point", w.zero, weight.dtype), ("w_scale", w.scale, FLOAT)):
        if spec is not None and (spec.dtype != dtype or not is_per_channel(spec, weight.shape[0])):
            raise InputError(
                f"{name} expects {role} to be one {dtype.name}, or one for each output channel "
                f"({weight.shape[0]}), got {spec}."
            )
    made = (shape[0], weight.shape[0], *op.windows(shape, weight.shape).counts)
    return permute(made, to_last(len(made))) if is_last else made


def _sum(op: Convolution, x: Quantized, w: Quantized) -> Array:
    """Return the sums in int32, channels first."""
    inner = prod(w.values.shape[1:])
    left = subtract_zero(x.values, None if x.zero is None else x.zero.reshape(()), inner)
    right = subtract_zero(w.values, None if w.zero is None else by_channel(w.zero, w.values.ndim, 0), inner)
    return to_int32(convolve(left, right, None, op.windows(left.shape, right.shape), op.group))


def _count_sum(op: Convolution, x: TensorSpec | None, w: TensorSpec | None) -> tuple[int, ...]:
    """Return the bytes of each array that the calls of `_prepare_sum` work in."""
    if x is None or w is None:
        return ()
    windows, itemsize = op.windows(x.shape, w.shape), find_exact(prod(w.shape[1:])).itemsize
    sizes = (x.size, w.size, x.shape[0] * w.shape[0] * prod(windows.counts))
    return (*[size * itemsize for size in sizes], *count_convolution(x.shape, w.shape, windows, op.group, itemsize))


def _prepare_sum(
    op: Convolution, x: Quantized, w: Quantized, is_known: bool, scratch: Sequence[Array]
) -> tuple[_Calls, Array] | None:
    """Return calls that make the sums of `_sum` as whole floats, and where; None where they may wrap.

    A weight that is known, with its zero point, is widened once where it is small.
    """
    inner, exact = prod(w.values.shape[1:]), find_exact(prod(w.values.shape[1:]))
    windows = op.windows(x.values.shape, w.values.shape)
    shape = (x.values.shape[0], w.values.shape[0], *windows.counts)
    specs = [TensorSpec(values.shape, values.dtype) for values in (x.values, w.values)]
    needed = _count_sum(op, *specs)
    if inner * LARGEST_PRODUCT + _EXACT_ADDEND >= _LIMIT or not has_scratch(scratch, needed):
        return None
    is_kept = is_known and needed[1] <= _KEPT_NBYTES
    left, sums = view_bytes(scratch[0], x.values.shape, exact), view_bytes(scratch[2], shape, exact)
    right = np.empty(w.values.shape, exact) if is_kept else view_bytes(scratch[1], w.values.shape, exact)
    widen_left: _Calls = [partial(np.copyto, left, x.values)]
    if x.zero is not None:
        widen_left.append(partial(np.subtract, left, x.zero.reshape(()), out=left))
    widen_right: _Calls = [partial(np.copyto, right, w.values)]
    if w.zero is not None:
        zeros = by_channel(w.zero, w.values.ndim, 0)
        widen_right.append(partial(np.subtract, right, zeros, out=right))
    calls = prepare_convolution(left, right, None, windows, op.group, sums, scratch[3:], is_finite=True)
    if calls is None:
        return None
    if is_kept:
        for call in widen_right:
            call()
        widen_right = []
    return [*widen_left, *widen_right, *calls], sums


def _launch(op: Convolution, emit: Emitter, x: Quantized, w: Quantized, y: Quantized, bias: Slot | None = None) -> None:
    """Launch the product of windows, or the direct kernel for groups of one channel; x and y channels first.

    Raises:
        PlanError: This size is too large for the product, which the upper end has chosen.
    """
    windows = op.windows(x.values.shape, w.values.shape)
    outs, ins = w.values.shape[:2]
    check_index(op.name, "input channels * taps", ins * windows.taps)
    check_index(op.name, "outputs of one channel", prod(windows.counts))
    check_index(op.name, "output channels of a group", outs // op.group)
    w = align_quant(emit, w)
    bias = None if bias is None else emit.contiguous(bias)
    sizes = ConvSizes(x.values.shape[0], op.group, ins, outs // op.group, prod(windows.counts))
    total = WindowProduct.of(sizes, windows)
    if emit.choose(int(sizes.has_single or not total.fits)):
        _launch_direct(emit, sizes, windows, x, w, y, bias)
        return
    if not total.fits:
        raise PlanError("An integer convolution is too large for tiles, which the upper end has chosen.")
    total.launch(emit, windows, x, w, y, bias)


def _has_many_quants(w: Quantized) -> int:
    return int(any(slot is not None and slot.spec.size > 1 for slot in (w.scale, w.zero)))


def _launch_direct(
    emit: Emitter, sizes: ConvSizes, windows: Windows, x: Quantized, w: Quantized, y: Quantized, bias: Slot | None
) -> None:
    steps = (*y.values.strides[:2], y.values.strides[-1])
    offsets = (offset_of(x.values.dtype), offset_of(w.values.dtype))
    rest = pack_struct("<3q4i", *steps, *offsets, _has_many_quants(w), 0)
    arguments: list[Argument] = [x.values, emit.contiguous(w.values), x.zero, w.zero, y.values]
    arguments += [windows.pack(), pack_strides(x.values.strides), sizes.pack() + rest]
    arguments += [x.scale, w.scale, y.scale, y.zero, bias, pack_finish(1.0, y.values.dtype, None)]
    kernel = Kernel(_SOURCE, f"integer_conv_direct<{'i32' if y.values.dtype == INT32 else 'u8'}>")
    grid = (ceil_div(y.values.spec.size, THREADS), 1, 1)
    emit.launch(kernel, grid, (THREADS, 1, 1), arguments, writes=[4])


def _fill(values: Sequence[int], filler: int) -> tuple[int, ...]:
    """Return numbers along three axes, of which those in front may not be there."""
    return (*(filler,) * (MAX_AXES - len(values)), *values)


def _find_folded(channels: int, kernel: Sequence[int]) -> int:
    """Return the taps of the last axis that are packed beside each other, as channels are; 0: each has its own place.

    Few channels alone would leave most of a vector empty.
    """
    last = kernel[-1]
    is_smaller = 2 * round_up(last * channels, VECTOR_BYTES) <= last * round_up(channels, VECTOR_BYTES)
    return last if last == 1 or is_smaller else 0


def count_vectors(channels: int, kernel: Sequence[int]) -> tuple[int, int, int]:
    """Return the taps that have vectors of their own, the vectors of each, and the taps folded into these (or 0)."""
    folded = _find_folded(channels, kernel)
    taps = prod(kernel[:-1]) if folded else prod(kernel)
    return taps, ceil_div(max(folded, 1) * channels, VECTOR_BYTES), folded


@weight_form("conv_byte_words")
@dataclass(frozen=True, slots=True)
class ConvByteWords(WeightForm):
    """Weights ``[out channels, channels, taps...]`` of bytes as words ``[groups, words + 1, outs]``, filled up with 0.

    Words run over taps, and in a tap over its channels, which fill whole vectors; or a vector has those of several taps
    of the last axis. Bytes are centred. The last row is the sums of the columns. ``outs`` and ``channels`` are of a
    group.
    """

    groups: int
    outs: int
    channels: int

    def infer(self, source: TensorSpec) -> TensorSpec:
        """Return the spec."""
        taps, vectors, _ = count_vectors(self.channels, source.shape[2:])
        words = taps * vectors * VECTOR_BYTES // WORD_BYTES
        return TensorSpec((self.groups, words + 1, round_up(self.outs, WORD_BYTES)), WORD)

    def pack(self, block: Array, at: tuple[int, ...], packed: Array) -> None:
        """Write a part of the weights, whose taps are all there: they are fewer than any part has rows."""
        taps, _, folded = count_vectors(self.channels, block.shape[2:])
        centred = block.view(np.uint8) ^ np.uint8(offset_of(block.dtype))
        weights = centred.reshape(*block.shape[:2], taps, max(folded, 1))
        places = np.arange(max(folded, 1)) * self.channels + (at[1] + np.arange(block.shape[1]))[:, None]
        end = at[0] + block.shape[0]
        for group in range(at[0] // self.outs, ceil_div(end, self.outs)):
            low, high = max(group * self.outs, at[0]), min((group + 1) * self.outs, end)
            part = weights[low - at[0] : high - at[0]]
            columns = slice(low - group * self.outs, high - group * self.outs)
            words = packed[group, :-1].reshape(taps, -1, packed.shape[-1])
            for i in range(WORD_BYTES):
                channels, inner = np.nonzero(places % WORD_BYTES == i)
                chosen = part[:, channels, :, inner].transpose(2, 0, 1)  # [taps, bytes, outs]
                words[:, places[channels, inner] // WORD_BYTES, columns] |= chosen.astype(WORD) << WORD.type(8 * i)
            packed[group, -1, columns] += part.view(np.int8).sum((1, 2, 3), dtype=np.int32).view(WORD)


@weight_form("conv_byte_lines")
@dataclass(frozen=True, slots=True)
class ConvByteLines(WeightForm):
    """Weights ``[out channels, channels, taps...]`` of bytes as lines ``[groups, outs]``, filled up with 0.

    A line has the bytes of the words of `ConvByteWords`. Behind those of a group lie their sums, of int32.
    """

    groups: int
    outs: int
    channels: int

    def infer(self, source: TensorSpec) -> TensorSpec:
        """Return the spec: the bytes of a group are one axis."""
        taps, vectors, _ = count_vectors(self.channels, source.shape[2:])
        return TensorSpec((self.groups, count_line_bytes(taps * vectors * VECTOR_BYTES, self.outs)), BYTES[0])

    def pack(self, block: Array, at: tuple[int, ...], packed: Array) -> None:
        """Write a part of the weights, whose taps are all there: they are fewer than any part has rows."""
        taps, vectors, folded = count_vectors(self.channels, block.shape[2:])
        depth = vectors * VECTOR_BYTES
        pitch, together = find_pitch(taps * depth), max(folded, 1)
        centred = block.view(np.uint8) ^ np.uint8(offset_of(block.dtype))
        weights = centred.reshape(*block.shape[:2], taps, together).transpose(0, 2, 3, 1)
        sums = centred.view(np.int8).reshape(block.shape[0], -1).sum(1, dtype=np.int32)
        end, channels = at[0] + block.shape[0], slice(at[1], at[1] + block.shape[1])
        for group in range(at[0] // self.outs, ceil_div(end, self.outs)):
            low, high = max(group * self.outs, at[0]), min((group + 1) * self.outs, end)
            part, own = slice(low - at[0], high - at[0]), slice(low - group * self.outs, high - group * self.outs)
            lines = packed[group, : self.outs * pitch].reshape(self.outs, pitch)[own, : taps * depth]
            places = lines.reshape(-1, taps, depth)[..., : together * self.channels]
            places.reshape(-1, taps, together, self.channels)[..., channels] = weights[part]
            packed[group, self.outs * pitch :].view(np.int32)[own] += sums[part]


@dataclass(frozen=True, slots=True)
class WindowProduct:
    """A convolution as a product of windows and weights over a packed input ``[groups, batch, extents, vectors]``.

    Attributes:
        sizes: Batch, groups and channels.
        kernel: Along three axes, as all below.
        strides: From a window to the next.
        dilations: From a tap to the next.
        counts: Of windows.
        extents: Of the packed input.
        taps: Those that have vectors of their own.
        vectors: Of a tap.
        folded: Taps of the last axis whose channels are packed together; 0: each has vectors of its own.
    """

    sizes: ConvSizes
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    counts: tuple[int, ...]
    extents: tuple[int, ...]
    taps: int
    vectors: int
    folded: int

    @staticmethod
    def of(sizes: ConvSizes, windows: Windows) -> WindowProduct:
        """Return the product of a convolution."""
        kernel, strides, dilations, counts = (
            _fill(values, 1) for values in (windows.kernel, windows.strides, windows.dilations, windows.counts)
        )
        taps, vectors, folded = count_vectors(sizes.group_ins, windows.kernel)
        axes = zip(kernel, strides, dilations, counts, strict=True)
        extents = [(n - 1) * stride + (k - 1) * dilation + 1 if n else 0 for k, stride, dilation, n in axes]
        if folded:
            extents[-1] = counts[-1]
        return WindowProduct(sizes, kernel, strides, dilations, counts, tuple(extents), taps, vectors, folded)

    @property
    def rows(self) -> int:
        """Windows of all images."""
        return self.sizes.batch * self.sizes.outputs

    @property
    def words(self) -> int:
        """Words of a window."""
        return self.taps * self.vectors * VECTOR_BYTES // WORD_BYTES

    @property
    def depth(self) -> int:
        """Terms of a sum."""
        return self.sizes.group_ins * prod(self.kernel)

    @property
    def count(self) -> int:
        """Vectors of the packed input."""
        return self.sizes.groups * self.sizes.batch * prod(self.extents) * self.vectors

    @property
    def axes(self) -> tuple[int, int, int]:
        """Strides of the packed input along three axes, in words."""
        place = self.vectors * VECTOR_BYTES // WORD_BYTES
        return self.extents[1] * self.extents[2] * place, self.extents[2] * place, place

    @property
    def fits(self) -> bool:
        """Whether there is something to multiply, and all fits 32-bit numbers."""
        return (
            self.sizes.group_ins > 0
            and max(self.rows + max(tile.rows for tile in TILES), VECTOR_BYTES * self.words, self.count) < _LIMIT // 4
            and self.sizes.group_outs < MAX_STRIDE - VECTOR_BYTES
        )

    def pack(self, x: Slot, w: Quantized, y: Quantized) -> bytes:
        """Return the bytes of ``IntegerConv``."""
        assert isinstance(w.values, Slot) and isinstance(y.values, Slot)
        sizes, axes, image = self.sizes, self.axes, self.extents[0] * self.axes[0]
        strides = (*self.strides[:2], 1 if self.folded else self.strides[2])
        offsets = (offset_of(x.dtype), offset_of(w.values.dtype))
        x_axes = [stride * axis for stride, axis in zip(strides, axes, strict=True)]
        y_steps = (*y.values.strides[:2], y.values.strides[-1])
        divisors = join_bytes(pack_fast_div32(max(each, 1)) for each in (sizes.outputs, *self.counts))
        return join_bytes((
            pack_struct("<4i", self.rows, sizes.group_outs, self.words, self.depth),
            pack_struct("<4i", _has_many_quants(w), *offsets, round_up(sizes.group_outs, WORD_BYTES)),
            pack_struct("<5i", sizes.batch * image, image, *x_axes),
            pack_struct("<3i", int(y.values.dtype != INT32), find_pitch(self.words * WORD_BYTES), 0),
            pack_struct("<3q", *y_steps),
            divisors, pack_finish(1.0, y.values.dtype, None),
        ))  # fmt: skip

    def launch(
        self, emit: Emitter, windows: Windows, x: Quantized, w: Quantized, y: Quantized, bias: Slot | None
    ) -> None:
        """Pack the input, and the weights where they are computed, and launch the product."""
        is_mma = has_tensor_cores(emit.target) and emit.choose(int(self.depth >= MMA_DEPTH))
        sizes = self.sizes
        table = emit.temp((self.taps * self.vectors + _ENTRIES_BEHIND,), INT32)
        packing = pack_struct(
            "<19i", *self.extents, self.vectors, sizes.batch, sizes.groups, sizes.group_ins, self.folded, self.taps,
            sizes.group_outs, round_up(sizes.group_outs, WORD_BYTES), offset_of(w.values.dtype),
            *self.kernel[:2], 1 if self.folded else self.kernel[2],
            *[dilation * axis for dilation, axis in zip(self.dilations, self.axes, strict=True)], table.spec.size,
        )  # fmt: skip
        packed_x = emit.temp((self.count * VECTOR_BYTES // WORD_BYTES,), WORD)
        arguments: list[Argument] = [x.values, x.zero, packed_x, table, windows.pack()]
        arguments += [pack_strides(x.values.strides), packing, int64(self.count)]
        grid = (ceil_div(max(self.count, table.spec.size), THREADS), 1, 1)
        emit.launch(Kernel(_SOURCE, "pack_byte_windows"), grid, (THREADS, 1, 1), arguments, writes=[2, 3])
        packed_w = (self._pack_lines if is_mma else self._pack_words)(emit, w.values, packing)
        form = (self._choose_mma if is_mma else self._choose_form)(emit, is_sum=y.values.dtype == INT32)
        slices, tiles = form.slices, form.tiles
        arguments = [packed_x, packed_w, bias, y.values, self.pack(x.values, w, y)]
        arguments += [slices.scratch, slices.counters, x.zero, w.zero, x.scale, w.scale, y.scale, y.zero, table]
        writes = slices.writes(3, 5, tiles)
        grid = (tiles, slices.count, 1)
        emit.launch(form.kernel, grid, (form.threads, 1, 1), arguments, writes, shared_bytes=form.ring_nbytes)

    def _pack_words(self, emit: Emitter, w: Slot, packing: bytes) -> Slot:
        """Return the weights as words; those that are computed are packed by a launch."""
        form = ConvByteWords(self.sizes.groups, self.sizes.group_outs, self.sizes.group_ins)
        packed = emit.packed(w, form)
        if packed is None:
            packed = emit.temp(form.infer(w.spec).shape, WORD)
            grid = (self.sizes.groups * ceil_div(packed.shape[-1], _PACK_COLUMNS), 1, 1)
            arguments: list[Argument] = [emit.contiguous(w), packed, packing]
            emit.launch(Kernel(_SOURCE, "pack_conv_bytes"), grid, (THREADS, 1, 1), arguments, writes=[1])
        return packed

    def _pack_lines(self, emit: Emitter, w: Slot, packing: bytes) -> Slot:
        """Return the weights as lines; those that are computed are packed by a launch."""
        sizes, nbytes = self.sizes, self.words * WORD_BYTES
        form = ConvByteLines(sizes.groups, sizes.group_outs, sizes.group_ins)
        packed = emit.packed(w, form)
        if packed is None:
            packed = emit.temp(form.infer(w.spec).shape, BYTES[0])
            lines = pack_struct("<4i", nbytes, find_pitch(nbytes), sizes.group_outs, offset_of(w.dtype))
            grid = (sizes.groups * ceil_div(sizes.group_outs, _PACK_COLUMNS), 1, 1)
            arguments: list[Argument] = [emit.contiguous(w), packed, packing, lines]
            emit.launch(Kernel(_MMA_SOURCE, "pack_conv_lines"), grid, (THREADS, 1, 1), arguments, writes=[1])
        return packed

    def _choose_form(self, emit: Emitter, *, is_sum: bool) -> _WindowKernel:
        """Return tiles of words."""
        groups, columns = self.sizes.groups, self.sizes.group_outs
        tile = choose_tile(emit, self.rows, columns, self.words, groups)
        tiles = groups * tile.count(self.rows, columns)
        slices = slice_tiles(emit, tiles, ceil_div(self.words, SLAB_DEPTH), tile.size)
        kernel = Kernel(_SOURCE, f"integer_conv<{tile.name}, {'i32' if is_sum else 'u8'}>")
        return _WindowKernel(kernel, tiles, tile.threads, slices, 0)

    def _choose_mma(self, emit: Emitter, *, is_sum: bool) -> _WindowKernel:
        """Return tiles of tensor cores, which store sums and bytes alike."""
        groups, columns, nbytes = self.sizes.groups, self.sizes.group_outs, self.words * WORD_BYTES
        tile = choose_mma_tile(emit, self.rows, columns, nbytes, groups)
        tiles = groups * tile.count(self.rows, columns)
        slices = slice_mma_tiles(emit, tile, tiles, nbytes)
        kernel = Kernel(_MMA_SOURCE, f"integer_conv_mma<{tile.name}>")
        return _WindowKernel(kernel, tiles, tile.threads, slices, tile.ring_nbytes)


@dataclass(frozen=True, slots=True)
class _WindowKernel:
    """The kernel of a product of windows, its tiles and slices, and its dynamic shared memory."""

    kernel: Kernel
    tiles: int
    threads: int
    slices: Slices
    ring_nbytes: int


def _split(inputs: Sequence[Any]) -> tuple[Quantized, Quantized, Quantized, Any]:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = (*inputs, None)[:9]
    return Quantized(x, x_scale, x_zero), Quantized(w, w_scale, w_zero), Quantized(None, y_scale, y_zero), bias


def to_first(rank: int) -> tuple[int, ...]:
    """Return the order of axes that brings the last one, of channels, to its place after the batch."""
    return (0, rank - 1, *range(1, rank - 1))


def to_last(rank: int) -> tuple[int, ...]:
    """Return the order of axes that brings channels from their place after the batch to the end."""
    return (0, *range(2, rank), 1)


def channels_first(slot: Slot) -> Slot:
    """Return the view of a tensor with its last axis, of channels, after the batch."""
    order = to_first(slot.spec.rank)
    return window(slot, permute(slot.shape, order), permute(slot.strides, order))


def is_per_channel(spec: TensorSpec, channels: int) -> bool:
    """Return whether numbers are one of all, or one of each channel."""
    return spec.rank <= 1 and spec.size in (1, channels)


def by_channel(numbers: Array, rank: int, axis: int) -> Array:
    """Return numbers of channels so that they broadcast along an axis of a tensor."""
    return numbers.reshape(()) if numbers.size == 1 else numbers.reshape(-1, *(1,) * (rank - axis - 1))


_AROUND, _EACH_TAP, _TAPS_TOGETHER = 180, 12, 8  # of the direct kernel, as those of `gpuexec.ops.nn.conv`


@work_of(_SOURCE, "integer_conv_direct")
def _count_integer_conv_direct(launch: Launch) -> Work:
    y, packed, sizes = launch.arguments[4], launch.arguments[5], launch.arguments[7]
    assert isinstance(y, Slot) and isinstance(packed, bytes) and isinstance(sizes, bytes)
    inner = ConvSizes.unpack(sizes).group_ins * Windows.unpack(packed).taps
    slots = [a for a in launch.arguments if isinstance(a, Slot)]
    return Work(
        flops=2 * y.spec.size * inner,
        needed_multiply_adds=y.spec.size * inner,
        instructions=count_warps(launch) * (_AROUND + inner * _EACH_TAP),
        multiply_adds=count_warps(launch) * inner,
        integer_multiply_adds=count_warps(launch) * inner,
        l2_nbytes=sum(map(count_slot_bytes, slots)),
        rounds=1 + inner / _TAPS_TOGETHER,
    )


# Of integer_conv: instructions of a thread for a slab beyond those of a tile, and where its rows are summed.
_EACH_SLAB, _EACH_ROW_SLAB = 20, 15
_W_OFFSET = 24  # in ``IntegerConv``


@work_of(_SOURCE, "integer_conv")
def _count_integer_conv(launch: Launch) -> Work:
    packed, y = launch.arguments[4], launch.arguments[3]
    assert isinstance(packed, bytes) and isinstance(y, Slot)
    rows, columns, inner, depth = struct.unpack_from("<4i", packed)
    w_offset, padded = struct.unpack_from("<2i", packed, _W_OFFSET)
    code, slabs, tiles = find_tile_code(launch), ceil_div(inner, SLAB_DEPTH), launch.grid[0]
    column_tiles, row_tiles = ceil_div(columns, code.columns), ceil_div(rows, code.rows)
    groups = tiles // max(column_tiles * row_tiles, 1)
    sums_rows = launch.arguments[8] is not None or w_offset
    asked = rows * column_tiles * (2 if sums_rows else 1) + padded * row_tiles
    work = SlicedTiles(code, tiles, launch.grid[1], tiles * slabs, slabs).describe(
        launch, y.spec.size * depth, WORD_BYTES * groups * inner * asked,
        more=_EACH_SLAB + (_EACH_ROW_SLAB if sums_rows else 0),
    )  # fmt: skip
    staged = tiles * code.rows * code.columns // WARP  # sums go through shared memory
    return replace(work, wavefronts=work.wavefronts + 2 * staged, integer_multiply_adds=work.multiply_adds)


# Of integer_conv_mma: instructions of a warp for a slab more than for rows, and those that centre a fragment.
_EACH_WINDOW_SLAB, _EACH_FRAGMENT = 12, 4


@work_of(_MMA_SOURCE, "integer_conv_mma")
def _count_integer_conv_mma(launch: Launch) -> Work:
    packed, y = launch.arguments[4], launch.arguments[3]
    assert isinstance(packed, bytes) and isinstance(y, Slot)
    rows, columns, inner, depth = struct.unpack_from("<4i", packed)
    (w_offset,) = struct.unpack_from("<i", packed, _W_OFFSET)
    tile, nbytes, tiles = find_mma_tile(launch), inner * WORD_BYTES, launch.grid[0]
    row_tiles, column_tiles = ceil_div(rows, tile.rows), ceil_div(columns, tile.columns)
    groups, blocks, warps = tiles // max(row_tiles * column_tiles, 1), tiles * launch.grid[1], tile.threads // WARP
    # As of integer_mma, windows are summed where weights have a zero point for certain.
    sums_rows = launch.arguments[8] is None and w_offset != 0
    asked = (
        nbytes * rows * column_tiles * (2 if sums_rows else 1) + nbytes * round_up(columns, tile.columns) * row_tiles
    )
    read = tile.columns // tile.warps_across // 32 * (8 + tile.rows // tile.warps_down // 8)
    walked = blocks * (tile.columns // WARP + tile.rows // 4 + warps * read) * sums_rows
    steps = tile.slab_nbytes // MMA_DEPTH
    loop = LOOP_INSTRUCTIONS[tile.name][0] + _EACH_WINDOW_SLAB
    loop += _EACH_FRAGMENT * tile.rows // tile.warps_down // 16 * steps
    work = describe_mma_tiles(launch, (y.spec.size, depth, nbytes), loop, groups * asked, AROUND)
    return replace(work, wavefronts=work.wavefronts + walked)
