"""Conversion between numbers and strings, as Cast defines it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.operator import Array
from gpuexec.ir.spec import STRING, dtype_row, dtypes_of

_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|[+-]?inf(inity)?|[+-]?nan", re.IGNORECASE)
_MAX_DIGITS = 1000  # Python refuses to read integers of some thousands
_TRUTHS = {"true": True, "false": False}


def write_numbers(x: Array) -> Array:
    """Return numbers as text: integers in full, bools as 1 and 0, floats in the fewest digits that distinguish them.

    Floats have no exponent and at least one digit behind the point; those that are no numbers are NaN, INF and -INF.
    bfloat16 and what is narrower are written as the float32 that they equal.
    """
    row = dtype_row(x.dtype)
    if row.is_float:
        wide = x if x.dtype in (np.float16, np.float64) else x.astype(np.float32)
        written = [_write_float(number) for number in wide.reshape(-1)]
    else:
        # A bool as its number is what every type reads back.
        whole = x.astype(np.int64) if row.is_narrow or row.kind == "bool" else x
        written = [str(number) for number in whole.reshape(-1).tolist()]
    return _shape(written, STRING, x.shape)


def read_numbers(x: Array, to: np.dtype[Any]) -> Array:
    """Return text as numbers: plain ones, those with an exponent, and NaN, INF, +INF and -INF in any case.

    Fractions are truncated for integers. bool takes true and false too.

    Raises:
        InputError: A text is no number, or one that the integer type does not have.
    """
    return _shape([_read(text, to) for text in x.reshape(-1).tolist()], to, x.shape)


def _write_float(number: Any) -> str:
    if np.isfinite(number):
        return np.format_float_positional(number, unique=True, trim="0")
    return "NaN" if np.isnan(number) else "INF" if number > 0 else "-INF"


def _read(text: str, to: np.dtype[Any]) -> Any:
    stripped = text.strip()
    name = dtype_row(to).name
    if to == np.bool_ and stripped.lower() in _TRUTHS:
        return _TRUTHS[stripped.lower()]
    if not _DECIMAL.fullmatch(stripped):
        raise InputError(f"expected the text of a number to convert to {name}, got {text[:40]!r}.")
    if to == np.bool_:
        return float(stripped) != 0
    if to in dtypes_of("float"):
        return float(stripped)
    is_whole = _INTEGER.fullmatch(stripped) and len(stripped) < _MAX_DIGITS
    number = int(stripped) if is_whole else float(stripped)
    limits = np.iinfo(to)
    if not limits.min - 1 < number < limits.max + 1:
        raise InputError(f"expected the text of a number of {name}, got {text[:40]!r}.")
    return int(number)


def _shape(elements: list[Any], dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    with np.errstate(all="ignore"):
        return np.array(elements, dtype).reshape(shape)
