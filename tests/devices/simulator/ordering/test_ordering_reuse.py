"""Reuse of memory freed while in use: ordered, or found."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpuexec.devices.device import begin_host_write
from gpuexec.devices.memory_pool import MemoryPool
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.devices.simulator.memory import DeviceMemory
from gpuexec.devices.simulator.stream import SimulatorStream
from gpuexec.errors import DeviceError, OrderError, OutOfMemoryError
from tests.devices.simulator.conftest import instantiations
from tests.devices.simulator.ordering.issuing import Begin, go, hold, launch_add, settle


def let_go(device: SimulatorDevice, stream: SimulatorStream, begin: Begin, nbytes: int = 16) -> int:
    """Free a block that a stream writes; return its address."""
    memory = device.allocate(nbytes)
    begin(stream)
    stream.fill(memory.address, b"\1", nbytes)
    settle(stream, begin)
    memory.note_stream(stream)
    memory.free()
    return memory.address


@pytest.fixture
def unordered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool that forgets to have streams wait."""
    monkeypatch.setattr(MemoryPool, "_order", lambda *_: None)


def test_another_stream_writes_behind_an_event(device: SimulatorDevice, begin: Begin) -> None:
    one, other = device.create_stream(), device.create_stream()
    address = let_go(device, one, begin)
    again = device.allocate(16, other)
    assert again.address == address
    other.fill(address, b"\2", 16)
    assert not device.context.ordering.findings


@pytest.mark.usefixtures("unordered")
def test_pool_that_leaves_the_wait_out_is_found_by_what_writes_next(device: SimulatorDevice) -> None:
    one, other = device.create_stream(), device.create_stream()
    address = let_go(device, one, hold)
    again = device.allocate(16, other)
    assert again.address == address
    with pytest.raises(OrderError, match=r"^Fill of 16 bytes on stream 2 writes .* fill of 16 bytes on stream 1 writ"):
        other.fill(address, b"\2", 16)


def test_pool_that_gives_the_host_what_is_not_done_is_found(
    device: SimulatorDevice, monkeypatch: pytest.MonkeyPatch, begin: Begin
) -> None:
    stream, other = device.create_stream(), device.create_stream()
    monkeypatch.setattr(MemoryPool, "_is_idle", lambda *_: True)
    address = let_go(device, stream, begin)
    again = device.allocate(16)
    assert again.address == address
    with pytest.raises(OrderError, match="on stream 2 writes"):
        other.fill(address, b"\2", 16)


def test_the_same_stream_writes_at_once(device: SimulatorDevice) -> None:
    stream = device.create_stream()
    address = let_go(device, stream, hold)
    waits = []
    stream.wait = waits.append  # type: ignore[method-assign]
    again = device.allocate(16, stream)
    stream.fill(again.address, b"\2", 16)
    assert again.address == address and not waits


def test_without_a_stream_only_what_is_done_is_given(device: SimulatorDevice) -> None:
    stream, other = device.create_stream(), device.create_stream()
    memory = device.allocate(16)
    gate = stream.hold()
    stream.fill(memory.address, b"\1", 16)
    memory.note_stream(stream)
    memory.free()
    fresh = device.allocate(16)
    assert fresh.address != memory.address
    gate.set()
    stream.thread.mark().wait()
    again = device.allocate(16)
    assert again.address == memory.address
    other.fill(again.address, b"\2", 16)
    assert not device.context.ordering.findings


def test_memory_dropped_with_a_stream_noted_is_used_again_in_order(device: SimulatorDevice) -> None:
    one, other = device.create_stream(), device.create_stream()
    memory = device.allocate(16)
    address = memory.address
    hold(one)
    one.fill(address, b"\1", 16)
    memory.note_stream(one)
    del memory
    gc.collect()
    again = device.allocate(16, other)
    other.fill(again.address, b"\2", 16)
    assert again.address == address and not device.context.ordering.findings


def test_free_with_one_stream_noted_does_not_speak_for_another(device: SimulatorDevice, begin: Begin) -> None:
    one, other, memory = device.create_stream(), device.create_stream(), device.allocate(16)
    begin(other)
    other.fill(memory.address, b"\1", 16)
    settle(other, begin)
    memory.note_stream(one)
    with pytest.raises(OrderError, match=r"The host frees .* fill of 16 bytes on stream 2 writes"):
        memory.free()


def test_what_was_freed_is_out_of_reach_for_what_comes_later(device: SimulatorDevice) -> None:
    stream, a, b = device.create_stream(), device.allocate(16), device.allocate(16)
    address = let_go(device, stream, hold)
    freed = object.__new__(DeviceMemory)
    freed.address = address
    later: list[Callable[[], Any]] = [
        lambda: stream.fill(address, b"\2", 16),
        lambda: stream.copy(address, a.address, 16),
        lambda: stream.copy(a.address, address, 16),
        lambda: launch_add(device, stream, (a, 0), (b, 0), (freed, 0)),
    ]
    for call in later:
        with pytest.raises(DeviceError, match="lies in 16 bytes that were freed"):
            call()
    assert device.context.find_block(address) is None


def test_work_under_way_goes_on_in_what_was_freed(device: SimulatorDevice) -> None:
    stream, memory, out = device.create_stream(), device.allocate(16), np.zeros(16, np.uint8)
    gate = stream.hold()
    stream.fill(memory.address, b"\5", 16)
    stream.copy_to_host(out, memory.address)
    memory.note_stream(stream)
    memory.free()
    gate.set()
    stream.synchronize()
    assert (out == 5).all()


def test_idle_memory_is_poisoned_and_unreachable_at_once(device: SimulatorDevice) -> None:
    memory, stream = device.allocate(16), device.create_stream()
    stream.fill(memory.address, b"\1", 16)
    stream.synchronize()
    memory.free()
    assert device.cached_nbytes == 0 and device.context.find_block(memory.address) is None
    again, out = device.allocate(16), np.zeros(16, np.uint8)
    stream.copy_to_host(out, again.address)
    stream.synchronize()
    assert (out == 0xCD).all()


def test_trim_takes_what_is_done_and_leaves_what_is_not(device: SimulatorDevice) -> None:
    done, busy = device.create_stream(), device.create_stream()
    memories = [device.allocate(16), device.allocate(32)]
    hold(busy)
    for stream, memory in zip((done, busy), memories, strict=True):
        stream.fill(memory.address, b"\1", memory.nbytes)
        memory.note_stream(stream)
        memory.free()
    done.thread.mark().wait()
    assert device.cached_nbytes == 48 and device.trim() == 16 and device.cached_nbytes == 32
    again = device.allocate(32, busy)
    assert again.address == memories[1].address


def test_memory_that_ran_out_waits_for_freed_blocks() -> None:
    device = SimulatorDevice(instantiations, memory_bytes=1000, check_order=True)
    stream, memory = device.create_stream(), device.allocate(600)
    gate = stream.hold()
    stream.fill(memory.address, b"\1", 600)
    memory.note_stream(stream)
    memory.free()
    got = []
    waiting = threading.Thread(target=lambda: got.append(device.allocate(500)))
    waiting.start()
    gate.set()
    waiting.join()
    assert got[0].nbytes == 500 and device.cached_nbytes == 0 and not device.context.ordering.findings
    with pytest.raises(OutOfMemoryError, match="500 of 1000 are in use"):
        device.allocate(501)
    device.close()


def test_pinned_memory_follows_the_same_rule(device: SimulatorDevice) -> None:
    stream, target, pinned = device.create_stream(), device.allocate(16), device.allocate_pinned(16)
    address = pinned.address
    gate = stream.hold()
    assert pinned.array is not None
    stream.copy_to_device(target.address, pinned.array)
    pinned.note_stream(stream)
    pinned.free()
    other = device.allocate_pinned(16)
    assert other.address != address
    begin_host_write(other, 16)
    gate.set()
    stream.thread.mark().wait()
    again = device.allocate_pinned(16)
    assert again.address == address
    begin_host_write(again, 16)
    assert not device.context.ordering.findings


def test_pinned_memory_given_to_the_host_too_early_is_found(
    device: SimulatorDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryPool, "_is_idle", lambda *_: True)
    stream, target, pinned = device.create_stream(), device.allocate(16), device.allocate_pinned(16)
    hold(stream)
    assert pinned.array is not None
    stream.copy_to_device(target.address, pinned.array)
    pinned.note_stream(stream)
    pinned.free()
    again = device.allocate_pinned(16)
    assert again.address == pinned.address
    with pytest.raises(OrderError, match=r"The host writes .* copy of 16 bytes on stream 1 reads"):
        begin_host_write(again, 16)


def test_history_of_memory_given_back_to_the_host_ends(device: SimulatorDevice) -> None:
    stream = device.create_stream()
    address = let_go(device, stream, go)
    assert address in device.context.ordering._used
    assert device.trim() == 16
    assert not device.context.ordering.findings and address not in device.context.ordering._used
