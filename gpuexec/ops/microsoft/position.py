"""Relative position biases: RelativePositionBias (T5) and GatedRelativePositionBias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.graphs import Value
from gpuexec.ir.host_values import require_const
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int64
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.lib.composite import Composite, Made, Sketch, composite
from gpuexec.ops.microsoft.activation import DOMAIN
from gpuexec.ops.microsoft.expected import GatedInput
from gpuexec.ops.microsoft.packing import RestoreRows
from gpuexec.ops.microsoft.projected import ProjectedHeads

_SOURCE = "relative_buckets.cu"
_THREADS = 256  # kThreads of relative_buckets.cu
_INT32 = np.dtype(np.int32)
instantiate(_SOURCE, ["relative_buckets"])


@operator("RelativeBuckets", "gpuexec")
@dataclass(frozen=True, slots=True)
class RelativeBuckets(Operator):
    """The bucket of each distance ``j - i`` between a query and a key, int32 ``[queries, keys]``.

    Half the buckets are for small distances, one for each; the others grow like a logarithm up to ``max_distance``.
    Keys behind a query have half of all buckets for themselves if ``is_bidirectional``, else they stand at distance 0.
    Inputs: a table whose first axis tells how many buckets there are, and the two lengths.
    """

    max_distance: int
    is_bidirectional: int = 0
    tolerance = Tolerance.EXACT
    flops_per_output = None
    has_blits = False

    def infer(self, table: TensorSpec, queries: TensorSpec, keys: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the spec of the buckets.

        Raises:
            InputError: There are too few buckets, or the distance is none.
            NeedsHostValue: A length is not known.
        """
        min_buckets = 4 if self.is_bidirectional else 2
        if table.rank != 2 or table.shape[0] < min_buckets:
            raise InputError(f"{self.name} expects a table of at least {min_buckets} buckets by heads, got {table}.")
        if self.max_distance <= self._exact(table.shape[0]):
            raise InputError(
                f"{self.name} expects max_distance beyond {self._exact(table.shape[0])}, got {self.max_distance}."
            )
        return (TensorSpec((_read(queries, "query_length", 1), _read(keys, "key_length", 2)), _INT32),)

    def compute(self, table: Array, queries: Array, keys: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Look up with NumPy."""
        rows, columns = (int(length.reshape(())) for length in (queries, keys))
        distance = np.arange(columns) - np.arange(rows)[:, np.newaxis]
        distance = np.clip(distance, -self.max_distance, self.max_distance)
        return (self._tabulate(table.shape[0])[distance + self.max_distance],)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a thread per pair."""
        table, y = inputs[0], outputs[0]
        assert table is not None and y is not None
        rows, columns = y.shape
        sizes = (int64(rows), int64(columns), int64(self.max_distance))
        arguments: list[Argument] = [emit.constant(self._tabulate(table.shape[0])), y, *sizes]
        blocks = max(1, ceil_div(rows * columns, _THREADS))
        emit.launch(Kernel(_SOURCE, "relative_buckets"), (blocks, 1, 1), (_THREADS, 1, 1), arguments, writes=[1])

    def _exact(self, buckets: int) -> int:
        """Return how many distances have a bucket of their own."""
        return (buckets // 2 if self.is_bidirectional else buckets) // 2

    def _tabulate(self, buckets: int) -> Array:
        """Return the bucket of every distance from ``-max_distance`` on."""
        distance = np.arange(-self.max_distance, self.max_distance + 1)
        first = np.zeros_like(distance)
        if self.is_bidirectional:
            buckets //= 2
            first[distance > 0] = buckets
            distance = np.abs(distance)
        else:
            distance = np.maximum(-distance, 0)
        exact = buckets // 2
        ratio = np.maximum(distance, exact).astype(np.float32) / np.float32(exact)
        grown = np.log(ratio) / np.log(np.float32(self.max_distance) / np.float32(exact)) * np.float32(buckets - exact)
        far = np.minimum(exact + grown.astype(np.int64), buckets - 1)
        return (first + np.where(distance < exact, distance, far)).astype(_INT32)


def _read(spec: TensorSpec, role: str, index: int) -> int:
    if spec.size != 1 or spec.dtype.kind != "i":
        raise InputError(f"{role} must be one integer, got {spec}.")
    return max(0, int(require_const(spec, role, index).reshape(())))


@composite("RelativePositionBias", DOMAIN)
@dataclass(frozen=True, slots=True)
class RelativePositionBias(Composite):
    """The bias of each head for each pair of positions, ``[1, heads, queries, keys]``.

    The table says ``[buckets, heads]`` and holds the buckets of one head after those of another.
    """

    inputs: ClassVar[int] = 3
    max_distance: int
    is_bidirectional: int = 0
    example = "float32[8,3] int64[1]=12 int64[1]=14 max_distance=10"

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Find the buckets and gather."""
        table, queries, keys = inputs
        assert table is not None
        buckets = sketch.add(RelativeBuckets(self.max_distance, self.is_bidirectional), table, queries, keys)
        extents = (sketch.add("Shape", table, start=1), sketch.add("Shape", table, end=1))
        by_head = sketch.add("Reshape", table, sketch.add("Concat", *extents, axis=0))
        return (sketch.add("Unsqueeze", sketch.add("Gather", by_head, buckets, axis=1), sketch.ints(0)),)


@composite("GatedRelativePositionBias", DOMAIN)
@dataclass(frozen=True, slots=True)
class GatedRelativePositionBias(Composite):
    """``(u * (r * eco_a - 1) + 2) * rel_pos``, with gates u and r that a projection of each query's head gives."""

    inputs: ClassVar[int] = 7
    num_heads: int
    example = (
        "float32[6,8] float32[8] float32[1,2,3,3] float32[4,8] float32[8] float32[1,2,1,1] int32[2,3] num_heads=2 | "
        "float32[2,3,8] float32[8] float32[1,2,3,3] float32[4,8] float32[8] float32[1,2,1,1] num_heads=2"
    )

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Project, add up each half, and scale."""
        query, query_bias, positions, weight, bias, eco, places = inputs
        query = query if places is None else sketch.add(RestoreRows(), query, places)
        query = sketch.add(GatedInput(self.num_heads), query, query_bias, positions)
        heads = sketch.add(ProjectedHeads(self.num_heads, 0), query, query_bias)
        projected = sketch.add("Add", sketch.add("MatMul", heads, weight), bias)
        halves = sketch.reshape(projected, 0, 0, 0, 2, -1)
        gates = sketch.add("Sigmoid", sketch.add("ReduceSum", halves, sketch.ints(-1), keepdims=0))
        u, r = (sketch.take(gates, 3, index, index + 1) for index in (0, 1))
        one, two = (sketch.add("gpuexec.NumberLike", weight, value=number) for number in (1.0, 2.0))
        inner = sketch.add("Sub", sketch.add("Mul", r, eco), one)
        gate = sketch.add("Add", sketch.add("Mul", u, inner), two)
        return (sketch.add("Mul", gate, positions),)
