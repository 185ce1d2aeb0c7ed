"""Conversion of image bytes to tensors and back: channel order, resizing, scaling, in one launch.

Not of ONNX. `gpuexec.execution.images` builds them from what users say; see there for what the attributes stand for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import pack_struct
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.strided import pack_fast_div64
from gpuexec.ops.vision.resize_tables import AxisTable, ResizedAxis, Sampling, make_table

PIXELS = tuple(np.dtype(name) for name in ("uint8", "uint16", "float32"))
NUMBERS = tuple(np.dtype(name) for name in ("float32", "float16"))
MAX_CHANNELS = 16  # kMaxChannels of image.cu
LAYOUTS = ("NCHW", "NHWC")
ORIGINS = ("top_left", "bottom_left")
_IMAGE = "HWC"
_THREADS = 256
_LIMIT = 2**29  # entries of both tables, so that all of them fit 31 bits

instantiate(
    "image.cu",
    [
        f"transform_image<{dtype_row(source).cuda}, {dtype_row(target).cuda}>"
        for source, target in dict.fromkeys(
            [(p, n) for p in PIXELS for n in NUMBERS] + [(n, p) for n in NUMBERS for p in PIXELS]
        )
    ],
)


@dataclass(frozen=True, slots=True)
class _Transform(Operator):
    """Base of the two conversions.

    Attributes:
        size: Height and width of the result, sampled linearly at pixel centres; empty: as they are.
        channels: For each channel of the result the one it is taken from; -1: it is ``fill``. Empty: as they are.
        scale: One number, or one for each channel of the result; so are ``bias`` and ``fill``.
        layout: Of the tensor.
        origin: ``"bottom_left"``: the tensor's first row is the image's last.
        antialias: Shrink with a filter as wide as the pixels of the result.
        to: Element type of the result, by its ONNX code.
    """

    size: tuple[int, ...] = ()
    channels: tuple[int, ...] = ()
    scale: tuple[float, ...] = (1.0,)
    bias: tuple[float, ...] = (0.0,)
    fill: tuple[float, ...] = (0.0,)
    layout: str = "NCHW"
    origin: str = "top_left"
    antialias: int = 0
    to: int = 1
    tolerance = Tolerance.EXACT
    flops_per_output = None
    has_blits = True


@operator("ImageToTensor", "gpuexec")
@dataclass(frozen=True, slots=True)
class ImageToTensor(_Transform):
    """Image ``[h, w]``, ``[h, w, c]`` or ``[n, h, w, c]`` to a tensor of four axes: x * scale + bias."""

    def infer(self, image: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the tensor's spec.

        Raises:
            InputError: The image is of another type or rank, or an attribute does not fit it.
        """
        check_dtype("ImageToTensor", image, PIXELS, "image")
        if not 2 <= image.rank <= 4:
            raise InputError(f"ImageToTensor expects an image [h, w], [h, w, c] or [n, h, w, c], got {image}.")
        shape = _check(self, image, _to_nhwc(image.shape, _IMAGE, 1), NUMBERS)
        return (TensorSpec(_from_nhwc(shape, self.layout), dtype_row(self.to).numpy),)

    def compute(self, image: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Blend the columns, then the rows, in float; scale, and round once."""
        return (_arrange(_transform(self, _view(image, _IMAGE)), self.layout),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch one thread per pixel of the result; the image is read where it lies, by its strides."""
        _launch(self, emit, inputs, outputs, _IMAGE, self.layout)


@operator("TensorToImage", "gpuexec")
@dataclass(frozen=True, slots=True)
class TensorToImage(_Transform):
    """Tensor of three axes (an image) or four (a batch) to ``[h, w, c]`` or ``[n, h, w, c]``: x * scale + bias.

    Integers are rounded to nearest even and saturate; NaN gives 0. ``layout`` is that of the tensor, with the batch or
    without.
    """

    to: int = 2

    def infer(self, tensor: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the image's spec.

        Raises:
            InputError: The tensor is of another type or rank, or an attribute does not fit it.
        """
        check_dtype("TensorToImage", tensor, NUMBERS, "tensor")
        if self.layout not in LAYOUTS or not 3 <= tensor.rank <= 4:
            raise InputError(
                f"TensorToImage expects a tensor of three or four axes and layout among {', '.join(LAYOUTS)}, got "
                f"{tensor} and {self.layout!r}."
            )
        shape = _check(self, tensor, _to_nhwc(tensor.shape, self.layout, 1), PIXELS)
        return (TensorSpec(shape[4 - tensor.rank :], dtype_row(self.to).numpy),)

    def compute(self, tensor: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Blend the columns, then the rows, in float; scale, and round once."""
        image = _transform(self, _view(tensor, self.layout))
        return (image if tensor.ndim == 4 else image[0],)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch one thread per pixel of the result; the tensor is read where it lies, by its strides."""
        _launch(self, emit, inputs, outputs, self.layout, _IMAGE)


def _to_nhwc(dims: Sequence[int], layout: str, alone: int) -> tuple[int, ...]:
    """Return extents or strides in the order [n, h, w, c]; ``alone`` fills in for a missing axis."""
    if layout == "NCHW":
        channels, height, width = dims[-3:]
        return (*(dims[:-3] or (alone,)), height, width, channels)
    if len(dims) == 2:
        return (alone, *dims, alone)
    return (*((alone,) if len(dims) == 3 else ()), *dims)


def _from_nhwc(dims: Sequence[int], layout: str) -> tuple[int, ...]:
    return (dims[0], dims[3], dims[1], dims[2]) if layout == "NCHW" else tuple(dims)


def _view(x: Array, layout: str) -> Array:
    """Return the array in the order [n, h, w, c]."""
    if x.ndim == 2:
        return x[None, :, :, None]
    batch = x if x.ndim == 4 else x[None]
    return batch.transpose(0, 2, 3, 1) if layout == "NCHW" else batch


def _arrange(y: Array, layout: str) -> Array:
    return y.transpose(0, 3, 1, 2) if layout == "NCHW" else y


def _check(
    op: _Transform, given: TensorSpec, shape: Sequence[int], targets: Sequence[np.dtype[Any]]
) -> tuple[int, ...]:
    """Return the result's extents [n, h, w, c].

    Raises:
        InputError: An attribute does not fit; names it, expected and got.
    """
    kind = type(op).__name__
    batch, height, width, channels = shape
    if dtype_row(op.to).numpy not in targets:
        names = ", ".join(dtype_row(dtype).name for dtype in targets)
        raise InputError(f"{kind} gives {names}, got to={dtype_row(op.to).name}.")
    if op.layout not in LAYOUTS or op.origin not in ORIGINS:
        raise InputError(
            f"{kind} expects layout among {', '.join(LAYOUTS)} and origin among {', '.join(ORIGINS)}, got "
            f"{op.layout!r} and {op.origin!r}."
        )
    if op.size and (len(op.size) != 2 or min(op.size) < 1):
        raise InputError(f"{kind} expects a size of height and width, 1 or more, got {list(op.size)}.")
    if op.size and 0 in (height, width) and tuple(op.size) != (height, width):
        raise InputError(f"{kind} expects pixels to resize to {list(op.size)}, got {given}.")
    strange = [source for source in op.channels if not -1 <= source < channels]
    if strange:
        raise InputError(f"{kind} takes channel {strange[0]}, got {given}, which has {channels} channels.")
    count = len(op.channels) or channels
    if count > MAX_CHANNELS:
        raise InputError(f"{kind} expects at most {MAX_CHANNELS} channels, got {count}.")
    for role in ("scale", "bias", "fill"):
        if len(getattr(op, role)) not in (1, count):
            raise InputError(
                f"{kind} expects one {role}, or one for each of {count} channels, got {getattr(op, role)}."
            )
    return (batch, *(op.size or (height, width)), count)


def _make_table(op: _Transform, axis: int, extent: int, count: int) -> AxisTable:
    """Return where an axis is sampled; weights are there even where positions are taken as they are."""
    if extent == count:
        positions, weights = np.arange(count, dtype=np.int32)[:, None], np.ones((count, 1))
    else:
        sampling = Sampling("linear", "half_pixel", "floor", -0.75, bool(op.antialias), False)
        table = make_table(sampling, ResizedAxis(axis, extent, count, count / extent))
        assert table.weights is not None
        positions, weights = table.positions, table.weights
    if axis == 1 and op.origin == "bottom_left":
        positions, weights = positions[::-1], weights[::-1]
    return AxisTable(axis, positions, weights.astype(np.float32))


def _spread(numbers: Sequence[float], count: int) -> Array:
    return np.broadcast_to(np.asarray(numbers, np.float64).astype(np.float32), (count,))


def _transform(op: _Transform, pixels: Array) -> Array:
    """Return converted pixels [n, h, w, c], in the same order."""
    batch, height, width, channels = pixels.shape
    sources = np.asarray(op.channels or range(channels), np.int64)
    rows, columns = op.size or (height, width)
    if not batch * rows * columns * sources.size:
        return np.zeros((batch, rows, columns, sources.size), dtype_row(op.to).numpy)
    y = pixels[..., np.maximum(sources, 0)].astype(np.float32)
    with np.errstate(all="ignore"):
        for table in (_make_table(op, 2, width, columns), _make_table(op, 1, height, rows)):
            y = _blend(y, table)
        y *= _spread(op.scale, sources.size)
        y += _spread(op.bias, sources.size)
        y = np.where(sources < 0, _spread(op.fill, sources.size), y)
        return _finish(y, dtype_row(op.to).numpy)


def _blend(x: Array, table: AxisTable) -> Array:
    """Return the weighted sum of the taps along an axis, tap by tap as the kernel adds them."""
    assert table.weights is not None
    weights = table.weights.reshape(*table.weights.shape, *(1,) * (x.ndim - 1 - table.axis))
    y = np.take(x, table.positions[:, 0], axis=table.axis) * weights[:, 0]
    for tap in range(1, table.taps):
        y += np.take(x, table.positions[:, tap], axis=table.axis) * weights[:, tap]
    return np.asarray(y)


def _finish(y: Array, dtype: np.dtype[Any]) -> Array:
    if dtype.kind != "u":
        return y.astype(dtype)
    rounded = np.rint(np.nan_to_num(y, nan=0.0, posinf=np.inf, neginf=-np.inf))
    return np.asarray(np.clip(rounded, 0, np.iinfo(dtype).max)).astype(dtype)


def _launch(op: _Transform, emit: Emitter, inputs: Slots, outputs: Slots, given: str, made: str) -> None:
    x, y = inputs[0], outputs[0]
    assert x is not None and y is not None
    if y.spec.size == 0:
        return
    shape, result = _to_nhwc(x.shape, given, 1), _to_nhwc(y.shape, made, 1)
    rows, columns = _make_table(op, 1, shape[1], result[1]), _make_table(op, 2, shape[2], result[2])
    assert rows.weights is not None and columns.weights is not None
    if rows.positions.size + columns.positions.size >= _LIMIT:
        raise InputError(f"{type(op).__name__} expects tables below 2**29 on a device, got {op} for {x}.")
    pixels = result[0] * result[1] * result[2]
    walk = pack_struct("<q", pixels) + pack_fast_div64(result[2]) + pack_fast_div64(result[1])
    walk += pack_struct("<8q", *_to_nhwc(x.strides, given, 0), *_to_nhwc(y.strides, made, 0))
    walk += pack_struct("<4i", rows.taps, columns.taps, rows.positions.size, result[3])
    sources = np.asarray(op.channels or range(shape[3]), np.int32)
    for column in (sources, *(_spread(numbers, result[3]) for numbers in (op.scale, op.bias, op.fill))):
        walk += np.pad(column, (0, MAX_CHANNELS - int(result[3]))).tobytes()
    emit.launch(
        Kernel("image.cu", f"transform_image<{dtype_row(x.dtype).cuda}, {dtype_row(y.dtype).cuda}>"),
        (ceil_div(pixels, _THREADS), 1, 1),
        (_THREADS, 1, 1),
        [
            x,
            emit.constant(np.concatenate([rows.positions.ravel(), columns.positions.ravel()])),
            emit.constant(np.concatenate([rows.weights.ravel(), columns.weights.ravel()])),
            y,
            walk,
        ],
        writes=[3],
    )
