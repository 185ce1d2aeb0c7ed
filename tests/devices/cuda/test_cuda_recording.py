"""Recordings on the CUDA device: submitted as launches and as graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpuexec.devices.arguments import PackedArguments
from gpuexec.devices.cuda.cuda import CudaDevice
from gpuexec.devices.device import Region
from gpuexec.devices.launch_costs import PACKED_COSTS, RAW_KERNEL_COSTS
from gpuexec.devices.prepared import PreparedSegment
from gpuexec.ir.command import Copy, Fill, Kernel, Launch, LaunchConfig, Slot
from gpuexec.ir.plan import Segment
from gpuexec.ir.spec import TensorSpec
from tests.devices.cuda.launching import ONES, ORDINARY, SHIFT, download, upload
from tests.devices.cupy_standin import Standin, install

_ITEMS = PackedArguments.items


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


def test_submission_makes_the_gpu_current_once(device: CudaDevice, source: str) -> None:
    segment, stream = make_segment(source), device.create_stream()
    device.load([Kernel(source, "scale<float>")])
    x = upload(device, stream, np.arange(64, dtype=np.float32))
    y, z = device.allocate(256), device.allocate(512)
    recording = device.record(segment, {0: Region(x, 0, 256), 1: Region(y, 0, 256), 2: Region(z, 0, 512)})
    before = device.context.device.entered
    recording.submit(stream, {})
    assert device.context.device.entered == before + 1
    stream.synchronize()


@pytest.mark.parametrize(("value", "is_packed"), [(None, True), ("1", True), ("0", False)])
def test_launches_are_packed_unless_a_knob_says_otherwise(
    standin: Standin, source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str | None, is_packed: bool
) -> None:
    """A RawKernel's array for each argument is made on its path alone, and each path has costs of its own."""
    install(monkeypatch, standin)
    monkeypatch.setenv("GPUEXEC_CACHE_DIR", str(tmp_path / "cache"))
    if value is not None:
        monkeypatch.setenv("GPUEXEC_PACKED_LAUNCH", value)
    device = CudaDevice()
    taken = []
    monkeypatch.setattr(PackedArguments, "items", lambda self: taken.append(self) or _ITEMS(self))
    kernel, stream = Kernel(source, "scale<float>"), device.create_stream()
    device.load([kernel])
    x, y = upload(device, stream, np.arange(64, dtype=np.float32)), device.allocate(256)
    arguments = PackedArguments([None, None, np.float32(3), SHIFT, np.int32(64)])
    arguments.set_pointer(0, x.address)
    arguments.set_pointer(1, y.address)
    stream.launch(device.function(kernel), LaunchConfig(ORDINARY, ONES), arguments)
    assert (download(device, stream, y, np.float32) == np.arange(64) * 3 + 5).all()
    assert len(taken) == (0 if is_packed else 1)
    assert device.launch_costs is (PACKED_COSTS if is_packed else RAW_KERNEL_COSTS)
    device.close()
