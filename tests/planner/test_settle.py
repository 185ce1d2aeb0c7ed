"""In-place outputs in the bytes of dead inputs, and inputs placed in their consumer's output."""

from __future__ import annotations

import numpy as np
import pytest

from gpuexec.ir.command import Copy
from gpuexec.ir.graphs import Graph
from gpuexec.ir.plan import Plan, Role
from gpuexec.ir.target import Target
from gpuexec.planner.layout import HEAVY_BYTES
from gpuexec.planner.template import plan_graph
from tests.devices.execute import run_graph, specs_of
from tests.ir.graph_builder import GraphBuilder, compute_graph
from tests.ops.operators import Flip, Halves, Join, Scale, Sum

X = {"x": np.arange(32, dtype=np.float32).reshape(8, 4)}


def plan(graph: Graph, target: str = "cpu") -> Plan:
    return plan_graph(graph, specs_of(X), Target.named(target)).plan


def count(plan: Plan, role: Role = Role.TEMP) -> int:
    return sum(buffer.role is role for buffer in plan.buffers)


def check_result(graph: Graph) -> None:
    for got, expected in zip(run_graph(graph, X), compute_graph(graph, X), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
def test_chain_of_unary_operators_uses_the_output_alone(target: str) -> None:
    build = GraphBuilder()
    value = build.input("x", 8, 4)
    for _ in range(6):
        value = build.node(Scale(), value)
    graph = build.graph(value)
    made = plan(graph, target)
    assert (count(made), count(made, Role.OUTPUT), made.layout.nbytes) == (0, 1, 0)
    check_result(graph)


def test_chain_before_a_view_uses_one_buffer() -> None:
    build = GraphBuilder()
    value = build.input("x", 8, 4)
    for _ in range(6):
        value = build.node(Scale(), value)
    graph = build.graph(build.node(Flip(), value))
    assert count(plan(graph)) == 1
    check_result(graph)


def test_input_read_later_keeps_its_bytes() -> None:
    build = GraphBuilder()
    x = build.input("x", 8, 4)
    a = build.node(Scale(), x)
    b = build.node(Scale(3.0), a)
    graph = build.graph(build.node(Sum(), b, build.node(Flip(), a)))
    made = plan(graph)
    assert count(made) + count(made, Role.OUTPUT) == 2
    check_result(graph)


def test_two_candidates_give_their_bytes_to_one_output_only_once() -> None:
    build = GraphBuilder()
    x = build.input("x", 8, 4)
    graph = build.graph(build.node(Flip(), build.node(Sum(), build.node(Scale(), x), build.node(Scale(3.0), x))))
    assert count(plan(graph)) == 2
    check_result(graph)


def test_input_that_is_read_through_another_window_too_keeps_its_bytes() -> None:
    build = GraphBuilder()
    a = build.node(Scale(), build.input("x", 8, 4))
    graph = build.graph(build.node(Scale(), build.node(Sum(), a, build.node(Flip(), a))))
    assert count(plan(graph)) == 1  # a; the sum lies in the output
    check_result(graph)


def test_inputs_constants_and_outputs_of_the_graph_are_not_overwritten() -> None:
    build = GraphBuilder()
    x = build.input("x", 8, 4)
    w = build.constant(np.ones((8, 4), np.float32))
    a = build.node(Sum(), x, w)
    graph = build.graph(a, build.node(Scale(), a), build.node(Scale(), w))
    assert count(plan(graph), Role.OUTPUT) == 3
    check_result(graph)


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
def test_join_by_offset_copies_nothing(target: str) -> None:
    build = GraphBuilder()
    x = build.input("x", 8, 4)
    graph = build.graph(build.node(Join(), build.node(Scale(), x), build.node(Scale(3.0), x)))
    made = plan(graph, target)
    assert len(list(made.segment.commands)) == 2
    assert count(made) == 0
    check_result(graph)


def test_join_copies_what_it_can_not_place() -> None:
    build = GraphBuilder()
    x = build.input("x", 8, 4)
    a = build.node(Scale(), x)
    graph = build.graph(build.node(Join(), x, a, a))
    assert sum(isinstance(command, Copy) for command in plan(graph).segment.commands) == 2
    check_result(graph)


def test_join_copies_to_offsets_that_kernels_can_not_take_16_bytes_at() -> None:
    build = GraphBuilder()
    x = build.input("x", 8, 4)
    half, rest = build.nodes(Halves(), build.node(Scale(), x), count=2)
    odd = build.input("odd", 3, 1)
    parts = build.node(Join(), build.node(Scale(), odd), build.node(Scale(2.0), odd))
    graph = build.graph(parts, build.node(Sum(), half, rest))
    arrays = {**X, "odd": np.arange(3, dtype=np.float32).reshape(3, 1)}
    made = plan_graph(graph, specs_of(arrays), Target.named("sm_90")).plan
    # The first part lies at 0; the second would lie at 12.
    assert sum(isinstance(command, Copy) for command in made.segment.commands) == 1
    for got, expected in zip(run_graph(graph, arrays), compute_graph(graph, arrays), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_unordered_heavy_commands_get_disjoint_bytes() -> None:
    def layout_of(rows: int) -> tuple[Plan, list[tuple[int, int]]]:
        build = GraphBuilder()
        x = build.input("x", rows, 4)
        # Two branches; a buffer of the second could follow one of the first in the same bytes.
        first = build.node(Flip(), build.node(Scale(), build.node(Flip(), build.node(Scale(), x))))
        second = build.node(Flip(), build.node(Scale(), build.node(Flip(), build.node(Scale(), x))))
        graph = build.graph(build.node(Sum(), first, second))
        arrays = {"x": np.zeros((rows, 4), np.float32)}
        made = plan_graph(graph, specs_of(arrays), Target.named("cpu")).plan
        return made, [(start, start + made.buffers[b].nbytes) for b, start in made.layout.offsets]

    light, places = layout_of(8)
    assert any(low < high2 and low2 < high for (low, high), (low2, high2) in pairs(places)), "light ones share"
    heavy, places = layout_of(HEAVY_BYTES // 16)
    assert not any(low < high2 and low2 < high for (low, high), (low2, high2) in pairs(places))
    assert len(heavy.layout.offsets) == len(light.layout.offsets)


def pairs(rows: list[tuple[int, int]]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    return [(a, b) for i, a in enumerate(rows) for b in rows[:i]]
