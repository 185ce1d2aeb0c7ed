"""Partitions of graphs: the ready graph, values to read, host nodes, and what is left for later."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from gpuexec.ir.graphs import Graph
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.planner.partition import Partition
from gpuexec.planner.partitioner import find_partition
from tests.ir.graph_builder import GraphBuilder
from tests.ops.operators import FLOAT, INT, Extents, Join, NoKernel, Reshaped, Scale, Sum

GPU = Target.named("sm_90")
# More bytes than the host touches while it could read from a device.
MANY = 40000


def partition(
    graph: Graph, specs: Mapping[str, TensorSpec], target: Target = GPU, computed: tuple[str, ...] = ()
) -> Partition:
    by_name = {value.name: value for value in graph.inputs}
    given = {by_name[name]: spec for name, spec in specs.items()}
    return find_partition(graph, given, target, computed=frozenset(by_name[name] for name in computed))


def names(graph: Graph | None) -> list[str]:
    return [] if graph is None else [node.name for node in graph.nodes]


def given(*extents: int) -> TensorSpec:
    """Return the spec of extents that the host has."""
    return TensorSpec.of(np.array(extents, np.int64))


FAR = TensorSpec((2,), INT)


def reshaping(links: int = 1) -> Graph:
    """y = scale(reshape(scale(x), s + s + ...)), with so many sums."""
    build = GraphBuilder()
    x, shape = build.input("x", "n"), build.input("s", 2, dtype=INT)
    for link in range(links):
        shape = build.node(Sum(), shape, shape, name=f"sum{link}")
    before = build.node(Scale(), x, name="before")
    return build.graph(build.node(Scale(), build.node(Reshaped(), before, shape, name="reshape"), name="after"))


def test_graph_that_needs_nothing_of_the_host_is_ready_as_it_stands() -> None:
    graph = reshaping()
    found = partition(graph, {"x": TensorSpec((24,), FLOAT), "s": given(2, 3)})
    assert found.ready is graph and found.rest is None and not found.reads and not found.host_nodes
    assert found.foreseen == {graph.outputs[0]: TensorSpec((4, 6), FLOAT)}


@pytest.mark.parametrize("target", ["sm_90", "cpu"])
def test_content_on_a_device_is_read_where_light_arithmetic_begins(target: str) -> None:
    graph = reshaping(3)
    found = partition(graph, {"x": TensorSpec((24,), FLOAT), "s": FAR}, Target.named(target))
    (read,) = found.reads
    assert (read.value.name, read.reader, read.role) == ("s", "reshape", "shape")
    assert names(found.ready) == ["before"]
    # The host computes what follows from the read when the rest is planned.
    assert names(found.rest) == ["sum0", "sum1", "sum2", "reshape", "after"]
    assert found.rest is not None and {value.name for value in found.rest.inputs} == {"before.out", "s"}


def test_arithmetic_that_doubles_back_again_and_again_is_followed_once() -> None:
    # 2 ** 2000 ways lead from the read to the shape.
    found = partition(reshaping(2000), {"x": TensorSpec((24,), FLOAT), "s": FAR})
    assert [read.value.name for read in found.reads] == ["s"]


def test_content_of_a_long_chain_is_computed_without_a_read() -> None:
    graph = reshaping(2000)
    shape = given(0, 0)
    found = partition(graph, {"x": TensorSpec((0,), FLOAT), "s": shape})
    assert found.ready is graph and found.foreseen == {graph.outputs[0]: TensorSpec((0, 0), FLOAT)}


def test_heavy_producer_stays_on_the_device_and_its_result_is_read() -> None:
    build = GraphBuilder()
    x, large = build.input("x", "n"), build.input("large", "m", dtype=INT)
    shape = build.node(Extents(), x)
    heavy = build.node(Scale(), large, name="heavy")
    graph = build.graph(build.node(Reshaped(), x, build.node(Join(), heavy, shape, name="join"), name="reshape"))
    found = partition(graph, {"x": TensorSpec((6,), FLOAT), "large": TensorSpec((MANY,), INT)})
    assert [read.value.name for read in found.reads] == ["join.out"]
    assert names(found.ready)[1:] == ["heavy", "join"] and names(found.rest) == ["reshape"]


def test_node_without_a_kernel_is_computed_on_the_host_of_a_device_with_kernels() -> None:
    build = GraphBuilder()
    x = build.input("x", "n")
    middle = build.node(NoKernel(), build.node(Scale(), x, name="before"), name="call")
    graph = build.graph(build.node(Scale(), middle, name="after"))
    found = partition(graph, {"x": TensorSpec((MANY,), FLOAT)})
    assert [node.name for node in found.host_nodes] == ["call"] == [node.name for node in found.host_calls]
    assert [(read.value.name, read.reader) for read in found.reads] == [("before.out", "call")]
    assert (names(found.ready), names(found.rest)) == (["before"], ["after"])
    # Its extents don't depend on data: they are known beforehand.
    assert found.foreseen == {graph.outputs[0]: TensorSpec((MANY,), FLOAT)}
    assert partition(graph, {"x": TensorSpec((MANY,), FLOAT)}, Target.named("cpu")).ready is graph


def test_all_that_a_node_asks_for_is_read_in_one_go() -> None:
    from gpuexec.ops.tensor.slice import Slice

    build = GraphBuilder()
    x = build.input("x", "n")
    bounds = [build.input(name, 1, dtype=INT) for name in ("starts", "ends", "axes", "steps")]
    graph = build.graph(build.node(Slice(), x, *bounds, name="slice"))
    one = TensorSpec((1,), INT)
    specs = {"x": TensorSpec((6,), FLOAT), "starts": one, "ends": given(3), "axes": one, "steps": one}
    found = partition(graph, specs)
    assert [(read.value.name, read.role) for read in found.reads] == [
        ("starts", "starts"),
        ("axes", "axes"),
        ("steps", "steps"),
    ]
    assert found.bounds == {graph.outputs[0]: TensorSpec((6,), FLOAT)}


def test_extents_that_a_run_computed_are_planned_apart() -> None:
    graph = reshaping(0)
    specs = {"x": TensorSpec((6,), FLOAT), "s": given(2, 3)}
    found = partition(graph, specs, computed=("s",))
    assert names(found.ready) == ["before", "reshape"] and names(found.rest) == ["after"]
    assert found.reads == ()


def test_extents_from_content_given_on_the_host_go_to_the_rest_as_content() -> None:
    build = GraphBuilder()
    x, near, far = (build.input(name, 2, dtype=INT) for name in ("x", "near", "far"))
    first = build.node(Reshaped(), x, far, name="first")
    doubled = build.node(Sum(), near, near, name="doubled")
    graph = build.graph(build.node(Reshaped(), first, doubled, name="second"))
    found = partition(graph, {"x": FAR, "near": given(1, 0), "far": FAR})
    assert [read.value.name for read in found.reads] == ["far"]
    # `doubled` is computed anew from `near` there, instead of being read from the device.
    assert found.rest is not None and {value.name for value in found.rest.inputs} == {"x", "near", "far"}


def test_rest_is_ready_once_the_content_is_there() -> None:
    build = GraphBuilder()
    x, shape = build.input("x", "n"), build.input("s", 2, dtype=INT)
    graph = build.graph(build.node(Reshaped(), x, shape, name="reshape"))
    found = partition(graph, {"x": TensorSpec((6,), FLOAT), "s": FAR})
    assert found.ready is None and found.rest is not None
    assert partition(found.rest, {"x": TensorSpec((6,), FLOAT), "s": given(2, 3)}).ready is found.rest
