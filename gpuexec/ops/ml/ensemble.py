"""Shared parts of the tree operators: leaf lookup and vote aggregation, on the host and on a device.

A thread follows one row through one tree, then a thread adds up the votes of a row's leaves for one target, tree by
tree; so a result does not depend on how many rows there are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32, int64
from gpuexec.ir.operator import Array, Emitter
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.ml.forest import Aggregate, Forest
from gpuexec.ops.ml.forest_host import HostForest, prepare_forest
from gpuexec.ops.ml.scores import ScorePostprocessing
from gpuexec.ops.ml.table_operator import DOUBLE, FLOAT, INT32, THREADS, as_rows, count_rows, show_as

SOURCE = "trees.cu"
instantiate(SOURCE, [f"{kernel}<{real}>" for kernel in ("find_leaves", "sum_votes") for real in ("float", "double")])


@dataclass(frozen=True, slots=True, eq=False)
class Ensemble:
    """Trees, the aggregation of their votes, and the transform of raw scores."""

    forest: Forest
    targets: int
    aggregate: Aggregate
    base: Array | None
    finish: ScorePostprocessing
    host: HostForest = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "host", prepare_forest(self.forest, self.targets))

    @property
    def columns(self) -> int:
        """Return the number of columns of the scores."""
        return self.finish.width(self.targets)

    def check(self, name: str, x: TensorSpec) -> int:
        """Return the rows of an input.

        Raises:
            InputError: It has fewer features than trees look at.
        """
        rows, features = count_rows(name, x)
        if features < self.forest.features:
            raise InputError(f"{name} looks at {self.forest.features} features, got {x}.")
        return rows

    def compute(self, x: Array, dtype: np.dtype[Any]) -> Array:
        """Return the raw scores, for a result of a type."""
        real = self._choose_sum(dtype)
        with np.errstate(over="ignore"):
            rows = as_rows(x).astype(self._choose_type(x.dtype), copy=False)
        leaves = self.host.find_leaves(rows)
        scores = self.host.vote(leaves, self.targets, self.aggregate, real)
        return scores if self.base is None else scores + self.base.astype(real)

    def lower(self, emit: Emitter, x: Slot, rows: int, scores: Slot | None, labels: Slot | None) -> None:
        """Launch a thread per tree and row, one per row and target, and one per row where that is not the end."""
        forest, wide = self.forest, self._choose_type(x.dtype)
        real = self._choose_sum(FLOAT if scores is None else scores.dtype)
        leaves = emit.temp((len(forest.roots), rows), INT32)
        members = forest.members.astype(wide) if forest.members.size else np.zeros(1, wide)
        count = leaves.spec.size
        tables = (forest.pack(wide), forest.roots, members, forest.starts)
        extents: list[Argument] = [int64(extent) for extent in (count, rows, x.shape[-1])]
        emit.launch(
            Kernel(SOURCE, f"find_leaves<{dtype_row(wide).cuda}>"),
            (max(1, ceil_div(count, THREADS)), 1, 1),
            (THREADS, 1, 1),
            [show_as(emit, x, wide), *(emit.constant(table) for table in tables), leaves, *extents],
            writes=[5],
        )
        is_raw = labels is None and not self.finish.transform and scores is not None and scores.dtype == real
        raw = scores if is_raw and scores is not None else emit.temp((rows, self.targets), real)
        votes = [emit.constant(table) for table in (forest.first, _keep_one(forest.targets))]
        weights = emit.constant(_keep_one(forest.weights.astype(real)))
        base = None if self.base is None else emit.constant(self.base.astype(real))
        extents = [int64(extent) for extent in (raw.spec.size, rows, len(forest.roots), self.targets)]
        emit.launch(
            Kernel(SOURCE, f"sum_votes<{dtype_row(real).cuda}>"),
            (max(1, ceil_div(raw.spec.size, THREADS)), 1, 1),
            (THREADS, 1, 1),
            [leaves, *votes, weights, base, raw, *extents, int32(self.aggregate)],
            writes=[5],
        )
        if not is_raw:
            self.finish.lower(emit, raw, scores, labels)

    def _choose_type(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the type in which features and thresholds are compared."""
        return DOUBLE if DOUBLE in (dtype, self.forest.thresholds.dtype) else FLOAT

    def _choose_sum(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the type of sums whose result is of a type: never narrower than float."""
        return DOUBLE if dtype == DOUBLE or (dtype == FLOAT and self.forest.weights.dtype == DOUBLE) else FLOAT


def _keep_one(table: Array) -> Array:
    """Return a table that is not empty, since no address stands for an empty one."""
    return table if table.size else np.zeros(1, table.dtype)


def spread_base(base: Array | None, targets: int) -> Array | None:
    """Return a base value for each target; a single one is for all.

    Raises:
        InputError: There are others.
    """
    if base is None or not base.size:
        return None
    if base.size not in (1, targets):
        raise InputError(f"base_values expects 1 or {targets} numbers, got {base.size}.")
    return np.broadcast_to(base, (targets,)).copy()
