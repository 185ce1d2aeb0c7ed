"""Arena packing of hard instances: distance from the optimum, and bounded work. ``make bench`` packs more of them."""

from __future__ import annotations

from itertools import combinations
from math import prod

import numpy as np
import pytest

from gpuexec.planner import arena_squeeze
from gpuexec.planner.arena import Lifetime, Packing, pack
from tests.planner.hard_arenas import MAX_COUNT, MIN_COUNT, HardArena, cut_in_a_wheel, cut_rectangle

SEEDS = range(5)
WORST, MEAN = 1.30, 1.20


@pytest.fixture(scope="module")
def packed() -> list[tuple[HardArena, Packing]]:
    hard = [cut_rectangle(seed) for seed in SEEDS]
    return [(each, pack(each.lifetimes)) for each in hard]


def meets(a: Lifetime, offset: int, b: Lifetime, other: int) -> bool:
    """Return whether two buffers have a byte and a command in common."""
    return max(a.first, b.first) < min(a.last, b.last) and max(offset, other) < min(offset + a.nbytes, other + b.nbytes)


def test_hard_arenas_are_full_rectangles() -> None:
    for hard in [*(cut_rectangle(seed) for seed in SEEDS), cut_rectangle(0, cut_in_a_wheel)]:
        assert MIN_COUNT <= len(hard.lifetimes) <= MAX_COUNT
        load = np.zeros(max(each.last for each in hard.lifetimes), np.int64)
        for each in hard.lifetimes:
            load[each.first : each.last] += each.nbytes
        assert (load == hard.nbytes).all()


def test_pack_of_hard_arenas_stays_near_the_smallest(packed: list[tuple[HardArena, Packing]]) -> None:
    ratios = [packing.nbytes / hard.nbytes for hard, packing in packed]
    assert max(ratios) <= WORST
    assert prod(ratios) ** (1 / len(ratios)) <= MEAN
    assert [packing.lower_bound for _, packing in packed] == [hard.nbytes for hard, _ in packed]


def test_pack_of_hard_arenas_overlaps_nothing(packed: list[tuple[HardArena, Packing]]) -> None:
    for hard, packing in packed:
        rows = [(each, packing.offsets[each.buffer]) for each in hard.lifetimes]
        assert not any(meets(*one, *other) for one, other in combinations(rows, 2))
        assert max(offset + each.nbytes for each, offset in rows) == packing.nbytes


def test_pack_of_hard_arenas_without_straight_cuts_stays_near_the_smallest() -> None:
    hard = cut_rectangle(1, cut_in_a_wheel)
    assert pack(hard.lifetimes).nbytes <= WORST * hard.nbytes


def test_pack_of_a_hard_arena_is_the_same_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_squeeze, "_VISITS", 1_500_000)
    lifetimes = cut_rectangle(3).lifetimes
    packing = pack(lifetimes)
    assert packing.order.endswith("squeezed")
    assert packing == pack(lifetimes[::-1])


def test_more_work_finds_no_worse(monkeypatch: pytest.MonkeyPatch, packed: list[tuple[HardArena, Packing]]) -> None:
    hard, packing = packed[4]
    monkeypatch.setattr(arena_squeeze, "_VISITS", 0)
    greedy = pack(hard.lifetimes)
    assert not greedy.order.endswith("squeezed")
    assert packing.nbytes < greedy.nbytes
