"""Plain arrays, of which operators are prepared as NumPy calls: dense floats that are computed as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeGuard

import numpy as np

from gpuexec.ir.operator import Array, Operator, PreparedCalls
from gpuexec.ir.prepared_calls import view_bytes
from gpuexec.ir.spec import TensorSpec, accumulator


def is_plain(x: Array | None, dtype: np.dtype[Any] | None = None) -> TypeGuard[Array]:
    """Return whether an array is there, dense, not empty, and of floats that are their own accumulators.

    Args:
        x: The array; None: absent.
        dtype: The type that it must have; None: any float.
    """
    if x is None or not x.size or not x.flags.c_contiguous:
        return False
    return x.dtype.kind == "f" and accumulator(x.dtype) == x.dtype and dtype in (None, x.dtype)


def make_dense(x: Array, y: Array) -> tuple[Array, list[Callable[[], object]]]:
    """Return a dense array with the elements of an input, which is the output where the input is not, and its calls."""
    if x.flags.c_contiguous:
        return x, []
    return y, [partial(np.copyto, y, x)]


def count_widened(operator: Operator, inputs: Sequence[TensorSpec | None], made: TensorSpec | None) -> list[int] | None:
    """Return the scratch of `prepare_widened`; None where the first input is not half or bfloat16."""
    x = inputs[0]
    if x is None or accumulator(x.dtype) == x.dtype or made is None:
        return None
    wide = TensorSpec(x.shape, accumulator(x.dtype))
    return [*operator.count_scratch((wide, *inputs[1:]), (wide,)), wide.nbytes]


def prepare_widened(
    operator: Operator,
    inputs: Sequence[Array | None],
    out: Sequence[Array | None],
    constant: Sequence[bool],
    scratch: Sequence[Array],
) -> PreparedCalls | None:
    """Return the calls of an operator on half or bfloat16, in float and rounded once; None where they are not that.

    It may write its first output over its first input, whose shape and type it has.
    """
    x, y = inputs[0], out[0]
    if x is None or y is None or x.dtype != y.dtype or accumulator(x.dtype) == x.dtype or not scratch:
        return None
    wide = view_bytes(scratch[-1], x.shape, accumulator(x.dtype))
    calls = operator.prepare((wide, *inputs[1:]), (wide, *out[1:]), constant, scratch[:-1])
    return None if calls is None else [partial(np.copyto, wide, x), *calls, partial(np.copyto, y, wide, "unsafe")]
