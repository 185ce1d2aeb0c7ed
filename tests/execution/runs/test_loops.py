"""Loop and Scan on devices: few plans, and other engines' results."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from gpuexec.planner.analyse import HOST_WORK_LIMIT
from tests.execution.runs.counted import COUNTED, LARGE, load
from tests.ir.graph_builder import compute_graph
from tests.model.control_models import MODELS, ControlModel, flag, number
from tests.model.host_value_cases import put_on_device
from tests.model.small_models import CPU, hold

Array = np.ndarray[Any, Any]
SIMULATOR = gx.BackendType.SIMULATOR
ROW = np.linspace(-1, 1, 5, dtype=np.float32)
TEXTS = {
    "loop in loop": """(float[k] x, int64 outer, int64 inner) => (float[k] y, float[n, k] rows) <float half = {0.5}> {
      y, rows = Loop (outer, "", x) <body = o (int64 i, bool c, float[k] v) =>
        (bool c_out, float[k] v_out, float[k] row) {
          c_out = Identity (c)
          v_out = Loop (inner, "", v) <body = b (int64 j, bool d, float[k] w) => (bool d_out, float[k] w_out) {
            d_out = Identity (d)
            both = Add (i, j)
            step = Cast <to = 1> (both)
            scaled = Mul (w, half)
            w_out = Add (scaled, step)
          }>
          row = Sub (v_out, x)
      }>
    }""",
    "if in loop": """(float[k] x, int64 outer, int64 inner) => (float[k] y, int64[n] which) <int64 two = {2}> {
      y, which = Loop (outer, "", x) <body = o (int64 i, bool c, float[k] v) =>
        (bool c_out, float[k] v_out, int64 row) {
          c_out = Identity (c)
          rest = Mod (i, two)
          is_odd = Equal (rest, inner)
          v_out, row = If (is_odd) <
            then_branch = a () => (float[k] p, int64 m) { p = Add (v, x) m = Identity (i) },
            else_branch = b () => (float[k] q, int64 n) { q = Neg (v) n = Neg (i) }>
      }>
    }""",
    "if on data in loop": """(float[k] x, int64 outer, int64 inner) => (float[k] y) {
      y = Loop (outer, "", x) <body = o (int64 i, bool c, float[k] v) => (bool c_out, float[k] v_out) {
          c_out = Identity (c)
          size = ReduceSum <keepdims = 0> (v)
          limit = Cast <to = 1> (inner)
          is_small = Less (size, limit)
          v_out = If (is_small) <then_branch = a () => (float[k] p) { p = Add (v, x) two = Abs (p) },
                                  else_branch = b () => (float[k] q) { q = Neg (v) }>
      }>
    }""",
    "loop in if": """(float[k] x, int64 outer, int64 inner) => (float[k] y) {
      is_more = Greater (outer, inner)
      y = If (is_more) <
        then_branch = a () => (float[k] p) {
          p = Loop (outer, "", x) <body = o (int64 i, bool c, float[k] v) => (bool c_out, float[k] v_out) {
            c_out = Identity (c) v_out = Add (v, x)
          }>
        },
        else_branch = b () => (float[k] q) { q = Neg (x) }>
    }""",
    "scan in loop": """(float[k] x, int64 outer, int64 inner) => (float[k] y, float[n, k] sums) {
      y, sums = Loop (outer, "", x) <body = o (int64 i, bool c, float[k] v) =>
        (bool c_out, float[k] v_out, float[k] row) {
          c_out = Identity (c)
          start = ReduceMax <keepdims = 0> (v)
          last, row = Scan <num_scan_inputs = 1, scan_input_directions = [1],
            body = s (float t, float e) => (float t_out, float made) { t_out = Add (t, e) made = Sub (t_out, start) }>
            (start, v)
          v_out = Sub (row, last)
      }>
    }""",
    "captures two levels up": """(float[k] x, int64 outer, int64 inner) => (float[k] y) {
      far = Exp (x)
      y = Loop (outer, "", x) <body = o (int64 i, bool c, float[k] v) => (bool c_out, float[k] v_out) {
          c_out = Identity (c)
          near = Neg (v)
          v_out = Loop (inner, "", v) <body = b (int64 j, bool d, float[k] w) => (bool d_out, float[k] w_out) {
            d_out = Identity (d)
            is_first = Equal (j, i)
            some = If (is_first) <then_branch = p () => (float[k] m) { m = Add (far, near) },
                                  else_branch = q () => (float[k] n) { n = Sub (near, far) }>
            w_out = Add (w, some)
          }>
      }>
    }""",
}


@pytest.fixture(params=["cpu", "simulator"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return open_backend(CPU if request.param == "cpu" else SIMULATOR)


def expect(text: str, feed: dict[str, Array], opset: int = 21) -> list[Array]:
    """Return what onnxruntime gives."""
    model = ControlModel(text, (), opset).parse().SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return [np.asarray(array) for array in session.run(None, feed)]


def compare(run: gx.Run, expected: list[Array]) -> None:
    for tensor, wanted in zip(run.outputs.values(), expected, strict=True):
        made = tensor.readback_and_clone()
        assert (made.shape, made.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_models_with_bodies_give_what_their_operators_compute(name: str, backend: Backend) -> None:
    model = MODELS[name]
    with gx.Worker(gx.load(model.parse().SerializeToString()), backend=backend) as worker:
        for feed in (*model.feeds(), model.feeds()[0]):
            expected = compute_graph(worker.model.graph, feed)
            compare(worker.schedule(feed), expected)
            list(worker.schedule_iterable(feed))
            assert worker.schedule_progress == 1.0
            compare(worker._require_run(), expected)


@pytest.mark.parametrize("place", ["host", "device"])
@pytest.mark.parametrize("name", TEXTS)
def test_nested_bodies_give_what_another_engine_gives(name: str, place: str, backend: Backend) -> None:
    text = TEXTS[name]
    with gx.Worker(load(text), backend=backend) as worker:
        for outer, inner in ((3, 2), (1, 4), (5, 1), (3, 2)):
            feed = {"x": ROW, "outer": number(outer), "inner": number(inner)}
            given = feed if place == "host" else {key: put_on_device(array, backend) for key, array in feed.items()}
            compare(worker.schedule(given), expect(text, feed))


GROWING = """(float[n, 4] x, int64 times) => (float[m, 4] y, int64[t, 1] lengths) <bool yes = {1}> {
  y, lengths = Loop (times, yes, x) <body = b (int64 i, bool c, float[a, 4] v) =>
    (bool c_out, float[b, 4] v_out, int64[1] length) {
      c_out = Identity (c) v_out = Concat <axis = 0> (v, x) length = Shape <end = 1> (v_out)
  }>
}"""


def test_growing_tensor_takes_a_handful_of_plans(backend: Backend) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    with gx.Worker(load(GROWING), backend=backend) as worker:
        for trips in (50, 20, 50):
            compare(
                worker.schedule({"x": x, "times": number(trips)}), expect(GROWING, {"x": x, "times": number(trips)})
            )
        # Sizes of a carried value fall in buckets: up to 153 rows there are those of 4, 8, ..., 256.
        plans = worker.report().plans
        print(f"growing to 153 rows in 50 trips took {plans} plans")
        assert plans <= 10


def test_loop_of_a_thousand_trips_is_scheduled_at_once(backend: Backend) -> None:
    text = """(float[k] x, int64 n) => (float[k] y) <float one = {1}> {
      y = Loop (n, "", x) <body = b (int64 i, bool c, float[k] v) => (bool c_out, float[k] v_out) {
        c_out = Identity (c) v_out = Add (v, one)
      }>
    }"""
    feed = {"x": ROW, "n": number(1000)}
    with gx.Worker(load(text), backend=backend) as worker:
        gate = hold(worker._engine.stream)
        run = worker.schedule(feed)
        assert not run.is_done()
        gate.set()
        compare(run, expect(text, feed))
        report = worker.report()
    # One for the trip whose input is given, one for the others, one to hand the output over.
    assert (report.plans, report.host_reads) == (3, ())


@pytest.mark.parametrize("place", ["host", "device"])
@pytest.mark.parametrize("trips", [0, 1, 6, -3])
def test_trip_count_is_taken_from_where_it_is(trips: int, place: str, backend: Backend) -> None:
    x = LARGE[:3, :4]
    with gx.Worker(load(COUNTED), backend=backend) as worker:
        count = number(trips)
        given = count if place == "host" else put_on_device(count, backend)
        run = worker.schedule({"x": x, "n": given})
        made = {name: tensor.readback_and_clone() for name, tensor in run.outputs.items()}
        reads = [(row.value, row.nbytes) for row in worker.report().host_reads]
    trips = max(trips, 0)
    np.testing.assert_array_equal(made["y"], x * 2**trips)
    np.testing.assert_array_equal(made["rows"], np.array([-x * 2**i for i in range(trips)]).reshape(trips, 3, 4))
    assert reads == ([("n", 8)] if place == "device" else [])


@pytest.mark.parametrize(
    ("condition", "first", "trips"),
    [
        ("c_out = Identity (c)", True, 4),
        ("c_out = Identity (no)", True, 1),
        ("c_out = Identity (yes)", True, 4),
        ("c_out = Identity (given)", True, 4),
        ("c_out = Not (given)", True, 1),
        ("c_out = Less (i, two)", True, 3),
        ("size = ReduceMax <keepdims = 0> (v_out) c_out = Less (size, five)", True, 2),
        ("c_out = Identity (c)", False, 0),
    ],
)
@pytest.mark.parametrize("place", ["host", "device"])
def test_condition_may_be_constant_counted_captured_or_computed(
    condition: str, first: bool, trips: int, place: str, backend: Backend
) -> None:
    text = f"""(float[k] x, bool given) => (float[k] y) <int64 four = {{4}}, int64 two = {{2}}, float five = {{5}},
      bool yes = {{1}}, bool no = {{0}}> {{
      y = Loop (four, given, x) <body = b (int64 i, bool c, float[k] v) => (bool c_out, float[k] v_out) {{
        v_out = Add (v, x) {condition}
      }}>
    }}"""
    x = np.array([1, 2], np.float32)
    given: Any = flag(first)
    with gx.Worker(load(text), backend=backend) as worker:
        for _ in range(2):
            answer = worker.run({"x": x, "given": given if place == "host" else put_on_device(given, backend)})[0]
            np.testing.assert_array_equal(answer, x * (trips + 1))


def test_condition_of_a_node_too_heavy_for_the_host_is_read(backend: Backend) -> None:
    text = """(float[n] x) => (float[n] y) <bool yes = {1}, float five = {5}> {
      y = Loop ("", yes, x) <body = b (int64 i, bool c, float[n] v) => (bool c_out, float[n] v_out) {
        v_out = Add (v, v) small = Less (v_out, five) c_out = ReduceMin <keepdims = 0> (small)
      }>
    }"""
    x = np.ones(HOST_WORK_LIMIT + 1, np.float32)
    with gx.Worker(gx.load(ControlModel(text, (), opset=20).parse()), backend=backend) as worker:
        np.testing.assert_array_equal(worker.run({"x": x})[0], 8 * x)


def test_error_in_a_trip_names_the_nodes_on_the_way_and_the_worker_goes_on(backend: Backend) -> None:
    text = """(float[k] x, int64 n) => (float[m] y, float[t, k] rows) {
      y, rows = Loop (n, "", x) <body = b (int64 i, bool c, float[k] v) => (bool c_out, float[m] v_out, float[k] row) {
        c_out = Identity (c) v_out = Concat <axis = 0> (v, x) row = Add (v, x)
      }>
    }"""
    with gx.Worker(load(text), backend=backend) as worker:
        run = worker.schedule({"x": ROW, "n": number(3)})
        with pytest.raises(gx.InputError, match=r"Loop.*Add"):
            run.wait()
        with pytest.raises(gx.InputError):
            run.peek_output().readback_and_clone()
        made = worker.run({"x": ROW, "n": number(1)})
        np.testing.assert_array_equal(made[0], np.concatenate([ROW, ROW]))
        np.testing.assert_array_equal(made[1], [ROW + ROW])
