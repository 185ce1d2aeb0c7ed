"""Vector clocks for the happens-before order of operations."""

from __future__ import annotations

from dataclasses import dataclass


class Timeline:
    """The clock of a stream: a count of its operations.

    Attributes:
        number: Of the stream, in messages.
        tick: Operations so far.
        known: The stream's clock of other streams: later work on it comes after that many of their operations.
        seen: How many the host knows to be done.
    """

    __slots__ = ("known", "number", "seen", "tick")

    def __init__(self, number: int) -> None:
        self.number, self.tick, self.seen = number, 0, 0
        self.known: Clock = {}


Clock = dict[Timeline, int]


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One submission on a stream: an operation, or a graph of them."""

    timeline: Timeline
    tick: int


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """An operation that uses bytes; in a graph, ``node`` comes after the nodes whose bits are set in ``before``."""

    turn: Turn
    node: int
    before: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} on stream {self.turn.timeline.number}"


def is_before(earlier: Use, later: Use) -> bool:
    """Return whether an operation is ordered before one that is put on its stream now."""
    turn, timeline = earlier.turn, earlier.turn.timeline
    if timeline.seen >= turn.tick:
        return True
    if timeline is not later.turn.timeline:
        return later.turn.timeline.known.get(timeline, 0) >= turn.tick
    return turn is not later.turn or bool(later.before >> earlier.node & 1)


def join(clock: Clock, other: Clock) -> Clock:
    """Raise a clock to the maximum of two; return it."""
    for timeline, tick in other.items():
        if clock.get(timeline, 0) < tick:
            clock[timeline] = tick
    return clock
