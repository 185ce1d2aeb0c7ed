"""Strided copies between windows, and the operators made of such copies alone: Concat, Tile, EyeLike.

`copy_commands` is what `emit.copy` and `emit.contiguous` come down to. Its one kernel knows the size of an element, not
the type. Neighbours that lie closely on both sides travel in units of up to 16 bytes; where source and destination lie
closely along different axes, they travel in tiles (``across.cuh``). Both are scalars of the launch, so the same code
serves every extent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import BUFFER_ALIGNMENT, Kernel, Launch, Slot
from gpuexec.ir.geometry import Shape, Strides, ceil_div, coalesce, contiguous_strides, normalize_axis
from gpuexec.ir.graphs import RawNode
from gpuexec.ir.index_map import Assembled, IndexMap, Window
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32, pack_struct
from gpuexec.ir.operator import (
    Array,
    Derivative,
    Emitter,
    FormatUse,
    KnownInput,
    Operator,
    Out,
    PreparedCalls,
    Slots,
    Tolerance,
    operator,
    upgrade,
)
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ir.symbolic_int import memoize
from gpuexec.ir.target import Target
from gpuexec.ir.work import Work, count_apart_bytes, count_slot_bytes, count_warps, read_int, work_of
from gpuexec.ops.lib.across import (
    ACROSS_TILE_BYTES,
    MIN_TILED_ELEMENTS,
    TILE_STAGED,
    can_take_squares,
    divide_across,
    read_lanes,
)
from gpuexec.ops.lib.by_content import prepare_by_content
from gpuexec.ops.lib.checks import require_ints
from gpuexec.ops.lib.strided import MAX_RANK, Walk, join
from gpuexec.ops.tensor.layout import read_ints, window

instantiate("copy.cu", ["copy_strided"])

_THREADS, _THREAD_UNITS = 256, 4  # kThreads and kUnits of copy.cu
_FILLING_BLOCKS = 512  # so many before threads take more than one unit
_FILLING_SQUARES = 1 << 14  # so many before threads take a square each
_TILE_BYTES = ACROSS_TILE_BYTES + 48  # sizeof(CopyTile)
_MAX_TILED_BYTES = 8  # bytes of a unit that shared memory has room for
_AROUND, _UNIT_INSTRUCTIONS = 120, 4  # instructions of a thread apart from its units, and of one, about
_SQUARE_LANES = 8  # the most of a square; 16 bytes where units have more than 2
_CopyWork = tuple[int, tuple[bytes, bytes, np.int32]]


def copy_commands(emit: Emitter, destination: Slot, source: Slot) -> None:
    """Launch the copy of ``source`` into ``destination``: equal shape and dtype, any strides, no common bytes."""
    assert destination.shape == source.shape and destination.dtype == source.dtype, (destination, source)
    if len(source.shape) > MAX_RANK:
        shape, (from_strides, to_strides) = coalesce(source.shape, (source.strides, destination.strides))
        source, destination = window(source, shape, from_strides), window(destination, shape, to_strides)
        if len(shape) > MAX_RANK:
            for index in range(shape[0]):
                part = window(source, shape[1:], from_strides[1:], index * from_strides[0])
                copy_commands(emit, window(destination, shape[1:], to_strides[1:], index * to_strides[0]), part)
            return
    misalignments = (source.offset_bytes % BUFFER_ALIGNMENT, destination.offset_bytes % BUFFER_ALIGNMENT)
    strides = (source.strides, destination.strides)
    blocks, scalars = _divide_work(source.shape, strides, source.dtype.itemsize, misalignments)
    emit.launch(
        Kernel("copy.cu", "copy_strided"),
        (blocks, 1, 1),
        (_THREADS, 1, 1),
        [source, destination, *scalars],
        writes=[1],
    )


@memoize(4096)
def _divide_work(
    shape: Shape, strides: tuple[Strides, Strides], itemsize: int, misalignments: tuple[int, int]
) -> _CopyWork:
    """Return blocks, and the arguments beside pointers: packed walk, ``CopyTile``, bytes of a unit.

    Strides and misalignments are those of source and destination. Kept, because a model repeats few combinations in
    many nodes, and is lowered again for each size.
    """
    walk = join(shape, strides)
    width = _unit_width(walk, itemsize, misalignments)
    walk = _in_wide_units(walk, width)
    unit = width * itemsize
    across = _axis_close_in_source(walk) if unit <= _MAX_TILED_BYTES else None
    if across is None:
        tile = bytes(_TILE_BYTES)
        blocks = max(
            ceil_div(walk.count, _THREADS * _THREAD_UNITS), min(ceil_div(walk.count, _THREADS), _FILLING_BLOCKS)
        )
    else:
        tile, walk, tiles = _in_tiles(walk, across, unit, misalignments)
        blocks = walk.count * tiles
    return max(blocks, 1), (walk.pack(), tile, int32(unit))


@work_of("copy.cu", "copy_strided")
def count_copy(launch: Launch) -> Work:
    """Count what a copy moves, by sectors where it reads or writes units apart from one another."""
    source, destination = launch.reads_from()[0], launch.writes_to()[0]
    tile, unit = launch.arguments[-2], read_int(launch.arguments[-1])
    assert isinstance(tile, bytes)
    lanes = read_lanes(tile)
    units = destination.spec.nbytes // unit / max(1, prod(launch.grid) * prod(launch.block))
    sides = (source, destination)
    moved = [count_slot_bytes(each) if lanes else count_apart_bytes(each, destination, _THREADS) for each in sides]
    return Work(
        instructions=count_warps(launch) * (_AROUND + units * _UNIT_INSTRUCTIONS),
        l2_nbytes=sum(moved),
        barriers=lanes == 1,
        shared_nbytes=TILE_STAGED * 8,
    )


@operator("Concat")
@dataclass(frozen=True, slots=True)
class Concat(Operator):
    """Concatenation along an axis. Inputs that can be made in place there cost nothing; the others are copied."""

    axis: int
    tolerance = Tolerance.EXACT
    example = "float32[2,3] float32[2,3] axis=0"
    flops_per_output = 0
    keeps_dtype = True
    derivative = Derivative.RULE
    has_blits = True
    format_use = FormatUse.FOLLOWS

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Add the extents of the axis."""
        if not inputs:
            raise InputError("Concat takes at least one input, got none.")
        first = inputs[0]
        axis = normalize_axis(self.axis, first.rank)
        for index, x in enumerate(inputs):
            expected = (*first.shape[:axis], *x.shape[axis : axis + 1], *first.shape[axis + 1 :])
            if x.dtype != first.dtype or x.rank != first.rank or x.shape != expected:
                raise InputError(
                    f"Concat expects tensors of one dtype whose shapes agree beside axis {axis}, got: input {index} is "
                    f"{x}, input 0 is {first}."
                )
        total = sum(x.shape[axis] for x in inputs)
        return (first.with_shape((*first.shape[:axis], total, *first.shape[axis + 1 :])),)

    def is_noop(self, inputs: Sequence[KnownInput | None]) -> bool:
        """Return whether there is one input."""
        return len(inputs) == 1

    def compute(self, *inputs: Array, out: Out = None) -> tuple[Array, ...]:
        """Copy each input to its place."""
        return (np.concatenate(inputs, self.axis, out=out[0] if out else None),)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Copy each input to its place."""
        y, first = out[0], 0
        if y is None or not y.size:
            return None
        axis = normalize_axis(self.axis, y.ndim)
        calls = []
        for x in inputs:
            assert x is not None
            place = y[(*(slice(None),) * axis, slice(first, first + x.shape[axis]))]
            first += x.shape[axis]
            if x.size:
                calls.append(partial(np.copyto, place, x))
        return calls

    def writes_windows(
        self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None], target: Target
    ) -> bool:
        """Return that it places or copies inputs in windows of any output."""
        return True

    def moved_inputs(self, count: int) -> tuple[int, ...]:
        """Return all positions."""
        return tuple(range(count))

    def as_index_map(self, inputs: Sequence[TensorSpec | None]) -> IndexMap | None:
        """Return the windows of the inputs, one behind the other."""
        first, parts = 0, []
        axis = 0
        for source, x in enumerate(inputs):
            assert x is not None
            axis = normalize_axis(self.axis, x.rank)
            parts.append(Window(source, tuple([first if each == axis else 0 for each in range(x.rank)])))
            first += x.shape[axis]
        return Assembled((axis,), tuple(parts), is_whole=True)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Place each input in its window of the output, or copy it there."""
        y = outputs[0]
        assert y is not None
        axis = normalize_axis(self.axis, y.spec.rank)
        first = 0
        for x in inputs:
            assert x is not None
            # Empty ones are placed too: placement is decided for all sizes.
            part = window(y, x.shape, y.strides, first * y.strides[axis])
            if not emit.place(x, part):
                emit.copy(part, x)
            first += x.shape[axis]


@operator("Tile")
@dataclass(frozen=True, slots=True)
class Tile(Operator):
    """Repetition of the input along each axis."""

    tolerance = Tolerance.EXACT
    flops_per_output = 0
    keeps_dtype = True
    derivative = Derivative.RULE
    has_blits = True

    def infer(self, x: TensorSpec, repeats: TensorSpec) -> tuple[TensorSpec, ...]:
        """Multiply the extents."""
        counts = _check_repeats(require_ints(repeats, "repeats", 1), x.rank)
        return (x.with_shape(tuple(count * extent for count, extent in zip(counts, x.shape, strict=True))),)

    def compute(self, x: Array, repeats: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Repeat."""
        return (np.tile(x, _check_repeats(read_ints(repeats), x.ndim)),)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Copy once, to a view of the output that has an axis of repeats before each of the input."""
        by_content = prepare_by_content(self, inputs, out, constant, scratch, (1,))
        if by_content is not None:
            return by_content
        (x, repeats), (y,) = inputs, out
        if x is None or repeats is None or y is None or not y.size or not constant[1] or not y.flags.c_contiguous:
            return None
        counts = _check_repeats(read_ints(repeats), x.ndim)
        divided = [extent for pair in zip(counts, x.shape, strict=True) for extent in pair]
        parts = x[(*[part for _ in counts for part in (np.newaxis, slice(None))], ...)]
        return [partial(np.copyto, y.reshape(divided), parts)]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Copy the input, stretched by an axis of stride 0 before each axis, into the output with its axes divided."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        if y.spec.size == 0:
            return
        shape: tuple[int, ...] = ()
        strides: tuple[int, ...] = ()
        for total, extent, stride in zip(y.shape, x.shape, x.strides, strict=True):
            shape += (total // extent, extent)
            strides += (0, stride)
        emit.copy(window(y, shape, contiguous_strides(shape)), window(x, shape, strides))


@operator("EyeLike")
@dataclass(frozen=True, slots=True)
class EyeLike(Operator):
    """Ones on diagonal ``k`` of a matrix of the input's shape, zeros elsewhere; ``dtype`` is by default the input's."""

    dtype: int | None = None
    k: int = 0
    tolerance = Tolerance.EXACT
    flops_per_output = 0
    derivative = Derivative.ZERO
    has_blits = True

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the input's shape in the type asked for."""
        if x.rank != 2:
            raise InputError(f"EyeLike expects a matrix, got {x}.")
        return (TensorSpec(x.shape, x.dtype if self.dtype is None else dtype_row(self.dtype).numpy),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Compare row and column."""
        rows, columns = x.shape
        is_one = np.arange(columns) - np.arange(rows)[:, None] == self.k
        return (is_one.astype(x.dtype if self.dtype is None else dtype_row(self.dtype).numpy),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Fill with zeros and copy a one along the diagonal."""
        y = outputs[0]
        assert y is not None
        rows, columns = y.shape
        length = max(0, min(rows, columns, rows + self.k, columns - self.k))
        first = max(self.k, -self.k * columns) if length else 0
        emit.fill(y, 0)
        one = emit.constant(np.ones((), y.dtype))
        emit.copy(window(y, (length,), (columns + 1,), first), window(one, (length,), (0,)))


@upgrade("Concat", below=4)
def _fill_axis(node: RawNode) -> RawNode:
    """Set the axis, which was 1 unless given until opset 3."""
    return node.with_attributes(axis=node.attributes.get("axis", 1))


@upgrade("Tile", below=6)
def _refuse_one_axis(node: RawNode) -> RawNode:
    """Refuse the inputs of opset 5, a count and an axis, of which no constant can be made here.

    Raises:
        InputError: Always.
    """
    raise InputError("Tile below opset 6, with inputs tiles and axis, is not supported.")


def _check_repeats(repeats: tuple[int, ...], rank: int) -> tuple[int, ...]:
    if len(repeats) != rank or min(repeats, default=0) < 0:
        raise InputError(f"repeats must hold a count of 0 or more for each of {rank} axes, got {list(repeats)}.")
    return repeats


def _unit_width(walk: Walk, itemsize: int, misalignments: tuple[int, int]) -> int:
    """Return how many neighbouring elements can travel as one unit."""
    if not walk.shape or walk.inner_strides != (1, 1):
        return 1
    width = BUFFER_ALIGNMENT // itemsize
    outer = [stride for strides in walk.strides for stride in strides[:-1]]
    while width > 1:
        if not any(start % (width * itemsize) for start in misalignments) and not any(
            extent % width for extent in (walk.shape[-1], *outer)
        ):
            break
        width //= 2
    return width


def _in_wide_units(walk: Walk, width: int) -> Walk:
    """Return the walk with strides, and the innermost extent, counted in units of ``width`` elements."""
    if width == 1:
        return walk
    strides = tuple((*(stride // width for stride in row[:-1]), 1) for row in walk.strides)
    return join((*walk.shape[:-1], walk.shape[-1] // width), strides)


def _axis_close_in_source(walk: Walk) -> int | None:
    """Return the axis along which tiles are read, if the copy is a transposition worth tiling."""
    source, destination = walk.strides
    if len(walk.shape) < 2 or abs(destination[-1]) != 1 or abs(source[-1]) <= 1:
        return None
    close = [axis for axis in range(len(walk.shape) - 1) if abs(source[axis]) == 1]
    return close[0] if close and walk.shape[close[0]] * walk.shape[-1] >= MIN_TILED_ELEMENTS else None


def _in_tiles(walk: Walk, across: int, unit: int, misalignments: tuple[int, int]) -> tuple[bytes, Walk, int]:
    """Return ``CopyTile``, the walk over the other axes, and the number of tiles of each of its elements."""
    source, destination = walk.strides
    inner = len(walk.shape) - 1
    others = [axis for axis in range(inner) if axis != across]
    inner_extent, across_extent = walk.shape[inner], walk.shape[across]
    lanes = _find_lanes(walk, across, unit, misalignments)
    tile, tiles = divide_across(inner_extent, across_extent, lanes, unit)
    strides = (source[inner], source[across], destination[inner], destination[across])
    packed = pack_struct("<6q", inner_extent, across_extent, *strides)
    rest = Walk(
        tuple(walk.shape[axis] for axis in others),
        tuple(tuple(strides[axis] for axis in others) for strides in walk.strides),
    )
    return tile + packed, rest, tiles


def _find_lanes(walk: Walk, across: int, unit: int, misalignments: tuple[int, int]) -> int:
    """Return the lanes of the squares that threads turn; 1 where rows of either side begin within a vector."""
    lanes, inner = min(_SQUARE_LANES, BUFFER_ALIGNMENT // unit), len(walk.shape) - 1
    if walk.count < _FILLING_SQUARES * lanes * lanes:
        return 1
    for strides, along, start in zip(walk.strides, (across, inner), misalignments, strict=True):
        steps = [stride for axis, stride in enumerate(strides) if axis != along]
        if strides[along] != 1 or start % (lanes * unit) or any(step % lanes for step in steps):
            return 1
    return lanes if can_take_squares(walk.shape[inner], walk.shape[across], lanes) else 1
