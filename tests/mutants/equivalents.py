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
_UNSTORED = "only says whose sums somebody stores; the others may be made or not"
_BY_ONE = "a product with 1 is the other factor"
_MINUS_ZERO = "-0 goes into a sum that starts at 0"
_ASKED_BEFORE = "the body asks for the level first, and there is none of that number"
_STRIDE_0 = "levels that are not there have stride 0"
_AT_THE_BOUND = "at the bound itself both give the bound"
_EITHER_WAY = "takes the other of two ways that give the same result"

# fmt: off
EQUIVALENTS = (
    Equivalent("conv.cu", "multiply_tile(left, right, inner, row < rows && column < columns, sums);",
               "multiply_tile(left, right, inner, row <= rows && column < columns, sums);", _UNSTORED),
    Equivalent("conv.cu", "multiply_tile(left, right, inner, row < rows && column < columns, sums);",
               "multiply_tile(left, right, inner, row < rows && column <= columns, sums);", _UNSTORED),
    Equivalent("cumulative.cu", "for (int distance = 1; distance < team.lanes; distance *= 2) {",
               "for (int distance = 1; distance <= team.lanes; distance *= 2) {",
               "no lane is as far as the number of lanes, so the turn more adds nothing"),
    Equivalent("cumulative.cu",
               "const i64 start = end > 0 ? row_start(team.row, columns, inner) + (is_reverse ? (columns - 1) * inner : 0)"
               " : 0;",
               "const i64 start = end >= 0 ? row_start(team.row, columns, inner) + (is_reverse ? (columns - 1) * inner : 0)"
               " : 0;", _POINTER_ONLY),
    Equivalent("cumulative.cu", "for (i64 tile = 0; tile < columns; tile += lanes * items) {",
               "for (i64 tile = 0; tile <= columns; tile += lanes * items) {", "the tile more has no columns"),
    Equivalent("gemm_simt.cuh", "for (int j = 0; j < kSums; ++j) sums[i][j] = A(0);",
               "for (int j = 0; j < kSums; ++j) sums[j][i] = A(0);", "all of a square become 0 in either order"),
    Equivalent("gemm_simt.cuh", "bool has_next = k + kSlab < inner;", "bool has_next = k + kSlab <= inner;",
               "the slab more is all zeros, and nobody multiplies it"),
    Equivalent("matmul.cu", "bool has_few_rows = gemm.rows <= kFewRows;", "bool has_few_rows = gemm.rows < kFewRows;",
               _EITHER_WAY),
    Equivalent("matmul.cu", "if (is_scaled) sum = sum * A(gemm.alpha);", "sum = sum * A(gemm.alpha);", _BY_ONE),
    Equivalent("matmul.cu", "if (is_c_scaled) addend = addend * A(gemm.beta);", "addend = addend * A(gemm.beta);",
               _BY_ONE),
    Equivalent("matmul.cu", "__shared__ A partial[kFolds][kFewRows * kFewColumns + 1];",
               "__shared__ A partial[kFolds][kFewRows * kFewColumns + 1 - 1];",
               "the last column is there to spread the others over the banks"),
    Equivalent("matmul.cu", "for (int row = 0; row < kFewRows; ++row) {",
               "for (int row = 0; row <= kFewRows; ++row) {", "the body asks for rows, at most kFewRows"),
    Equivalent("matmul.cu",
               "multiply_tile(left, right, gemm.inner, row < gemm.rows && column < gemm.columns, sums);",
               "multiply_tile(left, right, gemm.inner, row <= gemm.rows && column < gemm.columns, sums);", _UNSTORED),
    Equivalent("matmul.cu",
               "multiply_tile(left, right, gemm.inner, row < gemm.rows && column < gemm.columns, sums);",
               "multiply_tile(left, right, gemm.inner, row < gemm.rows && column <= gemm.columns, sums);", _UNSTORED),
    Equivalent("pad.cu", "if (mode == kEdge) return at < 0 ? 0 : extent - 1;",
               "if (mode == kEdge) return at <= 0 ? 0 : extent - 1;", _ALREADY_INSIDE),
    Equivalent("pool.cu", "value = value < A(0) ? -value : value;", "value = value <= A(0) ? -value : value;",
               _MINUS_ZERO),
    Equivalent("resize.cu", "for (int axis = 0; axis < walk.rank; ++axis) {",
               "for (int axis = 0; axis <= walk.rank; ++axis) {",
               "nothing is left of the index after the last axis, so the coordinate is 0"),
    Equivalent("resize.cu", "for (int level = 0; level < kLevels; ++level) {",
               "for (int level = 0; level <= kLevels; ++level) {", _ASKED_BEFORE, (0, 1)),
    Equivalent("resize.cu",
               "for (int level = 0; level < kLevels; ++level) outside |= level < walk.levels &&"
               " positions[rows[level]] < 0;",
               "for (int level = 0; level <= kLevels; ++level) outside |= level < walk.levels &&"
               " positions[rows[level]] < 0;", _ASKED_BEFORE),
    Equivalent("resize.cu",
               "if (level < walk.levels) offset += positions[place.rows[level]] * walk.level_strides[level];",
               "if (level <= walk.levels) offset += positions[place.rows[level]] * walk.level_strides[level];", _STRIDE_0),
    Equivalent("resize.cu",
               "if (level < walk.levels) offset += positions[place.rows[level]] * walk.level_strides[level];",
               "offset += positions[place.rows[level]] * walk.level_strides[level];", _STRIDE_0),
    Equivalent("resize.cu", "if (rounded <= W(limits<T>::lowest())) return limits<T>::lowest();",
               "if (rounded < W(limits<T>::lowest())) return limits<T>::lowest();", _AT_THE_BOUND),
    Equivalent("resize.cu", "return rounded >= W(limits<T>::max()) ? limits<T>::max() : cast<T>(rounded);",
               "return rounded > W(limits<T>::max()) ? limits<T>::max() : cast<T>(rounded);", _AT_THE_BOUND),
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
               "if constexpr (kIsFloat<A>) return x <= A(0) ? -x : x + A(0);", _MINUS_ZERO),
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
