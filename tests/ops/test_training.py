"""Adagrad, Adam and Momentum against their update rules in double."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.nn.training import DOMAIN, Adagrad, Adam, Momentum
from gpuexec.planner.template import plan_graph
from tests.devices.execute import run_template, specs_of
from tests.devices.opening import open_living
from tests.ir.graph_builder import GraphBuilder
from tests.ops.harness import Array, Case, run_case

EPSILON = float(np.float32(1e-6))  # as ONNX keeps its defaults
NORM = {"norm_coefficient": 0.01}
MOMENTUM = {"alpha": 0.95, "beta": 0.1, "norm_coefficient": 0.001}
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "Adagrad": [{}, {"decay_factor": 0.1, "epsilon": 1e-3, **NORM}],
    "Adam": [{}, {"alpha": 0.95, "beta": 0.1, "epsilon": 1e-3, "norm_coefficient_post": 0.2, **NORM}],
    "Momentum": [{**MOMENTUM, "mode": "standard"}, {**MOMENTUM, "mode": "nesterov"}],
}
GROUPS = {"Adagrad": 3, "Adam": 4, "Momentum": 3}


def adagrad(r: float, t: int, x: Array, g: Array, h: Array, **given: Any) -> tuple[Array, ...]:
    slope = given.get("norm_coefficient", 0) * x + g
    squares = h + slope**2
    return x - r / (1 + t * given.get("decay_factor", 0)) * slope / (
        np.sqrt(squares) + given.get("epsilon", EPSILON)
    ), squares


def adam(r: float, t: int, x: Array, g: Array, v: Array, h: Array, **given: Any) -> tuple[Array, ...]:
    alpha, beta = given.get("alpha", float(np.float32(0.9))), given.get("beta", float(np.float32(0.999)))
    slope = given.get("norm_coefficient", 0) * x + g
    velocity, squares = alpha * v + (1 - alpha) * slope, beta * h + (1 - beta) * slope**2
    rate = r * np.sqrt(1 - beta**t) / (1 - alpha**t) if t > 0 else r
    moved = x - rate * velocity / (np.sqrt(squares) + given.get("epsilon", EPSILON))
    return (1 - given.get("norm_coefficient_post", 0)) * moved, velocity, squares


def momentum(r: float, t: int, x: Array, g: Array, v: Array, **given: Any) -> tuple[Array, ...]:
    slope = given["norm_coefficient"] * x + g
    velocity = given["alpha"] * v + (given["beta"] if t > 0 else 1) * slope
    return x - r * (slope + given["alpha"] * velocity if given["mode"] == "nesterov" else velocity), velocity


RULES: dict[str, Callable[..., tuple[Array, ...]]] = {"Adagrad": adagrad, "Adam": adam, "Momentum": momentum}


def tensors(name: str, shapes: list[tuple[int, ...]], dtype: Any = np.float32) -> list[Array]:
    """Groups of tensors; what is kept of squares is not negative."""
    rng = np.random.default_rng(5)
    found = [np.asarray(rng.normal(0, 1, shape)).astype(dtype) for _ in range(GROUPS[name]) for shape in shapes]
    squares = 0 if name == "Momentum" else len(shapes)
    return [*found[: len(found) - squares], *(np.abs(x) for x in found[len(found) - squares :])]


def update(
    id: str,
    name: str,
    given: list[Array],
    settings: dict[str, Any],
    updates: int = 3,
    rate: Any = np.float32,
    **options: Any,
) -> Case:
    count = len(given) // GROUPS[name]
    numbers = {key: value if isinstance(value, str) else float(np.float32(value)) for key, value in settings.items()}
    r = np.array(0.1, rate)
    with np.errstate(all="ignore"):
        made = [
            RULES[name](float(r), updates, *(x.astype(np.float64) for x in given[i::count]), **numbers)
            for i in range(count)
        ]
        expected = tuple(
            made[i][group].astype(given[i].dtype) for group in range(GROUPS[name] - 1) for i in range(count)
        )
    inputs = (r, np.array(updates, np.int64), *given)
    options.setdefault("outputs", (True,) * len(expected))
    return Case(f"{name}-{id}", name, inputs, settings, opset=1, expected=expected, terms=8, domain=DOMAIN, **options)


CASES = [
    *(
        update(f"{np.dtype(t).name}-{place}-{updates}", name, tensors(name, [(3, 5)], t), settings, updates)
        for name, choices in SETTINGS.items()
        for place, settings in enumerate(choices)
        for t in (np.float32, np.float64)
        for updates in (0, 1, 1000)
    ),
    *(update("several", name, tensors(name, [(3,), (2, 700), ()]), SETTINGS[name][1]) for name in SETTINGS),
    *(update("wide_rate", name, tensors(name, [(3,)]), SETTINGS[name][1], rate=np.float64) for name in SETTINGS),
    *(update("empty", name, tensors(name, [(0, 3), (2,)]), SETTINGS[name][1]) for name in SETTINGS),
    *(update("rank8", name, tensors(name, [(2, 1, 2, 1, 2, 1, 2, 3)]), SETTINGS[name][1]) for name in SETTINGS),
    *(update("strided", name, [x[::-2, ::3].T for x in tensors(name, [(6, 9)])], SETTINGS[name][1])
      for name in SETTINGS),
    *(update("only_some_outputs", name, tensors(name, [(4,), (5,)]), SETTINGS[name][1],
             outputs=(True, False) * (GROUPS[name] - 1)) for name in SETTINGS),
    update("not_finite", "Adam", [np.array([np.inf, np.nan, 1, 2], np.float32) for _ in range(4)], {}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_update(checks: str, case: Case) -> None:
    run_case(case, checks)


def test_what_a_later_update_reads_is_not_updated_in_place() -> None:
    """The first update's result is the second's gradient, and has no other reader."""
    build_graph, given = GraphBuilder(), tensors("Momentum", [(5,), (5,)])
    arrays = {f"x{i}": x for i, x in enumerate(given)}
    x1, x2, g1, _, v1, v2 = (build_graph.node(build("Neg", {}), build_graph.input(name, 5)) for name in arrays)
    rate, updates = build_graph.constant(np.array(0.1, np.float32)), build_graph.constant(np.array(3))
    op: Any = build(f"{DOMAIN}.Momentum", SETTINGS["Momentum"][0])
    outputs = build_graph.nodes(op, rate, updates, x1, x2, g1, x1, v1, v2, count=4)
    graph, device = build_graph.graph(*outputs), open_living("simulator")
    found = run_template(plan_graph(graph, specs_of(arrays), device.target), graph, arrays, device)
    a, b, c, _, d, e = (-x for x in given)
    expected = op.compute(np.array(0.1, np.float32), np.array(3), a, b, c, a, d, e)
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_a_rate_that_is_optimised_itself_is_not_updated_in_place() -> None:
    """The second update reads the rate after the first has made a new one of it."""
    build_graph, given = GraphBuilder(), tensors("Momentum", [(), (5,)])
    arrays = {f"x{i}": x for i, x in enumerate(given)}
    x1, *others = (build_graph.node(build("Neg", {}), build_graph.input(name, *x.shape)) for name, x in arrays.items())
    op: Any = build(f"{DOMAIN}.Momentum", SETTINGS["Momentum"][0])
    outputs = build_graph.nodes(op, x1, build_graph.constant(np.array(3)), x1, *others, count=4)
    graph, device = build_graph.graph(*outputs), open_living("simulator")
    found = run_template(plan_graph(graph, specs_of(arrays), device.target), graph, arrays, device)
    expected = op.compute(-given[0], np.array(3), *(-x for x in given))
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


@pytest.mark.parametrize("cls", [Adagrad, Adam, Momentum])
def test_attributes_are_those_of_the_standard(cls: Any) -> None:
    name = cls.name.removeprefix(f"{DOMAIN}.")
    attributes = onnx.defs.get_schema(name, domain=DOMAIN).attributes
    defaults = {key: each.default_value.f for key, each in attributes.items() if not each.required}
    required: dict[str, Any] = {
        key: "standard" if key == "mode" else 0.5 for key, each in attributes.items() if each.required
    }
    op = cls(**required)
    assert {f.name for f in dataclasses.fields(cls)} == set(attributes)
    assert {key: np.float32(getattr(op, key)) for key in defaults} == {
        key: np.float32(x) for key, x in defaults.items()
    }


def spec(*shape: int, dtype: Any = np.float32) -> TensorSpec:
    return TensorSpec(shape, np.dtype(dtype))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((spec(), spec(dtype=np.int64)), "expects 3 tensors for each one optimised, behind the rate and the count"),
        ((spec(), spec(dtype=np.int64), *[spec(3)] * 4), "got 4"),
        ((spec(2), spec(dtype=np.int64), *[spec(3)] * 3), "one number as rate, got float32[2]"),
        ((spec(), spec(dtype=np.int32), *[spec(3)] * 3), "count of updates of type int64"),
        ((spec(), spec(dtype=np.int64), spec(3), spec(4), spec(3)), "as tensor 0, float32[3], got float32[4]"),
        ((spec(), spec(dtype=np.int64), *[spec(3, dtype=np.float16)] * 3), "tensor 0 of type float32, float64"),
    ],
)  # fmt: skip
def test_infer_refuses(inputs: tuple[TensorSpec, ...], message: str) -> None:
    with pytest.raises(InputError) as caught:
        build(f"{DOMAIN}.Adagrad", {}).infer(*inputs)
    assert message in str(caught.value)


def test_infer_refuses_an_unknown_mode() -> None:
    op = build(f"{DOMAIN}.Momentum", {**MOMENTUM, "mode": "heavy"})
    with pytest.raises(InputError, match="standard or nesterov, got 'heavy'"):
        op.infer(spec(), spec(dtype=np.int64), *[spec(3)] * 3)
