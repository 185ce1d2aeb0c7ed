"""Who wrote each byte of an allocation last, and who has read it since."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

Use = TypeVar("Use")


class Cell(NamedTuple, Generic[Use]):
    """Bytes that have the same history: the last write, and the reads since."""

    write: Use | None
    reads: tuple[Use, ...]


class ByteHistory(Generic[Use]):
    """The history of ``nbytes`` bytes, as cells that touch without a gap."""

    __slots__ = ("_cells", "_starts", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._starts = [0]
        self._cells: list[Cell[Use]] = [Cell(None, ())]

    def find(self, first: int, last: int) -> Iterator[tuple[int, int, Cell[Use]]]:
        """Yield the pieces of the bytes ``[first, last)`` with their cells."""
        starts = self._starts
        for index in range(bisect_right(starts, first) - 1, bisect_left(starts, last)):
            end = starts[index + 1] if index + 1 < len(starts) else self.nbytes
            yield max(first, starts[index]), min(last, end), self._cells[index]

    def add_write(self, first: int, last: int, use: Use) -> None:
        """Let a write stand for all that happened to the bytes ``[first, last)``, all of it being before the write."""
        begin, end = self._split(first), self._split(last)
        self._starts[begin:end] = [first]
        self._cells[begin:end] = [Cell(use, ())]

    def add_read(self, first: int, last: int, use: Use, is_before: Callable[[Use, Use], bool]) -> None:
        """Add a read of the bytes ``[first, last)``; it stands for the reads before it."""
        begin, end = self._split(first), self._split(last)
        for index in range(begin, end):
            write, reads = self._cells[index]
            self._cells[index] = Cell(write, (*(read for read in reads if not is_before(read, use)), use))

    def copy(self) -> ByteHistory[Use]:
        """Return a history that goes on apart from this one."""
        made = ByteHistory[Use](self.nbytes)
        made._starts, made._cells = list(self._starts), list(self._cells)
        return made

    def restore(self, copy: ByteHistory[Use]) -> None:
        """Forget what was added since a copy was made."""
        self._starts, self._cells = copy._starts, copy._cells

    def _split(self, at: int) -> int:
        """Let a cell begin at a byte; return its index."""
        if at == self.nbytes:
            return len(self._starts)
        index = bisect_left(self._starts, at)
        if index == len(self._starts) or self._starts[index] != at:
            self._starts.insert(index, at)
            self._cells.insert(index, self._cells[index - 1])
        return index
