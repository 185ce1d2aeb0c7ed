"""Sufficiency of edges: a plan gives equal bits in every order they allow, and not in others."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from gpuexec.devices.cpu.cpu import CpuDevice
from gpuexec.ir.graphs import Graph
from gpuexec.ir.plan import Plan
from gpuexec.ir.target import Target
from gpuexec.planner.template import Template, plan_graph
from tests.devices.execute import Array, LoadedPlan, run_template, specs_of
from tests.ir.graph_builder import compute_graph
from tests.ir.random_graphs import random_graph

ROWS = 8


def make(seed: int) -> tuple[Graph, Template, dict[str, Array], dict[str, Array]]:
    graph = random_graph(seed)
    arrays = {"x": np.random.default_rng(seed).integers(-8, 8, (ROWS, 4)).astype(np.float32)}
    template = plan_graph(graph, specs_of(arrays), Target.named("cpu"))
    return graph, template, arrays, {value.name: array for value, array in graph.constants.items()}


@pytest.mark.parametrize("seed", range(120))
def test_plan_gives_the_same_bits_in_any_legal_order(seed: int) -> None:
    graph, template, arrays, _ = make(seed)
    expected = compute_graph(graph, arrays)
    in_order = run_template(template, graph, arrays, CpuDevice())
    shuffled = run_template(template, graph, arrays, CpuDevice(order=random.Random(seed).randrange))
    for want, plain, other in zip(expected, in_order, shuffled, strict=True):
        np.testing.assert_array_equal(plain, want)
        np.testing.assert_array_equal(other, want)


def test_removed_edges_show_in_some_order() -> None:
    """Without an edge, the results of some order differ: the test above can fail."""
    differing = tried = 0
    for seed in range(12):
        graph, template, arrays, constants = make(seed)
        expected = compute_graph(graph, arrays)
        for plan in without_one_edge(template.plan):
            tried += 1
            for attempt in range(8):
                device = CpuDevice(order=random.Random(attempt).randrange)
                with LoadedPlan(plan, constants, device) as loaded:
                    got = loaded.run(arrays)
                if not all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True)):
                    differing += 1
                    break
    assert differing > tried // 2 > 0


def without_one_edge(plan: Plan) -> list[Plan]:
    segment = plan.segment
    return [
        replace(plan, segment=replace(segment, edges=segment.edges[:i] + segment.edges[i + 1 :]))
        for i in range(len(segment.edges))
    ]
