"""The tracer's log of device calls."""

from __future__ import annotations

import numpy as np

from gpuexec.devices.device import Region
from gpuexec.devices.recorder.tracer import TracerDevice, TracerStream
from gpuexec.ir.command import Kernel
from gpuexec.ir.plan import Role
from gpuexec.ir.spec import TensorSpec
from gpuexec.planner.template import plan_graph
from tests.ir.graph_builder import GraphBuilder
from tests.ops.operators import FLOAT, Scale


def test_addresses_are_aligned_and_apart() -> None:
    device = TracerDevice()
    first, second = device.allocate(1), device.allocate(1000)
    assert first.address % 256 == 0 and second.address == first.address + 256
    assert first.array is None and device.allocate_pinned(8).array is not None
    assert device.log == [("allocate", first.address, 1), ("allocate", second.address, 1000)]


def test_kernels_are_loaded_once() -> None:
    device = TracerDevice()
    device.load([Kernel("a.cu", "k"), Kernel("a.cu", "k")])
    device.load([Kernel("a.cu", "k"), Kernel("a.cu", "l")])
    assert device.log == [("load", "a.cu:k"), ("load", "a.cu:l")]


def test_everything_given_to_a_stream_is_written_down() -> None:
    device = TracerDevice()
    stream, event = device.create_stream(), device.create_event()
    host = np.ones(4, np.uint8)
    stream.copy_to_device(1, host)
    stream.copy_to_host(host, 2)
    stream.copy(3, 4, 5)
    stream.fill(6, b"\0", 7)
    stream.record(event)
    stream.wait(event)
    stream.synchronize()
    kinds = [row[0] for row in device.log]
    assert kinds == ["copy_to_device", "copy_to_host", "copy", "fill", "record", "wait", "synchronize"]
    assert not host.any() and event.is_done() and event.synchronize() and stream.is_done()


def test_memory_holds_content_where_it_is_asked_to() -> None:
    device = TracerDevice(holds_content=True)
    stream, memory, other = device.create_stream(), device.allocate(8), device.allocate(8)
    stream.fill(memory.address, b"\1\2", 4)
    stream.copy_to_device(memory.address + 4, np.array([3, 4], np.uint8))
    stream.copy(other.address, memory.address + 2, 6)
    host = np.zeros(6, np.uint8)
    stream.copy_to_host(host, other.address)
    assert host.tolist() == [1, 2, 3, 4, 1, 2]


def test_plan_for_a_gpu_runs_through() -> None:
    build = GraphBuilder()
    value = build.input("x", 300)
    for _ in range(3):
        value = build.node(Scale(), value)
    device = TracerDevice(is_writing=False)
    plan = plan_graph(build.graph(value), {"x": TensorSpec((300,), FLOAT)}, device.target).plan
    device.load(plan.kernels())
    segment = plan.segment
    regions = {b.id: Region(device.allocate(b.nbytes), 0, b.nbytes) for b in plan.buffers}
    bound = {b.id: regions[b.id] for b in plan.buffers if b.role in (Role.INPUT, Role.OUTPUT)}
    recording = device.record(segment, {b: r for b, r in regions.items() if b not in bound})
    stream = device.create_stream()
    recording.submit(stream, bound)
    assert isinstance(stream, TracerStream) and stream.launches == 3
    assert device.log == []
    device.is_writing = True
    recording.submit(stream, bound)
    assert [row[:3] for row in device.log] == [("launch", "test.cu:scale", (3, 1, 1))] * 3
