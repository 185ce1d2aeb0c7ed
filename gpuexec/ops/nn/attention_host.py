"""Scaled dot-product attention in NumPy, with its causal and sliding-window masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite, prod
from typing import Any

import numpy as np

from gpuexec.ir.operator import Array, PreparedCalls
from gpuexec.ir.prepared_calls import view_bytes
from gpuexec.ir.spec import accumulator
from gpuexec.ops.linalg.matmul import multiply, prepare_product

_MAX_SCORES = 1 << 24  # in memory at a time
_TABLE_BYTES = 1 << 14  # of a table that is made once for arrays that stay, at most
_FAR = 1 << 34  # kFar of attention.cu


@dataclass(frozen=True, slots=True)
class AttentionRule:
    """Scaling, capping and masking of scores.

    ``past`` is the position of the first query among the keys; -1 for ``left`` or ``right`` leaves a side unbounded.
    """

    scale: float
    softcap: float
    left: int
    right: int
    past: int

    def find_keys(self, queries: int, keys: int, lengths: Array | None) -> tuple[Array, Array]:
        """Return the half-open range of keys of each query, both ``[batch or 1, 1, queries, 1]``."""
        position = np.arange(queries, dtype=np.int64)[:, np.newaxis] + self.past
        end = np.full((1, 1, queries, 1), keys, np.int64)
        if lengths is not None:
            valid = np.clip(lengths, 0, _FAR).reshape(-1, 1, 1, 1)
            position = position + (valid - queries)
            end = np.minimum(end, valid)
        if self.right >= 0:
            end = np.minimum(end, position + self.right + 1)
        first = np.maximum(position - self.left, 0) if self.left >= 0 else np.zeros_like(position)
        return np.broadcast_to(first, end.shape), end


def attend(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    lengths: Array | None,
    rule: AttentionRule,
    mode: int | None,
    sinks: Array | None = None,
) -> tuple[Array, Array | None]:
    """Return attention, and the scores of a ``mode`` 0 to 3 (see `Attention`) if asked for.

    Half and bfloat16 are computed in float and rounded once. A row that no key takes part in is zero.

    Args:
        q: ``[batch, heads, queries, depth]``.
        k: ``[batch, key heads, keys, depth]``, or ``[batch, key heads, group, keys, depth]``.
        v: ``[batch, key heads, keys, values]``, or in groups too.
        mask: Broadcasts to ``[batch, heads, queries, keys]``, or to fewer keys.
        lengths: Number of valid keys of each batch.
        rule: Scaling, capping and masking of scores.
        mode: The kind of scores to return.
        sinks: For each head, a score that weighs in the softmax beside those of keys, and stands for no value.
    """
    batch, heads, queries, _ = q.shape
    keys = k.shape[-2]
    acc = accumulator(q.dtype)
    y = np.empty((batch, heads, queries, v.shape[-1]), q.dtype)
    scores = None if mode is None else np.empty((batch, heads, queries, keys), q.dtype)
    columns, values = k.astype(acc, copy=False).swapaxes(-2, -1), v.astype(acc, copy=False)
    first, end = rule.find_keys(queries, keys if mask is None else mask.shape[-1], lengths)
    if mask is not None:
        mask = np.broadcast_to(mask, (batch, heads, queries, mask.shape[-1]))
    step = max(1, _MAX_SCORES // max(1, batch * heads * keys))
    with np.errstate(all="ignore"):
        for start in range(0, queries, step):
            some = slice(start, start + step)
            score = _grouped(multiply, q[:, :, some].astype(acc, copy=False), columns)
            score *= acc.type(rule.scale)
            kept = score.copy() if mode == 0 else None
            if rule.softcap > 0:
                score = np.tanh(score / acc.type(rule.softcap)) * acc.type(rule.softcap)
            kept = score.copy() if mode == 1 else kept
            if mask is not None:
                _add_mask(score[..., : mask.shape[-1]], mask[:, :, some], q.dtype)
            places = np.arange(keys)
            score[~np.broadcast_to((places >= first[:, :, some]) & (places < end[:, :, some]), score.shape)] = -np.inf
            kept = score.copy() if mode == 2 else kept
            largest = score.max(axis=3, keepdims=True, initial=-np.inf)
            score -= np.where(largest == -np.inf, acc.type(0), largest)
            weights = np.exp(score, out=score)
            total = weights.sum(axis=3, keepdims=True)
            if sinks is not None:
                total = total + np.exp(sinks.astype(acc, copy=False).reshape(1, heads, 1, 1) - largest)
            total = np.where(largest == -np.inf, acc.type(1), total)
            y[:, :, some] = _grouped(_weigh, weights, values) / total
            if scores is not None:
                scores[:, :, some] = weights / total if kept is None else kept
    return y, scores


def count_attention(
    batch: int, heads: int, extents: tuple[int, int, int, int], itemsize: int, mask_size: int
) -> list[int]:
    """Return the bytes of what the calls of `prepare_attention` work in.

    Args:
        batch: Extent of the first axis.
        heads: Of Q.
        extents: Queries, depth, keys, and columns of a value.
        itemsize: Bytes of an element.
        mask_size: Elements of a mask; 0: there is none.
    """
    queries, depth, keys, columns = extents
    rows = batch * heads * queries
    elements = [rows * keys, rows, rows, rows * columns, rows * depth]
    return [*[count * itemsize for count in elements], rows, mask_size]


def prepare_attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    lengths: Array | None,
    rule: AttentionRule,
    y: Array,
    scratch: Sequence[Array],
    fallback: Callable[[], object],
) -> PreparedCalls | None:
    """Return calls that do what `attend` does without scores and sinks; None: there are none.

    A result that is not finite is worked out anew by ``fallback``: values that are not may have met a weight of 0.

    Args:
        q: As for `attend`, as are the next five.
        k: Keys.
        v: Values.
        mask: Mask.
        lengths: Valid keys.
        rule: Scaling and masking.
        y: Where the result goes, of four axes.
        scratch: Arrays of what `count_attention` returned.
        fallback: Computes the whole.
    """
    batch, heads, queries, _ = q.shape
    keys, dtype = k.shape[-2], q.dtype
    size = batch * heads * queries * keys
    if not (q.dtype == k.dtype == v.dtype == y.dtype) or not 0 < size <= _MAX_SCORES or len(scratch) < _SCRATCH:
        return None
    if mask is not None and mask.dtype not in (dtype, np.bool_):
        return None
    score = view_bytes(scratch[0], (batch, heads, queries, keys), dtype)
    largest, total = (view_bytes(each, (batch, heads, queries, 1), dtype) for each in scratch[1:3])
    is_empty = view_bytes(scratch[5], largest.shape, np.dtype(np.bool_))
    made = y if y.flags.c_contiguous else view_bytes(scratch[3], y.shape, dtype)
    calls: list[Callable[[], object]] = []

    def stack(x: Array, of: Array) -> Array:
        """Return heads that share keys or values one below the other."""
        shared = of.shape[1:-2]
        return x.reshape(batch, *shared, heads // max(prod(shared), 1) * queries, x.shape[-1])

    stacked = stack(q, k)
    if not np.may_share_memory(stacked, q):
        dense = view_bytes(scratch[4], q.shape, dtype)
        calls.append(partial(np.copyto, dense, q))
        stacked = stack(dense, k)
    first = prepare_product(stacked, k.swapaxes(-2, -1), stack(score, k))
    second = prepare_product(stack(score, v), v, stack(made, v))
    if first is None or second is None:
        return None
    calls += [*first, partial(np.multiply, score, np.array(rule.scale, dtype), out=score)]
    if rule.softcap > 0:
        cap = np.array(rule.softcap, dtype)
        calls.append(partial(np.divide, score, cap, out=score))
        calls += [partial(np.tanh, score, out=score), partial(np.multiply, score, cap, out=score)]
    lowest = np.array(-np.inf, dtype)
    if mask is not None:
        calls += _prepare_mask(score[..., : mask.shape[-1]], mask, view_bytes(scratch[6], mask.shape, _BOOL), lowest)
    ranges = _prepare_ranges(score, rule, keys if mask is None else mask.shape[-1], lengths, lowest)
    if ranges is None:
        return None
    calls += [
        *ranges,
        partial(np.maximum.reduce, score, 3, None, largest, True, -np.inf),
        partial(np.equal, largest, lowest, out=is_empty),
        partial(np.copyto, largest, np.zeros((), dtype), "no", is_empty),
        partial(np.subtract, score, largest, out=score),
        partial(np.exp, score, out=score),
        partial(np.add.reduce, score, 3, None, total, True),
        partial(np.copyto, total, np.ones((), dtype), "no", is_empty),
        *second,
        partial(np.divide, made, total, out=y),
    ]

    def check() -> None:
        if not isfinite(np.add.reduce(made, None)):
            fallback()

    return [*calls, check]


_BOOL = np.dtype(np.bool_)
_SCRATCH = 7  # arrays of `count_attention`


def _prepare_mask(score: Array, mask: Array, flags: Array, lowest: Array) -> list[Callable[[], object]]:
    """Return the calls of `_add_mask`."""
    fill = partial(np.copyto, score, lowest, "no", flags)
    if mask.dtype == np.bool_:
        return [partial(np.logical_not, mask, out=flags), fill]
    return [partial(np.add, score, mask, out=score), partial(np.equal, mask, lowest, out=flags), fill]


def _prepare_ranges(
    score: Array, rule: AttentionRule, keys: int, lengths: Array | None, lowest: Array
) -> PreparedCalls | None:
    """Return the calls that take keys out of the range of a query; None where that takes a large table."""
    queries, places = score.shape[2], np.arange(score.shape[3])

    def find_outside() -> Array:
        first, end = rule.find_keys(queries, keys, lengths)
        return np.asarray((places < first) | (places >= end))

    if lengths is not None:
        return [lambda: np.copyto(score, lowest, where=find_outside())]
    if queries * len(places) > _TABLE_BYTES:
        return None
    outside = find_outside()
    return [partial(np.copyto, score, lowest, "no", outside)] if outside.any() else []


def _grouped(product: Callable[[Array, Array], Array], a: Array, b: Array) -> Array:
    """Multiply ``[batch, heads, rows, n]`` by ``[batch, key heads, n, columns]``, neighbouring heads by one of them.

    Key heads in groups are so many heads: the bits are those of heads without.
    """
    batch, heads, rows, inner = a.shape
    of_keys = b.shape[1:-2]
    stacked = a.reshape(batch, *of_keys, heads // max(prod(of_keys), 1) * rows, inner)
    return product(stacked, b).reshape(batch, heads, rows, b.shape[-1])


def _add_mask(score: Array, mask: Array, dtype: np.dtype[Any]) -> None:
    if mask.dtype == np.bool_:
        score[~mask] = -np.inf
        return
    bias = mask.astype(dtype).astype(score.dtype, copy=False)
    score += bias
    score[bias == -np.inf] = -np.inf


def _weigh(weights: Array, values: Array) -> Array:
    """Multiply, a weight of 0 times anything being 0."""
    wild = ~np.isfinite(values)
    if not wild.any():
        return multiply(weights, values)
    result = multiply(weights, np.where(wild, values.dtype.type(0), values))
    takes_part = (weights != 0).astype(values.dtype)
    for special in (np.nan, np.inf, -np.inf):
        where = np.isnan(values) if special != special else values == special
        result[multiply(takes_part, where.astype(values.dtype)) > 0] += special
    return result
