"""TfIdfVectorizer: counts of n-grams; integers on the device, strings on the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32, int64
from gpuexec.ir.operator import Array, Emitter, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import STRING, TensorSpec, dtype_row
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.strided import pack_fast_div64
from gpuexec.ops.ml.ngrams import Grams, build_grams
from gpuexec.ops.ml.table_operator import FLOAT, INT32, INT64, TableOperator, as_rows

SOURCE = "tfidf.cu"
_THREADS = 256  # kThreads of tfidf.cu
_MODES = ("TF", "IDF", "TFIDF")
instantiate(SOURCE, ["count_ngrams<i32>", "count_ngrams<i64>", "weigh_ngrams"])


@dataclass(frozen=True, slots=True, eq=False)
class Weighing:
    """Weighting of n-gram counts.

    Attributes:
        grams: The n-grams.
        starts: Begin of the n-grams of each column of the result in ``members``.
        members: N-grams, by column.
        weights: By n-gram, what its count is multiplied by.
    """

    grams: Grams
    starts: Array
    members: Array
    weights: Array

    @property
    def columns(self) -> int:
        """Return the number of columns of the result."""
        return self.starts.size - 1


@operator("TfIdfVectorizer")
@dataclass(frozen=True, slots=True)
class TfIdfVectorizer(TableOperator[Weighing]):
    """Counts of the n-grams of a pool in each row, each in its column.

    Tokens of one may have up to ``max_skip_count`` others between them, always as many. IDF counts an n-gram once at
    most; it and TFIDF multiply by the n-gram's weight. Where n-grams share a column they add up.
    """

    max_gram_length: int
    max_skip_count: int
    min_gram_length: int
    mode: str
    ngram_counts: tuple[int, ...]
    ngram_indexes: tuple[int, ...]
    pool_int64s: tuple[int, ...] | None = None
    pool_strings: tuple[str, ...] | None = None
    weights: tuple[float, ...] | None = None
    tolerance = Tolerance.REDUCTION
    example = (
        "int64[2] max_gram_length=1 max_skip_count=0 min_gram_length=1 mode='TF' ngram_counts=(0,) "
        "ngram_indexes=(0,1) pool_int64s=(7,7) | "
        "string[2] max_gram_length=1 max_skip_count=0 min_gram_length=1 mode='TF' ngram_counts=(0,) "
        "ngram_indexes=(0,) pool_strings=('a',)"
    )
    flops_per_output = None
    has_blits = False

    def make_tables(self) -> Weighing:
        """Return the tables of the attributes."""
        min_length, max_length = self.min_gram_length, self.max_gram_length
        if self.mode not in _MODES:
            raise InputError(f"mode expects {', '.join(_MODES)}, got {self.mode!r}.")
        if not 1 <= min_length <= max_length <= len(self.ngram_counts) or self.max_skip_count < 0:
            raise InputError(
                "expected 1 <= min_gram_length <= max_gram_length <= the number of ngram_counts, and a max_skip_count"
                f" of 0 or more, got {min_length}, {max_length}, {len(self.ngram_counts)} and {self.max_skip_count}."
            )
        if (self.pool_int64s is None) == (self.pool_strings is None):
            raise InputError("expected a pool in pool_int64s or pool_strings, got both or neither.")
        pool = (self.pool_int64s if self.pool_strings is None else self.pool_strings) or ()
        grams = build_grams(pool, self.ngram_counts, min_length, max_length)
        columns, weights = np.array(self.ngram_indexes, np.int64), np.array(self.weights or [1.0] * grams.count, FLOAT)
        if not columns.size == weights.size == grams.count or columns.min(initial=0) < 0:
            raise InputError(
                f"expected ngram_indexes of 0 or more and weights for {grams.count} n-grams, got {list(columns)} and"
                f" {weights.size} weights."
            )
        members = np.argsort(columns, kind="stable")
        starts = np.searchsorted(columns[members], np.arange(columns.max(initial=-1) + 2))
        return Weighing(grams, starts.astype(np.int32), members.astype(np.int32), weights)

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Replace the tokens' axis by the columns.

        Raises:
            InputError: The tokens are not of the pool's kind, or no rows.
        """
        check_dtype(self.name, x, (INT32, INT64) if self.pool_strings is None else (STRING,))
        if x.rank not in (1, 2):
            raise InputError(f"{self.name} expects tokens [count] or [rows, count], got {x}.")
        return (TensorSpec((*x.shape[:-1], self.tables.columns), FLOAT),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Count all n-grams at once, token by token, from each place and with each distance."""
        tables, rows = self.tables, as_rows(x)
        numbers, grams = tables.grams.number(rows), tables.grams
        counts = np.zeros((len(rows), grams.count), np.int64)
        for distance in range(1, self.max_skip_count + 2):
            nodes = np.zeros(rows.shape, np.int64)
            for length in range(1, self.max_gram_length + 1):
                kept = max(0, rows.shape[1] - (length - 1) * distance)
                nodes = grams.follow(nodes[:, :kept], numbers[:, rows.shape[1] - kept :])
                if length > 1 or distance == 1:  # one token has no distance
                    found = np.where(nodes >= 0, grams.found[nodes], -1)
                    np.add.at(counts, (np.nonzero(found >= 0)[0], found[found >= 0]), 1)
        weighed = counts.astype(FLOAT) if self.mode != "IDF" else (counts > 0).astype(FLOAT)
        if self.mode != "TF":
            weighed *= tables.weights
        y = np.zeros((tables.columns, len(rows)), FLOAT)
        np.add.at(y, np.array(self.ngram_indexes, np.int64), weighed.T)
        return (np.ascontiguousarray(y.T).reshape(*x.shape[:-1], tables.columns),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a thread per place and distance, which counts, and one per element of the result."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        tables, grams = self.tables, self.tables.grams
        columns = x.shape[-1]
        distances = self.max_skip_count + 1
        rows = x.spec.size // columns if columns else 0
        counts = emit.temp((y.spec.size // max(1, tables.columns), max(1, grams.count)), np.uint32)
        emit.fill(counts, 0)
        extents = [int64(each) for each in (columns, grams.vocabulary.size, grams.edges.size, counts.shape[1])]
        emit.launch(
            Kernel(SOURCE, f"count_ngrams<{dtype_row(x.dtype).cuda}>"),
            (max(1, ceil_div(x.spec.size * distances, _THREADS)), 1, 1),
            (_THREADS, 1, 1),
            [
                emit.contiguous(x),
                *(emit.constant(_filled(table)) for table in (grams.vocabulary, grams.edges, grams.targets)),
                emit.constant(grams.found),
                counts,
                int64(rows * columns * distances),
                pack_fast_div64(max(1, columns)),
                pack_fast_div64(distances),
                *extents,
                int64(grams.tokens),
                int32(self.max_gram_length),
            ],
            writes=[5],
        )
        emit.launch(
            Kernel(SOURCE, "weigh_ngrams"),
            (max(1, ceil_div(y.spec.size, _THREADS)), 1, 1),
            (_THREADS, 1, 1),
            [
                counts,
                *(emit.constant(_filled(table)) for table in (tables.starts, tables.members, tables.weights)),
                y,
                int64(y.spec.size),
                pack_fast_div64(max(1, tables.columns)),
                int64(counts.shape[1]),
                int32(_MODES.index(self.mode)),
            ],
            writes=[4],
        )


def _filled(table: Array) -> Array:
    """Return a table, one element where it has none: an address is wanted."""
    return table if table.size else np.zeros(1, table.dtype)
