"""Ensembles of decision trees as tables of nodes, leaves and votes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.operator import Array

MISSING_BIT, TEST_BITS, FEATURE_SHIFT = 8, 7, 4  # of Split in trees.cu
_MAX_FEATURES = 1 << 28


class Test(IntEnum):
    """Comparison of a feature at a node, numbered as TreeEnsemble numbers it and trees.cu has it."""

    BRANCH_LEQ = 0
    BRANCH_LT = 1
    BRANCH_GTE = 2
    BRANCH_GT = 3
    BRANCH_EQ = 4
    BRANCH_NEQ = 5
    BRANCH_MEMBER = 6


class Aggregate(IntEnum):
    """Aggregation of the votes for a target, numbered as TreeEnsemble numbers it and trees.cu has it."""

    AVERAGE = 0
    SUM = 1
    MIN = 2
    MAX = 3


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """Trees without cycles. A child is a node, or the leaf ``~child`` if it is negative.

    Attributes:
        thresholds: By node, float32 or float64; where the test is BRANCH_MEMBER, the number of a set.
        tests: By node: feature << 4 | whether NaN goes to ``yes`` << 3 | Test.
        yes: By node, the child where the test holds.
        no: By node, the child where it does not.
        roots: By tree, a node or leaf.
        members: Of all sets, one after the other, each sorted.
        starts: Begin of each set, ``[sets + 1]``.
        first: Begin of each leaf's votes, ``[leaves + 1]``.
        targets: Target of each vote; those of a leaf in rising order.
        weights: Of the votes, float32 or float64.
        depth: Greatest number of nodes on a path.
    """

    thresholds: Array
    tests: Array
    yes: Array
    no: Array
    roots: Array
    members: Array
    starts: Array
    first: Array
    targets: Array
    weights: Array
    depth: int

    @property
    def features(self) -> int:
        """Return the least number of features that rows must have."""
        return int((self.tests >> FEATURE_SHIFT).max(initial=-1)) + 1 if len(self.tests) else 0

    def pack(self, dtype: np.dtype[Any]) -> Array:
        """Return the nodes as trees.cu has them, with thresholds of a type."""
        rows = [("threshold", dtype), ("yes", np.int32), ("no", np.int32), ("test", np.uint32)]
        nodes = np.zeros(max(1, len(self.tests)), rows if dtype.itemsize == 4 else [*rows, ("unused", np.uint32)])
        columns = (("threshold", self.thresholds), ("yes", self.yes), ("no", self.no), ("test", self.tests))
        for name, column in columns:
            nodes[name][: len(column)] = column
        return nodes.view(np.uint32)


@dataclass(frozen=True, slots=True, eq=False)
class Votes:
    """Votes of leaves for targets, in columns of equal length."""

    leaves: Array
    targets: Array
    weights: Array


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """Inner nodes as an operator has them, in columns of equal length; ``thresholds`` of BRANCH_MEMBER don't count."""

    thresholds: Array
    features: Sequence[int]
    tests: Sequence[int]
    missing: Sequence[int] | None
    yes: Sequence[int]
    no: Sequence[int]

    def build(self, roots: Sequence[int], sets: Sequence[Array], leaves: int, votes: Votes) -> Forest:
        """Return the forest.

        Args:
            roots: By tree, a node or ``~leaf``.
            sets: Members, in the order of the nodes that test for them.
            leaves: Their number.
            votes: In any order; those of a leaf for one target stay in theirs.

        Raises:
            InputError: There is a cycle, a child or feature out of range, or another number of sets.
        """
        count = len(self.features)
        columns = (self.thresholds, self.tests, self.yes, self.no, self.missing or [0] * count)
        if any(len(column) != count for column in columns):
            raise InputError(f"expected columns of {count} nodes, got {[len(column) for column in columns]}.")
        tests, features = np.array(self.tests, np.int64), np.array(self.features, np.int64)
        if count and not (tests.min() >= 0 and tests.max() <= Test.BRANCH_MEMBER):
            raise InputError(f"nodes_modes expects 0 to {int(Test.BRANCH_MEMBER)}, got {sorted(set(tests.tolist()))}.")
        if count and not (features.min() >= 0 and features.max() < _MAX_FEATURES):
            raise InputError(f"nodes_featureids expects 0 to 2**28 - 1, got {features.min()} to {features.max()}.")
        missing = np.array(self.missing or np.zeros(count), np.int64) != 0
        thresholds = self.thresholds.copy()
        of_sets = np.flatnonzero(tests == Test.BRANCH_MEMBER)
        if len(of_sets) != len(sets):
            raise InputError(f"membership_values expects {len(of_sets)} sets, one by node, got {len(sets)}.")
        thresholds[of_sets] = np.arange(len(of_sets))
        yes, no, starts = (np.array(column, np.int64) for column in (self.yes, self.no, roots))
        depth = _measure_trees(starts, yes, no, leaves)
        order = np.lexsort((votes.targets, votes.leaves))
        return Forest(
            thresholds,
            (features << FEATURE_SHIFT | missing * MISSING_BIT | tests).astype(np.int64),
            yes.astype(np.int32),
            no.astype(np.int32),
            starts.astype(np.int32),
            np.concatenate([*map(np.sort, sets), []]).astype(thresholds.dtype),
            np.cumsum([0, *map(len, sets)]).astype(np.int32),
            np.cumsum([0, *np.bincount(votes.leaves, minlength=leaves)]).astype(np.int32),
            votes.targets[order].astype(np.int32),
            votes.weights[order],
            depth,
        )


def _measure_trees(roots: Array, yes: Array, no: Array, leaves: int) -> int:
    """Return an upper bound of the depth: nodes on a path from a root to a leaf.

    Raises:
        InputError: A child is out of range, or a way leads back.
    """
    ends = np.concatenate((roots, yes, no))
    if len(ends) and not (-leaves <= ends.min() and ends.max() < len(yes)):
        raise InputError(
            f"children of nodes expect nodes below {len(yes)} or leaves below {leaves}, got node {ends.max()} or leaf "
            f"{~ends.min()}."
        )
    level = np.unique(roots[roots >= 0])
    for depth in range(len(yes) + 1):
        if not level.size:
            return depth
        below = np.concatenate((yes[level], no[level]))
        level = np.unique(below[below >= 0])
    raise InputError("a node is among its own descendants; expected trees without cycles.")
