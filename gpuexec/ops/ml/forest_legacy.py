"""Tables of TreeEnsembleClassifier and TreeEnsembleRegressor attributes, read into forests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.operator import Array
from gpuexec.ops.ml.forest import Forest, Nodes, Test, Votes

_LEAF = "LEAF"


@dataclass(frozen=True, slots=True, eq=False)
class LegacyVotes:
    """Votes of nodes of trees for targets, in columns of equal length; ``name`` is the prefix of their attributes."""

    name: str
    trees: tuple[int, ...]
    nodes: tuple[int, ...]
    targets: tuple[int, ...]
    weights: Array

    def share(self, by_place: Mapping[tuple[int, int], int], kinds: int) -> Votes:
        """Return the votes by leaf.

        Args:
            by_place: Nodes and ``~leaf`` by tree and number.
            kinds: Number of targets.

        Raises:
            InputError: The columns have other lengths, a target is out of range, or one that is no leaf votes.
        """
        lengths = [len(column) for column in (self.trees, self.nodes, self.targets, self.weights)]
        if len(set(lengths)) > 1:
            raise InputError(f"attributes {self.name}_* expect as many numbers each, got {lengths}.")
        if self.targets and not 0 <= min(self.targets) <= max(self.targets) < kinds:
            raise InputError(f"{self.name}_ids expects 0 to {kinds - 1}, got {sorted(set(self.targets))}.")
        leaves = []
        for place in zip(self.trees, self.nodes, strict=True):
            found = by_place.get(place, 0)
            if found >= 0:
                raise InputError(f"{self.name}_nodeids expects leaves, got node {place[1]} of tree {place[0]}.")
            leaves.append(~found)
        return Votes(np.array(leaves, np.int64), np.array(self.targets, np.int32), self.weights)


@dataclass(frozen=True, slots=True, eq=False)
class LegacyNodes:
    """Nodes and leaves in columns of equal length, leaves by their mode."""

    trees: tuple[int, ...]
    numbers: tuple[int, ...]
    modes: tuple[str, ...]
    features: tuple[int, ...]
    thresholds: Array
    yes: tuple[int, ...]
    no: tuple[int, ...]
    missing: tuple[int, ...] | None

    def build(self, votes: LegacyVotes, kinds: int) -> Forest:
        """Return the forest, its trees in the order in which they first appear.

        Raises:
            InputError: Columns have other lengths, a node appears twice or is not there, or one that is no leaf votes.
        """
        count = len(self.trees)
        columns = (self.numbers, self.modes, self.features, self.thresholds, self.yes, self.no)
        lengths = [len(column) for column in (*columns, *([self.missing] if self.missing else []))]
        if not count or set(lengths) != {count}:
            raise InputError(f"attributes nodes_* expect {count or 'some'} entries each, got {lengths}.")
        unknown = sorted({mode for mode in self.modes if mode != _LEAF and mode not in Test.__members__})
        if unknown or Test.BRANCH_MEMBER.name in self.modes:
            raise InputError(f"nodes_modes expects comparisons or LEAF, got {', '.join(unknown) or 'BRANCH_MEMBER'}.")
        is_leaf = np.array([mode == _LEAF for mode in self.modes])
        # Nodes are counted by themselves, as leaves are, which count downward from -1.
        renumbered = np.where(is_leaf, -np.cumsum(is_leaf), np.cumsum(~is_leaf) - 1)
        by_place = dict(zip(zip(self.trees, self.numbers, strict=True), renumbered.tolist(), strict=True))
        if len(by_place) < count:
            raise InputError("nodes_nodeids expects each node of a tree once, got one twice.")
        inner = np.flatnonzero(~is_leaf).tolist()
        yes, no = ([self._find(by_place, i, column[i]) for i in inner] for column in (self.yes, self.no))
        roots: dict[int, int] = {}
        for tree, place in zip(self.trees, renumbered.tolist(), strict=True):
            roots.setdefault(tree, place)
        nodes = Nodes(
            self.thresholds[inner],
            [self.features[i] for i in inner],
            [Test[self.modes[i]] for i in inner],
            [self.missing[i] for i in inner] if self.missing else None,
            yes,
            no,
        )
        return nodes.build(list(roots.values()), [], int(is_leaf.sum()), votes.share(by_place, kinds))

    def _find(self, by_place: dict[tuple[int, int], int], node: int, child: int) -> int:
        found = by_place.get((self.trees[node], child))
        if found is None:
            raise InputError(f"node {self.numbers[node]} of tree {self.trees[node]} has no child {child} in its tree.")
        return found
