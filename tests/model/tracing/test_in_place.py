"""In-place operations and copies of symbolic arrays, as in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from tests.model.tracing.tracing import Array, check, check_devices, trace

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
I = np.arange(12).reshape(3, 4) - 5
U = np.arange(12, dtype=np.uint8)


@pytest.mark.parametrize(
    ("make", "array"),
    [
        (lambda x: x.astype(np.float32), X),
        (lambda x: x.flatten(), X[0]),
        (lambda x: +x, X),
        (lambda x: np.concatenate([x]), X),
        (lambda x: np.copy(x), X),
        (lambda x: np.round(x), I),
        (lambda x: np.floor(x), I),
        (lambda x: abs(x), U),
        (lambda x: np.nan_to_num(x), I),
    ],
    ids=["astype", "flatten", "positive", "concatenate", "copy", "round", "floor", "abs", "nan_to_num"],
)
def test_what_numpy_copies_is_an_array_of_its_own(make: Callable[..., Any], array: Array) -> None:
    def function(x: Any) -> Any:
        x = x.copy()
        y = make(x)
        y[0] = 99
        return x, y

    check(function, array)


def test_operators_in_place_change_the_array_under_all_its_names() -> None:
    def function(x: Any, y: Any) -> Any:
        x = x.copy()
        same = x
        x += 1
        x *= y
        x -= y[0]
        x /= 2
        x **= 2
        x[1] //= 0.5
        return x, same

    check(function, X, X.astype(np.float64))
    check_devices(function, X, X + 1, expected=function(X, X + 1))


def test_operators_in_place_make_scalars_anew() -> None:
    def function(x: Any) -> Any:
        total, n = x.sum(), x.shape[0]
        before, m = total, n
        total += 1.0
        n += 1
        return total, before, x * n, x * m

    check(function, X)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x, i: i.__iadd__(x), r"float64 can't be put in place into .*int64.*astype\('int64'\)"),
        (lambda x, i: x[0].__iadd__(x), "must keep the shape"),
    ],
)
def test_what_does_not_fit_in_place_is_refused(function: Any, message: str) -> None:
    with pytest.raises(gx.InputError, match=message):
        trace(function, X, I)


def test_arrays_are_sorted_filled_and_put_into_in_place() -> None:
    def function(x: Any) -> Any:
        x = x.copy()
        x.sort()
        rows = x.copy()
        rows.fill(2)
        np.put_along_axis(x, np.argmax(x, 1)[:, None], 0, 1)
        y = x.copy()
        y[...] = x[0]
        return x, rows, y

    check(function, X)


def test_branches_change_operands_of_their_own() -> None:
    def change(y: Any) -> Any:
        y[0] = 7
        return y

    def function(x: Any) -> Any:
        return gx.fn.cond(x.sum() > 100, change, change, x), x

    changed = X.copy()
    changed[0] = 7
    check_devices(function, X, expected=[changed, X])
