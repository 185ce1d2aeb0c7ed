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
class StreamOperation:
    """One submission on a stream: an operation, or a graph of them."""

    timeline: Timeline
    tick: int


@dataclass(frozen=True, slots=True, eq=False)
class BytesAccess:
    """An operation that uses bytes; in a graph, ``node`` comes after the nodes whose bits are set in ``before``."""

    operation: StreamOperation
    node: int
    before: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} on stream {self.operation.timeline.number}"


def is_before(earlier: BytesAccess, later: BytesAccess) -> bool:
    """Return whether an operation is ordered before one that is put on its stream now."""
    operation, timeline = earlier.operation, earlier.operation.timeline
    if timeline.seen >= operation.tick:
        return True
    if timeline is not later.operation.timeline:
        return later.operation.timeline.known.get(timeline, 0) >= operation.tick
    return operation is not later.operation or bool(later.before >> earlier.node & 1)


def join(clock: Clock, other: Clock) -> Clock:
    """Raise a clock to the maximum of two; return it."""
    for timeline, tick in other.items():
        if clock.get(timeline, 0) < tick:
            clock[timeline] = tick
    return clock
