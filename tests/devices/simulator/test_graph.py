"""Graphs of the simulator: random order within the edges, and updated commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from gpuexec.devices.prepared import PreparedCommand, PreparedCopy, PreparedFill, PreparedLaunch
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.devices.simulator.library import Order, Schedule
from gpuexec.devices.simulator.memory import DeviceMemory
from gpuexec.errors import ClosedError, InputError
from gpuexec.ir.command import Copy, Fill, Kernel, Launch, Slot
from gpuexec.ir.spec import TensorSpec
from tests.devices.simulator.conftest import FOLDER, instantiations

STORE = Kernel(str(FOLDER / "mistakes.cu"), "store")
I32 = np.dtype(np.int32)


def slot() -> Slot:
    return Slot(0, 0, TensorSpec((1,), I32), (1,))


def fill(memory: DeviceMemory, value: int) -> PreparedFill:
    prepared = PreparedFill(Fill(slot(), value.to_bytes(4, "little")))
    prepared.set_address(0, memory.address)
    return prepared


def copy(destination: DeviceMemory, source: DeviceMemory) -> PreparedCopy:
    prepared = PreparedCopy(Copy(slot(), slot()))
    prepared.set_address(0, destination.address)
    prepared.set_address(1, source.address)
    return prepared


def store(device: SimulatorDevice, memory: DeviceMemory, value: int) -> PreparedLaunch:
    device.load([STORE])
    command = Launch(STORE, (1, 1, 1), (1, 1, 1), (slot(), np.int32(0), np.int32(value)), (0,))
    prepared = PreparedLaunch(device.function(STORE), command)
    prepared.set_address(0, memory.address)
    return prepared


def read(device: SimulatorDevice, memory: DeviceMemory) -> int:
    stream, out = device.create_stream(), np.zeros(4, np.uint8)
    stream.copy_to_host(out, memory.address)
    stream.synchronize()
    return int(out.view(np.int32)[0])


def make(order: Order = "forward", seed: int = 0, *, check_order: bool = True) -> SimulatorDevice:
    return SimulatorDevice(instantiations, schedule=Schedule(order, seed), check_order=check_order)


def run(device: SimulatorDevice, commands: Sequence[PreparedCommand], edges: Sequence[tuple[int, int]]) -> None:
    stream = device.create_stream()
    device.create_graph(commands, edges).launch(stream)
    stream.synchronize()


@pytest.fixture
def device() -> Iterator[SimulatorDevice]:
    device = make()
    yield device
    device.close()


@pytest.mark.parametrize(("order", "winner"), [("forward", 2), ("reverse", 1)])
def test_commands_without_an_edge_may_run_in_either_order(order: Order, winner: int) -> None:
    device = make(order, check_order=False)
    memory = device.allocate(4)
    run(device, [fill(memory, 1), fill(memory, 2)], [])
    assert read(device, memory) == winner
    device.close()


def test_random_order_takes_both_ways_and_repeats_with_its_seed() -> None:
    def winner(seed: int) -> int:
        device = make("random", seed, check_order=False)
        memory = device.allocate(4)
        run(device, [fill(memory, 1), fill(memory, 2)], [])
        value = read(device, memory)
        device.close()
        return value

    winners = [winner(seed) for seed in range(20)]
    assert set(winners) == {1, 2}
    assert winners == [winner(seed) for seed in range(20)]


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_edges_order_every_kind_of_command(order: Order) -> None:
    for seed in range(10):
        device = make(order, seed)
        a, b, c = (device.allocate(4) for _ in range(3))
        # 4 -> 2 -> 0 -> 3 and 4 -> 1: written against the order of positions
        commands = [copy(c, b), fill(a, 9), copy(b, a), store(device, b, 5), store(device, a, 7)]
        run(device, commands, [(4, 2), (2, 0), (0, 3), (2, 1), (4, 2)])
        assert [read(device, memory) for memory in (a, b, c)] == [9, 5, 7]
        device.close()


def test_graph_runs_again_and_again(device: SimulatorDevice) -> None:
    a, b, stream = device.allocate(4), device.allocate(4), device.create_stream()
    graph = device.create_graph([fill(a, 1), copy(b, a)], [(0, 1)])
    for value in (5, 6):
        stream.fill(b.address, bytes([value]), 4)
        graph.launch(stream)
        stream.synchronize()
        assert read(device, b) == 1


def test_update_changes_later_runs_only(device: SimulatorDevice) -> None:
    a, b, stream = device.allocate(4), device.allocate(4), device.create_stream()
    graph = device.create_graph([store(device, a, 1), copy(b, a)], [(0, 1)])
    gate = stream.hold()
    graph.launch(stream)
    graph.update([0], [store(device, a, 2)])
    gate.set()
    stream.synchronize()
    assert read(device, b) == 1
    graph.launch(stream)
    stream.synchronize()
    assert read(device, b) == 2


def test_graph_keeps_copies_of_its_commands(device: SimulatorDevice) -> None:
    a, b, stream = device.allocate(4), device.allocate(4), device.create_stream()
    command = store(device, a, 3)
    graph = device.create_graph([command], [])
    command.set_address(0, b.address)
    graph.launch(stream)
    stream.synchronize()
    assert read(device, a) == 3


@pytest.mark.parametrize(
    ("edges", "message"),
    [([(0, 1), (1, 0)], "form a cycle"), ([(0, 0)], "form a cycle"), ([(0, 2)], "names no command of a graph of 2")],
)
def test_edges_that_make_no_sense_are_refused(
    device: SimulatorDevice, edges: list[tuple[int, int]], message: str
) -> None:
    a = device.allocate(4)
    with pytest.raises(InputError, match=message):
        device.create_graph([fill(a, 1), fill(a, 2)], edges)


def test_closed_graph_refuses(device: SimulatorDevice) -> None:
    graph = device.create_graph([], [])
    graph.close()
    graph.close()
    with pytest.raises(ClosedError, match="graph was closed"):
        graph.launch(device.create_stream())
