"""Magnitudes of an activation over batches: its range, a histogram that grows, and thresholds taken from these.

A threshold is the largest magnitude that is still told apart; what lies beyond saturates. Zeros are left out of
histograms: any scale holds them exactly, and most of what a Relu makes would say nothing of the rest.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
# Doubling of the range leaves at least half of them for what was seen.
BINS = 4096
# Thresholds whose divergence is computed, at even distances.
_CANDIDATES = 256
_PIECE = 1 << 20
_FLOAT = np.dtype(np.float32)


class Magnitudes:
    """Range and histogram of the magnitudes of an activation, of all batches added so far.

    The histogram has BINS even parts of ``[0, limit]``. The first batch's largest magnitude is the first limit; a
    larger one doubles it as often as it takes, and two parts become one. So one pass over the batches is enough, none
    is kept, and counts stay exact.

    Attributes:
        least, most: The range; infinite the wrong way round before the first element.
        dtype: The element type; None before the first batch.
        limit: The end of the histogram.
        counts: Magnitudes other than 0 in each part of it.
    """

    def __init__(self, *, has_histogram: bool = True) -> None:
        self.least, self.most = math.inf, -math.inf
        self.dtype: np.dtype[Any] | None = None
        self.limit = 0.0
        self.counts = np.zeros(BINS, np.int64)
        self._has_histogram = has_histogram

    @property
    def largest(self) -> float:
        """The largest magnitude; 0 before the first element."""
        return max(-self.least, self.most, 0.0)

    def add(self, array: Array) -> bool:
        """Add the elements of a batch; return False, and add none, where one is not finite."""
        self.dtype = array.dtype
        if not array.size:
            return True
        flat = array.reshape(-1) if array.dtype.itemsize >= _FLOAT.itemsize else array.reshape(-1).astype(_FLOAT)
        least, most = (float(end) for end in (flat.min(), flat.max()))
        if not (math.isfinite(least) and math.isfinite(most)):
            return False
        self.least, self.most = min(self.least, least), max(self.most, most)
        self._grow()
        if self._has_histogram and self.limit:
            for first in range(0, flat.size, _PIECE):
                self._count(flat[first : first + _PIECE])
        return True

    def take_percentile(self, percentile: float) -> float:
        """Return the end of the first part up to which so many percent of the magnitudes lie; zeros don't count."""
        below = np.cumsum(self.counts)
        place = int(np.searchsorted(below, float(below[-1]) * percentile / 100))
        return min((place + 1) * self.limit / BINS, self.largest)

    def minimise_divergence(self, levels: int) -> float:
        """Return the threshold whose magnitudes, told apart by so many levels, say most of what all of them said.

        That is the one of least Kullback-Leibler divergence, as in S. Migacz, "8-bit Inference with TensorRT" (2017):
        of the histogram up to the threshold, all beyond put into its last part, from the same histogram in ``levels``
        even parts, each spread evenly over those of its parts that are not empty. Thresholds end in such a part, so
        that the second is nowhere 0 where the first is not. Of equal ones the largest is taken.
        """
        (filled,) = np.nonzero(self.counts)
        filled = filled[filled >= levels - 1]
        ends = filled[np.unique(np.linspace(0, len(filled) - 1, _CANDIDATES).round().astype(int))] + 1
        found = [(self._measure(int(end), levels), -int(end)) for end in ends]
        return min(-min(found)[1] * self.limit / BINS, self.largest)

    def _measure(self, end: int, levels: int) -> float:
        """Return the divergence of a threshold at the end of a part."""
        counts = self.counts[:end].astype(np.float64)
        is_filled = counts > 0
        level = np.arange(end) * levels // end
        sums = np.bincount(level, counts, levels)
        parts = np.bincount(level, is_filled, levels)
        spread = (sums[level] / np.maximum(parts[level], 1))[is_filled]
        kept = counts[is_filled]
        kept[-1] += float(self.counts[end:].sum())
        kept /= kept.sum()
        spread /= spread.sum()
        return float(np.sum(kept * np.log(kept / spread)))

    def _grow(self) -> None:
        """Extend the histogram to the largest magnitude."""
        if not self.limit:
            self.limit = self.largest
        while self.limit < self.largest:
            self.limit *= 2
            self.counts[: BINS // 2] = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts[BINS // 2 :] = 0

    def _count(self, piece: Array) -> None:
        magnitudes = np.abs(piece.astype(np.float64))
        magnitudes *= BINS / self.limit
        places = np.minimum(magnitudes.astype(np.int64), BINS - 1)
        self.counts += np.bincount(places, minlength=BINS)
        self.counts[0] -= piece.size - np.count_nonzero(piece)
