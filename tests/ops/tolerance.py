"""Tolerances between implementations of an operator, by its tolerance class."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuexec.ir.operator import Operator, Tolerance
from gpuexec.ir.spec import BFLOAT16, TensorSpec, accumulator, dtype_row

Array = np.ndarray[Any, Any]

# Sums of products: the sum of magnitudes that enter an output is what the operator makes of absolute values.
_SUMS = frozenset(
    ("MatMul", "Gemm", "Conv", "ConvTranspose", "AveragePool", "GlobalAveragePool", "LpPool", "GlobalLpPool")
    + ("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "Einsum", "com.microsoft.FusedMatMul")
)


def assert_close(
    label: str, op: Operator, inputs: Sequence[Array | None], index: int, got: Array | None, expected: Array, terms: int
) -> None:
    """Compare output ``index`` by the operator's tolerance class; dtype and shape are exact.

    ``terms`` is the number of elements that enter one output (REDUCTION).
    """
    assert got is not None, f"{label} is missing"
    assert got.dtype == expected.dtype and got.shape == expected.shape, (
        f"{label} is {TensorSpec(got.shape, got.dtype)}, expected {TensorSpec(expected.shape, expected.dtype)}"
    )
    is_narrow = dtype_row(got.dtype).is_narrow
    if is_narrow and op.tolerance is Tolerance.REDUCTION:  # a sum near 0 has the sign that its order gives it
        got, expected = (np.where(each == 0, each.dtype.type(0), each) for each in (got, expected))
    if op.tolerance is Tolerance.EXACT or got.dtype.kind in "biu" or is_narrow:
        np.testing.assert_array_equal(to_bits(got), to_bits(expected), err_msg=label)
        return
    a, b = got.astype(np.float64), expected.astype(np.float64)
    special = ~np.isfinite(b) | ~np.isfinite(a)
    np.testing.assert_array_equal(a[special], b[special], err_msg=label)
    allowed = allow(op, inputs, index, expected, terms)
    excess = np.where(special, 0, np.abs(np.where(special, 0, a) - np.where(special, 0, b)) - allowed)
    worst = int(np.argmax(excess)) if excess.size else 0
    assert not excess.size or excess.flat[worst] <= 0, (
        f"{label}: element {worst} is {a.flat[worst]!r}, expected {b.flat[worst]!r}, "
        f"allowed difference {np.broadcast_to(allowed, a.shape).flat[worst]:.3g}"
    )


def allow(op: Operator, inputs: Sequence[Array | None], index: int, expected: Array, terms: int) -> Array:
    """Return how far each element of an output may be from ``expected``."""
    dtype = expected.dtype
    eps = 2.0**-7 if dtype == BFLOAT16 else float(np.finfo(dtype).eps)
    tiny = 2.0**-133 if dtype == BFLOAT16 else float(np.finfo(dtype).smallest_subnormal)
    size = _magnitude(expected)
    if op.tolerance is Tolerance.ROUNDING:
        return 4 * (eps * size + tiny)
    return terms * float(np.finfo(accumulator(dtype)).eps) * sum_magnitudes(op, inputs, index, size) + eps * size + tiny


def sum_magnitudes(op: Operator, inputs: Sequence[Array | None], index: int, size: Array) -> Array:
    """Return the sum of the magnitudes that enter each element of an output whose own magnitude is ``size``.

    Of sums of products it is computed. Of other operators (a softmax, a normalisation, an error function) the largest
    input stands for what enters, and the output for what it is scaled to.
    """
    if op.name in _SUMS:
        factors = {f.name: abs(getattr(op, f.name)) for f in dataclasses.fields(op) if f.name in ("alpha", "beta")}  # type: ignore[arg-type]
        with np.errstate(all="ignore"):
            absolute = [x if x is None or x.dtype.kind in "biu" else np.abs(x) for x in inputs]
            found = dataclasses.replace(op, **factors).compute(*absolute)[index]  # type: ignore[type-var]
        assert found is not None
        return np.maximum(_magnitude(found), size)
    floats = [x for x in inputs if x is not None and x.dtype.kind in "fV" and x.size]
    return size + max((float(_magnitude(x).max()) for x in floats), default=1.0)


def to_bits(array: Array) -> Array:
    """Return the array with every NaN made the same, as integers of its width where it is a float."""
    if array.dtype.kind in "biu":
        return array
    plain = np.ascontiguousarray(array)
    if dtype_row(plain.dtype).is_narrow:
        return np.where(plain != plain, np.uint16(0x100), plain.view(np.uint8))
    plain = np.where(plain != plain, np.array(np.nan, plain.dtype), plain).astype(plain.dtype)
    return plain.view(np.dtype(f"u{plain.dtype.itemsize}"))


def _magnitude(array: Array) -> Array:
    wide = np.abs(array.astype(np.float64))
    return np.where(np.isfinite(wide), wide, 0)
