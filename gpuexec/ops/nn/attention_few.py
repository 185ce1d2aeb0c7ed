"""Launches of attention of few queries, in float or in a precision of 16 bits.

The keys of such queries are mostly those of a cache, which are floats and grow by one for each token. So it is one
launch, the same kernel for every length, which rounds operands while it reads them: that saves a launch and a tensor
for each of Q, K and V. It appends the new ones to the cache, too, where that grows in place.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuexec.errors import PlanError
from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import Strides, broadcast_strides, ceil_div, round_up
from gpuexec.ir.gpus import Gpu
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import pack_struct
from gpuexec.ir.moving_arguments import MovingArgument, declare_moving
from gpuexec.ir.operator import Emitter
from gpuexec.ir.spec import BFLOAT16, dtype_row
from gpuexec.ir.work import Work, count_slot_bytes, work_of
from gpuexec.ops.lib.slices import SliceCosts, slice_tiles
from gpuexec.ops.nn.attention_operands import MASK_TYPES, AttentionOperands, EmptyRows
from gpuexec.ops.nn.softmax import SOFTMAX_FLOPS
from gpuexec.ops.tensor.append import NewRows
from gpuexec.ops.tensor.layout import window

FEW_QUERIES = 8  # of a head, up to which its attention takes this kernel
_SOURCE = "attention_few.cu"
_STRUCT = "<22q12i2f"  # FewAttention of attention_few.cu
_FLOAT = np.dtype(np.float32)
_DTYPES = (_FLOAT, np.dtype(np.float16), BFLOAT16)
_THREADS, _WARPS, _COLUMNS, _LOADS = 256, 8, 4, 4  # kFewThreads, kFewWarps, kColumns, kLoads
_ROWS = (1, 4)  # of the instances
_REGISTERS = {1: 90, 4: 126}
_LEAST_LANES, _MOST_LANES, _MOST_KEYS = 8, 32, 1 << 30
_BLOCKS, _SCHEDULERS = 2, 4  # of a multiprocessor
_ROW_AXIS = 2  # of [batch, heads, rows, size]
# Times of a block in tiles of keys: it waits for memory about as long as for a tile, and for each slice that is merged.
_COSTS = SliceCosts(fixed=1.0, each_slice=0.05, min_slabs=1, slack=(1.0, 1.0, 1.0))
instantiate(
    _SOURCE,
    [
        f"attend_few<{stored}, {dtype_row(dtype).cuda}, {rows}>"
        for dtype in _DTYPES
        for stored in dict.fromkeys(("float", dtype_row(dtype).cuda))
        for rows in _ROWS
    ],
)
# Where the new ones belong, and keys and past of FewAttention.
declare_moving(
    *(_SOURCE, "attend_few", MovingArgument(9), MovingArgument(10)),
    *(MovingArgument(11, at, "i") for at in (struct.calcsize("<22q3i"), struct.calcsize("<22q4i"))),
)


def launch_few_queries(
    emit: Emitter,
    operands: AttentionOperands,
    y: Slot,
    dtype: np.dtype[Any],
    *,
    scale: float,
    fill: float,
    empty: EmptyRows,
    new: Sequence[NewRows] = (),
    is_wanted: bool = True,
) -> bool:
    """Launch attention of operands that are of a type, or rounded to it; return False where it takes other kernels.

    Args:
        emit: Emitter of the launch.
        operands: Strided inputs without lengths and sinks: q, k and v of one type, that one or float.
        y: ``[batch, heads, queries, values]`` of that type or float, dense along its columns.
        dtype: The type.
        scale: Factor of scores.
        fill: The score of a key that a mask of bools takes out.
        empty: What a row of scores gives that are all -inf.
        new: Rows to append first to the memories of k and v, where those are not stored yet.
        is_wanted: Whether other kernels take longer.

    Raises:
        PlanError: The upper end of the size class runs there, and this size can't.
    """
    q, k, v, mask = operands.q, operands.k, operands.v, operands.mask
    has_types = dtype in _DTYPES and q.dtype == k.dtype == v.dtype and q.dtype in (dtype, _FLOAT)
    has_mask_type = mask is None or mask.dtype in (np.dtype(np.bool_), _FLOAT)
    if not (emit.target.has_kernels and not emit.target.has_textures and has_types and has_mask_type):
        return False
    if not emit.choose(fits_few(operands) and q.shape[2] <= FEW_QUERIES and is_wanted):
        return False
    if not fits_few(operands):
        raise PlanError("Heads do not lie as they do at the upper end, which has chosen the kernel of few queries.")
    batch, heads, queries, _ = q.shape
    _, of_keys, keys, values = v.shape
    rows = heads // max(of_keys, 1) * queries
    together = _ROWS[emit.choose(rows > _ROWS[0])]
    row_tiles, lanes = max(1, ceil_div(rows, together)), _find_lanes(operands)
    tiles = batch * of_keys * row_tiles
    floats = together * _find_width(values)
    appended = _append(emit, operands, new)
    # Whatever the addresses are, it is this kernel that computes, so that they change no bit.
    q, k, v = (_align(emit, slot) for slot in (q, k, v))
    operands = replace(operands, q=q, k=k, v=v)
    # The grid over a cache is the same at every length of it.
    slabs, is_fixed = ceil_div(keys, _count_tile_keys(lanes)), appended is not None
    slices = slice_tiles(emit, tiles, slabs, floats, _BLOCKS, _COSTS, is_fixed=is_fixed)
    packed = _pack(operands, appended, y, scale, fill, empty, row_tiles, lanes)
    parts = (slices.scratch, slices.counters)
    arguments: list[Argument] = [q, k, v, mask, y, *parts, None, None, None, None, packed, None]
    writes = slices.writes(4, 5, tiles)
    if appended is not None:
        of_k, of_v = appended
        arguments[1:3] = of_k.past, of_v.past
        arguments[7:11] = of_k.rows, of_v.rows, of_k.room, of_v.room
        writes += [9, 10]
    emit.launch(
        Kernel(_SOURCE, f"attend_few<{dtype_row(q.dtype).cuda}, {dtype_row(dtype).cuda}, {together}>"),
        (max(1, tiles), slices.count, 1),
        (_THREADS, 1, 1),
        arguments,
        writes,
    )
    return True


def find_few_seconds(gpu: Gpu, operands: AttentionOperands) -> float:
    """Return about how long attention of few queries takes, its launch aside: to read keys and values, or to issue.

    Tiles of rows read the same keys again. The operands are those of `fits_few`.
    """
    (batch, heads, queries, depth), (_, of_keys, keys, values) = operands.q.shape, operands.v.shape
    rows = heads // max(of_keys, 1) * queries
    together = _ROWS[rows > _ROWS[0]]
    row_tiles, lanes = ceil_div(rows, together), _find_lanes(operands)
    held = [batch * of_keys * keys * size * operands.k.dtype.itemsize for size in (depth, values)]
    read = row_tiles * sum(nbytes / gpu.find_bandwidth(nbytes) for nbytes in held)
    tiles = batch * of_keys * row_tiles * ceil_div(keys, _count_tile_keys(lanes))
    issued = tiles * _WARPS * (_EACH_TILE + together * _EACH_TILE_ROW)
    return max(read, issued / (_SCHEDULERS * max(1, min(gpu.multiprocessors, tiles))) / gpu.clock_hertz)


@dataclass(frozen=True, slots=True)
class _AppendedRows:
    """Windows of four axes: on a memory, on the new rows where they were made, and on where they belong in it."""

    past: Slot
    rows: Slot
    room: Slot

    @classmethod
    def of(cls, view: Slot, new: NewRows) -> _AppendedRows | None:
        """Return them for keys or values that show a memory; None where rows can't be told from strides."""
        strides: list[int] = []
        grown, rows = new.grown, new.rows
        axes: list[int] = []
        for axis, (extent, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
            if extent == 1:
                strides.append(0)
                continue
            found = [at for at in range(grown.spec.rank) if (grown.shape[at], grown.strides[at]) == (extent, stride)]
            if len(found) != 1 or (found[0] == new.axis) != (axis == _ROW_AXIS):
                return None
            axes += found
            strides.append(rows.strides[found[0]])
        is_whole = (view.buffer, view.offset_bytes) == (grown.buffer, grown.offset_bytes)
        if not is_whole or view.spec.size != grown.spec.size or len(set(axes)) != len(axes):
            return None
        batch, heads, keys, size = view.shape
        count = rows.shape[new.axis]
        return cls(
            window(view, (batch, heads, keys - count, size), view.strides),
            window(rows, (batch, heads, count, size), strides),
            window(new.room, (batch, heads, count, size), view.strides),
        )


_Appended = tuple[_AppendedRows, _AppendedRows]  # of keys, and of values


def _append(emit: Emitter, operands: AttentionOperands, new: Sequence[NewRows]) -> _Appended | None:
    """Return the rows that the launch appends; None where there are none, or they are copied in front of it.

    Raises:
        PlanError: At the upper end of the size class they are appended by the launch, at this size they can't be.
    """
    if not new:
        return None
    appended = _find_appended(operands, new)
    if not emit.choose(appended is not None):
        for each in new:
            each.store(emit)
        return None
    if appended is None:
        raise PlanError("New keys do not lie as they do at the upper end, where attention appends them.")
    return appended


def _find_appended(operands: AttentionOperands, new: Sequence[NewRows]) -> _Appended | None:
    k, v = (_AppendedRows.of(view, each) for view, each in zip((operands.k, operands.v), new, strict=True))
    if k is None or v is None or not all(_is_wide(each) for part in (k, v) for each in (part.rows, part.room)):
        return None
    # No block may read what another one stores.
    others = {slot.buffer for slot in (operands.q, operands.mask, k.rows, v.rows) if slot is not None}
    is_apart = k.past.buffer != v.past.buffer and others.isdisjoint((k.past.buffer, v.past.buffer))
    return (k, v) if is_apart and operands.q.spec.size else None


def fits_few(operands: AttentionOperands) -> bool:
    """Return whether heads lie as vectors of four but for the first address, lanes hold one, and 32 bits the keys."""
    depth, values = operands.q.shape[3], operands.v.shape[3]
    is_head = min(depth, values) > 0 and max(depth, values) <= _COLUMNS * _MOST_LANES
    is_whole = not (depth % _COLUMNS or values % _COLUMNS)
    is_counted = operands.v.shape[2] < _MOST_KEYS
    return is_head and is_whole and is_counted and all(map(_has_rows, (operands.q, operands.k, operands.v)))


def _align(emit: Emitter, slot: Slot) -> Slot:
    """Return a slot that begins with a whole vector: itself, or a dense copy.

    Raises:
        PlanError: It is itself at the upper end of the size class.
    """
    is_wide = _is_wide(slot)
    if not emit.choose(is_wide):
        dense = emit.temp(slot.shape, slot.dtype)
        emit.copy(dense, slot)
        return dense
    if not is_wide:
        raise PlanError(f"{slot} does not lie in vectors, as it does at the upper end of the size class.")
    return slot


def _is_wide(slot: Slot) -> bool:
    """Return whether heads lie as vectors."""
    return _has_rows(slot) and (not slot.spec.size or slot.offset_bytes % (_COLUMNS * slot.dtype.itemsize) == 0)


def _has_rows(slot: Slot) -> bool:
    """Return whether heads are dense, and vectors apart from each other."""
    *outer, column = (0 if extent == 1 else stride for extent, stride in zip(slot.shape, slot.strides, strict=True))
    return not slot.spec.size or (column == 1 and not any(each % _COLUMNS for each in outer))


def _find_lanes(operands: AttentionOperands) -> int:
    """Return how many lanes share a key."""
    widest = ceil_div(max(operands.q.shape[3], operands.v.shape[3]), _COLUMNS)
    return max(_LEAST_LANES, 1 << (widest - 1).bit_length())


def _count_tile_keys(lanes: int) -> int:
    return _LOADS * _THREADS // lanes


def _find_width(values: int) -> int:
    """Return the floats of a row in scratch memory: its sums, the largest score and the total of weights."""
    return round_up(values + 2, 8)


def _pack(
    operands: AttentionOperands,
    appended: _Appended | None,
    y: Slot,
    scale: float,
    fill: float,
    empty: EmptyRows,
    row_tiles: int,
    lanes: int,
) -> bytes:
    """Return the bytes of the struct ``FewAttention`` of attention_few.cu."""
    q, k, v, mask = operands.q, operands.k, operands.v, operands.mask
    (batch, heads, queries, depth), (_, of_keys, keys, values) = q.shape, v.shape
    kind = 0
    mask_strides: Strides = (0,) * 4
    if mask is not None:
        kind = 1 + MASK_TYPES.index(mask.dtype)
        mask_strides = broadcast_strides(mask.shape, mask.strides, (batch, heads, queries, keys))
    past = keys
    new_strides: Strides = (0,) * 6
    if appended is not None:
        of_k, of_v = appended
        past, new_strides = of_k.past.shape[_ROW_AXIS], (*of_k.rows.strides[:3], *of_v.rows.strides[:3])
    strides = (*q.strides[:3], *k.strides[:3], *v.strides[:3], *y.strides[:3], *mask_strides, *new_strides)
    extents = (max(of_keys, 1), heads // max(of_keys, 1), max(queries, 1), keys, past, depth, values, row_tiles, lanes)
    with np.errstate(over="ignore"):
        numbers = [float(np.float32(each)) for each in (scale, fill)]
    return pack_struct(_STRUCT, *strides, *extents, kind, int(empty), int(y.dtype == _FLOAT), *numbers)


# Instructions of a thread: for a tile, and of that for each row; for each row of a block; for a slice that is merged.
_EACH_TILE, _EACH_TILE_ROW, _EACH_ROW, _EACH_SLICE, _AROUND = 290, 150, 150, 45, 250


@work_of(_SOURCE, "attend_few")
def _count_few(launch: Launch) -> Work:
    q, k, v, _, y, *_, room_k, room_v, packed, _ = launch.arguments
    assert isinstance(q, Slot) and isinstance(k, Slot) and isinstance(v, Slot) and isinstance(y, Slot)
    assert isinstance(packed, bytes)
    heads, group, queries, keys, _, depth, values, _, lanes, kind, *_ = struct.unpack(_STRUCT, packed)[22:]
    together = int(launch.kernel.expression.rpartition(", ")[2].rstrip(">"))
    slices = min(launch.grid[1], max(1, ceil_div(keys, _count_tile_keys(lanes))))
    blocks = launch.grid[0] * slices
    rows = y.spec.size // max(1, values)
    tile_keys = _count_tile_keys(lanes)
    tiles = launch.grid[0] * ceil_div(keys, tile_keys)  # of all blocks
    warps = _WARPS * tiles
    itemsize = k.dtype.itemsize
    scratch = launch.grid[0] * slices * together * _find_width(values) * 4 if slices > 1 else 0
    is_masked = kind != 0
    full, rest = divmod(group * queries, together)
    merged = heads * (full * ceil_div(together * values, 32) + ceil_div(rest * values, 32))  # warps that merge slices
    merges = rows // max(1, heads * group * queries) * merged * slices if slices > 1 else 0
    stored = sum(each.spec.nbytes for each in (room_k, room_v) if isinstance(each, Slot))
    return Work(
        flops=rows * keys * (2 * depth + SOFTMAX_FLOPS + 2 * values),
        instructions=warps * (_EACH_TILE + together * _EACH_TILE_ROW)
        + _WARPS * blocks * (_AROUND + together * _EACH_ROW)
        + merges * _EACH_SLICE,
        multiply_adds=32 * (warps * together * 2 * _LOADS * _COLUMNS + 2 * merges),
        needed_multiply_adds=rows * keys * (depth + values),
        # Of a tile: a row of scores is stored, read for the largest, and by fours for their weights; of a block: sums
        # and totals of warps.
        wavefronts=warps * together * (1 + tile_keys // 32 + _LOADS)
        + blocks * together * _WARPS * (1 + lanes // 8 + _WARPS + ceil_div(values, 32)),
        l2_nbytes=itemsize * (launch.grid[0] * keys * (depth + values) + blocks * together * depth)
        + y.spec.nbytes
        + 2 * scratch
        + stored
        + (4 * rows * keys if is_masked else 0),
        rounds=(1 + is_masked) * ceil_div(ceil_div(keys, tile_keys), slices) + 1 + 2 * (slices > 1),
        barriers=ceil_div(ceil_div(keys, tile_keys), slices) + 2 + 2 * (slices > 1),
        registers=_REGISTERS[together],
        shared_nbytes=(2 * together * 128 + _WARPS * together * 129) * 4,
        operand_nbytes={1: count_slot_bytes(k), 2: count_slot_bytes(v)},
    )
