"""Placement of buffers with given sizes and conflicts: one greedy order, and an exact search.

The search does a fixed amount of work and watches no clock, so equal problems end equally on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Work of the search, in visits of a buffer: about 0.1 s on one 3 GHz core.
_EXACT_VISITS = 200_000

Offsets = list[int]


@dataclass(frozen=True, slots=True)
class Problem:
    """Placement problem. Buffers are indices, sizes and offsets are whole units of any length.

    No packing is lower than ``bound``. ``moments`` lists the maximal sets of buffers alive at once.
    """

    sizes: tuple[int, ...]
    lives: tuple[tuple[int, int], ...]  # [first, last)
    neighbours: tuple[tuple[int, ...], ...]  # those that may not share bytes with it
    moments: tuple[tuple[int, ...], ...]
    loads: tuple[int, ...]  # the most units alive at once during its life
    bound: int

    def measure(self, offsets: Sequence[int]) -> int:
        """Return where the highest buffer ends."""
        return max((offset + size for offset, size in zip(offsets, self.sizes)), default=0)


def place(problem: Problem, order: Sequence[int], fit: str, limit: int) -> Offsets | None:
    """Place in this order, each into a gap among its neighbours; None on reaching the limit.

    ``fit`` says which gap: the ``"lowest"``, the ``"tightest"``, or by ``"ends"`` the bottom of the arena where that is
    free, else the top of the highest gap below the bound: a chain, each in conflict with the next, alternates.
    """
    sizes, neighbours = problem.sizes, problem.neighbours
    offsets = [-1] * len(sizes)
    for index in order:
        size, cursor, gaps = sizes[index], 0, []
        for start, other in sorted([(offsets[other], other) for other in neighbours[index] if offsets[other] >= 0]):
            if size <= start - cursor:
                gaps.append((cursor, start))
                if fit == "lowest":
                    break
            cursor = max(cursor, start + sizes[other])
        if fit == "ends" and cursor + size <= problem.bound:
            gaps.append((cursor, problem.bound))
        if not gaps:
            offset = cursor
        elif fit == "tightest":
            offset = min(gaps, key=lambda gap: gap[1] - gap[0])[0]
        else:
            offset = gaps[0][0] if fit == "lowest" or gaps[0][0] == 0 else gaps[-1][1] - size
        if offset + size >= limit:
            return None
        offsets[index] = offset
    return offsets


def search(problem: Problem, limit: int) -> tuple[Offsets | None, bool]:
    """Search all packings that stack from the bottom up; return the lowest found below the limit.

    The second result tells whether the search came to its end, so that nothing lower exists.

    The smallest packing with the least sum of offsets can be built by rising (offset, index), each buffer right on top
    of the highest neighbour placed so far. So only such sequences are tried; and a buffer is passed over while another
    would fit wholly below it, since placed later that one could sink, and the sum would not be the least.
    """
    count, sizes, neighbours = len(problem.sizes), problem.sizes, problem.neighbours
    best: Offsets | None = None
    steps = _EXACT_VISITS // (count + sum(len(alive) for alive in problem.moments))
    offsets = [-1] * count
    stack = [_candidates(problem, offsets, [0] * count, (0, -1), limit)]
    floors = [[0] * count]
    placed: list[int] = []
    while stack and steps > 0:
        steps -= 1
        if not stack[-1]:
            stack.pop()
            floors.pop()
            if placed:
                offsets[placed.pop()] = -1
            continue
        offset, index = stack[-1].pop()
        if offset + sizes[index] >= limit:
            continue
        offsets[index] = offset
        placed.append(index)
        above = floors[-1].copy()
        for other in neighbours[index]:
            above[other] = max(above[other], offset + sizes[index])
        if len(placed) == count:
            best, limit = offsets.copy(), problem.measure(offsets)
            if limit <= problem.bound:
                return best, True
        floors.append(above)
        stack.append(_candidates(problem, offsets, above, (offset, index), limit))
    return best, not stack


def _candidates(
    problem: Problem,
    offsets: Sequence[int],
    floors: Sequence[int],
    previous: tuple[int, int],
    limit: int,
) -> list[tuple[int, int]]:
    """Return the (offset, index) that may come next, the best last; none where the limit can't be kept."""
    sizes = problem.sizes
    for alive in problem.moments:
        waiting = [index for index in alive if offsets[index] < 0]
        if waiting:
            bottom = max(previous[0], min(floors[index] for index in waiting))
            if bottom + sum(sizes[index] for index in waiting) >= limit:
                return []
    free = [index for index, offset in enumerate(offsets) if offset < 0]
    ceiling = min((floors[index] + sizes[index] for index in free), default=0)
    legal = [(floors[index], index) for index in free if previous < (floors[index], index) < (ceiling, -1)]
    return sorted(legal, key=lambda each: (-each[0], problem.loads[each[1]], sizes[each[1]], -each[1]))
