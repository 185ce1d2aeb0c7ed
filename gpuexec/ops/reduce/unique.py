"""Unique, decomposed into FindUnique with upper-bound outputs and a cut to the count.

On a device the rows are sorted (`sort`), heads of runs of equal rows are marked and compacted (`nonzero`), and from
these everything is written. Without ``sorted`` the first occurrences are compacted too, in the order of the input.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from gpuexec.ir.command import Kernel, Slot
from gpuexec.ir.containers import make_blank
from gpuexec.ir.geometry import ceil_div, normalize_axis
from gpuexec.ir.graphs import Node, Value
from gpuexec.ir.host_values import require_const
from gpuexec.ir.instances import instantiate
from gpuexec.ir.operator import Array, Derivative, Emitter, Operator, Out, Slots, Tolerance, decompose, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.lib.checks import check_computed
from gpuexec.ops.reduce.sort import KEY_TYPES, largest_key, make_keys, sort_keys, sort_rows
from gpuexec.ops.tensor.layout import window
from gpuexec.ops.tensor.nonzero import compact, cut

SOURCE = "unique.cu"
_THREADS = 256  # kThreads of unique.cu
_INDEX = np.dtype(np.int64)
instantiate(SOURCE, [f"{kernel}<{bits}>" for kernel in ("mark_heads", "take_firsts") for bits in KEY_TYPES.values()])
instantiate(SOURCE, ["write_runs"])


@dataclass(frozen=True, slots=True)
class UniqueRows(Operator):
    """Base of Unique and FindUnique: the attributes, and the search."""

    axis: int | None = None
    sorted: int = 1
    tolerance = Tolerance.EXACT
    flops_per_output = None
    keeps_dtype = True

    def view(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Return the extents before, along and behind the axis; a tensor without axis is one long axis."""
        if self.axis is None:
            return 1, prod(shape), 1
        axis = normalize_axis(self.axis, len(shape))
        return prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])

    def cut_shape(self, shape: tuple[int, ...], count: int) -> tuple[int, ...]:
        """Return the shape of ``count`` rows."""
        if self.axis is None:
            return (count,)
        axis = normalize_axis(self.axis, len(shape))
        return (*shape[:axis], count, *shape[axis + 1 :])

    def find(self, x: Array) -> tuple[Array, Array, Array]:
        """Return the place of each first occurrence, the number of the run of each row, and the length of each run.

        Without an axis all NaNs are one; along an axis a row with a NaN is like no other.
        """
        outer, rows, inner = self.view(x.shape)
        keys = np.moveaxis(sort_keys(x).reshape(outer, rows, inner), 1, 0).reshape(rows, outer * inner)
        columns = keys.shape[1]
        order = np.lexsort(keys.T[::-1]) if columns else np.arange(rows)
        ranked = keys[order]
        is_head = np.ones(rows, np.bool_)
        is_head[1:] = (ranked[1:] != ranked[:-1]).any(1)
        if self.axis is not None:
            is_head |= (ranked > largest_key(x.dtype)).any(1)
        heads = np.flatnonzero(is_head)
        firsts, lengths = order[heads], np.diff(heads, append=rows)
        runs = np.empty(rows, _INDEX)
        runs[order] = np.cumsum(is_head) - 1
        if not self.sorted:
            by_place = np.argsort(firsts)
            firsts, lengths, runs = firsts[by_place], lengths[by_place], np.argsort(by_place)[runs]
        return firsts.astype(_INDEX), runs.astype(_INDEX), lengths.astype(_INDEX)

    def take(self, x: Array, firsts: Array) -> Array:
        """Return the rows of these places."""
        return np.take(x.reshape(-1) if self.axis is None else x, firsts, self.axis or 0)


@operator("Unique")
@dataclass(frozen=True, slots=True)
class Unique(UniqueRows):
    """Distinct elements (or slices of ``axis``), their first places, each element's number, and their counts.

    They stand in rising order, NaN last, or in that of their first occurrence if not ``sorted``.
    """

    derivative = Derivative.PARTS

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Count, if the content is known."""
        check_computed(self.name, x)
        count = len(self.find(require_const(x, "X", 0))[0])
        rows = self.view(x.shape)[1]
        lists = TensorSpec((count,), _INDEX)
        return x.with_shape(self.cut_shape(x.shape, count)), lists, TensorSpec((rows,), _INDEX), lists

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Sort with NumPy."""
        firsts, runs, lengths = self.find(x)
        return self.take(x, firsts), firsts, runs, lengths


@operator("FindUnique", "gpuexec")
@dataclass(frozen=True, slots=True)
class FindUnique(UniqueRows):
    """Outputs of Unique, each as long as the input and with zeros at the end, and the number of distinct elements."""

    has_blits = False

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return specs as long as the input."""
        check_computed(self.name, x)
        rows = self.view(x.shape)[1]
        lists = TensorSpec((rows,), _INDEX)
        return x.with_shape(self.cut_shape(x.shape, rows)), lists, lists, lists, TensorSpec((1,), _INDEX)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Sort with NumPy, and fill up."""
        firsts, runs, lengths = self.find(x)
        axis, missing = self.axis or 0, len(runs) - len(firsts)
        y = self.take(x, firsts)
        rest = make_blank((*y.shape[:axis], missing, *y.shape[axis:][1:]), y.dtype)
        filler = np.zeros(missing, _INDEX)
        lists = (np.concatenate([firsts, filler]), runs, np.concatenate([lengths, filler]))
        return np.concatenate([y, rest], axis), *lists, np.array([len(firsts)], _INDEX)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Sort, mark and compact heads, write."""
        (x,), (y, firsts, inverse, lengths, count) = inputs, outputs
        assert x is not None
        outer, rows, inner = self.view(x.shape)
        columns = outer * inner
        keys = make_keys(emit, _rows_first(x, self.axis))
        order = sort_rows(emit, keys, rows, columns)
        total = emit.temp((1,), _INDEX) if count is None else count
        is_head = emit.temp((rows,), np.uint8)
        is_first = None if self.sorted else emit.temp((rows,), np.uint8)
        largest = np.uint64(2**64 - 1 if self.axis is None else largest_key(x.dtype))
        self._launch(
            emit,
            f"mark_heads<{KEY_TYPES[x.dtype.itemsize]}>",
            rows,
            [keys, order, is_head, is_first, np.int64(rows), np.int64(columns), largest],
            [2] if is_first is None else [2, 3],
        )
        heads, head_ranks = emit.temp((rows,), _INDEX), emit.temp((rows,), _INDEX)
        compact(emit, is_head, total, heads, head_ranks)
        first_ranks = None
        if is_first is not None:
            first_ranks = emit.temp((rows,), _INDEX)
            compact(emit, is_first, emit.temp((1,), _INDEX), None, first_ranks)
        found = emit.temp((rows,), _INDEX) if firsts is None else firsts
        writes = [i for i, slot in ((6, found), (7, inverse), (8, lengths)) if slot is not None]
        arguments = [order, is_head, head_ranks, heads, first_ranks, total, found, inverse, lengths, np.int64(rows)]
        self._launch(emit, "write_runs", rows, arguments, writes)
        if y is not None:
            bits = f"take_firsts<{KEY_TYPES[x.dtype.itemsize]}>"
            extents = (np.int64(rows), np.int64(inner), np.int64(x.spec.size))
            self._launch(emit, bits, x.spec.size, [emit.contiguous(x), found, total, y, *extents], [3])

    def _launch(self, emit: Emitter, name: str, count: int, arguments: list[Any], writes: list[int]) -> None:
        grid = (max(1, ceil_div(count, _THREADS)), 1, 1)
        emit.launch(Kernel(SOURCE, name), grid, (_THREADS, 1, 1), arguments, writes=writes)


@decompose("Unique")
def size_unique(node: Node) -> tuple[Node, ...]:
    """Find, and cut all but the numbers to the count."""
    assert isinstance(node.operator, Unique)
    axis = node.operator.axis
    y, firsts, inverse, lengths = (*node.outputs, None, None, None)[:4]
    bounds: list[Value | None] = []
    cuts: list[Node] = []
    count = Value(f"{node.name}.count")
    for part, value, along in (("y", y, axis or 0), ("indices", firsts, 0), ("counts", lengths, 0)):
        bound = None if value is None else Value(f"{node.name}.{part}")
        bounds.append(bound)
        if bound is not None and value is not None:
            cuts += cut(bound, count, value, along)
    outputs = (bounds[0], bounds[1], inverse, bounds[2], count)
    return (Node(FindUnique(axis, node.operator.sorted), node.inputs, outputs, node.name), *cuts)


def _rows_first(x: Slot, axis: int | None) -> Slot:
    """Return the slot with its axis as the first, so that a dense copy holds a row after the other."""
    if axis is None:
        return x
    axis = normalize_axis(axis, x.spec.rank)
    order = (axis, *(i for i in range(x.spec.rank) if i != axis))
    return window(x, [x.shape[i] for i in order], [x.strides[i] for i in order])
