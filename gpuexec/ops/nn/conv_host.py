"""Convolution in NumPy: im2col and a matrix product, in pieces that stay in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from gpuexec.ir.operator import Array
from gpuexec.ir.spec import accumulator
from gpuexec.ops.lib.windows import Windows, trailing

_PIECE = 1 << 18  # elements of patches laid out at a time (of sums kept in the cache: a quarter)


def convolve(x: Array, w: Array, bias: Array | None, windows: Windows, group: int, out: Array | None = None) -> Array:
    """Return ``[batch, out channels, windows...]``, in ``out`` where it is dense and of the accumulator's type."""
    dtype, acc = x.dtype, accumulator(x.dtype)
    shape = (x.shape[0], w.shape[0], *windows.counts)
    with np.errstate(all="ignore"):
        x, w = x.astype(acc, copy=False), np.ascontiguousarray(w, acc)
        y = out if out is not None and out.dtype == acc and out.flags.c_contiguous else np.empty(shape, acc)
        if w.shape[1] == 1 and w.shape[0] <= 2 * group:
            _depthwise(x, w, windows, group, y)
        elif _is_pointwise(windows):
            columns = np.ascontiguousarray(x).reshape(x.shape[0], group, w.shape[1], prod(windows.counts))
            np.matmul(
                _by_group(w, group),
                columns,
                out=y.reshape(x.shape[0], group, w.shape[0] // group, -1) if y.size else None,
            )
        elif y.size:
            _by_patches(x, w, windows, group, y)
        if bias is not None:
            y += bias.astype(acc, copy=False).reshape(-1, *(1,) * len(windows.counts))
        return y.astype(dtype, copy=False)


def convolve_transposed(x: Array, w: Array, bias: Array | None, windows: Windows, group: int) -> Array:
    """Return ``[batch, out channels, extents...]``; the windows lie over the result, one per position of ``x``."""
    dtype, acc = x.dtype, accumulator(x.dtype)
    batch, ins, outs = x.shape[0], x.shape[1] // group, w.shape[1]
    y = np.zeros((batch, group, outs, *windows.extents), acc)
    with np.errstate(all="ignore"):
        weights = w.astype(acc, copy=False).reshape(group, ins, outs, windows.taps)
        columns = np.ascontiguousarray(x, acc).reshape(batch, group, ins, prod(windows.counts))
        for tap, positions, reached in windows.seen():
            products = np.matmul(weights[..., tap].transpose(0, 2, 1), columns)
            y[trailing(reached)] += products.reshape(batch, group, outs, *windows.counts)[trailing(positions)]
        y = y.reshape(batch, group * outs, *windows.extents)
        if bias is not None:
            y += bias.astype(acc, copy=False).reshape(-1, *(1,) * len(windows.extents))
        return y.astype(dtype, copy=False)


def _is_pointwise(windows: Windows) -> bool:
    steps = all(stride == 1 or count <= 1 for stride, count in zip(windows.strides, windows.counts))
    return windows.taps == 1 and windows.extents == windows.counts and steps and not any(windows.begins)


def _by_group(w: Array, group: int) -> Array:
    return w.reshape(group, w.shape[0] // group, prod(w.shape[1:]))


def _depthwise(x: Array, w: Array, windows: Windows, group: int, y: Array) -> None:
    """Add the taps one after the other, over so few channels at a time that their sums stay in the cache."""
    multiple = w.shape[0] // group
    weights = w.reshape(1, group, multiple, windows.taps, *(1,) * len(windows.counts))
    planes = y.reshape(y.shape[0], group, multiple, *windows.counts)
    step = max(1, (_PIECE >> 2) // max(1, multiple * prod(windows.counts)))
    scratch = np.empty((1, min(step, group), multiple, *windows.counts), y.dtype)
    for n in range(y.shape[0]):
        for first in range(0, group, step):
            part = slice(first, min(first + step, group))
            sums = planes[n : n + 1, part]
            sums[...] = 0
            source = x[n : n + 1, part, None]
            for tap, positions, seen in windows.seen():
                product = scratch[(slice(None), slice(0, part.stop - part.start), slice(None), *positions)]
                np.multiply(source[trailing(seen)], weights[:, part, :, tap], out=product)
                sums[trailing(positions)] += product


def _by_patches(x: Array, w: Array, windows: Windows, group: int, y: Array) -> None:
    """Multiply the weights by patches laid out as columns, a few images or a few rows of windows at a time."""
    batch, rank = x.shape[0], len(windows.counts)
    ins, outs = w.shape[1], w.shape[0] // group
    weights = _by_group(w, group)
    patches = _patches(_padded(x, windows), windows, group)  # [batch, group, ins, taps..., windows...]
    planes = y.reshape(batch, group, outs, windows.counts[0], -1)
    for images, rows in _pieces(batch, windows, group * ins * windows.taps):
        part = patches[images][trailing((rows, *(slice(None),) * (rank - 1)))]
        columns = part.reshape(part.shape[0], group, ins * windows.taps, prod(part.shape[3 + rank :]))
        target = planes[images, :, :, rows]
        np.matmul(weights, columns, out=target.reshape(*target.shape[:3], -1))


def _pieces(batch: int, windows: Windows, inner: int) -> Iterator[tuple[slice, slice]]:
    """Yield images and rows of windows whose patches fit a piece: several whole images, or rows of one."""
    row = inner * prod(windows.counts[1:])
    rows = windows.counts[0]
    if row * rows <= _PIECE:
        step = max(1, _PIECE // max(1, row * rows))
        yield from ((slice(first, first + step), slice(None)) for first in range(0, batch, step))
        return
    step = -(-rows // -(-(row * rows) // _PIECE))  # equal pieces
    for image in range(batch):
        yield from ((slice(image, image + 1), slice(first, first + step)) for first in range(0, rows, step))


def _padded(x: Array, windows: Windows) -> Array:
    """Return the input with zeros around it, so that every tap of every window lies inside."""
    lasts = [
        (count - 1) * stride + (kernel - 1) * dilation + 1
        for count, stride, kernel, dilation in zip(windows.counts, windows.strides, windows.kernel, windows.dilations)
    ]
    if not any(windows.begins) and all(last <= extent for last, extent in zip(lasts, windows.extents)):
        return x
    extents = [max(last, begin + extent) for last, begin, extent in zip(lasts, windows.begins, windows.extents)]
    padded = np.zeros((*x.shape[:2], *extents), x.dtype)
    padded[trailing(slice(begin, begin + extent) for begin, extent in zip(windows.begins, windows.extents))] = x
    return padded


def _patches(x: Array, windows: Windows, group: int) -> Array:
    """Return a view ``[batch, group, group channels, taps..., windows...]`` of a padded input."""
    ins = x.shape[1] // group
    batch_step, channel_step, *steps = x.strides
    by_tap = [step * dilation for step, dilation in zip(steps, windows.dilations)]
    by_window = [step * stride for step, stride in zip(steps, windows.strides)]
    return np.lib.stride_tricks.as_strided(
        x,
        (x.shape[0], group, ins, *windows.kernel, *windows.counts),
        (batch_step, channel_step * ins, channel_step, *by_tap, *by_window),
        writeable=False,
    )
