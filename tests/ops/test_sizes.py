"""One plan serves every size of its class: no size of these operators needs other kernels or more room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpuexec.operator import build
from gpuexec.planner.template import plan_graph
from tests.devices.opening import open_device
from tests.execute import run_template, specs_of
from tests.operators import GraphBuilder
from tests.ops.harness import Array
from tests.ops.tolerance import to_bits

RNG = np.random.default_rng(23)
LIMIT, THRESHOLD, DEPTH = np.array([7]), np.array([0.4], np.float32), np.array(5)


def numbers(*shape: int) -> Array:
    return RNG.integers(0, 40, shape).astype(np.float32)


def places(*shape: int) -> Array:
    return RNG.integers(0, 4, shape)


# Operator, attributes, inputs whose first axis is free, and the constants behind them.
CASES: list[tuple[str, dict[str, Any], Callable[[int], list[Array]], list[Array]]] = [
    ("gpuexec.Compact", {}, lambda n: [numbers(n, 3)], []),
    ("gpuexec.Unravel", {}, lambda n: [places(n)], [np.array([2, 3, 4])]),
    ("gpuexec.FindUnique", {}, lambda n: [numbers(n)], []),
    ("gpuexec.FindUnique", {"sorted": 0, "axis": 0}, lambda n: [numbers(n, 2)], []),
    ("gpuexec.SelectBoxes", {}, lambda n: [numbers(n, 6, 4), numbers(n, 1, 6)], [LIMIT, THRESHOLD]),
    ("TopK", {"axis": 0}, lambda n: [numbers(n)], [np.array([2])]),
    ("TopK", {"axis": 1, "largest": 0}, lambda n: [numbers(n, 9)], [np.array([4])]),
    ("ScatterElements", {}, lambda n: [numbers(n, 2), places(n, 2) % 2, numbers(n, 2)], []),
    ("ScatterElements", {"reduction": "mul"}, lambda n: [numbers(n, 2), places(n, 2) % 2, numbers(n, 2)], []),
    ("ScatterND", {}, lambda n: [numbers(n), places(n, 1) % 2, numbers(n)], []),
    ("ScatterND", {"reduction": "add"}, lambda n: [numbers(n), places(n, 1) % 2, numbers(n)], []),
    ("OneHot", {}, lambda n: [places(n)], [DEPTH, np.array([0, 9])]),
    ("ReverseSequence", {"batch_axis": 0, "time_axis": 1}, lambda n: [numbers(n, 4), places(n)], []),
]


@pytest.mark.parametrize(("name", "attributes", "make", "constants"), CASES, ids=lambda item: str(item)[:30])
def test_one_plan_serves_all_sizes(
    name: str, attributes: dict[str, Any], make: Callable[[int], list[Array]], constants: list[Array]
) -> None:
    device, op, largest = open_device("simulator"), build(name, attributes), make(1200)
    graph_of = GraphBuilder()
    values = [graph_of.input(f"x{i}", "n", *x.shape[1:], dtype=x.dtype) for i, x in enumerate(largest)]
    known = [graph_of.constant(array) for array in constants]
    outputs = graph_of.nodes(op, *values, *known, count=len(op.compute(*largest, *constants)))
    graph = graph_of.graph(*outputs)

    def feed(n: int) -> dict[str, Array]:
        return {f"x{i}": x for i, x in enumerate(make(n))}

    template = plan_graph(graph, specs_of(feed(1200)), device.target)
    assert {shape[0] for shape in template.ends.values()} == {1280}
    for n in (1200, 1024, 1025, 70, 2):
        feeds = feed(n)
        expected = op.compute(*feeds.values(), *constants)
        for got, wanted in zip(run_template(template, graph, feeds, device), expected, strict=True):
            assert wanted is not None
            np.testing.assert_array_equal(to_bits(got), to_bits(wanted), err_msg=f"{name} of {n}")
