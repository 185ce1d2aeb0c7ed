"""Premature host accesses and frees, and host order by waits and queries."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from gpuexec.devices.completion import Completion, WatcherThread
from gpuexec.devices.device import begin_host_read, begin_host_write
from gpuexec.devices.simulator.address_map import AddressMap
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.devices.simulator.memory import PinnedMemory
from gpuexec.devices.simulator.operations import Access, Operation
from gpuexec.devices.simulator.ordering import Ordering
from gpuexec.devices.simulator.stream import SimulatorStream
from gpuexec.devices.staging import Staging
from gpuexec.errors import OrderError
from tests.devices.simulator.conftest import instantiations
from tests.devices.simulator.ordering.issuing import Begin, go, hold, record, settle


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


def test_host_may_read_once_it_has_waited_or_was_notified(device: SimulatorDevice) -> None:
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


def test_event_that_is_not_done_reports_nothing(device: SimulatorDevice) -> None:
    pinned, stream = bring_back(device, hold)
    event = record(device, stream)
    assert not event.is_done() and not event.synchronize(timeout_s=0) and not stream.is_done()
    with pytest.raises(OrderError):
        begin_host_read(pinned, 16)


def test_event_recorded_before_the_copy_reports_nothing_of_it(device: SimulatorDevice, begin: Begin) -> None:
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
    assert device.context.find_block(x.address) and device.context.find_block(pinned.address)
    if begin is go:
        assert event.synchronize()
        x.free()
        pinned.free()
        assert not device.context.find_block(x.address)


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
    device.context.lost = "lost"
    pinned.free()
    device.context.lost = None
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
        known.append(len(device.context.ordering._known_apart() or {}))
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
