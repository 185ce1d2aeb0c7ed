"""Kernel functions between rows and vectors: linear, polynomial, RBF and sigmoid, as in svm.cu."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from math import prod

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32, int64
from gpuexec.ir.operator import Array, Emitter
from gpuexec.ir.work import Work, count_slot_bytes, count_warps, read_int, work_of
from gpuexec.ops.ml.scores import ScorePostprocessing
from gpuexec.ops.ml.table_operator import FLOAT, THREADS, show_as

SOURCE = "svm.cu"
_TILE = 32  # kTile of svm.cu
_MAX_DIFFERENCES = 1 << 16  # held at once on the host
_FEW_ROWS = 8  # for which nothing is made of the vectors first
_LARGE = 2.0**20  # squares whose rounding error in double, times gamma, is below a float's at 1
instantiate(SOURCE, ["compare_with_vectors"])


class Likeness(IntEnum):
    """Kernel function of a row and a vector, numbered as svm.cu has it."""

    LINEAR = 0
    POLY = 1
    RBF = 2
    SIGMOID = 3


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """Vectors ``[count, features]`` of float32, and the kernel function of a row and each; then ``bias`` is added."""

    rows: Array
    likeness: Likeness = Likeness.LINEAR
    bias: Array | None = None
    gamma: float = 0.0
    offset: float = 0.0
    degree: float = 0.0

    @property
    def count(self) -> int:
        """Number of vectors."""
        return len(self.rows)

    def compare(self, x: Array) -> Array:
        """Return ``[rows, count]`` in float32."""
        gamma, offset, degree = (np.float32(number) for number in (self.gamma, self.offset, self.degree))
        with np.errstate(all="ignore"):
            x = x.astype(np.float32, copy=False)
            if self.likeness is Likeness.RBF:
                z = np.exp(-gamma * self._measure(x))
            else:
                z = x @ self.rows.T
            if self.likeness is Likeness.POLY:
                z = np.power(gamma * z + offset, degree)
            elif self.likeness is Likeness.SIGMOID:
                z = np.tanh(gamma * z + offset)
            return np.asarray(z if self.bias is None else z + self.bias)

    def prepare_products(self, x: Array, z: Array) -> list[Callable[[], object]]:
        """Return the calls that write to ``z`` what `compare` makes of rows of float32 by products alone."""
        assert self.likeness is Likeness.LINEAR
        calls: list[Callable[[], object]] = [partial(np.matmul, x, self.rows.T, out=z)]
        return calls if self.bias is None else [*calls, partial(np.add, z, self.bias, out=z)]

    def lower(self, emit: Emitter, x: Slot, z: Slot) -> None:
        """Launch a block for each tile of rows and vectors."""
        rows, bias = z.shape[0], self.bias
        tiles = ceil_div(rows, _TILE) * ceil_div(self.count, _TILE)
        emit.launch(
            Kernel(SOURCE, "compare_with_vectors"),
            (max(1, tiles), 1, 1),
            (THREADS, 1, 1),
            [
                show_as(emit, x, FLOAT),
                emit.constant(self.rows),
                None if bias is None else emit.constant(bias),
                z,
                *(int64(extent) for extent in (rows, self.count, self.rows.shape[1])),
                int32(bias is not None and bias.size > 1),
                int32(self.likeness),
                *(np.float32(number) for number in (self.gamma, self.offset, self.degree)),
            ],
            writes=[3],
        )

    def _measure(self, x: Array) -> Array:
        """Return squared distances."""
        if len(x) < _FEW_ROWS:
            return _measure_differences(x, self.rows)
        wide, rows = x.astype(np.float64), self.rows.astype(np.float64)
        squares = np.square(wide).sum(1)[:, None] + np.square(rows).sum(1)
        # Of differences where the squares of far vectors would cancel so much that it shows in the result.
        if not squares.max(initial=0) * abs(self.gamma) < _LARGE:
            return _measure_differences(x, self.rows)
        squares -= wide @ (rows.T + rows.T)
        return np.asarray(np.maximum(squares, 0, out=squares).astype(np.float32))


def _measure_differences(x: Array, vectors: Array) -> Array:
    chunk = max(1, _MAX_DIFFERENCES // max(1, vectors.size))
    distances = np.empty((len(x), len(vectors)), np.float32)
    for first in range(0, len(x), chunk):
        differences = x[first : first + chunk, None] - vectors
        distances[first : first + chunk] = np.square(differences, out=differences).sum(2, dtype=np.float32)
    return distances


def launch_likeness(emit: Emitter, vectors: Vectors, x: Slot, rows: int) -> Slot:
    """Launch the kernel function of the rows of ``x`` and the vectors, and return it: ``[rows, vectors]``."""
    z = emit.temp((rows, vectors.count), FLOAT)
    vectors.lower(emit, x, z)
    return z


def lower_sums(emit: Emitter, weights: Vectors, x: Slot, y: Slot, finish: ScorePostprocessing) -> None:
    """Launch products that are the result, or are transformed by a thread per row."""
    if finish.transform:
        finish.lower(emit, launch_likeness(emit, weights, x, y.shape[0]), y, None)
    else:
        weights.lower(emit, x, y)


def read_vectors(
    numbers: tuple[float, ...] | None, count: int, kernel_type: str, params: tuple[float, ...] | None
) -> Vectors:
    """Return support vectors, as long as their number says, and their kernel function.

    Raises:
        InputError: They have no common length, there is no likeness of this name, or its parameters are not three.
    """
    if kernel_type not in Likeness.__members__:
        raise InputError(f"kernel_type expects {', '.join(Likeness.__members__)}, got {kernel_type!r}.")
    if params and len(params) != 3:
        raise InputError(f"kernel_params expects gamma, coef0 and degree, got {list(params)}.")
    array = np.array(numbers or (), np.float32)
    if not array.size or count <= 0 or array.size % count:
        raise InputError(f"support_vectors expects {count} vectors of one length, got {array.size} numbers.")
    return Vectors(array.reshape(count, -1), Likeness[kernel_type], None, *(params or ()))


# Instructions of a thread: around, for a feature, to bring one, and of a likeness's function; barriers of a tile.
_AROUND, _EACH_FEATURE, _STAGED, _FUNCTION = 250, 17, 27, 60


@work_of(SOURCE, "compare_with_vectors")
def _count_likenesses(launch: Launch) -> Work:
    x, s, z = (launch.arguments[i] for i in (0, 1, 3))
    rows, vectors, features = map(read_int, launch.arguments[4:7])
    assert isinstance(x, Slot) and isinstance(s, Slot) and isinstance(z, Slot)
    slabs, tiles = ceil_div(features, _TILE), prod(launch.grid)
    asked = count_slot_bytes(x) * ceil_div(vectors, _TILE) + count_slot_bytes(s) * ceil_div(rows, _TILE)
    return Work(
        flops=2 * z.spec.size * features,  # products are rounded, so there are no multiply-adds
        instructions=count_warps(launch) * (_AROUND + 4 * _FUNCTION + slabs * _TILE * (_EACH_FEATURE + _STAGED / 4)),
        wavefronts=tiles * slabs * _TILE * (8 * 4 + 2 * 8),
        l2_nbytes=asked + z.spec.nbytes,
        rounds=1 + slabs,
        barriers=2 * slabs,
        registers=48,
        shared_nbytes=8448,
    )
