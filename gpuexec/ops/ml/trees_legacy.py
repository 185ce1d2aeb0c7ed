"""TreeEnsembleClassifier and TreeEnsembleRegressor."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.graphs import Node
from gpuexec.ir.operator import Array, Derivative, Emitter, Out, Slots, Tolerance, decompose, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.ml.ensemble import Ensemble, spread_base
from gpuexec.ops.ml.forest import Aggregate
from gpuexec.ops.ml.forest_legacy import LegacyNodes, LegacyVotes
from gpuexec.ops.ml.labels import check_names, label_dtype, list_names, look_up_strings, name_places
from gpuexec.ops.ml.scores import LabelRule, Pair, ScorePostprocessing, choose_pair, find_transform
from gpuexec.ops.ml.table_operator import FLOAT, NUMBERS, TableOperator, choose_floats, freeze_arrays
from gpuexec.ops.tensor.shape import Literal


@dataclass(frozen=True, slots=True)
class LegacyTrees(TableOperator[Ensemble]):
    """Base: the nodes of all trees, in lists of equal length, and the base values of their votes."""

    base_values: tuple[float, ...] | None = None
    base_values_as_tensor: Literal | None = None
    nodes_falsenodeids: tuple[int, ...] = ()
    nodes_featureids: tuple[int, ...] = ()
    nodes_hitrates: tuple[float, ...] | None = None
    nodes_hitrates_as_tensor: Literal | None = None
    nodes_missing_value_tracks_true: tuple[int, ...] | None = None
    nodes_modes: tuple[str, ...] = ()
    nodes_nodeids: tuple[int, ...] = ()
    nodes_treeids: tuple[int, ...] = ()
    nodes_truenodeids: tuple[int, ...] = ()
    nodes_values: tuple[float, ...] | None = None
    nodes_values_as_tensor: Literal | None = None
    post_transform: str = "NONE"
    tolerance = Tolerance.REDUCTION
    flops_per_output = None
    has_blits = False

    def __post_init__(self) -> None:
        freeze_arrays(self, *(each.name for each in fields(self) if each.name.endswith("_as_tensor")))
        TableOperator.__post_init__(self)

    def read_nodes(self) -> LegacyNodes:
        """Return the nodes, values from whichever attribute has them."""
        return LegacyNodes(
            self.nodes_treeids,
            self.nodes_nodeids,
            self.nodes_modes,
            self.nodes_featureids,
            _or_none(choose_floats("nodes_values", self.nodes_values, self.nodes_values_as_tensor)),
            self.nodes_truenodeids,
            self.nodes_falsenodeids,
            self.nodes_missing_value_tracks_true,
        )


@operator("TreeEnsembleRegressor", "ai.onnx.ml")
@dataclass(frozen=True, slots=True)
class TreeEnsembleRegressor(LegacyTrees):
    """The votes of the leaves for each target, summed up or otherwise, plus base values, transformed."""

    aggregate_function: str = "SUM"
    n_targets: int | None = None
    target_ids: tuple[int, ...] = ()
    target_nodeids: tuple[int, ...] = ()
    target_treeids: tuple[int, ...] = ()
    target_weights: tuple[float, ...] | None = None
    target_weights_as_tensor: Literal | None = None
    example = (
        "float32[2,1] target_ids=(0,) target_nodeids=(0,) target_treeids=(0,) target_weights=(1.0,) "
        "nodes_falsenodeids=(0,) nodes_featureids=(0,) nodes_modes=('LEAF',) nodes_nodeids=(0,) nodes_treeids=(0,) "
        "nodes_truenodeids=(0,) nodes_values=(0.0,)"
    )

    def make_tables(self) -> Ensemble:
        """Build the trees."""
        if self.aggregate_function not in Aggregate.__members__:
            known = ", ".join(Aggregate.__members__)
            raise InputError(f"aggregate_function expects {known}, got {self.aggregate_function!r}.")
        targets = max(self.target_ids, default=0) + 1 if self.n_targets is None else self.n_targets
        if targets < 1:
            raise InputError(f"n_targets expects 1 or more, got {targets}.")
        weights = choose_floats("target_weights", self.target_weights, self.target_weights_as_tensor)
        votes = LegacyVotes("target", self.target_treeids, self.target_nodeids, self.target_ids, _or_none(weights))
        base = choose_floats("base_values", self.base_values, self.base_values_as_tensor)
        aggregate, finish = Aggregate[self.aggregate_function], ScorePostprocessing(find_transform(self.post_transform))
        return Ensemble(self.read_nodes().build(votes, targets), targets, aggregate, spread_base(base, targets), finish)

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return a column for each target.

        Raises:
            InputError: Trees look at more features.
        """
        check_dtype(self.name, x, NUMBERS)
        return (TensorSpec((self.tables.check(self.name, x), self.tables.columns), FLOAT),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Traverse all trees with NumPy."""
        return (self.tables.finish.compute(self.tables.compute(x, FLOAT), FLOAT)[1],)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the trees."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        self.tables.lower(emit, x, self.tables.check(self.name, x.spec), y, None)


@operator("TreeEnsembleClassifier", "ai.onnx.ml")
@dataclass(frozen=True, slots=True)
class TreeEnsembleClassifier(LegacyTrees):
    """The sums of the leaves' weights for each class, and the class of the largest.

    Where all votes are for one of two classes, they are the probability of the second, which wins above a half, or its
    score, which wins above 0, if a weight is negative. Votes for the first class alone are the second's; its own score
    is the opposite.
    """

    class_ids: tuple[int, ...] = ()
    class_nodeids: tuple[int, ...] = ()
    class_treeids: tuple[int, ...] = ()
    class_weights: tuple[float, ...] | None = None
    class_weights_as_tensor: Literal | None = None
    classlabels_int64s: tuple[int, ...] | None = None
    classlabels_strings: tuple[str, ...] | None = None
    example = (
        "float32[2,1] class_ids=(0,) class_nodeids=(0,) class_treeids=(0,) class_weights=(1.0,) "
        "classlabels_int64s=(5,) nodes_falsenodeids=(0,) nodes_featureids=(0,) nodes_modes=('LEAF',) "
        "nodes_nodeids=(0,) nodes_treeids=(0,) nodes_truenodeids=(0,) nodes_values=(0.0,)"
    )
    derivative = Derivative.PARTS

    def make_tables(self) -> Ensemble:
        """Build the trees."""
        classes = check_names(self.classlabels_int64s, self.classlabels_strings)
        weights = _or_none(choose_floats("class_weights", self.class_weights, self.class_weights_as_tensor))
        base = choose_floats("base_values", self.base_values, self.base_values_as_tensor)
        transform, voted = find_transform(self.post_transform), sorted(set(self.class_ids))
        names = list_names(self.classlabels_int64s, self.classlabels_strings)
        votes = LegacyVotes("class", self.class_treeids, self.class_nodeids, self.class_ids, weights)
        forest, targets, finish = (
            self.read_nodes().build(votes, classes),
            classes,
            ScorePostprocessing(transform, names=names),
        )
        if classes == 1 or (classes == 2 and len(voted) == 1 and (base is None or base.size < 2)):
            is_probability = classes == 2 and bool((weights >= 0).all())
            pair = Pair.AS_IT_IS
            if classes == 2 and voted == [0]:
                targets, pair = 1, choose_pair(transform, Pair.COMPLEMENT if is_probability else Pair.OPPOSITE)
            finish = ScorePostprocessing(transform, pair, LabelRule.ABOVE, 0.5 if is_probability else 0.0, names)
        return Ensemble(forest, targets, Aggregate.SUM, spread_base(base, targets), finish)

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return a label and scores for each row.

        Raises:
            InputError: Trees look at more features.
        """
        check_dtype(self.name, x, NUMBERS)
        rows = self.tables.check(self.name, x)
        labels = TensorSpec((rows,), label_dtype(self.classlabels_strings))
        return labels, TensorSpec((rows, self.tables.columns), FLOAT)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Traverse all trees with NumPy."""
        places, scores = self.tables.finish.compute(self.tables.compute(x, FLOAT), FLOAT)
        return name_places(places, self.classlabels_int64s, self.classlabels_strings), scores

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the trees."""
        x, labels, scores = inputs[0], outputs[0], outputs[1]
        assert x is not None
        self.tables.lower(emit, x, self.tables.check(self.name, x.spec), scores, labels)


@decompose("ai.onnx.ml.TreeEnsembleClassifier")
def _name_classes(node: Node) -> tuple[Node, ...]:
    return look_up_strings(node, "classlabels_int64s", "classlabels_strings")


def _or_none(weights: Array | None) -> Array:
    return np.zeros(0, np.float32) if weights is None else weights
