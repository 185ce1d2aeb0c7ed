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
_NOT_LIVE = "only places a row that is not there; nothing of it is read or written"
_PLACES_DIFFER = "two candidates never have the same place"
_NO_IDLE_LANES = "a team has no more lanes than terms, so every lane has met one before lanes meet"
_EQUALS_PASSED = "equal values have passed on before"
_FEW_WARPS = "a team that is the whole block leaves one value per warp"
_EITHER_WAY = "takes the other of two ways that give the same result"

# fmt: off
EQUIVALENTS = (
    Equivalent("pad.cu", "if (mode == kEdge) return at < 0 ? 0 : extent - 1;",
               "if (mode == kEdge) return at <= 0 ? 0 : extent - 1;", _ALREADY_INSIDE),
    Equivalent("reduce.cu", "if (walk.rank <= 1) {", "if (walk.rank < 1) {", _EITHER_WAY),
    Equivalent("reduce.cu", "for (; term + (kAhead - 1) * step < end; term += kAhead * step) {",
               "for (; term + (kAhead) * step < end; term += kAhead * step) {", _EITHER_WAY),
    Equivalent("reduce.cu", "if (is_live) kept.locate(team.row, start);", "kept.locate(team.row, start);", _NOT_LIVE,
               (0, 1, 2)),
    Equivalent("reduce.cu", "__shared__ Partial shared[kBlockThreads];",
               "__shared__ Partial shared[kBlockThreads - 1];", _FEW_WARPS, (1, 2)),
    Equivalent("reduce.cuh", "if (lanes <= kWarpThreads) return shuffle_first(value, width);",
               "if (lanes < kWarpThreads) return shuffle_first(value, width);", _EITHER_WAY),
    Equivalent("reduce.cuh", "if constexpr (kIsFloat<A>) return x < A(0) ? -x : x + A(0);",
               "if constexpr (kIsFloat<A>) return x <= A(0) ? -x : x + A(0);", "-0 goes into a sum that starts at 0"),
    Equivalent("reduce.cuh", "else return x < A(0) ? wrapping_neg(x) : x;",
               "else return x <= A(0) ? wrapping_neg(x) : x;", "the integer 0 has one form"),
    Equivalent("reduce.cuh", "if (a.place < 0 || b.place < 0) return b.place < 0;",
               "if (a.place < 0 || b.place < 0) return b.place <= 0;",
               _NO_IDLE_LANES),
    Equivalent("reduce.cuh", "if (a.place < 0 || b.place < 0) return b.place < 0;",
               "if (a.place <= 0 || b.place < 0) return b.place < 0;",
               "place 0 is the first that lane 0 meets, and lane 0 is `b` wherever lanes meet"),
    Equivalent("reduce.cuh",
               "if (!is_a_nan && a.value != b.value) return is_minimum ? a.value < b.value : a.value > b.value;",
               "if (!is_a_nan && a.value != b.value) return is_minimum ? a.value <= b.value : a.value > b.value;",
               _EQUALS_PASSED),
    Equivalent("reduce.cuh",
               "if (!is_a_nan && a.value != b.value) return is_minimum ? a.value < b.value : a.value > b.value;",
               "if (!is_a_nan && a.value != b.value) return is_minimum ? a.value < b.value : a.value >= b.value;",
               _EQUALS_PASSED),
    Equivalent("reduce.cuh", "return is_last_wanted ? a.place > b.place : a.place < b.place;",
               "return is_last_wanted ? a.place >= b.place : a.place < b.place;", _PLACES_DIFFER),
    Equivalent("reduce.cuh", "return is_last_wanted ? a.place > b.place : a.place < b.place;",
               "return is_last_wanted ? a.place > b.place : a.place <= b.place;", _PLACES_DIFFER),
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
