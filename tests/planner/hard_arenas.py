"""Hard arena instances: buffers cut from a full rectangle of time and bytes, which is the optimum."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from gpuexec.ir.arena_drawing import ARENA_ALIGNMENT
from gpuexec.planner.arena import Lifetime

COMMANDS, UNITS = 1000, 4000
MIN_COUNT, MAX_COUNT = 150, 450


@dataclass(frozen=True, slots=True)
class Piece:
    """Commands ``[first, last)`` by units of memory ``[low, high)``."""

    first: int
    last: int
    low: int
    high: int

    @property
    def area(self) -> int:
        """Commands times units."""
        return (self.last - self.first) * (self.high - self.low)


@dataclass(frozen=True, slots=True)
class HardArena:
    """Lifetimes in no order, and the bytes of the smallest arena."""

    lifetimes: tuple[Lifetime, ...]
    nbytes: int


def cut_in_two(piece: Piece, chance: random.Random) -> list[Piece]:
    """Cut a piece across at some command, or along at some unit."""
    first, last, low, high = piece.first, piece.last, piece.low, piece.high
    if chance.random() < 0.5 and last - first > 1:
        cut = chance.randrange(first + 1, last)
        return [Piece(first, cut, low, high), Piece(cut, last, low, high)]
    if high - low > 1:
        cut = chance.randrange(low + 1, high)
        return [Piece(first, last, low, cut), Piece(first, last, cut, high)]
    return [piece]


def cut_in_a_wheel(piece: Piece, chance: random.Random) -> list[Piece]:
    """Cut a piece into five around a middle, which no straight cut takes apart again; small ones in two."""
    first, last, low, high = piece.first, piece.last, piece.low, piece.high
    if last - first < 3 or high - low < 3 or chance.random() < 0.4:
        return cut_in_two(piece, chance)
    left, right = sorted(chance.sample(range(first + 1, last), 2))
    bottom, top = sorted(chance.sample(range(low + 1, high), 2))
    return [
        Piece(first, right, low, bottom),
        Piece(right, last, low, top),
        Piece(left, last, top, high),
        Piece(first, left, bottom, high),
        Piece(left, right, bottom, top),
    ]


def cut_rectangle(seed: int, cut: Callable[[Piece, random.Random], list[Piece]] = cut_in_two) -> HardArena:
    """Cut a rectangle into 150 to 450 pieces; a large one is the likelier to be cut, the larger it is."""
    chance = random.Random(seed)
    count = chance.randint(MIN_COUNT, MAX_COUNT - 4)
    pieces = [Piece(0, COMMANDS, 0, UNITS)]
    while len(pieces) < count:
        place = chance.choices(range(len(pieces)), [piece.area for piece in pieces])[0]
        pieces += cut(pieces.pop(place), chance)
    chance.shuffle(pieces)
    lifetimes = [Lifetime(i, (p.high - p.low) * ARENA_ALIGNMENT, p.first, p.last) for i, p in enumerate(pieces)]
    return HardArena(tuple(lifetimes), UNITS * ARENA_ALIGNMENT)
