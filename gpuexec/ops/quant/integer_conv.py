"""Integer convolutions: ConvInteger, QLinearConv.

The walk over windows is that of Conv; sums are of integers, with zero points taken off, so a tap in the padding adds
nothing. Groups of a single input or output channel have a kernel of their own.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div, permute
from gpuexec.ir.instances import instantiate
from gpuexec.ir.operator import Array, Emitter, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.work import Work, count_slot_bytes, count_warps, work_of
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.windows import Windows, pack_strides
from gpuexec.ops.linalg.matmul_work import describe_byte_product
from gpuexec.ops.nn.conv_host import convolve
from gpuexec.ops.nn.convolution import THREADS, Convolution, ConvSizes, check_channels, check_index, check_kernel
from gpuexec.ops.quant.integer import (
    FLOAT,
    INT32,
    Quantized,
    check_bytes,
    check_one,
    multiply_scales,
    offset_of,
    pack_finish,
    requantize,
    subtract_zero,
    to_int32,
)
from gpuexec.ops.quant.integer_quants import align_quant
from gpuexec.ops.tensor.layout import window

instantiate(
    "integer_conv.cu", [f"{name}<{y}>" for name in ("integer_conv", "integer_conv_direct") for y in ("i32", "u8")]
)


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


def _launch(op: Convolution, emit: Emitter, x: Quantized, w: Quantized, y: Quantized, bias: Slot | None = None) -> None:
    """Launch the product over patches, or the direct kernel for groups of one channel; x and y channels first."""
    windows = op.windows(x.values.shape, w.values.shape)
    outs, ins = w.values.shape[:2]
    sizes = ConvSizes(x.values.shape[0], op.group, ins, outs // op.group, prod(windows.counts))
    check_index(op.name, "input channels * taps", ins * windows.taps)
    check_index(op.name, "outputs of one channel", sizes.outputs)
    w = align_quant(emit, w)
    name, blocks = "integer_conv", sizes.tiles
    if sizes.has_single:
        name, blocks = "integer_conv_direct", ceil_div(y.values.spec.size, THREADS)
    steps = (*y.values.strides[:2], y.values.strides[-1])
    per_channel = int(any(slot is not None and slot.spec.size > 1 for slot in (w.scale, w.zero)))
    rest = struct.pack("<3q4i", *steps, offset_of(x.values.dtype), offset_of(w.values.dtype), per_channel, 0)
    arguments: list[Argument] = [x.values, emit.contiguous(w.values), x.zero, w.zero, y.values]
    arguments += [windows.pack(), pack_strides(x.values.strides), sizes.pack() + rest]
    arguments += [x.scale, w.scale, y.scale, y.zero, None if bias is None else emit.contiguous(bias)]
    arguments += [pack_finish(1.0, y.values.dtype, None)]
    kernel = Kernel("integer_conv.cu", f"{name}<{'i32' if y.values.dtype == INT32 else 'u8'}>")
    emit.launch(kernel, (blocks, 1, 1), (THREADS, 1, 1), arguments, writes=[4])


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


@work_of("integer_conv.cu", "integer_conv", "integer_conv_direct")
def _count_integer_conv(launch: Launch) -> Work:
    y, packed, sizes = launch.arguments[4], launch.arguments[5], launch.arguments[7]
    assert isinstance(y, Slot) and isinstance(packed, bytes) and isinstance(sizes, bytes)
    windows, extents = Windows.unpack(packed), ConvSizes.unpack(sizes)
    inner = extents.group_ins * windows.taps
    if not launch.kernel.expression.startswith("integer_conv_direct"):
        return describe_byte_product(launch, extents.groups, extents.group_outs, extents.batch * extents.outputs, inner)
    slots = [a for a in launch.arguments if isinstance(a, Slot)]
    return Work(
        flops=2 * y.spec.size * inner,
        needed_multiply_adds=y.spec.size * inner,
        instructions=count_warps(launch) * (_AROUND + inner * _EACH_TAP),
        l2_nbytes=sum(map(count_slot_bytes, slots)),
        rounds=1 + inner / _TAPS_TOGETHER,
    )
