"""Row forms: what an operator computes of rows, as folds over their elements and expressions in CUDA C++."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class RowLine:
    """A line of what is computed of a row: a value of each element, of the row, or folded over all its elements.

    Expressions have ``{0}`` for the first input (an accumulator: float for half and bfloat16), ``{t0}`` for what the
    first line makes, ``{n0}`` for the first number, ``{column}`` and ``{columns}`` for the place in the row and its
    length, which are i64.

    Attributes:
        code: Expression of the value; of a fold, of what one element adds to it.
        fold: C++ type of a fold, with ``Partial``, ``identity`` and ``merge`` as those of ``folds.cuh``; else empty.
        finish: Of a fold, the expression of the row's value, with ``{p}`` for what is folded.
        is_of_row: Whether it is a value of the row without a fold, which uses no value of an element.
    """

    code: str
    fold: str = ""
    finish: str = "{p}"
    is_of_row: bool = False


@dataclass(frozen=True, slots=True)
class RowForm:
    """An operator on rows, which are the elements of its first input along the trailing axes.

    Its kernel gives a row to a team (`gpuexec.ops.lib.team`), each lane of which takes every lanes-th element in order.
    The first input is no wider than a row's elements, the others broadcast to it, or to the axes of rows alone.

    Attributes:
        axis: The first of the axes that a row lies along.
        lines: What is computed in order; the last one makes the result, which is rounded to the element type.
        work: C++ type that lines work in.
        dtype: Element type of the result.
        numbers: Attributes that the lines take, as doubles.
        read: Inputs whose content the lines hold, as axes; they are no operands.
        of_rows: Positions of inputs that broadcast to the axes in front of ``axis``: an element for each row.
        is_strided: Whether its kernel reads the first input as it lies, so that strides have a say in the team.
        variant: Number of the arithmetic, where extents choose it.
        has_blit: Whether its blit, if it has one, computes these lines too: folds go on from a row's first element.
    """

    axis: int
    lines: tuple[RowLine, ...]
    work: str
    dtype: np.dtype[Any]
    numbers: tuple[float, ...] = ()
    read: tuple[int, ...] = ()
    of_rows: tuple[int, ...] = ()
    is_strided: bool = False
    variant: int = 0
    has_blit: bool = True

    @property
    def is_reduced(self) -> bool:
        """Whether the result has one element for each row."""
        return bool(self.lines[-1].fold) or self.lines[-1].is_of_row
