"""Blits: kernels of a pixel target, over textures, with one thread for each texel of the output.

A kernel that makes each element of its one output from elements it gathers has a form in textures: the blit of
``kernels/pixel/`` of the same file and parameters, textures in place of pointers, by the same functors. So an
operator's ``lower`` serves both, and a row here is all there is to say:

    "conv.cu": {"conv_gemm": "conv", ...}        conv_gemm<float> of conv.cu -> draw_conv<float> of pixel/conv.cu

Copies and fills are blits of their own. What a row lacks (sorting, scattering, finding, attention; bfloat16 and double)
has no blit: the operator runs on the host, as one without kernels does elsewhere.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

import numpy as np

from gpuexec.errors import UnsupportedError
from gpuexec.ir.command import Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div, coalesce
from gpuexec.ir.instances import instantiate, kernel_table
from gpuexec.ir.kernel_values import int64, join_bytes, pack_struct
from gpuexec.ir.operator import Emitter
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.elementwise import (  # noqa: F401  (they list the kernels that have blits)
    elementwise_binary,
    elementwise_cast,
    elementwise_pow,
    elementwise_select,
    elementwise_unary,
    elementwise_variadic,
)
from gpuexec.ops.lib.strided import Walk, join, pack_fast_div64
from gpuexec.ops.linalg import einsum, matmul  # noqa: F401  (they list the kernels that have blits)
from gpuexec.ops.nn import batch_norm, conv, lp_norm, lrn, mean_variance, norm_channels, pool, softmax, swiglu  # noqa: F401  (they list the kernels that have blits)
from gpuexec.ops.quant import narrow, quantize  # noqa: F401  (they list the kernels that have blits)
from gpuexec.ops.random import dropout, random, random_key  # noqa: F401  (they list the kernels that have blits)
from gpuexec.ops.reduce import cumulative, reduce_arg, reduce_pool, statistics  # noqa: F401  (they list the kernels that have blits)
from gpuexec.ops.signal import signal_window  # noqa: F401  (they list the kernels that have blits)
from gpuexec.ops.tensor import gather, one_hot, pad, reverse_sequence, trilu  # noqa: F401  (they list the kernels that have blits)
from gpuexec.ops.tensor import legacy as _legacy  # noqa: F401
from gpuexec.ops.tensor import shape as _shape  # noqa: F401
from gpuexec.ops.tensor.layout import window
from gpuexec.ops.vision import image, resize  # noqa: F401  (they list the kernels that have blits)

THREADS = 256  # kDrawThreads of pixel/texture.cuh
TEXEL_BYTES = 16
_COPY_RANK = 8  # kCopyRank of pixel/copy.cu
_FOLDER = "pixel/"
_COPY = f"{_FOLDER}copy.cu"
_BITS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}

# By file: kernels that have a blit, and its name after "draw_" where it differs. A kernel that writes several tensors
# has a blit for each, by the position of the argument.
_BLITS: Mapping[str, Mapping[str, str | Mapping[int | None, str]]] = {
    "batch_norm.cu": {"normalize_channels": ""},
    "cdist.cu": {"distances": ""},
    "conv.cu": {
        **dict.fromkeys(("conv_gemm", "conv_direct"), "conv"),
        **dict.fromkeys(("conv_gemm_narrow", "conv_direct_narrow"), "conv_narrow"),
        **dict.fromkeys(("conv_transpose", "conv_transpose_narrow"), ""),
    },
    "cumulative.cu": {"cumulative": ""},
    "einsum.cu": {"contract": ""},
    "elementwise_binary.cu": {"binary": ""},
    "elementwise_cast.cu": {"convert": "", "convert_narrow": ""},
    "elementwise_pow.cu": {"power": ""},
    "elementwise_select.cu": {"where": "", "clip": ""},
    "elementwise_unary.cu": {"unary": ""},
    "elementwise_variadic.cu": {"fold": ""},
    "gather.cu": {"gather_slices": "", "gather_elements": ""},
    "generate.cu": {"range": "", "store": ""},
    "image.cu": {"transform_image": ""},
    "lp_norm.cu": {"normalize_lp": ""},
    "lrn.cu": {"normalize_neighbours": ""},
    "matmul.cu": {"gemm": "", "gemm_narrow": ""},
    "matmul_nbits.cu": {"matmul_nbits": ""},
    "mean_variance.cu": {"normalize_mean_variance": ""},
    "murmur_hash3.cu": {"murmur_hash3": ""},
    "norm.cu": dict.fromkeys(("normalize_rows", "normalize_short_rows"), "normalize_rows"),
    "one_hot.cu": {"one_hot": ""},
    "pad.cu": {"pad": ""},
    "pool.cu": {"max_pool": {1: "max_pool", 2: "max_pool_places"}, "average_pool": "", "lp_pool": ""},
    "quantize.cu": dict.fromkeys(("quantize", "dequantize", "quantize_narrow", "dequantize_narrow"), ""),
    "random.cu": {
        **dict.fromkeys(("random_uniform", "random_normal", "bernoulli", "next_key"), ""),
        "dropout": {1: "dropout", 2: "dropout_mask"},
    },
    "reduce.cu": {"reduce": "", "lp_norm": "", "reduce_chunks": "", "reduce_partials": "", "find_extremum": ""},
    "resize.cu": {"resize_nearest": "", "resize_blend": ""},
    "reverse_sequence.cu": {"reverse_sequence": ""},
    "signal_window.cu": {"cosine_window": ""},
    "softmax.cu": {**dict.fromkeys(("softmax", "softmax_short"), "softmax"), "hardmax": ""},
    "statistics.cu": {"take_samples": "", "merge_all_samples": "", "count_bins": ""},
    "swiglu.cu": {"swiglu": ""},
    "trilu.cu": {"trilu": ""},
}
# Floats below half, doubles and small signed integers are computed on the host, except for statistics, and
# small integers that are quantised numbers.
_LEFT_OUT = re.compile(r"\b(bf16|double|i8|i16)\b")
_LEFT_OUT_IN = {
    **dict.fromkeys(("conv.cu", "matmul.cu"), re.compile(r"\b(bf16|double|i16)\b")),
    "quantize.cu": re.compile(r"\bbf16\b"),
    "statistics.cu": re.compile(r"(?!)"),  # none of it
}
# Blends of integers go through double.
_BLENDED_INTEGERS = re.compile(r"resize_blend<[iu]")


@functools.cache
def find_blits(kernel: Kernel) -> Mapping[int | None, Kernel]:
    """Return the blits of a kernel, by the position of the argument they write; None: all it writes."""
    name, bracket, types = kernel.expression.partition("<")
    drawn = _BLITS.get(kernel.source, {}).get(name)
    is_left_out = _LEFT_OUT_IN.get(kernel.source, _LEFT_OUT).search(types)
    if drawn is None or is_left_out or _BLENDED_INTEGERS.match(kernel.expression):
        return {}
    parts = {None: drawn or name} if isinstance(drawn, str) else drawn
    return {
        position: Kernel(f"{_FOLDER}{kernel.source}", f"draw_{part}{bracket}{types}")
        for position, part in parts.items()
    }


def draw(launch: Launch) -> tuple[Launch, ...]:
    """Return the blits in place of a launch, one for each tensor that it writes.

    Raises:
        UnsupportedError: The kernel has none.
    """
    if launch.kernel.source.startswith(_FOLDER):
        return (launch,)
    blits = find_blits(launch.kernel)
    if not blits:
        raise UnsupportedError(
            f"{launch.kernel} has no blit for a target with textures: it is no gather, or of a type they leave out."
        )
    return tuple([_draw_part(launch, blits.get(position) or blits[None], position) for position in launch.writes])


def _draw_part(launch: Launch, blit: Kernel, position: int) -> Launch:
    """Return the blit that writes the argument at ``position``, without the launch's other outputs."""
    arguments = tuple([None if i in launch.writes and i != position else a for i, a in enumerate(launch.arguments)])
    output = arguments[position]
    assert isinstance(output, Slot)
    return Launch(blit, _grid(output.spec.nbytes), (THREADS, 1, 1), arguments, (position,))


def draw_copy(emit: Emitter, destination: Slot, source: Slot) -> None:
    """Launch the blit that copies ``source`` into ``destination``: equal shape and dtype, no common bytes.

    The destination has positive strides. Of axes beyond those that a blit walks, each step is one.
    """
    shape, (source_strides, strides) = coalesce(source.shape, (source.strides, destination.strides))
    if len(shape) > _COPY_RANK:
        for index in range(shape[0]):
            part = window(source, shape[1:], source_strides[1:], index * source_strides[0])
            draw_copy(emit, window(destination, shape[1:], strides[1:], index * strides[0]), part)
        return
    walk = join(shape, (source_strides, strides))
    assert all(stride > 0 for stride in walk.strides[1]), destination
    launch = _copy(destination, source, walk)
    emit.launch(launch.kernel, launch.grid, launch.block, launch.arguments, launch.writes)


def draw_fill(emit: Emitter, destination: Slot, pattern: bytes) -> None:
    """Launch the blit that sets every element of a contiguous slot to the one whose bytes are ``pattern``."""
    launch = make_fill(pattern, destination.spec.size)
    emit.launch(launch.kernel, launch.grid, launch.block, (destination, *launch.arguments[1:]), launch.writes)


def copy_kernels() -> tuple[Kernel, ...]:
    """Return the kernels of `make_copy` and `make_fill`."""
    return tuple(Kernel(_COPY, f"draw_{name}<{bits}>") for name in ("copy", "fill") for bits in _BITS.values())


def make_copy(destination: int, source: int, nbytes: int) -> Launch:
    """Return the blit that copies bytes between two addresses; its slots are source and destination."""
    width = next(width for width in (8, 4, 2, 1) if not (destination % width or source % width or nbytes % width))
    spec = TensorSpec((nbytes // width,), np.dtype(f"u{width}"))
    to, given = Slot(1, 0, spec, (1,)), Slot(0, 0, spec, (1,))
    return _copy(to, given, join(spec.shape, (given.strides, to.strides)))


def make_fill(pattern: bytes, count: int) -> Launch:
    """Return the blit that writes ``pattern`` (1, 2, 4 or 8 bytes) ``count`` times; its slot is the destination."""
    dtype = np.dtype(f"u{len(pattern)}")
    to = Slot(0, 0, TensorSpec((count,), dtype), (1,))
    kernel = Kernel(_COPY, f"draw_fill<{_BITS[len(pattern)]}>")
    bits = np.frombuffer(pattern, dtype)[0]
    return Launch(kernel, _grid(to.spec.nbytes), (THREADS, 1, 1), (to, int64(count), bits), (0,))


def _copy(destination: Slot, source: Slot, walk: Walk) -> Launch:
    span = 1 + sum((extent - 1) * stride for extent, stride in zip(walk.shape, walk.strides[1], strict=True))
    filler = _COPY_RANK - len(walk.shape)
    packed = join_bytes(
        (
            pack_struct("<2q", span, len(walk.shape)),
            *(pack_fast_div64(stride) for stride in walk.strides[1]),
            pack_fast_div64(1) * filler,
            pack_struct(f"<{_COPY_RANK}q", *walk.shape, *(1,) * filler),
            pack_struct(f"<{_COPY_RANK}q", *walk.strides[0], *(0,) * filler),
        )
    )
    itemsize = source.dtype.itemsize
    kernel = Kernel(_COPY, f"draw_copy<{_BITS[itemsize]}>")
    return Launch(kernel, _grid(span * itemsize), (THREADS, 1, 1), (source, destination, packed), (1,))


def _grid(nbytes: int) -> tuple[int, int, int]:
    """Return the blocks for a tensor wherever in its first texel it begins."""
    return (ceil_div(ceil_div(nbytes, TEXEL_BYTES) + 1, THREADS), 1, 1)


def _instantiate() -> None:
    """List the blits of all kernels listed so far."""
    for source, expressions in kernel_table().items():
        blits = [blit for expression in expressions for blit in find_blits(Kernel(source, expression)).values()]
        if blits:
            instantiate(f"{_FOLDER}{source}", [blit.expression for blit in blits])
    instantiate(_COPY, [kernel.expression for kernel in copy_kernels()])


_instantiate()
