"""Transposed convolutions of half, bf16 and tf32 images, channels last, on tensor cores, whose taps do not overlap.

Where strides are the kernel's extents each output sees one position of the input through one tap. So such a convolution
is a product of matrices for each tap, by the rows of an image: ``launch_gemm`` takes them as one launch of batches,
which store their rows to where the outputs of the tap lie. In tf32 products of few columns or output channels are those
of the FP32 units.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from gpuexec.errors import PlanError
from gpuexec.ir.command import Slot
from gpuexec.ir.geometry import contiguous_strides, round_up
from gpuexec.ir.operator import Array, Emitter
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ir.weight_forms import WeightForm, weight_form
from gpuexec.ops.lib.windows import Windows
from gpuexec.ops.linalg.matmul_launch import launch_gemm
from gpuexec.ops.linalg.mma_launch import multiplies
from gpuexec.ops.nn.conv_mma import align_channels, count_chunk, find_pitch, make_channels_last, takes_tf32

_LIMIT = 2**31


@weight_form("conv_transpose_lines")
@dataclass(frozen=True, slots=True)
class TransposeLines(WeightForm):
    """Weights ``[channels, outs, taps...]`` as ``[taps * outs, channels]``, channels padded by zeros to 16 bytes."""

    def infer(self, source: TensorSpec) -> TensorSpec:
        """Return the spec, with the channels that only pad."""
        channels, outs, *kernel = source.shape
        return source.with_shape((prod(kernel) * outs, round_up(channels, count_chunk(source.dtype))))

    def pack(self, block: Array, at: tuple[int, ...], packed: Array) -> None:
        """Write a part of the weights, whose taps are all there: they are fewer than any part has rows."""
        channels, outs, *kernel = block.shape
        lines = packed.reshape(prod(kernel), -1, packed.shape[1])
        part = block.reshape(channels, outs, -1).transpose(2, 1, 0)
        lines[:, at[1] : at[1] + outs, at[0] : at[0] + channels] = part


def has_apart_taps(windows: Windows) -> bool:
    """Return whether each output of a transposed convolution sees one position through one tap.

    Args:
        windows: Those over its output.
    """
    return (
        windows.kernel == windows.strides
        and not any(windows.begins)
        and all(tap == 1 or step == 1 for tap, step in zip(windows.kernel, windows.dilations, strict=True))
        and all(
            extent == count * step
            for extent, count, step in zip(windows.extents, windows.counts, windows.strides, strict=True)
        )
    )


def runs_as_products(
    dtypes: tuple[np.dtype[Any], np.dtype[Any], np.dtype[Any]],
    windows: Windows,
    groups: int,
    target: Target,
    precision: str = "",
) -> bool:
    """Return whether a transposed convolution runs on tensor cores; a matter of types and windows, as of `conv_mma`.

    Args:
        dtypes: Of x, w and y.
        windows: Those over y.
        groups: Groups of channels.
        target: What it runs on.
        precision: Of the operands; those of float are multiplied as tf32 alone.
    """
    x, w, y = dtypes
    has_type = multiplies(target, y, x, w) or takes_tf32(dtypes, target, precision)
    return groups == 1 and windows.taps <= 64 and has_apart_taps(windows) and has_type


def launch_mma_transpose(
    emit: Emitter, slots: tuple[Slot, Slot, Slot | None, Slot], windows: Windows, groups: int, precision: str = ""
) -> bool:
    """Launch a transposed convolution on tensor cores; False where there are none for it.

    Args:
        emit: Emitter of the launch.
        slots: x, w, bias (or None), y.
        windows: Those over y.
        groups: Groups of channels; more than one is what this can't.
        precision: Of the operands.
    """
    x, w, bias, y = slots
    if not runs_as_products((x.dtype, w.dtype, y.dtype), windows, groups, emit.target, precision):
        return False
    channels = round_up(x.shape[1], count_chunk(x.dtype))
    able = max(x.spec.size // max(x.shape[1], 1) * channels, y.spec.size) < _LIMIT
    if not (emit.choose(able) and able):
        return False
    turned = y
    if not emit.choose(find_pitch(y) is not None):
        turned = make_channels_last(emit, y)
    pitch = find_pitch(turned)
    if pitch is None:
        raise PlanError(f"A transposed convolution writes {y}, whose channels lie last at the upper end.")
    bias = None if bias is None else emit.contiguous(bias)
    x, weights = align_channels(emit, x, channels), _pack_weights(emit, w, channels)
    outs = w.shape[1]
    places = [step * pitch for step in contiguous_strides(y.shape[2:])]
    y_batch, x_places = prod(y.shape[2:]) * pitch, [step * channels for step in contiguous_strides(x.shape[2:])]
    batch = (x.shape[0], *windows.counts[:-1], *windows.kernel)
    taps = (0,) * len(windows.kernel)
    of_taps = [step * outs * channels for step in contiguous_strides(windows.kernel)]
    steps = [step * place for step, place in zip(windows.strides, places, strict=True)]
    walks = (
        (prod(x.shape[2:]) * channels, *x_places[:-1], *taps),
        (0, *taps[:-1], *of_taps),
        (y_batch, *steps[:-1], *places),
    )
    launch_gemm(
        emit, (x, weights, bias, turned), (windows.counts[-1], outs, channels),
        (channels, 1, 1, channels, 0, 1, steps[-1]), batch=(batch, walks), precision=precision,
    )  # fmt: skip
    if turned is not y:
        emit.copy(y, turned)
    return True


def _pack_weights(emit: Emitter, w: Slot, channels: int) -> Slot:
    """Return the weights as lines along the channels: packed once where they are a weight of the model, else now."""
    packed = emit.packed(w, TransposeLines())
    if packed is not None:
        return packed
    own, outs, *kernel = w.shape
    made = emit.temp((prod(kernel) * outs, channels), w.dtype)
    if own != channels:
        emit.fill(made, 0)
    taps = [step * outs * channels for step in contiguous_strides(kernel)]
    emit.copy(Slot(made.buffer, made.offset_bytes, w.spec.with_shape(w.shape), (1, channels, *taps)), w)
    return made
