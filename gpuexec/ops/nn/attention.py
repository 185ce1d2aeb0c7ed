"""Scaled dot-product attention: the Attention operator, with and without a KV cache.

With a past, or where the present is wanted, a node becomes a Concat of past and new keys (whose output is the present),
another of values, and `AttentionOverCache`, which reads them by strides. So code that keeps the present in place, in a
buffer with room to spare, need know nothing of attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Slot
from gpuexec.ir.operator import (
    Array,
    Derivative,
    Emitter,
    Operator,
    Out,
    PreparedCalls,
    Slots,
    Tolerance,
    count_elements,
    operator,
)
from gpuexec.ir.prepared_calls import compute_into
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.elementwise.elementwise_cast import Cast
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.plain import is_plain
from gpuexec.ops.linalg.matmul import MatMul, find_narrow, find_result, widen_operands
from gpuexec.ops.nn.attention_host import AttentionRule, attend, count_attention, prepare_attention
from gpuexec.ops.nn.attention_launch import launch_attention
from gpuexec.ops.nn.attention_operands import FLOATS, MASK_TYPES, AttentionOperands
from gpuexec.ops.nn.heads import join_groups, join_heads, share_heads, split_array, split_shape, split_slot
from gpuexec.ops.nn.softmax import SOFTMAX_FLOPS
from gpuexec.ops.tensor.layout import window

_LENGTH = np.dtype(np.int64)
_PRECISIONS = (1, 10, 11, 16)  # codes of float, half, double, bfloat16
_ROWS = 2  # axis of [batch, heads, rows, size]


@dataclass(frozen=True, slots=True)
class _Attention(Operator):
    """Base of both forms: the attributes of ONNX, and attention over all keys and values, with four axes.

    ``softmax_precision`` is a lower bound here: the softmax is worked out in float, or double for doubles. Values of
    another float type than Q and K are converted to theirs first.
    """

    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    uses_all_cores: ClassVar[bool] = True
    is_causal: int = 0
    kv_num_heads: int | None = None
    left_window_size: int = -1
    q_num_heads: int | None = None
    qk_matmul_output_mode: int = 0
    right_window_size: int = -1
    scale: float | None = None
    softcap: float = 0.0
    softmax_precision: int | None = None
    keeps_dtype = True
    has_blits = False
    rounded: ClassVar[tuple[int, ...]] = (0, 1, 2)

    def _infer(
        self, q: TensorSpec, k: TensorSpec, v: TensorSpec, mask: TensorSpec | None, lengths: TensorSpec | None
    ) -> tuple[TensorSpec, TensorSpec]:
        """Return the specs of y and the scores."""
        self._check_attributes()
        batch, heads, queries, depth = split_shape(self.name, "Q", q.shape, self.q_num_heads)
        _, of_keys, keys, _ = k.shape
        columns = v.shape[3]
        expected = [batch, of_keys, keys, depth], [batch, of_keys, keys, columns]
        if (list(k.shape), list(v.shape)) != expected:
            raise InputError(
                f"{self.name} expects K {expected[0]} and V {expected[1]}, [batch, heads, keys, size], for Q {q}, "
                f"got {list(k.shape)} and {list(v.shape)}."
            )
        if heads % of_keys if of_keys else heads:
            raise InputError(
                f"{self.name} expects as many heads of Q as of K or a multiple, got {heads} and {of_keys}."
            )
        self._check_mask(mask, (batch, heads, queries, keys))
        if lengths is not None and check_dtype(self.name, lengths, (_LENGTH,), "nonpad_kv_seqlen").shape != (batch,):
            raise InputError(f"{self.name} expects nonpad_kv_seqlen of shape {[batch]}, got {lengths}.")
        shape = (batch, heads, queries, columns) if q.rank == 4 else (batch, queries, heads * columns)
        return q.with_shape(shape), q.with_shape((batch, heads, queries, keys))

    def count_flops(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> int:
        """Count scores, the softmax, and the sum of values; of this form all keys are an input."""
        return self._count(inputs, outputs, 0)

    def _count(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None], past: int) -> int:
        q, k = inputs[0], inputs[1]
        if q is None or k is None:
            return 0
        keys = past + k.shape[-2]
        heads = q.shape[1] if q.rank == 4 else self.q_num_heads or 1
        products = 2 * keys * (q.size + count_elements(outputs, 0))
        return products + SOFTMAX_FLOPS * q.shape[0] * heads * q.shape[-2] * keys

    def _check_attributes(self) -> None:
        for name in ("left_window_size", "right_window_size"):
            if getattr(self, name) < -1:
                raise InputError(f"{self.name} expects {name} of -1 or more, got {getattr(self, name)}.")
        if self.qk_matmul_output_mode not in (0, 1, 2, 3):
            raise InputError(f"{self.name} expects qk_matmul_output_mode 0 to 3, got {self.qk_matmul_output_mode}.")
        if self.softmax_precision not in (None, *_PRECISIONS):
            raise InputError(
                f"{self.name} expects softmax_precision 1, 10, 11 or 16 (a float type), got {self.softmax_precision}."
            )

    def _check_mask(self, mask: TensorSpec | None, shape: tuple[int, int, int, int]) -> None:
        if mask is None:
            return
        check_dtype(self.name, mask, MASK_TYPES, "attn_mask")
        leading = zip(reversed(mask.shape[:-1]), reversed(shape[:-1]), strict=False)
        if (
            not 1 <= mask.rank <= 4
            or mask.shape[-1] > shape[-1]
            or any(have not in (1, want) for have, want in leading)
        ):
            raise InputError(
                f"{self.name} expects attn_mask to broadcast to {list(shape)}, or to fewer keys, got {mask}."
            )

    def _rule(self, depth: int, past: int) -> AttentionRule:
        scale = (1 / sqrt(depth) if depth else 1.0) if self.scale is None else self.scale
        right = 0 if self.is_causal else self.right_window_size
        return AttentionRule(scale, self.softcap, self.left_window_size, right, past)

    def _compute(
        self, arrays: Sequence[Array | None], past: int, out: Sequence[Array | None] | None, place: int
    ) -> tuple[Array, Array | None]:
        """Return y and, where output ``place`` is wanted, the scores."""
        q, k, v, mask, lengths, sinks = (*arrays, None)[:6]
        assert q is not None and k is not None and v is not None
        heads = split_array(q, self.q_num_heads)
        is_wanted = out is None or (len(out) > place and out[place] is not None)
        mode = self.qk_matmul_output_mode if is_wanted else None
        with np.errstate(over="ignore"):
            v = v.astype(q.dtype, copy=False)
        y, scores = attend(heads, k, v, mask, lengths, self._rule(heads.shape[3], past), mode, sinks)
        return (y if q.ndim == 4 else join_heads(y)), scores

    def _count_scratch(self, arrays: Sequence[TensorSpec | None]) -> list[int]:
        """Return what calls of `_prepare` work in."""
        q, k, v, mask = arrays[:4]
        if q is None or k is None or v is None:
            return []
        batch, heads, queries, depth = split_shape(self.name, "Q", q.shape, self.q_num_heads)
        columns = split_shape(self.name, "V", join_groups(v.shape), self.kv_num_heads)[3]
        keys = split_shape(self.name, "K", join_groups(k.shape), self.kv_num_heads)[2]
        extents = (queries, depth, keys, columns)
        return count_attention(batch, heads, extents, q.dtype.itemsize, 0 if mask is None else mask.size)

    def _prepare(
        self,
        arrays: Sequence[Array | None],
        past: int,
        out: Sequence[Array | None],
        scratch: Sequence[Array],
        fallback: Callable[[], object],
    ) -> PreparedCalls | None:
        """Return calls that do what `_compute` does, where scores are not wanted and there are no sinks."""
        q, k, v, mask, lengths, sinks = (*arrays, None)[:6]
        y = out[0]
        if (
            q is None
            or k is None
            or v is None
            or not is_plain(y, q.dtype)
            or sinks is not None
            or any(each is not None for each in out[1:])
        ):
            return None
        heads, result = split_array(q, self.q_num_heads), split_array(y, self.q_num_heads)
        if not np.may_share_memory(heads, q):
            return None
        rule = self._rule(heads.shape[3], past)
        return prepare_attention(heads, k, v, mask, lengths, rule, result, scratch, fallback)

    def _lower(
        self,
        emit: Emitter,
        operands: AttentionOperands,
        past: int,
        y: Slot | None,
        scores: Slot | None,
        *,
        rounds_mask: bool = True,
    ) -> None:
        depth = operands.q.shape[3]
        if operands.v.dtype != operands.q.dtype:
            values = emit.temp(operands.v.shape, operands.q.dtype)
            Cast(dtype_row(values.dtype).code).lower(emit, (operands.v,), (values,))
            operands = replace(operands, v=values)
        y = None if y is None else split_slot(y, self.q_num_heads)
        rule, mode = self._rule(depth, past), self.qk_matmul_output_mode
        launch_attention(emit, operands, rule, y, scores, mode, rounds_mask=rounds_mask)


@operator("Attention")
@dataclass(frozen=True, slots=True)
class Attention(_Attention):
    """``softmax(softcapped(scale * Q @ K') + mask) @ V``; heads of K and V may each serve several heads of Q.

    A mask that is False or -inf takes a key out: whatever it holds, NaN included, is not looked at. So do windows,
    causality and lengths. A query without keys gives zeros. The fourth output holds scores by
    ``qk_matmul_output_mode``: 0 scaled, 1 softcapped, 2 masked, 3 their softmax.
    """

    example = "float32[1,2,3,4] float32[1,2,3,4] float32[1,2,3,4] bool[3,3]"
    derivative = Derivative.PARTS

    def infer(
        self,
        q: TensorSpec,
        k: TensorSpec,
        v: TensorSpec,
        mask: TensorSpec | None = None,
        past_key: TensorSpec | None = None,
        past_value: TensorSpec | None = None,
        lengths: TensorSpec | None = None,
    ) -> tuple[TensorSpec, ...]:
        """Return the specs of y, present keys, present values and scores.

        Raises:
            InputError: Types differ, shapes don't fit, or a past is given together with lengths or only by half.
        """
        q = check_dtype(self.name, q, FLOATS, "Q")
        k, v = check_dtype(self.name, k, (q.dtype,), "K"), check_dtype(self.name, v, FLOATS, "V")
        if not q.rank == k.rank == v.rank:
            raise InputError(f"{self.name} expects Q, K and V of one rank, 3 or 4, got {q}, {k} and {v}.")
        if (past_key is None) != (past_value is None) or (past_key is not None and lengths is not None):
            raise InputError(f"{self.name} expects past_key and past_value together, and then no nonpad_kv_seqlen.")
        k = self._extend("key", k, past_key)
        v = self._extend("value", v, past_value)
        y, scores = self._infer(q, k, v, mask, lengths)
        return y, k.with_shape(k.shape), v.with_shape(v.shape), scores

    def count_flops(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> int:
        """Count as over all keys: those of the past, and the new ones."""
        past = inputs[4] if len(inputs) > 4 else None
        return self._count(inputs, outputs, past.shape[-2] if past is not None and past.rank > 1 else 0)

    def _extend(self, role: str, new: TensorSpec, past: TensorSpec | None) -> TensorSpec:
        shape = split_shape(self.name, role.title(), new.shape, self.kv_num_heads)
        if past is None:
            return new.with_shape(shape)
        check_dtype(self.name, past, (new.dtype,), f"past_{role}")
        expected = (*shape[:_ROWS], past.shape[_ROWS] if past.rank == 4 else 0, *shape[_ROWS + 1 :])
        if past.shape != expected:
            raise InputError(
                f"{self.name} expects past_{role} [batch, heads, past, size] to go with {list(shape)}, got {past}."
            )
        return new.with_shape((*shape[:_ROWS], past.shape[_ROWS] + shape[_ROWS], *shape[_ROWS + 1 :]))

    def compute(
        self,
        q: Array,
        k: Array,
        v: Array,
        mask: Array | None = None,
        past_key: Array | None = None,
        past_value: Array | None = None,
        lengths: Array | None = None,
        *,
        out: Out = None,
    ) -> tuple[Array | None, ...]:
        """Append to the past, then work out with NumPy; half and bfloat16 in float, rounded once."""
        k, v = split_array(k, self.kv_num_heads), split_array(v, self.kv_num_heads)
        past = 0
        if past_key is not None and past_value is not None:
            past = past_key.shape[_ROWS]
            k, v = np.concatenate((past_key, k), axis=_ROWS), np.concatenate((past_value, v), axis=_ROWS)
        y, scores = self._compute((q, k, v, mask, lengths), past, out, 3)
        return y, k, v, scores

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Append to the past, then launch attention."""
        q, k, v, mask, past_key, past_value, lengths = (*inputs, *(None,) * 7)[:7]
        y, present_key, present_value, scores = (*outputs, *(None,) * 4)[:4]
        assert q is not None and k is not None and v is not None
        k = self._append(emit, k, past_key, present_key)
        v = self._append(emit, v, past_value, present_value)
        operands = AttentionOperands(split_slot(q, self.q_num_heads), k, v, mask, lengths)
        self._lower(emit, operands, 0 if past_key is None else past_key.shape[_ROWS], y, scores)

    def _append(self, emit: Emitter, new: Slot, past: Slot | None, present: Slot | None) -> Slot:
        new = split_slot(new, self.kv_num_heads)
        if past is None:
            if present is not None:
                emit.alias(present, new)
            return new
        rows = past.shape[_ROWS]
        shape = (*new.shape[:_ROWS], rows + new.shape[_ROWS], new.shape[3])
        whole = emit.temp(shape, new.dtype) if present is None else present
        emit.copy(window(whole, past.shape, whole.strides), past)
        emit.copy(window(whole, new.shape, whole.strides, rows * whole.strides[_ROWS]), new)
        return whole


@operator("AttentionOverCache", "gpuexec")
@dataclass(frozen=True, slots=True)
class AttentionOverCache(_Attention):
    """Attention over keys and values that hold the past already, ``[batch, heads, keys, size]``.

    Or ``[batch, heads, group, keys, size]``: so many query heads, side by side, share what may be the same bytes.
    Inputs: Q as Attention takes it, keys, values, mask, the new keys (only their number counts: those before them are
    the past; absent: there is none), lengths, and for each head of Q a sink: a score that weighs in the softmax beside
    those of keys, and stands for no value. Outputs: y and scores.
    """

    rounded: ClassVar[tuple[int, ...]] = (
        0,
    )  # keys and values are mostly a memory's, which would be rounded anew in each run

    def infer(
        self,
        q: TensorSpec,
        k: TensorSpec,
        v: TensorSpec,
        mask: TensorSpec | None = None,
        new: TensorSpec | None = None,
        lengths: TensorSpec | None = None,
        sinks: TensorSpec | None = None,
    ) -> tuple[TensorSpec, ...]:
        """Return the specs of y and scores.

        Raises:
            InputError: Types differ, or shapes don't fit.
        """
        q = check_dtype(self.name, q, FLOATS, "Q")
        k, v = check_dtype(self.name, k, (q.dtype,), "K"), check_dtype(self.name, v, FLOATS, "V")
        axes = (4, 5)
        is_known = k.rank in axes and v.rank in axes
        if not is_known or (new is not None and (new.rank != 4 or new.shape[_ROWS] > k.shape[-2])):
            raise InputError(
                f"{self.name} expects keys and values of four axes, the new ones among them, got {k}, {v}."
            )
        k, v = (each.with_shape(join_groups(each.shape)) for each in (k, v))
        y, scores = self._infer(q, k, v, mask, lengths)
        if sinks is not None and check_dtype(self.name, sinks, (q.dtype,), "sinks").shape != scores.shape[1:2]:
            raise InputError(f"{self.name} expects a sink for each of {scores.shape[1]} heads, got {sinks}.")
        return y, scores

    def compute(
        self,
        q: Array,
        k: Array,
        v: Array,
        mask: Array | None = None,
        new: Array | None = None,
        lengths: Array | None = None,
        sinks: Array | None = None,
        *,
        out: Out = None,
    ) -> tuple[Array | None, ...]:
        """Work out with NumPy; half and bfloat16 in float, rounded once."""
        past = 0 if new is None else k.shape[-2] - new.shape[_ROWS]
        return self._compute((q, k, v, mask, lengths, sinks), past, out, 1)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count what attention works in."""
        return self._count_scratch((*inputs, None)[:4])

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Work out in scratch, in the order of `compute`."""
        q, k, v, mask, new, lengths, sinks = (*inputs, *(None,) * 7)[:7]
        if k is None:
            return None
        past = 0 if new is None else k.shape[-2] - new.shape[_ROWS]
        fallback = partial(compute_into, self, inputs, out)
        return self._prepare((q, k, v, mask, lengths, sinks), past, out, scratch, fallback)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch attention."""
        q, k, v, mask, new, lengths, sinks = (*inputs, *(None,) * 7)[:7]
        y, scores = (*outputs, None)[:2]
        assert q is not None and k is not None and v is not None
        k, v = share_heads(emit, k, v)
        past = 0 if new is None else k.shape[_ROWS] - new.shape[_ROWS]
        operands = AttentionOperands(split_slot(q, self.q_num_heads), k, v, mask, lengths, sinks)
        self._lower(emit, operands, past, y, scores)


@operator("RoundedAttention", "gpuexec")
@dataclass(frozen=True, slots=True)
class RoundedAttention(_Attention):
    """Attention over keys and values that are made in the run, which a precision rounds to 16 bits together with Q.

    Inputs: Q, keys, values, mask, lengths and sinks, as `AttentionOverCache` takes them. Outputs: y and scores. The
    pass `gpuexec.passes.lower_precision` makes it.

    Attributes:
        precision: As of MatMul: where it says that Q, K and V are of 16 bits, all else is float. On tensor cores
            weights are rounded to that type, too.
    """

    rounded: ClassVar[tuple[int, ...]] = (0, 1, 2)
    takes_narrow = True
    precision: str = ""

    def infer(
        self,
        q: TensorSpec,
        k: TensorSpec,
        v: TensorSpec,
        mask: TensorSpec | None = None,
        lengths: TensorSpec | None = None,
        sinks: TensorSpec | None = None,
    ) -> tuple[TensorSpec, ...]:
        """Return the specs of y and scores.

        Raises:
            InputError: Types differ, or shapes don't fit.
        """
        narrow = find_narrow(self.precision)
        q = check_dtype(self.name, q, FLOATS if narrow is None else (narrow,), "Q")
        k, v = check_dtype(self.name, k, (q.dtype,), "K"), check_dtype(self.name, v, (q.dtype,), "V")
        k, v = self._split("K", k), self._split("V", v)
        dtype = find_result(q.dtype, self.precision)
        y, scores = (TensorSpec(each.shape, dtype) for each in self._infer(q, k, v, mask, lengths))
        if sinks is not None and check_dtype(self.name, sinks, (dtype,), "sinks").shape != scores.shape[1:2]:
            raise InputError(f"{self.name} expects a sink for each of {scores.shape[1]} heads, got {sinks}.")
        return y, scores

    def _split(self, role: str, spec: TensorSpec) -> TensorSpec:
        """Return keys or values with four axes."""
        if spec.rank == 5:
            return spec.with_shape(join_groups(spec.shape))
        return spec.with_shape(split_shape(self.name, role, spec.shape, self.kv_num_heads))

    def find_dtype(self, dtypes: Sequence[np.dtype[Any] | None]) -> np.dtype[Any] | None:
        """Return the operands' type, or float where a precision says that they are narrow."""
        return MatMul(self.precision).find_dtype(dtypes)

    def compute(
        self,
        q: Array,
        k: Array,
        v: Array,
        mask: Array | None = None,
        lengths: Array | None = None,
        sinks: Array | None = None,
        *,
        out: Out = None,
    ) -> tuple[Array | None, ...]:
        """Work out with NumPy, in float where operands are narrow."""
        q, k, v = widen_operands(self.precision, q, k, v)
        k, v = (each if each.ndim == 5 else split_array(each, self.kv_num_heads) for each in (k, v))
        return self._compute((q, k, v, mask, lengths, sinks), 0, out, 1)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count what attention works in."""
        return self._count_scratch((*inputs, None)[:4])

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Work out in scratch, in the order of `compute`."""
        q, k, v, mask, lengths, sinks = (*inputs, *(None,) * 6)[:6]
        if k is None or v is None or find_narrow(self.precision) is not None:
            return None
        keys, values = (each if each.ndim == 5 else split_array(each, self.kv_num_heads) for each in (k, v))
        fallback = partial(compute_into, self, inputs, out)
        return self._prepare((q, keys, values, mask, lengths, sinks), 0, out, scratch, fallback)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch attention."""
        q, k, v, mask, lengths, sinks = (*inputs, *(None,) * 6)[:6]
        y, scores = (*outputs, None)[:2]
        assert q is not None and k is not None and v is not None
        k, v = (each if each.spec.rank == 5 else split_slot(each, self.kv_num_heads) for each in (k, v))
        k, v = share_heads(emit, k, v)
        operands = AttentionOperands(split_slot(q, self.q_num_heads), k, v, mask, lengths, sinks)
        self._lower(emit, operands, 0, y, scores, rounds_mask=find_narrow(self.precision) is None)
