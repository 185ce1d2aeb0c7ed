"""Layers of a plan: their bytes, and the work of nodes with scattered commands."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpuexec.execution.profiling.layers import PlanLayers, count_bytes, describe_command, describe_layers
from gpuexec.ir.command import Fill, HostCall, Slot
from gpuexec.ir.plan import Plan
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.planner.analyse import Analyser
from gpuexec.planner.template import plan_graph
from tests.model.small_models import two_layers

FLOAT = np.dtype(np.float32)
SPECS = {"x": TensorSpec((4, 3), FLOAT)}


@pytest.mark.parametrize(
    ("shape", "strides", "nbytes"),
    [((4, 3), (3, 1), 48), ((4, 3), (0, 1), 12), ((4, 3), (6, 2), 48), ((4, 3), (-3, 1), 48), ((0, 3), (3, 1), 0)],
)
def test_bytes_of_a_window_are_those_it_shows_each_once(
    shape: tuple[int, ...], strides: tuple[int, ...], nbytes: int
) -> None:
    slot = Slot(0, 96, TensorSpec(shape, FLOAT), strides)
    assert count_bytes([slot, slot]) == 2 * nbytes


def test_commands_without_a_kernel_say_what_they_are() -> None:
    slot = Slot(0, 0, TensorSpec((4,), FLOAT), (1,))
    assert str(describe_command(Fill(slot, b"\0\0\0\0"))) == "fill"
    call = describe_command(HostCall("Neg", (), (slot,), (slot,)))
    assert (str(call), call.bytes_read, call.bytes_written) == ("Neg", 16, 16)


def describe(origins: tuple[str, ...]) -> PlanLayers:
    """Return the layers of a plan of three commands, as if they stemmed from these nodes."""
    graph = two_layers().graph
    plan: Plan = plan_graph(graph, SPECS, Target.named("cpu")).plan
    plan = replace(plan, segment=replace(plan.segment, origins=origins))
    return describe_layers(7, plan, plan.segment.commands, graph, Analyser(graph).run(SPECS).specs)


def test_commands_in_a_row_are_a_layer() -> None:
    found = describe(("first", "relu", "second"))
    assert [(each.node, each.operator, each.flops, each.last) for each in found.layers] == [
        ("first", "MatMul", 120, 1),
        ("relu", "Relu", 20, 2),
        ("second", "MatMul", 80, 3),
    ]
    assert found.number == 7 and found.arena > 0
    assert [(each.node, each.first, each.last) for each in describe(("first", "first", "second")).layers] == [
        ("first", 0, 2),
        ("second", 2, 3),
    ]


def test_a_node_whose_commands_stand_apart_works_once() -> None:
    assert [each.flops for each in describe(("first", "relu", "first")).layers] == [120, 20, 0]


def test_commands_of_no_node_do_no_work_and_are_named_by_their_kind() -> None:
    last = describe(("first", "relu", "elsewhere")).layers[-1]
    assert (last.operator, last.flops) == ("MatMul", 0)
