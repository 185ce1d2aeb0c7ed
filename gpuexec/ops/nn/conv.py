"""Convolution and its transpose over one to three spatial axes: Conv, ConvTranspose.

On a device a convolution is one matrix product of which one operand is gathered while it is loaded: of half, bf16 and
tf32 images that lie channels last by `conv_mma`, on tensor cores, those of few channels by `conv_few`, as they lie; as
are transposes whose taps do not overlap by `conv_transpose_mma`, and patches apart of many taps, as products; of floats
by `conv_simt`; of other types and kernels of many taps by ``conv.cu``. Depthwise convolutions are those of
`conv_depthwise`, or of `conv_depthwise_last` where images lie channels last; where their tiles are too small, or a
group has several input channels and one output channel, each thread makes one output. On the host patches are laid out
as columns, a few images or rows at a time, for a product of matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int64
from gpuexec.ir.operator import (
    Array,
    Derivative,
    Emitter,
    FormatUse,
    Out,
    PreparedCalls,
    Slots,
    Tolerance,
    count_elements,
    operator,
)
from gpuexec.ir.precision import REFERENCE, STORED, TF32
from gpuexec.ir.prepared_calls import has_scratch, view_bytes
from gpuexec.ir.provider import Posed
from gpuexec.ir.spec import TensorSpec, accumulator, dtype_row, dtypes_of
from gpuexec.ir.target import Target
from gpuexec.ir.work import Work, count_slot_bytes, count_warps, work_of
from gpuexec.ops.elementwise.elementwise_cast import convert_commands
from gpuexec.ops.elementwise.epilogue import STEP_INSTRUCTIONS, allow_epilogue, allow_for_floats, count_epilogue_steps
from gpuexec.ops.lib.posing import pose_conv
from gpuexec.ops.lib.window_extents import conv_transpose_output
from gpuexec.ops.lib.windows import Windows, pack_strides
from gpuexec.ops.linalg.matmul import find_result, widen_operands
from gpuexec.ops.linalg.matmul_launch import TILE, widen_operand
from gpuexec.ops.linalg.matmul_work import TiledProduct, TileLoop, count_slab_bytes
from gpuexec.ops.nn.conv_depthwise import launch_depthwise
from gpuexec.ops.nn.conv_depthwise_last import count_widened, launch_depthwise_last, takes_depthwise_last
from gpuexec.ops.nn.conv_few import MAX_CHANNELS, fits_few, launch_few, takes_few
from gpuexec.ops.nn.conv_host import (
    KEPT_NBYTES,
    convolve,
    convolve_transposed,
    count_convolution,
    count_transposed_convolution,
    prepare_convolution,
    prepare_transposed,
)
from gpuexec.ops.nn.conv_mma import (
    count_chunk,
    count_transposed,
    fits_numbers,
    launch_mma_conv,
    launch_patches,
    runs_on_tensor_cores,
)
from gpuexec.ops.nn.conv_simt import launch_simt_conv
from gpuexec.ops.nn.conv_transpose_mma import launch_mma_transpose, runs_as_products
from gpuexec.ops.nn.convolution import THREADS, Convolution, ConvSizes, check_channels, check_index, check_kernel
from gpuexec.ops.quant.narrow_weight import NARROW_TYPES, PAIRS, NarrowWeight, name_types

DTYPES = dtypes_of("float")
_HALF: np.dtype[Any] = np.dtype(np.float16)
_FLOAT: np.dtype[Any] = np.dtype(np.float32)
_PREPARED = (_FLOAT, np.dtype(np.float64))  # whose sums are of the same type
_TILED_OUTS = 8
_KERNELS = ("conv_gemm", "conv_direct", "conv_transpose")

instantiate(
    "conv.cu",
    [f"{name}<{dtype_row(t).cuda}>" for name in _KERNELS for t in DTYPES],
)
instantiate("conv.cu", [f"{name}_narrow<{types}>" for name in _KERNELS for types in NARROW_TYPES])
allow_for_floats("conv.cu", *[f"{name}<{{t}}>" for name in _KERNELS], stores_others=False)
for _wide, _narrow in PAIRS:
    allow_epilogue(_wide, [Kernel("conv.cu", f"{name}_narrow<{name_types(_wide, _narrow)}>") for name in _KERNELS])


@operator("Conv")
@dataclass(frozen=True, slots=True)
class Conv(Convolution):
    """Convolution: ``y[n, o] = b[o] + sum over c, t of w[o, c, t] * x[n, c, window + t]``, by groups of channels."""

    # Of `ir.precision`: operands are of float, perhaps rounded to it, or stored in it: bias and result are float then.
    # An image of float beside stored weights is rounded to their type.
    precision: str = ""
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    keeps_dtype = True
    derivative = Derivative.RULE
    has_blits = True
    takes_epilogue = True
    multiplied = (0, 1)
    padded_factors = (1,)
    format_use = FormatUse.FOLLOWS
    not_images = (1,)

    @property
    def takes_narrow(self) -> bool:
        """Whether what it multiplies may be stored narrow: always, though some kernels widen it first."""
        return True

    def infer(self, x: TensorSpec, w: TensorSpec, bias: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        """Return ``[batch, out channels, windows...]``.

        Raises:
            InputError: Ranks, types, channels or attributes do not fit together.
        """
        if x.dtype == _FLOAT and self._stores(w.dtype):
            x = TensorSpec(x.shape, w.dtype)
        x, w = _check_inputs(self, x, w, bias, out_axis=0)
        check_channels(self.name, x, x.shape[1], w, self.group)
        shape = (x.shape[0], w.shape[0], *self.windows(x.shape, w.shape).counts)
        return (TensorSpec(shape, self._find_result(x.dtype)),)

    def find_dtype(self, dtypes: Sequence[np.dtype[Any] | None]) -> np.dtype[Any] | None:
        """Return the operands' type; float where they are stored as a precision says."""
        return dtypes[0] if not dtypes or dtypes[0] is None else self._find_result(dtypes[0])

    def channel_axis(self, factor: int, rank: int) -> int | None:
        """Return the output channels of the weight."""
        return 0 if factor == 1 else None

    def count_flops(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> int:
        """Count the weights of one output channel for each output."""
        w = inputs[1]
        weights = 0 if w is None else prod(w.shape[1:])
        return count_elements(outputs, 0) * (2 * weights + (len(inputs) > 2 and inputs[2] is not None))

    def compute(self, x: Array, w: Array, bias: Array | None = None, *, out: Out = None) -> tuple[Array | None, ...]:
        """Convolve; half and bfloat16 in float, rounded once."""
        if self._stores(w.dtype):
            x = x.astype(w.dtype, copy=False)
        x, w = widen_operands(self.precision, x, w)
        return (convolve(x, w, bias, self.windows(x.shape, w.shape), self.group, out[0] if out else None),)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count patches and the padded input, or products of taps; and what is widened, of half and bfloat16."""
        x, w, y = inputs[0], inputs[1], outputs[0]
        if x is None or w is None or y is None or w.dtype != x.dtype:
            return ()
        acc = accumulator(x.dtype)
        sizes = count_convolution(x.shape, w.shape, self.windows(x.shape, w.shape), self.group, acc.itemsize)
        return sizes if acc == x.dtype else (*[each.size * acc.itemsize for each in (x, w, y)], *sizes)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Lay out patches and multiply in memory that stays; half and bfloat16 are widened there."""
        (x, w, bias), y = (*inputs, None)[:3], out[0]
        if x is None or w is None or y is None or x.dtype != w.dtype or not w.size:
            return None
        windows, is_finite = self.windows(x.shape, w.shape), constant[1] and bool(np.isfinite(w).all())
        acc, before, behind = accumulator(x.dtype), list[Callable[[], object]](), list[Callable[[], object]]()
        if acc != x.dtype:
            sizes = [each.size * acc.itemsize for each in (x, w, y)]
            if not has_scratch(scratch, sizes) or (bias is not None and not constant[2]):
                return None
            is_kept = constant[1] and sizes[1] <= KEPT_NBYTES
            wide_x, wide_y = (view_bytes(scratch[2 * k], each.shape, acc) for k, each in enumerate((x, y)))
            wide_w = w.astype(acc) if is_kept else view_bytes(scratch[1], w.shape, acc)
            before = [partial(np.copyto, wide_x, x), *([] if is_kept else [partial(np.copyto, wide_w, w)])]
            if y.dtype != acc:
                behind, y = [partial(np.copyto, y, wide_y, casting="unsafe")], wide_y
            x, w, bias, scratch = wide_x, wide_w, None if bias is None else bias.astype(acc), scratch[3:]
        calls = prepare_convolution(x, w, bias, windows, self.group, y, scratch, is_finite=is_finite)
        return None if calls is None else [*before, *calls, *behind]

    def reads_any_format(self, position: int, inputs: Sequence[TensorSpec | None]) -> bool:
        """Return whether it is the image, which is gathered where its channels are few, or padded on the way."""
        x = inputs[0]
        if x is None or position != 0 or self.group != 1:
            return False
        return x.shape[1] <= MAX_CHANNELS or x.shape[1] % count_chunk(x.dtype if self.precision == TF32 else _HALF) != 0

    def writes_windows(
        self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None], target: Target
    ) -> bool:
        """Return whether it runs on tensor cores, as a product of rows of channels."""
        x, w, y = inputs[0], inputs[1], outputs[0]
        if x is None or w is None or y is None:
            return False
        dtypes, windows = (
            (w.dtype if self._stores(w.dtype) else x.dtype, w.dtype, y.dtype),
            self.windows(x.shape, w.shape),
        )
        if takes_few(dtypes[1:], windows, x.shape[1], self.group, target, self.precision):
            return False
        return runs_on_tensor_cores(dtypes, windows.kernel, target, self.group, w.shape[1], self.precision)

    def rounds_to(self, position: int, inputs: Sequence[TensorSpec | None], target: Target) -> str:
        """Return the precision of an image with few channels, and of others tf32, on tensor cores."""
        x, w = inputs[0], inputs[1]
        if position != 0 or x is None or w is None:
            return ""
        windows, dtypes = self.windows(x.shape, w.shape), (x.dtype, w.dtype, self._find_result(x.dtype))
        if self.precision == TF32 or self._stores(w.dtype):
            sees_few = takes_few(dtypes[1:], windows, x.shape[1], self.group, target, self.precision)
            if sees_few and fits_few(x, windows, w.shape[0]):
                return self.precision
        if self.precision != TF32:
            return ""
        is_able = runs_on_tensor_cores(dtypes, windows.kernel, target, self.group, w.shape[1], self.precision)
        return TF32 if is_able and fits_numbers(x, windows, w.shape[0]) else ""

    def count_format_gain(
        self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None], target: Target
    ) -> int:
        """Return what its transposes would move on tensor cores, which take images that lie channels last.

        Of a depthwise one that takes narrow images as they are: what widening them would move.
        """
        x, w, y = inputs[0], inputs[1], outputs[0]
        if x is None or w is None or y is None:
            return 0
        dtypes = (x.dtype, w.dtype, self._find_result(x.dtype))
        windows = self.windows(x.shape, w.shape)
        if takes_few(dtypes[1:], windows, x.shape[1], self.group, target, self.precision):
            return 0  # it reads and writes images as they lie
        if runs_on_tensor_cores(dtypes, w.shape[2:], target, self.group, w.shape[1], self.precision):
            return count_transposed(x, y)
        is_depthwise = w.shape[0] == self.group == x.shape[1] and takes_depthwise_last(dtypes, self.group, w.shape[2:])
        return count_widened(x) if is_depthwise and x.dtype != dtypes[2] else 0

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the product over patches, or a kernel for groups of one channel."""
        if emit.leaves_to_host():
            return
        self.lower_with(emit, inputs, outputs)

    def lower_with(self, emit: Emitter, inputs: Slots, outputs: Slots, narrow: NarrowWeight | None = None) -> None:
        """Lower, the weight perhaps narrow."""
        if narrow is not None:
            self._launch_kernels(emit, inputs, outputs, narrow)
            return
        emit.provide(
            lambda: self._pose(inputs, outputs),
            lambda: self._launch_kernels(emit, inputs, outputs, None),
            keeps_order=self.precision == REFERENCE,
        )

    def _pose(self, inputs: Slots, outputs: Slots) -> Posed:
        """Return the problem that it is to a library."""
        x, w, bias = (*inputs, None)[:3]
        y = outputs[0]
        assert x is not None and w is not None and y is not None
        windows = self.windows(x.shape, w.shape)
        axes = (windows.strides, windows.dilations, windows.begins, windows.ends)
        return pose_conv((x, w, bias, y), *axes, self.precision)

    def _launch_kernels(self, emit: Emitter, inputs: Slots, outputs: Slots, narrow: NarrowWeight | None) -> None:
        """Launch kernels of ours."""
        x, w, bias = (*inputs, None)[:3]
        y = outputs[0]
        assert x is not None and w is not None and y is not None
        windows = self.windows(x.shape, w.shape)
        sizes = ConvSizes(x.shape[0], self.group, w.shape[1], w.shape[0] // self.group, prod(windows.counts))
        check_index(self.name, "input channels * taps", w.shape[1] * windows.taps)
        check_index(self.name, "outputs of one channel", sizes.outputs)
        check_index(self.name, "output channels of a group", sizes.group_outs)
        slots, keeps_order = (x, w, bias, y), self.precision == REFERENCE
        if narrow is None and launch_few(emit, slots, windows, self.group, self.precision):
            return
        if x.dtype != w.dtype and self._stores(w.dtype):
            rounded = emit.temp(x.shape, w.dtype)
            convert_commands(emit, rounded, x)
            slots = x, w, bias, y = rounded, w, bias, y
        if narrow is None and launch_mma_conv(emit, slots, windows, self.group, self.precision):
            return
        if narrow is None and launch_patches(emit, slots, windows, self.group, self.precision):
            return
        if narrow is None and _has_own_kernels(emit) and launch_depthwise_last(emit, slots, windows, self.group):
            return
        if x.dtype != y.dtype:
            x, w = widen_operand(emit, x, y), widen_operand(emit, w, y)
            slots = (x, w, bias, y)
        if not y.is_contiguous:  # channels last
            made = emit.temp(y.shape, y.dtype)
            self._launch_kernels(emit, (x, w, bias), (made,), narrow)
            emit.copy(y, made)
            return
        if _has_own_kernels(emit):
            is_depthwise = sizes.group_ins == 1 and narrow is None
            if is_depthwise and launch_depthwise(emit, slots, windows, sizes.group_outs):
                return
            if not sizes.has_single and launch_simt_conv(
                emit, slots, windows, self.group, narrow=narrow, keeps_order=keeps_order
            ):
                return
        name, blocks = "conv_gemm", sizes.tiles
        if sizes.has_single:
            name, blocks = "conv_direct", ceil_div(y.spec.size, THREADS)
        _launch(emit, name, blocks, slots, windows, sizes, narrow)

    def _stores(self, dtype: np.dtype[Any]) -> bool:
        """Return whether a weight of a type is one that the precision has stored so."""
        return self.precision in STORED and dtype == dtype_row(STORED[self.precision]).numpy

    def _find_result(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the type of the result for operands of a type, which a precision may have stored so."""
        return find_result(dtype, self.precision)


@operator("ConvTranspose")
@dataclass(frozen=True, slots=True)
class ConvTranspose(Convolution):
    """Transposed convolution: every input element adds its weighted kernel to the output."""

    output_padding: tuple[int, ...] = ()
    output_shape: tuple[int, ...] = ()
    precision: str = ""  # as of Conv
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    keeps_dtype = True
    derivative = Derivative.RULE
    has_blits = True
    takes_epilogue = True
    multiplied = (0, 1)
    padded_factors = (1,)
    format_use = FormatUse.FOLLOWS
    not_images = (1,)

    @property
    def takes_narrow(self) -> bool:
        """Whether what it multiplies may be stored narrow: where its attributes say that its taps don't overlap."""
        is_plain = self.group == 1 and not any(self.pads) and not any(self.output_padding) and not self.output_shape
        return is_plain and self.auto_pad == "NOTSET" and bool(self.strides) and self.strides == self.kernel_shape

    def infer(self, x: TensorSpec, w: TensorSpec, bias: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        """Return ``[batch, out channels, extents...]``.

        Raises:
            InputError: Ranks, types, channels or attributes do not fit together.
        """
        x, w = _check_inputs(self, x, w, bias, out_axis=1)
        if x.shape[1] != w.shape[0] or x.shape[1] % self.group:
            raise InputError(
                f"ConvTranspose expects {w.shape[0]} input channels (shape[0] of the weight {w}), "
                f"a multiple of group={self.group}, got {x}."
            )
        shape = (x.shape[0], w.shape[1] * self.group, *self.windows(x.shape, w.shape).extents)
        return (TensorSpec(shape, find_result(x.dtype, self.precision)),)

    def find_dtype(self, dtypes: Sequence[np.dtype[Any] | None]) -> np.dtype[Any] | None:
        """Return the operands' type; float where they are stored as a precision says."""
        return dtypes[0] if not dtypes or dtypes[0] is None else find_result(dtypes[0], self.precision)

    def channel_axis(self, factor: int, rank: int) -> int | None:
        """Return the output channels of the weight."""
        return 1 if factor == 1 else None

    def count_flops(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> int:
        """Count the weights that each input is spread by."""
        w = inputs[1]
        weights = 0 if w is None else prod(w.shape[1:])
        bias = count_elements(outputs, 0) if len(inputs) > 2 and inputs[2] is not None else 0
        return 2 * count_elements(inputs, 0) * weights + bias

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

    def compute(self, x: Array, w: Array, bias: Array | None = None, *, out: Out = None) -> tuple[Array | None, ...]:
        """Multiply, then add each tap's products where they belong; half and bfloat16 in float, rounded once."""
        x, w = widen_operands(self.precision, x, w)
        return (convolve_transposed(x, w, bias, self.windows(x.shape, w.shape), self.group),)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count the weights and the products of one tap."""
        x, w = inputs[0], inputs[1]
        if x is None or w is None or x.dtype not in _PREPARED or w.dtype != x.dtype:
            return ()
        windows = self.windows(x.shape, w.shape)
        return count_transposed_convolution(x.shape, w.shape, windows, self.group, x.dtype.itemsize)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Multiply tap by tap in scratch and add in the output, where that is of floats."""
        (x, w, bias), y = (*inputs, None)[:3], out[0]
        if x is None or w is None or y is None or y.dtype not in _PREPARED:
            return None
        windows = self.windows(x.shape, w.shape)
        return prepare_transposed(x, w, bias, windows, self.group, y, scratch, is_constant=constant[1])

    def count_format_gain(
        self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None], target: Target
    ) -> int:
        """Return what its transposes would move on tensor cores, which take images that lie channels last."""
        x, w, y = inputs[0], inputs[1], outputs[0]
        if x is None or w is None or y is None:
            return 0
        dtypes = (x.dtype, w.dtype, find_result(x.dtype, self.precision))
        is_gained = runs_as_products(dtypes, self.windows(x.shape, w.shape), self.group, target, self.precision)
        return count_transposed(x, y) if is_gained else 0

    def writes_windows(
        self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None], target: Target
    ) -> bool:
        """Return whether it runs on tensor cores, as products of rows of channels."""
        x, w, y = inputs[0], inputs[1], outputs[0]
        if x is None or w is None or y is None:
            return False
        dtypes = (x.dtype, w.dtype, y.dtype)
        return runs_as_products(dtypes, self.windows(x.shape, w.shape), self.group, target, self.precision)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the products of its taps or phases, or one thread per output, which gathers its terms."""
        if emit.leaves_to_host():
            return
        self.lower_with(emit, inputs, outputs)

    def lower_with(self, emit: Emitter, inputs: Slots, outputs: Slots, narrow: NarrowWeight | None = None) -> None:
        """Lower, the weight perhaps narrow."""
        x, w, bias = (*inputs, None)[:3]
        y = outputs[0]
        assert x is not None and w is not None and y is not None
        sizes = ConvSizes(x.shape[0], self.group, w.shape[0] // self.group, w.shape[1], prod(y.shape[2:]))
        check_index(self.name, "outputs of one channel", sizes.outputs)
        check_index(self.name, "input channels of a group", sizes.group_ins)
        check_index(self.name, "output channels of a group", sizes.group_outs)
        slots, windows = (x, w, bias, y), self.windows(x.shape, w.shape)
        if narrow is None and launch_mma_transpose(emit, slots, windows, self.group, self.precision):
            return
        if x.dtype != y.dtype:
            x, w = widen_operand(emit, x, y), widen_operand(emit, w, y)
            slots = (x, w, bias, y)
        if not y.is_contiguous:  # channels last
            made = emit.temp(y.shape, y.dtype)
            self.lower_with(emit, (x, w, bias), (made,), narrow)
            emit.copy(y, made)
            return
        # With fewer output channels most of a tile would be empty.
        is_tiled = w.shape[1] >= _TILED_OUTS and _has_own_kernels(emit)
        keeps_order = self.precision == REFERENCE
        if is_tiled and launch_simt_conv(
            emit, slots, windows, self.group, is_transposed=True, narrow=narrow, keeps_order=keeps_order
        ):
            return
        _launch(emit, "conv_transpose", ceil_div(y.spec.size, THREADS), slots, windows, sizes, narrow)


def _has_own_kernels(emit: Emitter) -> bool:
    """Return whether there may be a kernel for the type and the shape: not in textures."""
    return emit.target.has_kernels and not emit.target.has_textures


def _launch(
    emit: Emitter,
    name: str,
    blocks: int,
    slots: tuple[Slot, Slot, Slot | None, Slot],
    windows: Windows,
    sizes: ConvSizes,
    narrow: NarrowWeight | None,
) -> None:
    """Launch a kernel of conv.cu."""
    x, w, bias, y = slots
    bias = None if bias is None else emit.contiguous(bias)
    arguments: list[Argument] = [x, emit.contiguous(w), bias, y, windows.pack(), pack_strides(x.strides), sizes.pack()]
    kernel = Kernel("conv.cu", f"{name}<{dtype_row(y.dtype).cuda}>")
    if narrow is not None:
        kernel = Kernel("conv.cu", f"{name}_narrow<{name_types(y.dtype, w.dtype)}>")
        arguments += [*narrow.dense(emit), int64(0 if narrow.axis is None else 1)]
    emit.launch(kernel, (blocks, 1, 1), (THREADS, 1, 1), arguments, writes=[3])


def _check_inputs(
    op: Conv | ConvTranspose, x: TensorSpec | None, w: TensorSpec | None, bias: TensorSpec | None, *, out_axis: int
) -> tuple[TensorSpec, TensorSpec]:
    name = op.name
    if x is None or w is None:
        raise InputError(f"{name} expects an input and a weight.")
    check_kernel(name, x, w, op.kernel_shape, op.group)
    wanted = find_result(x.dtype, op.precision)
    if x.dtype not in DTYPES or w.dtype != x.dtype or (bias is not None and bias.dtype != wanted):
        got = ", ".join(str(spec) for spec in (x, w, bias) if spec is not None)
        raise InputError(f"{name} expects inputs of one type among {', '.join(t.name for t in DTYPES)}, got {got}.")
    outs = w.shape[out_axis] * (op.group if out_axis else 1)
    if bias is not None and bias.shape != (outs,):
        raise InputError(f"{name} expects a bias of [{outs}], got {bias}.")
    return x, w


# By the bytes of an element; see `TileLoop`. Patches take 218 of the integer instructions.
_LOOPS = {
    4: TileLoop(609, around=1000, registers=103, shared_nbytes=17408),
    2: TileLoop(620, around=1000, registers=103, shared_nbytes=17408),
    8: TileLoop(640, around=1000, registers=128, shared_nbytes=34816),
}
_NARROW_INSTRUCTIONS = 60  # more for a slab where weights are widened
_STORE_WAVEFRONTS = 64 + 32  # of a slab: weights along k meet in pairs on a bank, patches don't
# Instructions of a thread that makes one output, in all and for each tap of a channel that lies inside (of a
# transposed convolution: for each tap that there is).
_AROUND, _EACH_TAP, _EACH_TRANSPOSED_TAP = 120, 18, 30
_UNROLLED = 4  # taps whose loads are under way together


@work_of("conv.cu", "conv_gemm", "conv_gemm_narrow")
def _count_conv_gemm(launch: Launch) -> Work:
    x, w, y, windows, sizes = _read(launch)
    inner = sizes.group_ins * windows.taps
    product = TiledProduct(sizes.groups, sizes.group_outs, sizes.batch * sizes.outputs, inner)
    loop = _LOOPS[y.dtype.itemsize]
    if "_narrow" in launch.kernel.expression:
        loop = TileLoop(loop.instructions + _NARROW_INSTRUCTIONS, loop.around, registers=128)
    weights = count_slab_bytes(sizes.group_outs, inner, inner, 1, w.dtype.itemsize) * product.column_tiles
    # Taps of a channel see much the same places: L1 has them after the first.
    seen = windows.count_seen(min(TILE, sizes.outputs)) * sizes.group_ins * x.dtype.itemsize
    patches = seen * product.row_tiles * product.column_tiles
    work = product.describe(
        launch, loop, sizes.groups * (weights + patches), _STORE_WAVEFRONTS, doubles=y.dtype == np.float64
    )
    return replace(work, flops=work.flops + _count_bias(launch, y))


@work_of("conv.cu", "conv_direct", "conv_direct_narrow", "conv_transpose", "conv_transpose_narrow")
def _count_conv_direct(launch: Launch) -> Work:
    x, _, y, windows, sizes = _read(launch)
    steps, results, warps = count_epilogue_steps(launch), y.spec.size, count_warps(launch)
    if is_transposed := launch.kernel.expression.startswith("conv_transpose"):
        terms = x.spec.size * sizes.group_outs * windows.taps
        tried, each = sizes.group_ins * windows.taps / max(1, prod(windows.strides)), _EACH_TRANSPOSED_TAP
    else:
        terms = sizes.batch * sizes.groups * sizes.group_outs * sizes.group_ins * windows.count_taps_inside()
        tried, each = terms / max(1, results), _EACH_TAP
    is_double = y.dtype == np.float64
    return Work(
        flops=2 * terms + results * steps + _count_bias(launch, y),
        instructions=warps * (_AROUND + tried * each + steps * STEP_INSTRUCTIONS),
        multiply_adds=warps * tried,
        needed_multiply_adds=terms,
        doubles=warps * tried if is_double else 0,
        # Neighbouring outputs and channels of a group read the same places, which L1 has after the first.
        l2_nbytes=sum(count_slot_bytes(a) for a in launch.arguments if isinstance(a, Slot)),
        rounds=1 + tried / _UNROLLED,
        registers=80 if is_transposed else 42,
    )


def _read(launch: Launch) -> tuple[Slot, Slot, Slot, Windows, ConvSizes]:
    """Return x, w, y and the sizes of a launch of conv.cu."""
    x, w, _, y, windows, _, sizes = launch.arguments[:7]
    assert isinstance(x, Slot) and isinstance(w, Slot) and isinstance(y, Slot)
    assert isinstance(windows, bytes) and isinstance(sizes, bytes)
    return x, w, y, Windows.unpack(windows), ConvSizes.unpack(sizes)


def _count_bias(launch: Launch, y: Slot) -> int:
    return y.spec.size if launch.arguments[2] is not None else 0
