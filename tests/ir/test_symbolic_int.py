"""Symbolic extents: expressions give what ints give wherever the guards hold, and nothing escapes them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuexec.ir.geometry import ceil_div, round_up
from gpuexec.ir.symbolic_int import (
    MAX_GUARDS,
    MemoTable,
    SymbolicTrace,
    UnhashableExtentError,
    UntraceableError,
    memoize,
)

OPERATIONS: list[Callable[[Any, Any], Any]] = [
    operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.lshift, operator.rshift,
    operator.and_, operator.or_, operator.truediv, min, max, ceil_div, round_up,
]  # fmt: skip
Program = list[tuple[int, int, int]]


def run(program: Program, values: list[Any]) -> list[Any]:
    """Run operations, each on two results so far; those that can't be are left out, which is a question in itself."""
    results: list[Any] = [*values, 1, 2, 3, 7, 64]
    for number, first, second in program:
        a, b = results[first % len(results)], results[second % len(results)]
        function = OPERATIONS[number % len(OPERATIONS)]
        is_shift = function in (operator.lshift, operator.rshift)
        is_bitwise = is_shift or function in (operator.and_, operator.or_)
        if is_bitwise and (is_float(a) or is_float(b)):
            continue
        if (is_shift and not 0 <= b < 20) or (function is operator.lshift and not -1000 < a < 1000):
            continue
        if function not in (operator.add, operator.sub, operator.mul, min, max) and not is_bitwise and b == 0:
            continue
        results.append(function(a, b))
    return results


def is_float(number: Any) -> bool:
    return isinstance(getattr(number, "value", number), float)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 60), st.integers(0, 60)), max_size=25),
    st.tuples(st.integers(0, 300), st.integers(1, 9)),
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 9)), max_size=20),
)
def test_expressions_are_what_ints_give_where_guards_hold(
    program: Program, traced: tuple[int, int], others: list[tuple[int, int]]
) -> None:
    trace = SymbolicTrace()
    results = run(program, [trace.variable(extent) for extent in traced])
    symbols = [each for each in results if hasattr(each, "trace")]
    evaluate = trace.compile(symbols)
    for extents in (traced, *others):
        found = evaluate(extents)
        if extents == traced:
            assert found is not None
        if found is None:
            continue
        exact = run(program, list(extents))
        assert len(exact) == len(results)
        values = iter(found)
        for symbol, number in zip(results, exact, strict=True):
            got = next(values) if hasattr(symbol, "trace") else symbol
            assert got == number or (got != got and number != number)


def test_what_is_the_same_at_all_values_is_no_guard() -> None:
    trace = SymbolicTrace()
    n = trace.variable(5)
    assert (3 * n + 6) - 3 * n == 6 and n + 1 > n and n * 0 == 0 and not trace.guards
    assert 2 * (n + 1) - 2 is not n and (2 * n - n) is n
    assert n > 4 and n != 7 and len(trace.guards) == 2
    assert n > 4 and len(trace.guards) == 2


def test_digits_tie_the_trace_to_a_value() -> None:
    trace = SymbolicTrace()
    n = trace.variable(5)
    assert int(ceil_div(n, 4)) == 2 and not trace.tied
    evaluate = trace.compile([n])
    assert evaluate((8,)) == (8,) and evaluate((9,)) is None
    assert list(range(n)) == [0, 1, 2, 3, 4] and trace.tied == {"outside the package": 5}
    assert trace.compile([n])((6,)) is None
    for need in (float, str, np.int64, lambda each: [0] * each, math.sqrt):
        trace = SymbolicTrace()
        need(trace.variable(5))  # type: ignore[operator]
        assert trace.tied and trace.compile([])((4,)) is None and trace.compile([])((5,)) == ()


def test_sets_and_dictionaries_take_no_symbols() -> None:
    n = SymbolicTrace().variable(5)
    for use in (lambda: {n}, lambda: {(1, n): 2}, lambda: n in {5, 6}, lambda: {5: 1}.get(n)):
        with pytest.raises(UnhashableExtentError, match="5 is symbolic"):
            use()


def test_memos_find_an_expression_and_no_equal_number() -> None:
    trace = SymbolicTrace()
    n, memo = trace.variable(5), MemoTable[Any, str]()
    memo.keep((5,), "int")
    memo.keep((n,), "n")
    memo.keep((n + 1,), "n + 1")
    assert memo.get((n,)) == "n" and memo.get((1 + n,)) == "n + 1" and memo.get((5,)) == "int"
    assert memo.get((n * 2,)) is None and not trace.guards


def test_memoized_functions_remember_ints_alone() -> None:
    calls: list[Any] = []

    @memoize(8)
    def double(number: Any) -> Any:
        calls.append(number)
        return 2 * number

    n = SymbolicTrace().variable(5)
    assert [double(5), double(5)] == [10, 10] and len(calls) == 1
    assert double(n) is 2 * n and double(n) is 2 * n and len(calls) == 3


def test_guards_are_bounded() -> None:
    n = SymbolicTrace().variable(5)
    assert all(n != number + 6 for number in range(MAX_GUARDS))
    with pytest.raises(UntraceableError, match=str(MAX_GUARDS)):
        assert n != 5 + MAX_GUARDS + 1


def test_loops_over_counts_of_a_division_hold_for_all_of_a_count() -> None:
    trace = SymbolicTrace()
    n = trace.variable(130)
    assert len(list(range(ceil_div(n, 64)))) == 3
    evaluate = trace.compile([n * 2])
    assert [evaluate((each,)) for each in (128, 129, 192, 193)] == [None, (258,), (384,), None]


def test_floats_keep_the_order_of_their_operations() -> None:
    trace = SymbolicTrace()
    n = trace.variable(3)
    number = (n * 0.1 + 0.2) + 0.3
    evaluate = trace.compile([number, math.ceil(number), math.floor(number)])
    for extent in range(50):
        exact = (extent * 0.1 + 0.2) + 0.3
        assert evaluate((extent,)) == (exact, math.ceil(exact), math.floor(exact))
