"""Operands of attention: its slots, the types of its masks, and what a row without keys gives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from gpuexec.ir.command import Slot
from gpuexec.ir.spec import BFLOAT16, dtypes_of

FLOATS = dtypes_of("float")
# MaskKind of attention_kinds.cuh, in its order, after that for no mask.
MASK_TYPES: tuple[np.dtype[Any], ...] = tuple(
    np.dtype(t)
    for t in (np.bool_, np.float16, BFLOAT16, np.float32, np.float64)
    + (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
)


class EmptyRows(IntEnum):
    """What a row of scores gives that are all -inf; EmptyRows of attention_kinds.cuh."""

    ZERO = 0  # as ONNX's Attention has it
    NAN = 1  # as a softmax has it
    GUARDED = 2  # zero, and so does any row whose weights are NaN


@dataclass(frozen=True, slots=True)
class AttentionOperands:
    """The slots of attention, each with four axes: batch, head, row, column. A mask may have fewer keys than k.

    Lengths are there for each batch, and sinks for each head of queries.
    """

    q: Slot
    k: Slot
    v: Slot
    mask: Slot | None
    lengths: Slot | None
    sinks: Slot | None = None
