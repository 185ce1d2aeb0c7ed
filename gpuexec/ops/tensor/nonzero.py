"""NonZero and Compress, decomposed into Compact with an upper-bound output and a cut to the count.

NonZero's size depends on data. It becomes Compact (all positions in order, and how many there are), a Slice of the
positions by their count, and `Unravel`, which turns positions into coordinates. On a device, tiles of 4096 elements are
counted, the counts added up by one block, and the positions written: three launches, whatever the size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Slot
from gpuexec.ir.geometry import ceil_div, normalize_axis
from gpuexec.ir.graphs import Node, Value
from gpuexec.ir.host_values import require_const
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int64, join_bytes, pack_struct
from gpuexec.ir.operator import Array, Derivative, Emitter, Operator, Out, Slots, Tolerance, decompose, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.lib.checks import check_computed, check_dtype, require_ints
from gpuexec.ops.lib.strided import MAX_RANK, pack_fast_div64
from gpuexec.ops.tensor.gather import Gather
from gpuexec.ops.tensor.layout import Reshape, read_ints
from gpuexec.ops.tensor.shape import Constant, Shape
from gpuexec.ops.tensor.slice import Slice

SOURCE = "nonzero.cu"
_BITS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
_THREADS = 256  # kBlockThreads of reduce.cuh
_TILE = 4096  # kTile of nonzero.cu
_INDEX = np.dtype(np.int64)
_BOOL = np.dtype(np.bool_)
instantiate(SOURCE, [f"{kernel}<{bits}>" for kernel in ("count_nonzero", "write_positions") for bits in _BITS.values()])
instantiate(SOURCE, ["add_up_counts", "unravel"])


@operator("NonZero")
@dataclass(frozen=True, slots=True)
class NonZero(Operator):
    """Coordinates of all nonzero elements in order: ``[rank, count]``. NaN is not zero."""

    tolerance = Tolerance.EXACT
    flops_per_output = None
    derivative = Derivative.ZERO

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Count, if the content is known."""
        check_computed(self.name, x)
        return (TensorSpec((x.rank, int(np.count_nonzero(require_const(x, "X", 0)))), _INDEX),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Search with NumPy; an array without axes has no coordinates."""
        if not x.ndim:
            return (np.zeros((0, int(np.count_nonzero(x))), _INDEX),)
        return (np.stack(np.nonzero(x)).astype(_INDEX, copy=False),)


@operator("Compress")
@dataclass(frozen=True, slots=True)
class Compress(Operator):
    """Slices of an axis where a condition holds; without ``axis``, elements. A short condition leaves out the rest."""

    axis: int | None = None
    tolerance = Tolerance.EXACT
    example = "float32[2,3] bool[6]"
    flops_per_output = 0
    keeps_dtype = True
    derivative = Derivative.PARTS

    def infer(self, x: TensorSpec, condition: TensorSpec) -> tuple[TensorSpec, ...]:
        """Count, if the condition is known."""
        check_dtype(self.name, condition, (_BOOL,), "condition")
        if condition.rank != 1:
            raise InputError(f"Compress expects a condition of one axis, got {condition}.")
        shape = (x.size,) if self.axis is None else x.shape
        axis = 0 if self.axis is None else normalize_axis(self.axis, x.rank)
        count = int(np.count_nonzero(require_const(condition, "condition", 1)[: shape[axis]]))
        return (x.with_shape((*shape[:axis], count, *shape[axis + 1 :])),)

    def compute(self, x: Array, condition: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Take the elements where the condition holds."""
        data = x.reshape(-1) if self.axis is None else x
        axis = 0 if self.axis is None else normalize_axis(self.axis, x.ndim)
        return (np.take(data, np.flatnonzero(condition[: data.shape[axis]]), axis),)


@operator("Compact", "gpuexec")
@dataclass(frozen=True, slots=True)
class Compact(Operator):
    """Flat positions of all nonzero elements in order, then zeros, and their number."""

    tolerance = Tolerance.EXACT
    flops_per_output = 0
    has_blits = False

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return specs as long as the input."""
        check_computed(self.name, x)
        return TensorSpec((x.size,), _INDEX), TensorSpec((1,), _INDEX)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Search with NumPy."""
        found = np.flatnonzero(x)
        positions = np.zeros(x.size, _INDEX)
        positions[: found.size] = found
        return positions, np.array([found.size], _INDEX)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Count, add up, write."""
        x, (positions, count) = inputs[0], outputs
        assert x is not None
        compact(emit, x, count, positions)


@operator("Unravel", "gpuexec")
@dataclass(frozen=True, slots=True)
class Unravel(Operator):
    """Coordinates of flat positions in a tensor of the given shape, an axis per row."""

    tolerance = Tolerance.EXACT
    flops_per_output = None
    keeps_dtype = True
    has_blits = False

    def infer(self, positions: TensorSpec, shape: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return a spec with a row per axis."""
        check_dtype(self.name, positions, (_INDEX,), "positions")
        if positions.rank != 1:
            raise InputError(f"Unravel expects positions of one axis, got {positions}.")
        return (TensorSpec((len(require_ints(shape, "shape", 1)), positions.shape[0]), _INDEX),)

    def compute(self, positions: Array, shape: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Divide by one extent after the other."""
        coordinates = np.empty((shape.size, positions.size), _INDEX)
        rest = positions
        for axis, extent in reversed(list(enumerate(read_ints(shape)))):
            rest, coordinates[axis] = np.divmod(rest, max(1, extent))
        return (coordinates,)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a thread per position."""
        positions, shape, y = inputs[0], inputs[1], outputs[0]
        assert positions is not None and shape is not None and y is not None
        extents = require_ints(shape.spec, "shape", 1)
        if len(extents) > MAX_RANK:
            raise InputError(f"Unravel takes at most {MAX_RANK} axes on a device, got {len(extents)}.")
        axes = join_bytes(pack_fast_div64(max(1, extent)) for extent in reversed(extents))
        count = positions.spec.size
        emit.launch(
            Kernel(SOURCE, "unravel"),
            (max(1, ceil_div(count, _THREADS)), 1, 1),
            (_THREADS, 1, 1),
            [
                positions,
                y,
                int64(count),
                int64(positions.strides[0]),
                pack_struct("<q", len(extents)) + axes + bytes(24 * (MAX_RANK - len(extents))),
            ],
            writes=[1],
        )


@decompose("NonZero")
def size_nonzero(node: Node) -> tuple[Node, ...]:
    """Compact, cut to the count, and unravel."""
    x, y = node.inputs[0], node.outputs[0]
    shape = Value(f"{node.name}.shape")
    compacted, positions = cut_positions(node, x)
    return (
        *compacted,
        Node(Shape(), (x,), (shape,), shape.name),
        Node(Unravel(), (positions, shape), (y,), node.name),
    )


@decompose("Compress")
def size_compress(node: Node) -> tuple[Node, ...]:
    """Compact the part of the condition beside the axis, cut to the count, and gather."""
    assert isinstance(node.operator, Compress)
    (x, condition), (y,), axis = node.inputs, node.outputs, node.operator.axis
    nodes: list[Node] = []
    if axis is None:
        axis, minus_one, flat = 0, Value(f"{node.name}.minus_one"), Value(f"{node.name}.flat")
        nodes += [
            Node(Constant(value_ints=(-1,)), (), (minus_one,), minus_one.name),
            Node(Reshape(), (x, minus_one), (flat,), flat.name),
        ]
        x = flat
    extent, start, beside = (Value(f"{node.name}.{part}") for part in ("extent", "start", "condition"))
    end = axis + 1 if axis != -1 else None
    compacted, positions = cut_positions(node, beside)
    return (
        *nodes,
        Node(Shape(axis, end), (x,), (extent,), extent.name),
        Node(Constant(value_ints=(0,)), (), (start,), start.name),
        Node(Slice(), (condition, start, extent), (beside,), beside.name),
        *compacted,
        Node(Gather(axis), (x, positions), (y,), node.name),
    )


def cut_positions(node: Node, x: Value | None) -> tuple[tuple[Node, ...], Value]:
    """Return nodes that find the positions of nonzero elements in ``x``, and the value of exactly these."""
    bound, count, positions = (Value(f"{node.name}.{part}") for part in ("bound", "count", "positions"))
    compacted = Node(Compact(), (x,), (bound, count), bound.name)
    return (compacted, *cut(bound, count, positions)), positions


def cut(bound: Value, count: Value, y: Value, axis: int = 0) -> tuple[Node, ...]:
    """Return nodes that make ``y`` of the first ``count`` slices of ``bound``."""
    start, along = Value(f"{y.name}.start"), Value(f"{y.name}.axis")
    return (
        Node(Constant(value_ints=(0,)), (), (start,), start.name),
        Node(Constant(value_ints=(axis,)), (), (along,), along.name),
        Node(Slice(), (bound, start, count, along), (y,), f"{y.name}.cut"),
    )


def compact(emit: Emitter, x: Slot, count: Slot | None, positions: Slot | None, ranks: Slot | None = None) -> None:
    """Launch the search for nonzero elements.

    Args:
        emit: Emitter of the launches.
        x: Tensor to search; of any strides.
        count: Takes how many are found; int64[1].
        positions: Takes their flat positions, then zeros; int64, as many as ``x`` has elements.
        ranks: Takes, for each element, how many before it are found; int64.
    """
    x, size = emit.contiguous(x), x.spec.size
    bits = _BITS[x.dtype.itemsize]
    every = (1 << (8 * x.dtype.itemsize)) - 1
    mask = np.uint64(every if x.dtype.kind in "biu" else every >> 1)
    tiles = max(1, ceil_div(size, _TILE))
    counts = emit.temp((tiles,), _INDEX)
    total = emit.temp((1,), _INDEX) if count is None else count
    grid, block = (tiles, 1, 1), (_THREADS, 1, 1)
    emit.launch(Kernel(SOURCE, f"count_nonzero<{bits}>"), grid, block, [x, counts, int64(size), mask], writes=[1])
    offsets = add_up_counts(emit, counts, total)
    if positions is not None or ranks is not None:
        writes = [i for i, slot in ((3, positions), (4, ranks)) if slot is not None]
        arguments: list[Argument] = [x, offsets, total, positions, ranks, int64(size), mask]
        emit.launch(Kernel(SOURCE, f"write_positions<{bits}>"), grid, block, arguments, writes=writes)


def add_up_counts(emit: Emitter, counts: Slot, total: Slot) -> Slot:
    """Launch the sum of all counts into ``total``, and return the slot of the sums before each."""
    offsets = emit.temp(counts.shape, _INDEX)
    arguments: list[Argument] = [counts, offsets, total, int64(counts.spec.size)]
    emit.launch(Kernel(SOURCE, "add_up_counts"), (1, 1, 1), (_THREADS, 1, 1), arguments, writes=[1, 2])
    return offsets
