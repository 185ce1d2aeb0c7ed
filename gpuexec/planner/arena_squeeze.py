"""Arena compaction: buffers above a lower height are taken out of a packing and placed again.

A height below the present one is set, and buffers above it are taken out. Each is placed where it evicts the
cheapest buffers, which are placed again in their turn. A buffer that had to evict costs more to evict, so that the
search leaves cycles. Such ejection chains are known from vehicle routing with time windows.

It counts work and watches no clock, and counts in whole numbers: equal problems end equally on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

import numpy as np

from gpuexec.planner.arena_search import Offsets, Problem

# Work in all, and of one attempt at a height, in visits of a buffer; a step costs as much as some visits beside its
# own. About 1 s on one 3 GHz core.
_VISITS, _ATTEMPT_VISITS, _STEP_VISITS = 6_000_000, 800_000, 150
# Fraction of the height above the bound by which a step lowers it.
_PART = 10
_SCALE = 1 << 20
_OUT = -1
_Ints = np.ndarray[Any, np.dtype[np.int64]]


def squeeze(problem: Problem, best: Sequence[int], limit: int) -> Offsets | None:
    """Return a packing lower than ``limit``, the lowest found, or None.

    Args:
        problem: Placement problem.
        best: A packing to begin with.
        limit: Its height.
    """
    search = _Squeeze.begin(problem)
    offsets, height, left = np.array(best, np.int64), limit, _VISITS
    found: Offsets | None = None
    # An ordinary problem may be a few moves from its bound; a hard one is lowered step by step.
    target = problem.bound
    while height > problem.bound and left > 0:
        fitted, visits = search.fit(offsets, target, min(left, _ATTEMPT_VISITS))
        left -= visits
        if fitted is not None:
            offsets, found = fitted, fitted.tolist()
            height = problem.measure(found)
        target = height - max(1, (height - problem.bound) // _PART)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Squeeze:
    """Placement problem as arrays, with initial eviction costs: large and long-lived buffers cost most."""

    sizes: _Ints
    neighbours: tuple[_Ints, ...]
    prices: _Ints
    chance: random.Random

    @classmethod
    def begin(cls, problem: Problem) -> _Squeeze:
        areas = [size * (last - first) for size, (first, last) in zip(problem.sizes, problem.lives)]
        roots = [isqrt(isqrt(area**3)) for area in areas]  # to the power of 3/4, found by trying
        largest = max(roots)
        return cls(
            sizes=np.array(problem.sizes, np.int64),
            neighbours=tuple(np.array(row, np.int64) for row in problem.neighbours),
            prices=np.array([1 + root * _SCALE // largest for root in roots], np.int64),
            chance=random.Random(len(areas)),
        )

    def fit(self, offsets: _Ints, height: int, visits: int) -> tuple[_Ints | None, int]:
        """Try to fit all buffers below a height; return where they lie, or None, and the visits it took."""
        offsets, prices = offsets.copy(), self.prices.copy()
        sticking = np.flatnonzero(offsets + self.sizes > height)
        offsets[sticking] = _OUT
        out, used = sticking.tolist(), 0
        while out and used < visits:
            # The costliest is placed first: the others fit beside it more easily than it beside them.
            index = max(out, key=self.prices.__getitem__)
            out.remove(index)
            used += _STEP_VISITS + len(self.neighbours[index])
            around = self.neighbours[index]
            around = around[offsets[around] >= 0]
            lows = offsets[around]
            highs = lows + self.sizes[around]
            lows = lows - self.sizes[index]
            place, cost = self._choose(lows, highs, prices[around], height - int(self.sizes[index]))
            if cost:
                pushed = around[(lows < place) & (place < highs)]
                offsets[pushed] = _OUT
                out += pushed.tolist()
                prices[index] += self.prices[index]
            offsets[index] = place
        return (None if out else offsets), used

    def _choose(self, lows: _Ints, highs: _Ints, prices: _Ints, last: int) -> tuple[int, int]:
        """Return the offset up to ``last`` with the least eviction cost, and that cost; ties are broken at random.

        A buffer between ``lows`` and ``highs``, both exclusive, is evicted: its cost counts there.
        """
        places = np.concatenate((highs, lows, (0, last)))
        places = places[(places >= 0) & (places <= last)]
        begun, ended = _count_below(lows, prices, places, "left"), _count_below(highs, prices, places, "right")
        costs = begun - ended
        lowest = int(costs.min())
        ties = np.flatnonzero(costs == lowest)
        return int(places[ties[int(self.chance.random() * len(ties))]]), lowest


def _count_below(bounds: _Ints, prices: _Ints, places: _Ints, side: Any) -> _Ints:
    """Return, for each place, the prices of those whose bound it has passed."""
    order = np.argsort(bounds, kind="stable")
    sums = np.concatenate(((0,), np.cumsum(prices[order])))
    counted: _Ints = sums[np.searchsorted(bounds[order], places, side)]
    return counted
