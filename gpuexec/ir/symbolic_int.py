"""Symbolic extents: integers that carry how they were computed, and what was asked of them on the way.

A `SymbolicInt` is no int. Arithmetic makes another one; a comparison answers for the value at hand and notes a *guard*,
what was asked and the answer. What needs the digits themselves (an index, a text) ties the trace to this one value. So
code that ran once with symbolic extents would take the same way at every other value for which the guards hold, and its
results there are the expressions' values: nothing is sampled, nothing guessed.

    trace = SymbolicTrace()
    n = trace.variable(512)
    rows = ceil_div(n * 12, 64)         # a SymbolicInt
    if rows > 4: ...                    # a guard
    evaluate = trace.compile([rows])    # evaluate((513,)) -> (97,), or None where a guard fails
"""

from __future__ import annotations

import functools
import math
import operator
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import FrameType
from typing import Any, Generic, TypeVar

import numpy as np

_ROOM = os.path.join(os.path.dirname(__file__), "")
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
# Guards that a trace may note; with more, evaluating them would cost what planning anew does.
MAX_GUARDS = 4000

# Sum of multiples of expressions that are not linear themselves: ((number, factor), ...) in order, and a constant.
_Linear = tuple[tuple[tuple[int, int], ...], int]
# An operation and its operands: numbers of expressions, and ints in a tuple of one.
_Row = tuple[str, tuple[Any, ...]]
# A comparison of two operands.
_Guard = tuple[str, Any, Any]
Evaluate = Callable[[Sequence[int]], "tuple[int, ...] | None"]


class UntraceableError(Exception):
    """Symbolic code can't go on: too many guards."""


class UnhashableExtentError(TypeError):
    """A symbolic extent was looked up where values decide; see `memoize` and `MemoTable`."""


class SymbolicTrace:
    """The expressions of one run of symbolic code, and its guards.

    Attributes:
        tied: The value of extents whose digits were needed, by the function that needed them: the trace holds for these
            alone. Of what is computed by divisions, many extents may have one value, so that is a guard like another.
    """

    def __init__(self) -> None:
        self._variables = 0
        self._rows: list[_Row] = []  # in the order of computation
        self._known: dict[_Row, Symbolic] = {}
        self._guards: dict[_Guard, bool] = {}
        self.tied: dict[str, int] = {}

    @property
    def guards(self) -> list[str]:
        """Return the guards as text."""
        return [_show(self._rows, guard, answer) for guard, answer in self._guards.items()]

    def variable(self, value: int) -> SymbolicInt:
        """Return the next variable, with its value in this run."""
        self._variables += 1
        made: SymbolicInt = self._make("variable", (self._variables - 1,), value, None)
        return made

    def compile(self, results: Sequence[SymbolicInt]) -> Evaluate:
        """Return a function from values of the variables to those of the results; None where a guard fails."""
        return _compile(self._rows, self._guards, [each.number for each in results])

    def apply(self, name: str, a: Any, b: Any) -> Any:
        """Return the result of a binary operation, simplified where it is linear."""
        value = _OPERATIONS[name](_value(a), _value(b))
        linear = _combine(name, a, b)
        if linear is None:
            return a if name == "//" and b == 1 else self._make(name, (_operand(a), _operand(b)), value, None)
        terms, constant = linear
        if not terms:
            return constant
        if constant == 0 and len(terms) == 1 and terms[0][1] == 1:
            return self._make(*self._rows[terms[0][0]], value, None)
        return self._make("linear", (*terms, constant), value, linear)

    def bit_length(self, a: SymbolicInt) -> SymbolicInt:
        """Return the bits of a number."""
        made: SymbolicInt = self._make("bits", (a.number,), a.value.bit_length(), None)
        return made

    def note(self, name: str, a: Symbolic, b: Any) -> bool:
        """Answer a comparison, and note it where the answer may be another elsewhere."""
        answer = _COMPARISONS[name](a.value, _value(b))
        difference = _combine("-", a, b)
        if difference is None or difference[0]:
            guard = (name, a.number, _operand(b))
            if guard not in self._guards and len(self._guards) >= MAX_GUARDS:
                raise UntraceableError(f"more than {MAX_GUARDS} guards")
            self._guards[guard] = answer
        return answer

    def round(self, name: str, a: Symbolic) -> Any:
        """Return the next int above a float, or below it."""
        return self._make(name, (a.number,), math.ceil(a.value) if name == "ceil" else math.floor(a.value), None)

    def tie(self, a: Symbolic) -> Any:
        """Return the digits of an expression, and note that all holds for this value of it alone."""
        self.note("==", a, a.value)
        if len(a.linear[0]) != 1 or self._rows[a.linear[0][0][0]][0] == "variable":
            self.tied.setdefault(_find_place(), a.value)
        return a.value

    def _make(self, name: str, operands: tuple[Any, ...], value: Any, linear: _Linear | None) -> Any:
        row = (name, operands)
        found = self._known.get(row)
        if found is None:
            number = len(self._rows)
            kind = Symbolic if isinstance(value, float) else SymbolicInt
            found = self._known[row] = kind(value, number, linear or (((number, 1),), 0), self)
            self._rows.append(row)
        return found


class Symbolic:
    """A number that carries how it was computed; see the module.

    Attributes:
        value: What it is in this run.
        number: Of its expression within the trace.
        linear: The expression as a sum of multiples of others.
    """

    __slots__ = ("linear", "number", "trace", "value")

    def __init__(self, value: Any, number: int, linear: _Linear, trace: SymbolicTrace) -> None:
        self.value, self.number, self.linear, self.trace = value, number, linear, trace

    def __int__(self) -> int:
        return int(self.trace.tie(self))

    def __float__(self) -> float:
        return float(self.trace.tie(self))

    def __hash__(self) -> int:
        # A set or a dictionary that decides something by a miss would escape the guards.
        if not _hashing.is_allowed:
            raise UnhashableExtentError(f"the extent {self.value} is symbolic")
        return hash((self.number, "symbolic"))

    def __bool__(self) -> bool:
        return self.trace.note("!=", self, 0)

    def __str__(self) -> str:
        return str(self.trace.tie(self))

    def __repr__(self) -> str:
        return f"{self.value}~"

    def __neg__(self) -> Any:
        return self.trace.apply("*", self, -1)

    def __pos__(self) -> Symbolic:
        return self

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def __ceil__(self) -> Any:
        return -(self // -1) if isinstance(self, SymbolicInt) else self.trace.round("ceil", self)

    def __floor__(self) -> Any:
        return self if isinstance(self, SymbolicInt) else self.trace.round("floor", self)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __add__(self, other: Any) -> Any:
        return self.trace.apply("+", self, other) if _is_number(other) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return self.trace.apply("+", other, self) if _is_number(other) else NotImplemented

    def __sub__(self, other: Any) -> Any:
        return self.trace.apply("-", self, other) if _is_number(other) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return self.trace.apply("-", other, self) if _is_number(other) else NotImplemented

    def __mul__(self, other: Any) -> Any:
        return self.trace.apply("*", self, other) if _is_number(other) else NotImplemented

    def __rmul__(self, other: Any) -> Any:
        return self.trace.apply("*", other, self) if _is_number(other) else NotImplemented

    def __floordiv__(self, other: Any) -> Any:
        return self.trace.apply("//", self, other) if _is_number(other) else NotImplemented

    def __rfloordiv__(self, other: Any) -> Any:
        return self.trace.apply("//", other, self) if _is_number(other) else NotImplemented

    def __mod__(self, other: Any) -> Any:
        return self.trace.apply("%", self, other) if _is_number(other) else NotImplemented

    def __rmod__(self, other: Any) -> Any:
        return self.trace.apply("%", other, self) if _is_number(other) else NotImplemented

    def __lshift__(self, other: Any) -> Any:
        return self.trace.apply("<<", self, other) if _is_number(other) else NotImplemented

    def __rlshift__(self, other: Any) -> Any:
        return self.trace.apply("<<", other, self) if _is_number(other) else NotImplemented

    def __rshift__(self, other: Any) -> Any:
        return self.trace.apply(">>", self, other) if _is_number(other) else NotImplemented

    def __rrshift__(self, other: Any) -> Any:
        return self.trace.apply(">>", other, self) if _is_number(other) else NotImplemented

    def __and__(self, other: Any) -> Any:
        return self.trace.apply("&", self, other) if _is_number(other) else NotImplemented

    def __rand__(self, other: Any) -> Any:
        return self.trace.apply("&", other, self) if _is_number(other) else NotImplemented

    def __or__(self, other: Any) -> Any:
        return self.trace.apply("|", self, other) if _is_number(other) else NotImplemented

    def __ror__(self, other: Any) -> Any:
        return self.trace.apply("|", other, self) if _is_number(other) else NotImplemented

    def __pow__(self, other: Any) -> Any:
        return self.trace.apply("**", self, other) if _is_number(other) else NotImplemented

    def __rpow__(self, other: Any) -> Any:
        return self.trace.apply("**", other, self) if _is_number(other) else NotImplemented

    def __truediv__(self, other: Any) -> Any:
        return self.trace.apply("/", self, other) if _is_number(other) else NotImplemented

    def __rtruediv__(self, other: Any) -> Any:
        return self.trace.apply("/", other, self) if _is_number(other) else NotImplemented

    def __eq__(self, other: object) -> Any:
        return self.trace.note("==", self, other) if _is_number(other) else NotImplemented

    def __ne__(self, other: object) -> Any:
        return self.trace.note("!=", self, other) if _is_number(other) else NotImplemented

    def __lt__(self, other: Any) -> Any:
        return self.trace.note("<", self, other) if _is_number(other) else NotImplemented

    def __le__(self, other: Any) -> Any:
        return self.trace.note("<=", self, other) if _is_number(other) else NotImplemented

    def __gt__(self, other: Any) -> Any:
        return self.trace.note(">", self, other) if _is_number(other) else NotImplemented

    def __ge__(self, other: Any) -> Any:
        return self.trace.note(">=", self, other) if _is_number(other) else NotImplemented


class SymbolicInt(Symbolic):
    """A symbolic extent."""

    __slots__ = ()

    def __index__(self) -> int:
        return int(self.trace.tie(self))

    def bit_length(self) -> SymbolicInt:
        """Return the number of bits, as of an int."""
        return self.trace.bit_length(self)


_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "&": operator.and_,
    "|": operator.or_,
    "**": operator.pow,
    "/": operator.truediv,
}
_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


_Function = TypeVar("_Function", bound=Callable[..., Any])


def memoize(count: int) -> Callable[[_Function], _Function]:
    """Return a decorator that remembers that many results, as `functools.lru_cache`, but none of symbolic numbers."""

    def decorate(function: _Function) -> _Function:
        remembered = functools.lru_cache(count)(function)

        @functools.wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            try:
                return remembered(*given, **named)
            except UnhashableExtentError:
                return function(*given, **named)

        return call  # type: ignore[return-value]

    return decorate


_Item = TypeVar("_Item")


def distinct(items: Iterable[_Item]) -> list[_Item]:
    """Return items, each once, in order of first appearance; they may hold symbolic numbers, which sets don't take."""
    found: list[_Item] = []
    for item in items:
        if item not in found:
            found.append(item)
    return found


_Key = TypeVar("_Key")
_Result = TypeVar("_Result")


class _Hashing(threading.local):
    is_allowed = False


_hashing = _Hashing()


class MemoTable(Generic[_Key, _Result]):
    """A memo table: by keys that may hold symbolic numbers, which are the same where their expressions are.

    What is missed must be made anew, and come out the same.
    """

    def __init__(self) -> None:
        self._rows: dict[_Key, _Result] = {}

    def get(self, key: _Key) -> _Result | None:
        """Return what was kept; None: nothing."""
        _hashing.is_allowed = True
        try:
            return self._rows.get(key)
        finally:
            _hashing.is_allowed = False

    def keep(self, key: _Key, result: _Result) -> None:
        """Keep a result."""
        _hashing.is_allowed = True
        try:
            self._rows[key] = result
        finally:
            _hashing.is_allowed = False


def _is_number(item: object) -> bool:
    return isinstance(item, int | float | Symbolic | np.integer)


def _value(item: Any) -> Any:
    return item.value if isinstance(item, Symbolic) else item if isinstance(item, float) else int(item)


def _operand(item: Any) -> Any:
    return item.number if isinstance(item, Symbolic) else (_value(item),)


def _combine(name: str, a: Any, b: Any) -> _Linear | None:
    """Return the linear form of a sum, a difference, or a product with an int; None: it has none.

    Floats have none: the order of their operations decides what they round to.
    """
    if isinstance(_value(a), float) or isinstance(_value(b), float):
        return None
    (terms, constant), (others, beside) = (
        each.linear if isinstance(each, Symbolic) else ((), int(each)) for each in (a, b)
    )
    if name == "*" and not (terms and others):
        if others:
            terms, constant, beside = others, beside, constant
        return tuple([(number, factor * beside) for number, factor in terms if beside]), constant * beside
    if name not in ("+", "-"):
        return None
    sign = 1 if name == "+" else -1
    sums = dict(terms)
    for number, factor in others:
        sums[number] = sums.get(number, 0) + sign * factor
    return tuple(sorted([(number, factor) for number, factor in sums.items() if factor])), constant + sign * beside


def _find_place() -> str:
    """Return the function that asks: the innermost of the package, but for those of this room."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_PACKAGE) and not name.startswith(_ROOM):
            return f"{name.removeprefix(_PACKAGE)}:{frame.f_code.co_qualname}"
        frame = frame.f_back
    return "outside the package"


def _compile(rows: Sequence[_Row], guards: Mapping[_Guard, bool], results: Sequence[int]) -> Evaluate:
    """Return the function of `SymbolicTrace.compile`; a guard stands as early as what it compares is known."""
    asked: dict[int, list[str]] = {}
    for guard, answer in guards.items():
        last = max(each for each in guard[1:] if isinstance(each, int))
        asked.setdefault(last, []).append(f"    if {'not ' if answer else ''}({_write(guard)}): return None")
    lines = ["def evaluate(values):"]
    compared = [each for guard in guards for each in guard[1:] if isinstance(each, int)]
    for number in _find_needed(rows, {*results, *compared}):
        lines.append(f"    v{number} = {_write(rows[number])}")
        lines += asked.get(number, [])
    lines.append(f"    return ({''.join(f'v{number}, ' for number in results)})")
    made: dict[str, Any] = {"ceil": math.ceil, "floor": math.floor}
    exec("\n".join(lines), made)
    evaluate: Evaluate = made["evaluate"]
    return evaluate


def _find_needed(rows: Sequence[_Row], wanted: AbstractSet[int]) -> list[int]:
    """Return the expressions that others are computed from, and these, in order."""
    found: set[int] = set()
    stack = list(wanted)
    while stack:
        number = stack.pop()
        if number not in found:
            found.add(number)
            name, operands = rows[number]
            if name == "linear":
                stack += [each for each, _ in operands[:-1]]
            elif name != "variable":
                stack += [each for each in operands if isinstance(each, int)]
    return sorted(found)


def _write(row: _Row | _Guard) -> str:
    """Return an expression or a guard over the local variables of the compiled function."""
    name, *rest = row
    operands = rest[0] if isinstance(rest[0], tuple) and len(rest) == 1 else rest
    return _join(name, operands, lambda number: f"v{number}")


def _show(rows: Sequence[_Row], guard: _Guard, answer: bool) -> str:
    """Return a guard as text over the variables n0, n1, ..."""

    def spell(number: int) -> str:
        name, operands = rows[number]
        return f"n{operands[0]}" if name == "variable" else f"({_join(name, operands, spell)})"

    text = _join(guard[0], guard[1:], spell)
    return text if answer else f"not ({text})"


def _join(name: str, operands: Sequence[Any], spell: Callable[[int], str]) -> str:
    if name == "variable":
        return f"values[{operands[0]}]"
    if name == "linear":
        terms = [spell(each) if factor == 1 else f"{factor} * {spell(each)}" for each, factor in operands[:-1]]
        return " + ".join([*terms, *([str(operands[-1])] if operands[-1] else [])])
    if name == "bits":
        return f"{spell(operands[0])}.bit_length()"
    if name in ("ceil", "floor"):
        return f"{name}({spell(operands[0])})"
    first, second = (spell(each) if isinstance(each, int) else repr(each[0]) for each in operands)
    return f"{first} {name} {second}"
