"""Layer-by-layer comparison with NumPy: wrong layers are named, right ones pass."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.ir.operator import Emitter, Operator, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from tests.model.control_models import MODELS
from tests.model.small_models import CPU, DOMAIN, affine, expect_affine, make_model, ramp, two_layers
from tests.model.state_models import cache

Array = np.ndarray[Any, Any]
EPS = float(np.finfo(np.float32).eps)
on_both = pytest.mark.parametrize("backend", [CPU, gx.BackendType.SIMULATOR])


class _Wrong(Operator):
    """A copy on every device, where NumPy makes something else: what a wrong kernel looks like."""

    __slots__ = ()

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        return (x.with_shape(x.shape),)

    def lower(self, emit: Emitter, inputs: Any, outputs: Any) -> None:
        emit.copy(outputs[0], inputs[0])


@operator("Off", DOMAIN)
@dataclass(frozen=True, slots=True)
class Off(_Wrong):
    """Should add ``more`` to the element before the last."""

    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    more: float = 0.5

    def compute(self, x: Array, *, out: Sequence[Array | None] | None = None) -> tuple[Array, ...]:
        result = np.array(x)
        result.reshape(-1)[-2] += x.dtype.type(self.more)
        return (result,)


@operator("Drift", DOMAIN)
@dataclass(frozen=True, slots=True)
class Drift(_Wrong):
    """Should multiply by ``1 + ulps * eps``."""

    tolerance: ClassVar[Tolerance] = Tolerance.ROUNDING
    ulps: float = 0.0

    def compute(self, x: Array, *, out: Sequence[Array | None] | None = None) -> tuple[Array, ...]:
        return (x * np.float32(1 + self.ulps * EPS),)


def chain(*layers: tuple[str, str, dict[str, Any]]) -> gx.Model:
    """Return a model of (name, operator, attributes) one after the other, behind a Relu and before one."""
    rows = [("first", "Relu", {}), *layers, ("last", "Neg", {})]
    names = ["x", *(f"v{i}" for i in range(len(rows) - 1)), "y"]
    nodes = [
        helper.make_node(
            kind,
            [names[i]],
            [names[i + 1]],
            name=name,
            domain=DOMAIN if kind in ("Off", "Drift") else "",
            **attributes,
        )
        for i, (name, kind, attributes) in enumerate(rows)
    ]
    return make_model(nodes, {"x": ("n", 3)}, {"y": ("n", 3)})


def open_comparing(model: gx.Model, backend: gx.BackendType) -> gx.Worker:
    return gx.Worker(model, backend=backend, compare_with=CPU)


@pytest.mark.feature("B19")
@on_both
def test_the_node_that_differs_is_named(backend: gx.BackendType) -> None:
    model = chain(("before", "Neg", {}), ("wrong", "Off", {}), ("after", "Relu", {}), ("later", "Off", {"more": 2.0}))
    with open_comparing(model, backend) as worker:
        for _ in range(2):
            with pytest.raises(gx.MismatchError) as raised:
                worker.schedule(ramp(2, 3))
            error = raised.value
            assert (error.node, error.operator, error.value) == ("wrong", f"{DOMAIN}.Off", "v2")
            assert (error.index, error.expected, error.got, error.error) == ((1, 1), -1.5, -2.0, 0.5)
            for part in ("'wrong'", "Off", "'v2'", "[1, 1]", "-1.5", "-2.0", "0.5", "float32[2,3]", "1 of 6"):
                assert part in str(error)
        assert worker.report().compared == 4
        assert vars(pickle.loads(pickle.dumps(error))) == vars(error)


@pytest.mark.feature("B17", "B19")
@on_both
def test_clean_layers_are_counted(backend: gx.BackendType) -> None:
    with open_comparing(affine(), backend) as worker:
        for rows in (4, 7, 4):
            x = ramp(rows, 3)
            np.testing.assert_array_equal(worker.run(x)[0], expect_affine(x))
        assert worker.report().compared == 9
        assert worker.report().plans <= 2
        assert "compared 9 layers" in worker.summary()


def test_nothing_is_compared_unless_asked_for(worker: gx.Worker) -> None:
    worker.run(ramp(4, 3))
    assert worker.report().compared == 0
    assert "compared" not in worker.summary()


@on_both
@pytest.mark.parametrize("name", MODELS)
def test_models_with_branches_and_loops_pass(name: str, backend: gx.BackendType) -> None:
    data = MODELS[name].parse().SerializeToString()
    with open_comparing(gx.load(data), backend) as worker, gx.Worker(gx.load(data), backend=backend) as plain:
        for feed in MODELS[name].feeds():
            for got, expected in zip(worker.run(feed), plain.run(feed), strict=True):
                np.testing.assert_array_equal(got, expected)
        assert worker.report().compared > 0


def test_a_node_of_a_loop_is_named_in_the_trip_where_it_differs() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["c"], ["c_out"]),
            helper.make_node("Add", ["v", "one"], ["w"], name="add"),
            helper.make_node("Relu", ["w"], ["r"], name="relu"),
            helper.make_node("Off", ["r"], ["v_out"], name="wrong", domain=DOMAIN),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", 7, ()),
            helper.make_tensor_value_info("c", 9, ()),
            helper.make_tensor_value_info("v", 1, (2, 3)),
        ],
        [helper.make_tensor_value_info("c_out", 9, ()), helper.make_tensor_value_info("v_out", 1, (2, 3))],
    )
    loop = helper.make_node("Loop", ["three", "", "x"], ["y"], name="loop", body=body)
    model = make_model([loop], {"x": (2, 3)}, {"y": (2, 3)}, one=np.float32(1), three=np.int64(3))
    with open_comparing(model, CPU) as worker, pytest.raises(gx.MismatchError, match="Off 'wrong'") as raised:
        worker.run(ramp(2, 3))
    assert raised.value.node == "wrong"


@pytest.mark.parametrize(("ulps", "is_close"), [(3, True), (-3, True), (9, False)])
def test_rounding_operators_may_differ_by_a_few_ulp(ulps: float, is_close: bool) -> None:
    x = ramp(4, 3)
    with open_comparing(chain(("drift", "Drift", {"ulps": float(ulps)})), CPU) as worker:
        if is_close:
            np.testing.assert_array_equal(worker.run(x)[0], -np.maximum(x, 0))
        else:
            with pytest.raises(gx.MismatchError, match="drift"):
                worker.run(x)


def test_errors_do_not_add_up() -> None:
    nodes = [
        helper.make_node("Drift", ["x"], ["a"], name="drift", domain=DOMAIN, ulps=3.0),
        helper.make_node("Sub", ["a", "x"], ["y"], name="what_is_left"),
    ]
    model = make_model(nodes, {"x": (4, 3)}, {"y": (4, 3)})
    with open_comparing(model, CPU) as worker:
        np.testing.assert_array_equal(worker.run(ramp(4, 3))[0], np.zeros((4, 3)))


@on_both
def test_products_pass_in_whatever_order_they_are_summed(backend: gx.BackendType) -> None:
    with open_comparing(two_layers(), backend) as worker:
        worker.run(ramp(64, 3))
        assert worker.report().compared == 3


def test_a_step_compares_its_layer() -> None:
    with open_comparing(chain(("wrong", "Off", {})), CPU) as worker:
        steps = worker.schedule_iterable(ramp(2, 3))
        assert next(steps).nodes == ("first",)
        assert worker.report().compared == 1
        with pytest.raises(gx.MismatchError, match="wrong"):
            next(steps)


def test_views_and_values_the_host_knows_are_compared_too() -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], name="transpose"),
        helper.make_node("Shape", ["t"], ["s"], name="shape"),
        helper.make_node("Reshape", ["t", "s"], ["r"], name="reshape"),
        helper.make_node("Concat", ["r", "t"], ["y"], name="concat", axis=0),
    ]
    model = make_model(nodes, {"x": ("n", 3)}, {"y": (6, "n")})
    x = ramp(4, 3)
    with open_comparing(model, CPU) as worker:
        np.testing.assert_array_equal(worker.run(x)[0], np.concatenate([x.T, x.T]))
        assert worker.report().compared == 4
    with open_comparing(model, CPU) as worker:
        assert worker.run(ramp(0, 3))[0].shape == (6, 0)
        assert worker.report().compared == 4


def test_layers_without_commands_are_compared_too() -> None:
    with open_comparing(affine((0, 3)), CPU) as worker:
        assert worker.run(ramp(0, 3))[0].shape == (0, 3)
        assert sum(len(plan.segment.commands) for plan in worker.plans) == 0
        assert worker.report().compared == 3


@on_both
def test_who_looks_at_values_is_not_compared(backend: gx.BackendType) -> None:
    with gx.Worker(affine(), backend=backend, compare_with=CPU, watch="report") as worker:
        worker.tap({"a": ["histogram", np.size]})
        run = worker.schedule(ramp(4, 3))
        assert worker.report().compared == 3
        assert run.inspection.find_nonfinite() is None
        assert run.inspection.statistics()["a"].max == 2 * ramp(4, 3).max()


@on_both
@pytest.mark.parametrize("is_read", [False, True])
def test_a_memory_with_room_to_grow_is_compared_in_every_run(backend: gx.BackendType, is_read: bool) -> None:
    model = cache(is_read=is_read).bind_state({"present": "past"}, capacity=16)
    with gx.Worker(model, backend=backend, compare_with=CPU) as worker, gx.Worker(model, backend=backend) as plain:
        for count in range(1, 6):
            x = {"x": np.full((2, 1, 3), count, np.float32)}
            for got, expected in zip(worker.run(x), plain.run(x), strict=True):
                np.testing.assert_array_equal(got, expected)
            assert worker.report().compared == count * len(model.graph.nodes)
        np.testing.assert_array_equal(worker.state.get("past"), plain.state.get("past"))


def test_only_the_cpu_can_be_compared_with() -> None:
    with pytest.raises(gx.InputError, match="compare_with"):
        gx.Worker(affine(), backend=CPU, compare_with=gx.BackendType.SIMULATOR)
