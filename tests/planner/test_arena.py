"""Arena packing against brute force, checked by independent code."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuexec.errors import PlanError
from gpuexec.ir.arena_drawing import ARENA_ALIGNMENT
from gpuexec.planner.arena import Lifetime, Packing, lower_bound, pack


def conflict(a: Lifetime, b: Lifetime) -> bool:
    """Two buffers may not share bytes, by definition: some command falls into both lives, or one names the other."""
    return bool(range(max(a.first, b.first), min(a.last, b.last))) or b.buffer in a.conflicts or a.buffer in b.conflicts


def check(lifetimes: Sequence[Lifetime], packing: Packing) -> None:
    """Check every promise of a packing by comparing all pairs and all moments."""
    offsets = packing.offsets
    assert offsets.keys() == {each.buffer for each in lifetimes}
    assert all(offset >= 0 and offset % ARENA_ALIGNMENT == 0 for offset in offsets.values())
    assert all(offsets[each.buffer] == 0 for each in lifetimes if each.nbytes == 0)
    for a, b in combinations([each for each in lifetimes if each.nbytes], 2):
        if conflict(a, b):
            start_a, start_b = offsets[a.buffer], offsets[b.buffer]
            assert start_a + a.nbytes <= start_b or start_b + b.nbytes <= start_a, (a, b, offsets)
    end = max((offsets[each.buffer] + each.nbytes for each in lifetimes if each.nbytes), default=0)
    assert packing.nbytes % ARENA_ALIGNMENT == 0
    assert end <= packing.nbytes < end + ARENA_ALIGNMENT
    alive = [
        sum(
            -(-each.nbytes // ARENA_ALIGNMENT) * ARENA_ALIGNMENT
            for each in lifetimes
            if each.first <= moment.first < each.last
        )
        for moment in lifetimes
    ]
    assert max(alive, default=0) <= packing.lower_bound <= packing.nbytes
    assert packing.lower_bound == lower_bound(lifetimes)


def brute_force(lifetimes: Sequence[Lifetime]) -> int:
    """Return the smallest arena by trying every offset of every buffer for one height after another."""
    lifetimes = sorted(lifetimes, key=lambda each: -each.nbytes)
    sizes = [-(-each.nbytes // ARENA_ALIGNMENT) for each in lifetimes]
    rivals = [[j for j in range(i) if conflict(lifetimes[i], lifetimes[j])] for i in range(len(lifetimes))]
    offsets = [0] * len(lifetimes)

    def fits(index: int, height: int) -> bool:
        if index == len(lifetimes):
            return True
        for offset in range(height - sizes[index] + 1):
            if all(offset + sizes[index] <= offsets[j] or offsets[j] + sizes[j] <= offset for j in rivals[index]):
                offsets[index] = offset
                if fits(index + 1, height):
                    return True
        return False

    alive = [[i for i, each in enumerate(lifetimes) if each.first <= t < each.last] for t in range(20)]
    height = max(sum(sizes[i] for i in together) for together in alive)
    while not fits(0, height):
        height += 1
    return height * ARENA_ALIGNMENT


def make_small(seed: int) -> list[Lifetime]:
    """Make 6 or 7 small buffers: crowded in time for even seeds; for odd ones seldom alive together, but kept apart."""
    chance = random.Random(seed)
    count = chance.randint(6, 7)
    lifetimes = []
    for buffer in range(count):
        first = chance.randrange(20 if seed % 2 else 12)
        length = 1 if seed % 2 else chance.randint(3, 6)
        others = [other for other in range(count) if other != buffer and seed % 2 and chance.random() < 0.3]
        nbytes = chance.randint(1, 5) * ARENA_ALIGNMENT - chance.choice([0, 1, 255])
        lifetimes.append(Lifetime(buffer, nbytes, first, first + length, frozenset(others)))
    return lifetimes


def test_pack_is_as_small_as_brute_force_on_200_small_instances() -> None:
    packings = []
    for seed in range(200):
        lifetimes = make_small(seed)
        packings.append(pack(lifetimes))
        check(lifetimes, packings[-1])
        assert packings[-1].nbytes == brute_force(lifetimes), lifetimes
    assert any(each.nbytes > each.lower_bound for each in packings), "no instance lies above its bound"


@st.composite
def lifetime_lists(draw: st.DrawFn) -> list[Lifetime]:
    count = draw(st.integers(0, 14))
    moment = st.integers(0, draw(st.sampled_from([3, 10, 40])))
    nbytes = st.one_of(st.integers(0, 2000), st.sampled_from([0, 1, 256, 257, 4096, 10**7]))
    lifetimes = []
    for buffer in draw(st.permutations(range(count))):
        first, length = draw(moment), draw(st.integers(1, 12))
        conflicts = frozenset(draw(st.lists(st.integers(0, 15), max_size=2))) - {buffer}
        lifetimes.append(Lifetime(buffer, draw(nbytes), first, first + length, conflicts))
    return lifetimes


@settings(max_examples=500, deadline=None)
@given(lifetime_lists())
def test_pack_keeps_its_promises_on_any_lifetimes(lifetimes: list[Lifetime]) -> None:
    check(lifetimes, pack(lifetimes))


def make_random(seed: int, count: int) -> list[Lifetime]:
    chance = random.Random(seed)
    lifetimes = []
    for buffer in range(count):
        first = chance.randrange(count)
        length = 1 + int(chance.expovariate(1 / chance.choice([2, 8])))
        lifetimes.append(Lifetime(buffer, 1 << chance.randrange(22), first, first + length))
    return lifetimes


def test_pack_keeps_its_promises_on_thousands_of_random_lifetimes() -> None:
    for seed in range(1000):
        lifetimes = make_random(seed, 5 + seed % 40)
        check(lifetimes, pack(lifetimes))


@pytest.mark.parametrize("seed", range(3))
def test_pack_of_500_lifetimes_stays_close_to_the_bound(seed: int) -> None:
    lifetimes = make_random(seed, 500)
    packing = pack(lifetimes)
    check(lifetimes, packing)
    assert packing.nbytes <= 1.05 * packing.lower_bound


def test_pack_of_a_chain_needs_two_buffers_at_a_time() -> None:
    packing = pack([Lifetime(buffer, 1000, buffer, buffer + 2) for buffer in range(50)])
    assert packing.nbytes == packing.lower_bound == 2048


def test_pack_of_a_chain_of_uneven_sizes_meets_the_bound_of_its_largest_pair() -> None:
    chance = random.Random(0)
    sizes = [chance.randrange(1, 10**6) for _ in range(300)]
    packing = pack([Lifetime(buffer, nbytes, buffer, buffer + 2) for buffer, nbytes in enumerate(sizes)])
    units = [-(-nbytes // ARENA_ALIGNMENT) for nbytes in sizes]
    assert packing.nbytes == max(a + b for a, b in pairwise(units)) * ARENA_ALIGNMENT
    assert packing.order == "by first command, ends"


def test_pack_gives_what_is_never_alive_together_the_same_bytes() -> None:
    packing = pack([Lifetime(7, 300, 0, 2), Lifetime(9, 100, 2, 3)])
    assert packing.offsets == {7: 0, 9: 0}
    assert packing.nbytes == 512


@pytest.mark.parametrize("sides", [(True, False), (False, True), (True, True)])
def test_pack_keeps_named_conflicts_apart_whichever_side_names_them(sides: tuple[bool, bool]) -> None:
    first = Lifetime(0, 256, 0, 1, frozenset({1}) if sides[0] else frozenset())
    second = Lifetime(1, 256, 5, 6, frozenset({0}) if sides[1] else frozenset())
    packing = pack([first, second])
    assert sorted(packing.offsets.values()) == [0, 256]
    assert packing.lower_bound == 512


def test_pack_ignores_conflicts_with_itself_and_with_buffers_it_does_not_place() -> None:
    packing = pack([Lifetime(0, 256, 0, 1, frozenset({0, 1, 99})), Lifetime(1, 0, 0, 9)])
    assert packing.offsets == {0: 0, 1: 0}
    assert packing.nbytes == packing.lower_bound == 256


def test_pack_goes_above_the_bound_only_where_it_must() -> None:
    # Five buffers in a ring of conflicts: two at a time fit pairwise, yet three levels are needed.
    ring = [Lifetime(b, 256, b, b + 1, frozenset({(b + 1) % 5})) for b in range(5)]
    packing = pack(ring)
    assert (packing.lower_bound, packing.nbytes) == (512, 768)


def test_pack_finds_by_search_what_no_greedy_order_finds() -> None:
    packings = [pack(make_small(seed)) for seed in range(400)]
    assert any(each.order == "exact search" for each in packings)
    assert len({each.order for each in packings}) > 4


def test_pack_squeezes_to_the_bound_what_is_too_large_for_the_exact_search() -> None:
    chance = random.Random(2)
    lifetimes = []
    for buffer in range(50):
        first, nbytes = chance.randrange(50), 256 * chance.randrange(1, 9)
        lifetimes.append(Lifetime(buffer, nbytes, first, first + 1 + int(chance.expovariate(1 / 10))))
    packing = pack(lifetimes)
    check(lifetimes, packing)
    assert packing.order.endswith("squeezed")
    assert packing.nbytes == packing.lower_bound


def test_pack_depends_neither_on_the_order_of_lifetimes_nor_on_the_call() -> None:
    lifetimes = make_random(3, 60)
    shuffled = random.Random(0).sample(lifetimes, len(lifetimes))
    assert pack(shuffled) == pack(lifetimes) == pack(lifetimes)


def test_pack_of_nothing_is_empty() -> None:
    packing = pack([])
    assert (packing.offsets, packing.nbytes, packing.lower_bound) == ({}, 0, 0)
    assert pack([Lifetime(4, 0, 0, 1)]).nbytes == 0


@pytest.mark.parametrize(
    ("lifetimes", "message"),
    [
        ([Lifetime(3, 8, 2, 2)], r"buffer 3: expected a lifetime .* got \[2, 2\)"),
        ([Lifetime(3, 0, 5, 2)], r"buffer 3: .* got \[5, 2\)"),
        ([Lifetime(4, -1, 0, 1)], "buffer 4: .* got -1"),
        ([Lifetime(5, 8, 0, 1), Lifetime(5, 8, 3, 4)], "buffer 5: expected one lifetime, got two"),
    ],
)
@pytest.mark.parametrize("function", [pack, lower_bound])
def test_pack_refuses_by_buffer(function: object, lifetimes: list[Lifetime], message: str) -> None:
    assert callable(function)
    with pytest.raises(PlanError, match=message):
        function(lifetimes)
