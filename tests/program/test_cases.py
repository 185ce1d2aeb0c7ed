"""Limited loops: they end, with unchanged results within the limit."""

from __future__ import annotations

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.ops.control.interpret import compute_graph
from gpuexec.program.cases import Case, limit_trips, make_case
from tests.program.program_seeds import load_text

# With the numbers below three trips, of five trips each: eighteen together.
NESTED = """(float[n] x, bool t, int64 outer, int64 inner) => (float[n] y) {
  y = Loop (outer, t, x) <body = b (int64 i, bool c, float[n] v) => (bool c_out, float[n] v_out) {
    c_out = Identity (c)
    v_out = Loop (inner, c, v) <body = d (int64 j, bool k, float[n] w) => (bool k_out, float[n] w_out) {
      k_out = Identity (k)
      w_out = Neg (w)
    }>
  }>
}"""
FEED = [np.ones(2, np.float32), np.array(True), np.array(3), np.array(5)]


def test_trips_of_all_loops_are_counted_together() -> None:
    graph = load_text(NESTED).graph
    (within,) = compute_graph(limit_trips(graph, 18), FEED)
    np.testing.assert_array_equal(within, -np.ones(2, np.float32))
    with pytest.raises(gx.InputError, match=r"Loop '.*': Loop '.*': body 'd': Loops made 17 trips without an end"):
        compute_graph(limit_trips(graph, 17), FEED)


def test_model_stays_as_it_was() -> None:
    model = load_text(NESTED)
    names = ("x", "t", "outer", "inner")
    case = Case(dict(zip(names, FEED, strict=True)))
    with pytest.raises(gx.InputError, match="give inputs with which they end"):
        make_case(model, case, max_trips=17)
    np.testing.assert_array_equal(make_case(model, case).outputs["y"], -np.ones(2, np.float32))
