"""Plain arrays, of which operators are prepared as NumPy calls: dense floats that are computed as they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeGuard

import numpy as np

from gpuexec.ir.operator import Array
from gpuexec.ir.spec import accumulator


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
