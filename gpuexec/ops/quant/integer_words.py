"""Words of four bytes along the inner extent: how operands of integer products are packed, on the host or a device.

A left operand is read as it lies where its rows are whole vectors of words. A right operand is always packed: a weight
once, when it is put on a device, anything else by a launch before each product. Tiles of the integer units and kernels
of few rows read it by words, tensor cores by lines along the inner extent.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from gpuexec.errors import PlanError
from gpuexec.ir.command import Argument, Kernel, Slot
from gpuexec.ir.geometry import ceil_div, round_up
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import pack_struct
from gpuexec.ir.operator import Array, Emitter
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.weight_forms import WeightForm, weight_form
from gpuexec.ir.work import SECTOR_BYTES
from gpuexec.ops.quant.integer import BYTES, offset_of

WORD: np.dtype[Any] = np.dtype(np.uint32)
WORD_BYTES = 4
VECTOR_BYTES = 16
MMA_DEPTH = 32  # bytes of an mma: the least inner extent that takes tensor cores
MAX_STRIDE = 2**29  # of rows, in words: LeftVectors of simt_tile.cuh counts their bytes in 32 bits
_SOURCE, _MMA_SOURCE, _THREADS, _PACK_COLUMNS = "integer_matmul.cu", "integer_mma.cu", 256, 32

instantiate(_SOURCE, ["pack_byte_rows", "pack_byte_columns"])
instantiate(_MMA_SOURCE, ["pack_byte_lines"])


def count_words(depth: int) -> int:
    """Return the words of a packed inner extent: whole vectors of four."""
    return round_up(depth, VECTOR_BYTES) // WORD_BYTES


@weight_form("byte_words")
@dataclass(frozen=True, slots=True)
class ByteWords(WeightForm):
    """Matrices of bytes ``[..., inner, columns]`` as words ``[..., inner words + 1, columns]``, filled up with 0.

    A word has four neighbours along the inner extent, centred. The last row is the sums of the columns.
    """

    def infer(self, source: TensorSpec) -> TensorSpec:
        """Return the spec: whole vectors of words along both axes, and a row more."""
        *outer, inner, columns = source.shape
        return TensorSpec((*outer, count_words(inner) + 1, round_up(columns, WORD_BYTES)), WORD)

    def pack(self, block: Array, at: tuple[int, ...], packed: Array) -> None:
        """Write the words of a block, which begins with a word, and add its columns to the sums."""
        *outer, inner, columns = block.shape
        centred = block.view(np.uint8) ^ np.uint8(offset_of(block.dtype))
        places = [slice(start, start + extent) for start, extent in zip(at[:-2], outer, strict=True)]
        first, across = at[-2] // WORD_BYTES, slice(at[-1], at[-1] + columns)
        window: tuple[slice, ...] = (*places, slice(None), across)
        own = packed[window]
        words = own[..., first : first + ceil_div(inner, WORD_BYTES), :]
        for i in range(min(WORD_BYTES, inner)):
            rows = centred[..., i::WORD_BYTES, :]
            words[..., : rows.shape[-2], :] |= rows.astype(WORD) << WORD.type(8 * i)
        own[..., -1, :] += centred.view(np.int8).sum(-2, dtype=np.int32).view(WORD)


def find_pitch(depth: int) -> int:
    """Return the bytes of a line: whole sectors."""
    return round_up(depth, SECTOR_BYTES)


def count_line_bytes(depth: int, columns: int) -> int:
    """Return the bytes of a matrix of lines, with the sums behind them: whole sectors, too."""
    return columns * find_pitch(depth) + round_up(columns * WORD_BYTES, SECTOR_BYTES)


@weight_form("byte_lines")
@dataclass(frozen=True, slots=True)
class ByteLines(WeightForm):
    """Matrices of bytes ``[..., inner, columns]`` as lines along the inner extent, one for each column.

    Bytes are centred, and lines filled up with 0. Behind those of a matrix lie their sums, of int32.
    """

    columns: int

    def infer(self, source: TensorSpec) -> TensorSpec:
        """Return the spec: the bytes of a matrix are one axis."""
        *outer, inner, columns = source.shape
        return TensorSpec((*outer, count_line_bytes(inner, columns)), BYTES[0])

    def pack(self, block: Array, at: tuple[int, ...], packed: Array) -> None:
        """Write the bytes of a block, and add its columns to the sums."""
        if not block.size:
            return
        *places, inner, columns = [slice(start, start + n) for start, n in zip(at, block.shape, strict=True)]
        centred = block.view(np.uint8) ^ np.uint8(offset_of(block.dtype))
        sums_nbytes = round_up(self.columns * WORD_BYTES, SECTOR_BYTES)
        own: Array = packed[tuple(places)]
        lines = own[..., :-sums_nbytes].reshape(*own.shape[:-1], self.columns, -1)
        lines[..., columns, inner] = centred.swapaxes(-1, -2)
        sums = own[..., -sums_nbytes:].view(np.int32)
        sums[..., columns] += centred.view(np.int8).sum(-2, dtype=np.int32)


def lay_lines(emit: Emitter, slot: Slot) -> tuple[Slot, bool]:
    """Return matrices ``[..., inner, columns]`` in the layout of `ByteLines`, and whether they are a weight."""
    *outer, inner, columns = slot.shape
    form = ByteLines(columns)
    packed = emit.packed(slot, form)
    if packed is not None:
        return packed, True
    packed = emit.temp(form.infer(slot.spec).shape, BYTES[0])
    packing = pack_struct("<4i", inner, find_pitch(inner), columns, offset_of(slot.dtype))
    grid = (prod(outer) * ceil_div(columns, _PACK_COLUMNS), 1, 1)
    arguments: list[Argument] = [emit.contiguous(slot), packed, packing]
    emit.launch(Kernel(_MMA_SOURCE, "pack_byte_lines"), grid, (_THREADS, 1, 1), arguments, writes=[1])
    return packed, False


def lay_columns(emit: Emitter, slot: Slot) -> tuple[Slot, bool]:
    """Return matrices ``[..., inner, columns]`` in the layout of `ByteWords`, and whether they are a weight."""
    packed = emit.packed(slot, ByteWords())
    if packed is not None:
        return packed, True
    *outer, inner, columns = slot.shape
    packed = emit.temp(ByteWords().infer(slot.spec).shape, WORD)
    fields = (0, inner, packed.shape[-2] - 1, columns, packed.shape[-1], offset_of(slot.dtype), 0)
    grid = (prod(outer) * ceil_div(packed.shape[-1], _PACK_COLUMNS), 1, 1)
    arguments: list[Argument] = [emit.contiguous(slot), packed, pack_struct("<q6i", *fields)]
    emit.launch(Kernel(_SOURCE, "pack_byte_columns"), grid, (_THREADS, 1, 1), arguments, writes=[1])
    return packed, False


def lay_rows(emit: Emitter, slot: Slot, *, has_weight: bool) -> tuple[Slot, tuple[int, ...]]:
    """Return matrices ``[..., rows, inner]`` as words, and their strides in words but for the last.

    Args:
        emit: Emitter of the launch that packs them, where they can't be read as they lie.
        slot: The matrices.
        has_weight: Whether the right operand is a weight. Where not, the inner extent may differ between the sizes of a
            class, and all of them are packed.

    Raises:
        PlanError: They can't be read as they lie, as those of the upper end are.
    """
    *outer, depth = slot.shape
    # No stride along an extent of 1 is ever used.
    steps = [step if extent > 1 else 0 for extent, step in zip(outer, slot.strides, strict=False)]
    row = next((step for step in reversed(steps) if step), 0)  # batches of single rows are rows of one product
    lies = (
        has_weight
        and slot.strides[-1] == 1
        and not any(each % VECTOR_BYTES for each in (slot.offset_bytes, depth, *steps))
        and abs(row) < MAX_STRIDE * WORD_BYTES
    )
    if emit.choose(int(lies)):
        if not lies:
            raise PlanError("A left operand of bytes is not made of rows of words, as it is at the upper end.")
        return slot, tuple([step // WORD_BYTES for step in steps])
    words = count_words(depth)
    packed = emit.temp((*outer, words), WORD)
    arguments: list[Argument] = [
        emit.contiguous(slot),
        packed,
        pack_struct("<q6i", prod(outer), depth, words, 0, 0, 0, 0),
    ]
    grid = (ceil_div(packed.spec.size, _THREADS), 1, 1)
    emit.launch(Kernel(_SOURCE, "pack_byte_rows"), grid, (_THREADS, 1, 1), arguments, writes=[1])
    return packed, packed.strides[:-1]
