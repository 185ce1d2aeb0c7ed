"""RotaryEmbedding: pairs of elements rotated by angles that depend on the position of their row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Slot
from gpuexec.ir.geometry import broadcast_strides, ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import pack_struct
from gpuexec.ir.operator import Array, Emitter, Operator, Out, PreparedCalls, Slots, Tolerance, operator
from gpuexec.ir.prepared_calls import view_bytes
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.plain import is_plain
from gpuexec.ops.lib.strided import join, pack_fast_div64
from gpuexec.ops.nn.heads import join_heads, split_array, split_shape, split_slot
from gpuexec.ops.tensor.gather import resolve_indices

FLOATS: tuple[np.dtype[Any], ...] = (np.dtype(np.float32), np.dtype(np.float16), BFLOAT16)
_INDEX = np.dtype(np.int64)
_THREADS = 256  # kThreads of rotary.cu
instantiate("rotary.cu", [f"rotate<{dtype_row(t).cuda}>" for t in FLOATS])


@operator("RotaryEmbedding")
@dataclass(frozen=True, slots=True)
class RotaryEmbedding(Operator):
    """Rotation of pairs of each row: ``(x1 cos - x2 sin, x1 sin + x2 cos)``.

    A pair is two halves' elements of one index, or neighbours if ``interleaved``; ``rotary_embedding_dim`` elements are
    turned (0: all), the others copied. Tables hold a row for each of X, ``[batch, rows, pairs]``, or with position_ids
    one for each position. A position out of range is an error on the host; on a device it reads as zero.
    """

    interleaved: int = 0
    num_heads: int | None = None
    rotary_embedding_dim: int = 0
    tolerance = Tolerance.EXACT
    example = "float32[2,3,4,8] float32[50,4] float32[50,4] int64[2,4]"
    flops_per_output = 3
    keeps_dtype = True
    has_blits = False

    def infer(
        self, x: TensorSpec, cosines: TensorSpec, sines: TensorSpec, positions: TensorSpec | None = None
    ) -> tuple[TensorSpec, ...]:
        """Return the input's spec.

        Raises:
            InputError: Types differ, an odd number of elements is to be turned, or tables or positions don't fit.
        """
        x = check_dtype(self.name, x, FLOATS)
        batch, _, rows, size = split_shape(self.name, "X", x.shape, self.num_heads)
        turned = self.rotary_embedding_dim or size
        if turned % 2 or not 0 <= turned <= size:
            raise InputError(f"{self.name} turns an even number of elements of a head's {size}, got {turned}.")
        if positions is not None:
            check_dtype(self.name, positions, (_INDEX,), "position_ids")
            _check_broadcast(self.name, "position_ids", positions, (batch, rows))
        tables: list[tuple[int, ...]] = []
        for role, spec in (("cos_cache", cosines), ("sin_cache", sines)):
            table = check_dtype(self.name, spec, (x.dtype,), role)
            if positions is None:
                _check_broadcast(self.name, role, table, (batch, rows, turned // 2))
            elif table.rank != 2 or table.shape[1] != turned // 2:
                raise InputError(f"{self.name} expects {role} [positions, {turned // 2}], got {table}.")
            tables.append(table.shape)
        if positions is not None and tables[0] != tables[1]:
            raise InputError(f"{self.name} expects tables of as many positions, got {cosines} and {sines}.")
        return (x.with_shape(x.shape),)

    def compute(
        self, x: Array, cosines: Array, sines: Array, positions: Array | None = None, *, out: Out = None
    ) -> tuple[Array | None, ...]:
        """Turn with NumPy, in float; half and bfloat16 rounded once."""
        if positions is not None:
            cosines, sines = (
                np.take(table, resolve_indices(positions, table.shape[0], 0), 0) for table in (cosines, sines)
            )
        c, s = (table.astype(np.float32)[:, np.newaxis] for table in (cosines, sines))
        y = np.array(split_array(x, self.num_heads), np.float32)
        turned = self.rotary_embedding_dim or y.shape[3]
        half = turned // 2
        firsts = y[..., 0:turned:2] if self.interleaved else y[..., :half]
        seconds = y[..., 1:turned:2] if self.interleaved else y[..., half:turned]
        with np.errstate(all="ignore"):
            firsts[...], seconds[...] = c * firsts - s * seconds, s * firsts + c * seconds
            y = y.astype(x.dtype, copy=False)
        return (y if x.ndim == 4 else join_heads(y),)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count products of halves, and rows of the tables where positions are given."""
        x, cosines, sines, positions = (*inputs, None)[:4]
        if x is None or cosines is None or sines is None:
            return []
        rows = 0 if positions is None else positions.size * cosines.shape[-1] * cosines.dtype.itemsize
        return [x.nbytes // 2, x.nbytes // 2, rows, rows]

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Turn in the output's memory, which may be that of the input."""
        (x, cosines, sines, positions), (y,) = (*inputs, None)[:4], out
        if x is None or cosines is None or sines is None or not is_plain(y, x.dtype) or len(scratch) < 4:
            return None
        if x.dtype != np.float32:
            return None
        calls: list[Callable[[], object]] = []
        if positions is not None:
            tables, dense = (cosines, sines), all(each.flags.c_contiguous for each in (cosines, sines))
            if not dense or not positions.size:
                return None
            shape = (*positions.shape, cosines.shape[1])
            cosines, sines = (view_bytes(each, shape, x.dtype) for each in scratch[2:4])
            calls.append(partial(_take_rows, tables, positions, (cosines, sines)))
        c, s = cosines[:, np.newaxis], sines[:, np.newaxis]
        source, target = split_array(x, self.num_heads), split_array(y, self.num_heads)
        if not np.may_share_memory(source, x):
            return None
        turned = self.rotary_embedding_dim or source.shape[3]
        half = turned // 2
        parts = [slice(0, turned, 2), slice(1, turned, 2)] if self.interleaved else [slice(half), slice(half, turned)]
        (first, second), (to_first, to_second) = ([each[..., part] for part in parts] for each in (source, target))
        crossed, turned_first = (view_bytes(each, first.shape, x.dtype) for each in scratch[:2])
        calls += [
            partial(np.multiply, s, second, out=crossed),
            partial(np.multiply, s, first, out=turned_first),
            partial(np.multiply, c, first, out=to_first),
            partial(np.subtract, to_first, crossed, out=to_first),
            partial(np.multiply, c, second, out=to_second),
            partial(np.add, turned_first, to_second, out=to_second),
        ]
        if turned < source.shape[3]:
            calls.append(partial(np.copyto, target[..., turned:], source[..., turned:]))
        return calls

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a thread per pair or element that stays."""
        x, cosines, sines, positions = (*inputs, None)[:4]
        y = outputs[0]
        assert x is not None and cosines is not None and sines is not None and y is not None
        emit.in_place(y, x)
        source, target = split_slot(x, self.num_heads), split_slot(y, self.num_heads)
        batch, heads, rows, size = source.shape
        pairs = (self.rotary_embedding_dim or size) // 2
        if positions is None:
            picks, tables = (0, 0, 0), [_spread(table, batch, rows) for table in (cosines, sines)]
        else:
            picks, tables = _spread(positions, batch, rows), [(0, 0, 0)] * 2
        walk = join((batch, heads, rows), (source.strides[:3], *tables, picks, target.strides[:3]))
        width = size - pairs
        count = batch * heads * rows * width
        strides = (source.strides[3], cosines.strides[-1], sines.strides[-1], cosines.strides[0], sines.strides[0])
        rotation = pack_struct("<9q", count, pairs, *strides, cosines.shape[0], bool(self.interleaved))
        packed = (walk.pack(), pack_fast_div64(max(1, width)) + rotation)
        arguments: list[Argument] = [x, cosines, sines, positions, y, *packed]
        kernel = Kernel("rotary.cu", f"rotate<{dtype_row(x.dtype).cuda}>")
        emit.launch(kernel, (max(1, ceil_div(count, _THREADS)), 1, 1), (_THREADS, 1, 1), arguments, writes=[4])


def _take_rows(tables: Sequence[Array], positions: Array, rows: Sequence[Array]) -> None:
    """Take the rows of some positions from tables of as many."""
    places = resolve_indices(positions, len(tables[0]), 0)
    for table, to in zip(tables, rows, strict=True):
        table.take(places, 0, to, "clip")


def _spread(slot: Slot, batch: int, rows: int) -> tuple[int, int, int]:
    """Return the strides over batch, heads and rows of tensors without heads."""
    each, row = broadcast_strides(slot.shape[:2], slot.strides[:2], (batch, rows))
    return each, 0, row


def _check_broadcast(name: str, role: str, spec: TensorSpec, shape: tuple[int, ...]) -> None:
    fits = len(spec.shape) == len(shape) and spec.shape[-1] == shape[-1]
    if not fits or any(have not in (1, want) for have, want in zip(spec.shape, shape, strict=True)):
        raise InputError(f"{name} expects {role} of shape {list(shape)}, got {spec}.")
