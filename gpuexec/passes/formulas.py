"""Formulas in normal form: sums of products of powers, so that what is written in several ways is one.

A polynomial maps products to coefficients, and a product is a number of atoms with their exponents. Atoms are inputs
and what no arithmetic resolves: a function of polynomials, or a sum that is raised to a power. Products of sums are
multiplied out. The same operators on `Term` evaluate the nodes of a graph and the formulas that they are compared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Product = tuple[tuple[int, float], ...]
Polynomial = Mapping[Product, float]

_MAX_PRODUCTS = 24  # of a polynomial; longer ones are no formula of ours
_MAX_POWER = 4  # of a sum that is multiplied out
_INPUT, _BASE = "input", "base"
_ODD = ("Erf", "Tanh")  # f(-x) = -f(x)
_ONE: Product = ()


class TooLongError(Exception):
    """A polynomial has more products than any formula."""


@dataclass(frozen=True, slots=True)
class _Atom:
    """What is no sum and no product: a name and polynomials."""

    name: str
    arguments: tuple[Polynomial, ...]


class Algebra:
    """Terms whose atoms are numbered alike, so that they can be compared.

    Args:
        tolerance: Of numbers, over their size: how far those of one formula differ between spellings.
    """

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        self._atoms: list[_Atom] = []

    def input(self, index: int) -> Term:
        """Return an input by its number."""
        return self._make_atom(_INPUT, ({_ONE: float(index)},))

    def number(self, value: float) -> Term:
        """Return a number."""
        return Term(self, {_ONE: value} if value else {})

    def call(self, name: str, *arguments: Term | float) -> Term:
        """Return a function of terms."""
        first, *others = [self.take(each) for each in arguments]
        if name in _ODD and first.polynomial and first.polynomial[min(first.polynomial)] < 0:
            return -self.call(name, -first, *others)
        return self._make_atom(name, tuple([each.polynomial for each in (first, *others)]))

    def take(self, value: Term | float) -> Term:
        """Return a number as a term, and a term as it is."""
        return value if isinstance(value, Term) else self.number(value)

    def is_equal(self, first: Polynomial, second: Polynomial) -> bool:
        """Return whether two polynomials are the same but for the last bits of numbers."""
        return first.keys() == second.keys() and all(self.is_near(first[each], second[each]) for each in first)

    def is_near(self, first: float, second: float) -> bool:
        """Return whether two numbers are the same but for their last bits."""
        return abs(first - second) <= self._tolerance * max(abs(first), abs(second))

    def raise_to(self, polynomial: Polynomial, exponent: float) -> Polynomial:
        """Return a power."""
        is_whole = exponent == int(exponent)
        if exponent == 0 or not polynomial:
            return {} if exponent else {_ONE: 1.0}
        if len(polynomial) == 1:
            ((product, coefficient),) = polynomial.items()
            # (a ** 2) ** 0.5 is no a where that is negative.
            if is_whole or (coefficient > 0 and [power for _, power in product] in ([], [1.0])):
                return {tuple([(atom, power * exponent) for atom, power in product]): coefficient**exponent}
        if is_whole and 1 <= exponent <= _MAX_POWER:
            result = polynomial
            for _ in range(int(exponent) - 1):
                result = self.multiply(result, polynomial)
            return result
        return self.raise_to(self._make_atom(_BASE, (polynomial,)).polynomial, exponent)

    def add(self, first: Polynomial, second: Polynomial, sign: float = 1.0) -> Polynomial:
        """Return a sum; what cancels is gone."""
        result = dict(first)
        for product, coefficient in second.items():
            before = result.pop(product, 0.0)
            if not before or not self.is_near(before, -sign * coefficient):
                result[product] = before + sign * coefficient
        return _check(result)

    def multiply(self, first: Polynomial, second: Polynomial) -> Polynomial:
        """Return a product."""
        result: Polynomial = {}
        for left, size in first.items():
            result = self.add(result, {_join(left, right): size * other for right, other in second.items()})
        return result

    def _make_atom(self, name: str, arguments: tuple[Polynomial, ...]) -> Term:
        for number, atom in enumerate(self._atoms):
            is_like = atom.name == name and len(atom.arguments) == len(arguments)
            if is_like and all(map(self.is_equal, atom.arguments, arguments)):
                return Term(self, {((number, 1.0),): 1.0})
        self._atoms.append(_Atom(name, arguments))
        return Term(self, {((len(self._atoms) - 1, 1.0),): 1.0})


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """A polynomial with arithmetic."""

    algebra: Algebra
    polynomial: Polynomial

    @property
    def as_number(self) -> float | None:
        """Return the number it is; None: it is none."""
        return self.polynomial.get(_ONE, 0.0) if self.polynomial.keys() <= {_ONE} else None

    def equals(self, other: Term) -> bool:
        """Return whether another term is the same."""
        return self.algebra.is_equal(self.polynomial, other.polynomial)

    def __add__(self, other: Term | float) -> Term:
        return Term(self.algebra, self.algebra.add(self.polynomial, self.algebra.take(other).polynomial))

    def __sub__(self, other: Term | float) -> Term:
        return Term(self.algebra, self.algebra.add(self.polynomial, self.algebra.take(other).polynomial, -1.0))

    def __mul__(self, other: Term | float) -> Term:
        return Term(self.algebra, self.algebra.multiply(self.polynomial, self.algebra.take(other).polynomial))

    def __truediv__(self, other: Term | float) -> Term:
        return self * self.algebra.take(other) ** -1.0

    def __pow__(self, exponent: float) -> Term:
        return Term(self.algebra, self.algebra.raise_to(self.polynomial, exponent))

    def __neg__(self) -> Term:
        return self * -1.0

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: float) -> Term:
        return -self + other

    def __rtruediv__(self, other: float) -> Term:
        return self**-1.0 * other


def call(name: str, first: Term, *others: Term | float) -> Term:
    """Return a function of terms by its name."""
    return first.algebra.call(name, first, *others)


def _join(left: Product, right: Product) -> Product:
    powers = dict(left)
    for atom, power in right:
        powers[atom] = powers.get(atom, 0.0) + power
    return tuple(sorted((atom, power) for atom, power in powers.items() if power))


def _check(polynomial: Polynomial) -> Polynomial:
    if len(polynomial) > _MAX_PRODUCTS:
        raise TooLongError
    return polynomial
