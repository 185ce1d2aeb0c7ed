"""Attention on tensor cores: which launches take it, by which tile, and the work of a launch in closed form.

Operands of half or bf16 take ``attention_mma.cu`` on sm_80 and up, where a block has 64 or 128 queries of a head. What
it does not take stays on ``attention.cu``: few queries or keys, heads of more than 256 numbers, numbers of a head that
do not lie side by side or not on 16 bytes, masks of other types than bool, float and that of the operands. All of it
follows from types, shapes and the architecture, at the upper end of a size class.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

import numpy as np

from gpuexec.errors import PlanError
from gpuexec.ir.command import Kernel, Launch, Slot
from gpuexec.ir.geometry import Strides, broadcast_strides, ceil_div
from gpuexec.ir.gpus import Gpu, find_gpu
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import pack_struct
from gpuexec.ir.operator import Emitter
from gpuexec.ir.spec import BFLOAT16, dtype_row
from gpuexec.ir.work import Work, count_slot_bytes, work_of
from gpuexec.ops.nn.attention_host import AttentionRule
from gpuexec.ops.nn.attention_operands import MASK_TYPES, AttentionOperands, EmptyRows
from gpuexec.ops.nn.softmax import SOFTMAX_FLOPS

_SOURCE = "attention_mma.cu"
_STRUCT = "<16q15i3f"  # MmaAttention of attention_mma.cu
_PLAIN, _MASKED, _CAPPED = "kPlain", "kMasked", "kCapped"  # ScoreKind
_WIDE_Y, _WIDE_MASK, _ROUNDS_MASK = 1, 2, 4  # MmaAttentionFlags
_WARPS, _THREADS = 4, 128
_ARCHITECTURE = 80  # the first with mma of 16-bit numbers, and asynchronous copies
_DTYPES = (np.dtype(np.float16), BFLOAT16)
_FLOAT = np.dtype(np.float32)
_EIGHT = 8  # numbers of 16 bytes; keys of a mask that are read as vectors
# With no more queries or keys, most of a tile would be empty.
_FEW_QUERIES, _FEW_KEYS = 16, 32
_FARTHEST = 1 << 29  # kFarthest: no extent and no window is longer
_MAX_PITCH = 1 << 29  # elements from row to row
_LEAST_SCALE, _LARGEST_SCALE = 1e-30, 1e30


@dataclass(frozen=True, slots=True)
class HeadTile:
    """A tile of ``attention_mma.cu``.

    Attributes:
        name: Its C++ name.
        depth: The most numbers of a head.
        down: Rows of mma of a warp.
        keys: At a time.
        keeps_queries: Whether queries stay in registers.
        registers: Of a thread.
        ring: Tiles of keys and values that are under way together.
    """

    name: str
    depth: int
    down: int
    keys: int
    keeps_queries: bool
    registers: int
    ring: int = 1

    @property
    def warp_queries(self) -> int:
        """Queries of a warp."""
        return 16 * self.down

    @property
    def queries(self) -> int:
        """Queries of a block."""
        return _WARPS * self.warp_queries

    @property
    def key_nbytes(self) -> int:
        """Bytes of a tile of keys, or of values."""
        return 2 * self.keys * self.depth

    @property
    def shared_nbytes(self) -> int:
        """Dynamic shared memory of a block: queries, keys and values."""
        return 2 * self.queries * self.depth + 2 * self.ring * self.key_nbytes

    @property
    def products(self) -> int:
        """Instructions mma of a warp for a tile of keys, half of them for scores."""
        return 2 * self.down * (self.keys // 8) * (self.depth // 16)

    @property
    def matrices(self) -> int:
        """Instructions ldmatrix of a warp for a tile of keys."""
        steps = self.depth // 16
        return 2 * steps * (self.keys // 16) + (0 if self.keeps_queries else steps * self.down)

    @property
    def instructions(self) -> int:
        """Instructions of a warp for a tile of keys that all of its queries see."""
        scores, sums = self.down * self.keys // 2, self.down * self.depth // 2
        copies = 2 * self.key_nbytes // (16 * _THREADS)
        return self.products + self.matrices + scores * 9 // 2 + sums + 10 * copies + _AROUND_TILE

    def count_cycles(self, gpu: Gpu) -> float:
        """Return the cycles of a multiprocessor for a tile of keys of one block: of the slower of its pipes."""
        tensor = _WARPS * self.products * _MMA_PRODUCTS / gpu.matrix_products
        return max(tensor, self.instructions * _WARPS / _SCHEDULERS)


HEAD_TILES = (
    HeadTile("FewHeads64", 64, 1, 64, keeps_queries=True, registers=184, ring=4),
    HeadTile("Heads64", 64, 2, 64, keeps_queries=True, registers=248),
    HeadTile("Heads80", 80, 2, 32, keeps_queries=False, registers=240),
    HeadTile("Heads96", 96, 2, 32, keeps_queries=False, registers=248),
    HeadTile("Heads128", 128, 2, 32, keeps_queries=False, registers=248),
    HeadTile("Heads192", 192, 1, 32, keeps_queries=True, registers=248),
    HeadTile("Heads256", 256, 1, 32, keeps_queries=False, registers=248),
)
_MMA_PRODUCTS, _SCHEDULERS = 2048, 4
# Instructions of a warp on sm_90: for a tile of keys beside what is counted one by one; for one that is tested key by
# key, the same of a score of a thread, and of one that is masked; and apart from tiles.
_AROUND_TILE, _BORDER_TILE, _BORDER_SCORE, _MASKED_SCORE, _AROUND = 230, 80, 3, 4, 900
_WAVEFRONT_NBYTES, _MATRIX_WAVEFRONTS = 128, 4
_STATIC_NBYTES = 128  # of shared memory: a flag, and what aligns the tiles behind it
# Cycles of a wait for keys or values that other blocks don't fill; and what a tile of fewer queries must gain, since
# keys are read the more often.
_WAIT_CYCLES, _LEAST_GAIN = 350, 1.05
instantiate(
    _SOURCE,
    [
        f"attend_mma<{dtype_row(dtype).cuda}, {tile.name}, {kind}>"
        for dtype in _DTYPES
        for tile in HEAD_TILES
        for kind in (_PLAIN, _MASKED, _CAPPED)
    ],
)


def launch_on_tensor_cores(
    emit: Emitter,
    operands: AttentionOperands,
    rule: AttentionRule,
    y: Slot,
    *,
    fill: float,
    empty: EmptyRows,
    rounds_mask: bool,
) -> bool:
    """Launch attention on tensor cores; return False where it does not run there.

    Args:
        emit: Emitter of the launch.
        operands: Strided inputs of one type; a mask may be of another one.
        rule: Scaling, capping and masking of scores.
        y: ``[batch, heads, queries, values]`` of that type or float, dense along its columns.
        fill: The score of a key that a mask of bools takes out.
        empty: What a row of scores gives that are all -inf.
        rounds_mask: Whether a mask that is added is rounded to the operands' type first.

    Raises:
        PlanError: The upper end of the size class runs there, and this size can't.
    """
    if not _has_kernel(emit, operands, rule, y, fill):
        return False
    gpu = find_gpu(emit.target.architecture)
    now = _choose_tile(gpu, operands) if _is_worth(operands) and _fits(operands) else None
    number = emit.choose(0 if now is None else 1 + HEAD_TILES.index(now))
    if not number:
        return False
    tile = HEAD_TILES[number - 1]
    if not _fits(operands) or max(operands.q.shape[3], operands.v.shape[3]) > tile.depth:
        raise PlanError("Heads do not lie on 16 bytes as they do at the upper end, which has chosen tensor cores.")
    q, k, v, mask = operands.q, operands.k, operands.v, operands.mask
    batch, heads, queries, _ = q.shape
    tiles = ceil_div(queries, tile.queries)
    lengths = None if operands.lengths is None else emit.contiguous(operands.lengths)
    sinks = None if operands.sinks is None else emit.contiguous(operands.sinks)
    packed = _pack(operands, y, rule, tiles, fill, empty, rounds_mask=rounds_mask)
    kind = _CAPPED if rule.softcap > 0 else _PLAIN if mask is None else _MASKED
    emit.launch(
        Kernel(_SOURCE, f"attend_mma<{dtype_row(q.dtype).cuda}, {tile.name}, {kind}>"),
        (max(1, batch * heads * tiles), 1, 1),
        (_THREADS, 1, 1),
        [q, k, v, mask, lengths, sinks, y, packed],
        writes=[6],
        shared_bytes=tile.shared_nbytes,
    )
    return True


def can_multiply(emit: Emitter, dtype: np.dtype[Any]) -> bool:
    """Return whether attention of operands of a type may run on tensor cores."""
    has_kernels = emit.target.has_kernels and not emit.target.has_textures
    return has_kernels and emit.target.architecture >= _ARCHITECTURE and dtype in _DTYPES


def find_mma_seconds(gpu: Gpu, operands: AttentionOperands) -> float | None:
    """Return about how long attention takes on tensor cores, the launch aside; None where it does not run there."""
    if not (_is_worth(operands) and _fits(operands)):
        return None
    tile = _choose_tile(gpu, operands)
    return _find_cycles(gpu, tile, operands) / gpu.clock_hertz


def _has_kernel(emit: Emitter, operands: AttentionOperands, rule: AttentionRule, y: Slot, fill: float) -> bool:
    """Return whether there is a kernel for types and attributes, which are those of all sizes."""
    q, k, v, mask, sinks = operands.q, operands.k, operands.v, operands.mask, operands.sinks
    is_uniform = q.dtype == k.dtype == v.dtype and (sinks is None or sinks.dtype == q.dtype)
    has_mask_type = mask is None or mask.dtype in (np.dtype(np.bool_), _FLOAT, q.dtype)
    is_able = can_multiply(emit, q.dtype) and is_uniform and has_mask_type and y.dtype in (q.dtype, _FLOAT)
    has_scale = _LEAST_SCALE < rule.scale < _LARGEST_SCALE and 0 <= rule.softcap < _LARGEST_SCALE
    return is_able and has_scale and (isfinite(fill) or fill == -np.inf)


def _is_worth(operands: AttentionOperands) -> bool:
    """Return whether tiles are filled by more than a few queries and keys."""
    (_, _, queries, depth), (_, _, keys, values) = operands.q.shape, operands.v.shape
    is_head = min(depth, values) > 0 and max(depth, values) <= HEAD_TILES[-1].depth
    return is_head and queries > _FEW_QUERIES and keys > _FEW_KEYS


def _fits(operands: AttentionOperands) -> bool:
    """Return whether heads lie as copies of 16 bytes take them, and 32 bits hold extents."""
    is_laid = all(_is_wide(each) for each in (operands.q, operands.k, operands.v))
    return is_laid and max(*operands.q.shape, *operands.v.shape) < _FARTHEST


def _is_wide(slot: Slot) -> bool:
    *outer, column = (0 if extent == 1 else stride for extent, stride in zip(slot.shape, slot.strides, strict=True))
    is_aligned = slot.offset_bytes % (_EIGHT * slot.dtype.itemsize) == 0 and not any(each % _EIGHT for each in outer)
    return is_aligned and (column == 1 or slot.shape[-1] == 1) and abs(outer[-1]) < _MAX_PITCH


def _choose_tile(gpu: Gpu, operands: AttentionOperands) -> HeadTile:
    """Return the faster tile of the least depth that holds the heads."""
    size = max(operands.q.shape[3], operands.v.shape[3])
    depth = min(tile.depth for tile in HEAD_TILES if tile.depth >= size)
    *fewer, most = (tile for tile in HEAD_TILES if tile.depth == depth)
    gaining = [
        tile for tile in fewer if _find_cycles(gpu, tile, operands) * _LEAST_GAIN < _find_cycles(gpu, most, operands)
    ]
    return gaining[0] if gaining else most


def _find_cycles(gpu: Gpu, tile: HeadTile, operands: AttentionOperands) -> float:
    """Return the cycles of the multiprocessor with most blocks, where all queries see all keys."""
    (batch, heads, queries, _), keys = operands.q.shape, operands.v.shape[2]
    blocks = batch * heads * ceil_div(queries, tile.queries)
    most = ceil_div(blocks, gpu.multiprocessors)
    of_tile = max(most * tile.count_cycles(gpu), tile.count_cycles(gpu) + 2 * _WAIT_CYCLES)
    return ceil_div(keys, tile.keys) * of_tile


def _pack(
    operands: AttentionOperands,
    y: Slot,
    rule: AttentionRule,
    tiles: int,
    fill: float,
    empty: EmptyRows,
    *,
    rounds_mask: bool,
) -> bytes:
    """Return the bytes of the struct ``MmaAttention`` of attention_mma.cu."""
    q, k, v, mask = operands.q, operands.k, operands.v, operands.mask
    (batch, heads, queries, depth), (_, of_keys, keys, values) = q.shape, v.shape
    kind, mask_keys = 0, keys
    mask_strides: Strides = (0,) * 4
    flags = _WIDE_Y * (y.offset_bytes % (4 * y.dtype.itemsize) == 0 and not any(each % 4 for each in y.strides[:3]))
    if mask is not None:
        kind, mask_keys = 1 + MASK_TYPES.index(mask.dtype), mask.shape[-1]
        mask_strides = broadcast_strides(mask.shape, mask.strides, (batch, heads, queries, mask_keys))
        is_aligned = mask.offset_bytes % min(_EIGHT * mask.dtype.itemsize, 16) == 0
        is_wide = is_aligned and mask_strides[3] == 1 and not any(each % _EIGHT for each in mask_strides[:3])
        flags |= _WIDE_MASK * is_wide | _ROUNDS_MASK * (rounds_mask and mask.dtype == _FLOAT)
    strides = (*q.strides[:3], *k.strides[:3], *v.strides[:3], *y.strides[:3], *mask_strides)
    extents = (heads, heads // max(of_keys, 1), max(1, tiles), queries, keys, depth, values)
    seen = (kind, mask_keys, *(min(each, _FARTHEST) for each in (rule.past, rule.left, rule.right)))
    numbers = (int(empty), int(y.dtype == _FLOAT), flags)
    with np.errstate(over="ignore"):
        scales = [float(np.float32(each)) for each in (rule.scale, max(rule.softcap, 0.0), fill)]
    return pack_struct(_STRUCT, *strides, *extents, *seen, *numbers, *scales)


@work_of(_SOURCE, "attend_mma")
def _count_attend(launch: Launch) -> Work:
    _, k, v, mask, _, _, y, packed = launch.arguments
    assert isinstance(packed, bytes) and isinstance(k, Slot) and isinstance(v, Slot) and isinstance(y, Slot)
    tile_name = launch.kernel.expression.split(", ")[1]
    tile = next(each for each in HEAD_TILES if each.name == tile_name)
    fields = struct.unpack(_STRUCT, packed)
    tiles, queries, keys, depth, values, kind, mask_keys, past, left, right, empty, *_ = fields[18:]
    pairs = prod(launch.grid) // tiles if y.spec.size else 0  # of a batch and a head
    seen = _SeenKeys(min(keys, mask_keys), past, left, right)
    counts = _TileCounts.of(tile, tiles, queries, seen, is_masked=kind != 0)
    cleared = counts.block_borders if empty == EmptyRows.ZERO else 0
    stored = tiles * 2 * tile.queries * tile.depth + (2 * counts.blocks + cleared) * tile.key_nbytes
    # Results are written in rows of mma, and read as they leave.
    results = tiles * tile.queries * tile.depth * 4 + queries * values * 4
    query_matrices = _WARPS * tiles * (tile.depth // 16) * tile.down if tile.keeps_queries else 0
    matrices = counts.warps * tile.matrices + query_matrices
    scores = tile.down * tile.keys // 2
    of_border = _BORDER_TILE + scores * (_BORDER_SCORE + _MASKED_SCORE * (kind != 0))
    of_mask = 0
    if isinstance(mask, Slot):
        rows = tile.warp_queries if fields[14] else 1  # of which one is read for all where they are the same
        of_mask = mask.dtype.itemsize * tile.keys * counts.warp_borders * rows
    return Work(
        flops=pairs * counts.pairs * (2 * depth + SOFTMAX_FLOPS + 2 * values),
        instructions=pairs
        * (counts.warps * tile.instructions + counts.warp_borders * of_border + _WARPS * tiles * _AROUND),
        needed_multiply_adds=pairs * counts.pairs * (depth + values),
        matrix_products=pairs * counts.warps * tile.products * _MMA_PRODUCTS,
        wavefronts=pairs
        * ((stored + results) // _WAVEFRONT_NBYTES + matrices * _MATRIX_WAVEFRONTS + (1 + _WARPS) * tiles),
        l2_nbytes=pairs * (2 * queries * depth + 2 * counts.keys * (depth + values) + of_mask) + y.spec.nbytes,
        rounds=2 * counts.most + 1 if tile.ring == 1 else 1 + ceil_div(counts.most, tile.ring),
        barriers=(2 if tile.ring == 1 else 1) * counts.most + 1,
        registers=tile.registers,
        shared_nbytes=_STATIC_NBYTES,
        operand_nbytes={1: count_slot_bytes(k), 2: count_slot_bytes(v)},
    )


_Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class _SeenKeys:
    """SeenKeys of attention_mma.cu, without lengths."""

    end: int
    position: int
    left: int
    right: int

    def find_first(self, queries: _Numbers) -> _Numbers:
        if self.left < 0:
            return np.zeros_like(queries)
        return np.maximum(self.position + queries - self.left, 0)

    def find_end(self, queries: _Numbers) -> _Numbers:
        if self.right < 0:
            return np.full_like(queries, self.end)
        return np.minimum(self.position + queries + self.right + 1, self.end)


@dataclass(frozen=True, slots=True)
class _TileCounts:
    """Tiles of keys of a head.

    Attributes:
        blocks: That blocks read.
        block_borders: Of those, not seen as a whole by all queries, or masked.
        warps: That warps multiply.
        warp_borders: Of those, tested key by key.
        most: Of one block.
        keys: That blocks read.
        pairs: Of a query and a key that it sees.
    """

    blocks: int
    block_borders: int
    warps: int
    warp_borders: int
    most: int
    keys: int
    pairs: int

    @classmethod
    def of(cls, tile: HeadTile, tiles: int, queries: int, seen: _SeenKeys, *, is_masked: bool) -> _TileCounts:
        def count(step: int, lines: int) -> tuple[_Numbers, _Numbers]:
            """Return, for each of so many groups of queries, the tiles that some see, and that all see as a whole."""
            first = np.arange(lines, dtype=np.int64) * step
            last = np.minimum(first + step, queries) - 1
            low, high = seen.find_first(first), seen.find_end(last)
            some = np.where((first <= last) & (high > low), -(-high // tile.keys) - low // tile.keys, 0)
            whole = np.maximum(seen.find_end(first) // tile.keys - -(-seen.find_first(last) // tile.keys), 0)
            return some, np.minimum(whole, some)

        (blocks, of_blocks), (warps, of_warps) = (
            count(*each) for each in ((tile.queries, tiles), (tile.warp_queries, tiles * _WARPS))
        )
        own = np.arange(queries, dtype=np.int64)
        firsts = np.arange(tiles, dtype=np.int64) * tile.queries
        ends = seen.find_end(np.minimum(firsts + tile.queries, queries) - 1)
        read = np.where(blocks > 0, ends - seen.find_first(firsts) // tile.keys * tile.keys, 0)
        return cls(
            blocks=int(blocks.sum()),
            block_borders=int((blocks - of_blocks * (not is_masked)).sum()),
            warps=int(warps.sum()),
            warp_borders=int((warps - of_warps * (not is_masked)).sum()),
            most=int(blocks.max(initial=0)),
            keys=int(read.sum()),
            pairs=int(np.maximum(seen.find_end(own) - seen.find_first(own), 0).sum()),
        )
