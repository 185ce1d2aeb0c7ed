"""NaN and infinity detection: the first node at fault is named, later ones are not."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.ir.operator import Operator, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.reduce.statistics import SOURCE
from tests.execution.runs.watched import GOOD, SIMULATOR, Array, logarithm, on_both, watch, with_elements
from tests.model.small_models import DOMAIN, make_model


@operator("HostRoot", DOMAIN)
@dataclass(frozen=True, slots=True)
class HostRoot(Operator):
    """A square root without a kernel."""

    tolerance: ClassVar[Tolerance] = Tolerance.EXACT

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        return (x.with_shape(x.shape),)

    def compute(self, x: Array, *, out: Any = None) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):
            return (np.sqrt(x),)


@on_both
def test_the_first_node_is_named_with_what_it_took(backend: gx.BackendType) -> None:
    found = watch(logarithm(), backend, with_elements(GOOD, ((1, 2), -1), ((3, 0), 0)))
    assert found is not None
    assert (found.node, found.operator, found.output.value) == ("log", "Log", "b")
    assert (found.kind, found.count, found.index, found.output.infs) == ("NaN", 1, (1, 2), 1)
    (taken,) = found.inputs
    assert (taken.value, taken.min, taken.max, taken.nonfinite) == ("a", -2, 24, 0)
    for part in ("Log 'log'", "'b'", "float32[4,3]", "1 NaN", "[1, 2]", "1 Inf", "a: min -2"):
        assert part in str(found)


@on_both
def test_an_infinity_is_found_where_no_input_has_one(backend: gx.BackendType) -> None:
    found = watch(logarithm(), backend, with_elements(GOOD, ((2, 1), 0)))
    assert found is not None
    assert (found.node, found.kind, found.count, found.index) == ("log", "Inf", 1, (2, 1))


@on_both
def test_nothing_is_found_where_nothing_is(backend: gx.BackendType) -> None:
    with gx.Worker(logarithm(), backend=backend, watch="raise") as worker:
        for rows in (4, 7, 4, 4, 4, 4):
            x = np.ones((rows, 3), np.float32)
            np.testing.assert_allclose(worker.run(x)[0], -np.log(2 * x), rtol=1e-6, atol=1e-7)
        assert worker.report().plans <= 2


@on_both
def test_a_mask_of_infinities_is_no_fault_and_a_nan_made_of_it_is(backend: gx.BackendType) -> None:
    nodes = [
        helper.make_node("Add", ["x", "mask"], ["masked"], name="mask"),
        helper.make_node("Softmax", ["masked"], ["y"], name="softmax"),
    ]
    mask = np.array([[0, -np.inf, 0]], np.float32)
    model = make_model(nodes, {"x": ("n", 3)}, {"y": ("n", 3)}, mask=mask)
    assert watch(model, backend, GOOD) is None
    full = with_elements(GOOD, ((2, 0), -np.inf), ((2, 2), -np.inf))
    found = watch(model, backend, full)
    assert found is not None
    assert (found.node, found.kind, found.count, found.index) == ("softmax", "NaN", 3, (2, 0))
    assert found.inputs[0].negative_infs == 6


@on_both
def test_nan_that_was_given_is_no_nodes_fault(backend: gx.BackendType) -> None:
    found = watch(logarithm(), backend, with_elements(GOOD, ((0, 1), np.nan)))
    assert found is not None
    assert (found.node, found.operator, found.output.value, found.index) == ("", "input", "x", (0, 1))
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"], name="scale")]
    weight = np.array([1, np.nan, 2], np.float32)
    found = watch(make_model(nodes, {"x": ("n", 3)}, {"y": ("n", 3)}, w=weight), backend, GOOD)
    assert found is not None
    assert (found.node, found.operator, found.output.value, found.index) == ("", "weight", "w", (1,))


@on_both
@pytest.mark.parametrize("dtype", [10, 11, 16])
def test_all_floats_are_watched(backend: gx.BackendType, dtype: int) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["a"], name="neg"), helper.make_node("Sqrt", ["a"], ["y"], name="root")]
    model = make_model(nodes, {"x": (5,)}, {"y": (5,)}, dtype)
    x = np.array([-1, -4, 9, -2, 3], helper.tensor_dtype_to_np_dtype(dtype))
    found = watch(model, backend, x)
    assert found is not None
    assert (found.node, found.count, found.index) == ("root", 2, (2,))


@on_both
def test_integers_are_taken_and_hold_none(backend: gx.BackendType) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], name="cast", to=6),
        helper.make_node("Cast", ["i"], ["f"], name="back", to=1),
        helper.make_node("Log", ["f"], ["y"], name="log"),
    ]
    model = make_model(nodes, {"x": ("n", 3)}, {"y": ("n", 3)})
    with gx.Worker(model, backend=backend, watch="report") as worker:
        found = worker.schedule(with_elements(GOOD, ((0, 0), -3))).inspection.find_nonfinite()
        assert found is not None
        assert (found.node, [each.value for each in found.inputs]) == ("log", ["f"])
        assert all("<i32>" not in kernel.expression for kernel in worker.plans[0].kernels() if kernel.source == SOURCE)


def test_a_node_that_the_host_computes_is_watched() -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], name="neg"),
        helper.make_node("HostRoot", ["a"], ["b"], name="root", domain=DOMAIN),
        helper.make_node("Relu", ["b"], ["y"], name="relu"),
    ]
    model = make_model(nodes, {"x": ("n", 3)}, {"y": ("n", 3)})
    found = watch(model, SIMULATOR, -with_elements(GOOD, ((3, 1), -5)))
    assert found is not None
    assert (found.node, found.kind, found.count, found.index) == ("root", "NaN", 1, (3, 1))
    assert found.inputs[0].min == -5
    with gx.Worker(model, backend=SIMULATOR, watch="raise") as worker, pytest.raises(gx.NonFiniteError, match="'root'"):
        worker.run(-with_elements(GOOD, ((3, 1), -5)))


LOOP = """
<ir_version: 10, opset_import: ["": 18]>
agraph (float[2] x) => (float[2] y) <int64 trips = {4}, bool yes = {1}, float one = {1}> {
  y = Loop (trips, yes, x) <body = walk (int64 i, bool c, float[2] v) => (bool c_out, float[2] v_out) {
    c_out = Identity (c)
    less = Sub (v, one)
    v_out = Log (less)
  }>
}
"""


@on_both
def test_a_body_is_watched_in_every_trip(backend: gx.BackendType) -> None:
    found = watch(gx.load(onnx.parser.parse_model(LOOP)), backend, np.array([20, 9], np.float32))
    assert found is not None
    # 20 becomes log 19 = 2.9, log 1.9 = 0.7, and of that less 1 there is no logarithm; nor of what 9 becomes.
    assert (found.operator, found.kind, found.count, found.output.value) == ("Log", "NaN", 2, "v_out")
    assert -1 < found.inputs[0].min < found.inputs[0].max < 0


@on_both
def test_nan_that_a_model_takes_for_what_is_missing_is_no_fault(backend: gx.BackendType) -> None:
    nodes = [
        helper.make_node("IsNaN", ["x"], ["is missing"], name="missing"),
        helper.make_node("Where", ["is missing", "zero", "x"], ["y"], name="impute"),
    ]
    model = make_model(nodes, {"x": ("n", 3)}, {"y": ("n", 3)}, zero=np.array(0, np.float32))
    with gx.Worker(model, backend=backend, watch="raise") as worker:
        expected = with_elements(GOOD, ((2, 1), 0))
        np.testing.assert_array_equal(worker.run(with_elements(GOOD, ((2, 1), np.nan)))[0], expected)


@on_both
def test_names_that_watching_would_give_may_be_taken(backend: gx.BackendType) -> None:
    names = ["x", "x: Statistics", "x: Statistics'", "x: Statistics: Concat", "y"]
    nodes = [helper.make_node("Sqrt", [a], [b], name=b) for a, b in itertools.pairwise(names)]
    model = make_model(nodes, {"x": ("n", 3)}, {"y": ("n", 3)})
    found = watch(model, backend, with_elements(GOOD, ((1, 2), -1)))
    assert found is not None
    assert (found.node, found.output.value, found.index) == ("x: Statistics", "x: Statistics", (1, 2))


def test_the_place_is_reported_by_axes_where_layers_are_blits() -> None:
    found = watch(logarithm(), gx.BackendType.SIMULATOR_PIXEL, with_elements(GOOD, ((1, 2), -1)))
    assert found is not None
    assert (found.node, found.index, str(found.output.spec)) == ("log", (1, 2), "float32[4,3]")
