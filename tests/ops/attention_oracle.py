"""Attention reference in double or by a loop over rows, and cases of random inputs."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from gpuexec.ops.nn.attention import Attention
from tests.ops.harness import Array, Case, build_operator, expect

INF = np.inf


def sample(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 7) -> Array:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


def attention(
    id: str,
    sizes: tuple[int, ...],
    dtype: Any = np.float32,
    *,
    mask: Array | None = None,
    past: int = 0,
    lengths: tuple[int, ...] | None = None,
    flat: bool = False,
    outputs: tuple[bool, ...] = (True,),
    opset: int = 24,
    **attributes: Any,
) -> Case:
    """A case of random Q, K, V; ``sizes`` are batch, heads of Q and of K, queries, keys, depth, and size of V."""
    batch, heads, of_keys, queries, keys, depth, values = sizes
    q, k = sample((batch, heads, queries, depth), dtype), sample((batch, of_keys, keys, depth), dtype, 8)
    v = sample((batch, of_keys, keys, values), dtype, 9)
    inputs: list[Array | None] = [q, k, v]
    if flat:
        inputs = [x.transpose(0, 2, 1, 3).reshape(*x.shape[::2], x.shape[1] * x.shape[3]) for x in (q, k, v)]
        attributes |= {"q_num_heads": heads, "kv_num_heads": of_keys}
    before = [sample((batch, of_keys, past, size), dtype, 10) if past else None for size in (depth, values)]
    given = None if lengths is None else np.array(lengths)
    inputs += [mask, *before, given]
    return Case(id, "Attention", tuple(inputs[: 7 if opset > 23 else 6]), attributes, outputs=outputs, opset=opset,
                terms=depth + keys + past)  # fmt: skip


def in_double(case: Case) -> Case:
    """The case with what the reference makes of it in double, rounded once: it rounds at each step."""
    types = [None if x is None else x.dtype for x in case.inputs]
    assert types[0] is not None
    wide = tuple(x if x is None or x.dtype.kind in "biu" else x.astype(np.float64) for x in case.inputs)
    attributes = {name: value for name, value in case.attributes.items() if name != "softmax_precision"}
    exact = expect(dataclasses.replace(case, inputs=wide, attributes=attributes))
    return dataclasses.replace(case, expected=tuple(y.astype(types[0]) for y in exact))


def by_rows(case: Case) -> Case:
    """The case with what a loop over rows gives: only keys that take part are looked at."""
    op, inputs = build_operator(case)
    assert isinstance(op, Attention)
    q, k, v, mask, past_key, past_value, lengths = (*inputs, *(None,) * 7)[:7]
    assert q is not None and k is not None and v is not None and q.ndim == 4
    past = 0
    if past_key is not None and past_value is not None:
        past = past_key.shape[2]
        k, v = np.concatenate((past_key, k), 2), np.concatenate((past_value, v), 2)
    (batch, heads, queries, depth), keys = q.shape, k.shape[2]
    y, scores = np.zeros((batch, heads, queries, v.shape[3])), np.zeros((batch, heads, queries, keys))
    group = heads // max(k.shape[1], 1)
    scale = max(depth, 1) ** -0.5 if op.scale is None else op.scale
    for b, h, i in np.ndindex(batch, heads, queries):
        at = i + (past if lengths is None else float(lengths[b]) - queries)
        places = np.arange(keys)
        takes = (places <= at) | (not op.is_causal)
        takes &= places < (keys if lengths is None else lengths[b])
        takes &= (op.left_window_size < 0) | (at - places <= op.left_window_size)
        takes &= (op.right_window_size < 0) | (places - at <= op.right_window_size)
        bias = np.zeros(keys)
        if mask is not None:
            row = np.broadcast_to(mask, (batch, heads, queries, mask.shape[-1]))[b, h, i]
            bias[:] = -INF
            bias[: row.size] = np.where(row, 0, -INF) if row.dtype == np.bool_ else row.astype(q.dtype)
            takes &= bias != -INF
        score = scale * (k[b, h // group].astype(np.float64) @ q[b, h, i].astype(np.float64))
        kept = [score]
        score = np.tanh(score / op.softcap) * op.softcap if op.softcap > 0 else score
        kept.append(score)
        kept.append(np.where(takes, score + np.where(takes, bias, 0), -INF))
        part = kept[2][takes]
        weights = np.zeros(keys)
        if part.size and part.max() != -INF:
            with np.errstate(invalid="ignore"):
                weights[takes] = np.exp(part - part.max())
            weights /= weights.sum()
        kept.append(weights)
        scores[b, h, i] = kept[op.qk_matmul_output_mode]
        used = weights != 0
        y[b, h, i] = weights[used] @ v[b, h // group][used].astype(np.float64)
    results = (y, k, v, scores)[: len(case.outputs)]
    return dataclasses.replace(case, expected=tuple(result.astype(q.dtype) for result in results))
