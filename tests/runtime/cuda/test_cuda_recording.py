"""Recordings on the code for real GPUs: submitted as launches and as graphs."""

from __future__ import annotations

import numpy as np

from gpuexec.command import Copy, Fill, Kernel, Launch, Slot
from gpuexec.plan import Segment
from gpuexec.runtime.cuda import CudaDevice
from gpuexec.runtime.device import Region
from gpuexec.runtime.prepared import PreparedSegment
from gpuexec.spec import TensorSpec
from tests.runtime.cuda.launching import ONES, ORDINARY, SHIFT, download, upload


def make_segment(source: str) -> Segment:
    """Fill %2 with 8-byte patterns beside y = 3x + 5 into %1, then copy %1 over the front of %2."""
    spec = TensorSpec((64,), np.dtype(np.float32))
    wide = TensorSpec((64,), np.dtype(np.int64))
    x, y, front = (Slot(buffer, 0, spec, (1,)) for buffer in (0, 1, 2))
    scale = Launch(
        Kernel(source, "scale<float>"), ORDINARY, ONES, (x, y, np.float32(3), SHIFT, np.int32(64)), writes=(1,)
    )
    fill = Fill(Slot(2, 0, wide, (1,)), b"\x01\0\0\0\x02\0\0\0")
    return Segment((scale, fill, Copy(front, y)), ((0, 2), (1, 2)), ("scale", "fill", "copy"))


def expect_segment(x: np.ndarray) -> bytes:
    return (x * 3 + 5).astype(np.float32).tobytes() + b"\x01\0\0\0\x02\0\0\0" * 32


def test_record_submits_a_segment_with_bound_buffers(any_device: CudaDevice, source: str) -> None:
    segment, stream = make_segment(source), any_device.create_stream()
    any_device.load([Kernel(source, "scale<float>")])
    y, z = any_device.allocate(256), any_device.allocate(512)
    recording = any_device.record(segment, {1: Region(y, 0, 256)})
    for start in (0, 1000):
        values = np.arange(start, start + 64, dtype=np.float32)
        x = upload(any_device, stream, values)
        recording.submit(stream, {0: Region(x, 0, 256), 2: Region(z, 0, 512)})
        assert download(any_device, stream, z, np.uint8).tobytes() == expect_segment(values)


def test_graph_runs_in_any_order_its_edges_allow_and_takes_updates(any_device: CudaDevice, source: str) -> None:
    segment, stream = make_segment(source), any_device.create_stream()
    any_device.load([Kernel(source, "scale<float>")])
    y, z = any_device.allocate(256), any_device.allocate(512)
    prepared = PreparedSegment(any_device, segment.commands, {1: Region(y, 0, 256)})
    values = np.arange(64, dtype=np.float32)
    memories = [upload(any_device, stream, values + start) for start in (0, 1000)]
    prepared.bind({0: Region(memories[0], 0, 256), 2: Region(z, 0, 512)})
    graph = any_device.create_graph(prepared.commands, segment.edges)
    for memory, start in zip(memories * 3, (0, 1000) * 3, strict=True):
        touched = prepared.bind({0: Region(memory, 0, 256), 2: Region(z, 0, 512)})
        graph.update(sorted(touched), prepared.commands)
        stream.fill(z.address, b"\0", 512)
        graph.launch(stream)
        assert download(any_device, stream, z, np.uint8).tobytes() == expect_segment(values + start)
    graph.close()
    graph.close()


def test_graph_keeps_the_arguments_it_was_given_when_they_change_without_an_update(
    any_device: CudaDevice, source: str
) -> None:
    segment, stream = make_segment(source), any_device.create_stream()
    any_device.load([Kernel(source, "scale<float>")])
    y, z = any_device.allocate(256), any_device.allocate(512)
    prepared = PreparedSegment(any_device, segment.commands, {1: Region(y, 0, 256)})
    values = np.arange(64, dtype=np.float32)
    first, second = (upload(any_device, stream, values + start) for start in (0, 1000))
    prepared.bind({0: Region(first, 0, 256), 2: Region(z, 0, 512)})
    graph = any_device.create_graph(prepared.commands, segment.edges)
    prepared.bind({0: Region(second, 0, 256), 2: Region(z, 0, 512)})
    graph.launch(stream)
    assert download(any_device, stream, z, np.uint8).tobytes() == expect_segment(values)
