"""Validation of data against type annotations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest

from gpuexec.ir.validate import find_invalid_field, is_of_type


@dataclass(frozen=True)
class Inner:
    number: int


@dataclass(frozen=True)
class Outer:
    inner: Inner | None
    rows: tuple[tuple[int, str], ...]
    dtype: np.dtype[Any]


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (1, int, True),
        (True, int, False),
        (1.0, int, False),
        (1, float, True),
        (2**64 - 1, int, True),
        (2**64, int, False),
        (-(2**63) - 1, int, False),
        (10**400, float, False),
        (True, float, False),
        ("a", str, True),
        (None, int | None, True),
        ("a", int | None, False),
        ((1, 2), tuple[int, ...], True),
        ((1, "2"), tuple[int, ...], False),
        ([1], tuple[int, ...], False),
        ((1, "a"), tuple[int, str], True),
        ((1,), tuple[int, str], False),
        ("x", Literal["x", "y"], True),
        ("z", Literal["x", "y"], False),
        (True, Literal[1], False),
        (1.0, Literal[1], False),
        (object(), Any, True),
        (np.dtype(np.int8), np.dtype[Any], True),
        (8, np.dtype[Any], False),
        (Inner(1), Inner, True),
        (Inner("1"), Inner, False),  # type: ignore[arg-type]
    ],
)
def test_value_is_of_a_type(value: Any, hint: Any, expected: bool) -> None:
    assert is_of_type(value, hint) is expected


def test_first_field_that_does_not_fit_is_named() -> None:
    dtype = np.dtype(np.int8)
    assert find_invalid_field(Outer(Inner(1), ((1, "a"),), dtype)) is None
    assert find_invalid_field(Outer(None, ((1, 2),), dtype)) == "rows"  # type: ignore[arg-type]
    assert find_invalid_field(Outer(Inner(True), (), dtype)) == "inner"
