"""Convolution and its transpose over one to three spatial axes: Conv, ConvTranspose.

On a device a convolution is one matrix product whose right operand is gathered while it is loaded; where a group has a
single input or output channel (depthwise), each thread makes one output instead. On the host patches are laid out as
columns, a few images or rows at a time, for NumPy's matmul.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from gpuexec.command import Argument, Kernel, Slot
from gpuexec.errors import InputError
from gpuexec.geometry import ceil_div
from gpuexec.instances import instantiate
from gpuexec.operator import Array, Emitter, Operator, Tolerance, operator
from gpuexec.ops.conv_host import convolve, convolve_transposed
from gpuexec.ops.layout import Slots
from gpuexec.ops.matmul import TILE
from gpuexec.ops.narrow_weight import NARROW_TYPES, NarrowWeight, name_types
from gpuexec.ops.strided import pack_fast_div32, pack_fast_div64
from gpuexec.ops.window_extents import conv_transpose_output
from gpuexec.ops.windows import MAX_AXES, Windows, pack_strides, resolve_windows
from gpuexec.spec import TensorSpec, dtype_row, dtypes_of

DTYPES = dtypes_of("float")
_THREADS = 256
_LIMIT = 2**31
_KERNELS = ("conv_gemm", "conv_direct", "conv_transpose")

instantiate(
    "conv.cu",
    [f"{name}<{dtype_row(t).cuda}>" for name in _KERNELS for t in DTYPES],
)
instantiate("conv.cu", [f"{name}_narrow<{types}>" for name in _KERNELS for types in NARROW_TYPES])


@operator("Conv")
@dataclass(frozen=True, slots=True)
class Conv(Operator):
    """Convolution: ``y[n, o] = b[o] + sum over c, t of w[o, c, t] * x[n, c, window + t]``, by groups of channels."""

    auto_pad: str = "NOTSET"
    dilations: tuple[int, ...] = ()
    group: int = 1
    kernel_shape: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    uses_all_cores: ClassVar[bool] = True

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return ``[batch, out channels, windows...]``.

        Raises:
            InputError: Ranks, types, channels or attributes do not fit together.
        """
        x, w = _check_inputs(self, inputs, out_axis=0)
        if x.shape[1] != w.shape[1] * self.group:
            raise InputError(
                f"Conv expects {w.shape[1] * self.group} input channels (shape[1] * group of the weight {w}), got {x}."
            )
        if w.shape[0] % self.group:
            raise InputError(f"Conv expects out channels that group={self.group} divides, got weight {w}.")
        return (TensorSpec((x.shape[0], w.shape[0], *self.windows(x.shape, w.shape).counts), x.dtype),)

    def windows(self, x_shape: Sequence[int], w_shape: Sequence[int]) -> Windows:
        """Return the windows over an input of this shape."""
        return resolve_windows(x_shape[2:], w_shape[2:], self.strides, self.dilations, self.pads, self.auto_pad)

    def compute(self, *inputs: Array | None, out: Sequence[Array | None] | None = None) -> tuple[Array | None, ...]:
        """Convolve; half and bfloat16 in float, rounded once."""
        x, w, bias = (*inputs, None)[:3]
        assert x is not None and w is not None
        return (convolve(x, w, bias, self.windows(x.shape, w.shape), self.group, out[0] if out else None),)

    def lower(self, emit: Emitter, inputs: tuple[Slot | None, ...], outputs: tuple[Slot | None, ...]) -> None:
        """Launch the product over patches, or the direct kernel for groups of one channel."""
        self.lower_with(emit, inputs, outputs)

    def lower_with(self, emit: Emitter, inputs: Slots, outputs: Slots, narrow: NarrowWeight | None = None) -> None:
        """Lower, the weight perhaps narrow."""
        x, w, bias = (*inputs, None)[:3]
        y = outputs[0]
        assert x is not None and w is not None and y is not None
        windows = self.windows(x.shape, w.shape)
        group_outs = w.shape[0] // self.group
        _check_index("input channels * taps", w.shape[1] * windows.taps)
        if w.shape[1] == 1 or group_outs == 1:
            name, blocks = "conv_direct", ceil_div(y.spec.size, _THREADS)
        else:
            name = "conv_gemm"
            blocks = ceil_div(x.shape[0] * prod(windows.counts), TILE) * ceil_div(group_outs, TILE) * self.group
        _launch(emit, name, blocks, (x, w, bias, y), windows, (w.shape[1], group_outs), narrow)


@operator("ConvTranspose")
@dataclass(frozen=True, slots=True)
class ConvTranspose(Operator):
    """Transposed convolution: every input element adds its weighted kernel to the output."""

    auto_pad: str = "NOTSET"
    dilations: tuple[int, ...] = ()
    group: int = 1
    kernel_shape: tuple[int, ...] = ()
    output_padding: tuple[int, ...] = ()
    output_shape: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    uses_all_cores: ClassVar[bool] = True

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return ``[batch, out channels, extents...]``.

        Raises:
            InputError: Ranks, types, channels or attributes do not fit together.
        """
        x, w = _check_inputs(self, inputs, out_axis=1)
        if x.shape[1] != w.shape[0] or x.shape[1] % self.group:
            raise InputError(
                f"ConvTranspose expects {w.shape[0]} input channels (shape[0] of the weight {w}), "
                f"a multiple of group={self.group}, got {x}."
            )
        return (TensorSpec((x.shape[0], w.shape[1] * self.group, *self.windows(x.shape, w.shape).extents), x.dtype),)

    def windows(self, x_shape: Sequence[int], w_shape: Sequence[int]) -> Windows:
        """Return the windows over the output, one for each position of the input."""
        rank = len(x_shape) - 2
        strides, dilations = self.strides or (1,) * rank, self.dilations or (1,) * rank
        # Exporters write the whole shape as well; the spatial extents are its last entries.
        wanted = self.output_shape[-rank:] if len(self.output_shape) == rank + 2 else self.output_shape
        extents, pads = conv_transpose_output(
            x_shape[2:], w_shape[2:], strides, dilations, self.pads, self.output_padding, self.auto_pad, wanted
        )
        begins, ends = tuple(begin for begin, _ in pads), tuple(end for _, end in pads)
        return Windows(extents, tuple(w_shape[2:]), strides, dilations, begins, ends, tuple(x_shape[2:]))

    def compute(self, *inputs: Array | None, out: Sequence[Array | None] | None = None) -> tuple[Array | None, ...]:
        """Multiply, then add each tap's products where they belong; half and bfloat16 in float, rounded once."""
        x, w, bias = (*inputs, None)[:3]
        assert x is not None and w is not None
        return (convolve_transposed(x, w, bias, self.windows(x.shape, w.shape), self.group),)

    def lower(self, emit: Emitter, inputs: tuple[Slot | None, ...], outputs: tuple[Slot | None, ...]) -> None:
        """Launch one thread per output, which gathers what reaches it."""
        self.lower_with(emit, inputs, outputs)

    def lower_with(self, emit: Emitter, inputs: Slots, outputs: Slots, narrow: NarrowWeight | None = None) -> None:
        """Lower, the weight perhaps narrow."""
        x, w, bias = (*inputs, None)[:3]
        y = outputs[0]
        assert x is not None and w is not None and y is not None
        sizes = (w.shape[0] // self.group, w.shape[1])
        blocks = ceil_div(y.spec.size, _THREADS)
        _launch(emit, "conv_transpose", blocks, (x, w, bias, y), self.windows(x.shape, w.shape), sizes, narrow)


def _launch(
    emit: Emitter,
    name: str,
    blocks: int,
    slots: tuple[Slot, Slot, Slot | None, Slot],
    windows: Windows,
    channels: tuple[int, int],
    narrow: NarrowWeight | None,
) -> None:
    """Launch a kernel of conv.cu; ``channels`` are the input and output channels of a group."""
    x, w, bias, y = slots
    group_ins, group_outs = channels
    outputs = prod(y.shape[2:])
    _check_index("outputs of one channel", outputs)
    sizes = b"".join(
        (
            pack_fast_div64(max(1, outputs)),
            pack_fast_div64(max(1, y.shape[1])),
            pack_fast_div32(max(1, group_outs)),
            struct.pack("<iq", group_ins, x.shape[0]),
        )
    )
    bias = None if bias is None else emit.contiguous(bias)
    arguments: list[Argument] = [x, emit.contiguous(w), bias, y, windows.pack(), pack_strides(x.strides), sizes]
    kernel = Kernel("conv.cu", f"{name}<{dtype_row(y.dtype).cuda}>")
    if narrow is not None:
        kernel = Kernel("conv.cu", f"{name}_narrow<{name_types(y.dtype, w.dtype)}>")
        arguments += [*narrow.dense(emit), np.int64(0 if narrow.axis is None else 1)]
    emit.launch(kernel, (blocks, 1, 1), (_THREADS, 1, 1), arguments, writes=[3])


def _check_index(what: str, count: int) -> None:
    if count >= _LIMIT:
        raise InputError(f"Conv expects fewer than 2**31 {what} on a device, got {count}.")


def _check_inputs(
    op: Conv | ConvTranspose, inputs: Sequence[TensorSpec | None], *, out_axis: int
) -> tuple[TensorSpec, TensorSpec]:
    x, w, bias = (*inputs, None)[:3]
    name = op.name
    if x is None or w is None:
        raise InputError(f"{name} expects an input and a weight.")
    if x.rank != w.rank or not 3 <= x.rank <= MAX_AXES + 2:
        raise InputError(
            f"{name} expects input and weight of equal rank with 1 to {MAX_AXES} spatial axes, got {x} and {w}."
        )
    if x.dtype not in DTYPES or w.dtype != x.dtype or (bias is not None and bias.dtype != x.dtype):
        got = ", ".join(str(spec) for spec in (x, w, bias) if spec is not None)
        raise InputError(f"{name} expects inputs of one type among {', '.join(t.name for t in DTYPES)}, got {got}.")
    if op.group < 1:
        raise InputError(f"{name} expects group of at least 1, got {op.group}.")
    if op.kernel_shape and op.kernel_shape != w.shape[2:]:
        raise InputError(
            f"{name} expects kernel_shape to be the weight's {list(w.shape[2:])}, got {list(op.kernel_shape)}."
        )
    outs = w.shape[out_axis] * (op.group if out_axis else 1)
    if bias is not None and bias.shape != (outs,):
        raise InputError(f"{name} expects a bias of [{outs}], got {bias}.")
    return x, w
