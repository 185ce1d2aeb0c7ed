"""Access history of bytes: the last write of each byte, and the reads since."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

Use = TypeVar("Use")
_START = itemgetter(0)


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
