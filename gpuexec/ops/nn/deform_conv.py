"""DeformConv: deformable convolution, whose taps are displaced by offsets and sampled between elements."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import contiguous_strides
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import pack_struct
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec, accumulator, dtype_row, dtypes_of
from gpuexec.ir.work import Work, count_slot_bytes, work_of
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.strided import pack_fast_div32
from gpuexec.ops.lib.windows import Windows, pack_strides, resolve_windows
from gpuexec.ops.linalg.matmul import multiply
from gpuexec.ops.linalg.matmul_launch import TILE
from gpuexec.ops.linalg.matmul_work import TiledProduct, TileLoop, count_slab_bytes
from gpuexec.ops.nn.convolution import THREADS, ConvSizes, check_channels, check_index, check_kernel

SOURCE = "deform_conv.cu"
FLOATS = dtypes_of("float")

instantiate(SOURCE, [f"deform_conv<{dtype_row(dtype).cuda}>" for dtype in FLOATS])


@operator("DeformConv")
@dataclass(frozen=True, slots=True)
class DeformConv(Operator):
    """Deformable convolution: tap ``t`` of a window samples, multilinearly, at its own position plus its offset.

    Elements beyond the input are 0; a mask weighs each sample. Channels come in ``offset_group`` groups of equal
    offsets and masks; offsets are listed by group, tap and axis. On a device it is one matrix product whose right
    operand is sampled while it is loaded.
    """

    dilations: tuple[int, ...] = ()
    group: int = 1
    kernel_shape: tuple[int, ...] = ()
    offset_group: int = 1
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    uses_all_cores: ClassVar[bool] = True
    example = "float32[1,1,2,2] float32[1,1,1,1] float32[1,2,2,2]"
    flops_per_output = None
    keeps_dtype = True
    has_blits = False

    def infer(
        self,
        x: TensorSpec,
        w: TensorSpec,
        offset: TensorSpec,
        bias: TensorSpec | None = None,
        mask: TensorSpec | None = None,
    ) -> tuple[TensorSpec, ...]:
        """Return ``[batch, out channels, windows...]``.

        Raises:
            InputError: Types, ranks, groups or extents do not fit together.
        """
        check_dtype(self.name, x, FLOATS)
        given = [spec for spec in (w, offset, bias, mask) if spec is not None]
        if any(spec.dtype != x.dtype for spec in given):
            raise InputError(f"DeformConv expects inputs of one type, got {', '.join(map(str, (x, *given)))}.")
        check_kernel(self.name, x, w, self.kernel_shape, self.group)
        check_channels(self.name, x, x.shape[1], w, self.group)
        if self.offset_group < 1 or x.shape[1] % self.offset_group:
            raise InputError(f"DeformConv expects channels that offset_group={self.offset_group} divides, got {x}.")
        windows = self._windows(x.shape, w.shape)
        lists = self.offset_group * windows.taps
        for role, spec, channels in (("offset", offset, lists * (x.rank - 2)), ("mask", mask, lists)):
            expected = (x.shape[0], channels, *windows.counts)
            if spec is not None and spec.shape != expected:
                raise InputError(f"DeformConv expects {role} {list(expected)}, got {spec}.")
        if bias is not None and bias.shape != w.shape[:1]:
            raise InputError(f"DeformConv expects a bias of {w.shape[0]}, got {bias}.")
        return (x.with_shape((x.shape[0], w.shape[0], *windows.counts)),)

    def compute(
        self,
        x: Array,
        w: Array,
        offset: Array,
        bias: Array | None = None,
        mask: Array | None = None,
        *,
        out: Out = None,
    ) -> tuple[Array, ...]:
        """Sample image by image, and multiply; half and bfloat16 in float, rounded once."""
        windows, acc = self._windows(x.shape, w.shape), accumulator(x.dtype)
        outputs = prod(windows.counts)
        y = np.empty((x.shape[0], w.shape[0], outputs), x.dtype)
        weights = w.astype(acc).reshape(self.group, w.shape[0] // self.group, w.shape[1] * windows.taps)
        with np.errstate(all="ignore"):
            for n in range(x.shape[0]):
                moved = offset[n].astype(acc).reshape(self.offset_group, windows.taps, len(windows.kernel), outputs)
                samples = _sample(x[n].astype(acc, copy=False), moved, windows)
                if mask is not None:
                    weighed = mask[n].astype(acc).reshape(self.offset_group, 1, windows.taps, outputs)
                    parts = x.shape[1] // self.offset_group
                    samples = samples.reshape(self.offset_group, parts, windows.taps, outputs) * weighed
                columns = samples.reshape(self.group, w.shape[1] * windows.taps, outputs)
                sums = multiply(weights, columns).reshape(w.shape[0], outputs)
                y[n] = sums if bias is None else sums + bias.astype(acc)[:, None]
        return (y.reshape(x.shape[0], w.shape[0], *windows.counts),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the product over samples."""
        x, w, offset, bias, mask = (*inputs, None, None)[:5]
        y = outputs[0]
        assert x is not None and w is not None and offset is not None and y is not None
        windows = self._windows(x.shape, w.shape)
        sizes = ConvSizes(x.shape[0], self.group, w.shape[1], w.shape[0] // self.group, prod(windows.counts))
        check_index(self.name, "channels * taps", x.shape[1] * windows.taps)
        check_index(self.name, "outputs of one channel", sizes.outputs)
        by_channels = pack_fast_div32(max(1, x.shape[1] // self.offset_group))
        packed = sizes.pack() + by_channels + pack_struct("<iq", len(windows.kernel), self.offset_group)
        slots = [x, *(None if slot is None else emit.contiguous(slot) for slot in (w, offset, mask, bias)), y]
        arguments: list[Argument] = [*slots, windows.pack(), pack_strides(x.strides), packed]
        kernel = Kernel(SOURCE, f"deform_conv<{dtype_row(x.dtype).cuda}>")
        emit.launch(kernel, (max(1, sizes.tiles), 1, 1), (THREADS, 1, 1), arguments, writes=[5])

    def _windows(self, x_shape: tuple[int, ...], w_shape: tuple[int, ...]) -> Windows:
        return resolve_windows(x_shape[2:], w_shape[2:], self.strides, self.dilations, self.pads, "NOTSET")


def _sample(image: Array, offset: Array, windows: Windows) -> Array:
    """Return the samples of the taps of all windows, ``[channels, taps, outputs]``.

    Args:
        image: ``[channels, extents...]``.
        offset: ``[offset groups, taps, axes, outputs]``.
        windows: Over the image.
    """
    axes, groups, acc = len(windows.kernel), offset.shape[0], image.dtype
    channels = image.shape[0] // groups
    starts = np.indices(windows.counts).reshape(axes, -1)
    taps = np.indices(windows.kernel).reshape(axes, -1)
    bases, fractions, is_seen = [], [], np.ones((groups, windows.taps, starts.shape[1]), bool)
    for axis in range(axes):
        plain = (
            starts[axis] * windows.strides[axis] - windows.begins[axis] + taps[axis][:, None] * windows.dilations[axis]
        )
        at = plain.astype(acc) + offset[:, :, axis]  # [groups, taps, outputs]
        inside = (at > acc.type(-1)) & (at < acc.type(windows.extents[axis]))
        at = np.where(inside, at, acc.type(0))
        before = np.floor(at)
        is_seen &= inside
        bases.append(before.astype(np.int64))
        fractions.append(at - before)
    flat = image.reshape(groups, channels, prod(windows.extents))
    steps = contiguous_strides(windows.extents)
    sampled = np.zeros((groups, channels, *is_seen.shape[1:]), acc)
    for corner in product((0, 1), repeat=axes):
        place, weight, is_there = np.zeros_like(bases[0]), np.ones_like(fractions[0]), is_seen
        for axis, side in enumerate(corner):
            at = bases[axis] + side
            weight = weight * (fractions[axis] if side else acc.type(1) - fractions[axis])
            is_there = is_there & (at >= 0) & (at < windows.extents[axis])
            place = place + at * steps[axis]
        is_there = is_there & (weight != 0)
        for group in range(groups):
            if flat.shape[2]:
                values = flat[group][:, np.where(is_there[group], place[group], 0)]
                sampled[group] += np.where(is_there[group], values * weight[group], acc.type(0))
    return sampled.reshape(groups * channels, *is_seen.shape[1:])


# Machine code of a slab of a tile: the product, and four samples of a thread. A block stores one by so many wavefronts.
_SLAB_INSTRUCTIONS, _EACH_SAMPLE, _OWN_SAMPLES, _STORE_WAVEFRONTS = 409, 424, 4, 8 * (8 + 4)


@work_of(SOURCE, "deform_conv")
def _count_deform_conv(launch: Launch) -> Work:
    x, w, offset, mask, bias, y, windows_bytes, _, sizes_bytes = launch.arguments
    assert isinstance(x, Slot) and isinstance(w, Slot) and isinstance(offset, Slot) and isinstance(y, Slot)
    assert isinstance(windows_bytes, bytes) and isinstance(sizes_bytes, bytes)
    windows, sizes = Windows.unpack(windows_bytes), ConvSizes.unpack(sizes_bytes)
    inner, itemsize = sizes.group_ins * windows.taps, x.dtype.itemsize
    product = TiledProduct(sizes.groups, sizes.group_outs, sizes.batch * sizes.outputs, inner)
    loop = TileLoop(_SLAB_INSTRUCTIONS + _OWN_SAMPLES * _EACH_SAMPLE, registers=103, shared_nbytes=17408)
    weights = count_slab_bytes(sizes.group_outs, inner, inner, 1, w.dtype.itemsize) * product.column_tiles
    # Neighbouring windows sample much the same places, as far as offsets are small: L1 has them after the first.
    seen = windows.count_seen(min(TILE, sizes.outputs)) * sizes.group_ins * itemsize * product.column_tiles
    moved = sum(count_slot_bytes(each) for each in (offset, mask) if isinstance(each, Slot))
    asked = sizes.groups * (weights + product.row_tiles * seen)
    asked += (product.row_tiles - 1) * moved  # the first time is counted with the other operands
    work = product.describe(launch, loop, asked, _STORE_WAVEFRONTS, doubles=y.dtype == np.float64, result=5)
    corners = 1 << max(1, sum(extent > 1 for extent in windows.extents))
    samples = sizes.groups * product.row_tiles * product.columns * inner * (3 * corners + 2)
    return replace(work, flops=work.flops + samples + (y.spec.size if isinstance(bias, Slot) else 0))
