"""Formulas in normal form: what is written in several ways is one, and what is another value is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuexec.passes.formulas import Algebra, Term, TooLongError, call

Written = Callable[[Term, Term], Term]


def write(first: Written, second: Written) -> tuple[Term, Term]:
    algebra = Algebra(1e-6)
    x, y = algebra.input(0), algebra.input(1)
    return first(x, y), second(x, y)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda x, y: x * y + 3, lambda x, y: 3 + y * x),
        (lambda x, y: x / 2, lambda x, y: 0.5 * x),
        (lambda x, y: x**3, lambda x, y: x * x * x),
        (lambda x, y: (x - y) ** 2, lambda x, y: x * x + y * y - 2 * x * y),
        (lambda x, y: 1 / (x + y) ** 0.5, lambda x, y: (y + x) ** -0.5),
        (lambda x, y: x / (x * x + 1e-5) ** 0.5, lambda x, y: (1 / (1e-5 + x**2) ** 0.5) * x),
        (lambda x, y: call("Erf", x / 2) + 1, lambda x, y: 1 + call("Erf", x * 0.5)),
        (lambda x, y: x * (1 + 0.25 * x * x), lambda x, y: x + 0.25 * x**3),
        (lambda x, y: x * 0.7071067, lambda x, y: x * 0.70710678),
        (lambda x, y: -(x - y), lambda x, y: y - x),
        (lambda x, y: 1 - call("Erf", -x / 2), lambda x, y: 1 + call("Erf", x / 2)),
        (lambda x, y: x**0.0, lambda x, y: y - y + 1),
    ],
)
def test_spellings_of_one_value_are_equal(first: Written, second: Written) -> None:
    left, right = write(first, second)
    assert left.equals(right)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda x, y: x + y, lambda x, y: x - y),
        (lambda x, y: call("Erf", x), lambda x, y: call("Tanh", x)),
        (lambda x, y: call("Erf", x), lambda x, y: call("Erf", y)),
        (lambda x, y: call("Erf", x), lambda x, y: call("Erf", x, 1.0)),
        (lambda x, y: x * 0.7071067, lambda x, y: x * 0.70711),
        (lambda x, y: (x * x) ** 0.5, lambda x, y: x),
        (lambda x, y: (-x) ** 0.5, lambda x, y: x**0.5),
        (lambda x, y: (x + 1e-5) ** 0.5, lambda x, y: (x + 1e-6) ** 0.5),
        (lambda x, y: call("Exp", -x), lambda x, y: -call("Exp", x)),
        (lambda x, y: call("Mean", x) ** 2, lambda x, y: call("Mean", x**2)),
    ],
)
def test_other_values_are_not(first: Written, second: Written) -> None:
    left, right = write(first, second)
    assert not left.equals(right)


def test_numbers_are_known() -> None:
    algebra = Algebra(1e-6)
    assert (algebra.number(3) * 0.5 - 1).as_number == 0.5
    assert (algebra.number(2) - 2).as_number == 0
    assert algebra.input(0).as_number is None


def test_what_grows_too_long_is_given_up() -> None:
    algebra = Algebra(1e-6)
    x = algebra.number(1)
    for index in range(4):
        x = x + algebra.input(index)
    with pytest.raises(TooLongError):
        x**3 * (x + algebra.input(9))
