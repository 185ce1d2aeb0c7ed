"""RoiAlign and MaxRoiPool in NumPy, step by step as in ``roi.cu``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.ir.operator import Array
from gpuexec.ops.elementwise.elementwise_cast import truncate

_INDEX = np.dtype(np.int64)


@dataclass(frozen=True, slots=True)
class _Samples:
    """The samples of all bins along one axis, ``[bins, samples]``.

    ``count`` is how many a bin has; those far outside the image are left out, but for two so that a maximum sees them.
    Where there is no sample ``is_there`` is False, where it lies beyond the image ``is_inside`` is.
    """

    count: int
    is_there: Array
    is_inside: Array
    low: Array
    high: Array
    low_weight: Array
    high_weight: Array


def align_region(
    image: Array, sides: Array, bins: tuple[int, int], ratio: int, min_size: Any, takes_max: bool
) -> Array:
    """Return mean or maximum of the samples in each bin.

    Args:
        image: ``[channels, height, width]`` in the type to compute in.
        sides: (x, y, x end, y end) in elements.
        bins: Rows and columns of bins.
        ratio: Samples of a bin along an axis; 0: as many as keep them at most an element apart.
        min_size: Least size of a region, to which smaller ones are stretched, or None.
        takes_max: Whether the greatest weighed element is asked for.

    Returns:
        ``[channels, *bins]``.
    """
    rows = _find_samples(sides[1], sides[3], bins[0], image.shape[1], ratio, min_size)
    columns = _find_samples(sides[0], sides[2], bins[1], image.shape[2], ratio, min_size)
    result = np.zeros((image.shape[0], *bins), image.dtype)
    is_first = np.ones(bins, np.bool_)
    zero = image.dtype.type(0)
    for i in range(rows.low.shape[1]):
        for j in range(columns.low.shape[1]):
            parts = [
                (own[:, i, None] * other[:, j]) * image[:, at[:, i, None], beside[:, j]]
                for own, at in ((rows.low_weight, rows.low), (rows.high_weight, rows.high))
                for other, beside in ((columns.low_weight, columns.low), (columns.high_weight, columns.high))
            ]
            is_there = rows.is_there[:, i, None] & columns.is_there[:, j]
            is_inside = rows.is_inside[:, i, None] & columns.is_inside[:, j]
            if takes_max:
                sample = np.where(is_inside, np.maximum.reduce(parts), zero)
                better = np.where(is_first, sample, np.maximum(sample, result))
                result = np.where(is_there, better, result)
                is_first = is_first & ~is_there
            else:
                sample = parts[0] + parts[1] + parts[2] + parts[3]
                result += np.where(is_inside & is_there, sample, zero)
    count = image.dtype.type(rows.count) * image.dtype.type(columns.count)
    return result if takes_max or not count > 0 else np.asarray(result / count)


def pool_region(image: Array, sides: Array, bins: tuple[int, ...]) -> Array:
    """Return the maximum of each bin, ``[channels, *bins]``: first along rows, then along columns; 0 of nothing."""
    rows = _find_bounds(int(sides[1]), int(sides[3]), bins[0], image.shape[1], image.dtype)
    columns = _find_bounds(int(sides[0]), int(sides[2]), bins[1], image.shape[2], image.dtype)
    result = np.zeros((image.shape[0], *bins), image.dtype)
    for i, (top, bottom) in enumerate(rows):
        if bottom <= top:
            continue
        highest = image[:, top:bottom].max(axis=1)
        for j, (left, right) in enumerate(columns):
            if right > left:
                result[:, i, j] = highest[:, left:right].max(axis=1)
    return result


def round_coordinates(x: Array) -> Array:
    """Return the nearest integers, half way from zero, within 2**30 either way; NaN gives 0."""
    limit = x.dtype.type(1 << 30)
    x = np.where(np.isnan(x), x.dtype.type(0), np.clip(x, -limit, limit))
    whole = np.trunc(x)
    half = x.dtype.type(0.5)
    return np.asarray(whole.astype(_INDEX) + (x - whole >= half) - (whole - x >= half))


def _find_samples(start: Any, end: Any, bins: int, extent: int, ratio: int, min_size: Any) -> _Samples:
    kind = start.dtype.type
    size = end - start
    if min_size is not None:
        size = size if size > min_size else min_size
    bin_size = size / kind(bins)
    starts = start + np.arange(bins).astype(kind) * bin_size
    count = ratio if ratio > 0 else max(0, int(truncate(np.ceil(bin_size), _INDEX)))
    divisor = kind(max(1, count))
    pitch = bin_size / divisor
    first, stop = np.zeros(bins, _INDEX), np.full(bins, count, _INDEX)
    if pitch > 0:
        first = np.clip(truncate((kind(-1) - starts) / pitch - kind(2), _INDEX), 0, count)
        stop = np.clip(truncate((kind(extent) - starts) / pitch + kind(2), _INDEX), first, count)
    stop = np.where(np.isnan(starts) | np.isnan(pitch), first, stop)
    numbers = first[:, None] + np.arange(int((stop - first).max()))
    x = starts[:, None] + (numbers.astype(kind) + kind(0.5)) * bin_size / kind(count)
    is_inside = (x >= kind(-1)) & (x <= kind(extent))
    x = np.where(is_inside & (x > 0), x, kind(0))
    low = np.minimum(x.astype(_INDEX), extent - 1)
    high = np.minimum(low + 1, extent - 1)
    x = np.where(low == extent - 1, low.astype(kind), x)
    high_weight = x - low.astype(kind)
    return _Samples(
        count,
        numbers < stop[:, None],
        is_inside,
        low,
        high,
        kind(1) - high_weight,
        high_weight,
    )


def _find_bounds(start: int, end: int, bins: int, extent: int, dtype: np.dtype[Any]) -> list[tuple[int, int]]:
    """Return the elements of each bin along an axis: from, and to before."""
    pitch = dtype.type(max(end - start + 1, 1)) / dtype.type(bins)
    bounds = []
    for bin in range(bins):
        low = int(np.floor(dtype.type(bin) * pitch)) + start
        high = int(np.ceil(dtype.type(bin + 1) * pitch)) + start
        bounds.append((min(max(low, 0), extent), min(max(high, 0), extent)))
    return bounds
