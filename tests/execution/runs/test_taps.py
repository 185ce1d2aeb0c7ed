"""Taps: statistics of inner values, taken on the device and returned without waiting."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import helper

import gpuexec as gx
from tests.model.small_models import CPU, DOMAIN, GATES, affine, gated, make_model, ramp, two_layers
from tests.model.staged_models import MODELS as STAGED
from tests.model.state_models import cache

Array = np.ndarray[Any, Any]
SIMULATOR = gx.BackendType.SIMULATOR
on_all = pytest.mark.parametrize("backend", [CPU, SIMULATOR, gx.BackendType.SIMULATOR_PIXEL])
X = ramp(4, 3)


def expect_layers(x: Array) -> tuple[Array, Array]:
    """Return what the first two layers of `two_layers` make."""
    first = x @ ramp(3, 5)
    return first, np.maximum(first, 0)


@on_all
def test_reducers_report_values_and_of_nodes(backend: gx.BackendType) -> None:
    with gx.Worker(two_layers(), backend=backend) as worker:
        worker.tap({"a": ["mean", "std"], "relu": ["min", "max", "absmax", "nonfinite"], "x": "histogram"})
        for x in (X, -3 * X[:2]):
            found = worker.schedule(x).inspection.statistics()
            assert sorted(found) == ["a", "b", "x"]
            a, b = expect_layers(x)
            assert (found["a"].node, found["b"].node, found["x"].node) == ("first", "relu", "")
            assert (found["a"].mean, found["a"].std) == (pytest.approx(a.mean()), pytest.approx(a.std()))
            assert (found["b"].min, found["b"].max, found["b"].absmax) == (b.min(), b.max(), b.max())
            assert found["b"].nonfinite == 0
            assert found["b"].mean != found["b"].mean  # it was not asked for
            histogram = found["x"].histogram
            assert histogram is not None
            np.testing.assert_array_equal(histogram.counts, np.histogram(x, 64)[0])
            np.testing.assert_allclose(histogram.edges(), np.histogram(x, 64)[1], rtol=1e-6)
            assert found["a"].spec is not None
            assert str(found["a"].spec) == f"float32[{len(x)},5]"


@on_all
def test_a_function_gets_the_tensor(backend: gx.BackendType) -> None:
    with gx.Worker(two_layers(), backend=backend, frames=1) as worker:
        worker.tap({"b": [np.median, "max"], "y": [np.shape, np.array]})
        inspections = [worker.schedule(X + i).inspection for i in range(3)]
        for i, inspection in enumerate(inspections):
            found = inspection.statistics()
            assert found["b"].results == {"median": np.median(expect_layers(X + i)[1])}
            assert found["y"].results["shape"] == (4, 2)
            np.testing.assert_array_equal(found["y"].results["array"], expect_layers(X + i)[1] @ ramp(5, 2))


@on_all
def test_functions_of_one_name_each_have_a_result(backend: gx.BackendType) -> None:
    with gx.Worker(two_layers(), backend=backend) as worker:
        worker.tap({"b": [lambda x: x.shape, lambda x: x.dtype, np.size], "relu": np.size})
        results = worker.schedule(X).inspection.statistics()["b"].results
        assert results == {"<lambda>": (4, 5), "<lambda> 2": np.float32, "size": 20}


def test_nothing_waits_for_statistics() -> None:
    model, number = gated()
    with gx.Worker(model, backend=CPU) as worker:
        worker.tap({"a": "max"})
        inspection = worker.schedule(X).inspection
        GATES.entered[number].wait()
        assert not inspection.is_done()
        assert not inspection.wait(0)
        GATES.open[number].set()
        assert inspection.wait()
        assert inspection.statistics()["a"].max == X.max()


@on_all
def test_taps_replace_each_other_and_end_and_answers_stay_the_same(backend: gx.BackendType) -> None:
    with gx.Worker(two_layers(), backend=backend) as worker:
        plain = worker.run(X)[0]
        plans = []
        for wanted in ({"a": "max"}, {"b": "max"}, None, {"a": "max"}, {"a": "max"}, None):
            worker.tap(wanted)
            run = worker.schedule(X)
            if wanted is not None:
                assert list(run.inspection.statistics()) == list(wanted)
            np.testing.assert_array_equal(run.peek_output().readback_and_clone(), plain)
            plans.append(worker.report().plans)
        assert plans == [2, 3, 3, 3, 3, 3]


@on_all
def test_statistics_come_out_alike_each_time_and_in_every_frame(backend: gx.BackendType) -> None:
    x = np.random.default_rng(3).normal(size=(40, 300)).astype(np.float32)
    nodes = [helper.make_node("Exp", ["x"], ["a"], name="exp"), helper.make_node("Neg", ["a"], ["y"], name="neg")]
    with gx.Worker(make_model(nodes, {"x": (40, 300)}, {"y": (40, 300)}), backend=backend) as worker:
        worker.tap({"exp": ["mean", "std", "histogram"]})
        found = {repr(each.inspection.statistics()) for each in [worker.schedule(x) for _ in range(6)]}
        assert len(found) == 1


LOOP = """
<ir_version: 10, opset_import: ["": 18]>
agraph (float[2] x) => (float[2] y) <int64 trips = {3}, bool yes = {1}, float two = {2}> {
  y = Loop (trips, yes, x) <body = walk (int64 i, bool c, float[2] v) => (bool c_out, float[2] v_out) {
    c_out = Identity (c)
    v_out = Mul (v, two)
  }>
}
"""


@on_all
def test_a_value_of_a_body_is_reported_for_each_trip(backend: gx.BackendType) -> None:
    with gx.Worker(gx.load(onnx.parser.parse_model(LOOP)), backend=backend) as worker:
        worker.tap({"v_out": ["max", "mean"]})
        inspection = worker.schedule(np.array([1, 3], np.float32)).inspection
        assert [each.max for each in inspection.history("v_out")] == [6, 12, 24]
        assert inspection.statistics()["v_out"].mean == 16
        with pytest.raises(gx.InputError, match="no tapped value 'x'; it made v_out"):
            inspection.history("x")


CAPTURE = """
<ir_version: 10, opset_import: ["": 20]>
agraph (float[n, 2] x) => (float[n, 2] y, float[m, 2] z)
<int64 trips = {3}, bool yes = {1}, float two = {2}> {
  a = Mul (x, two)
  places = NonZero (a)
  turned = Transpose (places)
  numbers = Cast <to = 1> (turned)
  z = Mul (numbers, two)
  y = Loop (trips, yes, a) <body = walk (int64 i, bool c, float[n, 2] v) => (bool c_out, float[n, 2] v_out) {
    c_out = Identity (c)
    v_out = Add (v, a)
  }>
}
"""


@on_all
def test_a_value_that_several_plans_take_is_reported_once(backend: gx.BackendType) -> None:
    x = np.ones((20000, 2), np.float32)  # too much for the host to look at beforehand
    with gx.Worker(gx.load(onnx.parser.parse_model(CAPTURE)), backend=backend, watch="report") as worker:
        worker.tap(dict.fromkeys(["x", "a", "two", "v", "v_out"], "max"))
        inspection = worker.schedule(x).inspection
        found = {name: [each.max for each in inspection.history(name)] for name in inspection.statistics()}
        assert found == {"x": [1], "two": [2], "a": [2], "v": [2, 4, 6], "v_out": [4, 6, 8]}
        assert inspection.statistics()["a"].node == "Mul_0"


@on_all
@pytest.mark.parametrize("name", STAGED)
def test_models_of_several_plans_give_the_same_tapped_and_watched(name: str, backend: gx.BackendType) -> None:
    model = STAGED[name].load()
    x = np.linspace(-1, 1, 160 * 160, dtype=np.float32).reshape(160, 160)
    with gx.Worker(model, backend=backend, watch="report") as worker, gx.Worker(model, backend=backend) as plain:
        names = [value.name for node in model.graph.nodes for value in node.outputs if value is not None]
        worker.tap({name: ["mean", np.size] for name in names})
        expected = plain.schedule(x)
        run = worker.schedule(x)
        found = run.inspection.statistics()
        assert set(found) <= set(names)
        assert found
        for key, tensor in run.outputs.items():
            np.testing.assert_array_equal(tensor.readback_and_clone(), expected.peek_output(key).readback_and_clone())


@on_all
def test_a_cache_goes_on_when_taps_come_and_go(backend: gx.BackendType) -> None:
    model = cache(is_read=False).bind_state({"present": "past"}, capacity=16)
    rows = [np.full((2, 1, 3), i + 1, np.float32) for i in range(6)]
    with gx.Worker(model, backend=backend) as worker:
        for i, x in enumerate(rows):
            worker.tap({"present": "max"} if i in (1, 2, 4) else None)
            run = worker.schedule({"x": x})
            if i in (1, 2, 4):
                assert run.inspection.statistics()["present"].max == 2 * (i + 1)
            expected = np.full((2, 3), 2 * sum(range(1, i + 2)), np.float32)
            np.testing.assert_array_equal(run.peek_output("y").readback_and_clone(), expected)
        assert worker.report().plans == 2  # one for all lengths, and one that is looked at


@on_all
def test_taps_of_a_run_are_those_it_began_with(backend: gx.BackendType) -> None:
    number = GATES.new()
    nodes = [
        helper.make_node("Gate", ["x"], ["a"], name="gate", domain=DOMAIN, number=number),
        helper.make_node("NonZero", ["a"], ["places"], name="nonzero"),  # its size is read, so it is planned later
        helper.make_node("Cast", ["places"], ["numbers"], name="cast", to=1),
        helper.make_node("Neg", ["numbers"], ["y"], name="neg"),
    ]
    x = ramp(40000, 3)  # too much for the host to look at beforehand
    with gx.Worker(make_model(nodes, {"x": ("n", 3)}, {"y": (2, "m")}), backend=backend) as worker:
        worker.tap({"a": "max", "y": ["min", np.size]})
        before = worker.schedule(x).inspection
        assert GATES.entered[number].wait(60)
        worker.tap({"y": [np.shape], "places": "max"})
        after = worker.schedule(x).inspection
        worker.tap(None)
        GATES.open[number].set()
        found = before.statistics()
        assert sorted(found) == ["a", "y"]
        assert (found["a"].max, found["y"].min) == (x.max(), -39999)
        assert found["y"].results == {"size": 2 * (x.size - 1)}
        found = after.statistics()
        assert sorted(found) == ["places", "y"]
        assert found["y"].results == {"shape": (2, x.size - 1)}


def test_what_passes_removed_is_reported_with_what_is_nearest() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["convolved"], name="conv"),
        helper.make_node("BatchNormalization", ["convolved", "s", "b", "m", "v"], ["normed"], name="bn"),
        helper.make_node("Relu", ["normed"], ["y"], name="relu"),
    ]
    one = np.ones(2, np.float32)
    data = {"w": ramp(2, 3, 1, 1), "s": 2 * one, "b": one, "m": one, "v": one}
    shapes: tuple[dict[str, Any], dict[str, Any]] = ({"x": (1, 3, 4, 4)}, {"y": (1, 2, 4, 4)})
    with gx.Worker(make_model(nodes, *shapes, **data), backend=CPU) as worker:
        worker.tap({"normed": "max"})
        with pytest.raises(gx.InputError, match=r"'convolved' is not there .* nearest value behind it is 'normed'"):
            worker.tap({"convolved": "max"})
        assert list(worker.schedule(ramp(1, 3, 4, 4)).inspection.statistics()) == ["normed"]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"nowhere": "max"}, "no value or node 'nowhere'"),
        ({"": "max"}, "no value or node ''"),
        ({"y": "median"}, "'median' is no reducer; there are min, max"),
        ({"y": []}, "takes a list of reducers"),
        ({"y": 3}, "takes a list of reducers, got 3"),
    ],
)
def test_bad_taps_are_refused_and_taps_stay(wanted: dict[str, object], message: str) -> None:
    with gx.Worker(affine(), backend=CPU) as worker:
        worker.tap({"y": "max"})
        with pytest.raises(gx.InputError, match=message):
            worker.tap(wanted)
        assert list(worker.schedule(X).inspection.statistics()) == ["y"]
