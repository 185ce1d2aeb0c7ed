"""Values that go to a kernel by value: structs and scalars, whose numbers may be symbolic.

`pack_struct` is `struct.pack` and `int64` is `numpy.int64` where all numbers are ints. Where one is a `SymbolicInt`,
they give a `SymbolicBytes` or a `SymbolicScalar`, which know where in the bytes each expression stands; operators need
not tell them from bytes and scalars, and the annotations don't.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gpuexec.ir.symbolic_int import SymbolicInt

# A number within bytes: its offset, its type as `struct` spells it, and the expression.
Field = tuple[int, str, SymbolicInt]


class SymbolicBytes:
    """Bytes of a struct in which some numbers are symbolic: the bytes as they are now, and these numbers' places."""

    __slots__ = ("data", "fields")

    def __init__(self, data: bytes, fields: tuple[Field, ...]) -> None:
        self.data, self.fields = data, fields

    def __len__(self) -> int:
        return len(self.data)

    def __add__(self, other: bytes | SymbolicBytes) -> SymbolicBytes:
        data, fields = (other.data, other.fields) if isinstance(other, SymbolicBytes) else (other, ())
        start = len(self.data)
        return SymbolicBytes(self.data + data, (*self.fields, *((start + at, kind, n) for at, kind, n in fields)))

    def __radd__(self, other: bytes) -> SymbolicBytes:
        return SymbolicBytes(other, ()) + self

    def __getitem__(self, part: slice) -> SymbolicBytes:
        start, stop, _ = part.indices(len(self.data))
        fields = [(at - start, kind, n) for at, kind, n in self.fields if start <= at < stop]
        return SymbolicBytes(self.data[part], tuple(fields))

    def ljust(self, size: int, filler: bytes) -> SymbolicBytes:
        """Return the bytes with others behind them up to a size, as of bytes."""
        return SymbolicBytes(self.data.ljust(size, filler), self.fields)


class SymbolicScalar:
    """A NumPy scalar whose number is symbolic."""

    __slots__ = ("dtype", "number")

    def __init__(self, dtype: np.dtype[Any], number: SymbolicInt) -> None:
        self.dtype, self.number = dtype, number


def pack_struct(form: str, *values: Any) -> bytes:
    """Return the bytes of values, as `struct.pack` does.

    Raises:
        struct.error: A value does not fit its type.
    """
    if not any(value.__class__ is SymbolicInt for value in values):
        return struct.pack(form, *values)
    now = [value.value if isinstance(value, SymbolicInt) else value for value in values]
    data = struct.pack(form, *now)
    fields, order, at, given = [], form[0], 0, iter(values)
    assert order == "<", f"a struct of kernel arguments is little-endian without gaps, got {form!r}"
    for count, kind in re.findall(r"(\d*)([a-zA-Z?])", form[1:]):
        size = struct.calcsize(f"<{kind}")
        if kind in "xs":
            at += int(count or 1)
            if kind == "s":
                next(given)
            continue
        for _ in range(int(count) if count else 1):
            value = next(given)
            if isinstance(value, SymbolicInt):
                _check_fits(value, kind)
                fields.append((at, kind, value))
            at += size
    return SymbolicBytes(data, tuple(fields))  # type: ignore[return-value]


def unpack_struct(form: str, data: bytes | SymbolicBytes) -> tuple[Any, ...]:
    """Return the values that bytes begin with, as `struct.unpack_from` does; symbolic where they are."""
    if not isinstance(data, SymbolicBytes):
        return struct.unpack_from(form, data)
    symbols, values, at = {at: number for at, _, number in data.fields}, list(struct.unpack_from(form, data.data)), 0
    place = 0
    for count, kind in re.findall(r"(\d*)([a-zA-Z?])", form[1:]):
        size = struct.calcsize(f"<{kind}")
        if kind == "x":
            at += int(count or 1)
            continue
        for _ in range(int(count) if count else 1):
            values[place] = symbols.get(at, values[place])
            place, at = place + 1, at + size
    return tuple(values)


def join_bytes(parts: Iterable[bytes]) -> bytes:
    """Return bytes one after the other, as ``b"".join`` does."""
    rows: list[Any] = list(parts)
    if not any(isinstance(row, SymbolicBytes) for row in rows):
        return b"".join(rows)
    joined: Any = SymbolicBytes(b"", ())
    for row in rows:
        joined = joined + row
    return joined  # type: ignore[no-any-return]


def scalar(kind: type[np.generic], value: Any) -> Any:
    """Return a scalar argument of a type, which is the one that ints of 64 or 32 bits have where it is symbolic."""
    if not isinstance(value, SymbolicInt):
        return kind(value)
    return SymbolicScalar(np.dtype(kind), value) if np.dtype(kind).kind in "iu" else kind(int(value))


def array_of(numbers: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return an array of 64-bit integers; of objects where one is symbolic."""
    if not any(isinstance(number, SymbolicInt) for number in numbers):
        return np.array(numbers, np.int64)
    made = np.empty(len(numbers), object)
    made[:] = numbers
    return made


def to_bytes(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> bytes:
    """Return the content of an array of a type, or of objects that stand for numbers of it."""
    if array.dtype == dtype:
        return np.ascontiguousarray(array).tobytes()
    return pack_struct(f"<{array.size}{spell_integer(dtype)}", *array.reshape(-1).tolist())


def spell_integer(dtype: np.dtype[Any]) -> str:
    """Return an integer type as `struct` spells it."""
    char = "?bhiq"[(1, 2, 4, 8).index(dtype.itemsize) + 1] if dtype.kind != "b" else "?"
    return char.upper() if dtype.kind == "u" else char


def int64(value: Any) -> np.int64:
    """Return a scalar argument of 64 bits."""
    if not isinstance(value, SymbolicInt):
        return np.int64(value)
    return SymbolicScalar(_INT64, value)  # type: ignore[return-value]


def int32(value: Any) -> np.int32:
    """Return a scalar argument of 32 bits.

    Raises:
        OverflowError: It does not fit.
    """
    if not isinstance(value, SymbolicInt):
        return np.int32(value)
    _check_fits(value, "i")
    return SymbolicScalar(_INT32, value)  # type: ignore[return-value]


_INT64, _INT32 = np.dtype(np.int64), np.dtype(np.int32)
# Numbers that fit each type; 64 bits hold all that an extent can be.
_RANGES = {"i": (-(2**31), 2**31 - 1), "I": (0, 2**32 - 1), "h": (-(2**15), 2**15 - 1), "H": (0, 2**16 - 1)}


def _check_fits(value: SymbolicInt, kind: str) -> None:
    low, high = _RANGES.get(kind, (None, None))
    if low is not None and high is not None and not (low <= value and value <= high):
        raise OverflowError(f"{value} is outside {low} to {high}")
    if kind in "fd":
        value.trace.tie(value)
