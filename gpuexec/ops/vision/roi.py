"""RoiAlign and MaxRoiPool: regions of an image pooled into bins.

A region names its image by number. One that is not there is an error on the host, and reads as zero on a device, where
the host does not wait for the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.graphs import RawNode
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32, join_bytes, pack_struct
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator, upgrade
from gpuexec.ir.spec import TensorSpec, accumulator, dtype_row, dtypes_of
from gpuexec.ops.elementwise.elementwise_cast import truncate
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.strided import pack_fast_div64
from gpuexec.ops.vision.roi_host import align_region, pool_region, round_coordinates

SOURCE = "roi.cu"
FLOATS = dtypes_of("float")
_THREADS = 256  # kThreads of roi.cu
_LIMIT = 2**31
_INDEX = np.dtype(np.int64)
_MODES = ("avg", "max")
_TRANSFORMATIONS = ("output_half_pixel", "half_pixel")

instantiate(SOURCE, [f"{name}<{dtype_row(t).cuda}>" for name in ("roi_align", "max_roi_pool") for t in FLOATS])


@operator("RoiAlign")
@dataclass(frozen=True, slots=True)
class RoiAlign(Operator):
    """Mean or maximum over evenly spaced samples in each bin of a region, each a bilinear blend of four elements.

    The maximum is taken over the four weighed elements of all samples, not over blends. Without ``sampling_ratio`` a
    bin has samples at most an element apart. A region ``rois[r]`` is (x, y, x end, y end).
    """

    coordinate_transformation_mode: str = "half_pixel"
    mode: str = "avg"
    output_height: int = 1
    output_width: int = 1
    sampling_ratio: int = 0
    spatial_scale: float = 1.0
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    example = "float32[2,3,4,4] float32[5,4] int64[5]"
    flops_per_output = None
    keeps_dtype = True
    has_blits = False

    def infer(self, x: TensorSpec, rois: TensorSpec, batch_indices: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return ``[regions, channels, output_height, output_width]``.

        Raises:
            InputError: Modes, types or shapes do not fit.
        """
        if self.mode not in _MODES or self.coordinate_transformation_mode not in _TRANSFORMATIONS:
            raise InputError(
                f"RoiAlign expects mode among {', '.join(_MODES)} and coordinate_transformation_mode among "
                f"{', '.join(_TRANSFORMATIONS)}, got {self.mode!r} and {self.coordinate_transformation_mode!r}."
            )
        if min(self.output_height, self.output_width) < 1 or self.sampling_ratio < 0:
            raise InputError(
                f"RoiAlign expects at least one bin and a sampling_ratio of 0 or more, got {self.output_height} x "
                f"{self.output_width} bins and {self.sampling_ratio}."
            )
        check_dtype(self.name, batch_indices, (_INDEX,), "batch_indices")
        _check_regions(self.name, x, rois, 4)
        if batch_indices.shape != rois.shape[:1]:
            raise InputError(f"RoiAlign expects a batch index for each of {rois}, got {batch_indices}.")
        return (x.with_shape((rois.shape[0], x.shape[1], self.output_height, self.output_width)),)

    def compute(self, x: Array, rois: Array, batch_indices: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Sample region by region; half and bfloat16 in float, rounded once."""
        bins, acc = (self.output_height, self.output_width), accumulator(x.dtype)
        y = np.zeros((len(rois), x.shape[1], *bins), acc)
        is_half_pixel = self.coordinate_transformation_mode == "half_pixel"
        wide = x.astype(acc, copy=False)
        with np.errstate(all="ignore"):
            sides = rois.astype(acc) * acc.type(self.spatial_scale) - acc.type(0.5 if is_half_pixel else 0)
            for r, image in enumerate(_check_images(batch_indices, x.shape[0])):
                if x.size:
                    min_size = None if is_half_pixel else acc.type(1)
                    y[r] = align_region(wide[image], sides[r], bins, self.sampling_ratio, min_size, self.mode == "max")
            return (y.astype(x.dtype, copy=False),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a thread per bin and channel."""
        x, rois, images, y = *inputs, outputs[0]
        assert x is not None and rois is not None and images is not None and y is not None
        is_half_pixel = self.coordinate_transformation_mode == "half_pixel"
        flags = [int32(flag) for flag in (self.sampling_ratio, is_half_pixel, self.mode == "max")]
        slots = [x, emit.contiguous(rois), emit.contiguous(images), y]
        _launch(emit, "roi_align", x, y, [*slots, _pack_sizes(x, y), np.float64(self.spatial_scale), *flags])


@operator("MaxRoiPool")
@dataclass(frozen=True, slots=True)
class MaxRoiPool(Operator):
    """Maximum over each bin of a region; 0 for a bin without elements, and a NaN wins.

    A region ``rois[r]`` is (image, x, y, x end, y end), in whole elements after scaling; its ends are inside.
    """

    pooled_shape: tuple[int, ...]
    spatial_scale: float = 1.0
    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    example = "float32[1,1,4,4] float32[1,5] pooled_shape=(1,1)"
    flops_per_output = None
    keeps_dtype = True
    has_blits = False

    def infer(self, x: TensorSpec, rois: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return ``[regions, channels, *pooled_shape]``.

        Raises:
            InputError: Attributes, types or shapes do not fit.
        """
        if len(self.pooled_shape) != 2 or min(self.pooled_shape) < 1:
            raise InputError(f"MaxRoiPool expects a pooled_shape (height, width), got {list(self.pooled_shape)}.")
        _check_regions(self.name, x, rois, 5)
        return (x.with_shape((rois.shape[0], x.shape[1], *self.pooled_shape)),)

    def compute(self, x: Array, rois: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Compute maxima region by region."""
        acc = accumulator(x.dtype)
        y = np.zeros((len(rois), x.shape[1], *self.pooled_shape), acc)
        wide = x.astype(acc, copy=False)
        with np.errstate(all="ignore"):
            images = truncate(rois[:, 0].astype(acc), _INDEX)
            sides = round_coordinates(rois[:, 1:].astype(acc) * acc.type(self.spatial_scale))
            for r, image in enumerate(_check_images(images, x.shape[0])):
                y[r] = pool_region(wide[image], sides[r], self.pooled_shape)
            return (y.astype(x.dtype, copy=False),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a thread per bin and channel."""
        x, rois, y = *inputs, outputs[0]
        assert x is not None and rois is not None and y is not None
        arguments: list[Argument] = [x, emit.contiguous(rois), y, _pack_sizes(x, y), np.float64(self.spatial_scale)]
        _launch(emit, "max_roi_pool", x, y, arguments)


@upgrade("RoiAlign", below=16)
def _align_without_offset(node: RawNode) -> RawNode:
    """Set the coordinate mode of opset 15, without the offset of half an element."""
    return node.with_attributes(coordinate_transformation_mode="output_half_pixel")


def _check_regions(name: str, x: TensorSpec, rois: TensorSpec, numbers: int) -> None:
    check_dtype(name, x, FLOATS)
    if rois.dtype != x.dtype:
        raise InputError(f"{name} expects rois of the type of its input {x}, got {rois}.")
    if x.rank != 4 or rois.rank != 2 or rois.shape[1] != numbers:
        raise InputError(
            f"{name} expects an input [batch, channels, height, width] and rois [regions, {numbers}], got {x} "
            f"and {rois}."
        )


def _check_images(images: Array, batch: int) -> list[int]:
    outside = (images < 0) | (images >= batch)
    if outside.any():
        raise InputError(f"a region is of image {int(images[outside][0])}, expected 0 to {batch - 1}.")
    return [int(image) for image in images]


def _pack_sizes(x: Slot, y: Slot) -> bytes:
    """Return the bytes of RoiSizes."""
    if prod(x.shape[2:]) >= _LIMIT:
        raise InputError(f"regions are taken of images of fewer than 2**31 elements on a device, got {x.spec}.")
    divisors = join_bytes(pack_fast_div64(max(1, extent)) for extent in y.shape[:0:-1])
    return pack_struct("<q", y.spec.size) + divisors + pack_struct("<7q", x.shape[0], *x.shape[2:], *x.strides)


def _launch(emit: Emitter, name: str, x: Slot, y: Slot, arguments: list[Argument]) -> None:
    kernel = Kernel(SOURCE, f"{name}<{dtype_row(x.dtype).cuda}>")
    blocks = max(1, ceil_div(y.spec.size, _THREADS))
    emit.launch(kernel, (blocks, 1, 1), (_THREADS, 1, 1), arguments, writes=[arguments.index(y)])
