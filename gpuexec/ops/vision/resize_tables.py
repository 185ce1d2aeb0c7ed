"""Interpolation tables of Resize: positions and weights per axis, computed on the host in double.

Every coordinate rule of the operator ends here, so that the kernels and the NumPy loops know only tables and give the
same bits. A table has a row per output position: the input positions it reads (clamped to the input) and their weights.
A row of positions -1 stands outside the input and takes the extrapolation value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.operator import Array


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling attributes of Resize along an axis."""

    mode: str
    coordinates: str
    nearest_mode: str
    cubic_coeff_a: float
    antialias: bool
    exclude_outside: bool


@dataclass(frozen=True, slots=True)
class ResizedAxis:
    """Resizing of one axis: input and output extent, scale as the model gives it, and the region of interest."""

    axis: int
    extent: int
    count: int
    scale: float
    roi: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True, slots=True)
class AxisTable:
    """Positions ``[count, taps]`` as int32, and weights ``[count, taps]`` in double (None: one tap, taken as it is)."""

    axis: int
    positions: Array
    weights: Array | None

    @property
    def taps(self) -> int:
        """Number of input positions that an output position reads."""
        return int(self.positions.shape[1])


Mapping = Callable[[Array, ResizedAxis], Array]


def make_table(sampling: Sampling, resized: ResizedAxis) -> AxisTable:
    """Return the table of one axis.

    Raises:
        InputError: A mode is unknown.
    """
    mapping = COORDINATES.get(sampling.coordinates)
    if mapping is None:
        raise InputError(
            f"Resize expects coordinate_transformation_mode among {', '.join(COORDINATES)}, "
            f"got {sampling.coordinates!r}."
        )
    with np.errstate(all="ignore"):
        x = mapping(np.arange(resized.count, dtype=np.float64), resized)
    outside = np.zeros(resized.count, np.bool_)
    if sampling.coordinates == "tf_crop_and_resize":
        outside = (x < 0) | (x > resized.extent - 1)
    if sampling.mode == "nearest":
        positions, weights = _round_nearest(x, sampling.nearest_mode, resized.scale)[:, None], None
    else:
        positions, weights = _interpolate(x, sampling, resized)
    positions = np.where(outside[:, None], -1, np.clip(positions, 0, resized.extent - 1))
    return AxisTable(resized.axis, positions.astype(np.int32), weights)


def _half_pixel(y: Array, a: ResizedAxis) -> Array:
    return np.asarray((y + 0.5) / a.scale - 0.5)


def _half_pixel_symmetric(y: Array, a: ResizedAxis) -> Array:
    if not a.extent:
        return y  # of no output
    # The output that would have a fractional length is centred on the input.
    return np.asarray(a.extent / 2 * (1 - a.count / (a.scale * a.extent)) + _half_pixel(y, a))


def _pytorch_half_pixel(y: Array, a: ResizedAxis) -> Array:
    return np.zeros_like(y) if a.count == 1 else _half_pixel(y, a)


def _align_corners(y: Array, a: ResizedAxis) -> Array:
    # NOTE: the output length is scale * extent, which may be fractional, as ONNX's cases have it: `Resize` says which.
    length = a.scale * a.extent
    return np.zeros_like(y) if length == 1 else np.asarray(y * (a.extent - 1) / (length - 1))


def _asymmetric(y: Array, a: ResizedAxis) -> Array:
    return np.asarray(y / a.scale)


def _tf_crop_and_resize(y: Array, a: ResizedAxis) -> Array:
    start, end = a.roi
    within = np.full_like(y, (end - start) * (a.extent - 1) / 2)
    if a.count != 1:
        within = y * (end - start) * (a.extent - 1) / (a.count - 1)
    return np.asarray(within + start * (a.extent - 1))


def _tf_half_pixel_for_nn(y: Array, a: ResizedAxis) -> Array:
    return np.asarray((y + 0.5) / a.scale)


# From an output's index to the coordinate in the input.
COORDINATES: dict[str, Mapping] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "align_corners": _align_corners,
    "asymmetric": _asymmetric,
    "tf_crop_and_resize": _tf_crop_and_resize,
    "tf_half_pixel_for_nn": _tf_half_pixel_for_nn,  # opset 11 and 12 only
}


def _round_nearest(x: Array, nearest_mode: str, scale: float) -> Array:
    below = np.floor(x)
    if nearest_mode == "simple":  # opset 10 and Upsample: the one before when enlarging, the one after when reducing
        nearest_mode = "ceil" if scale < 1 else "floor"
    if nearest_mode == "floor":
        return below
    if nearest_mode == "ceil":
        return np.ceil(x)
    if nearest_mode == "round_prefer_floor":
        return np.where(x - below <= 0.5, below, below + 1)
    if nearest_mode == "round_prefer_ceil":
        return np.where(x - below < 0.5, below, below + 1)
    raise InputError(
        f"Resize expects nearest_mode round_prefer_floor, round_prefer_ceil, floor or ceil, got {nearest_mode!r}."
    )


def _interpolate(x: Array, sampling: Sampling, resized: ResizedAxis) -> tuple[Array, Array]:
    """Return positions (not clamped) and weights. The base is the next integer below x: 0 < x - base <= 1."""
    base = np.ceil(x) - 1
    reach = 1 if sampling.mode == "linear" else 2
    stretch = min(resized.scale, 1.0) if sampling.antialias else 1.0
    first = int(np.floor(-reach / stretch)) + 1
    offsets = np.arange(first, 2 - first)
    distance = np.abs((offsets - (x - base)[:, None]) * stretch)
    weights = np.clip(1 - distance, 0, 1) if sampling.mode == "linear" else _cubic(distance, sampling.cubic_coeff_a)
    if sampling.antialias:
        weights = weights / weights.sum(axis=1, keepdims=True)
    positions = base[:, None] + offsets
    if sampling.exclude_outside:
        weights = np.where((positions < 0) | (positions >= resized.extent), 0.0, weights)
        total = weights.sum(axis=1, keepdims=True)
        weights = weights / np.where(total == 0, 1.0, total)
    return positions, weights


def _cubic(distance: Array, a: float) -> Array:
    """Keys' convolution kernel with parameter ``a``."""
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
