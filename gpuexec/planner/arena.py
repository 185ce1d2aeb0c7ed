"""Memory planning: packing of buffers with lifetimes into one arena.

Finding the smallest arena is NP-hard (dynamic storage allocation), yet most models are easy: a portfolio of greedy
orders reaches the lower bound, and stops there. Others go to an exact search, and then to one that compacts,
both with a fixed amount of work. ``verify`` checks the outcome and shares no code with this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gpuexec.errors import PlanError
from gpuexec.ir.arena_drawing import ARENA_ALIGNMENT
from gpuexec.ir.geometry import ceil_div
from gpuexec.planner.arena_search import Offsets, Problem, place, search
from gpuexec.planner.arena_squeeze import squeeze


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The bytes of one buffer and the commands ``[first, last)`` during which they are its own.

    ``conflicts`` names further buffers it may not share bytes with: those of branches meant to run side by side.
    One side of a pair is enough. Buffers that are not packed along are ignored.
    """

    buffer: int
    nbytes: int
    first: int
    last: int
    conflicts: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Packing:
    """Offsets in bytes by buffer, the size of the arena, and how good it is.

    ``nbytes`` equal to ``lower_bound`` proves the smallest arena. ``order`` names the order or search that found it.
    """

    offsets: dict[int, int]
    nbytes: int
    lower_bound: int
    order: str


def pack(lifetimes: Sequence[Lifetime]) -> Packing:
    """Pack lifetimes into one arena.

    Tries several greedy orders, then searches, and keeps the lowest; stops at the lower bound. Offsets are multiples
    of ARENA_ALIGNMENT (256 bytes), so any dtype may follow any other. An empty buffer lies at 0 and conflicts with
    none.

    Args:
        lifetimes: Half-open command ranges; order does not matter.

    Returns:
        Offsets and the arena size, in bytes.

    Raises:
        PlanError: A lifetime is empty (first >= last), a size is negative, or a buffer comes twice.
    """
    kept = _sort(lifetimes)
    problem = _make_problem(kept)
    best, winner = _solve(problem)
    offsets = dict.fromkeys((each.buffer for each in lifetimes), 0)
    offsets.update((each.buffer, offset * ARENA_ALIGNMENT) for each, offset in zip(kept, best))
    return Packing(offsets, problem.measure(best) * ARENA_ALIGNMENT, problem.bound * ARENA_ALIGNMENT, winner)


def lower_bound(lifetimes: Sequence[Lifetime]) -> int:
    """Return a lower bound in bytes of any arena for these lifetimes.

    It is the most bytes alive at one time, or of a larger set found in which every two conflict.

    Raises:
        PlanError: As ``pack``.
    """
    return _make_problem(_sort(lifetimes)).bound * ARENA_ALIGNMENT


def _sort(lifetimes: Sequence[Lifetime]) -> list[Lifetime]:
    """Check the lifetimes and sort the nonempty ones, so that the result does not depend on their order."""
    seen: set[int] = set()
    for each in lifetimes:
        if each.first >= each.last:
            raise PlanError(
                f"buffer {each.buffer}: expected a lifetime [first, last) with first < last, "
                f"got [{each.first}, {each.last})."
            )
        if each.nbytes < 0:
            raise PlanError(f"buffer {each.buffer}: expected a size of 0 bytes or more, got {each.nbytes}.")
        if each.buffer in seen:
            raise PlanError(f"buffer {each.buffer}: expected one lifetime, got two.")
        seen.add(each.buffer)
    return sorted((each for each in lifetimes if each.nbytes), key=lambda each: (each.first, each.last, each.buffer))


def _make_problem(lifetimes: Sequence[Lifetime]) -> Problem:
    """State the placement problem: conflicts between buffers, in units of ARENA_ALIGNMENT, sorted by first command."""
    sizes = tuple(ceil_div(each.nbytes, ARENA_ALIGNMENT) for each in lifetimes)
    moments = _find_moments(lifetimes)
    adjacent: list[set[int]] = [set() for _ in lifetimes]
    loads = [0] * len(lifetimes)
    for alive in moments:
        load = sum(sizes[index] for index in alive)
        for index in alive:
            loads[index] = max(loads[index], load)
            adjacent[index].update(alive)
    bound = max(loads, default=0)
    if any(each.conflicts for each in lifetimes):
        index_of = {each.buffer: index for index, each in enumerate(lifetimes)}
        for index, each in enumerate(lifetimes):
            for other in (index_of[buffer] for buffer in each.conflicts if buffer in index_of):
                adjacent[index].add(other)
                adjacent[other].add(index)
        bound = max(bound, _find_heavy_clique(sizes, adjacent))
    return Problem(
        sizes=sizes,
        lives=tuple((each.first, each.last) for each in lifetimes),
        neighbours=tuple(tuple(sorted(others - {index})) for index, others in enumerate(adjacent)),
        moments=tuple(moments),
        loads=tuple(loads),
        bound=bound,
    )


def _find_moments(lifetimes: Sequence[Lifetime]) -> list[tuple[int, ...]]:
    """List the maximal sets of buffers alive at the same time; the load peaks at one of them."""
    moments: list[tuple[int, ...]] = []
    alive: list[int] = []
    for index, each in enumerate(lifetimes):
        still = [other for other in alive if lifetimes[other].last > each.first]
        if len(still) < len(alive):
            moments.append(tuple(alive))
        alive = [*still, index]
    return [*moments, tuple(alive)] if alive else moments


def _find_heavy_clique(sizes: Sequence[int], adjacent: Sequence[set[int]]) -> int:
    """Grow one set of mutual conflicts from each buffer, the largest first; a heavier one may exist."""
    heaviest = 0
    for seed, neighbours in enumerate(adjacent):
        weight = sizes[seed]
        candidates = neighbours - {seed}
        for other in sorted(candidates, key=lambda index: (-sizes[index], index)):
            if other in candidates:
                weight += sizes[other]
                candidates = candidates & adjacent[other]
        heaviest = max(heaviest, weight)
    return heaviest


def _solve(problem: Problem) -> tuple[Offsets, str]:
    """Run the portfolio until the lower bound is reached; each attempt must be lower than the best so far."""
    if not problem.sizes:
        return [], "none"
    best: Offsets = []
    height, winner = sum(problem.sizes) + 1, ""
    for name, order in _orders(problem):
        for fit in ("lowest", "tightest", "ends"):
            if found := place(problem, order, fit, height):
                best, height, winner = found, problem.measure(found), f"{name}, {fit}"
            if height <= problem.bound:
                return best, winner
    found, is_optimal = search(problem, height)
    if found:
        best, height, winner = found, problem.measure(found), "exact search"
    if not is_optimal and (found := squeeze(problem, best, height)):
        best, winner = found, f"{winner}, squeezed"
    return best, winner


def _orders(problem: Problem) -> Iterator[tuple[str, list[int]]]:
    """Yield greedy orders by what tends to be hard to place late, the cheapest and best first."""
    sizes, lives, loads = problem.sizes, problem.lives, problem.loads
    lengths = [last - first for first, last in lives]
    crowds = [sum(sizes[other] for other in neighbours) for neighbours in problem.neighbours]
    keys: dict[str, Callable[[int], tuple[int, int]]] = {
        "by size": lambda i: (-sizes[i], -lengths[i]),
        "by load": lambda i: (-loads[i], -sizes[i]),
        "by area": lambda i: (-sizes[i] * lengths[i], -sizes[i]),
        "by length": lambda i: (-lengths[i], -sizes[i]),
        "by crowd": lambda i: (-crowds[i], -sizes[i]),
        "by first command": lambda i: (lives[i][0], -sizes[i]),
        "by last command": lambda i: (-lives[i][1], -sizes[i]),
        "by size, then first command": lambda i: (-sizes[i], lives[i][0]),
    }
    for name, key in keys.items():
        yield name, sorted(range(len(sizes)), key=key)
