"""Kernels that wait for predecessors: each behind another launch that it overlaps, in the simulator's check mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuexec.devices.kernels.kernel_source import find_source, find_waiting_kernels
from gpuexec.devices.recorder.tracer import DEPENDENT, TracerDevice
from gpuexec.devices.simulator.library import Schedule
from gpuexec.ir.graphs import Graph
from gpuexec.ir.instances import kernel_table
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.planner.template import plan_graph
from tests.devices.execute import LoadedPlan
from tests.devices.opening import make_simulator
from tests.ir.graph_builder import GraphBuilder, compute_graph

SHAPE = (6, 2, 130)
X = np.random.default_rng(9).normal(0.5, 1.5, SHAPE).astype(np.float32)
ROW = np.linspace(0.5, 2, SHAPE[-1], dtype=np.float32)
FLOAT8, FLOAT, BOOL = 17, 1, 9
SCALAR = np.array(0.25, np.float32)
PREDECESSOR = "unary"
# By the kernel: operator, attributes, and the inputs beside the one that the launch before makes.
CASES: dict[str, tuple[str, dict[str, Any], tuple[Any, ...]]] = {
    "unary": ("Relu", {}, ()),
    "binary": ("Add", {}, (ROW,)),
    "power": ("Pow", {}, (np.array(2.0, np.float32),)),
    "fold": ("Max", {}, (ROW, SCALAR)),
    "convert": ("Cast", {"to": BOOL}, ()),
    "convert_narrow": ("Cast", {"to": FLOAT8}, ()),
    "clip": ("Clip", {}, (SCALAR, None)),
    "where": ("Where", {}, ()),
    "softmax": ("Softmax", {"axis": -1}, ()),
    "hardmax": ("Hardmax", {"axis": -1}, ()),
    "normalize_rows": ("LayerNormalization", {}, (ROW, ROW)),
    "normalize_and_measure_rows": ("LayerNormalization", {}, (ROW, ROW)),
    "normalize_summed_rows": ("com.microsoft.SkipLayerNormalization", {}, (X, ROW)),
    "reduce": ("ReduceSum", {}, (np.array([-1], np.int64),)),
    "reduce_chunks": ("ReduceSum", {}, ()),
    "reduce_partials": ("ReduceSum", {}, ()),
    "find_extremum": ("ArgMax", {"axis": -1}, ()),
    "lp_norm": ("GlobalLpPool", {"p": 3}, ()),
}


def make_graph(kernel: str) -> Graph:
    graph = GraphBuilder()
    x = graph.input("x", *SHAPE)
    name, attributes, more = CASES[kernel]
    before = graph.node(build("Neg", {}), x)
    others = [None if each is None else graph.constant(each) for each in more]
    if kernel == "where":
        condition = graph.node(build("Greater", {}), before, graph.constant(SCALAR))
        return graph.graph(graph.node(build(name, attributes), condition, before, x))
    count = 2 if kernel == "normalize_and_measure_rows" else 1
    made = graph.nodes(build(name, attributes), before, *others, count=count)
    if kernel == "convert_narrow":
        made = graph.nodes(build("Cast", {"to": FLOAT}), made[0], count=1)
    return graph.graph(*made)


def name_kernel(row: tuple[Any, ...]) -> str:
    return str(row[1]).rpartition(":")[2].partition("<")[0]


def list_launches(graph: Graph) -> list[tuple[str, bool]]:
    """Return the kernels that a plan launches, and whether each begins before the one before it is complete."""
    device = TracerDevice("sm_90")
    plan = plan_graph(graph, {"x": TensorSpec(SHAPE, X.dtype)}, device.target).plan
    constants = {value.name: array for value, array in graph.constants.items()}
    with LoadedPlan(plan, constants, device) as loaded:
        loaded.run({"x": X})
    return [(name_kernel(row), DEPENDENT in row[5:]) for row in device.log if row[0] == "launch"]


def test_every_kernel_that_waits_has_a_case() -> None:
    sources = [source for source in kernel_table() if ":" not in source]
    assert {name for source in sources for name in find_waiting_kernels(find_source(source))} == CASES.keys()


@pytest.mark.parametrize("kernel", CASES)
def test_kernel_waits_for_the_launch_it_overlaps(kernel: str) -> None:
    graph = make_graph(kernel)
    launches = list_launches(graph)
    assert launches[0] == (PREDECESSOR, False) and (kernel, True) in launches[1:]
    (expected, *_) = compute_graph(graph, {"x": X})
    constants = {value.name: array for value, array in graph.constants.items()}
    for seed in range(3):
        device = make_simulator(Schedule("random", seed), target="sm_90", check_kernels=True)
        plan = plan_graph(graph, {"x": TensorSpec(SHAPE, X.dtype)}, device.target).plan
        with LoadedPlan(plan, constants, device) as loaded:
            got, *_ = loaded.run({"x": X})
        np.testing.assert_allclose(
            got.astype(np.float64), expected.astype(np.float64), rtol=1e-5, atol=1e-6, equal_nan=True
        )
        device.close()
