"""Einsum in NumPy: diagonals as views, sums, and pairwise matrix products."""

from __future__ import annotations

import numpy as np

from gpuexec.ir.operator import Array
from gpuexec.ops.linalg.einsum_equation import Labels
from gpuexec.ops.linalg.matmul import multiply


def diagonal(x: Array, term: Labels) -> tuple[Array, Labels]:
    """Return a view in which each label has one axis, and these labels."""
    labels = tuple(dict.fromkeys(term))
    if len(labels) == len(term):
        return x, labels
    strides = [sum(x.strides[axis] for axis, each in enumerate(term) if each == label) for label in labels]
    shape = [x.shape[term.index(label)] for label in labels]
    return np.lib.stride_tricks.as_strided(x, shape, strides, writeable=False), labels


def sum_to(x: Array, labels: Labels, kept: Labels) -> Array:
    """Sum over the labels that are not kept; the result's axes are in the order of ``kept``."""
    summed = tuple(label for label in labels if label not in kept)
    arranged = x.transpose([labels.index(label) for label in (*kept, *summed)])
    if not summed:
        return arranged
    return np.asarray(arranged.sum(axis=tuple(range(len(kept), len(labels))), dtype=x.dtype))


def contract(a: Array, a_labels: Labels, b: Array, b_labels: Labels, labels: Labels) -> Array:
    """Multiply two operands and sum over the labels not in ``labels``; axes of extent 1 broadcast."""
    batch = tuple(label for label in labels if label in a_labels and label in b_labels)
    rows = tuple(label for label in labels if label not in b_labels)
    columns = tuple(label for label in labels if label not in a_labels)
    inner = tuple(label for label in a_labels if label not in labels)
    if not inner:
        return np.asarray(_spread(a, a_labels, labels) * _spread(b, b_labels, labels))
    extents = np.broadcast_shapes(_extents(a, a_labels, inner), _extents(b, b_labels, inner))
    left = _arrange(a, a_labels, batch, rows, inner, extents)  # [*batch, rows, inner]
    right = _arrange(b, b_labels, batch, columns, inner, extents).swapaxes(-1, -2)  # [*batch, inner, columns]
    product = multiply(left, right)
    made = (*batch, *rows, *columns)
    product = product.reshape((*product.shape[:-2], *_extents(a, a_labels, rows), *_extents(b, b_labels, columns)))
    return product.transpose([made.index(label) for label in labels])


def _extents(x: Array, labels: Labels, wanted: Labels) -> tuple[int, ...]:
    return tuple(x.shape[labels.index(label)] for label in wanted)


def _spread(x: Array, labels: Labels, wanted: Labels) -> Array:
    """Return a view with an axis for each label, of extent 1 where there was none."""
    present = [label for label in wanted if label in labels]
    arranged = x.transpose([labels.index(label) for label in present])
    return arranged.reshape([x.shape[labels.index(label)] if label in labels else 1 for label in wanted])


def _arrange(
    x: Array, labels: Labels, batch: Labels, own: Labels, inner: Labels, inner_extents: tuple[int, ...]
) -> Array:
    """Return ``[*batch, own, inner]``, the inner axes stretched to their extents."""
    order = (*batch, *own, *inner)
    arranged = x.transpose([labels.index(label) for label in order])
    outer = arranged.shape[: len(batch) + len(own)]
    stretched = np.broadcast_to(arranged, (*outer, *inner_extents))
    sizes = [int(np.prod(outer[len(batch) :], dtype=np.int64)), int(np.prod(inner_extents, dtype=np.int64))]
    return stretched.reshape((*outer[: len(batch)], *sizes))
