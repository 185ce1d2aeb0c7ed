"""Data-race detection: a happens-before check by vector clocks, independent of which operation ran first.

Every operation put on a stream increments the stream's clock. A stream learns the clocks of others from the events it
waits for; the host, from what it waited for or saw done; commands of a graph, from the paths of its edges. Two
operations that access a common byte, one of them writing, must be ordered by these clocks; else the one issued later is
refused.

NOTE: what one thread of the host sees done, others may rely on, since synchronization between Python's threads can't be
observed. So the host has one clock, but for threads that only watch events (`WatcherThread`), which have their own.
"""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

from gpuexec.devices.completion import WatcherThread
from gpuexec.devices.simulator.address_map import AddressMap
from gpuexec.devices.simulator.operations import Operation
from gpuexec.devices.simulator.timeline import BytesAccess, Clock, StreamOperation, Timeline, is_before, join
from gpuexec.errors import OrderError

Use = TypeVar("Use")
_START = itemgetter(0)


@dataclass(frozen=True, slots=True)
class OrderFinding:
    """Two unordered accesses to the bytes ``[first, last)`` of an allocation; ``cure`` says what would order them."""

    earlier: str
    later: str
    first: int
    last: int
    place: str
    cure: str

    def __str__(self) -> str:
        return (
            f"{self.later} bytes {self.first} to {self.last} of {self.place}, which {self.earlier}, and nothing orders"
            f" the two: {self.cure}."
        )


@dataclass(frozen=True, slots=True, eq=False)
class TrackedBlock:
    """An allocation that operations use."""

    kind: str
    address: int
    history: ByteHistory[BytesAccess]

    def __str__(self) -> str:
        return f"{self.history.nbytes} bytes of {self.kind} at {self.address:#x}"


class AccessedBytes(NamedTuple):
    """The bytes ``[first, last)`` of an allocation, read or written."""

    block: TrackedBlock
    first: int
    last: int
    is_write: bool


class Ordering:
    """The clocks of a device's streams, and the access history of its memory. Thread-safe.

    Streams report to `open_timeline`, `add`, `add_graph`, `mark`, `wait`; the host to `see`, `check_host`, `free`,
    `free_later`.

    Args:
        spaces: Live blocks of memory, by name of the memory.
        is_alive: Whether the device works: once it is lost, nothing uses its memory any more.
        is_on: Whether anything is checked at all.
    """

    def __init__(self, spaces: Mapping[str, AddressMap], is_alive: Callable[[], bool], is_on: bool) -> None:
        self._spaces, self._is_alive, self._is_on = spaces, is_alive, is_on
        self._used: dict[int, TrackedBlock] = {}
        self._apart = threading.local()
        self._gone: deque[tuple[int, bool, Clock | None]] = deque()
        self._count = 0
        self._lock = threading.RLock()
        self._findings: list[OrderFinding] = []

    @property
    def findings(self) -> tuple[OrderFinding, ...]:
        """All findings so far."""
        with self._lock:
            while self._gone:
                with contextlib.suppress(OrderError):
                    self._forget_gone()
            return tuple(self._findings)

    def open_timeline(self) -> Timeline:
        """Return the timeline of a new stream."""
        with self._lock:
            self._count += 1
            return Timeline(self._count)

    def close(self) -> None:
        """Stop checking; the caller has waited for all work."""
        self._is_on = False

    def add(self, timeline: Timeline, operation: Operation) -> None:
        """Record an operation put on a stream.

        Raises:
            OrderError: It uses bytes that another uses, and nothing orders the two.
        """
        self.add_graph(timeline, (operation,), (0,), (0,))

    def add_graph(
        self, timeline: Timeline, nodes: Sequence[Operation], order: Sequence[int], before: Sequence[int]
    ) -> None:
        """Record a graph put on a stream.

        Args:
            timeline: The stream's.
            nodes: The operations.
            order: Their positions in an order the edges allow.
            before: For each, the nodes from which a path leads to it, as bits.

        Raises:
            OrderError: One uses bytes that another uses, and nothing orders the two.
        """
        if not self._is_on:
            return
        with self._lock:
            self._forget_gone()
            self._join_own_knowledge(timeline)
            timeline.tick += 1
            operation = StreamOperation(timeline, timeline.tick)
            found = [self._find_places(node) for node in nodes]
            blocks = {place.block for places in found for place in places} if len(nodes) > 1 else set()
            kept = [(block.history, block.history.copy()) for block in blocks]
            try:
                for node in order:
                    self._add(found[node], BytesAccess(operation, node, before[node], nodes[node].name))
            except OrderError:
                for history, copy in kept:  # nothing of it will run
                    history.restore(copy)
                raise

    def mark(self, timeline: Timeline) -> Clock:
        """Return the clock of all work on a stream, and all work ordered before it."""
        if not self._is_on:
            return {}
        with self._lock:
            self._join_own_knowledge(timeline)
            return {**timeline.known, timeline: timeline.tick}

    def wait(self, timeline: Timeline, mark: Clock) -> None:
        """Order later operations of a stream after a mark."""
        with self._lock:
            join(timeline.known, mark)
            for other in [other for other, tick in timeline.known.items() if other.seen >= tick]:
                del timeline.known[other]

    def see(self, mark: Clock) -> None:
        """Order what the host does from now on after a mark that it waited for, or saw done."""
        with self._lock:
            if isinstance(threading.current_thread(), WatcherThread):
                known = join(dict(self._known_apart() or {}), mark)
                # Marks that the whole host has seen by now are dropped, or streams long gone would pile up.
                self._apart.seen = {other: tick for other, tick in known.items() if other.seen < tick}
                return
            for timeline, tick in mark.items():
                timeline.seen = max(timeline.seen, tick)

    def check_host(self, address: int, nbytes: int, is_write: bool) -> None:
        """Check that the host may read or write memory now.

        Raises:
            OrderError: An operation that uses it, and need not be done.
        """
        if not self._is_on:
            return
        later = "the host writes" if is_write else "the host reads"
        with self._lock:
            self._forget_gone()
            block = self._find_block(address, nbytes)
            if block is not None:
                first = address - block.address
                self._check_seen(block, first, first + nbytes, later, is_write, self._known_apart())

    def free(self, address: int, after: Sequence[Clock] = ()) -> None:
        """Check that a block may be freed now, and drop its history; with ``after``, keep it.

        Args:
            address: Of the block.
            after: Marks of the streams whose work may use it still: its next user has to come after that.

        Raises:
            OrderError: Another operation that uses it need not be done.
        """
        with self._lock:
            self._forget_gone()
            known = self._known_apart()
            for mark in after:
                known = join(dict(known or {}), mark)
            self._free(address, True, known, is_kept=bool(after))

    def free_later(self, address: int, *, is_checked: bool = True) -> None:
        """Note that a block is gone, from any garbage collection: the next call processes it."""
        if self._is_on:
            self._gone.append((address, is_checked, self._known_apart()))

    def _find_places(self, operation: Operation) -> list[AccessedBytes]:
        """Return the places in the device's allocations that an operation uses."""
        places = []
        for access in operation.accesses:
            block = self._find_block(access.address, access.nbytes)
            if block is not None:
                start = access.address - block.address
                places += [
                    AccessedBytes(block, start + first, start + last, access.is_write) for first, last in access.rows()
                ]
        return places

    def _add(self, places: Sequence[AccessedBytes], use: BytesAccess) -> None:
        for block, first, last, is_write in places:
            for low, high, cell in block.history.find(first, last):
                for other, verb in _find_rivals(cell, is_write):
                    if not is_before(other, use):
                        later = f"{use} {'writes' if is_write else 'reads'}"
                        self._report(block, low, high, f"{other} {verb}", later, _find_cure(other, use))
        for block, first, last, is_write in places:
            if is_write:
                block.history.add_write(first, last, use)
            else:
                block.history.add_read(first, last, use, is_before)

    def _check_seen(
        self, block: TrackedBlock, first: int, last: int, later: str, is_write: bool, apart: Clock | None
    ) -> None:
        """Check that the host has seen the end of all uses of some bytes."""
        for low, high, cell in block.history.find(first, last):
            for other, verb in _find_rivals(cell, is_write):
                timeline, tick = other.operation.timeline, other.operation.tick
                if timeline.seen < tick and (apart is None or apart.get(timeline, 0) < tick):
                    cure = f"wait for an event recorded on stream {timeline.number} after it, or for the stream"
                    self._report(block, low, high, f"{other} {verb}", later, cure)

    def _free(self, address: int, is_checked: bool, apart: Clock | None, *, is_kept: bool = False) -> None:
        block = self._used.get(address)
        if block is None:
            return
        if is_checked and self._is_on:
            self._check_seen(block, 0, block.history.nbytes, "the host frees", True, apart)
        if not is_kept:
            del self._used[address]

    def _forget_gone(self) -> None:
        while self._gone:
            address, is_checked, apart = self._gone.popleft()
            try:
                self._free(address, is_checked, apart)
            finally:
                self._used.pop(address, None)

    def _find_block(self, address: int, nbytes: int) -> TrackedBlock | None:
        """Return the allocation that a range lies in; None where it is not the device's."""
        for kind, blocks in self._spaces.items():
            found = blocks.find(address, nbytes)
            if found is not None:
                start, size = found
                if start not in self._used:
                    self._used[start] = TrackedBlock(kind, start, ByteHistory(size))
                return self._used[start]
        return None

    def _join_own_knowledge(self, timeline: Timeline) -> None:
        """Order what this thread puts on a stream after the marks that this thread alone has seen."""
        apart = self._known_apart()
        if apart:
            join(timeline.known, apart)

    def _known_apart(self) -> Clock | None:
        """Return the clock of the marks that this thread alone has seen."""
        return getattr(self._apart, "seen", None)

    def _report(self, block: TrackedBlock, first: int, last: int, earlier: str, later: str, cure: str) -> None:
        if not self._is_alive():
            return
        finding = OrderFinding(earlier, later, first, last, str(block), cure)
        self._findings.append(finding)
        message = str(finding)
        raise OrderError(message[0].upper() + message[1:])


class Cell(NamedTuple, Generic[Use]):
    """Adjacent bytes with the same history: the last write, and the reads since."""

    write: Use | None
    reads: tuple[Use, ...]


class ByteHistory(Generic[Use]):
    """The access history of ``nbytes`` bytes, as adjacent cells.

    They stand in one list, with the byte that each begins at, so that an interrupt finds it before a change or after.
    """

    __slots__ = ("_rows", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._rows: list[tuple[int, Cell[Use]]] = [(0, Cell(None, ()))]

    def find(self, first: int, last: int) -> Iterator[tuple[int, int, Cell[Use]]]:
        """Yield the pieces of the bytes ``[first, last)`` with their cells."""
        rows = self._rows
        for index in range(bisect_right(rows, first, key=_START) - 1, bisect_left(rows, last, key=_START)):
            start, cell = rows[index]
            end = rows[index + 1][0] if index + 1 < len(rows) else self.nbytes
            yield max(first, start), min(last, end), cell

    def add_write(self, first: int, last: int, use: Use) -> None:
        """Record a write of the bytes ``[first, last)``, which replaces all earlier accesses: they come before it."""
        begin, end = self._split(first), self._split(last)
        self._rows[begin:end] = [(first, Cell(use, ()))]

    def add_read(self, first: int, last: int, use: Use, is_before: Callable[[Use, Use], bool]) -> None:
        """Record a read of the bytes ``[first, last)``; it replaces the reads ordered before it."""
        begin, end = self._split(first), self._split(last)
        for index in range(begin, end):
            start, (write, reads) = self._rows[index]
            self._rows[index] = start, Cell(write, (*(read for read in reads if not is_before(read, use)), use))

    def copy(self) -> ByteHistory[Use]:
        """Return an independent copy of the history."""
        made = ByteHistory[Use](self.nbytes)
        made._rows = list(self._rows)
        return made

    def restore(self, copy: ByteHistory[Use]) -> None:
        """Undo the accesses recorded since a copy was made."""
        self._rows = copy._rows

    def _split(self, at: int) -> int:
        """Split the cells at a byte; return the index of the cell that begins there."""
        rows = self._rows
        if at == self.nbytes:
            return len(rows)
        index = bisect_left(rows, at, key=_START)
        if index == len(rows) or rows[index][0] != at:
            rows.insert(index, (at, rows[index - 1][1]))
        return index


def _find_rivals(cell: Cell[BytesAccess], is_write: bool) -> Iterator[tuple[BytesAccess, str]]:
    """Yield the accesses that a read or write of a cell must come after, each with its kind."""
    if cell.write is not None:
        yield cell.write, "writes"
    if is_write:
        for read in cell.reads:
            yield read, "reads"


def _find_cure(earlier: BytesAccess, later: BytesAccess) -> str:
    if later.operation is earlier.operation:
        first, second = sorted((earlier.node, later.node))
        return f"the graph lacks an edge from node {first} to node {second}"
    own, other = later.operation.timeline.number, earlier.operation.timeline.number
    return f"let stream {own} wait for an event recorded on stream {other} after it"
