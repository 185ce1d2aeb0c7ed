"""Tree ensembles in NumPy: traversal to leaves and aggregation of their votes.

Leaves stand behind the nodes and lead to themselves, so all rows go down all trees side by side, level by level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.ir.operator import Array
from gpuexec.ops.ml.forest import FEATURE_SHIFT, MISSING_BIT, TEST_BITS, Aggregate, Forest, Test

_COMPARISONS = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)  # by Test
_MAX_PLACES = 1 << 15  # of trees times rows (times targets) at once, so that they stay in the cache
_MAX_VOTES = 1 << 20  # of leaves times targets in a table
_LEVELS = 4  # after this many levels, rows at a leaf are dropped if they are the majority


@dataclass(frozen=True, slots=True, eq=False)
class HostForest:
    """A forest, with tables made once.

    Attributes:
        forest: Whose nodes come first and its leaves behind them, wherever an attribute is by place.
        children: Of place i, where it leads if its test fails, at 2 i, and if it holds.
        features: By place.
        thresholds: By place.
        tests: By place.
        missing: By place, whether NaN goes to where the test holds.
        roots: The place where a tree begins.
        kinds: The tests that there are.
        spread: The weight of each leaf for each target, or None where that is a large table, or a leaf has two of one.
    """

    forest: Forest
    children: Array
    features: Array
    thresholds: Array
    tests: Array
    missing: Array
    roots: Array
    kinds: tuple[int, ...]
    spread: Array | None

    def find_leaves(self, x: Array) -> Array:
        """Return the leaf of each tree that each row falls into, ``[trees, rows]``; ``x`` in the type of thresholds."""
        trees, rows = len(self.roots), len(x)
        chunk = max(1, _MAX_PLACES // max(1, trees))
        x = np.ascontiguousarray(x)
        pieces = [self._follow(x[begin : begin + chunk]) for begin in range(0, rows, chunk)]
        return np.concatenate(pieces, axis=1) if pieces else np.zeros((trees, 0), np.intp)

    def vote(self, leaves: Array, targets: int, aggregate: Aggregate, dtype: np.dtype[Any]) -> Array:
        """Return the aggregated votes of the leaves, ``[rows, targets]``: tree by tree, in the type given."""
        trees, rows = leaves.shape
        if aggregate > Aggregate.SUM or self.spread is None:
            scores = self._vote_singly(leaves, targets, aggregate, dtype)
        else:
            table = self.spread.astype(dtype, copy=False)
            chunk = max(1, _MAX_PLACES // max(1, trees * targets))
            scores = np.zeros((rows, targets), dtype)
            for begin in range(0, rows, chunk):
                scores[begin : begin + chunk] = _add_up(table.take(leaves[:, begin : begin + chunk], axis=0))
        with np.errstate(all="ignore"):
            return scores / dtype.type(trees) if aggregate is Aggregate.AVERAGE else scores

    def _vote_singly(self, leaves: Array, targets: int, aggregate: Aggregate, dtype: np.dtype[Any]) -> Array:
        """Add votes tree by tree and vote by vote."""
        rows, forest = leaves.shape[1], self.forest
        weights = forest.weights.astype(dtype, copy=False)
        scores = np.zeros((rows, targets), dtype)
        is_voted = np.zeros((rows, targets), np.bool_)
        with np.errstate(all="ignore"):
            for fallen in leaves:
                low, end = forest.first[fallen], forest.first[fallen + 1]
                for step in range(int((end - low).max(initial=0))):
                    row = np.flatnonzero(low + step < end)
                    vote = low[row] + step
                    place = row, forest.targets[vote]
                    weight, before = weights[vote], scores[place]
                    if aggregate > Aggregate.SUM:
                        is_less = weight < before if aggregate is Aggregate.MIN else weight > before
                        scores[place] = np.where(is_voted[place] & ~is_less, before, weight)
                        is_voted[place] = True
                    else:
                        scores[place] = before + weight
        return scores

    def _follow(self, x: Array) -> Array:
        trees, rows = len(self.roots), len(x)
        flat, thresholds = x.reshape(-1), self.thresholds.astype(x.dtype, copy=False)
        has_missing = bool(np.isnan(flat).any())
        places, starts = np.repeat(self.roots, rows), np.tile(np.arange(rows) * x.shape[1], trees)
        ends, left = places, np.arange(0)  # the node of each row; the numbers of rows still followed, if not all are
        for level in range(1, self.forest.depth + 1):
            value = flat.take(starts + self.features.take(places))
            holds = self._test(places, value, thresholds.take(places))
            if has_missing:
                holds = np.where(np.isnan(value), self.missing.take(places), holds)
            places = self.children.take(2 * places + holds)
            if level % _LEVELS == 0:
                is_going = places < len(self.forest.tests)
                if 2 * np.count_nonzero(is_going) < len(places):
                    ends, left = _keep_ends(ends, left, places)
                    left, places, starts = left[is_going], places[is_going], starts[is_going]
        ends, _ = _keep_ends(ends, left, places)
        return np.asarray(ends.reshape(trees, rows) - len(self.forest.tests))

    def _test(self, places: Array, value: Array, threshold: Array) -> Array:
        """Return where the tests of places hold for values that are numbers."""
        if len(self.kinds) == 1 and self.kinds[0] < len(_COMPARISONS):
            return np.asarray(_COMPARISONS[self.kinds[0]](value, threshold))
        holds, tests = np.zeros(len(places), np.bool_), self.tests.take(places)
        for kind in self.kinds:
            at = np.flatnonzero(tests == kind)
            if kind < len(_COMPARISONS):
                holds[at] = _COMPARISONS[kind](value[at], threshold[at])
            else:
                holds[at] = self._is_member(value[at], threshold[at].astype(np.int64))
        return holds

    def _is_member(self, value: Array, sets: Array) -> Array:
        holds, forest = np.zeros(len(value), np.bool_), self.forest
        for number in np.unique(sets):
            at = sets == number
            holds[at] = np.isin(value[at], forest.members[forest.starts[number] : forest.starts[number + 1]])
        return holds


def prepare_forest(forest: Forest, targets: int) -> HostForest:
    """Return a forest, whose leaves vote for so many targets, with its tables."""
    nodes, leaves = len(forest.tests), len(forest.first) - 1

    def extend(of_nodes: Array) -> Array:
        return np.concatenate((of_nodes, np.zeros(leaves, of_nodes.dtype)))

    def find_place(children: Array) -> Array:
        return np.where(children < 0, nodes + ~children, children).astype(np.intp)

    own = np.arange(nodes, nodes + leaves)
    children = np.stack([np.concatenate((find_place(side), own)) for side in (forest.no, forest.yes)], axis=1)
    tests = forest.tests & TEST_BITS
    return HostForest(
        forest,
        children.astype(np.intp).reshape(-1),
        extend((forest.tests >> FEATURE_SHIFT).astype(np.intp)),
        extend(forest.thresholds),
        np.concatenate((tests, np.full(leaves, Test.BRANCH_LEQ, tests.dtype))),
        extend((forest.tests & MISSING_BIT) != 0),
        find_place(forest.roots),
        tuple(np.unique(tests).tolist()),
        _spread_votes(forest, targets),
    )


def _spread_votes(forest: Forest, targets: int) -> Array | None:
    leaves = len(forest.first) - 1
    places = np.repeat(np.arange(leaves), np.diff(forest.first)) * targets + forest.targets
    if leaves * targets > _MAX_VOTES or (np.diff(places) == 0).any():
        return None
    table = np.zeros(leaves * targets, forest.weights.dtype)
    table[places] = forest.weights
    return np.asarray(table.reshape(leaves, targets))


def _keep_ends(ends: Array, left: Array, places: Array) -> tuple[Array, Array]:
    """Return the nodes that rows reached, with the rows still to follow, and the numbers of these."""
    if len(places) == len(ends):
        return places, np.arange(len(places))
    ends[left] = places
    return ends, left


def _add_up(votes: Array) -> Array:
    """Return the sums over the first axis, one after the other: NumPy would add a single column in another order."""
    with np.errstate(all="ignore"):
        return np.asarray(np.add.accumulate(votes)[-1] if votes[:1].size == 1 else votes.sum(0))
