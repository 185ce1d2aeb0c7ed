"""Pointwise forms: what an operator computes of one element of each input, in NumPy and in CUDA C++."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Pointwise:
    """An operator on elements. Both forms take accumulators: float for half and bfloat16, else the element type.

    Attributes:
        function: ``function(*arrays, out=)`` over arrays that broadcast to ``out``, which may be the memory of an input
            of its shape and type. None for an input that is absent.
        code: C++ expression of the result, with ``{0}`` for the first input and ``{n0}`` for the first number; what it
            gives is rounded to the element type by whoever stores it. It uses the functors of the operator's kernel.
        dtype: Element type of the result.
        numbers: Attributes that the expression takes, as launch scalars of type float, which holds them.
    """

    function: Callable[..., Any]
    code: str
    dtype: np.dtype[Any]
    numbers: tuple[float, ...] = ()
