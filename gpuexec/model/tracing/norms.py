"""Vector and matrix norms, as numpy.linalg.norm has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.model.tracing.elementwise import absolute, not_equal, power
from gpuexec.model.tracing.promotion import FLOAT64, as_symbolic, cast
from gpuexec.model.tracing.reducing import max, min, reduce_node, sum
from gpuexec.model.tracing.shaping import find_axis
from gpuexec.model.tracing.symbolic import SymbolicArray

__all__ = ["norm"]

Axes = int | Sequence[int] | None


def norm(a: Any, ord: Any = None, axis: Axes = None, keepdims: bool = False) -> SymbolicArray:
    """Return the norm of vectors, along an axis or of all elements, or along two axes the norm of matrices.

    Args:
        a: Integers count as float64.
        ord: Of vectors 2 (the default), any other power, 0 to count what is not 0, inf and -inf for the largest and
            smallest distance from 0. Of matrices ``"fro"`` (the default), 1 and -1 for the largest and smallest sum of
            a column, inf and -inf of a row.
        axis: Of the vectors, or both of the matrices. None: all elements where no ``ord`` is given, else the one or two
            axes there are.
        keepdims: Keep the axes with extent 1.

    Raises:
        InputError: There is no such norm here: those by singular values have no ONNX form.
    """
    array = as_symbolic(a)
    array = cast(array, FLOAT64) if array.dtype.kind in "iub" else array
    if axis is None:
        axes = tuple(range(array.ndim))
        if ord is None or len(axes) == 1:
            return _measure_vectors(array, 2 if ord is None else ord, axes, keepdims)
    else:
        axes = tuple(find_axis(array, each) for each in ([axis] if isinstance(axis, int) else axis))
    if len(axes) == 1:
        return _measure_vectors(array, 2 if ord is None else ord, axes, keepdims)
    if len(axes) != 2 or axes[0] == axes[1]:
        raise InputError(f"norm expects one axis or two of {array!r}, got axes {axes} and ord={ord!r}.")
    return _measure_matrices(array, ord, axes, keepdims)


def _measure_vectors(array: SymbolicArray, ord: Any, axes: tuple[int, ...], keepdims: bool) -> SymbolicArray:
    if ord == 2:
        return reduce_node("ReduceL2", array, axes, keepdims)
    if ord == 1:
        return reduce_node("ReduceL1", array, axes, keepdims)
    if ord == 0:
        return sum(cast(not_equal(array, 0), array.dtype), axes, keepdims=keepdims)
    if isinstance(ord, str):
        raise InputError(f"norm of vectors takes a number as ord, got {ord!r}.")
    if np.isinf(ord):
        return (max if ord > 0 else min)(absolute(array), axes, keepdims)
    return power(sum(power(absolute(array), float(ord)), axes, keepdims=keepdims), 1 / ord)


def _measure_matrices(array: SymbolicArray, ord: Any, axes: tuple[int, ...], keepdims: bool) -> SymbolicArray:
    if ord in (None, "fro"):
        return reduce_node("ReduceL2", array, axes, keepdims)
    if ord not in (1, -1, np.inf, -np.inf):
        raise InputError(f"norm of matrices has ord None, 'fro', 1, -1, inf and -inf, got {ord!r}.")
    added, other = axes if ord in (1, -1) else axes[::-1]
    sums = reduce_node("ReduceL1", array, added, True)
    largest = (max if ord > 0 else min)(sums, (added, other), True)
    return largest if keepdims else largest.squeeze(axes)
