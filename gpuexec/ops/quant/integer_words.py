"""Words of four bytes along the inner extent: how operands of integer products are packed, on the host or a device.

A left operand is read as it lies where its rows are whole vectors of words. A right operand is always packed: a weight
once, when it is put on a device, anything else by a launch before each product.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from gpuexec.errors import PlanError
from gpuexec.ir.command import Argument, Kernel, Slot
from gpuexec.ir.geometry import ceil_div, round_up
from gpuexec.ir.instances import instantiate
from gpuexec.ir.operator import Array, Emitter
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.weight_forms import WeightForm, weight_form
from gpuexec.ops.quant.integer import offset_of

WORD: np.dtype[Any] = np.dtype(np.uint32)
WORD_BYTES = 4
VECTOR_BYTES = 16
MAX_STRIDE = 2**29  # of rows, in words: LeftVectors of simt_tile.cuh counts their bytes in 32 bits
_SOURCE, _THREADS, _PACK_COLUMNS = "integer_matmul.cu", 256, 32

instantiate(_SOURCE, ["pack_byte_rows", "pack_byte_columns"])


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


def lay_columns(emit: Emitter, slot: Slot) -> tuple[Slot, bool]:
    """Return matrices ``[..., inner, columns]`` in the layout of `ByteWords`, and whether they are a weight."""
    packed = emit.packed(slot, ByteWords())
    if packed is not None:
        return packed, True
    *outer, inner, columns = slot.shape
    packed = emit.temp(ByteWords().infer(slot.spec).shape, WORD)
    fields = (0, inner, packed.shape[-2] - 1, columns, packed.shape[-1], offset_of(slot.dtype), 0)
    grid = (prod(outer) * ceil_div(packed.shape[-1], _PACK_COLUMNS), 1, 1)
    arguments: list[Argument] = [emit.contiguous(slot), packed, struct.pack("<q6i", *fields)]
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
        struct.pack("<q6i", prod(outer), depth, words, 0, 0, 0, 0),
    ]
    grid = (ceil_div(packed.spec.size, _THREADS), 1, 1)
    emit.launch(Kernel(_SOURCE, "pack_byte_rows"), grid, (_THREADS, 1, 1), arguments, writes=[1])
    return packed, packed.strides[:-1]
