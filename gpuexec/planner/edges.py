"""Dependency edges between commands: read-after-write, write-after-read and write-after-write on bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuexec.ir.command import Command
from gpuexec.planner.unpacked_plan import slots_of

Edge = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Touch:
    """A command reads or writes bytes ``[low, high)`` of a buffer; of rows with gaps, ``width`` of each ``pitch``."""

    command: int
    low: int
    high: int
    written: bool
    width: int
    pitch: int

    def meets(self, other: Touch) -> bool:
        """Return whether both touch a byte, or may where their pitches differ."""
        if self.low >= other.high or other.low >= self.high:
            return False
        if self.pitch == other.pitch:
            shift = (other.low - self.low) % self.pitch
            return shift < self.width or shift + other.width > self.pitch
        rows, whole = (self, other) if other.width == other.pitch else (other, self)
        if whole.width != whole.pitch:
            return True
        first = max(0, (whole.low - rows.low - rows.width) // rows.pitch + 1)
        return rows.low + first * rows.pitch < min(whole.high, rows.high)

    def covers(self, other: Touch) -> bool:
        """Return whether all bytes of another are among those of this."""
        if other.low < self.low or self.high < other.high:
            return False
        is_within = self.pitch == other.pitch and (other.low - self.low) % self.pitch + other.width <= self.width
        return self.width == self.pitch or is_within


class Conflicts:
    """Commands in conflict: what they touch of each buffer, and the edges that follow within buffers.

    Args:
        commands: In plan order, over root buffers.

    Attributes:
        touches: The reads and writes of each buffer's bytes, in command order.
    """

    def __init__(self, commands: Sequence[Command]) -> None:
        self.touches = find_touches(commands)
        self._count = len(commands)
        self._within: set[Edge] = set()
        for own in self.touches.values():
            self._within.update(_order_within(own))

    def find_paths(self) -> list[int]:
        """Return for each command those before it by some path, as bits of an int; buffers share no bytes."""
        return find_paths(self._count, self._within)

    def find_edges(self, places: Mapping[int, tuple[int, int]]) -> tuple[Edge, ...]:
        """Return the edges where buffers lie in an arena; see `find_edges`."""
        edges = self._within
        if places:
            shared = {buffer: touches for buffer, touches in self.touches.items() if buffer in places}
            edges = edges | _order_between(shared, places)
        return _reduce(self._count, edges)


def find_edges(commands: Sequence[Command], places: Mapping[int, tuple[int, int]] | None = None) -> tuple[Edge, ...]:
    """Return pairs (before, after) so that a path joins any two commands in conflict, and no pair follows from others.

    Within one buffer the bytes of the slots decide. Between buffers that share arena bytes the whole buffers do, so
    that the edges hold for every size of the plan's class, whatever the slots' offsets.

    Args:
        commands: In plan order, over root buffers.
        places: Arena range ``[low, high)`` of the buffers that lie there; None: no two buffers share bytes.
    """
    return Conflicts(commands).find_edges(places or {})


def find_touches(commands: Sequence[Command]) -> dict[int, list[Touch]]:
    """Return the reads and writes of each buffer's bytes, in command order."""
    found: dict[int, list[Touch]] = {}
    for position, command in enumerate(commands):
        for slot, written in slots_of(command):
            low, high = slot.byte_range()
            if low < high:
                found.setdefault(slot.buffer, []).append(Touch(position, low, high, written, *slot.byte_rows()))
    return found


def find_paths(count: int, edges: Iterable[Edge]) -> list[int]:
    """Return for each command the set of commands before it by some path, as bits of an int."""
    reach = [0] * count
    for a, b in sorted(edges, key=lambda edge: edge[1]):
        reach[b] |= reach[a] | 1 << a
    return reach


def _order_within(touches: Sequence[Touch]) -> set[Edge]:
    # Rows of several pitches are ranges, gaps and all, as verification takes them.
    if len({touch.pitch for touch in touches if touch.width != touch.pitch}) > 1:
        touches = [replace(each, width=each.high - each.low, pitch=each.high - each.low) for each in touches]
    edges: set[Edge] = set()
    live: list[Touch] = []
    for touch in touches:
        kept = []
        for earlier in live:
            if earlier.command == touch.command:
                kept.append(earlier)
                continue
            if (earlier.written or touch.written) and earlier.meets(touch):
                edges.add((earlier.command, touch.command))
            # A write replaces all it covers: a command that conflicts with that conflicts with the write as well.
            if not (touch.written and touch.covers(earlier)):
                kept.append(earlier)
        live = [*kept, touch]
    return edges


def _order_between(touches: Mapping[int, list[Touch]], places: Mapping[int, tuple[int, int]]) -> set[Edge]:
    """Order buffers that share bytes, each after those it reuses the bytes of."""
    edges: set[Edge] = set()
    owners: list[tuple[int, int, int]] = []  # the last owner of bytes [low, high)
    for buffer in sorted(touches, key=lambda b: touches[b][0].command):
        low, high = places[buffer]
        left = []
        for first, last, owner in owners:
            if last <= low or high <= first:
                left.append((first, last, owner))
                continue
            edges.update(
                (a.command, b.command) for a in touches[owner] for b in touches[buffer] if a.written or b.written
            )
            if first < low:
                left.append((first, low, owner))
            if high < last:
                left.append((high, last, owner))
        owners = [*left, (low, high, buffer)]
    return edges


def _reduce(count: int, edges: Iterable[Edge]) -> tuple[Edge, ...]:
    before: list[list[int]] = [[] for _ in range(count)]
    for a, b in edges:
        before[b].append(a)
    reach = [0] * count
    kept = []
    for b in range(count):
        for a in sorted(before[b], reverse=True):
            if not reach[b] >> a & 1:
                kept.append((a, b))
                reach[b] |= reach[a] | 1 << a
    return tuple(sorted(kept))
