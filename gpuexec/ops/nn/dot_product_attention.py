"""Attention as exporters spell it out: two matrix products around a softmax, as one operator.

``softmax(steps(scale * Q @ K')) @ V`` with NumPy's broadcasting, and to the letter what the operators for it compute:
a row of scores that are all -inf is NaN (`gpuexec.ops.nn.attention.Attention` gives zeros). No file has this operator;
the pass `gpuexec.passes.recognise_attention` makes it.

On a device it is lowered in one of two forms, chosen for a size class. Apart, it is the launches of its operators: the
scores with their steps, the softmax, the product with V, whose kernels fill a GPU at most sizes, but whose scores go
through memory. Fused, it is a kernel that keeps them on the chip: one launch, of ``attention_few.cu`` where queries are
few, else of ``attention.cu``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Slot
from gpuexec.ir.geometry import Shape, Strides, broadcast, broadcast_strides, permute
from gpuexec.ir.gpus import Gpu, find_gpu
from gpuexec.ir.operator import Array, Emitter, Operator, Out, PreparedCalls, Slots, Tolerance, build, operator
from gpuexec.ir.prepared_calls import view_bytes
from gpuexec.ir.spec import TensorSpec, dtypes_of
from gpuexec.ops.elementwise.elementwise_cast import convert_commands
from gpuexec.ops.elementwise.epilogue import fused_name
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.slices import count_cycles
from gpuexec.ops.linalg.matmul import MatMul, find_narrow, find_result, prepare_product
from gpuexec.ops.microsoft.matmul import FusedMatMul
from gpuexec.ops.nn.attention_few import FEW_QUERIES, find_few_seconds, fits_few, launch_few_queries
from gpuexec.ops.nn.attention_host import AttentionRule
from gpuexec.ops.nn.attention_launch import find_fused_seconds, has_chunks, launch_attention
from gpuexec.ops.nn.attention_mma import can_multiply, find_mma_seconds
from gpuexec.ops.nn.attention_operands import AttentionOperands, EmptyRows
from gpuexec.ops.nn.heads import join_groups
from gpuexec.ops.nn.softmax import SOFTMAX_FLOPS, Softmax, launch_guarded, prepare_softmax
from gpuexec.ops.tensor.append import NewRows
from gpuexec.ops.tensor.layout import reshaped, window

FLOATS = tuple(dtype for dtype in dtypes_of("float") if dtype.itemsize >= 4)
# How many operands a step has, beside the scores.
STEPS = {"Add": 1, "Sub": 1, "Mul": 1, "Div": 1, "Where": 2, "Fill": 2, "Tanh": 0}
_FLOAT: np.dtype[Any] = np.dtype(np.float32)
# Seconds from one launch to the next, little as they do; queries that a product takes by other kernels than tiles.
_LAUNCH_SECONDS, _FEW_QUERIES = 3e-6, 8
_FUSIBLE = ("Add", "Sub", "Mul", "Div", "Tanh")  # steps that the kernel of a product takes
Step = tuple[str, tuple[Slot, ...]]
_MAX_FUSED_STEPS, _MAX_FUSED_OPERANDS = 5, 2


@operator("ScaledDotProductAttention", "gpuexec")
@dataclass(frozen=True, slots=True)
class ScaledDotProductAttention(Operator):
    """``softmax(steps(scale * Q @ K')) @ V`` over the last axis, with NumPy's broadcasting.

    Inputs: Q ``[..., queries, depth]``, K transposed ``[..., depth, keys]``, V ``[..., keys, values]``, then the
    operands of the steps in order. K and V may have heads in groups, ``[batch, heads, group, ...]``, as
    `gpuexec.ops.nn.heads.GroupHeads` makes them.

    Attributes:
        scale: Factor of the products.
        score_steps: What is done to the scores: ``Add``, ``Sub``, ``Mul`` and ``Div`` by an operand, ``Tanh``,
            ``Where`` (a mask that says which scores stay, and what the others are), ``Fill`` (which do not).
        is_guarded: Whether weights that are NaN become 0.
        perm: Order of the result's axes; None: as they come.
        precision: That of the products (`gpuexec.ir.precision`): where it says that they take operands of 16 bits, Q, K
            and V are of its type, or floats that are rounded to it, and so are weights; scores, their operands and the
            result are float.
        is_narrow: Whether the result is rounded to that type, too.
    """

    scale: float = 1.0
    score_steps: tuple[str, ...] = ()
    is_guarded: int = 0
    perm: tuple[int, ...] | None = None
    precision: str = ""
    is_narrow: int = 0
    tolerance = Tolerance.REDUCTION
    uses_all_cores = True
    has_blits = True
    takes_epilogue = True
    example = "float32[1,2,3,4] float32[1,2,4,5] float32[1,2,5,4]"

    def infer(
        self, q: TensorSpec, k: TensorSpec, v: TensorSpec, *operands: TensorSpec | None
    ) -> tuple[TensorSpec, ...]:
        """Return the result's spec.

        Raises:
            InputError: Types differ, shapes don't fit, or operands lack.
        """
        narrow = find_narrow(self.precision)
        for role, spec in zip("QKV", (q, k, v), strict=True):
            if narrow is not None:
                check_dtype(self.name, spec, (narrow, _FLOAT), role)
        q, k, v = (each if narrow is None else TensorSpec(each.shape, narrow) for each in (q, k, v))
        check_dtype(self.name, q, FLOATS if narrow is None else (narrow,), "Q")
        k, v = (each.with_shape(join_groups(each.shape)) if each.rank == 5 > q.rank else each for each in (k, v))
        product = MatMul(self.precision)
        (scores,) = product.infer(q, k)
        for step, given in self._list_steps(operands):
            for operand in given if step in _FUSIBLE else given[1:]:
                check_dtype(self.name, operand, (scores.dtype,), f"the operand of {step}")
            if step not in _FUSIBLE:
                check_dtype(self.name, given[0], (np.dtype(np.bool_),), "a mask")
            scores = scores.with_shape(broadcast(scores.shape, *(operand.shape for operand in given)))
        (y,) = product.infer(TensorSpec(scores.shape, q.dtype), v)
        shape = y.shape if self.perm is None else permute(y.shape, self.perm)
        return (TensorSpec(shape, q.dtype if self.is_narrow else y.dtype),)

    def find_dtype(self, dtypes: Sequence[np.dtype[Any] | None]) -> np.dtype[Any] | None:
        """Return the operands' type, or float where a precision says that they are narrow and the result is not."""
        first = dtypes[0] if dtypes else None
        narrow = find_narrow(self.precision)
        return first if narrow is None else narrow if self.is_narrow else _FLOAT

    def count_flops(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> int | None:
        """Count both products, the softmax, and an operation for each step and score."""
        q, v, y = inputs[0], inputs[2], outputs[0]
        if q is None or v is None or y is None or not v.shape[-1]:
            return 0
        keys = v.shape[-2]
        scores = y.size // v.shape[-1] * keys
        return 2 * scores * q.shape[-1] + (SOFTMAX_FLOPS + len(self.score_steps)) * scores + 2 * y.size * keys

    def compute(self, q: Array, k: Array, v: Array, *operands: Array, out: Out = None) -> tuple[Array | None, ...]:
        """Work out one after the other with NumPy, in the memory of the scores."""
        narrow = find_narrow(self.precision)
        with np.errstate(over="ignore"):
            q, k, v = (each if narrow is None else each.astype(narrow, copy=False) for each in (q, k, v))
        q, k, v, aligned, shape = _align_arrays(q, k, v, operands)
        product = MatMul(self.precision)
        (scores,) = product.compute(q, k)
        assert scores is not None
        with np.errstate(all="ignore"):
            if self.scale != 1:
                scores *= scores.dtype.type(self.scale)
            for step, given in self._list_steps(aligned):
                scores = _compute_step(step, scores, given)
            (scores,) = Softmax().compute(scores, out=(scores,))
            assert scores is not None
            if self.is_guarded:
                scores[np.isnan(scores).all(axis=-1)] = 0
            (y,) = product.compute(scores.astype(q.dtype, copy=False), v)
            assert y is not None
            y = y.astype(q.dtype, copy=False) if self.is_narrow else y
        y = y.reshape(shape) if shape is not None else y
        return (y if self.perm is None else y.transpose(self.perm),)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count scores, a number and a flag of each of their rows, the result, and flags of the masks."""
        q, k, v, *operands = inputs
        y = outputs[0]
        if q is None or k is None or v is None or y is None or min(q.rank, k.rank, v.rank) < 2:
            return []
        rows = y.size // max(1, v.shape[-1])
        masks = [each.size for each in operands if each is not None and each.dtype == np.bool_]
        itemsize = y.dtype.itemsize
        return [rows * v.shape[-2] * itemsize, rows * itemsize, rows, y.nbytes, *masks]

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Work out one after the other in scratch, where operands are of the result's type and stretch no scores."""
        find_calls = self.prepare_moving(inputs, out, constant, scratch)
        return None if find_calls is None else find_calls()

    def prepare_moving(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> Callable[[], PreparedCalls | None] | None:
        """Find what no number of keys changes, once."""
        (q, k, v, *operands), y = inputs, out[0]
        if q is None or k is None or v is None or y is None or not y.size or find_narrow(self.precision) is not None:
            return None
        if min(q.ndim, k.ndim, v.ndim) < 2 or not v.shape[-2] or len(scratch) < _SCRATCH:
            return None
        given, unaligned, fixed = [x for x in operands if x is not None], q, (k.shape[:-1], v.shape[:-2], v.shape[-1])
        q, k, v, aligned, shape = _align_arrays(q, k, v, given)
        if not _are_views((q, k, v, *aligned), inputs):
            return None
        dtype, kept = q.dtype, (*broadcast(q.shape[:-2], k.shape[:-2]), q.shape[-2])
        count = prod(kept)
        order = None if self.perm is None else [self.perm.index(axis) for axis in range(len(self.perm))]
        result = y if order is None else y.transpose(order)
        made = result if result.flags.c_contiguous else view_bytes(scratch[3], result.shape, y.dtype)
        grouped = made if shape is None else made.reshape((*kept, v.shape[-1]))
        memory = view_bytes(scratch[0], (len(scratch[0]) // dtype.itemsize,), dtype)
        rows, scale = view_bytes(scratch[1], (count, 1, 1), dtype), np.array(self.scale, dtype)
        is_nan, none = view_bytes(scratch[2], rows.shape, np.dtype(np.bool_)), np.zeros((), dtype)

        def find_calls() -> PreparedCalls | None:
            """Return the calls for keys, values and operands as they are."""
            (queries, k, v, *operands) = inputs
            assert queries is not None and k is not None and v is not None
            if queries is not unaligned or out[0] is not y or (k.shape[:-1], v.shape[:-2], v.shape[-1]) != fixed:
                return self.prepare([*inputs], [*out], constant, scratch)
            _, k, v, aligned, _ = _align_arrays(queries, k, v, [each for each in operands if each is not None])
            size = count * k.shape[-1]
            if size > len(memory):
                return None
            scores = memory[:size].reshape((*kept, k.shape[-1]))
            first, second = prepare_product(q, k, scores), prepare_product(scores, v, grouped)
            if first is None or second is None:
                return None
            calls = list(first)
            if self.scale != 1:
                calls.append(partial(np.multiply, scores, scale, out=scores))
            flags = iter(scratch[_SCRATCH:])
            for step, operand in self._list_steps(aligned):
                prepared = _prepare_step(step, scores, operand, flags)
                if prepared is None:
                    return None
                calls += prepared
            lines = scores.reshape(count, -1, 1)
            calls += prepare_softmax(lines, lines, rows)
            if self.is_guarded:  # a row is NaN where the sum of its powers is
                calls.append(partial(np.isnan, rows, out=is_nan))
                calls.append(partial(np.copyto, lines, none, "no", is_nan))
            calls += second
            if made is not result:
                calls.append(partial(np.copyto, result, made))
            return calls

        return None if find_calls() is None else find_calls

    def takes_new_rows(self, q: TensorSpec) -> bool:
        """Return whether the launch for these queries may append to the memories that keys and values are of."""
        return self._find_few_dtype(q.dtype) is not None and q.rank > 1 and q.shape[-2] <= FEW_QUERIES

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch fused where that is faster, else apart."""
        if emit.leaves_to_host():
            return
        self.lower_appending(emit, inputs, outputs, ())

    def lower_appending(self, emit: Emitter, inputs: Slots, outputs: Slots, new: Sequence[NewRows]) -> None:
        """Launch as `lower` does, and store new rows of the memories of keys and values: by the same launch if it can.

        Args:
            emit: Emitter of the launches.
            inputs: Of this operator; keys and values show the memories with the new rows.
            outputs: Of this operator.
            new: Those rows of keys, and of values; empty: all are stored.
        """
        q, k, v, *rest = inputs
        (y,) = outputs
        assert q is not None and k is not None and v is not None and y is not None
        operands = [each for each in rest if each is not None]
        if self.perm is not None:
            order = [self.perm.index(axis) for axis in range(len(self.perm))]
            y = window(y, permute(y.shape, order), permute(y.strides, order))
        scale, steps = self._fold_numbers(operands)
        if self._lower_few(emit, (q, k, v, y), scale, steps, new):
            return
        for each in new:
            each.store(emit)
        narrow = find_narrow(self.precision)
        if narrow is not None:
            q, k, v = (_convert(emit, each, narrow) for each in (q, k, v))
        fused = _find_fused(emit, (q, k, v, y), scale, steps)
        if emit.choose(fused is not None) and fused is not None:
            given, fill = fused
            rule, result = AttentionRule(scale, 0.0, -1, -1, 0), window(y, *_pad_axes(y.shape, y.strides))
            launch_attention(emit, given, rule, result, None, 0, fill=fill, empty=self._empty_rows, rounds_mask=False)
        else:
            self._lower_apart(emit, _align_slots(emit, (q, k, v, y), steps), scale)

    @property
    def _empty_rows(self) -> EmptyRows:
        """What a row of scores gives that are all -inf."""
        return EmptyRows.GUARDED if self.is_guarded else EmptyRows.NAN

    def _lower_few(
        self,
        emit: Emitter,
        slots: tuple[Slot, Slot, Slot, Slot],
        scale: float,
        steps: Sequence[Step],
        new: Sequence[NewRows],
    ) -> bool:
        """Launch the kernel of few queries; return False where it can't be."""
        dtype, taken, y = self._find_few_dtype(slots[0].dtype), _take_operands(emit, slots, scale, steps), slots[3]
        if dtype is None or not emit.choose(taken is not None) or taken is None:
            return False
        given, fill = taken
        result, empty = window(y, *_pad_axes(y.shape, y.strides)), self._empty_rows
        # What appends is one launch whatever it takes: its numbers are all that changes with a token.
        is_wanted = dtype != _FLOAT or bool(new) or _is_few_faster(emit, given)
        return launch_few_queries(
            emit, given, result, dtype, scale=scale, fill=fill, empty=empty, new=new, is_wanted=is_wanted
        )

    def _find_few_dtype(self, stored: np.dtype[Any]) -> np.dtype[Any] | None:
        """Return the type that the kernel of few queries multiplies in; None where the precision is not one of its."""
        if self.precision:
            return find_narrow(self.precision)
        return _FLOAT if stored == _FLOAT else None

    def _list_steps(self, operands: Sequence[Any]) -> list[tuple[str, tuple[Any, ...]]]:
        """Return the steps with the operands of each."""
        if not self.score_steps and not operands:
            return []
        unknown = [step for step in self.score_steps if step not in STEPS]
        if unknown or len(operands) != sum(STEPS[step] for step in self.score_steps):
            raise InputError(
                f"{self.name} expects steps {', '.join(STEPS)} with operands, got {list(self.score_steps)}."
            )
        rest = iter(operands)
        return [(step, tuple(next(rest) for _ in range(STEPS[step]))) for step in self.score_steps]

    def _fold_numbers(self, operands: Sequence[Slot]) -> tuple[float, list[Step]]:
        """Return the scale with all numbers that the first steps multiply by, and the other steps."""
        scale, steps = self.scale, self._list_steps(operands)
        while steps and steps[0][0] in ("Mul", "Div"):
            step, (operand,) = steps[0]
            number = _read_number(operand)
            if number is None or (step == "Div" and not number):
                break
            scale = scale * number if step == "Mul" else scale / number
            del steps[0]
        return scale, steps

    def _lower_apart(self, emit: Emitter, slots: tuple[Slot, Slot, Slot, Slot, list[Step]], scale: float) -> None:
        """Launch the operators one after the other, the first steps in the product's kernel."""
        q, k, v, y, steps = slots
        taken, added = 0, 0
        while taken < min(len(steps), _MAX_FUSED_STEPS) and steps[taken][0] in _FUSIBLE:
            if added + len(steps[taken][1]) > _MAX_FUSED_OPERANDS:
                break
            added += len(steps[taken][1])
            taken += 1
        scores = _multiply(emit, q, k, scale, steps[:taken], self.precision)
        for step, given in steps[taken:]:
            scores = _lower_step(emit, step, scores, given)
        weights = emit.temp(scores.shape, scores.dtype)
        if self.is_guarded:
            launch_guarded(emit, scores, weights)
        else:
            Softmax().lower(emit, (scores,), (weights,))
        product = MatMul(self.precision)
        weights = _convert(emit, weights, v.dtype)
        dtype = find_result(v.dtype, self.precision)
        if y.dtype != dtype or (emit.target.has_textures and not y.is_contiguous):
            made = emit.temp(y.shape, dtype)
            product.lower(emit, (weights, v), (made,))
            emit.copy(y, _convert(emit, made, y.dtype))
        else:
            product.lower(emit, (weights, v), (y,))


def _find_fused(
    emit: Emitter, slots: tuple[Slot, Slot, Slot, Slot], scale: float, steps: Sequence[Step]
) -> tuple[AttentionOperands, float] | None:
    """Return what the fused kernel takes; None where it takes longer, or can't. See `_take_operands`."""
    taken = _take_operands(emit, slots, scale, steps)
    return taken if taken is not None and _is_fused_faster(emit, taken[0]) else None


def _take_operands(
    emit: Emitter, slots: tuple[Slot, Slot, Slot, Slot], scale: float, steps: Sequence[Step]
) -> tuple[AttentionOperands, float] | None:
    """Return what kernels of attention take, and the score of a key that is masked; None where they can't.

    Beside the scale they know one bias, or a mask of bools with a number.
    """
    q, k, v, y = slots
    if not emit.target.has_kernels or emit.target.has_textures or y.strides[-1] != 1 or len(steps) > 1:
        return None
    fill: float | None = -np.inf
    mask = None
    for step, given in steps:
        mask = given[0]
        fill = _read_number(given[1]) if step == "Where" else fill
        if step not in ("Add", "Where") or fill is None:
            return None
    heads = _split_heads(q, k, v, mask, y)
    return None if heads is None or fill is None or not np.isfinite(scale) else (heads, fill)


def _convert(emit: Emitter, slot: Slot, dtype: np.dtype[Any]) -> Slot:
    if slot.dtype == dtype:
        return slot
    converted = emit.temp(slot.shape, dtype)
    convert_commands(emit, converted, slot)
    return converted


def _multiply(emit: Emitter, q: Slot, k: Slot, scale: float, given_steps: Sequence[Step], precision: str) -> Slot:
    """Launch a product with steps in its kernel; return the scores."""
    rows: list[Any] = []
    operands: list[Slot] = []
    for step, given in given_steps:
        places = [2 + len(operands) + place for place in range(len(given))]
        rows.append((step, (), (-1 - len(rows), *places)))
        operands += given
    name = FusedMatMul.name
    attributes = {
        "alpha": scale,
        "precision": precision,
        **({"steps": tuple(rows), "results": (len(rows),)} if rows else {}),
    }
    product = build(fused_name(name) if rows else name, attributes)
    inputs = (q, k, *operands)
    (spec,) = product.infer(*(slot.spec for slot in inputs))
    scores = emit.temp(spec.shape, spec.dtype)
    _lower_part(emit, product, inputs, scores)
    return scores


def _lower_step(emit: Emitter, step: str, scores: Slot, given: tuple[Slot, ...]) -> Slot:
    """Launch a step by itself; return its result."""
    shape = broadcast(scores.shape, *(operand.shape for operand in given))
    result = emit.temp(shape, scores.dtype)
    inputs = (scores, *given)
    if step in ("Where", "Fill"):
        mask, other = given
        inputs = (mask, scores, other) if step == "Where" else (mask, other, scores)
    _lower_part(emit, build("Where" if step == "Fill" else step, {}), inputs, result)
    return result


def _lower_part(emit: Emitter, part: Operator, inputs: Sequence[Slot], result: Slot) -> None:
    assert part.lower is not None
    part.lower(emit, tuple(inputs), (result,))


def _compute_step(step: str, scores: Array, given: tuple[Array, ...]) -> Array:
    """Work out a step, in the memory of the scores where it doesn't stretch them."""
    stays = broadcast(scores.shape, *(operand.shape for operand in given)) == scores.shape
    out = scores if stays else None
    if step in ("Where", "Fill"):
        mask, other = given
        if out is None:
            return np.where(mask, scores, other) if step == "Where" else np.where(mask, other, scores)
        np.copyto(out, other, where=~mask if step == "Where" else mask)
        return out
    return np.asarray(_FUNCTIONS[step](scores, *given, out=out))


_FUNCTIONS = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Tanh": np.tanh}
_SCRATCH = 4  # arrays beside those of masks


def _prepare_step(
    step: str, scores: Array, given: tuple[Array, ...], flags: Iterator[Array]
) -> list[Callable[[], object]] | None:
    """Return the calls of `_compute_step`; None where it stretches the scores. A mask takes the next of the flags."""
    if broadcast(scores.shape, *(operand.shape for operand in given)) != scores.shape:
        return None
    if step not in ("Where", "Fill"):
        return [partial(_FUNCTIONS[step], scores, *given, out=scores)]
    mask, other = given
    fill = partial(np.copyto, scores, other)
    memory = next(flags, None)
    if step == "Fill":
        return [partial(fill, where=mask)]
    if memory is None:
        return None
    is_filled = view_bytes(memory, mask.shape, mask.dtype)
    return [partial(np.logical_not, mask, out=is_filled), partial(fill, where=is_filled)]


def _are_views(arrays: Sequence[Array], inputs: Sequence[Array | None]) -> bool:
    """Return whether arrays are views of inputs, in their order, not copies."""
    given = [each for each in inputs if each is not None]
    return all(x is y or not y.size or np.may_share_memory(x, y) for x, y in zip(arrays, given, strict=True))


def _are_grouped(q: Shape, k: Shape, v: Shape, operands: Sequence[Shape]) -> bool:
    """Return whether K and V are in groups that the heads of Q and of all operands divide into."""
    if (len(q), len(k), len(v)) != (4, 5, 5) or k[:3] != v[:3] or q[0] != k[0] or q[1] != k[1] * k[2]:
        return False
    return all(len(each) <= 4 and (len(each) < 3 or each[-3] in (1, q[1])) for each in operands)


def _group(shape: Shape, strides: Shape, heads: int, group: int) -> tuple[Shape, Shape]:
    """Return the shape and strides of what has heads third to last, with these in groups; fewer axes stay."""
    if len(shape) < 3:
        return shape, strides
    if shape[-3] == 1:
        return (*shape[:-3], 1, *shape[-3:]), (*strides[:-3], 0, *strides[-3:])
    step = strides[-3]
    return (*shape[:-3], heads, group, *shape[-2:]), (*strides[:-3], group * step, step, *strides[-2:])


def _align_arrays(
    q: Array, k: Array, v: Array, operands: Sequence[Array]
) -> tuple[Array, Array, Array, list[Array], Shape | None]:
    """Return operands of a product, heads in groups where K and V have them; and what shape the result is to get."""
    if k.ndim < 5 or q.ndim > 4:
        return q, k, v, list(operands), None
    if _are_grouped(q.shape, k.shape, v.shape, [each.shape for each in operands]):
        grouped = [each.reshape(_group(each.shape, each.shape, *k.shape[1:3])[0]) for each in (q, *operands)]
        batch = broadcast(q.shape[:1], *(each.shape[:-3] for each in operands))
        return grouped[0], k, v, grouped[1:], (*batch, *q.shape[1:3], v.shape[-1])
    k, v = (each.reshape(join_groups(each.shape)) if each.ndim == 5 else each for each in (k, v))
    return q, k, v, list(operands), None


def _align_slots(
    emit: Emitter, slots: tuple[Slot, Slot, Slot, Slot], steps: list[Step]
) -> tuple[Slot, Slot, Slot, Slot, list[Step]]:
    """Return slots of products that broadcast, heads in groups where K and V have them."""
    q, k, v, y = slots
    if k.spec.rank < 5 or q.spec.rank > 4:
        return q, k, v, y, steps
    if _are_grouped(q.shape, k.shape, v.shape, [each.shape for _, given in steps for each in given]):

        def group(slot: Slot) -> Slot:
            return window(slot, *_group(slot.shape, slot.strides, *k.shape[1:3]))

        return group(q), k, v, group(y), [(step, tuple(map(group, given))) for step, given in steps]
    k, v = (reshaped(emit, each, join_groups(each.shape)) if each.spec.rank == 5 else each for each in (k, v))
    return q, k, v, y, steps


def _read_number(slot: Slot) -> float | None:
    """Return the content of a slot that the host knows to be one number."""
    value = slot.spec.value
    return float(value.array.reshape(())) if value is not None and slot.spec.size == 1 else None


def _pad_axes(shape: Shape, strides: Strides) -> tuple[Shape, Strides]:
    """Return four axes of what has at most so many: batch, heads, rows, columns."""
    missing = 4 - len(shape)
    return (*(1,) * missing, *shape), (*(0,) * missing, *strides)


def _split_heads(q: Slot, k: Slot, v: Slot, mask: Slot | None, y: Slot) -> AttentionOperands | None:
    """Return operands of four axes, K by rows, heads of K and V as few as there are; None where that can't be."""
    if max(each.spec.rank for each in (q, y, *([mask] if mask is not None else []))) > 4:
        return None
    if k.spec.rank == v.spec.rank == 5 > q.spec.rank:
        if k.shape[:3] != v.shape[:3] or any(each.shape[2] > 1 and each.strides[2] for each in (k, v)):
            return None
        k, v = (
            window(each, (*each.shape[:2], *each.shape[3:]), (*each.strides[:2], *each.strides[3:])) for each in (k, v)
        )
    elif max(k.spec.rank, v.spec.rank) > 4:
        return None
    q, k, v = (window(each, *_pad_axes(each.shape, each.strides)) for each in (q, k, v))
    (batch, heads, _, _), _ = _pad_axes(y.shape, y.strides)
    of_keys = max(k.shape[1], v.shape[1])
    keys, queries = v.shape[2], q.shape[2]
    if y.shape[-2] != queries or keys != k.shape[3] or heads % max(of_keys, 1) or q.shape[1] not in (1, heads):
        return None

    def stretch(slot: Slot, *leading: int) -> Slot:
        shape = (*leading, *slot.shape[len(leading) :])
        return window(slot, shape, broadcast_strides(slot.shape, slot.strides, shape))

    if any(each.shape[0] not in (1, batch) or each.shape[1] not in (1, of_keys) for each in (k, v)):
        return None
    if q.shape[0] not in (1, batch):
        return None
    q, k, v = stretch(q, batch, heads), stretch(k, batch, of_keys), stretch(v, batch, of_keys)
    by_rows = window(k, (batch, of_keys, keys, k.shape[2]), (*k.strides[:2], k.strides[3], k.strides[2]))
    if mask is not None:
        mask = window(mask, *_pad_axes(mask.shape, mask.strides))
        shape = (batch, heads, queries, keys)
        if broadcast(mask.shape, shape) != shape:
            return None
        mask = stretch(mask, *shape)
    return AttentionOperands(q, by_rows, v, mask, None)


def _is_few_faster(emit: Emitter, heads: AttentionOperands) -> bool:
    """Return whether the kernel of few queries takes less time than products of floats and a softmax, or the other one.

    That is not taken for one query, see `_is_fused_faster`.
    """
    if not fits_few(heads):
        return False
    gpu = find_gpu(emit.target.architecture)
    others = _find_apart_seconds(gpu, heads)
    if heads.q.shape[2] > 1:
        others = min(others, _find_walk_seconds(gpu, heads))
    return find_few_seconds(gpu, heads) + _LAUNCH_SECONDS < others


def _is_fused_faster(emit: Emitter, heads: AttentionOperands) -> bool:
    """Return whether the fused kernel takes less time than products and a softmax on the architecture's standard GPU.

    The fused one saves two launches and the way of the scores through memory; its blocks, which walk all keys, are few,
    and that of floats multiplies at half the rate of products by tiles.
    """
    if can_multiply(emit, heads.q.dtype):
        return _is_mma_faster(find_gpu(emit.target.architecture), heads)
    # The keys of one query are those of a cache, which grow: the same kernels are to serve every length.
    if heads.q.dtype.itemsize != 4 or heads.q.shape[2] == 1:
        return False
    gpu = find_gpu(emit.target.architecture)
    return _find_walk_seconds(gpu, heads) < _find_apart_seconds(gpu, heads)


def _find_walk_seconds(gpu: Gpu, heads: AttentionOperands) -> float:
    """Return about how long the kernel of attention.cu takes for floats."""
    (_, count, queries, _), (_, of_keys, keys, _) = heads.q.shape, heads.v.shape
    is_split = has_chunks(count // max(of_keys, 1) * queries, keys)
    return find_fused_seconds(gpu, heads) + (2 if is_split else 1) * _LAUNCH_SECONDS


def _find_apart_seconds(gpu: Gpu, heads: AttentionOperands) -> float:
    """Return about how long products of floats and a softmax take."""
    (batch, count, queries, depth), (_, of_keys, keys, values) = heads.q.shape, heads.v.shape
    scores_nbytes = batch * count * queries * keys * heads.q.dtype.itemsize
    bandwidth = gpu.find_bandwidth(scores_nbytes)  # L2 holds what a launch leaves to the next
    apart = 3 * _LAUNCH_SECONDS + 2 * scores_nbytes / bandwidth
    for rows, columns, inner in ((queries, keys, depth), (queries, values, keys)):
        if rows > _FEW_QUERIES:
            seconds = count_cycles(gpu, rows, columns, inner, batch * count) / gpu.clock_hertz
            apart += max(seconds, scores_nbytes / bandwidth)
        else:
            nbytes = batch * of_keys * columns * inner * heads.q.dtype.itemsize
            apart += nbytes / gpu.find_bandwidth(nbytes)
    return apart


def _is_mma_faster(gpu: Gpu, heads: AttentionOperands) -> bool:
    """Return whether the fused kernel takes less time on tensor cores than products there and a softmax.

    Those write scores as floats, read and write them, round them in a launch of its own, and read them again.
    """
    fused = find_mma_seconds(gpu, heads)
    if fused is None:
        return False
    (batch, count, queries, depth), (_, _, keys, values) = heads.q.shape, heads.v.shape
    scores = batch * count * queries * keys
    multiplied = 2 * scores * (depth + values) / gpu.matrix_rate
    moved = scores * (4 * _FLOAT.itemsize + 2 * heads.q.dtype.itemsize)
    return fused < 3 * _LAUNCH_SECONDS + multiplied + moved / gpu.find_bandwidth(scores * _FLOAT.itemsize)
