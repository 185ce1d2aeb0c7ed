"""Tolerance check between two backends: the allowed error of an operator's output.

EXACT outputs, and all that are no floats, have the same bits (any NaN equals any NaN). ROUNDING allows 4 ulp of the
output type. REDUCTION allows ``n * eps(accumulator) * magnitudes`` and 1 ulp, where two things have to be bounded
without knowing the operator:

- ``n``, how many elements enter one output, is counted by marking an element in the middle of the largest input with
  a NaN: if ``f`` outputs show it, ``n`` is ``2 * f * inputs / outputs``. Twice, since elements need not enter equally
  many outputs (those of a running sum enter one to all). Where no output shows it, ``n`` is all of that input.
- ``magnitudes``, what the terms of an output add up to at most, is what the operator makes of absolute inputs, which
  is just that for sums of products, and beside it the largest input, for operators that scale (a softmax, a
  normalisation).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import ml_dtypes
import numpy as np

from gpuexec.ir.apply import compute_arrays
from gpuexec.ir.operator import Operator, Tolerance
from gpuexec.ir.spec import accumulator, dtype_row

Array = np.ndarray[Any, Any]
_ULPS = 4


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest error of an output: where, what was expected and got there, and what is allowed there.

    ``count`` elements differ by more than is allowed. An error is infinite where one of the two is no number.
    """

    index: tuple[int, ...]
    expected: float | int | bool
    got: float | int | bool
    error: float
    allowed: float
    count: int


def find_difference(
    operator: Operator, inputs: Sequence[Array | None], position: int, expected: Array, got: Array
) -> Difference | None:
    """Return how an output differs from what it should be, or None where it is as close as the operator promises.

    Args:
        operator: Whose tolerance counts.
        inputs: What the operator was given.
        position: Which of its outputs.
        expected: The output as it should be.
        got: The output in question, of the same shape and dtype.

    Raises:
        GpuexecError: The operator refuses inputs like those given.
    """
    is_same = (got == expected) | ((got != got) & (expected != expected))
    is_exact = operator.tolerance is Tolerance.EXACT or dtype_row(expected.dtype).kind != "float"
    if is_exact and dtype_row(expected.dtype).kind == "float":
        is_same &= (np.signbit(got) == np.signbit(expected)) | (got != got)
    if is_same.all():
        return None
    with np.errstate(all="ignore"):
        wide_got, wide_expected = got.astype(np.float64), expected.astype(np.float64)
        is_number = np.isfinite(wide_got) & np.isfinite(wide_expected)
        error = np.where(is_same, 0.0, np.where(is_number, np.abs(wide_got - wide_expected), np.inf))
        allowed = np.zeros(got.shape) if is_exact else _allow(operator, inputs, position, expected)
    is_wrong = ~is_same & ((error > allowed) | is_exact)
    if not is_wrong.any():
        return None
    worst = np.unravel_index(int(np.argmax(np.where(is_wrong, error, -1.0))), got.shape)
    return Difference(
        tuple([int(i) for i in worst]),
        expected[worst].item(),
        got[worst].item(),
        float(error[worst]),
        float(allowed[worst]),
        int(is_wrong.sum()),
    )


def count_terms(operator: Operator, inputs: Sequence[Array | None], position: int) -> int:
    """Return a bound of how many elements enter one element of an output; see the module docstring."""
    sizes = [array.size if _is_float(array) else 0 for array in inputs if array is not None]
    largest = max(sizes, default=0)
    if not largest:
        return max([array.size for array in inputs if array is not None], default=1)
    marked = list(inputs)
    place = next(
        i for i, array in enumerate(inputs) if _is_float(array) and array is not None and array.size == largest
    )
    marked[place] = copy = np.array(marked[place])
    # The middle of every axis, away from borders, where windows are cut off.
    copy[tuple([extent // 2 for extent in copy.shape])] = np.nan
    found = _compute(operator, marked, position)
    shown = int(np.count_nonzero(found != found))
    return -(-2 * shown * largest // found.size) if shown else largest


def _allow(operator: Operator, inputs: Sequence[Array | None], position: int, expected: Array) -> Array:
    dtype = expected.dtype
    limits: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    eps, tiny = float(limits.eps), float(limits.smallest_subnormal)
    size = _magnitude(expected)
    ulp = eps * size + tiny
    if operator.tolerance is Tolerance.ROUNDING:
        return _ULPS * ulp
    # A factor below zero would turn a sum of magnitudes into a difference.
    factors = {f.name: abs(getattr(operator, f.name)) for f in fields(operator) if f.name in ("alpha", "beta")}  # type: ignore[arg-type]
    absolute: Operator = replace(operator, **factors)  # type: ignore[type-var]
    sums = _compute(
        absolute, [array if array is None or not _is_float(array) else np.abs(array) for array in inputs], position
    )
    largest = max([float(_magnitude(a).max()) for a in inputs if a is not None and a.size and _is_float(a)], default=1)
    magnitudes = np.maximum(_magnitude(sums), size) + largest
    terms = count_terms(operator, inputs, position)
    return terms * float(np.finfo(accumulator(dtype)).eps) * magnitudes + ulp


def _compute(operator: Operator, inputs: Sequence[Array | None], position: int) -> Array:
    with np.errstate(all="ignore"):
        found = compute_arrays(operator, inputs)[position]
    assert found is not None
    return found


def _is_float(array: Array | None) -> bool:
    return array is not None and dtype_row(array.dtype).kind == "float"


def _magnitude(array: Array) -> Array:
    wide = np.abs(array.astype(np.float64))
    return np.where(np.isfinite(wide), wide, 0)
