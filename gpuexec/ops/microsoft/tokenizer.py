"""Tokenizer: strings split at separators or into matches of a regular expression."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.host_values import require_const
from gpuexec.ir.operator import Array, Operator, Out, Tolerance, operator
from gpuexec.ir.spec import STRING, TensorSpec
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.microsoft.activation import DOMAIN
from gpuexec.ops.text.parts import HOST_REASON
from gpuexec.ops.text.pattern import parse
from gpuexec.ops.text.search import Searcher, build_searcher

_START, _END = "\x02", "\x03"


@operator("Tokenizer", DOMAIN)
@dataclass(frozen=True, slots=True)
class Tokenizer(Operator):
    r"""The tokens of each string along a new last axis, filled up with ``pad_value``.

    ``separators`` are patterns (RE2's syntax), applied one after the other to what the one before left; tokens are what
    lies between their matches. Else tokens are the matches of ``tokenexp``. A match is the leftmost and of those the
    longest; an empty one drops the character behind it. ``[""]`` and ``"."`` give single characters, a newline too.
    Tokens shorter than ``mincharnum`` characters are left out. With ``mark`` the tokens of a string stand between
    ``"\x02"`` and ``"\x03"``, unless no string has any.
    """

    mark: int
    mincharnum: int
    pad_value: str
    separators: tuple[str, ...] | None = None
    tokenexp: str | None = None
    tolerance = Tolerance.EXACT
    host_reason = HOST_REASON
    example = "string[2] mark=0 mincharnum=1 pad_value='#' separators=('-',)"
    flops_per_output = None
    keeps_dtype = True

    def __post_init__(self) -> None:
        if not (self.separators or (self.separators is None and self.tokenexp)):
            raise InputError(f"{self.name} expects separators or tokenexp, and not an empty one.")
        if self.mincharnum < 1:
            raise InputError(f"{self.name} expects mincharnum to be 1 or more, got {self.mincharnum}.")
        if self._takes_characters and self.mincharnum > 1:
            raise InputError(f"{self.name} expects mincharnum 1 where tokens are characters, got {self.mincharnum}.")
        self._choose_split()

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Count the tokens; the strings must be known for that.

        Raises:
            InputError: They are no list and no matrix.
        """
        check_dtype(self.name, x, (STRING,))
        if x.rank not in (1, 2):
            raise InputError(f"{self.name} expects strings [count] or [rows, count], got {x}.")
        if not x.size:
            return (TensorSpec((*x.shape[:-1], 0), STRING),)
        rows = self._split(require_const(x, "X", 0))
        return (TensorSpec((*x.shape, max(map(len, rows))), STRING),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Split, and fill up."""
        if not x.size:
            return (np.empty((*x.shape[:-1], 0), STRING),)
        rows = self._split(x)
        y = np.full((len(rows), max(map(len, rows))), self.pad_value, STRING)
        for row, found in zip(y, rows, strict=True):
            row[: len(found)] = found
        return (y.reshape(*x.shape, y.shape[1]),)

    @property
    def _takes_characters(self) -> bool:
        return self.separators == ("",) or (self.separators is None and self.tokenexp == ".")

    def _split(self, x: Array) -> list[list[str]]:
        """Return the tokens of each string, marked."""
        split = self._choose_split()
        rows = [split(text) for text in x.reshape(-1).tolist()]
        return [[_START, *row, _END] for row in rows] if self.mark and any(rows) else rows

    def _choose_split(self) -> Callable[[str], list[str]]:
        """Return the function that splits a string."""
        if self._takes_characters:
            return list
        if self.separators is None:
            assert self.tokenexp
            searcher = _build(self.tokenexp)
            return lambda text: list(_match_tokens(text, searcher, self.mincharnum))
        searchers = [_build(separator) for separator in self.separators]
        return lambda text: _separate(text, searchers, self.mincharnum)


def _separate(text: str, searchers: Sequence[Searcher], min_length: int) -> list[str]:
    """Return the parts between the matches of each separator in turn."""
    pieces = [text]
    for searcher in searchers:
        pieces = [part for piece in pieces for part in _cut(piece, searcher) if len(part) >= min_length]
    return pieces


def _cut(text: str, searcher: Searcher) -> Iterator[str]:
    """Yield the parts between the matches of a separator; after an empty match a character is skipped."""
    search, start = searcher.begin(text), 0
    while start <= len(text):
        found = search(start)
        if found is None:
            yield text[start:]
            return
        first, end = found
        yield text[start:first]
        start = end if end > first else end + 1


def _match_tokens(text: str, searcher: Searcher, min_length: int) -> Iterator[str]:
    """Yield matches one after the other; after one that is too short the search continues a character further."""
    if len(text) < min_length:
        return
    search, start = searcher.begin(text), 0
    while start <= len(text) and (found := search(start)) is not None:
        first, end = found
        start = first + 1
        if end - first >= min_length:
            yield text[first:end]
            start = end


@lru_cache(64)
def _build(pattern: str) -> Searcher:
    return build_searcher(parse(pattern))
