"""Operations on a simulated device: what is run, and the bytes it reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

# How many launches before a dependent one count as under way when it begins: the one that lets it begin and, where that
# was let begin early itself, those before it.
GENERATIONS = 3


@dataclass(frozen=True, slots=True)
class Access:
    """A read or write of ``nbytes`` bytes by an operation: of all, or of rows of ``width`` bytes, ``pitch`` apart."""

    address: int
    nbytes: int
    is_write: bool
    width: int = 0
    pitch: int = 0

    def rows(self) -> Iterator[tuple[int, int]]:
        """Yield the first byte and the byte behind the last of each row, counted from the address."""
        if self.width == self.pitch:
            yield 0, self.nbytes
            return
        for first in range(0, self.nbytes, self.pitch):
            yield first, first + self.width


@dataclass(frozen=True, slots=True)
class Operation:
    """A piece of work on a device: name for messages, bytes accessed, and the originating node, if known.

    ``run`` of a launch takes the writes that it must wait for itself, where it is a dependent one.
    """

    name: str
    run: Callable[..., None]
    accesses: tuple[Access, ...] = ()
    node: str = ""


def begin_early(launch: Operation, predecessors: Sequence[Operation]) -> Operation:
    """Return a launch that begins before its predecessors are complete, and waits for them itself."""
    withheld = tuple(access for each in predecessors for access in each.accesses if access.is_write)
    return replace(launch, run=partial(launch.run, withheld))
