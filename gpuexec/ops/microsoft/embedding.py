"""EmbedLayerNormalization: embeddings of words, positions and segments, added and normalised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.graphs import Value
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.lib.composite import Composite, Made, Sketch, composite
from gpuexec.ops.microsoft.activation import DOMAIN
from gpuexec.ops.microsoft.norm import SkipLayerNormalization
from gpuexec.ops.tensor.layout import window

_INT32 = np.dtype(np.int32)


@operator("FirstRows", "gpuexec")
@dataclass(frozen=True, slots=True)
class FirstRows(Operator):
    """First n rows of ``[rows, columns]`` as a view ``[1, n, columns]``; the second input's last axis is n long."""

    tolerance = Tolerance.EXACT
    flops_per_output = 0
    keeps_dtype = True
    has_blits = True

    def infer(self, x: TensorSpec, like: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the spec of the first rows.

        Raises:
            InputError: There are too few.
        """
        if x.rank != 2 or not like.rank or like.shape[-1] > x.shape[0]:
            raise InputError(f"{self.name} expects a table with a row for each of {like}'s last axis, got {x}.")
        return (x.with_shape((1, like.shape[-1], x.shape[1])),)

    def compute(self, x: Array, like: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Index; always a view."""
        return (x[np.newaxis, : like.shape[-1]],)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Alias the first bytes."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        emit.alias(y, window(x, y.shape, (0, *x.strides)))


@composite("EmbedLayerNormalization", DOMAIN)
@dataclass(frozen=True, slots=True)
class EmbedLayerNormalization(Composite):
    """LayerNormalization of the sum of up to three embeddings; how many words a mask leaves; and the sum.

    Without position_ids, position i is row i of its table. Without a mask, the second output is 0.
    """

    inputs: ClassVar[int] = 9
    epsilon: float = 9.999999960041972e-13
    mask_index_type: int = 0
    example = "int32[2,3] int32[2,3] float32[10,8] float32[6,8] float32[2,8] float32[8] float32[8] int32[2,3]"

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Gather, add, normalise."""
        words, segments, word_table, position_table, segment_table, gamma, beta, mask, positions = inputs
        if (segments is None) != (segment_table is None):
            raise InputError(f"{self.name} expects segment_ids and segment_embedding together.")
        total = sketch.add("Gather", word_table, words)
        if positions is None:
            at = sketch.add(FirstRows(), position_table, words)
        else:
            at = sketch.add("Gather", position_table, positions)
        if segments is not None:
            total = sketch.add("Add", total, sketch.add("Gather", segment_table, segments))
        y, _, _, added = sketch.add_all(SkipLayerNormalization(self.epsilon), 4, total, at, gamma, beta)
        return y, self._count(sketch, words, mask), added

    def _count(self, sketch: Sketch, words: Value | None, mask: Value | None) -> Value:
        if mask is None:  # as many zeros as there are sequences
            zero = sketch.add("Sub", words, words)
            return sketch.add("ReduceMax", zero, sketch.ints(1), keepdims=0)
        return sketch.add("ReduceSum", mask, sketch.ints(1), keepdims=0)
