"""Claims on the user's memory: Methods may use the same bytes only where they take turns."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass

from gpuexec.devices.device import align
from gpuexec.errors import ErrorCode, InputError


@dataclass(frozen=True, slots=True, eq=False)
class _ClaimedRange:
    """Addresses ``[first, last)`` claimed for ``what``; those of an equal ``group`` may overlap, of None never."""

    first: int
    last: int
    what: str
    group: object | None


class Claim:
    """Bytes that a Method works in, until it releases them or nobody holds this any more. Made by `claim`."""

    __slots__ = ("_range",)

    def __init__(self, found: _ClaimedRange) -> None:
        self._range: _ClaimedRange | None = found

    @property
    def address(self) -> int:
        """Of the first byte; 0 once released."""
        return 0 if self._range is None else self._range.first

    def check_apart(self, first: int, nbytes: int, what: str) -> None:
        """Check that other bytes are not among these.

        Raises:
            InputError: They are.
        """
        if self._range is not None and _overlap(self._range, first, first + nbytes):
            raise InputError(f"{what} overlaps {_lower(self._range.what)}; give each bytes of its own.")

    def release(self) -> None:
        """Release the bytes. Twice is harmless."""
        found, self._range = self._range, None
        if found is not None:
            with _lock:
                _held.pop(id(found), None)

    def __del__(self) -> None:
        self.release()


# Of the process, as addresses are: those of host and devices are all different. A collection may release.
_lock = threading.RLock()
_held: dict[int, _ClaimedRange] = {}


def claim(first: int, nbytes: int, what: str, group: tuple[object, ...]) -> Claim:
    """Claim bytes at an address; claims of an equal ``group`` may overlap, since their users take turns.

    Raises:
        InputError: They overlap what another claims; names both.
    """

    def take() -> _ClaimedRange:
        last = first + nbytes
        other = next((row for row in _held.values() if _overlap(row, first, last) and row.group != group), None)
        if other is not None:
            raise InputError(
                f"{what} overlaps {_lower(other.what)}. Buffers of one Method each need bytes of their own; Methods"
                " that share theirs are loaded over one HierarchicalAllocator, which makes them take turns, or closed"
                " one before the other."
            )
        return _ClaimedRange(first, last, what, group)

    return _claim(take)


def claim_part(first: int, available: int, nbytes: int, what: str) -> Claim:
    """Claim the first bytes of a block that nobody else has, for oneself alone.

    Raises:
        InputError: Too few are left; tells how many.
    """

    def take() -> _ClaimedRange:
        start, end = first, first + available
        for row in sorted(_held.values(), key=lambda row: row.first):
            if _overlap(row, start, start + nbytes):
                start = align(row.last)
        if start + nbytes > end:
            error = InputError(
                f"{what} needs {nbytes} bytes of its own, and {max(end - start, 0)} of {available} are left: Methods"
                " over one HierarchicalAllocator each take a part. Give a larger block."
            )
            error.code = ErrorCode.MEMORY_ALLOCATION_FAILED
            raise error
        return _ClaimedRange(start, start + nbytes, what, None)

    return _claim(take)


def _claim(take: Callable[[], _ClaimedRange]) -> Claim:
    with _lock:
        found = None
        with contextlib.suppress(InputError):
            found = take()
        if found is None:
            # Methods that nobody holds, and nobody closed, may be in the way.
            gc.collect()
            found = take()
        _held[id(found)] = found
        return Claim(found)


def _lower(what: str) -> str:
    return what[:1].lower() + what[1:]


def _overlap(row: _ClaimedRange, first: int, last: int) -> bool:
    return row.first < last and first < row.last
