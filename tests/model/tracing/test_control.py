"""Branches and loops traced from functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from tests.model.tracing.tracing import check_devices, compute, trace

fn = gx.fn
X = np.arange(12, dtype=np.float32).reshape(3, 4) - 5


def test_cond_computes_one_branch_with_what_is_around() -> None:
    def function(x: Any, flag: Any) -> Any:
        scaled = x * 2

        def then(y: Any) -> Any:
            return {"a": y + scaled, "b": (y.sum(), 1.5)}

        result = fn.cond(flag.any(), then, lambda y: {"a": y - 1, "b": (scaled.max(), 2.5)}, x)
        return result["a"], *result["b"]

    true, false = np.array([False, True]), np.array([False, False])
    check_devices(function, X, true, expected=[X * 3, X.sum(), np.float64(1.5)])
    check_devices(function, X, false, expected=[X - 1, (X * 2).max(), np.float64(2.5)])


def test_cond_may_give_what_it_takes_and_stand_in_another() -> None:
    def function(x: Any) -> Any:
        deep = lambda y: fn.cond(y.min() < -3, lambda z: z * x, lambda z: z, y)
        return fn.cond(x.sum() > 0, deep, lambda y: y, x)

    check_devices(function, X, expected=X * X)
    check_devices(function, X - 10, expected=X - 10)
    check_devices(function, np.abs(X), expected=np.abs(X))


def test_while_loop_hands_on_until_its_condition_fails() -> None:
    def function(x: Any, limit: Any) -> Any:
        return fn.while_loop(lambda y, n: y.sum() < limit, lambda y, n: (y * 2, n + 1), (x, np.int64(0)))

    x, limit = np.abs(X), np.array(1000, np.float32)
    doubled, count = x, 0
    while doubled.sum() < limit:
        doubled, count = doubled * 2, count + 1
    check_devices(function, x, limit, expected=[doubled, np.int64(count)])
    check_devices(function, x, np.array(0, np.float32), expected=[x, np.int64(0)])


def test_while_loop_lets_an_extent_grow() -> None:
    def function(x: Any) -> Any:
        grown = fn.while_loop(lambda y: y.shape[0] < 20, lambda y: fn.concatenate([y, y * 2]), x)
        assert grown.dims == (None, 4)
        return grown

    wanted = X
    while wanted.shape[0] < 20:
        wanted = np.concatenate([wanted, wanted * 2])
    (got,) = compute(trace(function, X), X)
    np.testing.assert_array_equal(got, wanted)
    check_devices(function, X, expected=wanted)


def test_fori_loop_counts_from_low_to_high() -> None:
    def function(x: Any, n: Any) -> Any:
        fixed = fn.fori_loop(2, 5, lambda i, y: y + i, x)
        return fixed, fn.fori_loop(0, n, lambda i, y, s: (y + x[i % 3], s + i), (x[0] * 0, n * 0))

    def flat(x: Any, n: Any) -> Any:
        fixed, (rows, total) = function(x, n)
        return fixed, rows, total

    expected = [X + 9, X[[0, 1, 2, 0]].sum(0), np.int64(6)]
    check_devices(flat, X, np.array(4), expected=expected)


def test_scan_stacks_what_each_step_gives() -> None:
    def function(x: Any, w: Any) -> Any:
        def step(state: Any, rows: Any) -> Any:
            state = {"sum": state["sum"] + rows[0] * w, "count": state["count"] + 1}
            return state, (state["sum"] * 2, rows[1])

        last, (sums, copies) = fn.scan(step, {"sum": x[0] * 0, "count": np.float32(0)}, (x, x + 1))
        return last["sum"], last["count"], sums, copies

    w = np.array([1, -1, 2, 0.5], np.float32)
    sums = np.cumsum(X * w, 0)
    check_devices(function, X, w, expected=[sums[-1], np.float32(3), sums * 2, X + 1])

    def backwards(x: Any) -> Any:
        return fn.scan(lambda s, row: (s + row, s + row), x[0] * 0, x, reverse=True)[1]

    check_devices(backwards, X, expected=np.cumsum(X[::-1], 0)[::-1])


def test_bodies_are_saved_and_read_again(tmp_path: Any) -> None:
    def function(x: Any) -> Any:
        scaled = x * 3
        total = fn.scan(lambda s, row: (s + row, row * scaled[0]), x[0] * 0, x)[1]
        return fn.cond(x.sum() > 0, lambda: total + scaled, lambda: total)

    model = trace(function, X, free=True)
    model.save(tmp_path / "model.onnx")
    again = gx.load(tmp_path / "model.onnx")
    for x in (X, X + 10):
        np.testing.assert_array_equal(compute(again, x)[0], compute(model, x)[0])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: fn.cond(x.sum() > 0, lambda: x, lambda: x.sum()), r"the same dtypes and ranks"),
        (lambda x: fn.cond(x > 0, lambda: x, lambda: x), r"expected one element, .*any\(\) or .all\(\)"),
        (lambda x: fn.while_loop(lambda y: y.sum() > 0, lambda y: y.astype(np.int64), x), "must keep its dtypes"),
        (lambda x: fn.scan(lambda s, row: s + row, x[0], x), "must return the next states and the values to stack"),
        (lambda x: fn.scan(lambda s, row: (s, row), x[0], x.sum()), "along the first axis of arrays"),
        (lambda x: fn.scan(lambda s, row: (row[:2], row), x[0], x), "must keep its shapes"),
    ],
)
def test_bodies_that_do_not_fit_are_refused(function: Any, message: str) -> None:
    with pytest.raises(gx.InputError, match=r"test_control.py:\d+: .*" + message):
        trace(function, X)


def test_what_is_made_in_a_body_stays_there() -> None:
    def function(x: Any) -> Any:
        kept = []

        def then() -> Any:
            kept.append(x + 1)
            return kept[0]

        fn.cond(x.sum() > 0, then, lambda: x)
        return kept[0]

    with pytest.raises(gx.InputError, match="made inside a body was used outside of it"):
        trace(function, X)
