"""Mutants that do what the kernel does, each with the reason why nothing can change."""

from __future__ import annotations

from dataclasses import dataclass

from tests.mutants.mutate import Mutant


@dataclass(frozen=True, slots=True)
class Equivalent:
    """Mutants by file, line and changed line, without what stands around these.

    Where several lines of the file read the same, ``nth`` says which are meant, from 0.
    """

    file: str
    before: str
    after: str
    reason: str
    nth: tuple[int, ...] = (0,)

    def is_of(self, mutant: Mutant) -> bool:
        """Return whether a mutant is one of these."""
        return (
            (self.file, self.before, self.after) == (mutant.file, mutant.before.strip(), mutant.after.strip())
            and mutant.nth in self.nth
        )  # fmt: skip


_POINTER_ONLY = "only moves a pointer of a row that is not there; nothing is read or written through it"
_ENDED_BEFORE = "the loop has ended before: its body breaks at `own`, which is at most kHeld"
_ADDS_NOTHING = "takes in elements that hold -inf, of which the power is 0"
_ALREADY_INSIDE = "what lies inside, 0 too, has returned before"
_EITHER_WAY = "takes the other of two ways that give the same result"

# fmt: off
EQUIVALENTS = (
    Equivalent("pad.cu", "if (mode == kEdge) return at < 0 ? 0 : extent - 1;",
               "if (mode == kEdge) return at <= 0 ? 0 : extent - 1;", _ALREADY_INSIDE),
    Equivalent("softmax.cu", "const i64 start = end > 0 ? row_start(team.row, columns, inner) : 0;",
               "const i64 start = end >= 0 ? row_start(team.row, columns, inner) : 0;", _POINTER_ONLY, (0, 1)),
    Equivalent("softmax.cu", "if (columns <= i64(kHeld) * lanes) {", "if (columns < i64(kHeld) * lanes) {",
               _EITHER_WAY),
    Equivalent("softmax.cu", "const int own = end > team.lane ? int(end - team.lane + lanes - 1) / lanes : 0;",
               "const int own = end >= team.lane ? int(end - team.lane + lanes - 1) / lanes : 0;",
               "where both are equal the quotient is 0 too"),
    Equivalent("softmax.cu", "for (int i = 0; i < kHeld; ++i) {", "for (int i = 0; i <= kHeld; ++i) {", _ENDED_BEFORE),
    Equivalent("softmax.cu", "if (i >= own) break;", "if (i > own) break;", _ADDS_NOTHING),
    Equivalent("softmax.cu", "if (i >= own) break;", "", _ADDS_NOTHING),
    Equivalent("softmax.cu", "for (int i = 0; i < kHeld; ++i, destination += step) {",
               "for (int i = 0; i <= kHeld; ++i, destination += step) {", _ENDED_BEFORE),
)
# fmt: on


def reason_of(mutant: Mutant) -> str:
    """Return why a mutant can't be caught, or nothing where it should be."""
    return next((row.reason for row in EQUIVALENTS if row.is_of(mutant)), "")
