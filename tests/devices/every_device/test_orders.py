"""Sufficiency of a plan's edges: random programs give equal bits in every order that they allow."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from gpuexec.devices.cpu.cpu import CpuDevice
from gpuexec.devices.device import Device, Event, Recording, Region, Stream
from gpuexec.devices.prepared import PreparedSegment
from gpuexec.devices.recording import record_graph
from gpuexec.devices.simulator.library import Schedule
from gpuexec.errors import OrderError, PlanError
from gpuexec.ir.graphs import Graph
from gpuexec.ir.plan import Plan, Segment
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.planner.edges import find_paths
from gpuexec.planner.template import plan_graph
from gpuexec.planner.verify import verify
from tests.devices.every_device.programs import make_input, make_program
from tests.devices.execute import LoadedPlan, Record
from tests.devices.opening import make_simulator, open_device
from tests.ir.graph_builder import compute_graph

ROWS = 16
SPEC = TensorSpec((ROWS, 8), np.dtype(np.float32))
SEEDS = range(30)


class SpreadRecording:
    """Issues each command on one of several streams, drawn at random; events stand for the edges between streams."""

    def __init__(self, device: Device, segment: Segment, memory: Mapping[int, Region], seed: int) -> None:
        self._device, self._edges = device, segment.edges
        self._segment = PreparedSegment(device, segment.commands, memory)
        self._streams = [device.create_stream() for _ in range(4)]
        self._random = random.Random(seed)

    def submit(self, stream: Stream, bindings: Mapping[int, Region], first: int = 0, last: int | None = None) -> None:
        self._segment.bind(bindings)
        streams = [stream, *self._streams]
        begun = self._device.create_event()
        stream.record(begun)
        for other in self._streams:
            other.wait(begun)
        events: list[Event] = []
        for position, command in enumerate(self._segment.commands):
            chosen = self._random.choice(streams)
            for before, after in self._edges:
                if after == position:
                    chosen.wait(events[before])
            command.issue(chosen)
            events.append(self._device.create_event())
            chosen.record(events[-1])
        for event in events:
            stream.wait(event)

    def patch(self, commands: object) -> None:
        raise AssertionError("the plan's own size is run")

    def close(self) -> None:
        """Hold nothing."""


def make_plan(seed: int, target: str) -> tuple[Graph, Plan]:
    graph = make_program(seed)
    plan = plan_graph(graph, {"x": SPEC}, Target.named(target)).plan
    verify(plan)
    return graph, plan


def differs(graph: Graph, plan: Plan, device: Device, record: Record | None, times: int = 1) -> bool:
    """Return whether one of several runs differs from the oracle by a bit."""
    arrays = make_input(0, ROWS)
    expected = compute_graph(graph, arrays)
    constants = {value.name: array for value, array in graph.constants.items()}
    with LoadedPlan(plan, constants, device, record) as loaded:
        runs = [loaded.run(arrays) for _ in range(times)]
    return any(got.tobytes() != want.tobytes() for run in runs for got, want in zip(run, expected, strict=True))


def without_edge(plan: Plan, edge: tuple[int, int]) -> Plan:
    segment = plan.segment
    return replace(plan, segment=replace(segment, edges=tuple(e for e in segment.edges if e != edge)))


def edges_of(plan: Plan) -> tuple[tuple[int, int], ...]:
    segment = plan.segment
    return segment.edges


@pytest.mark.parametrize("seed", SEEDS)
def test_cpu_runs_any_order(seed: int) -> None:
    graph, plan = make_plan(seed, "cpu")
    device = CpuDevice(order=random.Random(seed).randrange)
    assert not differs(graph, plan, device, None, times=5)
    device.close()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_graph_of_the_simulator_runs_any_order(seed: int, target: str) -> None:
    graph, plan = make_plan(seed, target)
    device = make_simulator(Schedule("random", seed), target=target)
    assert not differs(graph, plan, device, record_graph, times=5)
    device.close()


@pytest.mark.parametrize("check_kernels", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_stream_of_the_simulator_overlaps_dependent_launches(seed: int, check_kernels: bool) -> None:
    graph, plan = make_plan(seed, "sm_90")
    device = make_simulator(Schedule("random", seed), target="sm_90", check_kernels=check_kernels)
    assert not differs(graph, plan, device, None, times=3)
    device.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_streams_of_the_simulator_run_any_order(seed: int) -> None:
    graph, plan = make_plan(seed, "sm_80")
    device = make_simulator(Schedule("random", seed), delay_s=2e-4)

    def spread(device: Device, segment: Segment, memory: Mapping[int, Region]) -> Recording:
        return SpreadRecording(device, segment, memory, seed)

    assert not differs(graph, plan, device, spread, times=2)
    device.close()


@pytest.mark.gpu
@pytest.mark.parametrize("seed", SEEDS)
def test_gpu_runs_streams_and_graph_alike(seed: int) -> None:
    device = open_device("gpu")
    graph, plan = make_plan(seed, device.target.name)

    def spread(device: Device, segment: Segment, memory: Mapping[int, Region]) -> Recording:
        return SpreadRecording(device, segment, memory, seed)

    for record in (None, record_graph, spread):
        assert not differs(graph, plan, device, record, times=5)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("target", ["cpu", "sm_80"])
def test_verify_rejects_a_plan_whose_edge_was_removed(seed: int, target: str) -> None:
    _, plan = make_plan(seed, target)
    for edge in edges_of(plan):
        with pytest.raises(PlanError, match=r"no path of edges orders them|no command before it writes"):
            verify(without_edge(plan, edge))


def test_some_order_differs_once_an_edge_was_removed() -> None:
    """Orders are drawn widely enough to see what an edge is for."""
    seen = 0
    for seed in range(8):
        graph, plan = make_plan(seed, "sm_80")
        for edge in edges_of(plan):
            device = make_simulator(Schedule("random", seed), check_order=False)
            seen += differs(graph, without_edge(plan, edge), device, record_graph, times=6)
            device.close()
    assert seen >= 20


@pytest.mark.parametrize("seed", SEEDS)
def test_simulator_refuses_a_graph_whose_edge_was_removed(seed: int) -> None:
    """It names two commands that only the removed edge put in order, in whatever order it would have run them."""
    graph, plan = make_plan(seed, "sm_80")
    edges = edges_of(plan)
    paths = find_paths(len(plan.segment.commands), edges)  # type: ignore[union-attr]
    for number, edge in enumerate(edges):
        left = find_paths(len(paths), [each for each in edges if each != edge])
        device = make_simulator(Schedule("random", number))
        with pytest.raises(OrderError, match=r"the graph lacks an edge from node \d+ to node \d+") as caught:
            differs(graph, without_edge(plan, edge), device, record_graph)
        first, second = map(int, re.findall(r"from node (\d+) to node (\d+)", str(caught.value))[0])
        assert paths[second] >> first & 1 and not left[second] >> first & 1
        device.close()
