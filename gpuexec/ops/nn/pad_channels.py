"""Padding of an image's channels to eights, channels last: what convolutions on tensor cores read a first image by."""

from __future__ import annotations

import struct
from math import prod

import numpy as np

from gpuexec.ir.command import Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.operator import Emitter
from gpuexec.ir.spec import BFLOAT16, dtype_row
from gpuexec.ir.work import Work, count_slot_bytes, count_warps, work_of
from gpuexec.ops.lib.strided import pack_fast_div32

_SOURCE, _THREADS, _EIGHT, _AXES = "pad_channels.cu", 256, 8, 3
_FLOAT, _STORED = np.dtype(np.float32), (np.dtype(np.float16), BFLOAT16)


def _name(source: np.dtype[np.generic], stored: np.dtype[np.generic]) -> Kernel:
    return Kernel(_SOURCE, f"pad_channels<{dtype_row(source).cuda}, {dtype_row(stored).cuda}>")


instantiate(_SOURCE, [_name(each, stored).expression for stored in _STORED for each in (stored, _FLOAT)])


def pad_channels(emit: Emitter, made: Slot, x: Slot) -> None:
    """Launch the padding of an image, of any strides, into dense memory ``[n, axes..., eights of channels]``."""
    axes, strides = x.shape[2:], x.strides[2:]
    lead = _AXES - len(axes)
    vectors = made.spec.size // _EIGHT
    divisors = (prod(axes), made.shape[-1] // _EIGHT, *((1,) * lead + axes)[1:])
    packed = b"".join(
        (
            *[pack_fast_div32(max(1, divisor)) for divisor in divisors],
            struct.pack("<2i", vectors, x.shape[1]),
            struct.pack("<5q", *x.strides[:2], *(0,) * lead, *strides),
        )
    )
    blocks = max(1, ceil_div(vectors, _THREADS))
    emit.launch(_name(x.dtype, made.dtype), (blocks, 1, 1), (_THREADS, 1, 1), [x, made, packed], writes=[1])


@work_of(_SOURCE, "pad_channels")
def _count_padding(launch: Launch) -> Work:
    x, made = launch.arguments[0], launch.arguments[1]
    assert isinstance(x, Slot) and isinstance(made, Slot)
    return Work(
        flops=0,
        instructions=count_warps(launch) * 110,
        l2_nbytes=count_slot_bytes(x) + count_slot_bytes(made),
        rounds=1,
        registers=48,
    )
