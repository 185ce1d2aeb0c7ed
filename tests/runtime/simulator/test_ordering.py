"""A missing wait is found whatever runs first: each kind is planted, and what is in order passes."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest

from gpuexec.command import Kernel, Launch, Slot
from gpuexec.errors import OrderError
from gpuexec.runtime.arguments import PackedArguments
from gpuexec.runtime.completion import Completion, WatcherThread
from gpuexec.runtime.device import begin_host_read, begin_host_write
from gpuexec.runtime.prepared import PreparedLaunch
from gpuexec.runtime.simulator.device import SimulatorDevice
from gpuexec.runtime.simulator.library import Order, Schedule
from gpuexec.runtime.simulator.memory import AddressMap, DeviceMemory, PinnedMemory
from gpuexec.runtime.simulator.operations import Access, Operation
from gpuexec.runtime.simulator.ordering import Ordering
from gpuexec.runtime.simulator.stream import SimulatorEvent, SimulatorStream
from gpuexec.runtime.staging import Staging
from gpuexec.spec import TensorSpec
from tests.runtime.simulator.conftest import FOLDER, instantiations
from tests.runtime.simulator.test_graph import copy, fill

ADD = Kernel(str(FOLDER / "basic.cu"), "add")
F32 = np.dtype(np.float32)
Begin = Callable[[SimulatorStream], None]


@pytest.fixture
def device() -> Iterator[SimulatorDevice]:
    device = SimulatorDevice(instantiations, check_order=True)
    device.load([ADD])
    yield device
    device.close()


def hold(stream: SimulatorStream) -> None:
    """Let what is issued later not run before the device is closed."""
    stream.hold()


def go(_: SimulatorStream) -> None:
    """Let what is issued run at once."""


@pytest.fixture(params=[hold, go])
def begin(request: pytest.FixtureRequest) -> Begin:
    """What decides which of two operations really runs first."""
    return request.param  # type: ignore[no-any-return]


def settle(stream: SimulatorStream, begin: Begin) -> None:
    """Wait until what was issued has run, if it may, without the program having seen it."""
    if begin is go:
        stream.thread.mark().wait()


def record(device: SimulatorDevice, stream: SimulatorStream) -> SimulatorEvent:
    event = device.create_event()
    stream.record(event)
    return event


def launch_add(device: SimulatorDevice, stream: SimulatorStream, *places: tuple[DeviceMemory, int]) -> None:
    """Launch c = a + b over four floats each, at byte offsets of their memory, as a command of a plan."""
    slots = [Slot(i, offset, TensorSpec((4,), F32), (1,)) for i, (_, offset) in enumerate(places)]
    command = Launch(ADD, (1, 1, 1), (32, 1, 1), (*slots, np.int32(4)), (2,))
    prepared = PreparedLaunch(device.function(ADD), command, "node")
    for position, (memory, offset) in enumerate(places):
        prepared.set_address(position, memory.address + offset)
    prepared.issue(stream)


USES: dict[str, Callable[[SimulatorStream, DeviceMemory, DeviceMemory], None]] = {
    "fill": lambda stream, x, own: stream.fill(x.address, b"\1", 16),
    "upload": lambda stream, x, own: stream.copy_to_device(x.address, np.zeros(16, np.uint8)),
    "copy into": lambda stream, x, own: stream.copy(x.address, own.address, 16),
    "launch that writes": lambda stream, x, own: launch_add(stream._device, stream, (own, 0), (own, 16), (x, 0)),
    "copy from": lambda stream, x, own: stream.copy(own.address, x.address, 16),
    "download": lambda stream, x, own: stream.copy_to_host(np.zeros(16, np.uint8), x.address),
    "launch that reads": lambda stream, x, own: launch_add(stream._device, stream, (own, 0), (x, 0), (own, 16)),
}
READS = ("copy from", "download", "launch that reads")
PAIRS = [(a, b) for a in USES for b in USES]


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=[f"{a}, {b}" for a, b in PAIRS])
def test_uses_of_two_streams_need_a_wait_unless_both_read(
    device: SimulatorDevice, begin: Begin, first: str, second: str
) -> None:
    one, two, (x, own, other) = device.create_stream(), device.create_stream(), [device.allocate(64) for _ in range(3)]
    begin(one)
    USES[first](one, x, own)
    settle(one, begin)
    event = record(device, one)
    if first in READS and second in READS:
        USES[second](two, x, other)
        assert not device.ordering.findings
        return
    with pytest.raises(OrderError, match=r"nothing orders the two: let stream 2 wait for an event .* stream 1 aft"):
        USES[second](two, x, other)
    two.wait(event)
    USES[second](two, x, other)


def test_finding_names_both_and_the_bytes(device: SimulatorDevice) -> None:
    one, two, x, y = device.create_stream(), device.create_stream(), device.allocate(64), device.allocate(64)
    launch_add(device, one, (y, 0), (y, 0), (x, 16))
    with pytest.raises(OrderError, match=r"Copy of 8 bytes on stream 2 reads bytes 24 to 32 of 64 bytes of device mem"):
        two.copy(y.address + 32, x.address + 24, 8)
    (finding,) = device.ordering.findings
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
    one.launch(device.function(ADD), (1, 1, 1), (32, 1, 1), 0, arguments)
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


# ---- graphs

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
        assert not device.ordering.findings
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


# ---- the host


def bring_back(device: SimulatorDevice, begin: Begin) -> tuple[PinnedMemory, SimulatorStream]:
    """Copy device bytes to pinned memory on a stream."""
    stream, x, pinned = device.create_stream(), device.allocate(16), device.allocate_pinned(16)
    begin(stream)
    stream.fill(x.address, b"\1", 16)
    assert pinned.array is not None
    stream.copy_to_host(pinned.array, x.address)
    stream._kept = x  # type: ignore[attr-defined]  # freed with the stream
    settle(stream, begin)
    return pinned, stream


def test_host_must_not_read_before_the_copy_is_seen_done(device: SimulatorDevice, begin: Begin) -> None:
    pinned, _ = bring_back(device, begin)
    with pytest.raises(OrderError, match=r"The host reads bytes 8 to 12 of 16 .*: wait for an event recorded on str"):
        begin_host_read(pinned, 4, offset=8)


def test_host_may_read_once_it_has_waited_or_was_told(device: SimulatorDevice) -> None:
    pinned, stream = bring_back(device, go)
    assert record(device, stream).synchronize()
    begin_host_read(pinned, 16)
    pinned, stream = bring_back(device, go)
    stream.synchronize()
    begin_host_read(pinned, 16)
    pinned, stream = bring_back(device, go)
    event = record(device, stream)
    stream.thread.mark().wait()
    assert event.is_done()
    begin_host_read(pinned, 16)
    pinned, stream = bring_back(device, go)
    assert stream.is_done()
    begin_host_read(pinned, 16)


def test_event_that_is_not_done_tells_nothing(device: SimulatorDevice) -> None:
    pinned, stream = bring_back(device, hold)
    event = record(device, stream)
    assert not event.is_done() and not event.synchronize(timeout_s=0) and not stream.is_done()
    with pytest.raises(OrderError):
        begin_host_read(pinned, 16)


def test_event_recorded_before_the_copy_tells_nothing_of_it(device: SimulatorDevice, begin: Begin) -> None:
    stream, x, pinned = device.create_stream(), device.allocate(16), device.allocate_pinned(16)
    event = record(device, stream)
    begin(stream)
    assert pinned.array is not None
    stream.copy_to_host(pinned.array, x.address)
    assert event.is_done()
    with pytest.raises(OrderError):
        begin_host_read(pinned, 16)


def test_readback_on_another_stream_needs_a_wait(device: SimulatorDevice, begin: Begin) -> None:
    runs, reads, x, pinned = device.create_stream(), device.create_stream(), device.allocate(16), np.zeros(16, np.uint8)
    begin(runs)
    runs.fill(x.address, b"\1", 16)
    settle(runs, begin)
    with pytest.raises(OrderError):
        reads.copy_to_host(pinned, x.address)


def test_staging_used_again_too_early_is_found(device: SimulatorDevice, begin: Begin) -> None:
    stream, x, staging = device.create_stream(), device.allocate(16), Staging(device)
    block = staging.take(16)
    begin(stream)
    assert block.array is not None
    stream.copy_to_device(x.address, block.array[:16])
    settle(stream, begin)
    staging.give_back(block)
    again = staging.take(16)
    assert again is block
    with pytest.raises(OrderError, match=r"The host writes bytes 0 to 16 of 4096 bytes of pinned memory .* reads"):
        begin_host_write(again, 16)
    begin_host_read(again, 16)


def test_staging_given_back_with_its_event_is_used_again_in_order(device: SimulatorDevice) -> None:
    stream, x, staging = device.create_stream(), device.allocate(16), Staging(device)
    block = staging.take(16)
    assert block.array is not None
    stream.copy_to_device(x.address, block.array[:16])
    staging.give_back(block, record(device, stream))
    stream.thread.mark().wait()
    assert staging.take(16) is block
    begin_host_write(block, 16)


def test_memory_freed_too_early_is_found_and_stays(device: SimulatorDevice, begin: Begin) -> None:
    stream, x, pinned = device.create_stream(), device.allocate(16), device.allocate_pinned(16)
    assert pinned.array is not None
    event = device.create_event()
    begin(stream)
    stream.copy_to_host(pinned.array, x.address)
    stream.record(event)
    settle(stream, begin)
    with pytest.raises(OrderError, match=r"The host frees .* which copy of 16 bytes on stream 1 reads"):
        x.free()
    with pytest.raises(OrderError, match=r"The host frees .* which copy of 16 bytes on stream 1 writes"):
        pinned.free()
    assert device.find_block(x.address) and device.find_block(pinned.address)
    if begin is go:
        assert event.synchronize()
        x.free()
        pinned.free()
        assert not device.find_block(x.address)


def test_memory_collected_too_early_is_found_by_the_next_call(device: SimulatorDevice) -> None:
    stream, x, y = device.create_stream(), device.allocate(16), device.allocate(16)
    stream.fill(x.address, b"\1", 16)
    stream.thread.mark().wait()
    del x
    gc.collect()
    with pytest.raises(OrderError, match=r"The host frees bytes 0 to 16 of 16 .* fill of 16 bytes on stream 1 wr"):
        stream.fill(y.address, b"\1", 16)
    stream.fill(y.address, b"\1", 16)


def test_block_at_the_address_of_one_forgotten_has_no_history() -> None:
    blocks = AddressMap()
    ordering = Ordering({"memory": blocks}, lambda: True, is_on=True)
    one, two = ordering.open_timeline(), ordering.open_timeline()
    for timeline, nbytes in ((one, 16), (two, 64)):
        blocks.add(1000, nbytes)
        ordering.add(timeline, Operation("write", lambda: None, (Access(1000, nbytes, True),)))
        blocks.remove(1000)
        ordering.free_later(1000, is_checked=False)
    assert not ordering.findings


def test_block_collected_too_early_is_found_once() -> None:
    blocks = AddressMap()
    ordering = Ordering({"memory": blocks}, lambda: True, is_on=True)
    one, two = ordering.open_timeline(), ordering.open_timeline()
    write = Operation("write", lambda: None, (Access(1000, 16, True),))
    blocks.add(1000, 16)
    ordering.add(one, write)
    blocks.remove(1000)
    ordering.free_later(1000)
    blocks.add(1000, 16)
    with pytest.raises(OrderError, match="The host frees"):
        ordering.add(two, write)
    ordering.add(two, write)
    assert len(ordering.findings) == 1


def test_what_a_watcher_sees_others_must_see_themselves(device: SimulatorDevice) -> None:
    pinned, stream = bring_back(device, go)
    event, other, source, went_on = record(device, stream), device.create_stream(), device.allocate(16), []

    def watch() -> None:
        event.synchronize()
        begin_host_read(pinned, 16)
        assert pinned.array is not None
        other.copy_to_host(pinned.array, source.address)
        went_on.append(True)

    thread = WatcherThread(target=watch)
    thread.start()
    thread.join()
    assert went_on
    with pytest.raises(OrderError):
        begin_host_read(pinned, 16)
    other.synchronize()  # whose copy came after what the event stands for
    begin_host_read(pinned, 16)


def test_completion_thread_is_a_watcher(device: SimulatorDevice) -> None:
    pinned, stream = bring_back(device, go)
    completion, event = Completion("test"), record(device, stream)
    completion.call(event, lambda _: None)
    thread = completion._thread
    completion.close()
    assert thread is not None
    thread.join()
    with pytest.raises(OrderError):
        begin_host_read(pinned, 16)


@pytest.mark.parametrize("end", [SimulatorStream.close, SimulatorStream.synchronize])
def test_end_of_a_stream_is_seen(device: SimulatorDevice, end: Callable[[SimulatorStream], None]) -> None:
    pinned, stream = bring_back(device, go)
    end(stream)
    begin_host_write(pinned, 16)
    pinned.free()


def test_lost_device_uses_nothing(device: SimulatorDevice) -> None:
    pinned, stream = bring_back(device, hold)
    device._lost = "lost"
    pinned.free()
    device._lost = None
    del stream


@pytest.mark.parametrize("value", ["0", "1"])
def test_knob_turns_it_off(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("GPUEXEC_CHECK_ORDER", value)
    device = SimulatorDevice(instantiations)
    one, two, x = device.create_stream(), device.create_stream(), device.allocate(16)
    write = partial(two.fill, x.address, b"\1", 16)
    one.fill(x.address, b"\2", 16)
    if value == "1":
        with pytest.raises(OrderError):
            write()
    else:
        write()
    device.close()


def test_watcher_forgets_streams_whose_end_the_host_has_seen(device: SimulatorDevice) -> None:
    completion, reached, known = Completion("test"), threading.Semaphore(0), list[int]()

    def look(_: BaseException | None) -> None:
        known.append(len(device.ordering._known_apart() or {}))
        reached.release()

    for _ in range(10):
        stream, memory = device.create_stream(), device.allocate(4)
        stream.fill(memory.address, b"\0", 4)
        event = record(device, stream)
        event.synchronize()
        completion.call(event, look)
        reached.acquire()
        stream.close()
    completion.close()
    assert max(known) <= 1
