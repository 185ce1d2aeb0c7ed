"""Matrix products and einsum, which becomes transposes and a MatMul."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.model.tracing.nodes import broadcast_dims
from gpuexec.model.tracing.promotion import BOOL, as_symbolic, cast, unify
from gpuexec.model.tracing.reducing import reduce_node
from gpuexec.model.tracing.shaping import broadcast_to, expand_dims, extent, ravel, reshape, transpose
from gpuexec.model.tracing.symbolic import SymbolicArray

__all__ = ["cross", "dot", "einsum", "inner", "linear", "matmul", "multi_dot", "outer", "tensordot", "vdot"]


def matmul(x1: Any, x2: Any) -> SymbolicArray:
    """Multiply matrices, the last two axes of arrays; others broadcast. Rows of one axis count as matrices of one."""
    x, y = unify(x1, x2)
    if not (x.ndim and y.ndim):
        raise InputError(f"matmul takes arrays with axes, got {x!r} and {y!r}; multiply by * instead.")
    inner = (x._known_dims()[-1], y._known_dims()[-2 if y.ndim > 1 else 0])
    if isinstance(inner[0], int) and isinstance(inner[1], int) and inner[0] != inner[1]:
        raise InputError(f"matmul of {x!r} and {y!r}: {inner[0]} columns don't match {inner[1]} rows.")
    dtype = x.dtype
    if dtype.kind in "iub" and dtype.itemsize < 4:
        x, y = cast(x, np.int32), cast(y, np.int32)
    batch = broadcast_dims([x._known_dims()[:-2], y._known_dims()[:-2]]) or ()
    dims = (*batch, *x._known_dims()[-2:-1], *(y._known_dims()[-1:] if y.ndim > 1 else ()))
    (product,) = x._tracer.apply("MatMul", [x, y], otherwise=[(x.dtype, dims)])
    return cast(product, dtype)


def dot(a: Any, b: Any) -> SymbolicArray:
    """Multiply along the last axis of ``a`` and the last but one of ``b``, the only one it has, or elementwise."""
    x, y = unify(a, b)
    if not x.ndim or not y.ndim:
        return x * y
    if y.ndim <= 2:
        return matmul(x, y)
    return tensordot(x, y, ([-1], [-2]))


def vdot(a: Any, b: Any) -> SymbolicArray:
    """Multiply all elements in a row and add up."""
    return matmul(ravel(a), ravel(b))


def inner(a: Any, b: Any) -> SymbolicArray:
    """Multiply along the last axes."""
    x, y = unify(a, b)
    return x * y if not x.ndim or not y.ndim else tensordot(x, y, ([-1], [-1]))


def outer(a: Any, b: Any) -> SymbolicArray:
    """Multiply each element of one with each of the other."""
    return expand_dims(ravel(a), 1) * expand_dims(ravel(b), 0)


def tensordot(a: Any, b: Any, axes: Any = 2) -> SymbolicArray:
    """Multiply along pairs of axes: the last and first few, or those listed for both."""
    x, y = unify(a, b)
    if isinstance(axes, int):
        axes = (list(range(x.ndim - axes, x.ndim)), list(range(axes)))
    pairs = [[each] if isinstance(each, int) else list(each) for each in axes]
    left = list(range(x.ndim))
    right = list(range(x.ndim, x.ndim + y.ndim))
    for i, j in zip(*pairs, strict=True):
        right[j] = left[i]
    kept = [each for each in left if each not in right] + [each for each in right if each not in left]
    return _contract(x, left, y, right, kept)


def einsum(subscripts: str, *operands: Any, optimize: Any = False) -> SymbolicArray:
    """Sum products by labels of axes, as ``"bij,bjk->bik"``; ``...`` stands for axes that broadcast.

    Arrays are taken in their order; NumPy's ``optimize``, which finds another, is taken and does nothing.
    """
    given = list(unify(*operands))
    terms, result = _read_labels(subscripts, given)
    current: list[tuple[SymbolicArray, list[Any]]] = []
    for array, labels in zip(given, terms, strict=True):
        for label in [each for each in dict.fromkeys(labels) if labels.count(each) > 1]:
            array, labels = _take_diagonal(array, labels, label)
        current.append((array, labels))
    while len(current) > 1:
        (x, left), (y, right), *rest = current
        needed = {label for _, labels in rest for label in labels}.union(result)
        kept = [label for label in dict.fromkeys([*left, *right]) if label in needed]
        current = [(_contract(x, left, y, right, kept), kept), *rest]
    ((array, labels),) = current
    summed = [i for i, label in enumerate(labels) if label not in result]
    if summed:
        array = _add_up(array, summed)
        labels = [label for label in labels if label in result]
    return transpose(array, [labels.index(label) for label in result])


def _read_labels(subscripts: str, operands: Sequence[SymbolicArray]) -> tuple[list[list[Any]], list[Any]]:
    """Return the labels of the operands' axes and of the result's; those under an ellipsis are numbers below 0."""
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise InputError(f"einsum {subscripts!r} is for {len(terms)} arrays, got {len(operands)}.")
    read, max_hidden = [], 0
    for term, array in zip(terms, operands, strict=True):
        before, dots, after = term.partition("...")
        hidden = array.ndim - len(before) - len(after)
        if hidden < 0 or (hidden and not dots):
            raise InputError(f"einsum {subscripts!r}: {term!r} does not fit the axes of {array!r}.")
        max_hidden = max(max_hidden, hidden)
        read.append([*before, *range(-hidden, 0), *after])
    used = [label for labels in read for label in labels]
    if arrow:
        before, dots, after = right.partition("...")
        result = [*before, *(range(-max_hidden, 0) if dots else ()), *after]
    else:
        letters = sorted(label for label in set(used) if isinstance(label, str) and used.count(label) == 1)
        result = [*range(-max_hidden, 0), *letters]
    unknown = [label for label in result if label not in used]
    if unknown or len(set(result)) != len(result):
        raise InputError(f"einsum {subscripts!r}: the result's labels must stand in the arrays', and once each.")
    return read, result


def _take_diagonal(array: SymbolicArray, labels: list[Any], label: Any) -> tuple[SymbolicArray, list[Any]]:
    from gpuexec.model.tracing.creation import diagonal

    while labels.count(label) > 1:
        first = labels.index(label)
        second = labels.index(label, first + 1)
        array = diagonal(array, 0, first, second)
        labels = [each for i, each in enumerate(labels) if i not in (first, second)] + [label]
    return array, labels


def _contract(x: SymbolicArray, left: list[Any], y: SymbolicArray, right: list[Any], kept: list[Any]) -> SymbolicArray:
    """Multiply two arrays whose axes have labels, summing over those not kept; axes come in the order of ``kept``."""
    x, left = _sum_alone(x, left, right, kept)
    y, right = _sum_alone(y, right, left, kept)
    shared = [label for label in left if label in right and label in kept]
    summed = [label for label in left if label in right and label not in kept]
    if not summed:
        return _multiply(x, left, y, right, kept)
    only_x = [label for label in left if label not in right]
    only_y = [label for label in right if label not in left]
    sizes = {label: _common(x, left, y, right, label) for label in (*shared, *summed)}
    x, y = (_spread(array, labels, sizes) for array, labels in ((x, left), (y, right)))
    sizes.update({label: extent(x, left.index(label)) for label in only_x})
    sizes.update({label: extent(y, right.index(label)) for label in only_y})
    x = transpose(x, [left.index(label) for label in (*shared, *only_x, *summed)])
    y = transpose(y, [right.index(label) for label in (*shared, *summed, *only_y)])
    batch = [sizes[label] for label in shared]
    a, b, c = (_product([sizes[label] for label in labels]) for labels in (only_x, summed, only_y))
    product = matmul(reshape(x, (*batch, a, b)), reshape(y, (*batch, b, c)))
    order = [*shared, *only_x, *only_y]
    product = reshape(product, tuple(sizes[label] for label in order))
    return transpose(product, [order.index(label) for label in kept])


def _sum_alone(
    array: SymbolicArray, labels: list[Any], others: list[Any], kept: list[Any]
) -> tuple[SymbolicArray, list[Any]]:
    alone = [i for i, label in enumerate(labels) if label not in others and label not in kept]
    if not alone:
        return array, labels
    return _add_up(array, alone), [label for i, label in enumerate(labels) if i not in alone]


def _add_up(array: SymbolicArray, axes: list[int]) -> SymbolicArray:
    if array.dtype == BOOL or (array.dtype.kind in "iu" and array.dtype.itemsize < 4):
        return cast(reduce_node("ReduceSum", cast(array, np.int32), axes, False), array.dtype)
    return reduce_node("ReduceSum", array, axes, False)


def _multiply(x: SymbolicArray, left: list[Any], y: SymbolicArray, right: list[Any], kept: list[Any]) -> SymbolicArray:
    placed = []
    for array, labels in ((x, left), (y, right)):
        array = transpose(array, [labels.index(label) for label in kept if label in labels])
        placed.append(expand_dims(array, [i for i, label in enumerate(kept) if label not in labels]))
    return placed[0] * placed[1]


def _common(x: SymbolicArray, left: list[Any], y: SymbolicArray, right: list[Any], label: Any) -> Any:
    i, j = left.index(label), right.index(label)
    ours, theirs = x._known_dims()[i], y._known_dims()[j]
    if isinstance(ours, int) and isinstance(theirs, int) and ours != theirs and 1 not in (ours, theirs):
        raise InputError(f"axes of {ours} and {theirs} elements don't match in {x!r} and {y!r}.")
    return extent(y, j) if ours == 1 else extent(x, i)


def _spread(array: SymbolicArray, labels: list[Any], sizes: dict[Any, Any]) -> SymbolicArray:
    dims = array._known_dims()
    wanted = {i: sizes[label] for i, label in enumerate(labels) if label in sizes and dims[i] == 1}
    if all(isinstance(length, int) and length == 1 for length in wanted.values()):
        return array
    shape = [sizes[label] if label in sizes else extent(array, i) for i, label in enumerate(labels)]
    return broadcast_to(array, tuple(shape))


def _product(items: Sequence[Any]) -> Any:
    result: Any = 1
    for item in items:
        result = result * item
    return result


def linear(x: Any, weight: Any, bias: Any = None) -> SymbolicArray:
    """Multiply by a weight [outputs, inputs] from the right, transposed, and add a bias."""
    product = matmul(x, as_symbolic(weight).T)
    return product if bias is None else product + bias


def multi_dot(arrays: Sequence[Any]) -> SymbolicArray:
    """Multiply matrices one after the other."""
    result = as_symbolic(arrays[0])
    for array in arrays[1:]:
        result = matmul(result, array)
    return result


def cross(a: Any, b: Any) -> SymbolicArray:
    """Return the cross product of vectors of three elements along the last axis."""
    x, y = unify(a, b)
    (x0, x1, x2), (y0, y1, y2) = ([array[..., i : i + 1] for i in range(3)] for array in (x, y))
    from gpuexec.model.tracing.joining import concatenate

    return concatenate([x1 * y2 - x2 * y1, x2 * y0 - x0 * y2, x0 * y1 - x1 * y0], -1)
