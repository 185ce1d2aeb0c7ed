"""Structs of kernel arguments with symbolic numbers: at any value, the bytes that `struct` gives for it."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from gpuexec.ir.kernel_values import (
    SymbolicBytes,
    SymbolicScalar,
    array_of,
    int32,
    int64,
    join_bytes,
    pack_struct,
    scalar,
    spell_integer,
    to_bytes,
)  # fmt: skip
from gpuexec.ir.symbolic_int import SymbolicInt, SymbolicTrace


def settle(packed: Any, trace: SymbolicTrace, extent: int) -> bytes:
    """Return the bytes at another value of the one variable."""
    assert isinstance(packed, SymbolicBytes)
    values = trace.compile([number for _, _, number in packed.fields])((extent,))
    assert values is not None
    data = bytearray(packed.data)
    for (at, form, _), value in zip(packed.fields, values, strict=True):
        struct.pack_into(f"<{form}", data, at, value)
    return bytes(data)


def make(n: Any) -> Any:
    head = pack_struct("<q2i", n, 2 * n, 7)
    parts = [b"abcd", pack_struct("<2Q2I", n, 2**63 + n, n, 0), pack_struct("<3q8x2i", 1, n + 1, 2, 3, n)]
    return head + join_bytes(parts) + bytes(3)


def test_bytes_are_those_of_the_value() -> None:
    trace = SymbolicTrace()
    packed = make(trace.variable(5))
    assert len(packed) == len(make(5)) and packed.data == make(5)
    assert settle(packed, trace, 77) == make(77)
    assert settle(packed[4:36], trace, 78) == make(78)[4:36]
    assert settle(b"12" + packed.ljust(200, b"\0"), trace, 6) == b"12" + make(6).ljust(200, b"\0")


def test_ints_alone_give_bytes() -> None:
    assert make(5).__class__ is bytes and int64(5).__class__ is np.int64 and int32(5).__class__ is np.int32
    assert array_of([1, 2]).dtype == np.int64 and scalar(np.uint8, 3).__class__ is np.uint8


def test_what_does_not_fit_is_refused_now_and_a_guard_later() -> None:
    trace = SymbolicTrace()
    n = trace.variable(2**20)
    with pytest.raises(OverflowError):
        int32(n * 2**12)
    with pytest.raises(struct.error):
        pack_struct("<i", n * 2**12)
    trace = SymbolicTrace()
    n = trace.variable(5)
    made = int32(n * 2**20)
    assert isinstance(made, SymbolicScalar) and made.dtype == np.int32
    evaluate = trace.compile([made.number])
    assert evaluate((2**11 - 1,)) is not None and evaluate((2**11,)) is None


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_content_of_each_type(dtype: str) -> None:
    trace = SymbolicTrace()
    n = trace.variable(5)
    content = array_of([n, 3, n + 1])
    assert content.dtype == object and isinstance(content[0], SymbolicInt)
    packed = to_bytes(content, np.dtype(dtype))
    assert settle(packed, trace, 9) == np.array([9, 3, 10], dtype).tobytes()
    assert struct.calcsize(f"<{spell_integer(np.dtype(dtype))}") == np.dtype(dtype).itemsize


def test_joined_by_bytes_themselves_is_an_error() -> None:
    packed = pack_struct("<q", SymbolicTrace().variable(5))
    with pytest.raises(TypeError):
        b"".join([b"a", packed])
