"""CDist: pairwise distances between the rows of two matrices, by a metric.

The names of metrics are SciPy's, and those that scikit-learn has for the same:
https://docs.scipy.org/doc/scipy-1.16.2/reference/generated/scipy.spatial.distance.cdist.html.
So are the formulas: ``braycurtis`` divides by the sum of ``abs(a + b)``, and ``cosine`` of a row of zeros is NaN.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import pack_struct
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ir.work import Work, work_of
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.linalg.matmul_launch import TILE
from gpuexec.ops.linalg.matmul_work import TiledProduct, TileLoop, count_slab_bytes
from gpuexec.ops.microsoft.activation import DOMAIN

_SOURCE = "cdist.cu"
_THREADS = 256
_FLOATS = tuple(np.dtype(t) for t in (np.float32, np.float64))
_PAIRS_AT_ONCE = 1 << 20  # differences that the host holds at a time

# From rows [rows, 1, inner] and [1, columns, inner], and the power of Minkowski's.
Distances = Callable[[Array, Array, float], Array]


def _divide(a: Array, b: Array) -> Array:
    return np.asarray(np.divide(np.abs(a - b), size := np.abs(a) + np.abs(b), out=np.zeros_like(size), where=size != 0))


def _cosine(a: Array, b: Array, p: float) -> Array:
    lengths = np.sqrt((a * a).sum(-1)) * np.sqrt((b * b).sum(-1))
    return np.asarray(1 - (a * b).sum(-1) / lengths)


# By functor of cdist.cu.
_METRICS: Mapping[str, Distances] = {
    "SquaredEuclidean": lambda a, b, p: np.square(a - b).sum(-1),
    "Euclidean": lambda a, b, p: np.sqrt(np.square(a - b).sum(-1)),
    "CityBlock": lambda a, b, p: np.abs(a - b).sum(-1),
    "Chebyshev": lambda a, b, p: np.abs(a - b).max(-1, initial=0),
    "Minkowski": lambda a, b, p: (np.abs(a - b) ** a.dtype.type(p)).sum(-1) ** (1 / a.dtype.type(p)),
    "Canberra": lambda a, b, p: _divide(a, b).sum(-1),
    "Hamming": lambda a, b, p: (a != b).sum(-1, dtype=a.dtype) / a.dtype.type(a.shape[-1]),
    "BrayCurtis": lambda a, b, p: np.abs(a - b).sum(-1) / np.abs(a + b).sum(-1),
    "Cosine": _cosine,
}
# The names of `metric`, and the functor of each.
METRICS: Mapping[str, str] = {
    "sqeuclidean": "SquaredEuclidean",
    **dict.fromkeys(("euclidean", "l2"), "Euclidean"),
    **dict.fromkeys(("cityblock", "manhattan", "l1"), "CityBlock"),
    "chebyshev": "Chebyshev",
    **dict.fromkeys(("minkowski", "p"), "Minkowski"),
    "canberra": "Canberra",
    "hamming": "Hamming",
    "braycurtis": "BrayCurtis",
    "cosine": "Cosine",
}
instantiate(_SOURCE, [f"distances<{functor}, {dtype_row(dtype).cuda}>" for functor in _METRICS for dtype in _FLOATS])


@operator("CDist", DOMAIN)
@dataclass(frozen=True, slots=True)
class CDist(Operator):
    """``y[i, j]``: the distance between row i of a and row j of b, summed over differences.

    ``p`` is the power of ``minkowski``; onnxruntime has no such attribute and knows the Euclidean metrics alone.
    """

    metric: str = "sqeuclidean"
    p: float = 2.0
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    flops_per_output = None
    keeps_dtype = True
    has_blits = True

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise InputError(f"{self.name} expects metric to be one of {', '.join(METRICS)}, got {self.metric!r}.")
        if not self.p > 0:
            raise InputError(f"{self.name} expects p to be above 0, got {self.p}.")

    def infer(self, a: TensorSpec, b: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return a distance for each pair of rows.

        Raises:
            InputError: The inputs are no matrices of one float type and with as many columns.
        """
        a = check_dtype(self.name, a, _FLOATS, "A")
        b = check_dtype(self.name, b, (a.dtype,), "B")
        if a.rank != 2 or b.rank != 2 or a.shape[1] != b.shape[1]:
            raise InputError(f"{self.name} expects A [rows, size] and B [others, size], got {a} and {b}.")
        return (a.with_shape((a.shape[0], b.shape[0])),)

    def compute(self, a: Array, b: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Compute block by block of the rows of a."""
        measure = _METRICS[self._functor]
        y = np.empty((len(a), len(b)), a.dtype)
        step = max(1, _PAIRS_AT_ONCE // max(1, b.size))
        with np.errstate(all="ignore"):
            for first in range(0, len(a), step):
                y[first : first + step] = measure(a[first : first + step, None], b[None], self.p)
        return (y,)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch once, a block for each tile."""
        (a, b), y = inputs, outputs[0]
        assert a is not None and b is not None and y is not None
        rows, columns = y.shape
        packed = pack_struct("<7q", rows, columns, a.shape[1], *a.strides, *b.strides)
        kernel = Kernel(_SOURCE, f"distances<{self._functor}, {dtype_row(y.dtype).cuda}>")
        tiles = max(1, ceil_div(rows, TILE) * ceil_div(columns, TILE))
        emit.launch(kernel, (tiles, 1, 1), (_THREADS, 1, 1), [a, b, y, packed, np.float64(self.p)], writes=[2])

    @property
    def _functor(self) -> str:
        """Return the metric; of Minkowski's those that have a form of their own."""
        functor = METRICS[self.metric]
        if functor == "Minkowski":
            return {1.0: "CityBlock", 2.0: "Euclidean", math.inf: "Chebyshev"}.get(self.p, functor)
        return functor


# Machine code of a thread of a tile, by metric: instructions of a place of the inner extent, of floats and of doubles;
# operations on a pair of coordinates; multiply-adds among its instructions.
_METRIC_LOOPS: Mapping[str, tuple[int, int, int, int]] = {
    "SquaredEuclidean": (41, 41, 3, 1),
    "Euclidean": (41, 41, 3, 1),
    "CityBlock": (89, 121, 3, 0),
    "Chebyshev": (281, 393, 3, 0),
    "Minkowski": (1526, 2774, 4, 0),
    "Canberra": (414, 588, 7, 0),
    "Hamming": (41, 73, 2, 0),
    "BrayCurtis": (171, 233, 6, 0),
    "Cosine": (57, 59, 6, 3),
}
_STAGING, _SLAB, _WARPS = 125, 16, 8  # instructions to bring a slab; places of one; warps of a block


@work_of(_SOURCE, "distances")
def _count_distances(launch: Launch) -> Work:
    a, y, packed = launch.arguments[0], launch.arguments[2], launch.arguments[3]
    assert isinstance(a, Slot) and isinstance(y, Slot) and isinstance(packed, bytes)
    rows, columns, inner, a_row, a_inner, b_row, b_inner = struct.unpack("<7q", packed)
    metric = launch.kernel.expression.partition("<")[2].partition(",")[0]
    is_double = y.dtype == np.float64
    *instructions, operations, issued = _METRIC_LOOPS[metric]
    product = TiledProduct(1, rows, columns, inner)
    loop = TileLoop(_STAGING + _SLAB * instructions[is_double], 300, 114, 34816 if is_double else 17408)
    left = count_slab_bytes(rows, inner, a_row, a_inner, a.dtype.itemsize) * product.column_tiles
    right = count_slab_bytes(columns, inner, b_row, b_inner, a.dtype.itemsize) * product.row_tiles
    stores = sum(_WARPS * 4 * (2 if stride == 1 else 1) for stride in (a_inner, b_inner))
    work = product.describe(launch, loop, left + right, stores, doubles=is_double, result=2)
    # Of a cosine, lengths are needed once for a row, and are worked out for each pair.
    needed = (rows + columns) * inner if metric == "Cosine" else 0
    return replace(
        work,
        flops=rows * columns * inner * operations,
        multiply_adds=work.multiply_adds * issued,
        needed_multiply_adds=(work.needed_multiply_adds if issued else 0) + needed,
    )
