"""Packed sequences without padding: RemovePadding, RestorePadding, PackedAttention, PackedMultiHeadAttention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.graphs import Value
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int64
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.elementwise.elementwise_engine import UNSIGNED_BY_SIZE
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.composite import Composite, Made, Sketch, composite
from gpuexec.ops.lib.strided import pack_fast_div64
from gpuexec.ops.microsoft.activation import DOMAIN
from gpuexec.ops.microsoft.attention import draw_heads, draw_parts
from gpuexec.ops.microsoft.expected import ProjectedInput, WholeBias
from gpuexec.ops.microsoft.mask import FLOATS
from gpuexec.ops.nn.attention import AttentionOverCache
from gpuexec.ops.tensor.nonzero import cut

_SOURCE = "packing.cu"
_THREADS = 256  # kThreads of packing.cu
_INT32, _INDEX = np.dtype(np.int32), np.dtype(np.int64)
_BLOCK = (_THREADS, 1, 1)
_INT64_CODE = 7  # ONNX's
_FAR = 1 << 62  # beyond any end
instantiate(_SOURCE, ["order_tokens", *(f"restore_rows<{UNSIGNED_BY_SIZE[size]}>" for size in (2, 4))])


@operator("OrderTokens", "gpuexec")
@dataclass(frozen=True, slots=True)
class OrderTokens(Operator):
    """Places of all tokens, then of all padding, in ``[batch, rows, ...]``, and the prefix sums of the lengths.

    Inputs: something of that shape, and the number of tokens of each sequence, which stand first in it. Outputs: places
    ``[batch, rows]``, running sums ``[batch + 1]`` from 0 on, the largest number ``[1]``, all int32; and the number of
    all tokens, int64 ``[1]``. A count counts as one from 0 to ``rows``.
    """

    tolerance = Tolerance.EXACT
    flops_per_output = None
    has_blits = False

    def infer(self, x: TensorSpec, counts: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the specs.

        Raises:
            InputError: Types or shapes don't fit.
        """
        check_dtype(self.name, counts, (_INT32,), "sequence_token_count")
        if x.rank < 2 or counts.shape != x.shape[:1]:
            raise InputError(f"{self.name} expects a number of tokens for each sequence of {x}, got {counts}.")
        made = (x.shape[:2], (x.shape[0] + 1,), (1,))
        return (*(TensorSpec(shape, _INT32) for shape in made), TensorSpec((1,), _INDEX))

    def compute(self, x: Array, counts: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Sort with NumPy."""
        batch, rows = x.shape[:2]
        counts = np.clip(counts, 0, rows)
        is_padding = np.arange(rows) >= counts[:, np.newaxis]
        places = np.argsort(is_padding, axis=None, kind="stable").astype(_INT32).reshape(batch, rows)
        sums = np.concatenate((np.zeros(1, _INT32), np.cumsum(counts, dtype=_INT32)))
        longest = np.array([counts.max(initial=0)], _INT32)
        return places, sums, longest, sums[-1:].astype(_INDEX)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a thread per token or padding."""
        x, counts = inputs[0], inputs[1]
        assert x is not None and counts is not None
        batch, rows = x.shape[:2]
        specs = self.infer(x.spec, counts.spec)
        made = [
            emit.temp(spec.shape, spec.dtype) if slot is None else slot
            for spec, slot in zip(specs, (*outputs, None, None, None)[:4], strict=True)
        ]
        arguments: list[Argument] = [emit.contiguous(counts), *made, int64(batch), int64(rows)]
        blocks = max(1, ceil_div(batch * rows, _THREADS))
        emit.launch(Kernel(_SOURCE, "order_tokens"), (blocks, 1, 1), _BLOCK, arguments, writes=[1, 2, 3, 4])


@composite("RemovePadding", DOMAIN)
@dataclass(frozen=True, slots=True)
class RemovePadding(Composite):
    """The rows that are no padding, one after the other; where all rows stood, running sums and the largest number."""

    inputs: ClassVar[int] = 2
    example = "float32[2,3,4] int32[2]"

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Order, cut the places to the number of tokens, gather."""
        x, counts = inputs
        assert x is not None
        places, sums, longest, total = sketch.add_all(OrderTokens(), 4, x, counts)
        tokens = Value(f"{sketch.name}.tokens")
        sketch.nodes += cut(sketch.reshape(places, -1), total, tokens)
        return sketch.add("Gather", sketch.add("Flatten", x, axis=-1), tokens), places, sums, longest


@operator("RestoreRows", "gpuexec")
@dataclass(frozen=True, slots=True)
class RestoreRows(Operator):
    """Rows ``[tokens, ...]`` put at their places in ``[batch, rows, ...]``, with 0 where there are none.

    The places ``[batch, rows]`` are those of the tokens, then those of all padding: each place once. A third input has
    as many rows.
    """

    tolerance = Tolerance.EXACT
    flops_per_output = 0
    keeps_dtype = True
    has_blits = False

    def infer(self, x: TensorSpec, places: TensorSpec, like: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        """Return the spec with padding.

        Raises:
            InputError: Types or shapes don't fit.
        """
        check_dtype(self.name, x, FLOATS)
        check_dtype(self.name, places, (_INT32,), "token_offset")
        if x.rank < 2 or places.rank != 2 or x.shape[0] > places.size:
            raise InputError(f"{self.name} expects rows [tokens, ...] and a place for each, got {x} and {places}.")
        if like is not None and like.shape[:1] != x.shape[:1]:
            raise InputError(f"{self.name} expects as many rows as {like} has, got {x}.")
        return (x.with_shape((*places.shape, *x.shape[1:])),)

    def compute(self, x: Array, places: Array, like: Array | None = None, *, out: Out = None) -> tuple[Array, ...]:
        """Scatter with NumPy; a place out of range is left out."""
        y = np.zeros((places.size, *x.shape[1:]), x.dtype)
        at = places.reshape(-1)[: x.shape[0]]
        is_in = (at >= 0) & (at < places.size)
        y[at[is_in]] = x[is_in]
        return (y.reshape(*places.shape, *x.shape[1:]),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a thread per element."""
        x, places, y = inputs[0], inputs[1], outputs[0]
        assert x is not None and places is not None and y is not None
        tokens, columns, rows = x.shape[0], math.prod(x.shape[1:]), places.spec.size
        divisor = pack_fast_div64(max(1, columns))
        sizes = (divisor, int64(tokens), int64(rows), int64(columns))
        kernel = Kernel(_SOURCE, f"restore_rows<{UNSIGNED_BY_SIZE[x.dtype.itemsize]}>")
        blocks = max(1, ceil_div(rows * columns, _THREADS))
        arguments: list[Argument] = [emit.contiguous(x), emit.contiguous(places), y, *sizes]
        emit.launch(kernel, (blocks, 1, 1), _BLOCK, arguments, writes=[2])


@composite("RestorePadding", DOMAIN)
@dataclass(frozen=True, slots=True)
class RestorePadding(Composite):
    """Rows at their places among padding, which is 0."""

    inputs: ClassVar[int] = 2
    example = "float32[7,8] int32[3,4]"

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Restore the rows."""
        return (sketch.add(RestoreRows(), *inputs),)


@dataclass(frozen=True, slots=True)
class _Packed(Composite):
    """Attention over rows without padding: padded, attended, and cut again."""

    inputs: ClassVar[int] = 7
    num_heads: int

    def _attend(
        self,
        sketch: Sketch,
        parts: tuple[Value, Value, Value],
        scale: float | None,
        where: tuple[Value | None, Value | None],
        bias: Value | None,
        tokens: Value,
    ) -> Made:
        """Return attention over padded parts, without the padding."""
        places, sums = where
        assert places is not None and sums is not None
        ends = sketch.add("Slice", sums, sketch.ints(1), sketch.ints(_FAR))
        starts = sketch.add("Slice", sums, sketch.ints(0), sketch.ints(-1))
        lengths = sketch.add("Cast", sketch.add("Sub", ends, starts), to=_INT64_CODE)
        if bias is not None:
            bias = sketch.add(WholeBias(), bias, *parts[:2])
        op = AttentionOverCache(q_num_heads=self.num_heads, scale=scale or None)
        y = sketch.add(op, *parts, bias, None, lengths)
        count = sketch.add("Shape", tokens, end=1)
        kept = Value(f"{sketch.name}.tokens")
        sketch.nodes += cut(sketch.reshape(places, -1), count, kept)
        return (sketch.add("Gather", sketch.add("Flatten", y, axis=-1), kept),)


@composite("PackedAttention", DOMAIN)
@dataclass(frozen=True, slots=True)
class PackedAttention(_Packed):
    """Attention, with the projection before it, over sequences without their padding."""

    qkv_hidden_sizes: tuple[int, ...] = ()
    scale: float | None = None
    example = "float32[7,5] float32[5,24] float32[24] int32[3,4] int32[4] num_heads=2"

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Project, restore padding, attend, remove padding."""
        x, weights, bias, places, sums, attention_bias, _ = inputs
        assert x is not None
        x = sketch.add(ProjectedInput(self.num_heads, self.qkv_hidden_sizes, rank=2), x, weights, bias)
        projected = sketch.add("Add", sketch.add("MatMul", x, weights), bias)
        padded = sketch.add(RestoreRows(), projected, places)
        q, *others = draw_parts(sketch, padded, self.qkv_hidden_sizes)
        k, v = (sketch.add("gpuexec.SplitHeads", part, heads=self.num_heads) for part in others)
        return self._attend(sketch, (q, k, v), self.scale, (places, sums), attention_bias, x)


@composite("PackedMultiHeadAttention", DOMAIN)
@dataclass(frozen=True, slots=True)
class PackedMultiHeadAttention(_Packed):
    """MultiHeadAttention over sequences without their padding; all three inputs may be packed in the first."""

    mask_filter_value: float | None = None
    scale: float | None = None
    example = "float32[7,8] float32[7,8] float32[7,8] - int32[3,4] int32[4] float32[1,2,4,4] num_heads=2"

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Restore padding, attend, remove padding."""
        query, key, value, bias, places, sums, attention_bias = inputs
        assert query is not None
        if (key is None) != (value is None):
            raise InputError(f"{self.name} expects key and value together.")
        q, k, v = (None if x is None else sketch.add(RestoreRows(), x, places, query) for x in (query, key, value))
        parts = draw_heads(sketch, self.num_heads, (q, k, v), bias)
        return self._attend(sketch, parts, self.scale, (places, sums), attention_bias, query)
