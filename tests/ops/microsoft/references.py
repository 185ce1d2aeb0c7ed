"""Reference results in double, by documentation, for operators that onnxruntime has no CPU kernel for."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def softmax(x: Array, axes: tuple[int, ...]) -> Array:
    """Return the softmax over axes taken as one."""
    wide = x.astype(np.float64)
    powers = np.exp(wide - wide.max(axis=axes, keepdims=True))
    return np.asarray(powers / powers.sum(axis=axes, keepdims=True)).astype(x.dtype)


def group_norm(x: Array, gamma: Array, beta: Array, groups: int, epsilon: float, is_silu: bool) -> Array:
    """Return the normalised groups of the last axis, perhaps through SiLU."""
    wide = x.astype(np.float64)
    apart = wide.reshape(x.shape[0], -1, groups, x.shape[-1] // groups)
    mean = apart.mean(axis=(1, 3), keepdims=True)
    variance = np.square(apart - mean).mean(axis=(1, 3), keepdims=True)
    y = ((apart - mean) / np.sqrt(variance + epsilon)).reshape(x.shape) * gamma.astype(np.float64) + beta
    return np.asarray(y / (1 + np.exp(-y)) if is_silu else y).astype(x.dtype)


def attend(q: Array, k: Array, v: Array, heads: int, scale: float | None = None, bias: Array | None = None) -> Array:
    """Return attention of ``[rows, heads * size]`` in double."""
    size = q.shape[1] // heads
    parts = []
    for head in range(heads):
        own = slice(head * size, (head + 1) * size)
        scores = q[:, own].astype(np.float64) @ k[:, own].astype(np.float64).T * (scale or size**-0.5)
        scores = scores if bias is None else scores + bias[min(head, bias.shape[0] - 1)]
        columns = slice(head * v.shape[1] // heads, (head + 1) * v.shape[1] // heads)
        parts.append(softmax(scores, (1,)) @ v[:, columns].astype(np.float64))
    return np.concatenate(parts, axis=1)


def relative_buckets(rows: int, columns: int, buckets: int, farthest: int, is_bidirectional: bool) -> Array:
    """Return the bucket of each distance, as T5 has it."""
    result = np.zeros((rows, columns), np.int64)
    for row in range(rows):
        for column in range(columns):
            distance, own, first = column - row, buckets, 0
            if is_bidirectional:
                own = buckets // 2
                first, distance = (own if distance > 0 else 0), abs(distance)
            else:
                distance = max(-distance, 0)
            exact = own // 2
            if distance >= exact:
                share = np.log(np.float32(distance) / np.float32(exact)) / np.log(
                    np.float32(farthest) / np.float32(exact)
                )
                distance = min(exact + int(share * np.float32(own - exact)), own - 1)
            result[row, column] = first + distance
    return result
