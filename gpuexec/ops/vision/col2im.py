"""Col2Im: columns of blocks summed where they overlap in an image."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import join_bytes, pack_struct
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import COMPUTED, TensorSpec, accumulator, dtype_row
from gpuexec.ops.elementwise.elementwise_engine import UNSIGNED_BY_SIZE
from gpuexec.ops.lib.checks import check_dtype, require_ints
from gpuexec.ops.lib.strided import pack_fast_div64
from gpuexec.ops.lib.windows import Windows, resolve_windows, trailing
from gpuexec.ops.tensor.layout import read_ints

SOURCE = "col2im.cu"
MAX_AXES = 6  # kAxes of col2im.cu
DTYPES = tuple(row.numpy for row in COMPUTED)
_THREADS = 256  # kThreads of col2im.cu
_LIMIT = 2**31


def _storage(dtype: np.dtype[Any]) -> str:
    """Return the C++ type that sums of a type are made in: integers wrap, so that the sign does not count."""
    return UNSIGNED_BY_SIZE[dtype.itemsize] if dtype.kind in "iu" else dtype_row(dtype).cuda


instantiate(SOURCE, dict.fromkeys(f"columns_to_image<{_storage(dtype)}>" for dtype in DTYPES))


@operator("Col2Im")
@dataclass(frozen=True, slots=True)
class Col2Im(Operator):
    """Image summed from overlapping columns of blocks: the transpose of im2col.

    Integers wrap, and of bools the sum is their or.
    """

    dilations: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    example = "float32[2,8,6] int64[2]=4,3 int64[2]=2,2"
    flops_per_output = None
    keeps_dtype = True
    has_blits = False

    def infer(self, x: TensorSpec, image_shape: TensorSpec, block_shape: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return ``[batch, channels, *image_shape]``.

        Raises:
            InputError: Rows or columns are not those of such blocks.
            NeedsHostValue: The shapes are not known.
        """
        check_dtype(self.name, x, DTYPES)
        windows = self._resolve(
            x.shape, require_ints(image_shape, "image_shape", 1), require_ints(block_shape, "block_shape", 2)
        )
        return (x.with_shape((x.shape[0], x.shape[1] // windows.taps, *windows.extents)),)

    def compute(self, x: Array, image_shape: Array, block_shape: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Add tap by tap; half and bfloat16 in float, rounded once."""
        windows = self._resolve(x.shape, read_ints(image_shape), read_ints(block_shape))
        channels = x.shape[1] // windows.taps
        columns = x.astype(accumulator(x.dtype), copy=False)
        columns = columns.reshape(x.shape[0], channels, windows.taps, *windows.counts)
        y = np.zeros((x.shape[0], channels, *windows.extents), columns.dtype)
        with np.errstate(all="ignore"):
            for tap, blocks, seen in windows.seen():
                y[trailing(seen)] += columns[:, :, tap][trailing(blocks)]
            return (y.astype(x.dtype, copy=False),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a thread per element of the image, which gathers its terms."""
        x, image_shape, block_shape, y = *inputs, outputs[0]
        assert x is not None and image_shape is not None and block_shape is not None and y is not None
        windows = self._resolve(
            x.shape, require_ints(image_shape.spec, "image_shape", 1), require_ints(block_shape.spec, "block_shape", 2)
        )
        axes = len(windows.kernel)
        columns = (windows.kernel, windows.strides, windows.dilations, windows.begins, windows.counts)
        reach = [
            e + b + k * d for e, b, k, d in zip(windows.extents, windows.begins, windows.kernel, windows.dilations)
        ]
        if axes > MAX_AXES or max(map(abs, (*reach, *windows.begins, *windows.counts))) >= _LIMIT:
            raise InputError(
                f"Col2Im expects at most {MAX_AXES} spatial axes with extents and pads below 2**31 on a device, got "
                f"{windows}."
            )
        filler = (0,) * (MAX_AXES - axes)
        divisors = [max(1, extent) for extent in (y.shape[1], *windows.extents, *(1,) * len(filler))]
        walk = join_bytes(
            (
                pack_struct("<q", y.spec.size),
                *map(pack_fast_div64, divisors),
                pack_struct("<5q2i", windows.taps, prod(windows.counts), *x.strides, axes, 0),
                *(pack_struct(f"<{MAX_AXES}i", *entries, *filler) for entries in columns),
            )
        )
        kernel = Kernel(SOURCE, f"columns_to_image<{_storage(x.dtype)}>")
        blocks = max(1, ceil_div(y.spec.size, _THREADS))
        emit.launch(kernel, (blocks, 1, 1), (_THREADS, 1, 1), [x, y, walk], writes=[1])

    def _resolve(self, shape: tuple[int, ...], image: tuple[int, ...], block: tuple[int, ...]) -> Windows:
        """Return the blocks as windows over the image."""
        if len(shape) != 3 or not image or len(image) != len(block) or min(*image, *block) < 1:
            raise InputError(
                f"Col2Im expects an input [batch, channels * taps, blocks], and extents of image and block of 1 "
                f"or more for each axis, got {list(shape)}, image_shape {list(image)} and block_shape {list(block)}."
            )
        windows = resolve_windows(image, block, self.strides, self.dilations, self.pads, "NOTSET")
        if shape[1] % windows.taps or shape[2] != prod(windows.counts):
            raise InputError(
                f"Col2Im expects a multiple of {windows.taps} rows (taps of a block) and {prod(windows.counts)} "
                f"columns (blocks {list(windows.counts)} of image {list(image)}), got input {list(shape)}."
            )
        return windows
