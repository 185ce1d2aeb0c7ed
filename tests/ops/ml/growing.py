"""Random trees in both forms of the standard, and a row-by-row reference walk through them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.ops.harness import Array

MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER"]


@dataclass(frozen=True)
class Leaf:
    """Votes: targets and weights."""

    votes: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Branch:
    """A comparison and where it leads; ``members`` if it is one with a set."""

    mode: str
    feature: int
    threshold: float
    members: tuple[float, ...]
    missing: bool
    yes: Tree
    no: Tree


Tree = Leaf | Branch


def grow(
    rng: Any, depth: int, features: int, kinds: int, votes: int = 1, modes: list[str] | None = None, low: float = -1.0
) -> Tree:
    """Return a tree of at most ``depth`` comparisons to a leaf; its numbers are exact in any type."""
    if depth == 0 or rng.random() < 0.1:
        targets = rng.permutation(kinds)[:votes]
        return Leaf(tuple((int(t), float(rng.integers(int(low * 8), 9)) / 8) for t in targets))
    branches = [grow(rng, depth - 1, features, kinds, votes, modes, low) for _ in range(2)]
    return Branch(
        str(rng.choice(modes or MODES[:6])),
        int(rng.integers(features)),
        float(rng.integers(-4, 5)) / 2,
        tuple(float(member) / 2 for member in rng.integers(-4, 5, rng.integers(0, 5))),
        bool(rng.integers(2)),
        branches[0],
        branches[1],
    )


def walk(tree: Tree, row: Array) -> Leaf:
    """Return the leaf a row falls into, by the standard's words: NaN goes where the node says."""
    while isinstance(tree, Branch):
        value = float(row[tree.feature])
        compared = {
            "BRANCH_LEQ": value <= tree.threshold,
            "BRANCH_LT": value < tree.threshold,
            "BRANCH_GTE": value >= tree.threshold,
            "BRANCH_GT": value > tree.threshold,
            "BRANCH_EQ": value == tree.threshold,
            "BRANCH_NEQ": value != tree.threshold,
            "BRANCH_MEMBER": value in tree.members,
        }
        tree = tree.yes if (tree.missing if np.isnan(value) else compared[tree.mode]) else tree.no
    return tree


def score(trees: list[Tree], x: Array, kinds: int, aggregate: str = "SUM", base: Any = None) -> Array:
    """Return the scores of rows in double; without votes 0."""
    y = np.zeros((len(x), kinds))
    for number, row in enumerate(x):
        by_target: dict[int, list[float]] = {}
        for tree in trees:
            for target, weight in walk(tree, row).votes:
                by_target.setdefault(target, []).append(weight)
        for target, weights in by_target.items():
            made = {"SUM": sum, "AVERAGE": lambda w: sum(w) / len(trees), "MIN": min, "MAX": max}
            y[number, target] = made[aggregate](weights)
    return y if base is None else y + np.array(base)


def _walk_all(tree: Tree) -> Iterator[Tree]:
    yield tree
    if isinstance(tree, Branch):
        yield from _walk_all(tree.yes)
        yield from _walk_all(tree.no)


def legacy(trees: list[Tree], votes: str) -> dict[str, Any]:
    """Return the attributes of TreeEnsembleRegressor (``votes="target"``) or TreeEnsembleClassifier (``"class"``)."""
    rows: dict[str, list[Any]] = {}

    def add(**values: Any) -> None:
        for name, value in values.items():
            rows.setdefault(name, []).append(value)

    for number, tree in enumerate(trees):
        nodes = list(_walk_all(tree))
        place = {id(node): index for index, node in enumerate(nodes)}
        for index, node in enumerate(nodes):
            is_leaf = isinstance(node, Leaf)
            add(
                nodes_treeids=number,
                nodes_nodeids=index,
                nodes_modes="LEAF" if is_leaf else node.mode,
                nodes_featureids=0 if is_leaf else node.feature,
                nodes_values=0.0 if is_leaf else node.threshold,
                nodes_truenodeids=0 if is_leaf else place[id(node.yes)],
                nodes_falsenodeids=0 if is_leaf else place[id(node.no)],
                nodes_missing_value_tracks_true=0 if is_leaf else int(node.missing),
            )
            for target, weight in node.votes if isinstance(node, Leaf) else ():
                add(**{f"{votes}_treeids": number, f"{votes}_nodeids": index})
                add(**{f"{votes}_ids": target, f"{votes}_weights": weight})
    return rows


def modern(trees: list[Tree], dtype: Any) -> dict[str, Any]:
    """Return the attributes of TreeEnsemble, whose trees begin with a comparison and whose leaves have one vote."""
    branches = [node for tree in trees for node in _walk_all(tree) if isinstance(node, Branch)]
    leaves = [node for tree in trees for node in _walk_all(tree) if isinstance(node, Leaf)]
    node_place, leaf_place = ({id(node): index for index, node in enumerate(group)} for group in (branches, leaves))
    sides = {side: [getattr(node, part) for node in branches] for side, part in (("true", "yes"), ("false", "no"))}
    attributes: dict[str, Any] = {
        "tree_roots": [node_place[id(tree)] for tree in trees],
        "nodes_modes": np.array([MODES.index(node.mode) for node in branches], np.uint8),
        "nodes_featureids": [node.feature for node in branches],
        "nodes_splits": np.array([node.threshold for node in branches], dtype),
        "nodes_missing_value_tracks_true": [int(node.missing) for node in branches],
        "leaf_targetids": [leaf.votes[0][0] for leaf in leaves],
        "leaf_weights": np.array([leaf.votes[0][1] for leaf in leaves], dtype),
    }
    for side, children in sides.items():
        attributes[f"nodes_{side}leafs"] = [int(isinstance(child, Leaf)) for child in children]
        attributes[f"nodes_{side}nodeids"] = [
            leaf_place[id(child)] if isinstance(child, Leaf) else node_place[id(child)] for child in children
        ]
    sets = [[*node.members, np.nan] for node in branches if node.mode == "BRANCH_MEMBER"]
    return attributes | ({"membership_values": np.concatenate(sets).astype(dtype)} if sets else {})
