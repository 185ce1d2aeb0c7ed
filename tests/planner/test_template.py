"""Plan templates of size classes: variants give what exact plans give."""

from __future__ import annotations

import numpy as np
import pytest

from gpuexec.devices.cpu.cpu import CpuDevice
from gpuexec.errors import InputError, PlanError, UnsupportedError
from gpuexec.ir.command import HostCall
from gpuexec.ir.graphs import Graph
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.planner.classes import DeclaredDims
from gpuexec.planner.template import Template, plan_graph
from gpuexec.planner.verify import verify
from tests.devices.execute import Array, run_template, specs_of
from tests.ir.graph_builder import GraphBuilder, compute_graph
from tests.ir.random_graphs import random_graph
from tests.ops.operators import FLOAT, WATCHING, Extents, Flip, Halves, Join, NoKernel, Reshaped, Scale, Sum, Watched

CPU, GPU = Target.named("cpu"), Target.named("sm_90")


def decoder() -> Graph:
    """A step of decoding with a cache: total = past + 1, as only the graph knows."""
    build = GraphBuilder()
    new = build.input("new", 1, 4)
    past = build.input("past", "past", 4)
    mask = build.input("mask", "total", 1)
    row = build.node(Scale(3.0), build.node(Sum(), new, build.constant(np.ones((1, 4), np.float32))), name="row")
    present = build.node(Join(), past, row, name="present")
    scores = build.node(Scale(), build.node(Sum(), present, mask, name="scores"), name="scaled")
    flat = build.node(
        Reshaped(), scores, build.node(Join(), build.node(Extents(), scores), build.constant(np.ones(1, np.int64)))
    )
    return build.graph(flat, present)


def step(past: int) -> dict[str, Array]:
    rng = np.random.default_rng(past)
    shapes = {"new": (1, 4), "past": (past, 4), "mask": (past + 1, 1)}
    return {name: rng.integers(-8, 8, shape).astype(np.float32) for name, shape in shapes.items()}


def decode(target: Target, steps: range, declared: DeclaredDims | None = None) -> list[Template]:
    """Return the templates that decoding makes, most recent first: what a plan cache does."""
    graph = decoder()
    templates: list[Template] = []
    for past in steps:
        specs = specs_of(step(past))
        for template in templates:
            if template.covers(specs):
                try:
                    variant = template.specialise(specs)
                except PlanError:
                    continue
                verify(template.plan, variant)
                break
        else:
            templates.insert(0, plan_graph(graph, specs, target, declared))
    return templates


@pytest.mark.parametrize("target", [CPU, GPU])
def test_decoding_64_tokens_makes_a_handful_of_plans(target: Target) -> None:
    assert len(decode(target, range(19, 83))) <= 5
    assert len(decode(target, range(19, 83), {"past": (0, 128), "total": (0, 128)})) == 1


def test_variants_give_what_exact_computation_gives() -> None:
    graph = decoder()
    (template,) = decode(CPU, range(33, 34))
    for past in (33, 40, 63, 40, 34):
        arrays = step(past)
        got = run_template(template, graph, arrays, CpuDevice())
        for one, expected in zip(got, compute_graph(graph, arrays), strict=True):
            np.testing.assert_array_equal(one, expected)


@pytest.mark.parametrize("target", [CPU, GPU])
def test_commands_that_do_not_change_are_the_same_objects(target: Target) -> None:
    (template,) = decode(target, range(33, 34))
    plan = template.plan.segment.commands
    origins = template.plan.segment.origins
    first = template.specialise(specs_of(step(40))).commands
    again = template.specialise(specs_of(step(40))).commands
    other = template.specialise(specs_of(step(41))).commands
    assert all(a is b for a, b in zip(first, again, strict=True))
    for origin, own, one, two in zip(origins, plan, first, other, strict=True):
        if origin == "sum0":
            assert own is one is two
        else:
            # Extents change, and the new row's place behind the past.
            assert one != two, origin


@pytest.mark.parametrize("target", [CPU, GPU])
@pytest.mark.parametrize("seed", range(40))
def test_variant_of_a_random_graph_equals_its_exact_plan(seed: int, target: Target) -> None:
    graph = random_graph(seed)
    arrays = {"x": np.random.default_rng(seed).integers(-8, 8, (4, 4)).astype(np.float32)}
    template = Template(graph, {"x": TensorSpec((16, 4), FLOAT)}, target)
    variant = template.specialise(specs_of(arrays))
    verify(template.plan, variant)
    exact = Template(graph, specs_of(arrays), target)
    assert [type(c) for c in variant.commands] == [type(c) for c in exact.plan.segment.commands]
    assert variant.outputs == tuple(port.spec for port in exact.plan.outputs)
    if target is CPU:
        got = run_template(template, graph, arrays, CpuDevice())
        for one, expected in zip(got, compute_graph(graph, arrays), strict=True):
            np.testing.assert_array_equal(one, expected)


def test_size_that_does_not_fit_raises_and_is_planned_by_itself() -> None:
    graph = decoder()
    template = Template(graph, specs_of(step(63)), CPU)
    assert not template.covers(specs_of(step(64)))
    with pytest.raises(PlanError, match="upper end"):
        template.specialise(specs_of(step(64)))
    # The failed attempt leaves the template as it was.
    template.specialise(specs_of(step(50)))
    assert plan_graph(graph, specs_of(step(64)), CPU).covers(specs_of(step(64)))


def test_size_without_some_command_raises() -> None:
    """An empty past needs no copy, so its commands are not those of the class."""
    template = Template(decoder(), specs_of(step(63)), CPU)
    assert template.covers(specs_of(step(0)))
    with pytest.raises(PlanError, match="present"):
        template.specialise(specs_of(step(0)))


def test_size_that_can_not_work_in_place_raises() -> None:
    build = GraphBuilder()
    x = build.node(Scale(), build.input("x", "n", 4))
    y = build.node(Scale(), build.input("y", "m", 4))
    graph = build.graph(build.node(Flip(), build.node(Sum(), x, y)))
    template = Template(graph, {"x": TensorSpec((8, 4), FLOAT), "y": TensorSpec((8, 4), FLOAT)}, CPU)
    # The sum lies in x's bytes; with one row of x and many of y it can't.
    with pytest.raises(PlanError, match="in place"):
        template.specialise({"x": TensorSpec((1, 4), FLOAT), "y": TensorSpec((8, 4), FLOAT)})
    template.specialise({"x": TensorSpec((7, 4), FLOAT), "y": TensorSpec((7, 4), FLOAT)})


def test_windows_placed_in_another_buffer_move_with_the_size() -> None:
    build = GraphBuilder()
    first, second = build.nodes(Halves(), build.input("x", "n", 4), count=2)
    joined = build.node(Join(), build.node(Scale(), first), build.node(Scale(3.0), second))
    graph = build.graph(build.node(Flip(), joined))
    template = Template(graph, {"x": TensorSpec((8, 4), FLOAT)}, CPU)
    for rows in range(2, 9):
        verify(template.plan, template.specialise({"x": TensorSpec((rows, 4), FLOAT)}))


def watched() -> Graph:
    build = GraphBuilder()
    fixed, x = build.input("fixed", 4, 4), build.input("x", "n", 4)
    early = build.node(Scale(), fixed)
    return build.graph(
        early, build.node(Watched(), x, name="watched"), build.node(Flip(), build.node(Scale(3.0), fixed))
    )


def rows(extent: int) -> dict[str, TensorSpec]:
    return {"fixed": TensorSpec((4, 4), FLOAT), "x": TensorSpec((extent, 4), FLOAT)}


@pytest.mark.parametrize(("extent", "message"), [(3, "'?watched'? is other commands"), (2, "buffers")])
def test_size_that_needs_other_commands_raises_and_leaves_the_template_usable(extent: int, message: str) -> None:
    template = Template(watched(), rows(8), GPU)
    template.specialise(rows(6))
    with pytest.raises(PlanError, match=message):
        template.specialise(rows(extent))
    assert template.specialise(rows(8)).commands == template.plan.segment.commands


def test_size_that_reads_content_which_the_class_does_not_raises_each_time() -> None:
    build = GraphBuilder()
    x, y = build.input("x", "n", 4), build.input("y", 2)
    graph = build.graph(build.node(Watched(), x, y))

    def specs(extent: int) -> dict[str, TensorSpec]:
        return {"x": TensorSpec((extent, 4), FLOAT), "y": TensorSpec.of(np.zeros(2, np.float32))}

    template = Template(graph, specs(8), CPU)
    for _ in range(2):
        template.specialise(specs(6))
        with pytest.raises(PlanError, match="reads the content of inputs"):
            template.specialise(specs(5))
    assert [read.input for read in plan_graph(graph, specs(5), CPU).plan.reads] == ["y"]


def test_covers_by_extents_ranks_and_dtypes() -> None:
    template = Template(decoder(), specs_of(step(63)), CPU)
    fits = specs_of(step(40))
    assert template.ends == {"new": (1, 4), "past": (63, 4), "mask": (64, 1)}
    assert template.covers(fits)
    assert not template.covers({**fits, "past": TensorSpec((64, 4), FLOAT)})
    assert not template.covers({**fits, "past": TensorSpec((40, 4, 1), FLOAT)})
    assert not template.covers({**fits, "past": TensorSpec((40, 4), np.dtype(np.float64))})


def test_sizes_that_do_not_fit_the_graph_are_the_callers_error() -> None:
    specs = {**specs_of(step(20)), "mask": TensorSpec((20, 1), FLOAT)}
    with pytest.raises(InputError, match="scores"):
        plan_graph(decoder(), specs, CPU)


def test_operators_without_lowering_are_refused_together_where_there_are_kernels() -> None:
    build = GraphBuilder()
    x = build.input("x", 4)
    graph = build.graph(build.node(NoKernel(), build.node(NoKernel(), x, name="a"), name="b"))
    specs = {"x": TensorSpec((4,), FLOAT)}
    with pytest.raises(UnsupportedError, match=r"test.NoKernel \(2: a, b\)"):
        plan_graph(graph, specs, GPU)
    plan = plan_graph(graph, specs, CPU).plan
    assert [c.operator for c in plan.segment.commands if isinstance(c, HostCall)] == ["test.NoKernel"] * 2


def test_planning_twice_gives_equal_plans() -> None:
    for seed in range(10):
        graph = random_graph(seed)
        specs = {"x": TensorSpec((8, 4), FLOAT)}
        assert plan_graph(graph, specs, GPU).plan == plan_graph(graph, specs, GPU).plan


@pytest.mark.parametrize("target", [CPU, GPU])
def test_layers_that_are_alike_are_analysed_once_and_keep_their_own_buffers(target: Target) -> None:
    def layered(count: int) -> Graph:
        build = GraphBuilder()
        value = build.input("x", "n", 4)
        for _ in range(count):
            value = build.node(Sum(), build.node(Watched(), value), build.node(Flip(), value))
        return build.graph(value)

    calls: list[None] = []
    template = Template(layered(5), {"x": TensorSpec((8, 4), FLOAT)}, target)
    WATCHING.append(lambda: calls.append(None))
    try:
        variant = template.specialise({"x": TensorSpec((6, 4), FLOAT)})
    finally:
        WATCHING.clear()
    assert len(calls) == 1
    verify(template.plan, variant)
    if target is CPU:
        arrays = {"x": np.arange(24, dtype=np.float32).reshape(6, 4)}
        (got,) = run_template(template, layered(5), arrays, CpuDevice())
        np.testing.assert_array_equal(got, compute_graph(layered(5), arrays)[0])


def test_nodes_that_differ_only_in_which_input_comes_twice_are_distinguished() -> None:
    build = GraphBuilder()
    x = build.input("x", "n", 4)
    a, b = build.node(Scale(2.0), x), build.node(Scale(3.0), x)
    graph = build.graph(build.node(Sum(), a, b, a), build.node(Sum(), a, b, b))
    arrays = {"x": np.arange(8, dtype=np.float32).reshape(2, 4)}
    got = run_template(Template(graph, specs_of(arrays), CPU), graph, arrays, CpuDevice())
    for one, expected in zip(got, compute_graph(graph, arrays), strict=True):
        np.testing.assert_array_equal(one, expected)


def test_one_thread_at_a_time_specialises() -> None:
    template = Template(watched(), rows(8), CPU)
    held: list[bool] = []
    WATCHING.append(lambda: held.append(template._lock.locked()))
    try:
        template.specialise(rows(7))
    finally:
        WATCHING.clear()
    assert held == [True]


def test_first_variant_at_the_upper_end_is_the_plan_itself() -> None:
    template = Template(watched(), rows(8), CPU)
    first = template.specialise(rows(8))
    assert first.commands is template.plan.segment.commands
    assert first.inputs == tuple(port.spec for port in template.plan.inputs)
    assert first.outputs == tuple(port.spec for port in template.plan.outputs)
    other = template.specialise(rows(7))
    assert other.inputs != first.inputs and template.specialise(rows(7)) is other
    assert template.specialise(rows(8)) == first
