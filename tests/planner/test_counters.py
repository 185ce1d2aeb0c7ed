"""Counters of launches: all of a plan lie beside its arena, and no command sets them to 0."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from gpuexec.ir.command import BUFFER_ALIGNMENT, Fill, Kernel, Launch, Slot
from gpuexec.ir.graphs import Graph
from gpuexec.ir.operator import Emitter, Operator, Slots, Tolerance, operator
from gpuexec.ir.plan import Plan, Role
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.planner.template import Template, plan_graph
from tests.ir.graph_builder import GraphBuilder
from tests.ops.operators import Scale

KERNEL = Kernel("tally.cu", "tally")


@operator("Tally", "test")
@dataclass(frozen=True, slots=True)
class Tally(Operator):
    """An operator whose launch takes a counter for each row."""

    tolerance = Tolerance.EXACT

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        return (x.with_shape(x.shape),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        emit.launch(KERNEL, (x.shape[0], 1, 1), (32, 1, 1), [x, y, emit.counters(x.shape[0])], [1, 2])


@operator("Overwrite", "test")
@dataclass(frozen=True, slots=True)
class Overwrite(Tally):
    """The same, with a scratch that is filled before and that no later command reads."""

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        scratch = emit.temp((2,), np.uint32)
        emit.fill(scratch, 7)
        emit.launch(KERNEL, (1, 1, 1), (32, 1, 1), [inputs[0], outputs[0], scratch], [1, 2])


def two_in_a_row() -> Graph:
    build = GraphBuilder()
    x = build.input("x", "rows", 4)
    build.node(Tally(), x)  # nobody reads it
    return build.graph(build.node(Tally(), build.node(Scale(), build.node(Tally(), x))))


def make_template(rows: int, target: str = "sm_90") -> Template:
    return plan_graph(two_in_a_row(), specs(rows), Target.named(target))


def specs(rows: int) -> dict[str, TensorSpec]:
    return {"x": TensorSpec((rows, 4), np.dtype(np.float32))}


def find_counters(plan: Plan) -> list[tuple[int, Slot]]:
    return [
        (place, command.arguments[2])
        for place, command in enumerate(plan.segment.commands)
        if isinstance(command, Launch) and command.kernel == KERNEL and isinstance(command.arguments[2], Slot)
    ]


def test_counters_of_all_launches_lie_apart_in_one_buffer_beside_the_arena() -> None:
    plan = make_template(5).plan
    counters = find_counters(plan)
    assert len(counters) == 2
    for _, slot in counters:
        buffer = plan.buffers[slot.buffer]
        start, end = slot.byte_range()
        assert (
            buffer.role is Role.COUNTERS
            and buffer.nbytes == plan.counters_nbytes
            and buffer.id not in plan.layout.as_dict()
        )
        assert 0 <= start < end <= buffer.nbytes and start % BUFFER_ALIGNMENT == 0
    (_, first), (_, second) = counters
    assert first.buffer == second.buffer
    assert first.byte_range()[1] <= second.byte_range()[0] or second.byte_range()[1] <= first.byte_range()[0]
    assert not any(isinstance(command, Fill) for command in plan.segment.commands)


def test_counters_of_a_size_lie_in_those_of_its_class() -> None:
    template = make_template(7)
    variant = template.specialise(specs(5))
    assert template.ends["x"] == (8, 4)
    slots = [
        command.arguments[2] for command in variant.commands if isinstance(command, Launch) and command.kernel == KERNEL
    ]
    assert len(slots) == 2
    for slot in slots:
        assert isinstance(slot, Slot) and slot.byte_range()[1] <= template.plan.buffers[slot.buffer].nbytes


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
def test_plans_without_counters_have_no_room_for_them(target: str) -> None:
    build = GraphBuilder()
    graph = build.graph(build.node(Scale(), build.input("x", 8, 4)))
    assert plan_graph(graph, specs(8), Target.named(target)).plan.counters_nbytes == 0


def test_what_a_launch_finds_in_its_scratch_is_put_there() -> None:
    build = GraphBuilder()
    graph = build.graph(build.node(Overwrite(), build.input("x", "rows", 4)))
    commands = plan_graph(graph, specs(3), Target.named("sm_90")).plan.segment.commands
    assert [type(command) for command in commands] == [Fill, Launch]
