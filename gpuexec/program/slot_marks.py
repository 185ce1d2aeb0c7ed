"""Freshness of input slots, where other Methods use the same memory."""

from __future__ import annotations

from gpuexec.program.memory_manager import Sharing
from gpuexec.program.method_places import InputPlaces


class SlotMarks:
    """Marks of slots, to tell those that somebody else has used since they were written.

    Args:
        places: Which inputs have slots.
        sharing: What is shared with other Methods whose slots are in the same memory; None: nothing.
    """

    def __init__(self, places: InputPlaces, sharing: Sharing | None) -> None:
        self._places, self._sharing = places, sharing
        self._marks: dict[str, int] = {}

    def enter(self) -> int:
        """Note that this Method uses the slots now; return the count of users so far."""
        return 0 if self._sharing is None else self._sharing.enter(self)

    def note(self, name: str) -> None:
        """Note that what an input is set to got into its slot now, if it has one."""
        if self._places.find_slot(name) is not None:
            self._marks[name] = self.enter()

    def forget(self, name: str) -> None:
        """Forget when an input got into its slot."""
        self._marks.pop(name, None)

    def list_lost(self) -> list[str]:
        """Return the inputs whose slots somebody else has used since, and enter."""
        now = self.enter()
        return [name for name, mark in self._marks.items() if mark != now]

    def clear(self) -> None:
        """Forget all."""
        self._marks.clear()
