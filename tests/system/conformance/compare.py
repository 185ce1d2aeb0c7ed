"""Strict comparison of outputs with a case's expected ones: containers, dtype and shape exactly, then elements.

Floats may differ by the case's tolerance; integers, bools and strings must be equal, float8 and sub-byte types to the
bit. Any NaN equals any NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto, numpy_helper

Array = np.ndarray[Any, Any]

_WIDE_FLOATS = (np.float16, np.float32, np.float64)
_BFLOAT16_RTOL = 2.0**-6  # two units in the last place


def find_difference(expected: Any, got: Any, rtol: float, atol: float, where: str = "") -> str | None:
    """Return the first difference in words, or None if ``got`` is as expected.

    Args:
        expected: An array, NumPy scalar or TensorProto; None; or a list or dict of such.
        got: What an engine gave.
        rtol: Relative tolerance of floats of 16 bits and more; at least 2**-6 for bfloat16.
        atol: Absolute tolerance of the same.
        where: What is compared, for the answer.
    """
    if expected is None:
        return None if got is None else f"{where}: expected None, got {_describe(got)}"
    if isinstance(expected, (list, tuple)):
        if not isinstance(got, (list, tuple)) or len(got) != len(expected):
            return f"{where}: expected {_describe(expected)}, got {_describe(got)}"
        pairs = enumerate(zip(expected, got, strict=True))
        found = (find_difference(want, have, rtol, atol, f"{where}[{index}]") for index, (want, have) in pairs)
        return next(filter(None, found), None)
    if isinstance(expected, Mapping):
        if not isinstance(got, Mapping) or set(got) != set(expected):
            return f"{where}: expected {_describe(expected)}, got {_describe(got)}"
        found = (find_difference(want, got[key], rtol, atol, f"{where}[{key!r}]") for key, want in expected.items())
        return next(filter(None, found), None)
    if not isinstance(got, np.ndarray):
        return f"{where}: expected an array, got {_describe(got)}"
    wanted = numpy_helper.to_array(expected) if isinstance(expected, TensorProto) else np.asarray(expected)
    difference = _compare_arrays(wanted, got, rtol, atol)
    return difference and f"{where}: {difference}"


def _compare_arrays(wanted: Array, got: Array, rtol: float, atol: float) -> str | None:
    if _is_text(wanted) != _is_text(got) or (not _is_text(wanted) and wanted.dtype != got.dtype):
        return f"expected {_describe(wanted)}, got {_describe(got)}"
    if wanted.shape != got.shape:
        return f"expected {_describe(wanted)}, got {_describe(got)}"
    if _is_text(wanted):
        is_equal = np.array([_decode(a) == _decode(b) for a, b in zip(wanted.flat, got.flat, strict=True)], bool)
    else:
        is_equal = _match(wanted, got, rtol, atol).reshape(-1)
    if is_equal.all():
        return None
    index = np.unravel_index(int(np.argmin(is_equal)), wanted.shape)
    place = f" at {[int(i) for i in index]}" if index else ""
    return (
        f"{int((~is_equal).sum())} of {wanted.size} elements differ ({wanted.dtype.name});"
        f" expected {wanted[index]!s}{place}, got {got[index]!s}"
    )


def _match(wanted: Array, got: Array, rtol: float, atol: float) -> Array:
    """Return which elements agree."""
    if wanted.dtype.kind in "biu":
        return np.equal(wanted, got)
    if wanted.dtype == ml_dtypes.bfloat16:
        rtol = max(rtol, _BFLOAT16_RTOL)
        wanted, got = wanted.astype(np.float32), got.astype(np.float32)
    elif wanted.dtype.kind == "c" or wanted.dtype in _WIDE_FLOATS:
        pass
    else:
        # float32 holds every float8, float4 and sub-byte integer, the sign of zero too.
        wanted, got = wanted.astype(np.float32), got.astype(np.float32)
        return np.asarray((wanted.view(np.uint32) == got.view(np.uint32)) | (np.isnan(wanted) & np.isnan(got)))
    return np.asarray(np.isclose(got, wanted, rtol=rtol, atol=atol, equal_nan=True))


def _is_text(array: Array) -> bool:
    return array.dtype.kind in "OSUT"


def _decode(item: Any) -> str:
    return item.decode() if isinstance(item, bytes) else str(item)


def _describe(item: Any) -> str:
    if isinstance(item, np.ndarray):
        return f"{'str' if _is_text(item) else item.dtype.name}{list(item.shape)}"
    if isinstance(item, (list, tuple)):
        return f"a list of {len(item)}"
    if isinstance(item, Mapping):
        return f"a dict of {sorted(map(str, item))}"
    return "None" if item is None else f"a {type(item).__name__}"
