"""Shape inference and host values: content of inputs is read only on demand, and noted."""

from __future__ import annotations

import numpy as np
import pytest

from gpuexec.devices.cpu.cpu import CpuDevice
from gpuexec.errors import InputError, NeedsHostValue
from gpuexec.ir.command import HostCall
from gpuexec.ir.graphs import Graph
from gpuexec.ir.plan import KeptOnHost, Read
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ops.tensor.shape import Range
from gpuexec.planner.template import Template, plan_graph
from tests.devices.execute import run_template, specs_of
from tests.ir.graph_builder import GraphBuilder, compute_graph
from tests.ops.operators import FLOAT, INT, Extents, Join, Reshaped, Room, Scale, Sum


def plan(graph: Graph, specs: dict[str, TensorSpec], target: str = "cpu") -> Template:
    return plan_graph(graph, specs, Target.named(target))


def shape_chain() -> Graph:
    """Scale, then reshape to the input's own shape with 0 and 1 added to it: all of that is shape arithmetic."""
    build = GraphBuilder()
    x = build.input("x", "n", 4)
    shape = build.node(Sum(), build.node(Extents(), x), build.constant(np.zeros(2, np.int64)))
    shape = build.node(Join(), shape, build.constant(np.ones(1, np.int64)))
    return build.graph(build.node(Reshaped(), build.node(Scale(), x, name="scale"), shape, name="reshape"))


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
def test_shape_arithmetic_never_becomes_commands(target: str) -> None:
    template = plan(shape_chain(), {"x": TensorSpec((3, 4), FLOAT)}, target)
    segment = template.plan.segment
    assert segment.origins == ("scale",)  # type: ignore[union-attr]
    assert KeptOnHost("join2.out", "reshape", "follows from shapes", 24) in template.plan.host_values
    assert template.specialise({"x": TensorSpec((3, 4), FLOAT)}).outputs[0].shape == (3, 4, 1)


def test_host_value_that_a_command_reads_is_stored() -> None:
    build = GraphBuilder()
    x = build.input("x", "n", 4)
    extents = build.node(Extents(), x, name="extents")
    y = build.input("y", 2, dtype=INT)
    graph = build.graph(build.node(Sum(), y, extents, name="sum"), build.node(Scale(), x))
    template = plan(graph, {"x": TensorSpec((3, 4), FLOAT), "y": TensorSpec((2,), INT)})
    names = [c.operator for c in template.plan.segment.commands if isinstance(c, HostCall)]
    assert names == ["Constant", "test.Sum", "test.Scale"]
    for rows in (3, 2):
        arrays = {"x": np.ones((rows, 4), np.float32), "y": np.array([10, 20])}
        got = run_template(template, graph, arrays, CpuDevice())
        np.testing.assert_array_equal(got[0], [10 + rows, 24])


def test_host_value_that_is_an_output_is_stored() -> None:
    build = GraphBuilder()
    graph = build.graph(build.node(Extents(), build.input("x", "n", 4)))
    template = plan(graph, {"x": TensorSpec((3, 4), FLOAT)})
    (got,) = run_template(template, graph, {"x": np.ones((3, 4), np.float32)}, CpuDevice())
    np.testing.assert_array_equal(got, [3, 4])


def demanding() -> Graph:
    build = GraphBuilder()
    x = build.input("x", "n", 4)
    shape = build.input("shape", 2, dtype=INT)
    unread = build.input("unread", 2, dtype=INT)
    sum_ = build.node(Sum(), shape, build.constant(np.zeros(2, np.int64)))
    return build.graph(build.node(Reshaped(), x, sum_, name="reshape"), build.node(Scale(), unread))


ARRAYS = {
    "x": np.arange(12, dtype=np.float32).reshape(3, 4),
    "shape": np.array([2, 6]),
    "unread": np.array([1, 2]),
}


def test_content_given_on_the_host_is_read_on_demand_and_noted() -> None:
    template = plan(demanding(), specs_of(ARRAYS, on_host=True))
    assert template.plan.reads == (Read("shape", "reshape", "shape"),)
    variant = template.specialise(specs_of(ARRAYS, on_host=True))
    assert variant.outputs[0].shape == (2, 6)
    assert any(kept.why == "given on the host" and kept.reader == "reshape" for kept in template.plan.host_values)


def test_every_reader_of_content_is_noted() -> None:
    build = GraphBuilder()
    x, shape = build.input("x", 3, 4), build.input("shape", 2, dtype=INT)
    graph = build.graph(*(build.node(Reshaped(), x, shape, name=name) for name in ("first", "second", "third")))
    template = plan(graph, specs_of({name: ARRAYS[name] for name in ("x", "shape")}, on_host=True))
    assert [read.node for read in template.plan.reads] == ["first", "second", "third"]


def test_other_content_makes_another_variant() -> None:
    graph = demanding()
    template = plan(graph, specs_of(ARRAYS, on_host=True))
    other = {**ARRAYS, "shape": np.array([4, 3])}
    assert template.specialise(specs_of(other, on_host=True)).outputs[0].shape == (4, 3)
    assert template.specialise(specs_of(ARRAYS, on_host=True)).outputs[0].shape == (2, 6)


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
def test_content_demanded_for_a_shape_is_there_for_lowering_too(target: str) -> None:
    build = GraphBuilder()
    limit = build.node(Sum(), build.input("limit", dtype=INT), build.constant(np.array(1)))
    bounds = (build.constant(np.array(3)), limit, build.constant(np.array(2)))
    graph = build.graph(build.node(Range(), *bounds), limit)
    template = plan(graph, specs_of({"limit": np.array(9)}, on_host=True), target)
    variant = template.specialise(specs_of({"limit": np.array(7)}, on_host=True))
    assert [spec.shape for spec in variant.outputs] == [(3,), ()]
    assert {read.input for read in template.plan.reads} == {"limit"}


def test_content_on_a_device_that_a_shape_needs_is_refused_by_name() -> None:
    with pytest.raises(NeedsHostValue, match=r"'reshape'.*%shape.*shape.*given on a device") as caught:
        plan(demanding(), specs_of(ARRAYS))
    assert (caught.value.node, caught.value.value, caught.value.role) == ("reshape", "shape", "shape")


def test_inputs_that_do_not_fit_are_refused_with_node_and_specs() -> None:
    build = GraphBuilder()
    graph = build.graph(build.node(Sum(), build.input("x", 2, 3), build.input("y", 2, 4), name="sum"))
    with pytest.raises(InputError, match=r"test.Sum 'sum' \(%x: float32\[2,3\], %y: float32\[2,4\]\)") as caught:
        plan(graph, {"x": TensorSpec((2, 3), FLOAT), "y": TensorSpec((2, 4), FLOAT)})
    assert caught.value.node == "sum"


def test_large_values_are_not_propagated() -> None:
    build = GraphBuilder()
    large = build.constant(np.zeros(1000, np.float32))
    graph = build.graph(build.node(Scale(), large), build.node(Scale(), build.constant(np.zeros(2, np.float32))))
    template = plan(graph, {})
    names = [c.operator for c in template.plan.segment.commands if isinstance(c, HostCall)]
    assert sorted(names) == ["Constant", "test.Scale"]
    got = run_template(template, graph, {}, CpuDevice())
    for one, expected in zip(got, compute_graph(graph, {}), strict=True):
        np.testing.assert_array_equal(one, expected)


def room_specs(first: int, second: int, total: int) -> dict[str, TensorSpec]:
    inputs = {"x": TensorSpec((first, 4), FLOAT), "y": TensorSpec((second, 4), FLOAT)}
    return {**inputs, "total": TensorSpec.of(np.array(total))}


def test_numbers_that_are_all_the_same_to_a_reader_are_reported_as_one() -> None:
    build = GraphBuilder()
    rows = [build.input(name, "n", 4) for name in ("x", "y")]
    total = build.input("total", dtype=INT)
    graph = build.graph(*(build.node(Room(), x, total, name=x.name) for x in rows))
    template = plan(graph, room_specs(3, 4, 7))
    variants = {
        (held, count): template.specialise(room_specs(held, 4, count)) for count in (1, 2, 6) for held in (2, 3)
    }
    for (held, count), variant in variants.items():
        assert [spec.shape for spec in variant.outputs] == [(max(held, count), 4), (max(4, count), 4)]
        assert variant.reads == (Read("total", "x", "total", held), Read("total", "y", "total", 4))
    keys = {key: [read.extract(np.array(key[1])) for read in variant.reads] for key, variant in variants.items()}
    assert keys[2, 1] == keys[2, 2] != keys[2, 6] and keys[2, 2] != keys[3, 2] == keys[3, 1]


def test_a_number_that_is_computed_is_read_whole() -> None:
    build = GraphBuilder()
    total = build.node(Sum(), build.input("total", dtype=INT), build.constant(np.array(1)))
    graph = build.graph(build.node(Room(), build.input("x", "n", 4), total, name="x"))
    template = plan(graph, {"x": TensorSpec((3, 4), FLOAT), "total": TensorSpec.of(np.array(1))})
    assert template.plan.reads == (Read("total", "x", "total"),)
