"""Signal processing: windows, differences, and short-time spectra by a Fourier matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.model.tracing.creation import arange
from gpuexec.model.tracing.elementwise import cos, not_equal, subtract
from gpuexec.model.tracing.joining import stack
from gpuexec.model.tracing.matrix_products import matmul
from gpuexec.model.tracing.promotion import BOOL, FLOAT32, as_symbolic, cast
from gpuexec.model.tracing.shaping import as_int, expand_dims, extent, find_axis
from gpuexec.model.tracing.symbolic import SymbolicArray

__all__ = ["blackman_window", "diff", "hamming_window", "hann_window", "stft"]


def hann_window(size: Any, periodic: bool = True, dtype: Any = FLOAT32) -> SymbolicArray:
    """Return the Hann window; the size may be symbolic."""
    return _window(size, periodic, (0.5, -0.5), dtype)


def hamming_window(size: Any, periodic: bool = True, dtype: Any = FLOAT32) -> SymbolicArray:
    """Return the Hamming window with ONNX's constants 25 / 46 and 21 / 46."""
    return _window(size, periodic, (25 / 46, -21 / 46), dtype)


def blackman_window(size: Any, periodic: bool = True, dtype: Any = FLOAT32) -> SymbolicArray:
    """Return the Blackman window."""
    return _window(size, periodic, (0.42, -0.5, 0.08), dtype)


def _window(size: Any, periodic: bool, weights: tuple[float, ...], dtype: Any) -> SymbolicArray:
    places = arange(size, dtype=np.float64)
    length = as_symbolic(size, np.float64, places._tracer) - (0 if periodic else 1)
    angle = places * (2 * np.pi / length)
    total: Any = weights[0]
    for order, weight in enumerate(weights[1:], 1):
        total = total + weight * cos(angle * order)
    return cast(total, dtype)


def diff(a: Any, n: int = 1, axis: int = -1) -> SymbolicArray:
    """Subtract the previous element along an axis, ``n`` times; the first is dropped. Bools: whether they differ."""
    array = as_symbolic(a)
    front = [slice(None)] * find_axis(array, axis)
    for _ in range(n):
        later, earlier = array[(*front, slice(1, None))], array[(*front, slice(None, -1))]
        array = not_equal(later, earlier) if array.dtype == BOOL else subtract(later, earlier)
    return array


def stft(
    signal: Any, frame_step: int, window: Any = None, frame_length: int | None = None, onesided: bool = True
) -> SymbolicArray:
    """Return the short-time Fourier transform of a signal, with frames ``frame_step`` elements apart.

    Args:
        signal: [batch, length] or [batch, length, 1].
        frame_step: Elements from the beginning of a stretch to that of the next.
        window: Weights of a stretch's elements; it gives the frame length too.
        frame_length: Elements of a stretch.
        onesided: Leave out the second half of each spectrum, which mirrors the first.

    Returns:
        [batch, frames, bins, 2]: real and imaginary part.
    """
    given = as_symbolic(signal)
    if given.ndim == 3:
        given = given[:, :, 0]
    if given.ndim != 2 or given.dtype.kind in "iub":
        raise InputError(f"stft takes a signal of floats [batch, length] or [batch, length, 1], got {signal!r}.")
    if window is not None and frame_length is None:
        frame_length = as_int(extent(as_symbolic(window, None, given._tracer), 0))
    if not frame_length or frame_step < 1:
        raise InputError(f"stft expects a frame length known at tracing and a step of 1 or more, got {frame_length}.")
    frames = (extent(given, 1) - frame_length) // frame_step + 1
    starts = expand_dims(arange(frames) * frame_step, 1)
    stretches = given[:, starts + np.arange(frame_length)]
    if window is not None:
        stretches = stretches * as_symbolic(window, given.dtype, given._tracer)
    bins = frame_length // 2 + 1 if onesided else frame_length
    # Products are taken modulo the length, so that large angles lose no digits.
    turns = np.outer(np.arange(frame_length), np.arange(bins)) % frame_length
    angles = 2 * np.pi * turns / frame_length
    parts = [matmul(stretches, table.astype(given.dtype)) for table in (np.cos(angles), -np.sin(angles))]
    return stack(parts, -1)
