"""Convolutions of patches that neither overlap nor leave gaps, of many taps, as one product on tensor cores.

Vision transformers cut an image into patches of 14 or 16 pixels so: more taps than the tables of `conv_mma` have. Each
element belongs to one patch at most, so laying patches out as rows is a copy of the image, not of it for each tap.
"""

from __future__ import annotations

from math import prod

from gpuexec.ir.command import Slot
from gpuexec.ir.operator import Emitter
from gpuexec.ops.lib.windows import Windows
from gpuexec.ops.linalg.matmul_launch import launch_gemm, multiplies
from gpuexec.ops.tensor.layout import window

_ALIGNMENT = 8  # elements of 16 bytes


def launch_patches(emit: Emitter, slots: tuple[Slot, Slot, Slot | None, Slot], windows: Windows, groups: int) -> bool:
    """Launch a convolution of such patches into a row-major image; False where it is none, or not of 16 bits.

    Args:
        emit: Emitter of the launches.
        slots: x, w, bias (or None), y.
        windows: Those over x.
        groups: Groups of channels.
    """
    x, w, bias, y = slots
    if groups > 1 or not multiplies(emit.target, y.dtype, x.dtype, w.dtype):
        return False
    is_apart = windows.strides == windows.kernel and not any((*windows.begins, *windows.ends))
    is_dense = w.is_contiguous and w.offset_bytes % (_ALIGNMENT * w.dtype.itemsize) == 0 and y.is_contiguous
    outs, inner = w.shape[0], prod(w.shape[1:])
    is_able = is_apart and is_dense and set(windows.dilations) <= {1} and inner % _ALIGNMENT == 0
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
    launch_gemm(emit, (weights, patches, bias, y), (outs, positions, inner), strides, batch=((batch,), walks))
    return True
