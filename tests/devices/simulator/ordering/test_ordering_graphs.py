"""Missing edges of graphs, and stream order of graph launches."""

from __future__ import annotations

import numpy as np
import pytest

from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.devices.simulator.library import Order, Schedule
from gpuexec.errors import OrderError
from tests.devices.simulator.conftest import instantiations
from tests.devices.simulator.ordering.issuing import record
from tests.devices.simulator.test_graph import copy, fill

ORDERS: tuple[Order, ...] = ("forward", "reverse", "random")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("missing", [(0, 1), (1, 2), (1, 3), (3, 4)])
def test_missing_edge_of_a_graph_is_found(order: Order, missing: tuple[int, int]) -> None:
    for seed in range(4):
        device = SimulatorDevice(instantiations, schedule=Schedule(order, seed), check_order=True)
        a, b, c, d, stream = *(device.allocate(4) for _ in range(4)), device.create_stream()
        commands = [fill(a, 1), copy(b, a), copy(c, b), copy(d, b), fill(b, 2)]
        edges = {(0, 1), (1, 2), (1, 3), (2, 4), (3, 4)}
        device.create_graph(commands, sorted(edges)).launch(stream)
        assert not device.context.ordering.findings
        broken = device.create_graph(commands, sorted(edges - {missing}))
        with pytest.raises(OrderError, match=f"the graph lacks an edge from node {missing[0]} to node {missing[1]}"):
            broken.launch(stream)
        device.create_graph(commands, sorted(edges)).launch(stream)
        device.close()


def test_refused_graph_runs_not_at_all(device: SimulatorDevice) -> None:
    a, b, stream, other = device.allocate(4), device.allocate(4), device.create_stream(), device.create_stream()
    stream.fill(a.address, b"\7", 4)
    with pytest.raises(OrderError):
        device.create_graph([fill(a, 1), fill(b, 1), fill(b, 2)], []).launch(stream)
    out = np.zeros(4, np.uint8)
    stream.copy_to_host(out, a.address)
    stream.synchronize()
    assert out.tolist() == [7, 7, 7, 7]
    other.fill(b.address, b"\0", 4)


@pytest.mark.parametrize("is_waited_for", [False, True])
def test_launches_of_graphs_are_ordered_by_their_streams(device: SimulatorDevice, is_waited_for: bool) -> None:
    a, b, one, two = device.allocate(4), device.allocate(4), device.create_stream(), device.create_stream()
    graph = device.create_graph([fill(a, 1), fill(b, 2)], [])
    graph.launch(one)
    graph.launch(one)
    if is_waited_for:
        two.wait(record(device, one))
        graph.launch(two)
    else:
        with pytest.raises(OrderError, match="let stream 2 wait"):
            graph.launch(two)
