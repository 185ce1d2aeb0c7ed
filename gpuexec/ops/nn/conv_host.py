"""Convolution in NumPy: im2col and a matrix product, in pieces that stay in the cache.

Patches are columns of one image each, or, of a batch of small images, rows of several: there BLAS would lay the weights
out anew for each image, and what is copied for a patch would be short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.operator import Array
from gpuexec.ir.prepared_calls import has_scratch, view_bytes
from gpuexec.ir.spec import accumulator
from gpuexec.ops.lib.shared_products import SHARED, matmul, prepare_matmul
from gpuexec.ops.lib.windows import Windows, trailing
from gpuexec.system.threads import share_work

KEPT_NBYTES = 1 << 14  # of a weight that prepared calls keep laid out or widened: no larger than a table
_PIECE = 1 << 18  # elements of patches laid out at a time (of sums kept in the cache: a quarter)
_MOST_TOGETHER = 4  # pieces laid out at a time, by as many threads
_LEAST_PLACES = 96  # windows of such a piece: BLAS lays the weights out anew for each
# Of a batch whose patches are rows: windows of an image at most, rows of a product at least, channels at least.
_FEW_PLACES, _LEAST_ROWS, _LEAST_CHANNELS = 256, 128, 8
_SMALL = 1 << 12  # elements of a padded input that are filled with zeros in one call, borders or not
_MOST_CALLS = 1 << 11  # beyond, the calls of a convolution take more memory than they are worth
_Calls = list[Callable[[], object]]


def convolve(x: Array, w: Array, bias: Array | None, windows: Windows, group: int, out: Array | None = None) -> Array:
    """Return ``[batch, out channels, windows...]``, in ``out`` where it is dense and of the accumulator's type."""
    dtype, acc = x.dtype, accumulator(x.dtype)
    shape = (x.shape[0], w.shape[0], *windows.counts)
    with np.errstate(all="ignore"):
        x, w = x.astype(acc, copy=False), np.ascontiguousarray(w, acc)
        y = out if out is not None and out.dtype == acc and out.flags.c_contiguous else np.empty(shape, acc)
        if _is_depthwise(w.shape, group):
            _depthwise(x, w, windows, group, y)
        elif _is_pointwise(windows):
            columns = np.ascontiguousarray(x).reshape(x.shape[0], group, w.shape[1], prod(windows.counts))
            if y.size:
                matmul(_by_group(w, group), columns, y.reshape(x.shape[0], group, w.shape[0] // group, -1))
        elif _is_by_rows(x.shape, w.shape, windows, group):
            sizes = count_convolution(x.shape, w.shape, windows, group, y.itemsize)
            for call in _prepare_rows(x, w, windows, y, [np.empty(nbytes, np.uint8) for nbytes in sizes]):
                call()
        elif y.size:
            _by_patches(x, w, windows, group, y)
        if bias is not None:
            y += bias.astype(acc, copy=False).reshape(-1, *(1,) * len(windows.counts))
        return y.astype(dtype, copy=False)


def count_convolution(
    x_shape: Sequence[int], w_shape: Sequence[int], windows: Windows, group: int, itemsize: int
) -> tuple[int, ...]:
    """Return the bytes of each array that the calls of `prepare_convolution` work in; no fewer for larger inputs."""
    if _is_depthwise(w_shape, group):
        multiple = w_shape[0] // max(1, group)
        channel, plane = multiple * prod(windows.counts), _count_flat(windows, multiple)
        return (itemsize * min(group * max(channel, plane), max(_PIECE >> 2, channel)),)
    if _is_pointwise(windows):
        return ()
    row = x_shape[1] * windows.taps * prod(windows.counts[1:])
    whole = x_shape[0] * row * windows.counts[0]
    # Pieces are of one size but for the last, so those at a time take less than twice what all patches do.
    patches = itemsize * (whole if whole <= _choose_piece(x_shape[1] * windows.taps) else min(2 * whole, _PIECE + row))
    extents = _pad_extents(windows)
    padded = itemsize * prod((*x_shape[:2], *(extents or windows.extents)))
    if group == 1 and x_shape[0] > 1 and x_shape[1] >= _LEAST_CHANNELS:  # whatever smaller sizes may be by rows
        rows = ceil_div(patches, x_shape[1] * windows.taps)
        return (patches, padded, itemsize * prod(w_shape), rows * w_shape[0])
    return (patches,) if extents is None else (patches, padded)


def prepare_convolution(
    x: Array,
    w: Array,
    bias: Array | None,
    windows: Windows,
    group: int,
    y: Array,
    scratch: Sequence[Array],
    *,
    is_finite: bool = False,
) -> _Calls | None:
    """Return the calls that `convolve` makes, with what it allocates in scratch; None where it does more.

    Args:
        x: The input, in the type of the sums, as the weight and ``y``.
        w: The weight.
        bias: One number for each output channel, or None.
        windows: The windows over the input.
        group: Groups of channels.
        y: Where the result goes.
        scratch: Arrays of what `count_convolution` returned, or more.
        is_finite: Whether the weight always is finite, so that it may be multiplied by the zeros of padding too.
    """
    if not (x.dtype == w.dtype == y.dtype == accumulator(y.dtype)) or not (x.size and w.size and y.size):
        return None
    if not (w.flags.c_contiguous and y.flags.c_contiguous):
        return None
    if not has_scratch(scratch, count_convolution(x.shape, w.shape, windows, group, y.itemsize)):
        return None
    if _is_depthwise(w.shape, group):
        prepare = _prepare_flat if is_finite and _is_flat(w.shape, windows, group) else _prepare_depthwise
        calls = prepare(x, w, windows, group, y, scratch[0])
    elif _is_pointwise(windows):
        columns = x.reshape(x.shape[0], group, w.shape[1], prod(windows.counts))
        outputs = y.reshape(x.shape[0], group, w.shape[0] // group, -1)
        is_view = np.may_share_memory(columns, x)
        calls = [_prepare_product(_by_group(w, group), columns, outputs)] if is_view else []
    elif _is_by_rows(x.shape, w.shape, windows, group):
        calls = _prepare_rows(x, w, windows, y, scratch)
    else:
        calls = _prepare_patches(x, w, windows, group, y, scratch)
    if not calls or len(calls) > _MOST_CALLS:
        return None
    if bias is not None:
        calls.append(partial(np.add, y, bias.reshape(-1, *(1,) * len(windows.counts)), out=y))
    return calls


def convolve_transposed(x: Array, w: Array, bias: Array | None, windows: Windows, group: int) -> Array:
    """Return ``[batch, out channels, extents...]``; the windows lie over the result, one per position of ``x``."""
    dtype, acc = x.dtype, accumulator(x.dtype)
    batch, ins, outs = x.shape[0], x.shape[1] // group, w.shape[1]
    y = np.zeros((batch, group, outs, *windows.extents), acc)
    with np.errstate(all="ignore"):
        weights = w.astype(acc, copy=False).reshape(group, ins, outs, windows.taps)
        columns = np.ascontiguousarray(x, acc).reshape(batch, group, ins, prod(windows.counts))
        for tap, positions, reached in windows.seen():
            products = matmul(weights[..., tap].transpose(0, 2, 1), columns)
            y[trailing(reached)] += products.reshape(batch, group, outs, *windows.counts)[trailing(positions)]
        y = y.reshape(batch, group * outs, *windows.extents)
        if bias is not None:
            y += bias.astype(acc, copy=False).reshape(-1, *(1,) * len(windows.extents))
        return y.astype(dtype, copy=False)


def count_transposed_convolution(
    x_shape: Sequence[int], w_shape: Sequence[int], windows: Windows, group: int, itemsize: int
) -> tuple[int, int]:
    """Return the bytes that the calls of `prepare_transposed` work in: of the weights and the products of one tap."""
    outputs = x_shape[0] * group * w_shape[1] * prod(windows.counts)
    return itemsize * w_shape[0] * w_shape[1], itemsize * outputs


def prepare_transposed(
    x: Array,
    w: Array,
    bias: Array | None,
    windows: Windows,
    group: int,
    y: Array,
    scratch: Sequence[Array],
    *,
    is_constant: bool,
) -> _Calls | None:
    """Return the calls that `convolve_transposed` makes; None where it does more.

    Args:
        x: The input, in the type of the sums, as the weight and ``y``.
        w: The weight.
        bias: One number for each output channel, or None.
        windows: The windows over the output.
        group: Groups of channels.
        y: Where the result goes.
        scratch: Arrays of what `count_transposed_convolution` returned, or more.
        is_constant: Whether the weight never changes; it is laid out once then, where it is small.
    """
    if not (x.dtype == w.dtype == y.dtype == accumulator(y.dtype)) or not (x.size and w.size and y.size):
        return None
    sizes = count_transposed_convolution(x.shape, w.shape, windows, group, y.itemsize)
    if not (x.flags.c_contiguous and y.flags.c_contiguous and w.flags.c_contiguous) or not has_scratch(scratch, sizes):
        return None
    batch, ins, outs, rank = x.shape[0], x.shape[1] // group, w.shape[1], len(windows.counts)
    columns = x.reshape(batch, group, ins, -1)
    planes = y.reshape(batch, group, outs, *windows.extents)
    by_tap = w.reshape(group, ins, outs, windows.taps).transpose(3, 0, 1, 2)
    is_kept = is_constant and w.nbytes <= KEPT_NBYTES
    kept = np.ascontiguousarray(by_tap) if is_kept else None
    laid = view_bytes(scratch[0], (group, ins, outs), w.dtype)
    products = view_bytes(scratch[1], (batch, group, outs, prod(windows.counts)), y.dtype)
    placed = products.reshape(batch, group, outs, *windows.counts)
    calls: _Calls = [partial(y.fill, 0)]
    for tap, positions, reached in windows.seen():
        if kept is None:
            calls.append(partial(np.copyto, laid, by_tap[tap]))
        calls.append(_prepare_product((laid if kept is None else kept[tap]).transpose(0, 2, 1), columns, products))
        target = planes[trailing(reached)]
        calls.append(partial(np.add, target, placed[trailing(positions)], out=target))
    if bias is not None:
        calls.append(partial(np.add, y, bias.reshape(-1, *(1,) * rank), out=y))
    return calls


def _is_depthwise(w_shape: Sequence[int], group: int) -> bool:
    return w_shape[1] == 1 and w_shape[0] <= 2 * group


def _is_pointwise(windows: Windows) -> bool:
    steps = all(stride == 1 or count <= 1 for stride, count in zip(windows.strides, windows.counts))
    return windows.taps == 1 and windows.extents == windows.counts and steps and not any(windows.begins)


def _by_group(w: Array, group: int) -> Array:
    return w.reshape(group, w.shape[0] // group, prod(w.shape[1:]))


def _depthwise(x: Array, w: Array, windows: Windows, group: int, y: Array) -> None:
    """Add the taps one after the other, over so few channels at a time that their sums stay in the cache."""
    weights, planes, step = _split_depthwise(w, windows, group, y)
    scratch = np.empty((1, min(step, group), *planes.shape[2:]), y.dtype)
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


def _prepare_depthwise(x: Array, w: Array, windows: Windows, group: int, y: Array, scratch: Array) -> _Calls:
    """Return the calls of `_depthwise`."""
    weights, planes, step = _split_depthwise(w, windows, group, y)
    products = view_bytes(scratch, (1, min(step, group), *planes.shape[2:]), y.dtype)
    taps = list(windows.seen())
    calls: _Calls = []
    if 2 * len(taps) * y.shape[0] * -(-group // step) > _MOST_CALLS:
        return calls
    for n in range(y.shape[0]):
        for first in range(0, group, step):
            part = slice(first, min(first + step, group))
            sums, source = planes[n : n + 1, part], x[n : n + 1, part, None]
            calls.append(partial(sums.fill, 0))
            for tap, positions, seen in taps:
                product = products[(slice(None), slice(0, part.stop - part.start), slice(None), *positions)]
                target = sums[trailing(positions)]
                calls.append(partial(np.multiply, source[trailing(seen)], weights[:, part, :, tap], out=product))
                calls.append(partial(np.add, target, product, out=target))
    return calls


def _is_flat(w_shape: Sequence[int], windows: Windows, group: int) -> bool:
    """Return whether planes of a depthwise convolution are flat: there is more than one row, and rows are short."""
    return 0 < _count_flat(windows, w_shape[0] // group) <= _PIECE >> 2


def _count_flat(windows: Windows, multiple: int) -> int:
    """Return how many elements a flat plane takes: all phases of the input, sums, and products; 0 of a single row."""
    return (len(windows.counts) > 1) * (prod(windows.strides) + 2 * multiple) * prod(_find_flat_extents(windows))


def _find_flat_extents(windows: Windows) -> tuple[int, ...]:
    """Return the extents of a phase of the padded input: of all places that are strides apart from its first one."""
    extents = _pad_extents(windows) or windows.extents
    return tuple([ceil_div(extent, stride) for extent, stride in zip(extents, windows.strides)])


def _prepare_flat(x: Array, w: Array, windows: Windows, group: int, y: Array, scratch: Array) -> _Calls:
    """Return calls that make the sums of `_depthwise` for all places of a padded plane in one row.

    What a tap adds to a plane is a piece of the padded plane then, all of it in one loop. Sums between the windows are
    of no use. Places that a stride apart see are a plane of their own, a phase.
    """
    extents, multiple, dtype = _find_flat_extents(windows), w.shape[0] // group, y.dtype
    plane, steps = prod(extents), [prod(extents[axis + 1 :]) for axis in range(len(extents))]
    length = sum((count - 1) * step for count, step in zip(windows.counts, steps)) + 1
    together = min(group, (_PIECE >> 2) // _count_flat(windows, multiple))
    if 2 * windows.taps * x.shape[0] * -(-group // together) > _MOST_CALLS:
        return []
    padded = view_bytes(scratch, (together, *windows.strides, *extents), dtype)
    sums, products = view_bytes(scratch[padded.nbytes :], (2, together, multiple, length), dtype)
    windowed = np.lib.stride_tricks.as_strided(
        sums, (together, multiple, *windows.counts), (*sums.strides[:2], *[step * dtype.itemsize for step in steps])
    )
    phases = [_find_phase(windows, phase) for phase in np.ndindex(*windows.strides)]
    calls: _Calls = []
    if any(to.start or to.stop < extent for _, places, _ in phases for to, extent in zip(places, extents)):
        calls.append(partial(padded.fill, 0))
    rows, zero = padded.reshape(together, -1, 1, plane), np.array(0, dtype)
    weights, planes = w.reshape(group, multiple, -1, 1), y.reshape(y.shape[0], group, multiple, *windows.counts)
    taps = [_find_flat_tap(windows, steps, taps) for taps in np.ndindex(*windows.kernel)]
    for n in range(y.shape[0]):
        for first in range(0, group, together):
            count = min(together, group - first)
            part, own, product = slice(first, first + count), sums[:count], products[:count]
            for phase, places, source in phases:
                index: tuple[Any, ...] = (slice(count), *phase, *places)
                calls.append(partial(np.copyto, padded[index], x[n, part][trailing(source)]))
            for tap, (seen_phase, offset) in enumerate(taps):
                seen, weight = rows[:count, seen_phase, :, offset : offset + length], weights[part, :, tap]
                calls.append(partial(np.multiply, seen, weight, out=product))
                calls.append(partial(np.add, own if tap else product, product if tap else zero, out=own))
            calls.append(partial(np.copyto, planes[n, part], windowed[:count]))
    return calls


def _find_phase(
    windows: Windows, phase: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]:
    """Return a phase of the padded input, where in it the input lies, and which places of the input those are."""
    places, source = [], []
    for begin, extent, stride, shift in zip(windows.begins, windows.extents, windows.strides, phase):
        first = (shift - begin) % stride
        start = (first + begin) // stride
        count = len(range(first, extent, stride))
        places.append(slice(start, start + count))
        source.append(slice(first, extent, stride))
    return phase, tuple(places), tuple(source)


def _find_flat_tap(windows: Windows, steps: Sequence[int], taps: Sequence[int]) -> tuple[int, int]:
    """Return the number of the phase that a tap sees, and where in its plane it begins."""
    phase = offset = 0
    for tap, dilation, stride, step in zip(taps, windows.dilations, windows.strides, steps):
        phase = phase * stride + tap * dilation % stride
        offset += tap * dilation // stride * step
    return phase, offset


def _split_depthwise(w: Array, windows: Windows, group: int, y: Array) -> tuple[Array, Array, int]:
    """Return weights and outputs by channel, and how many channels are computed at a time."""
    multiple = w.shape[0] // group
    weights = w.reshape(1, group, multiple, windows.taps, *(1,) * len(windows.counts))
    planes = y.reshape(y.shape[0], group, multiple, *windows.counts)
    return weights, planes, max(1, (_PIECE >> 2) // max(1, multiple * prod(windows.counts)))


def _by_patches(x: Array, w: Array, windows: Windows, group: int, y: Array) -> None:
    """Multiply the weights by patches laid out as columns, a few images or a few rows of windows at a time."""
    weights, padded = _by_group(w, group), _padded(x, windows)
    for part, target in _list_products(padded, w.shape, windows, group, y):
        columns = part.reshape(*part.shape[:2], weights.shape[2], target.shape[3])
        matmul(weights, columns, target)


def _prepare_patches(x: Array, w: Array, windows: Windows, group: int, y: Array, scratch: Sequence[Array]) -> _Calls:
    """Return the calls of `_by_patches`."""
    weights, extents = _by_group(w, group), _pad_extents(windows)
    calls: _Calls = []
    if extents is not None:
        padded = view_bytes(scratch[1], (*x.shape[:2], *extents), x.dtype)
        inside = [slice(begin, begin + extent) for begin, extent in zip(windows.begins, windows.extents)]
        calls += [partial(border.fill, 0) for border in _list_borders(padded, inside)]
        calls.append(partial(np.copyto, padded[trailing(inside)], x))
        x = padded
    pieces = list(_list_products(x, w.shape, windows, group, y))
    together = _count_together(pieces, w)
    nbytes = max(part.size for part, _ in pieces) * x.itemsize
    lanes: list[_Calls] = [[] for _ in range(together)]
    for number, (part, target) in enumerate(pieces):
        lane = number % together
        patches = view_bytes(scratch[0][lane * nbytes :], part.shape, x.dtype)
        columns = patches.reshape(*part.shape[:2], weights.shape[2], target.shape[3])
        lanes[lane] += [partial(np.copyto, patches, part), _prepare_product(weights, columns, target)]
    return [*calls, *_share_lanes(lanes)]


def _is_by_rows(x_shape: Sequence[int], w_shape: Sequence[int], windows: Windows, group: int) -> bool:
    """Return whether patches are rows: of a batch of small images, of channels enough for a patch to be long pieces."""
    batch, places = x_shape[0], prod(windows.counts)
    if batch < 2 or group != 1 or places > _FEW_PLACES or w_shape[1] < _LEAST_CHANNELS or min(windows.begins) < 0:
        return False
    return w_shape[0] > 0 and places * _divide_rows(batch, w_shape, windows)[0] >= _LEAST_ROWS


def _divide_rows(batch: int, w_shape: Sequence[int], windows: Windows) -> tuple[int, int]:
    """Return how many images are multiplied together, and how many such parts are laid out at a time."""
    inner, places = w_shape[1] * windows.taps, prod(windows.counts)
    operations, room = 2 * batch * places * w_shape[0] * inner, _PIECE // max(1, inner * places)
    together = 1 if operations < SHARED else 2 if operations < 4 * SHARED else _MOST_TOGETHER
    each = min(room // together, ceil_div(batch, together))
    return each, min(together, ceil_div(batch, max(1, each)))


def _prepare_rows(x: Array, w: Array, windows: Windows, y: Array, scratch: Sequence[Array]) -> _Calls:
    """Return calls that lay out images channels last, then patches of several of them as rows, and multiply.

    Args:
        x: The input.
        w: The weight, of one group.
        windows: The windows over the input.
        y: Where the result goes.
        scratch: Arrays of what `count_convolution` returned.
    """
    (batch, channels), outs, rank = x.shape[:2], w.shape[0], len(windows.counts)
    last = (0, *range(2, rank + 2), 1)
    extents = _pad_extents(windows) or windows.extents
    padded = view_bytes(scratch[1], (batch, *extents, channels), x.dtype)
    inside = tuple([slice(begin, begin + extent) for begin, extent in zip(windows.begins, windows.extents)])
    image = padded[(slice(None), *inside)]
    calls: _Calls = [] if image.shape == padded.shape else [partial(padded.fill, 0)]
    weights = view_bytes(scratch[2], (outs, *windows.kernel, channels), x.dtype)
    calls += [partial(np.copyto, image, x.transpose(last)), partial(np.copyto, weights, w.transpose(last))]
    steps = padded.strides[1:-1]
    patches = np.lib.stride_tricks.as_strided(
        padded,
        (batch, *windows.counts, *windows.kernel, channels),
        (
            padded.strides[0],
            *[step * stride for step, stride in zip(steps, windows.strides)],
            *[step * dilation for step, dilation in zip(steps, windows.dilations)],
            padded.strides[-1],
        ),
        writeable=False,
    )
    inner, places = prod(weights.shape[1:]), prod(windows.counts)
    each, together = _divide_rows(batch, w.shape, windows)
    parts = [slice(first, min(first + each, batch)) for first in range(0, batch, each)]
    lanes: list[_Calls] = [[] for _ in range(together)]
    for number, part in enumerate(parts):
        count, lane = part.stop - part.start, number % together
        first = lane * each * places * x.itemsize  # of a column
        rows = view_bytes(scratch[0][first * inner :], (count, *patches.shape[1:]), x.dtype)
        products = view_bytes(scratch[3][first * outs :], (count * places, outs), x.dtype)
        result = products.reshape(count, *windows.counts, outs)
        lanes[lane] += [
            partial(np.copyto, rows, patches[part]),
            partial(np.matmul, rows.reshape(count * places, inner), weights.reshape(outs, inner).T, out=products),
            partial(np.copyto, y[part], np.moveaxis(result, -1, 1)),
        ]
    return [*calls, *_share_lanes(lanes)]


def _share_lanes(lanes: Sequence[_Calls]) -> _Calls:
    """Return the call that has threads make the calls of several lanes, or those of one."""
    if len(lanes) == 1:
        return lanes[0]

    def run_lane(number: int) -> None:
        for call in lanes[number]:
            call()

    return [partial(share_work, len(lanes), run_lane)]


def _count_together(pieces: Sequence[tuple[Array, Array]], w: Array) -> int:
    """Return how many pieces are laid out at a time: 1, 2 or 4, in no more room than one of the largest takes."""
    largest = max(part.size for part, _ in pieces)
    operations = 2 * sum(target.size for _, target in pieces) * prod(w.shape[1:])
    if operations < SHARED:
        return 1
    most = min(_MOST_TOGETHER, len(pieces), max(1, _PIECE // largest))
    return 1 << most.bit_length() - 1


def _prepare_product(weights: Array, columns: Array, y: Array) -> Callable[[], object]:
    """Return a product of ``[group, outs, ins]`` and ``[batch, group, ins, places]``, of as few axes as can be."""
    if weights.shape[0] == 1:
        weights, columns, y = weights[0], columns[:, 0], y[:, 0]
        if columns.shape[0] == 1:
            columns, y = columns[0], y[0]
    return prepare_matmul(weights, columns, y)


def _list_borders(padded: Array, inside: Sequence[slice]) -> list[Array]:
    """Return the parts of a padded array that lie around what is inside; all of it where it is small."""
    if padded.size <= _SMALL:
        return [padded]
    borders = []
    for axis, part in enumerate(inside):
        for border in (slice(0, part.start), slice(part.stop, None)):
            place = (*inside[:axis], border, *[slice(None)] * (len(inside) - 1 - axis))
            borders.append(padded[trailing(place)])
    return [border for border in borders if border.size]


def _list_products(
    x: Array, w_shape: Sequence[int], windows: Windows, group: int, y: Array
) -> Iterator[tuple[Array, Array]]:
    """Yield patches of a padded input ``[images, group, group channels, taps..., windows...]``, and their outputs."""
    batch, rank = x.shape[0], len(windows.counts)
    patches = _patches(x, windows, group)
    planes = y.reshape(batch, group, w_shape[0] // group, windows.counts[0], -1)
    for images, rows in _pieces(batch, windows, group * w_shape[1] * windows.taps):
        part = patches[images][trailing((rows, *(slice(None),) * (rank - 1)))]
        target = planes[images, :, :, rows]
        yield part, target.reshape(*target.shape[:3], -1)


def _pieces(batch: int, windows: Windows, inner: int) -> Iterator[tuple[slice, slice]]:
    """Yield images and rows of windows whose patches fit a piece: several whole images, or rows of one."""
    row = inner * prod(windows.counts[1:])
    rows = windows.counts[0]
    most = _choose_piece(inner)
    if row * rows <= most:
        step = max(1, most // max(1, row * rows))
        yield from ((slice(first, first + step), slice(None)) for first in range(0, batch, step))
        return
    step = max(1, most // row)
    step = -(-rows // -(-rows // step))  # equal pieces
    for image in range(batch):
        yield from ((slice(image, image + 1), slice(first, first + step)) for first in range(0, rows, step))


def _choose_piece(inner: int) -> int:
    """Return how many elements of patches a piece has: fewer where several, laid out at a time, have enough windows."""
    parts = (_PIECE // together for together in (_MOST_TOGETHER, 2))
    return next((part for part in parts if part >= inner * _LEAST_PLACES), _PIECE)


def _padded(x: Array, windows: Windows) -> Array:
    """Return the input with zeros around it, so that every tap of every window lies inside."""
    extents = _pad_extents(windows)
    if extents is None:
        return x
    padded = np.zeros((*x.shape[:2], *extents), x.dtype)
    padded[trailing(slice(begin, begin + extent) for begin, extent in zip(windows.begins, windows.extents))] = x
    return padded


def _pad_extents(windows: Windows) -> tuple[int, ...] | None:
    """Return the extents of the input with zeros around it; None where it needs none."""
    lasts = [
        (count - 1) * stride + (kernel - 1) * dilation + 1
        for count, stride, kernel, dilation in zip(windows.counts, windows.strides, windows.kernel, windows.dilations)
    ]
    if not any(windows.begins) and all(last <= extent for last, extent in zip(lasts, windows.extents)):
        return None
    return tuple([max(last, begin + extent) for last, begin, extent in zip(lasts, windows.begins, windows.extents)])


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
