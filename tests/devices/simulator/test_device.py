"""The simulator device: memory, kernels by table, final faults."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuexec.devices.arguments import PackedArguments
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.devices.simulator.library import Schedule
from gpuexec.devices.simulator.operations import Operation
from gpuexec.devices.simulator.stream import SimulatorStream
from gpuexec.errors import ClosedError, DeviceLostError, KernelError, OutOfMemoryError
from gpuexec.ir.command import Kernel, LaunchConfig
from tests.devices.simulator.conftest import FOLDER, TABLE, instantiations

MISTAKES = str(FOLDER / "mistakes.cu")
STORE, DEADLOCK = Kernel(MISTAKES, "store"), Kernel(MISTAKES, "deadlock")
RACE = Kernel(MISTAKES, "missing_barrier")
# In the first pages, where an operating system maps nothing.
NOWHERE = 0x1000


@pytest.fixture
def device() -> Iterator[SimulatorDevice]:
    device = SimulatorDevice(instantiations)
    device.load([STORE, DEADLOCK])
    yield device
    device.close()


def launch_store(device: SimulatorDevice, stream: SimulatorStream, address: int, index: int) -> None:
    arguments = PackedArguments([None, np.int32(index), np.int32(0)])
    arguments.set_pointer(0, address)
    stream.launch(device.function(STORE), LaunchConfig((1, 1, 1), (1, 1, 1)), arguments)


def test_memory_left_at_the_end_of_the_process_is_left_alone(device: SimulatorDevice) -> None:
    memory = device.allocate(64)
    memory.__del__(is_over=lambda: True)  # by then modules that freeing takes may be gone
    stream = device.create_stream()
    launch_store(device, stream, memory.address, 0)
    stream.synchronize()  # no fault
    memory.free()


def test_load_takes_every_instance_of_a_file(device: SimulatorDevice) -> None:
    for expression in TABLE["mistakes.cu"]:
        assert device.function(Kernel(MISTAKES, expression)).expression == expression


def test_kernel_outside_the_table_is_refused_by_its_name(device: SimulatorDevice) -> None:
    with pytest.raises(
        KernelError, match=r"unary<Foo, float> is not in the table .*conftest.instantiations\), which has"
    ):
        device.load([Kernel(str(FOLDER / "basic.cu"), "unary<Foo, float>")])
    with pytest.raises(KernelError, match=r"k is not in the table .*, which has 0 for absent.cu"):
        device.load([Kernel("absent.cu", "k")])


def test_kernel_that_was_not_loaded_is_refused(device: SimulatorDevice) -> None:
    with pytest.raises(KernelError, match="add was not loaded; call load first"):
        device.function(Kernel(str(FOLDER / "basic.cu"), "add"))


def test_store_past_the_end_says_where(device: SimulatorDevice) -> None:
    stream, memory = device.create_stream(), device.allocate(1000)
    # the last 256 bytes of 1000 are slack; what comes after them faults
    launch_store(device, stream, memory.address, 256)
    message = r"illegal address 0x\w+ .*: address 0x\w+ lies 24 bytes past the end of an allocation of 1000"
    with pytest.raises(DeviceLostError, match=r"^simulator \(sm_90\): mistakes.cu:store: " + message):
        stream.synchronize()


def test_store_to_nowhere_says_so(device: SimulatorDevice) -> None:
    stream = device.create_stream()
    launch_store(device, stream, NOWHERE, 0)
    message = r"illegal address 0x\w+ .* lies in no allocation"
    with pytest.raises(DeviceLostError, match=r"^simulator \(sm_90\): mistakes.cu:store: " + message):
        stream.synchronize()


@pytest.mark.parametrize("index", [1 << 10, 1 << 24, (1 << 31) - 1])
def test_store_far_behind_memory_faults_whatever_the_process_has_there(device: SimulatorDevice, index: int) -> None:
    memory = device.allocate(64)
    others = [np.zeros(1 << 23, np.uint8) for _ in range(8)]  # what a host maps falls into the nearest gaps
    stream = device.create_stream()
    launch_store(device, stream, memory.address, index)
    with pytest.raises(DeviceLostError, match="illegal address"):
        stream.synchronize()
    assert not any(each.any() for each in others)


def test_addresses_behind_memory_belong_to_nobody(device: SimulatorDevice) -> None:
    memories = [device.allocate(nbytes) for nbytes in (0, 1, 70_000)]
    rows = [line.split()[:2] for line in Path("/proc/self/maps").read_text().splitlines()]
    spans = [(*(int(end, 16) for end in span.split("-")), rights) for span, rights in rows]
    for memory in memories:
        behind = memory.address + -(-max(memory.nbytes, 1) // 256) * 256
        reached = [rights for first, end, rights in spans if first < behind + (8 << 30) and end > behind]
        assert reached == ["---p"]


def test_freed_memory_is_out_of_reach(device: SimulatorDevice) -> None:
    stream, memory = device.create_stream(), device.allocate(64)
    memory.free()
    memory.free()
    launch_store(device, stream, memory.address, 0)
    with pytest.raises(DeviceLostError, match=r"mistakes.cu:store: .* lies in 64 bytes that were freed"):
        stream.synchronize()


def test_memory_freed_before_its_copy_runs_is_a_fault() -> None:
    device = SimulatorDevice(instantiations, check_order=False)
    stream, memory = device.create_stream(), device.allocate(64)
    gate = stream.hold()
    stream.copy_to_host(np.zeros(64, np.uint8), memory.address)
    memory.free()
    gate.set()
    with pytest.raises(DeviceLostError, match=r"copy of 64 bytes: address 0x.* lies in 64 bytes that were freed"):
        stream.synchronize()
    device.close()


def test_after_a_fault_nothing_runs_and_everything_says_why(device: SimulatorDevice) -> None:
    stream, other, event = device.create_stream(), device.create_stream(), device.create_event()
    memory, graph, ran = device.allocate(64), device.create_graph([], []), []
    gate = other.hold()
    other.issue(Operation("note", lambda: ran.append("other")))
    other.record(event)
    arguments = PackedArguments([None])
    arguments.set_pointer(0, memory.address)
    stream.launch(device.function(DEADLOCK), LaunchConfig((1, 1, 1), (32, 1, 1)), arguments)
    stream.issue(Operation("note", lambda: ran.append("same")))
    with pytest.raises(DeviceLostError) as caught:
        stream.synchronize()
    gate.set()
    calls: list[Callable[[], Any]] = [
        stream.synchronize,
        stream.is_done,
        other.synchronize,
        event.synchronize,
        event.is_done,
        lambda: stream.record(event),
        lambda: stream.wait(event),
        lambda: launch_store(device, stream, memory.address, 0),
        lambda: stream.fill(memory.address, b"\0", 4),
        lambda: stream.copy(memory.address, memory.address, 4),
        lambda: device.allocate(4),
        lambda: device.allocate_pinned(4),
        device.create_stream,
        device.create_event,
        lambda: device.load([STORE]),
        lambda: graph.launch(stream),
    ]
    for call in calls:
        with pytest.raises(DeviceLostError, match=r"mistakes.cu:deadlock: deadlock in block 0,0,0.*The device is lost"):
            call()
    memory.free()
    device.close()
    assert ran == []
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_fault_wakes_those_who_wait(device: SimulatorDevice) -> None:
    stream, event, answers = device.create_stream(), device.create_event(), []
    gate = stream.hold()
    launch_store(device, stream, NOWHERE, 0)
    stream.record(event)

    def wait() -> None:
        try:
            event.synchronize()
        except DeviceLostError as error:
            answers.append(str(error))

    waiter = threading.Thread(target=wait)
    waiter.start()
    gate.set()
    waiter.join(60)
    assert len(answers) == 1 and "mistakes.cu:store" in answers[0]


def test_fault_of_one_device_leaves_another_alone(device: SimulatorDevice) -> None:
    other = SimulatorDevice(instantiations)
    stream = device.create_stream()
    launch_store(device, stream, 0, 0)
    with pytest.raises(DeviceLostError):
        stream.synchronize()
    memory, out = other.allocate(4), np.zeros(4, np.uint8)
    other_stream = other.create_stream()
    other_stream.fill(memory.address, b"\x03", 4)
    other_stream.copy_to_host(out, memory.address)
    other_stream.synchronize()
    assert out.tolist() == [3, 3, 3, 3]
    other.close()


@pytest.mark.parametrize("nbytes", [0, 1, 255, 256, 257, 100_000])
def test_memory_is_aligned_and_poisoned(device: SimulatorDevice, nbytes: int) -> None:
    memory, stream, out = device.allocate(nbytes), device.create_stream(), np.zeros(nbytes, np.uint8)
    assert memory.address % 256 == 0
    stream.copy_to_host(out, memory.address)
    stream.synchronize()
    assert (out == 0xCD).all()
    assert memory.array is None


def test_memory_has_an_end() -> None:
    device = SimulatorDevice(instantiations, memory_bytes=1000)
    first = device.allocate(600)
    with pytest.raises(OutOfMemoryError, match="can't allocate 500 bytes: 600 of 1000 are in use"):
        device.allocate(500)
    first.free()
    assert device.allocate(500).nbytes == 500
    device.close()


def test_host_without_memory_is_an_error(device: SimulatorDevice) -> None:
    with pytest.raises(OutOfMemoryError, match="the host has no memory left"):
        device.allocate(1 << 60)


def test_close_finishes_held_work_and_then_refuses(device: SimulatorDevice) -> None:
    first, second, event, ran = device.create_stream(), device.create_stream(), device.create_event(), []
    first.hold()
    first.record(event)
    second.wait(event)
    second.issue(Operation("note", lambda: ran.append("second")))
    device.close()
    device.close()
    assert ran == ["second"]
    with pytest.raises(ClosedError, match=r"simulator \(sm_90\) was closed"):
        device.allocate(4)


def test_random_schedule_gives_each_launch_its_own_order() -> None:
    def run(seed: int) -> list[bytes]:
        device = SimulatorDevice(instantiations, schedule=Schedule("random", seed))
        device.load([RACE])
        stream, x, y = device.create_stream(), device.allocate(512), device.allocate(512)
        stream.copy_to_device(x.address, np.arange(128, dtype=np.float32).view(np.uint8))
        arguments = PackedArguments([None, None])
        arguments.set_pointer(0, x.address)
        arguments.set_pointer(1, y.address)
        results = [np.zeros(512, np.uint8) for _ in range(2)]
        for out in results:
            stream.launch(device.function(RACE), LaunchConfig((1, 1, 1), (128, 1, 1)), arguments)
            stream.copy_to_host(out, y.address)
        stream.synchronize()
        device.close()
        return [out.tobytes() for out in results]

    first = run(1)
    assert first[0] != first[1]
    assert run(1) == first
    assert run(2) != first
