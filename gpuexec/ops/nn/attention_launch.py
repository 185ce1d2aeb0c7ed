"""Launches of the attention kernels: division of the work between blocks, and the parameter struct."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import Strides, broadcast_strides, ceil_div
from gpuexec.ir.gpus import Gpu
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32, pack_struct
from gpuexec.ir.operator import Emitter
from gpuexec.ir.spec import accumulator, dtype_row
from gpuexec.ir.work import Work, count_slot_bytes, count_warps, read_int, work_of
from gpuexec.ops.elementwise.elementwise_cast import convert_commands
from gpuexec.ops.lib.team import BLOCK_THREADS
from gpuexec.ops.nn.attention_host import AttentionRule
from gpuexec.ops.nn.attention_mma import launch_on_tensor_cores
from gpuexec.ops.nn.attention_operands import FLOATS, MASK_TYPES, AttentionOperands, EmptyRows

_SOURCE = "attention.cu"
_STRUCT = "<37q3d"  # Attention of attention.cu
_BLOCK = (BLOCK_THREADS, 1, 1)
_FEW_ROWS, _MANY_ROWS = 16, 64  # kFewRows, kManyRows
_VALUES = {4: 128, 8: 64}  # Tile::kValues by the size of the accumulator
_CHUNK_KEYS = 256  # keys of a block where rows are too few to occupy a device
_WARPS = BLOCK_THREADS // 32
_SCHEDULERS = 4  # of a multiprocessor
# Cycles of a block beside those it issues in, as a factor; and of a round trip of loads between two barriers.
_SLACK, _ROUND_CYCLES = 1.2, 1350
_FARTHEST = 1 << 31  # bound on windows: no tensor has as many keys
_KERNELS = ("attend", "attend_merge", "attention_scores")
instantiate(_SOURCE, [f"{kernel}<{dtype_row(t).cuda}>" for kernel in _KERNELS for t in FLOATS])


@dataclass(frozen=True, slots=True)
class _Division:
    """Division of rows, columns of v and keys between blocks, and the scratch memory it takes.

    Scratch is for as many rows as may be split and all chunks, be they split or not: it never grows as extents shrink.
    """

    row_tiles: int
    value_tiles: int
    chunk_keys: int
    chunks: int
    scratch_rows: int
    scratch_chunks: int

    @classmethod
    def of(cls, rows: int, keys: int, values: int, acc: np.dtype[Any]) -> _Division:
        scratch_chunks = max(1, ceil_div(keys, _CHUNK_KEYS))
        chunks = scratch_chunks if has_chunks(rows, keys) else 1
        return cls(
            row_tiles=ceil_div(rows, _FEW_ROWS if rows <= _FEW_ROWS else _MANY_ROWS),
            value_tiles=ceil_div(values, _VALUES[acc.itemsize]),
            chunk_keys=_CHUNK_KEYS if chunks > 1 else max(1, keys),
            chunks=chunks,
            scratch_rows=min(rows, _MANY_ROWS),
            scratch_chunks=scratch_chunks,
        )


def has_chunks(rows: int, keys: int) -> bool:
    """Return whether the keys of so few rows are divided among blocks, which takes a second launch."""
    return rows <= _MANY_ROWS and keys > _CHUNK_KEYS


def launch_attention(
    emit: Emitter,
    operands: AttentionOperands,
    rule: AttentionRule,
    y: Slot | None,
    scores: Slot | None,
    mode: int,
    *,
    fill: float = -np.inf,
    empty: EmptyRows = EmptyRows.ZERO,
    rounds_mask: bool = True,
) -> None:
    """Launch attention into ``y``, and the scores of a mode into ``scores``: on tensor cores where it runs there.

    Args:
        emit: Emitter of the launches.
        operands: Strided inputs.
        rule: Scaling, capping and masking of scores.
        y: ``[batch, heads, queries, values]``, dense along its columns, of the operands' type; or of float, where those
            are narrower.
        scores: ``[batch, heads, queries, keys]``, dense, of the same type.
        mode: The kind of scores (see `Attention`).
        fill: The score of a key that a mask of bools takes out.
        empty: What a row of scores gives that are all -inf.
        rounds_mask: Whether a mask that is added is rounded to the operands' type first.
    """
    if y is not None and launch_on_tensor_cores(
        emit, operands, rule, y, fill=fill, empty=empty, rounds_mask=rounds_mask
    ):
        y = None
        if scores is None:
            return
    result = scores if y is None else y
    assert result is not None
    operands = replace(operands, **{name: _widen(emit, getattr(operands, name), result.dtype) for name in "qkv"})
    q, k, v = operands.q, operands.k, operands.v
    batch, heads, queries, _ = q.shape
    _, of_keys, keys, values = v.shape
    cuda, acc = dtype_row(q.dtype).cuda, accumulator(q.dtype)
    rows = heads // max(of_keys, 1) * queries
    division = _Division.of(rows, keys, values, acc)
    is_split = y is not None and bool(emit.choose(division.chunks > 1))
    if not is_split:
        division = replace(division, chunk_keys=max(1, keys), chunks=1)
    pairs = batch * of_keys
    packed = _pack(operands, (0,) * 4 if y is None else y.strides, rule, division, fill, empty)
    lengths = None if operands.lengths is None else emit.contiguous(operands.lengths)
    sinks = None if operands.sinks is None else emit.contiguous(operands.sinks)
    given: list[Argument] = [q, k, v, operands.mask, lengths, sinks]
    if y is not None:
        blocks = pairs * division.row_tiles * division.value_tiles * division.chunks
        attend, grid = Kernel(_SOURCE, f"attend<{cuda}>"), (max(1, blocks), 1, 1)
        if is_split:
            scratch = (pairs, division.scratch_rows, division.scratch_chunks)
            states, sums = emit.temp((*scratch, 2 * min(values, 1)), acc), emit.temp((*scratch, values), acc)
            emit.launch(attend, grid, _BLOCK, [*given, y, states, sums, packed], writes=[6, 7, 8])
            elements = y.spec.size if division.chunks > 1 else 1
            grid = (max(1, ceil_div(elements, BLOCK_THREADS)), 1, 1)
            emit.launch(Kernel(_SOURCE, f"attend_merge<{cuda}>"), grid, _BLOCK, [states, sums, y, packed], writes=[2])
        else:
            emit.launch(attend, grid, _BLOCK, [*given, y, None, None, packed], writes=[6])
    if scores is not None:
        arguments: list[Argument] = [q, k, operands.mask, lengths, sinks, scores, packed, int32(mode)]
        grid = (max(1, ceil_div(batch * heads * queries, _WARPS)), 1, 1)
        emit.launch(Kernel(_SOURCE, f"attention_scores<{cuda}>"), grid, _BLOCK, arguments, writes=[5])


def _widen(emit: Emitter, slot: Slot, dtype: np.dtype[Any]) -> Slot:
    if slot.dtype == dtype:
        return slot
    wide = emit.temp(slot.shape, dtype)
    convert_commands(emit, wide, slot)
    return wide


def _pack(
    operands: AttentionOperands,
    y_strides: Strides,
    rule: AttentionRule,
    division: _Division,
    fill: float,
    empty: EmptyRows,
) -> bytes:
    """Return the bytes of the struct ``Attention`` of attention.cu."""
    q, k, v, mask = operands.q, operands.k, operands.v, operands.mask
    batch, heads, queries, depth = q.shape
    _, of_keys, keys, values = v.shape
    kind, mask_keys = 0, keys
    mask_strides: Strides = (0,) * 4
    if mask is not None:
        kind, mask_keys = 1 + MASK_TYPES.index(mask.dtype), mask.shape[-1]
        mask_strides = broadcast_strides(mask.shape, mask.strides, (batch, heads, queries, mask_keys))
    strides = (*q.strides, *k.strides, *v.strides, *mask_strides, *y_strides)
    extents = (of_keys, heads // max(of_keys, 1), queries, keys, depth, values)
    window = (kind, mask_keys, rule.past, min(rule.left, _FARTHEST), min(rule.right, _FARTHEST))
    tiles = (batch * of_keys, division.row_tiles, division.value_tiles, division.chunk_keys, division.chunks)
    return pack_struct(_STRUCT, *strides, *extents, *window, *tiles, int(empty), rule.scale, rule.softcap, fill)


# Keys of a tile, places of depth or keys of a slab, columns of v of a block.
_KEYS, _SLAB, _VALUE_COLUMNS = 64, 32, 128
_OWN_VALUES = _SLAB * _VALUE_COLUMNS // BLOCK_THREADS  # elements of a slab of v that a thread brings
# Instructions of a thread: to bring an element of a slab, for a place of depth of a row of scores (beside its four
# products), for a key of a row of sums (beside its eight), for the four scores of a row in the softmax, and around.
_EACH_ELEMENT, _EACH_DEPTH, _EACH_KEY, _EACH_ROW, _AROUND = 14, 2.0, 2.75, 175, 600
# Wavefronts of a warp: of its operands at a place of depth, and at a key; of an element of q or k that it stores, which
# lie across the banks, and of a weight.
_SCORE_WAVEFRONTS, _SUM_WAVEFRONTS, _ELEMENT_WAVEFRONTS, _WEIGHT_WAVEFRONTS = 3, 5, 4, 8


def find_fused_seconds(gpu: Gpu, operands: AttentionOperands) -> float:
    """Return about how long attention of floats takes, launches aside, where the keys of rows are not masked.

    A multiprocessor issues for one block after the other. A block of few rows waits more than it issues: then two do.
    """
    batch, heads, queries, depth = operands.q.shape
    _, of_keys, keys, values = operands.v.shape
    rows = heads // max(of_keys, 1) * queries
    division = _Division.of(rows, keys, values, np.dtype(np.float32))
    blocks = batch * of_keys * division.row_tiles * division.value_tiles * division.chunks
    rounds = ceil_div(depth, _SLAB) + _KEYS // _SLAB
    own_rows = _count_own_rows(rows)
    issued = _count_tile_instructions(own_rows, depth) / _SCHEDULERS
    multiplied = _count_tile_multiplications(own_rows, depth) * 32 / gpu.fp32_lanes
    issued = max(issued, multiplied) * _WARPS * _SLACK
    waited = rounds * _ROUND_CYCLES
    cycles = max(ceil_div(blocks, gpu.multiprocessors) * issued, ceil_div(blocks, 2 * gpu.multiprocessors) * waited)
    return ceil_div(division.chunk_keys, _KEYS) * cycles / gpu.clock_hertz


def _count_own_rows(rows: int) -> int:
    """Return the rows of a thread."""
    return 1 if rows <= _FEW_ROWS else _MANY_ROWS // _FEW_ROWS


def _count_own_elements(own_rows: int) -> int:
    """Return the elements of slabs of q and k that a thread brings."""
    return (own_rows * _FEW_ROWS + _KEYS) * _SLAB // BLOCK_THREADS


def _count_tile_instructions(own_rows: int, depth: int) -> float:
    """Return the instructions of a thread for a tile of keys."""
    of_scores = _count_own_elements(own_rows) * _EACH_ELEMENT + _SLAB * own_rows * (4 + _EACH_DEPTH)
    of_sums = _OWN_VALUES * _EACH_ELEMENT + _SLAB * own_rows * (8 + _EACH_KEY)
    return ceil_div(depth, _SLAB) * of_scores + _KEYS // _SLAB * of_sums + own_rows * _EACH_ROW


def _count_tile_multiplications(own_rows: int, depth: int) -> int:
    """Return the multiply-adds of a thread for a tile of keys."""
    return own_rows * (ceil_div(depth, _SLAB) * _SLAB * 4 + _KEYS * 8)


@work_of(_SOURCE, "attend")
def _count_attend(launch: Launch) -> Work:
    packed, q, k, y = launch.arguments[9], launch.arguments[0], launch.arguments[1], launch.arguments[6]
    assert isinstance(packed, bytes) and isinstance(q, Slot) and isinstance(k, Slot) and isinstance(y, Slot)
    fields = struct.unpack(_STRUCT, packed)
    _, group, queries, keys, depth, values, _, _, past, left, right, pairs, *division = fields[20:37]
    row_tiles, value_tiles, chunk_keys, chunks, _ = division
    rows = group * queries
    own_rows = _count_own_rows(rows)
    is_causal = right >= 0 and past + queries >= keys
    seen = keys / 2 if is_causal and queries > 1 else min(keys, left + right + 1) if min(left, right) >= 0 else keys
    warps = pairs * row_tiles * value_tiles * chunks * _WARPS
    tiles = max(1.0, min(chunk_keys, seen / (1 if chunks == 1 else chunks)) / _KEYS)
    slabs, value_slabs = ceil_div(depth, _SLAB), _KEYS // _SLAB
    own_elements = _count_own_elements(own_rows)
    multiply_adds = warps * tiles * _count_tile_multiplications(own_rows, depth)
    score_stores = slabs * (own_elements * _ELEMENT_WAVEFRONTS + _SLAB * _SCORE_WAVEFRONTS)
    sum_stores = value_slabs * (_OWN_VALUES + _SLAB * _SUM_WAVEFRONTS) + 4 * own_rows * _WEIGHT_WAVEFRONTS
    is_split = chunks > 1
    read_keys = row_tiles * value_tiles * seen / max(1, keys)  # how often all blocks read a key, on average
    itemsize = q.dtype.itemsize
    # Scores, four operations for each in the softmax, and sums.
    flops = int(pairs * rows * seen * (2 * depth + 4 + 2 * values))
    needed = int(pairs * rows * seen * (depth + values))
    return Work(
        flops=flops,
        instructions=warps * (_AROUND + tiles * _count_tile_instructions(own_rows, depth)),
        multiply_adds=multiply_adds,
        needed_multiply_adds=needed,
        doubles=multiply_adds if itemsize == 8 else 0,
        wavefronts=warps * tiles * (score_stores + sum_stores),
        l2_nbytes=pairs * itemsize * (rows * depth * value_tiles * tiles * chunks + keys * (depth + values) * read_keys)
        + 4 * y.spec.nbytes,  # a thread stores four neighbours one after the other
        rounds=tiles * (slabs + value_slabs) + 1,
        barriers=tiles * 2 * (slabs + value_slabs),
        registers=126,
        shared_nbytes=37888,
        operand_nbytes={} if is_split else {7: 0, 8: 0},
    )


@work_of(_SOURCE, "attend_merge")
def _count_merge(launch: Launch) -> Work:
    states, sums, y, packed = launch.arguments
    assert isinstance(states, Slot) and isinstance(sums, Slot) and isinstance(y, Slot) and isinstance(packed, bytes)
    chunks = struct.unpack_from("<36q", packed)[35]
    if chunks <= 1:
        return Work(instructions=count_warps(launch) * 20, operand_nbytes={0: 0, 1: 0, 2: 0})
    return Work(
        flops=2 * sums.spec.size,
        instructions=count_warps(launch) * (100 + 40 * chunks),
        l2_nbytes=count_slot_bytes(states) + count_slot_bytes(sums) + y.spec.nbytes,
        rounds=2 * chunks,
    )


_EACH_PLACE, _EACH_SCORE, _SCORES_AROUND = 13, 110, 300  # instructions of a lane: for a place of depth, a score, around


@work_of(_SOURCE, "attention_scores")
def _count_scores(launch: Launch) -> Work:
    q, k, y, packed = (launch.arguments[i] for i in (0, 1, 5, 6))
    mode = read_int(launch.arguments[7])
    assert isinstance(q, Slot) and isinstance(k, Slot) and isinstance(y, Slot) and isinstance(packed, bytes)
    _, _, _, keys, depth = struct.unpack_from("<5q", packed, 20 * 8)
    rows, times = y.spec.size // max(1, keys), 2 if mode == 3 else 1  # a softmax works out each score twice
    own = times * ceil_div(keys, 32)
    return Work(
        flops=y.spec.size * (2 * depth + 4 * (mode == 3)),
        instructions=rows * (_SCORES_AROUND + own * (depth * _EACH_PLACE + _EACH_SCORE)),
        multiply_adds=rows * own * depth,
        needed_multiply_adds=y.spec.size * depth,
        doubles=rows * own * depth if q.dtype.itemsize == 8 else 0,
        # A lane reads a key of its own, whose places L1 has once it has asked for the first of a sector.
        l2_nbytes=rows * times * keys * depth * k.dtype.itemsize + q.spec.nbytes + y.spec.nbytes,
        rounds=own * ceil_div(depth, 2),
        registers=62,
    )
