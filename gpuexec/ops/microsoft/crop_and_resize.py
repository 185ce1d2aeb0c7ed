"""CropAndResize: boxes cropped from images and resized to one size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import join_bytes, pack_struct
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec, accumulator, dtype_row
from gpuexec.ops.lib.checks import check_dtype, require_ints
from gpuexec.ops.lib.strided import pack_fast_div64
from gpuexec.ops.microsoft.activation import DOMAIN

_SOURCE = "crop_and_resize.cu"
_THREADS = 256  # kThreads of crop_and_resize.cu
_FLOATS = tuple(np.dtype(t) for t in (np.float32, np.float16, np.float64))
_INT32 = np.dtype(np.int32)
_MODES = ("bilinear", "nearest")
instantiate(_SOURCE, [f"crop_and_resize<{dtype_row(t).cuda}>" for t in _FLOATS])


@operator("CropAndResize", DOMAIN)
@dataclass(frozen=True, slots=True)
class CropAndResize(Operator):
    """Boxes ``[y1, x1, y2, x2]`` of images, relative to the outermost pixels, each as an image of ``crop_size``.

    Elements beyond an image are ``extrapolation_value``; so is all of a box without an image.
    """

    extrapolation_value: float = 0.0
    mode: str = "bilinear"
    tolerance = Tolerance.REDUCTION
    example = "float32[2,3,7,5] float32[2,4] int32[2] int32[2]=2,2"
    flops_per_output = None
    keeps_dtype = True
    has_blits = False

    def __post_init__(self) -> None:
        """Check the mode."""
        if self.mode not in _MODES:
            raise InputError(f"{self.name} expects mode to be one of {', '.join(_MODES)}, got {self.mode!r}.")

    def infer(self, x: TensorSpec, boxes: TensorSpec, images: TensorSpec, size: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return ``[boxes, channels, rows, columns]``.

        Raises:
            InputError: Types or shapes don't fit, or the size is not positive.
            NeedsHostValue: The size is not known.
        """
        x = check_dtype(self.name, x, _FLOATS)
        boxes = check_dtype(self.name, boxes, (x.dtype,), "rois")
        images = check_dtype(self.name, images, (_INT32,), "batch_indices")
        size = check_dtype(self.name, size, (_INT32,), "crop_size")
        if x.rank != 4 or boxes.shape[1:] != (4,) or images.shape != boxes.shape[:1]:
            raise InputError(
                f"{self.name} expects an image of four axes, rois [n, 4] and batch_indices [n], got {x}, {boxes} and "
                f"{images}."
            )
        extents = require_ints(size, "crop_size", 3)
        if len(extents) != 2 or min(extents) < 1:
            raise InputError(f"{self.name} expects crop_size to be two positive numbers, got {list(extents)}.")
        return (x.with_shape((boxes.shape[0], x.shape[1], *extents)),)

    def compute(self, x: Array, boxes: Array, images: Array, size: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Gather and blend with NumPy; half in float, rounded once."""
        acc = accumulator(x.dtype)
        rows, columns = (int(extent) for extent in size)
        y = np.full((boxes.shape[0], x.shape[1], rows, columns), self.extrapolation_value, acc)
        wide = x.astype(acc, copy=False)
        with np.errstate(all="ignore"):
            for box, (top, left, bottom, right) in enumerate(boxes.astype(acc, copy=False)):
                image = int(images[box])
                if not 0 <= image < x.shape[0]:
                    continue
                at_y, at_x = _places(top, bottom, rows, x.shape[2]), _places(left, right, columns, x.shape[3])
                in_y, in_x = ((at >= 0) & (at <= extent - 1) for at, extent in ((at_y, x.shape[2]), (at_x, x.shape[3])))
                found = self._sample(wide[image], at_y[in_y], at_x[in_x])
                y[box][:, in_y[:, np.newaxis] & in_x] = found.reshape(x.shape[1], found.shape[1] * found.shape[2])
            return (y.astype(x.dtype, copy=False),)

    def _sample(self, image: Array, at_y: Array, at_x: Array) -> Array:
        if self.mode == "nearest":
            rows, columns = (np.floor(at + at.dtype.type(0.5)).astype(np.int64) for at in (at_y, at_x))
            return np.asarray(image[:, rows[:, np.newaxis], columns])
        (first, last, part_y), (near, far, part_x) = (
            (np.floor(at).astype(np.int64), np.ceil(at).astype(np.int64), at - np.floor(at)) for at in (at_y, at_x)
        )
        first, last, part_y = first[:, np.newaxis], last[:, np.newaxis], part_y[:, np.newaxis]
        upper = image[:, first, near] + (image[:, first, far] - image[:, first, near]) * part_x
        lower = image[:, last, near] + (image[:, last, far] - image[:, last, near]) * part_x
        return np.asarray(upper + (lower - upper) * part_y)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a thread per element."""
        x, boxes, images, size = inputs
        y = outputs[0]
        assert x is not None and boxes is not None and images is not None and size is not None and y is not None
        require_ints(size.spec, "crop_size", 3)
        divisors = join_bytes(pack_fast_div64(max(1, extent)) for extent in (y.shape[3], y.shape[2], y.shape[1]))
        packed = pack_struct("<5q", y.spec.size, *x.shape) + divisors
        packed += pack_struct("<qd", self.mode == "nearest", self.extrapolation_value)
        arguments: list[Argument] = [*(emit.contiguous(slot) for slot in (x, boxes, images)), y, packed]
        kernel = Kernel(_SOURCE, f"crop_and_resize<{dtype_row(x.dtype).cuda}>")
        blocks = max(1, ceil_div(y.spec.size, _THREADS))
        emit.launch(kernel, (blocks, 1, 1), (_THREADS, 1, 1), arguments, writes=[3])


def _places(first: Any, last: Any, count: int, extent: int) -> Array:
    """Return where the pixels of a crop lie along an axis of the image."""
    number = type(first)
    if count <= 1:
        return np.asarray([number(0.5) * (first + last) * number(extent - 1)])
    step = (last - first) * number(extent - 1) / number(count - 1)
    return np.asarray(first * number(extent - 1) + np.arange(count).astype(number) * step)
