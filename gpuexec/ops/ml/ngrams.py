"""Trie of n-grams, as tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.operator import Array
from gpuexec.ir.spec import STRING

_INT64 = np.dtype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Grams:
    """N-grams as a tree of tokens; node 0 is its root.

    Attributes:
        words: Tokens of strings, by their number; of integers, none.
        vocabulary: Tokens of integers in rising order; a token's place is its number. Of strings, none.
        edges: ``node * tokens + number`` of each edge, in rising order.
        targets: The node each edge leads to.
        found: By node, the n-gram that ends there; -1: none.
        count: Number of n-grams.
    """

    words: dict[str, int]
    vocabulary: Array
    edges: Array
    targets: Array
    found: Array
    count: int

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return max(1, len(self.words), self.vocabulary.size)

    def number(self, x: Array) -> Array:
        """Return the numbers of tokens; -1 for those in no n-gram."""
        if x.dtype == STRING:
            found = [self.words.get(item, -1) for item in x.reshape(-1).tolist()]
            return np.array(found, _INT64).reshape(x.shape)
        return _find(self.vocabulary, x.astype(_INT64), np.arange(self.vocabulary.size))

    def follow(self, nodes: Array, numbers: Array) -> Array:
        """Return the next nodes by tokens; -1 where there is none, or was none before."""
        is_there = (nodes >= 0) & (numbers >= 0)
        return np.where(is_there, _find(self.edges, nodes * self.tokens + numbers, self.targets), -1)


def build_grams(pool: tuple[Any, ...], starts: tuple[int, ...], min_length: int, max_length: int) -> Grams:
    """Return the tree of the n-grams of ``min_length`` to ``max_length`` tokens in a pool.

    Those of n tokens begin at ``starts[n - 1]``. All n-grams count for their numbers; of equal ones the last stands.

    Raises:
        InputError: The starts are not in order, outside the pool, or not whole n-grams apart.
    """
    ends = (*starts[1:], len(pool))
    edges: dict[tuple[int, Any], int] = {}
    found, count = [-1], 0
    for length, (start, end) in enumerate(zip(starts, ends, strict=False), 1):
        if not 0 <= start <= end or (end - start) % length:
            raise InputError(
                f"ngram_counts {list(starts)} expects places in a pool of {len(pool)}, in order and a multiple of n"
                f" behind each other for n-grams of n tokens; those of {length} are {end - start}."
            )
        for first in range(start, end, length):
            if min_length <= length <= max_length:
                node = 0
                for token in pool[first : first + length]:
                    node = edges.setdefault((node, token), len(found))
                    if node == len(found):
                        found.append(-1)
                found[node] = count
            count += 1
    return _tabulate(edges, found, count, bool(pool) and isinstance(pool[0], str))


def _tabulate(edges: dict[tuple[int, Any], int], found: list[int], count: int, are_words: bool) -> Grams:
    tokens = sorted({token for _, token in edges})
    numbers = {token: number for number, token in enumerate(tokens)}
    keys = np.array([node * max(1, len(tokens)) + numbers[token] for node, token in edges], _INT64)
    order = np.argsort(keys)
    return Grams(
        numbers if are_words else {},
        np.array([] if are_words else tokens, _INT64),
        keys[order],
        np.array(list(edges.values()), np.int32)[order],
        np.array(found, np.int32),
        count,
    )


def _find(known: Array, wanted: Array, values: Array) -> Array:
    """Return the value of each key among the sorted ones; -1 where it is not among them."""
    if not known.size:
        return np.full(wanted.shape, -1, _INT64)
    places = np.minimum(np.searchsorted(known, wanted), known.size - 1)
    return np.where(known[places] == wanted, values[places], -1).astype(_INT64)
