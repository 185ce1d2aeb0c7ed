"""Streams of the simulator: asynchronous, so that unordered work is wrong, without luck and without sleeping."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gpuexec.devices.arguments import PackedArguments
from gpuexec.devices.simulator import stream_thread
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.devices.simulator.memory import DeviceMemory
from gpuexec.devices.simulator.operations import Operation
from gpuexec.devices.simulator.stream import SimulatorStream
from gpuexec.errors import DeviceError, InputError, KernelError
from gpuexec.ir.command import Kernel, LaunchConfig
from tests.devices.simulator.conftest import FOLDER, instantiations

ADD = Kernel(str(FOLDER / "basic.cu"), "add")
N = 1000
X = np.arange(N, dtype=np.float32)


@pytest.fixture
def device() -> Iterator[SimulatorDevice]:
    device = SimulatorDevice(instantiations)
    device.load([ADD])
    yield device
    device.close()


@pytest.fixture
def unchecked() -> Iterator[SimulatorDevice]:
    """A device that runs what nothing orders."""
    device = SimulatorDevice(instantiations, check_order=False)
    device.load([ADD])
    yield device
    device.close()


def upload(stream: SimulatorStream, memory: DeviceMemory, array: np.ndarray[Any, Any]) -> None:
    stream.copy_to_device(memory.address, array.view(np.uint8))


def download(stream: SimulatorStream, memory: DeviceMemory, dtype: type = np.float32) -> np.ndarray[Any, Any]:
    out = np.zeros(memory.nbytes, np.uint8)
    stream.copy_to_host(out, memory.address)
    stream.synchronize()
    return out.view(dtype)


def pack(a: DeviceMemory, b: DeviceMemory, c: DeviceMemory) -> PackedArguments:
    arguments = PackedArguments([None, None, None, np.int32(N)])
    for position, memory in enumerate((a, b, c)):
        arguments.set_pointer(position, memory.address)
    return arguments


def launch_add(device: SimulatorDevice, stream: SimulatorStream, arguments: PackedArguments) -> None:
    stream.launch(device.function(ADD), LaunchConfig((4, 1, 1), (256, 1, 1)), arguments)


def test_commands_of_one_stream_run_in_order(device: SimulatorDevice) -> None:
    stream, a, c = device.create_stream(), device.allocate(4 * N), device.allocate(4 * N)
    upload(stream, a, X)
    launch_add(device, stream, pack(a, a, c))
    launch_add(device, stream, pack(c, a, c))
    np.testing.assert_array_equal(download(stream, c), 3 * X)


def test_forgotten_wait_reads_poison_and_a_wait_cures_it(unchecked: SimulatorDevice) -> None:
    device = unchecked
    producer, consumer = device.create_stream(), device.create_stream()
    a, c, event = device.allocate(4 * N), device.allocate(4 * N), device.create_event()
    gate = producer.hold()
    upload(producer, a, X)
    launch_add(device, producer, pack(a, a, c))
    producer.record(event)
    assert not event.is_done()
    assert (download(consumer, c, np.uint8) == 0xCD).all()  # forgot the wait

    consumer.wait(event)
    out = np.zeros(N, np.float32)
    consumer.copy_to_host(out.view(np.uint8), c.address)
    assert not consumer.is_done()
    assert (out.view(np.uint8) == 0xEE).all()  # nothing may be read before the copy has run
    gate.set()
    consumer.synchronize()
    assert event.is_done() and consumer.is_done()
    np.testing.assert_array_equal(out, 2 * X)


class _Watched(threading.Event):
    """Point of a stream that reports when a wait for it has begun."""

    def __init__(self, point: threading.Event, begun: threading.Event) -> None:
        super().__init__()
        self.is_set = point.is_set  # type: ignore[method-assign]
        self._point, self._begun = point, begun

    def wait(self, timeout: float | None = None) -> bool:
        self._begun.set()
        return self._point.wait(timeout)


def test_stream_goes_on_only_after_what_it_waits_for(device: SimulatorDevice) -> None:
    producer, consumer, event, ran = device.create_stream(), device.create_stream(), device.create_event(), []
    consumer_moved = threading.Event()  # into the wait, or past it where it does not wait

    def produce() -> None:
        assert consumer_moved.wait(60)
        ran.append("producer")

    def consume() -> None:
        ran.append("consumer")
        consumer_moved.set()

    producer.issue(Operation("produce", produce))
    producer.record(event)
    assert event.point is not None
    event.point = _Watched(event.point, consumer_moved)
    consumer.wait(event)
    consumer.issue(Operation("consume", consume))
    producer.synchronize()
    consumer.synchronize()
    assert ran == ["producer", "consumer"]


def test_arguments_are_taken_at_the_launch(device: SimulatorDevice) -> None:
    stream, a, b, c = device.create_stream(), *(device.allocate(4 * N) for _ in range(3))
    upload(stream, a, X)
    upload(stream, b, np.zeros_like(X))
    gate, arguments = stream.hold(), pack(a, a, c)
    launch_add(device, stream, arguments)
    arguments.set_pointer(0, b.address)
    arguments.set_pointer(1, b.address)
    gate.set()
    np.testing.assert_array_equal(download(stream, c), 2 * X)


def test_pageable_sources_are_read_at_the_call_and_pinned_ones_late(device: SimulatorDevice) -> None:
    stream, a, b = device.create_stream(), device.allocate(16), device.allocate(16)
    pageable, pinned = np.ones(16, np.uint8), device.allocate_pinned(16)
    assert pinned.array is not None
    assert (pinned.array == 0xCD).all()
    pinned.array[:] = 1
    gate = stream.hold()
    stream.copy_to_device(a.address, pageable)
    stream.copy_to_device(b.address, pinned.array)
    pageable[:] = pinned.array[:] = 2
    gate.set()
    assert (download(stream, a, np.uint8) == 1).all()
    assert (download(stream, b, np.uint8) == 2).all()


def test_freed_pinned_memory_is_poisoned(device: SimulatorDevice) -> None:
    pinned = device.allocate_pinned(16)
    kept = pinned.array
    assert kept is not None
    kept[:] = 1
    pinned.free()
    pinned.free()
    assert pinned.array is None
    assert (kept == 0xCD).all()


@pytest.mark.parametrize("pattern", [b"\x07", b"\x01\x02", b"\x01\x02\x03\x04", b"abcdefgh"])
def test_fill_repeats_the_pattern(device: SimulatorDevice, pattern: bytes) -> None:
    stream, a = device.create_stream(), device.allocate(64)
    stream.fill(a.address + 8, pattern, 32 // len(pattern))
    got = download(stream, a, np.uint8).tobytes()
    assert got == b"\xcd" * 8 + pattern * (32 // len(pattern)) + b"\xcd" * 24


def test_copy_on_the_device(device: SimulatorDevice) -> None:
    stream, a, b = device.create_stream(), device.allocate(8), device.allocate(8)
    stream.fill(a.address, b"\x05", 8)
    stream.copy(b.address + 2, a.address, 4)
    assert download(stream, b, np.uint8).tolist() == [0xCD, 0xCD, 5, 5, 5, 5, 0xCD, 0xCD]


def test_event_stands_for_its_last_record(device: SimulatorDevice) -> None:
    stream, event = device.create_stream(), device.create_event()
    assert event.is_done() and event.synchronize()
    stream.record(event)
    assert event.is_done()  # there was no work
    gate = stream.hold()
    stream.record(event)
    assert not event.synchronize(timeout_s=0)
    gate.set()
    assert event.synchronize()


def test_wait_is_for_the_record_made_before_it(device: SimulatorDevice) -> None:
    first, second, event = device.create_stream(), device.create_stream(), device.create_event()
    second.wait(event)  # not recorded: nothing to wait for
    gate = first.hold()
    first.record(event)
    second.wait(event)
    later = first.hold()
    first.record(event)
    gate.set()
    second.synchronize()  # does not wait for the later record
    assert not event.is_done()
    later.set()
    first.synchronize()


def test_streams_run_side_by_side(unchecked: SimulatorDevice) -> None:
    device = unchecked
    held, free, a = device.create_stream(), device.create_stream(), device.allocate(4)
    gate = held.hold()
    held.fill(a.address, b"\x01", 4)
    free.fill(a.address, b"\x02", 4)
    assert download(free, a, np.uint8).tolist() == [2, 2, 2, 2]
    assert not held.is_done()
    gate.set()
    assert download(held, a, np.uint8).tolist() == [1, 1, 1, 1]


def test_delays_are_seeded_and_differ_between_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: dict[str, list[float]] = {}

    def sleep(seconds: float) -> None:
        slept.setdefault(threading.current_thread().name, []).append(seconds)

    monkeypatch.setattr(stream_thread.time, "sleep", sleep)

    def run() -> list[list[float]]:
        # The streams are let go of with work to do, which close finishes all the same.
        slept.clear()
        device = SimulatorDevice(instantiations, delay_s=0.01, check_order=False)
        memory = device.allocate(4)
        for number in range(2):
            stream = device.create_stream()
            stream.hold().set()
            stream.thread._thread._thread.name = f"stream {number}"  # type: ignore[union-attr]
            for _ in range(5):
                stream.fill(memory.address, b"\x01", 4)
        device.close()
        return [slept["stream 0"], slept["stream 1"]]

    first, second = run()
    assert run() == [first, second]
    assert first != second
    assert len(set(first)) == 5 and all(0 <= seconds <= 0.01 for seconds in first + second)


def test_thread_starts_with_work_and_ends_with_the_stream(device: SimulatorDevice) -> None:
    def threads() -> int:
        return sum(thread.name == "gpuexec-stream" for thread in threading.enumerate())

    before = threads()
    stream = device.create_stream()
    stream.synchronize()
    assert threads() == before
    stream.hold().set()
    assert threads() == before + 1
    stream.close()
    assert threads() == before
    dropped = device.create_stream()
    dropped.hold().set()
    thread = dropped.thread._thread._thread
    assert thread is not None
    del dropped
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("offset", [-1, 8, 1 << 30])
def test_copy_outside_of_memory_is_refused_at_the_call(device: SimulatorDevice, offset: int) -> None:
    stream, a = device.create_stream(), device.allocate(8)
    with pytest.raises(DeviceError, match=r"copy of 8 bytes: address 0x.* lies"):
        stream.copy_to_device(a.address + offset, np.zeros(8, np.uint8))
    stream.synchronize()  # an error at the call is no fault


def test_fill_pattern_of_three_bytes_is_refused(device: SimulatorDevice) -> None:
    with pytest.raises(InputError, match="1, 2, 4 or 8 bytes, got 3"):
        device.create_stream().fill(device.allocate(8).address, b"abc", 1)


def test_launch_that_does_not_fit_is_refused_at_the_call(device: SimulatorDevice) -> None:
    stream = device.create_stream()
    with pytest.raises(KernelError, match=r"basic.cu:add: expected 4 arguments, got 1"):
        launch_add(device, stream, PackedArguments([None]))
    stream.synchronize()


def test_pinned_memory_forgotten_by_all_is_ordinary_memory_again(device: SimulatorDevice) -> None:
    memory = device.allocate_pinned(4096)
    address, view = memory.address, memory.array
    del memory
    assert device.context.is_pinned(address, 4096), "a view of it is held"
    del view
    assert not device.context.is_pinned(address, 4096)
