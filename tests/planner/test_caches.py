"""Plans of growing caches: one for every length."""

from __future__ import annotations

import numpy as np
import pytest

from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.operator import build
from gpuexec.ir.plan import Role
from gpuexec.ir.spec import DeclaredSpec, TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ops.tensor.append import Append
from gpuexec.planner.caches import find_caches
from gpuexec.planner.template import Template, plan_graph
from gpuexec.planner.verify import verify

FLOAT = np.dtype(np.float32)
CAPACITY = 40
TARGETS = [Target.named("cpu"), Target.named("sm_90")]


def decoder() -> Graph:
    """present = [past, new]; scores = present + mask, as long as that; the batch is free too."""

    def value(name: str, *dims: int | str) -> Value:
        return Value(name, DeclaredSpec(FLOAT, dims))

    past, new, mask = value("past", "b", "past", 3), value("new", "b", "new", 3), value("mask", "b", "total", 1)
    present, scores = value("present", "b", "all", 3), value("scores", "b", "all", 3)
    nodes = (
        Node(Append(1, CAPACITY, "past"), (past, new), (present,), "append"),
        Node(build("Add", {}), (present, mask), (scores,), "add"),
    )
    return Graph((past, new, mask), (present, scores), nodes, {}, "decoder")


def specs(past: int, new: int = 1, batch: int = 1) -> dict[str, TensorSpec]:
    shapes = {"past": (batch, past, 3), "new": (batch, new, 3), "mask": (batch, past + new, 1)}
    return {name: TensorSpec(shape, FLOAT) for name, shape in shapes.items()}


def plan(target: Target, **sizes: int) -> Template:
    return plan_graph(decoder(), specs(**sizes), target, grows=True)


@pytest.mark.parametrize("target", TARGETS, ids=lambda each: each.name)
@pytest.mark.parametrize("start", [1, 7, 38, 39])
def test_one_plan_serves_every_length_up_to_the_capacity(target: Target, start: int) -> None:
    template = plan(target, past=start)
    assert template.ends["past"] == (1, CAPACITY - 1, 3) and template.ends["mask"] == (1, CAPACITY, 1)
    (state,) = [buffer for buffer in template.plan.buffers if buffer.role is Role.STATE]
    for past in range(1, CAPACITY):
        variant = template.specialise(specs(past))
        verify(template.plan, variant)
        assert variant.outputs[0].shape == (1, past + 1, 3)
        (written,) = [s for c in variant.commands for s in c.writes_to() if s.buffer == state.id]
        assert written.byte_range() == (past * 12, past * 12 + 12)


@pytest.mark.parametrize(("past", "new", "batch"), [(0, 7, 1), (0, 1, 1), (5, 5, 1), (4, 4, 4), (2, 38, 3), (0, 40, 2)])
def test_prompts_of_any_length_are_planned(past: int, new: int, batch: int) -> None:
    template = plan(TARGETS[1], past=past, new=new, batch=batch)
    variant = template.specialise(specs(past, new, batch))
    verify(template.plan, variant)
    assert variant.outputs[0].shape == (batch, past + new, 3)
    # A batch that happens to be as large as the memory is long does not grow with it.
    assert template.ends["past"][0] <= 4 and template.ends["past"][1] + template.ends["new"][1] <= CAPACITY


def test_what_a_memory_s_other_axes_are_called_does_not_grow() -> None:
    graph = decoder()
    other, turned = Value("other", DeclaredSpec(FLOAT, ("b", 2))), Value("turned", DeclaredSpec(FLOAT, ("b", 2)))
    graph = Graph(
        (*graph.inputs, other),
        (*graph.outputs, turned),
        (*graph.nodes, Node(build("Neg", {}), (other,), (turned,), "negate")),
        {},
        "decoder",
    )
    sizes = specs(4, 1, 4) | {"other": TensorSpec((4, 2), FLOAT)}
    template = plan_graph(graph, sizes, TARGETS[1], grows=True)
    assert (template.ends["past"], template.ends["other"]) == ((4, CAPACITY - 1, 3), (4, 2))


def test_without_room_to_grow_an_append_is_a_concat() -> None:
    template = plan_graph(decoder(), specs(4), TARGETS[1])
    assert Role.STATE not in {buffer.role for buffer in template.plan.buffers}
    assert template.plan.inputs[0].buffer != template.plan.outputs[0].buffer


def test_caches_are_inputs_that_become_outputs() -> None:
    graph = decoder()
    assert list(find_caches(graph)) == [graph.inputs[0]]
    inner = Graph(graph.inputs, graph.outputs[1:], graph.nodes, {}, "inner")
    assert find_caches(inner) == {}
