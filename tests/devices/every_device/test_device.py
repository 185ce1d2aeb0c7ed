"""The device protocol, on all devices: memory, copies, fills, streams, events, launches.

Devices that don't compute are left out only where content is compared.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from gpuexec.devices.arguments import PackedArguments
from gpuexec.devices.device import Device, MemoryBlock, Stream
from gpuexec.errors import DeviceLostError
from gpuexec.ir.command import Kernel, LaunchConfig
from tests.devices.opening import SCALE_SOURCE, make_simulator

GPU = pytest.param("gpu", marks=pytest.mark.gpu)
GPUS = [GPU, pytest.param("gpu_pixel", marks=pytest.mark.gpu)]
on_all = pytest.mark.parametrize(
    "device", ["cpu", "tracer", "simulator", "standin", "pixel", "standin_pixel", *GPUS], indirect=True
)
on_answering = pytest.mark.parametrize(
    "device", ["cpu", "simulator", "standin", "pixel", "standin_pixel", *GPUS], indirect=True
)
on_launching = pytest.mark.parametrize("device", ["simulator", "standin", GPU], indirect=True)
Array = np.ndarray[Any, Any]
SHIFT = np.array([0, 0, 5], np.int32).tobytes()


def upload(device: Device, stream: Stream, array: Array) -> MemoryBlock:
    memory = device.allocate(array.nbytes)
    stream.copy_to_device(memory.address, array.reshape(-1).view(np.uint8))
    return memory


def download(stream: Stream, memory: MemoryBlock, dtype: Any = np.uint8) -> Array:
    array = np.empty(memory.nbytes, np.uint8)
    stream.copy_to_host(array, memory.address)
    stream.synchronize()
    return array.view(dtype)


@on_all
def test_memory_is_aligned_and_apart(device: Device) -> None:
    memories = [device.allocate(nbytes) for nbytes in (1, 300, 0, 4096)]
    spans = sorted((memory.address, memory.nbytes) for memory in memories if memory.nbytes)
    assert all(address % 256 == 0 for address, _ in spans)
    assert all(first + nbytes <= second for (first, nbytes), (second, _) in pairwise(spans))
    assert [memory.nbytes for memory in memories] == [1, 300, 0, 4096]
    for memory in memories * 2:
        memory.free()


@on_all
def test_pinned_memory_is_the_hosts_too(device: Device) -> None:
    memory = device.allocate_pinned(100)
    assert memory.array is not None and memory.array.nbytes == memory.nbytes == 100
    assert memory.address == memory.array.ctypes.data
    memory.array[...] = 7
    memory.free()


@on_answering
def test_copies_bring_bytes_there_and_back(device: Device) -> None:
    stream, data = device.create_stream(), np.arange(1000, dtype=np.float32)
    there = upload(device, stream, data)
    copy = device.allocate(data.nbytes)
    stream.copy(copy.address, there.address, data.nbytes)
    assert (download(stream, copy, np.float32) == data).all()
    assert stream.is_done()


@on_answering
def test_copies_move_their_own_bytes_alone(device: Device) -> None:
    """Bytes before and behind a copy stay, however many bytes a device moves at a time."""
    stream, expected = device.create_stream(), np.arange(200, dtype=np.uint8)
    memory = upload(device, stream, expected)
    for first, count in ((5, 3), (30, 21), (64, 16), (199, 1)):
        given = np.full(count, 0xE7 - first, np.uint8)
        stream.copy_to_device(memory.address + first, given)
        expected[first : first + count] = given
    stream.copy(memory.address + 101, memory.address + 27, 37)
    expected[101:138] = expected[27:64]
    stream.fill(memory.address + 150, b"\x11", 13)
    expected[150:163] = 0x11
    part = np.empty(77, np.uint8)
    stream.copy_to_host(part, memory.address + 93)
    np.testing.assert_array_equal(download(stream, memory), expected)
    np.testing.assert_array_equal(part, expected[93:170])


@on_answering
def test_copies_between_pinned_memory_and_the_device(device: Device) -> None:
    stream, source, target = device.create_stream(), device.allocate_pinned(64), device.allocate_pinned(64)
    assert source.array is not None and target.array is not None
    source.array[...] = np.arange(64)
    memory = device.allocate(64)
    stream.copy_to_device(memory.address, source.array)
    stream.copy_to_host(target.array, memory.address)
    stream.synchronize()
    assert (target.array == np.arange(64)).all()


@on_answering
def test_pageable_source_may_change_as_soon_as_the_copy_is_issued(device: Device) -> None:
    stream, data = device.create_stream(), np.arange(100_000, dtype=np.int32)
    memory = upload(device, stream, data)
    data[...] = -1
    assert (download(stream, memory, np.int32) == np.arange(100_000)).all()


@on_answering
@pytest.mark.parametrize("pattern", [b"\x07", b"\x01\x02", b"\x01\x02\x03\x04", b"\x01\x02\x03\x04\x05\x06\x07\x08"])
def test_fill_repeats_a_pattern_and_touches_nothing_else(device: Device, pattern: bytes) -> None:
    stream, width = device.create_stream(), len(pattern)
    memory = upload(device, stream, np.full(7 * width, 0xEE, np.uint8))
    stream.fill(memory.address + width, pattern, 5)
    assert download(stream, memory).tobytes() == b"\xee" * width + pattern * 5 + b"\xee" * width


@on_all
def test_event_is_done_before_it_is_recorded_and_after_its_work(device: Device) -> None:
    stream, event, memory = device.create_stream(), device.create_event(), device.allocate(4096)
    assert event.is_done() and event.synchronize()
    stream.fill(memory.address, b"\0", 4096)
    stream.record(event)
    assert event.synchronize(timeout_s=60) and event.is_done()
    stream.synchronize()
    assert stream.is_done()


@on_answering
def test_timed_events_report_how_long_work_took(device: Device) -> None:
    stream = device.create_stream()
    first, second, third = (device.create_timed_event() for _ in range(3))
    memory = upload(device, stream, np.zeros(1 << 16, np.uint8))
    stream.record(first)
    stream.fill(memory.address, b"\x01", memory.nbytes)
    stream.record(second)
    stream.fill(memory.address, b"\x02", memory.nbytes)
    stream.record(third)
    third.synchronize()
    assert first.is_done() and second.is_done() and third.is_done()
    parts = [second.elapsed_ms(first), third.elapsed_ms(second)]
    assert min(parts) > 0
    # A GPU counts in half microseconds.
    assert third.elapsed_ms(first) == pytest.approx(sum(parts), abs=2e-3)


@on_answering
def test_wait_orders_work_of_two_streams(device: Device) -> None:
    first, second, event = device.create_stream(), device.create_stream(), device.create_event()
    x, y = device.allocate(1 << 20), device.allocate(1 << 20)
    for value in range(1, 20):
        first.fill(x.address, bytes([value]), 1 << 20)
        first.record(event)
        second.wait(event)
        second.copy(y.address, x.address, 1 << 20)
        second.record(event)
        first.wait(event)
    assert (download(second, y) == 19).all()


@on_launching
@pytest.mark.parametrize(("expression", "dtype"), [("scale<float>", np.float32), ("scale<int>", np.int32)])
def test_launch_takes_its_arguments_at_the_call(device: Device, expression: str, dtype: Any) -> None:
    kernel, stream = Kernel(SCALE_SOURCE, expression), device.create_stream()
    device.load([kernel])
    x, y = upload(device, stream, np.arange(100, dtype=dtype)), device.allocate(400)
    arguments = PackedArguments([None, None, dtype(3), SHIFT, np.int32(100)])
    arguments.set_pointer(0, x.address)
    arguments.set_pointer(1, y.address)
    stream.launch(device.function(kernel), LaunchConfig((2, 1, 1), (64, 1, 1)), arguments)
    arguments.update([None, None, dtype(0), SHIFT, np.int32(0)])
    arguments.set_pointer(1, 0)
    assert (download(stream, y, dtype) == np.arange(100) * 3 + 5).all()


@on_launching
def test_launches_of_one_stream_run_in_order(device: Device) -> None:
    kernel, stream = Kernel(SCALE_SOURCE, "scale<int>"), device.create_stream()
    device.load([kernel])
    memory = upload(device, stream, np.zeros(64, np.int32))
    arguments = PackedArguments([None, None, np.int32(2), SHIFT, np.int32(64)])
    arguments.set_pointer(0, memory.address)
    arguments.set_pointer(1, memory.address)
    for _ in range(10):
        stream.launch(device.function(kernel), LaunchConfig((1, 1, 1), (64, 1, 1)), arguments)
    assert (download(stream, memory, np.int32) == 5 * (2**10 - 1)).all()


@pytest.mark.parametrize("is_cuda", [False, True], ids=["simulator", "standin"])
def test_fault_ends_the_device_for_every_later_call(is_cuda: bool, request: pytest.FixtureRequest) -> None:
    # A GPU's fault needs a process of its own; see tests/devices/cuda/test_cuda_faults.py.
    device: Device = request.getfixturevalue("standin_device") if is_cuda else make_simulator()
    kernel, stream, event = Kernel(SCALE_SOURCE, "fault"), device.create_stream(), device.create_event()
    device.load([kernel])
    memory = device.allocate(16)
    stream.launch(device.function(kernel), LaunchConfig((1, 1, 1), (1, 1, 1)), PackedArguments([None]))
    with pytest.raises(DeviceLostError):
        stream.synchronize()
    for call in (
        stream.synchronize,
        stream.is_done,
        event.is_done,
        device.create_stream,
        lambda: stream.record(event),
        lambda: stream.fill(memory.address, b"\0", 1),
        lambda: device.allocate(16),
    ):
        with pytest.raises(DeviceLostError):
            call()
