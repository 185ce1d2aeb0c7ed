"""KV caches in preallocated buffers: positions of new rows, and writing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.host_values import require_at_least
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import pack_struct
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.elementwise.elementwise_engine import UNSIGNED_BY_SIZE
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.strided import join
from gpuexec.ops.microsoft.mask import FLOATS

_SOURCE = "cache.cu"
_THREADS = 256  # kThreads of cache.cu
_INDEX, _COUNT = np.dtype(np.int64), np.dtype(np.int32)
_TOTAL = "total_sequence_length"
instantiate(_SOURCE, ["cache_places", *(f"place_rows<{UNSIGNED_BY_SIZE[size]}>" for size in (2, 4))])


@operator("CachePlaces", "gpuexec")
@dataclass(frozen=True, slots=True)
class CachePlaces(Operator):
    """Positions of new rows in a cache: the first of each sequence, its rows with them, and each one's position.

    Inputs: counts ``[batch]``, or one for all; something ``[batch, rows, ...]`` of which only the extents count; and
    the largest total of rows, where it is given. Counts are numbers of rows before the new ones or, with ``are_last``,
    positions of the last ones; then a total equal to the new rows says that none come before, whatever the counts, and
    if ``is_causal`` that a sequence is as long as they.
    """

    are_last: int = 0
    is_causal: int = 1
    tolerance = Tolerance.EXACT
    flops_per_output = None
    has_blits = False

    def infer(self, counts: TensorSpec, x: TensorSpec, total: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        """Return the specs of starts, lengths and positions.

        Raises:
            InputError: Types or shapes don't fit.
        """
        counts = check_dtype(self.name, counts, (_COUNT, _INDEX), "counts")
        if x is None or x.rank < 2 or counts.size not in (1, x.shape[0]):
            raise InputError(f"{self.name} expects a count for each sequence of {x}, or one, got {counts}.")
        if total is not None and check_dtype(self.name, total, (_COUNT,), _TOTAL).size != 1:
            raise InputError(f"{self.name} expects {_TOTAL} to hold one number, got {total}.")
        each = TensorSpec((x.shape[0],), _INDEX)
        return each, each, TensorSpec(x.shape[:2], _INDEX)

    def compute(self, counts: Array, x: Array, total: Array | None = None, *, out: Out = None) -> tuple[Array, ...]:
        """Add with NumPy."""
        batch, rows = x.shape[:2]
        count = np.broadcast_to(counts.reshape(-1).astype(_INDEX), (batch,))
        lengths = count + (1 if self.are_last else rows)
        is_first = total is not None and int(total.reshape(())) == rows
        starts = np.zeros(batch, _INDEX) if is_first else np.maximum(lengths - rows, 0)
        if is_first and self.is_causal:
            lengths = np.full(batch, rows, _INDEX)
        return starts, lengths, starts[:, np.newaxis] + np.arange(rows)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a thread per row."""
        counts, x, total = (*inputs, None)[:3]
        assert counts is not None and x is not None
        batch, rows = x.shape[:2]
        specs = ((batch,), (batch,), (batch, rows))
        made = [
            emit.temp(shape, _INDEX) if slot is None else slot
            for shape, slot in zip(specs, (*outputs, None, None)[:3], strict=True)
        ]
        launch_places(emit, counts, total, made, (batch, rows), self.are_last, self.is_causal)


def launch_places(
    emit: Emitter,
    counts: Slot,
    total: Slot | None,
    made: Sequence[Slot],
    extents: tuple[int, int],
    are_last: int = 0,
    is_causal: int = 1,
) -> None:
    """Launch the kernel that fills starts, lengths and positions, for sequences of so many rows."""
    batch, rows = extents
    step = 0 if counts.spec.size == 1 else 1
    packed = pack_struct("<6q", batch, rows, step, counts.dtype == _INDEX, are_last, is_causal)
    arguments: list[Argument] = [emit.contiguous(counts), total, *made, packed]
    blocks = max(1, ceil_div(batch * max(1, rows), _THREADS))
    emit.launch(Kernel(_SOURCE, "cache_places"), (blocks, 1, 1), (_THREADS, 1, 1), arguments, writes=[2, 3, 4])


@operator("PlaceRows", "gpuexec")
@dataclass(frozen=True, slots=True)
class PlaceRows(Operator):
    """Buffer with new rows written at a place for each sequence; the rest stays, and new room is 0.

    Inputs: the buffer ``[..., batch, heads, rows, size]`` (absent: there is none), new rows, starts ``[batch]``, and
    the number of rows that there must be room for, as for the new ones by themselves (absent: the buffer's will do).
    Rows that would lie beyond it are left out.
    """

    tolerance = Tolerance.EXACT
    flops_per_output = 0
    has_blits = False

    def infer(
        self, old: TensorSpec | None, new: TensorSpec, starts: TensorSpec, total: TensorSpec | None = None
    ) -> tuple[TensorSpec, ...]:
        """Return the spec of the buffer.

        Raises:
            InputError: Types or shapes don't fit.
            NeedsHostValue: The number of rows is not known.
        """
        new = check_dtype(self.name, new, FLOATS, "new rows")
        check_dtype(self.name, starts, (_INDEX,), "starts")
        if new.rank < 4 or (starts is not None and starts.shape != new.shape[-4:-3]):
            raise InputError(
                f"{self.name} expects rows [batch, heads, rows, size] and starts [batch], got {new}, {starts}."
            )
        rows = 0 if old is None or old.rank != new.rank else old.shape[-2]
        if old is not None:
            check_dtype(self.name, old, (new.dtype,), "the past")
            if old.shape != (*new.shape[:-2], rows, new.shape[-1]):
                raise InputError(f"{self.name} expects the past to go with {new} but for its rows, got {old}.")
        if total is not None:
            if total.size != 1:
                raise InputError(f"{self.name} expects {_TOTAL} to hold one number, got {total}.")
            rows = require_at_least(total, _TOTAL, 3, max(rows, new.shape[-2]))
        if rows < new.shape[-2]:
            raise InputError(f"{self.name} expects room for the new rows {new}, got room for {rows}.")
        return (new.with_shape((*new.shape[:-2], rows, new.shape[-1])),)

    def compute(
        self, old: Array | None, new: Array, starts: Array, total: Array | None = None, *, out: Out = None
    ) -> tuple[Array, ...]:
        """Copy with NumPy."""
        rows = 0 if old is None else old.shape[-2]
        rows = rows if total is None else max(rows, new.shape[-2], int(total.reshape(())))
        y = np.zeros((*new.shape[:-2], rows, new.shape[-1]), new.dtype)
        if old is not None:
            y[..., : old.shape[-2], :] = old
        for batch, start in enumerate(starts.tolist()):
            first, end = max(start, 0), min(start + new.shape[-2], rows)
            if first < end:
                y[..., batch, :, first:end, :] = new[..., batch, :, first - start : end - start, :]
        return (y,)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a thread per element, in place of the buffer where that may be."""
        old, new, starts, total = (*inputs, None, None)[:4]
        y = outputs[0]
        assert new is not None and starts is not None and y is not None
        if total is not None:
            require_at_least(total.spec, _TOTAL, 3, max(new.shape[-2], 0 if old is None else old.shape[-2]))
        if old is not None and old.shape == y.shape and old.is_contiguous:
            emit.in_place(y, old)
        rank = y.spec.rank
        row, batch = ([int(axis == place) for axis in range(rank)] for place in (rank - 2, rank - 4))
        beside = [0 if axis == rank - 2 else stride for axis, stride in enumerate(new.strides)]
        walk = join(y.shape, ((0,) * rank if old is None else old.strides, beside, row, batch, y.strides))
        packed = pack_struct("<3q", new.shape[-2], new.strides[-2], 0 if old is None else old.shape[-2])
        arguments: list[Argument] = [old, new, emit.contiguous(starts), y, walk.pack(), packed]
        kernel = Kernel(_SOURCE, f"place_rows<{UNSIGNED_BY_SIZE[y.dtype.itemsize]}>")
        blocks = max(1, ceil_div(walk.count, _THREADS))
        emit.launch(kernel, (blocks, 1, 1), (_THREADS, 1, 1), arguments, writes=[3])
