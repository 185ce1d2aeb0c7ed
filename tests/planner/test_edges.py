"""Dependency edges from byte ranges: all that are needed, and no more."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from gpuexec.ir.command import Command, Copy, Fill, HostCall, Slot
from gpuexec.ir.spec import TensorSpec
from gpuexec.planner.edges import find_edges, find_paths

BYTE = np.dtype(np.uint8)


def window(buffer: int, offset: int, extent: int, stride: int = 1) -> Slot:
    return Slot(buffer, offset, TensorSpec((extent,), BYTE), (stride,))


def call(reads: Sequence[Slot], writes: Sequence[Slot]) -> HostCall:
    return HostCall("test", (), tuple(reads), tuple(writes))


def rows(first: int, width: int, count: int, pitch: int = 4) -> Slot:
    return Slot(0, first, TensorSpec((count, width), BYTE), (pitch, 1))


A, B, C, D = (window(buffer, 0, 8) for buffer in range(4))


@pytest.mark.parametrize(
    ("commands", "edges"),
    [
        ([call([A], [B]), call([B], [C])], [(0, 1)]),
        ([call([A], [B]), call([A], [C])], []),
        ([call([A], [B]), call([C], [A])], [(0, 1)]),
        ([call([], [A]), call([], [A])], [(0, 1)]),
        # A chain in place, and a fork read before it is overwritten.
        ([call([], [A]), call([A], [A]), call([A], [A])], [(0, 1), (1, 2)]),
        ([call([], [A]), call([A], [B]), call([A], [A])], [(0, 1), (1, 2)]),
        # Halves of one buffer are apart, the whole is after both.
        (
            [call([], [window(0, 0, 4)]), call([], [window(0, 4, 4)]), call([A], [B])],
            [(0, 2), (1, 2)],
        ),
        # A reversed window reaches downwards from its first element.
        ([call([], [window(0, 0, 4)]), call([], [window(0, 4, 4)]), call([window(0, 3, 4, -1)], [B])], [(0, 2)]),
        ([call([], [window(0, 0, 4)]), call([window(0, 7, 4, -1)], [B])], []),
        # A window of no elements touches nothing.
        ([call([], [A]), call([window(0, 0, 0)], [B])], []),
        ([Fill(A, b"\0"), Copy(B, A), Copy(C, A), call([B, C], [D])], [(0, 1), (0, 2), (1, 3), (2, 3)]),
        # Rows with gaps are apart where their columns are, and from what lies within a gap.
        ([call([], [rows(0, 2, 3)]), call([], [rows(2, 2, 2)]), call([A], [B])], [(0, 2), (1, 2)]),
        ([call([], [rows(0, 2, 3)]), call([], [rows(1, 2, 2)])], [(0, 1)]),
        ([call([], [rows(3, 2, 2)]), call([], [rows(1, 2, 3)])], []),
        ([call([], [rows(3, 2, 2)]), call([], [rows(0, 1, 3)])], [(0, 1)]),
        ([call([], [rows(0, 2, 2)]), call([window(0, 2, 2)], [B]), call([window(0, 2, 3)], [C])], [(0, 2)]),
        # What follows from others is left out.
        ([call([], [A]), call([A], [B]), call([A, B], [C])], [(0, 1), (1, 2)]),
    ],
)
def test_edges_are_those_of_common_bytes(commands: list[Command], edges: list[tuple[int, int]]) -> None:
    assert list(find_edges(commands)) == edges


def test_buffers_that_share_arena_bytes_are_ordered_whole() -> None:
    commands = [call([A], [window(1, 0, 1)]), call([window(1, 0, 1)], [C]), call([A], [window(3, 7, 1)])]
    apart = {1: (0, 8), 3: (8, 16)}
    shared = {1: (0, 8), 3: (4, 12)}
    assert find_edges(commands, apart) == ((0, 1),)
    assert find_edges(commands, shared) == ((0, 1), (1, 2))


@pytest.mark.parametrize("seed", range(300))
def test_paths_are_the_order_of_conflicts(seed: int) -> None:
    rng = random.Random(seed)
    commands = [random_call(rng) for _ in range(rng.randint(2, 12))]
    edges = find_edges(commands)
    assert find_paths(len(commands), edges) == close(len(commands), conflicts(commands))
    for edge in edges:
        without = find_paths(len(commands), [e for e in edges if e != edge])
        assert not without[edge[1]] >> edge[0] & 1, "an edge that follows from others"


def random_call(rng: random.Random) -> HostCall:
    def some(count: int) -> list[Slot]:
        slots = []
        for _ in range(count):
            start, extent = rng.randrange(8), rng.randint(0, 4)
            down = rng.random() < 0.3
            extent = min(extent, start + 1 if down else 8 - start)
            has_gaps = rng.random() < 0.3
            among = rows(rng.randrange(8), rng.randint(1, 3), rng.randint(2, 3))
            slots.append(among if has_gaps else window(rng.randrange(3), start, extent, -1 if down else 1))
        return slots

    return call(some(rng.randrange(3)), some(rng.randint(1, 2)))


def conflicts(commands: Sequence[HostCall]) -> list[tuple[int, int]]:
    """Return the pairs that touch a common byte, one writing: by bytes, one by one."""

    def bytes_of(slots: Sequence[Slot | None]) -> set[tuple[int, int]]:
        touched = set()
        for slot in slots:
            assert slot is not None
            places = np.indices(slot.shape).reshape(len(slot.shape), -1).T @ np.array(slot.strides, np.int64)
            touched |= {(slot.buffer, slot.offset_bytes + int(place)) for place in places}
        return touched

    touched = [(bytes_of(c.inputs), bytes_of(c.outputs)) for c in commands]
    return [
        (i, j)
        for j, (reads, writes) in enumerate(touched)
        for i, (reads2, writes2) in enumerate(touched[:j])
        if writes & writes2 or writes & reads2 or reads & writes2
    ]


def close(count: int, pairs: Sequence[tuple[int, int]]) -> list[int]:
    before = [0] * count
    for j in range(count):
        for a, b in pairs:
            if b == j:
                before[j] |= before[a] | 1 << a
    return before
