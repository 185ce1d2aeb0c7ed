"""Missing waits: each kind is found whatever runs first, and ordered work passes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gpuexec.devices.arguments import PackedArguments
from gpuexec.devices.prepared import PreparedLaunch
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.devices.simulator.memory import DeviceMemory
from gpuexec.devices.simulator.stream import SimulatorStream
from gpuexec.errors import OrderError
from gpuexec.ir.command import Launch, LaunchConfig, Slot
from gpuexec.ir.spec import TensorSpec
from tests.devices.simulator.ordering.issuing import ADD, F32, Begin, launch_add, record, settle

USES: dict[str, Callable[[SimulatorDevice, SimulatorStream, DeviceMemory, DeviceMemory], None]] = {
    "fill": lambda device, stream, x, own: stream.fill(x.address, b"\1", 16),
    "upload": lambda device, stream, x, own: stream.copy_to_device(x.address, np.zeros(16, np.uint8)),
    "copy into": lambda device, stream, x, own: stream.copy(x.address, own.address, 16),
    "launch that writes": lambda device, stream, x, own: launch_add(device, stream, (own, 0), (own, 16), (x, 0)),
    "copy from": lambda device, stream, x, own: stream.copy(own.address, x.address, 16),
    "download": lambda device, stream, x, own: stream.copy_to_host(np.zeros(16, np.uint8), x.address),
    "launch that reads": lambda device, stream, x, own: launch_add(device, stream, (own, 0), (x, 0), (own, 16)),
}
READS = ("copy from", "download", "launch that reads")
PAIRS = [(a, b) for a in USES for b in USES]


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=[f"{a}, {b}" for a, b in PAIRS])
def test_uses_of_two_streams_need_a_wait_unless_both_read(
    device: SimulatorDevice, begin: Begin, first: str, second: str
) -> None:
    one, two, (x, own, other) = device.create_stream(), device.create_stream(), [device.allocate(64) for _ in range(3)]
    begin(one)
    USES[first](device, one, x, own)
    settle(one, begin)
    event = record(device, one)
    if first in READS and second in READS:
        USES[second](device, two, x, other)
        assert not device.context.ordering.findings
        return
    with pytest.raises(OrderError, match=r"nothing orders the two: let stream 2 wait for an event .* stream 1 aft"):
        USES[second](device, two, x, other)
    two.wait(event)
    USES[second](device, two, x, other)


def test_finding_names_both_and_the_bytes(device: SimulatorDevice) -> None:
    one, two, x, y = device.create_stream(), device.create_stream(), device.allocate(64), device.allocate(64)
    launch_add(device, one, (y, 0), (y, 0), (x, 16))
    with pytest.raises(OrderError, match=r"Copy of 8 bytes on stream 2 reads bytes 24 to 32 of 64 bytes of device mem"):
        two.copy(y.address + 32, x.address + 24, 8)
    (finding,) = device.context.ordering.findings
    assert finding.earlier == "launch of basic.cu:add for 'node' on stream 1 writes"
    assert finding.later == "copy of 8 bytes on stream 2 reads"
    assert (finding.first, finding.last) == (24, 32)
    assert finding.cure == "let stream 2 wait for an event recorded on stream 1 after it"


def test_bytes_of_a_planned_launch_are_those_of_its_slots(device: SimulatorDevice) -> None:
    one, two, x, y = device.create_stream(), device.create_stream(), device.allocate(64), device.allocate(64)
    launch_add(device, one, (y, 0), (y, 0), (x, 0))
    launch_add(device, two, (y, 0), (y, 4), (x, 16))
    with pytest.raises(OrderError, match="bytes 28 to 32 of 64"):
        launch_add(device, one, (y, 0), (y, 0), (x, 28))


def test_launch_of_another_size_uses_other_bytes(device: SimulatorDevice) -> None:
    one, two, x = device.create_stream(), device.create_stream(), device.allocate(64)

    def make(count: int) -> Launch:
        slot = Slot(0, 0, TensorSpec((count,), F32), (1,))
        return Launch(ADD, (1, 1, 1), (32, 1, 1), (slot, slot, slot, np.int32(count)), (2,))

    prepared = PreparedLaunch(device.function(ADD), make(4))
    for position in range(3):
        prepared.set_address(position, x.address)
    prepared.issue(one)
    two.fill(x.address + 16, b"\0", 4)
    one.wait(record(device, two))
    prepared.update(make(8))
    prepared.issue(one)
    with pytest.raises(OrderError, match="bytes 28 to 32"):
        two.fill(x.address + 28, b"\0", 16)


def test_strided_slot_stands_for_all_it_spans(device: SimulatorDevice) -> None:
    one, two, x = device.create_stream(), device.create_stream(), device.allocate(256)
    window = Slot(0, 128, TensorSpec((2, 3), F32), (8, -4))  # floats 24 to 40 of x
    dense = Slot(1, 0, TensorSpec((4,), F32), (1,))
    command = Launch(ADD, (1, 1, 1), (32, 1, 1), (window, dense, dense, np.int32(0)), (2,))
    prepared = PreparedLaunch(device.function(ADD), command)
    for position, address in enumerate((x.address + 128, x.address, x.address)):
        prepared.set_address(position, address)
    prepared.issue(one)
    for offset in (16, 92, 164):
        two.fill(x.address + offset, b"\0\0\0\0", 1)
    for offset in (0, 12, 96, 160):
        with pytest.raises(OrderError):
            two.fill(x.address + offset, b"\0\0\0\0", 1)


def test_launch_from_elsewhere_uses_all_its_pointers_lie_in(device: SimulatorDevice) -> None:
    one, two, x, y = device.create_stream(), device.create_stream(), device.allocate(64), device.allocate(64)
    arguments = PackedArguments([None, None, None, np.int32(4)])
    for position in range(3):
        arguments.set_pointer(position, y.address)
    one.launch(device.function(ADD), LaunchConfig((1, 1, 1), (32, 1, 1)), arguments)
    two.fill(x.address, b"\0", 64)
    with pytest.raises(OrderError, match="bytes 60 to 64 of 64"):
        two.copy(x.address, y.address + 60, 4)


def test_wait_for_an_event_recorded_too_early_is_no_wait(device: SimulatorDevice, begin: Begin) -> None:
    one, two, x = device.create_stream(), device.create_stream(), device.allocate(16)
    begin(one)
    event = record(device, one)
    one.fill(x.address, b"\1", 16)
    two.wait(event)
    with pytest.raises(OrderError):
        two.fill(x.address, b"\2", 16)


def test_order_is_passed_on_from_stream_to_stream(device: SimulatorDevice, begin: Begin) -> None:
    one, two, three, x = *(device.create_stream() for _ in range(3)), device.allocate(16)
    begin(one)
    one.fill(x.address, b"\1", 16)
    two.wait(record(device, one))
    three.wait(record(device, two))
    three.fill(x.address, b"\2", 16)


@pytest.mark.parametrize("forgotten", [0, 1])
def test_write_must_wait_for_every_reader(device: SimulatorDevice, begin: Begin, forgotten: int) -> None:
    readers, writer, x = [device.create_stream() for _ in range(2)], device.create_stream(), device.allocate(16)
    for reader in readers:
        begin(reader)
        reader.copy_to_host(np.zeros(16, np.uint8), x.address)
    writer.wait(record(device, readers[1 - forgotten]))
    with pytest.raises(OrderError, match=f"which copy of 16 bytes on stream {forgotten + 1} reads"):
        writer.fill(x.address, b"\1", 16)
    writer.wait(record(device, readers[forgotten]))
    writer.fill(x.address, b"\1", 16)
