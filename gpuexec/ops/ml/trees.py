"""TreeEnsemble: trees whose leaves have one weight for one target each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.operator import Array, Emitter, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.ml.ensemble import Ensemble
from gpuexec.ops.ml.forest import Aggregate, Nodes, Votes
from gpuexec.ops.ml.scores import ScorePostprocessing, Transform
from gpuexec.ops.ml.table_operator import DOUBLE, FLOAT, TableOperator, freeze_arrays
from gpuexec.ops.tensor.shape import Literal, from_literal

_HALF = np.dtype(np.float16)


@operator("TreeEnsemble", "ai.onnx.ml")
@dataclass(frozen=True, slots=True)
class TreeEnsemble(TableOperator[Ensemble]):
    """The sum, average, least or greatest weight of the leaves that a row falls into, by target, transformed.

    NaN goes where ``nodes_missing_value_tracks_true`` says, whatever the comparison. ``membership_values`` are the
    members of sets, each set with a NaN behind it, in the order of the nodes that test for them.
    """

    leaf_targetids: tuple[int, ...]
    leaf_weights: Literal
    nodes_falseleafs: tuple[int, ...]
    nodes_falsenodeids: tuple[int, ...]
    nodes_featureids: tuple[int, ...]
    nodes_modes: Literal
    nodes_splits: Literal
    nodes_trueleafs: tuple[int, ...]
    nodes_truenodeids: tuple[int, ...]
    tree_roots: tuple[int, ...]
    aggregate_function: int = 1
    membership_values: Literal | None = None
    n_targets: int | None = None
    nodes_hitrates: Literal | None = None
    nodes_missing_value_tracks_true: tuple[int, ...] | None = None
    post_transform: int = 0
    tolerance = Tolerance.REDUCTION
    example = (
        "float32[2,1] leaf_targetids=(0,0) leaf_weights=('float32',(2,),'0000803e0000403f') nodes_falseleafs=(1,) "
        "nodes_falsenodeids=(1,) nodes_featureids=(0,) nodes_modes=('uint8',(1,),'00') "
        "nodes_splits=('float32',(1,),'0000003f') nodes_trueleafs=(1,) nodes_truenodeids=(0,) tree_roots=(0,)"
    )
    flops_per_output = None
    keeps_dtype = True
    has_blits = False

    def __post_init__(self) -> None:
        tensors = ("leaf_weights", "nodes_modes", "nodes_splits", "membership_values", "nodes_hitrates")
        freeze_arrays(self, *tensors)
        TableOperator.__post_init__(self)

    def make_tables(self) -> Ensemble:
        """Build the trees."""
        targets = max(self.leaf_targetids, default=0) + 1 if self.n_targets is None else self.n_targets
        if targets < 1:
            raise InputError(f"n_targets expects 1 or more, got {targets}.")
        if self.aggregate_function not in list(Aggregate) or not 0 <= self.post_transform <= Transform.PROBIT:
            raise InputError(
                f"aggregate_function expects 0 to 3 and post_transform 0 to 4, got {self.aggregate_function} and "
                f"{self.post_transform}."
            )
        ids = np.array(self.leaf_targetids, np.int64)
        weights = _as_real("leaf_weights", self.leaf_weights)
        if len(ids) != len(weights) or (len(ids) and not 0 <= ids.min() <= ids.max() < targets):
            raise InputError(
                f"leaf_targetids expects a target from 0 to {targets - 1} for each of {len(weights)} leaf_weights, got "
                f"{len(ids)} in {sorted(set(ids.tolist()))[:5]}."
            )
        modes = from_literal(self.nodes_modes)
        if modes.dtype != np.uint8:
            raise InputError(f"nodes_modes expects uint8, got {TensorSpec(modes.shape, modes.dtype)}.")
        nodes = Nodes(
            _as_real("nodes_splits", self.nodes_splits),
            self.nodes_featureids,
            modes.reshape(-1).tolist(),
            self.nodes_missing_value_tracks_true,
            _join_children(self.nodes_truenodeids, self.nodes_trueleafs),
            _join_children(self.nodes_falsenodeids, self.nodes_falseleafs),
        )
        if min(self.tree_roots, default=0) < 0:
            raise InputError(f"tree_roots expects nodes, got {min(self.tree_roots)}.")
        forest = nodes.build(self.tree_roots, self._read_sets(), len(ids), Votes(np.arange(len(ids)), ids, weights))
        return Ensemble(
            forest,
            targets,
            Aggregate(self.aggregate_function),
            None,
            ScorePostprocessing(Transform(self.post_transform)),
        )

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return a column for each target, in the type of the input.

        Raises:
            InputError: Trees look at more features.
        """
        check_dtype(self.name, x, (FLOAT, DOUBLE, _HALF))
        return (TensorSpec((self.tables.check(self.name, x), self.tables.columns), x.dtype),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Traverse all trees with NumPy."""
        return (self.tables.finish.compute(self.tables.compute(x, x.dtype), x.dtype)[1],)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the trees."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        self.tables.lower(emit, x, self.tables.check(self.name, x.spec), y, None)

    def _read_sets(self) -> list[Array]:
        """Return the members of each set."""
        if self.membership_values is None:
            return []
        values = _as_real("membership_values", self.membership_values)
        ends = np.flatnonzero(np.isnan(values))
        return [part[~np.isnan(part)] for part in np.split(values, ends)[: len(ends)]]


def _as_real(name: str, literal: Literal) -> Array:
    """Return a tensor of floats as float32, or as float64 if it is that.

    Raises:
        InputError: It holds something else.
    """
    array = from_literal(literal).reshape(-1)
    if dtype_row(array.dtype).kind != "float":
        raise InputError(f"{name} expects floats, got {TensorSpec(array.shape, array.dtype)}.")
    return array.astype(DOUBLE if array.dtype == DOUBLE else FLOAT)


def _join_children(ids: tuple[int, ...], are_leaves: tuple[int, ...]) -> list[int]:
    """Return children as nodes or ``~leaf``.

    Raises:
        InputError: It is not said of each child which it is, or one is negative.
    """
    if len(ids) != len(are_leaves) or min(ids, default=0) < 0:
        raise InputError(
            f"children of nodes expect numbers of 0 or more, and for each whether it is a leaf, got {len(ids)} numbers "
            f"from {min(ids, default=0)} on and {len(are_leaves)} of the latter."
        )
    return [~child if is_leaf else child for child, is_leaf in zip(ids, are_leaves, strict=True)]
