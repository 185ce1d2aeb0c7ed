"""Operations on a simulated device: what is run, and the bytes it reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Access:
    """A read or write of ``nbytes`` bytes by an operation."""

    address: int
    nbytes: int
    is_write: bool


@dataclass(frozen=True, slots=True)
class Operation:
    """A piece of work on a device: name for messages, bytes accessed, and the originating node, if known."""

    name: str
    run: Callable[[], None]
    accesses: tuple[Access, ...] = ()
    node: str = ""
