"""Loops whose trips are calls over arrays: the bits of loops that are not bound, and what is not bound."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.execution.runs.bound_body import ArrayRows, BoundTrips
from tests.execution.runs.counted import load
from tests.model.control_models import MODELS, number

Array = np.ndarray[Any, Any]
ROW = np.linspace(-1, 1, 5, dtype=np.float32)
TEXTS = {
    "carried values that change places": """(float[k] x, int64 n) => (float[k] p, float[k] q, float[t, k] rows)
    <float half = {0.5}> {
      start = Neg (x)
      p, q, rows = Loop (n, "", x, start) <body = b (int64 i, bool c, float[k] v, float[k] w) =>
        (bool c_out, float[k] w, float[k] v_out, float[k] row) {
          c_out = Identity (c) v_out = Mul (v, half) row = Add (v, w)
      }>
    }""",
    "a value of the trip before": """(float[k] x, int64 n) => (float[k] p, float[k] q, float[t, k] rows) {
      p, q, rows = Loop (n, "", x, x) <body = b (int64 i, bool c, float[k] v, float[k] before) =>
        (bool c_out, float[k] v_out, float[k] v, float[k] before) {
          c_out = Identity (c) v_out = Add (v, v)
      }>
    }""",
    "a carried value that stays": """(float[k] x, int64 n) => (float[k] p, float[k] q) {
      p, q = Loop (n, "", x, x) <body = b (int64 i, bool c, float[k] v, float[k] same) =>
        (bool c_out, float[k] v_out, float[k] same) {
          c_out = Identity (c) v_out = Add (v, same)
      }>
    }""",
    "a condition of the data": """(float[k] x, int64 n) => (float[k] p, float[t, k] rows) <float limit = {9}> {
      p, rows = Loop (n, "", x) <body = b (int64 i, bool c, float[k] v) => (bool c_out, float[k] v_out, float[k] row) {
          v_out = Add (v, v) most = ReduceMax <keepdims = 0> (v) c_out = Less (most, limit) row = Identity (v)
      }>
    }""",
    "the number of the trip": """(float[k] x, int64 n) => (float[k] p, int64[t] rows) <int64 two = {2}> {
      p, rows = Loop (n, "", x) <body = b (int64 i, bool c, float[k] v) => (bool c_out, float[k] v_out, int64 row) {
          c_out = Identity (c) row = Mul (i, two) step = Cast <to = 1> (row) v_out = Add (v, step)
      }>
    }""",
    "a carried value that grows": """(float[k] x, int64 n) => (float[m] p, float[t] rows) {
      p, rows = Loop (n, "", x) <body = b (int64 i, bool c, float[a] v) => (bool c_out, float[b] v_out, float row) {
          c_out = Identity (c) v_out = Concat <axis = 0> (v, x) row = ReduceSum <keepdims = 0> (v_out)
      }>
    }""",
    "slices from the end, and rows along another axis": """(float[k] x, int64 n) => (float s, float[u, t] rows)
    <int64[2] shape = {3, 4}, int64[1] first = {0}, int64[1] last = {12}, float[2, 1] column = {1, 2}> {
      long = Concat <axis = 0> (x, x, x)
      cut = Slice (long, first, last)
      table = Reshape (cut, shape)
      start = ReduceSum <keepdims = 0> (x)
      s, rows = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1],
        scan_output_axes = [1], scan_output_directions = [1],
        body = w (float sum, float[3] slice) => (float next, float[u] row) <int64[2] grid = {1, 3},
          int64[1] flat = {6}> {
            part = ReduceSum <keepdims = 0> (slice) next = Add (sum, part)
            wide = Reshape (slice, grid) product = MatMul (column, wide) row = Reshape (product, flat)
      }> (start, table)
    }""",
}


@pytest.fixture
def trips(brief_runs: None, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each part of a loop from now on was computed over arrays."""
    seen: list[bool] = []
    own = BoundTrips.advance

    def advance(self: BoundTrips, count: int) -> Sequence[Array] | None:
        seen.append(False)
        made = own(self, count)
        seen[-1] = True
        return made

    monkeypatch.setattr(BoundTrips, "advance", advance)
    return seen


def run(worker: gx.Worker, feed: dict[str, Array]) -> list[Array]:
    """Schedule a run, and return its outputs."""
    return [tensor.readback_and_clone() for tensor in worker.schedule(feed).outputs.values()]


def check_equal(made: list[Array], wanted: list[Array]) -> None:
    """Check that arrays are alike to the bit."""
    assert [(array.shape, array.dtype) for array in made] == [(array.shape, array.dtype) for array in wanted]
    assert [array.tobytes() for array in made] == [array.tobytes() for array in wanted]


@pytest.mark.parametrize("name", TEXTS)
def test_bound_trips_give_the_bits_of_others(name: str, trips: list[bool]) -> None:
    feeds = [{"x": np.roll(ROW, turn), "n": number(count)} for turn, count in enumerate((3, 17, 1, 40))]
    wanted = []
    for feed in feeds:
        with gx.Worker(load(TEXTS[name]), backend="cpu") as worker:
            wanted.append(run(worker, feed))
    assert not trips
    with gx.Worker(load(TEXTS[name]), backend="cpu") as worker:
        for feed, before in zip(2 * feeds, 2 * wanted, strict=True):
            check_equal(run(worker, feed), before)  # new sizes are met here, and record again what they outgrow
        trips.clear()
        for feed, before in zip(feeds[::-1], wanted[::-1], strict=True):
            check_equal(run(worker, feed), before)
            check_equal(run(worker, {**feed, "x": -feed["x"]}), run(worker, {**feed, "x": -feed["x"]}))
    assert trips and all(trips)


@pytest.mark.parametrize("name", MODELS)
def test_runs_of_models_with_bodies_are_alike(name: str) -> None:
    model = MODELS[name]
    with gx.Worker(gx.load(model.parse().SerializeToString()), backend="cpu") as worker:
        first = [run(worker, feed) for feed in model.feeds()]
        for _ in range(3):
            for feed, before in zip(model.feeds(), first, strict=True):
                check_equal(run(worker, feed), before)


def test_error_of_a_bound_trip_names_the_node(trips: list[bool]) -> None:
    text = """(float[k] x, int64 n) => (float[k] y, float[t] rows) {
      y, rows = Loop (n, "", x) <body = b (int64 i, bool c, float[k] v) => (bool c_out, float[k] v_out, float row) {
        c_out = Identity (c) row = Gather (x, i) v_out = Add (v, row)
      }>
    }"""
    with gx.Worker(load(text), backend="cpu") as worker:
        wanted = run(worker, {"x": ROW, "n": number(5)})
        check_equal(run(worker, {"x": ROW, "n": number(5)}), wanted)
        assert trips == [True]
        with pytest.raises(gx.InputError, match=r"Gather.*index 5"):
            run(worker, {"x": ROW, "n": number(6)})
        assert trips == [True, False]
        check_equal(run(worker, {"x": ROW, "n": number(5)}), wanted)


def test_new_weights_are_read(trips: list[bool]) -> None:
    text = """(float[k] x, int64 n) => (float[k] y) <float[5] w = {1, 2, 3, 4, 5}> {
      y = Loop (n, "", x) <body = b (int64 i, bool c, float[k] v) => (bool c_out, float[k] v_out) {
        c_out = Identity (c) v_out = Mul (v, w)
      }>
    }"""
    with gx.Worker(load(text), backend="cpu") as worker:
        feed = {"x": ROW, "n": number(2)}
        for _ in range(3):
            check_equal(run(worker, feed), [ROW * np.arange(1, 6, dtype=np.float32) ** 2])
        assert trips == [True, True]
        worker.replace_weights({"w": np.full(5, 3, np.float32)})
        for _ in range(3):
            check_equal(run(worker, feed), [ROW * np.float32(9)])
        assert trips == [True] * 4


def test_loop_that_never_ends_is_cancelled(trips: list[bool]) -> None:
    text = """(float[k] x, bool go) => (float[k] y) {
      y = Loop ("", go, x) <body = b (int64 i, bool c, float[k] v) => (bool c_out, float[k] v_out) {
        most = ReduceMax <keepdims = 0> (v) zero = Sub (most, most) c_out = LessOrEqual (zero, most) v_out = Mul (v, v)
      }>
    }"""
    falling = np.full(3, -1.0, np.float32)  # 1 from the first trip on: the condition of trips behind it holds
    with gx.Worker(load(text), backend="cpu") as worker:
        assert run(worker, {"x": falling, "go": np.array(True)})[0].tolist() == [1, 1, 1]
        endless = worker.schedule({"x": np.ones(3, np.float32), "go": np.array(True)})
        threading.Event().wait(0.05)
        assert trips[0]
        assert endless.cancel()
        with pytest.raises(gx.CancelledError):
            endless.wait()
        assert run(worker, {"x": falling, "go": np.array(True)})[0].tolist() == [1, 1, 1]


def test_what_is_bound_is_counted_and_given_back(trips: list[bool]) -> None:
    with gx.Worker(load(TEXTS["a value of the trip before"]), backend="cpu") as worker:
        feed = {"x": ROW, "n": number(3)}
        before = worker.memory_stats()["lane"]
        wanted = run(worker, feed)
        check_equal(run(worker, feed), wanted)
        assert worker.memory_stats()["lane"] > before
        worker.trim()
        assert worker.memory_stats()["lane"] == before
        check_equal(run(worker, feed), wanted)


@pytest.mark.parametrize("most", [None, 40, 100])
def test_rows_are_copied_as_they_come(most: int | None) -> None:
    rows, row = ArrayRows(most), np.zeros(2, np.int64)
    for trip in range(40):
        row[:] = trip, -trip
        rows.add(row)
    wanted = np.array([[trip, -trip] for trip in range(40)])
    np.testing.assert_array_equal(rows.stack(is_reversed=False), wanted)
    np.testing.assert_array_equal(rows.stack(is_reversed=True), wanted[::-1])
