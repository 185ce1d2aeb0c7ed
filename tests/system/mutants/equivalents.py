"""Equivalent mutants, each with the reason: the list of equivalents.txt.

An entry is four lines: the file, the line, the changed line, the reason. Where several lines of a file read the same,
numbers behind its name say which are meant, from 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.system.mutants.mutate import Mutant

_MARKS = ("- ", "+ ", "= ")


@dataclass(frozen=True, slots=True)
class Equivalent:
    """An entry of the list; lines are without what stands around them."""

    file: str
    before: str
    after: str
    reason: str
    nth: tuple[int, ...]

    def is_of(self, mutant: Mutant) -> bool:
        """Return whether a mutant is meant."""
        lines = mutant.before.strip(), mutant.after.strip()
        return self.file == mutant.file and (self.before, self.after) == lines and mutant.nth in self.nth


def read_equivalents(text: str) -> tuple[Equivalent, ...]:
    """Return the entries of a list, which stand apart by empty lines."""
    found = []
    for entry in text.strip().split("\n\n"):
        head, *lines = entry.splitlines()
        assert len(lines) == 3 and all(line.startswith(mark.strip()) for line, mark in zip(lines, _MARKS)), entry
        file, *numbers = head.split()
        before, after, reason = (line[2:].strip() for line in lines)
        found.append(Equivalent(file, before, after, reason, tuple(map(int, numbers)) or (0,)))
    return tuple(found)


EQUIVALENTS = read_equivalents(Path(__file__).with_suffix(".txt").read_text())


def reason_of(mutant: Mutant) -> str:
    """Return why a mutant can't be caught, or nothing where it should be."""
    return next((row.reason for row in EQUIVALENTS if row.is_of(mutant)), "")
