"""The code for real GPUs, over a stand-in for CuPy and the driver: what it calls, and what becomes of errors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpuexec.command import Copy, Fill, Kernel, Launch, Slot
from gpuexec.errors import DeviceLostError, DeviceNotFoundError, OutOfMemoryError
from gpuexec.plan import Segment
from gpuexec.runtime.arguments import PackedArguments
from gpuexec.runtime.cuda import CudaDevice, CudaEvent
from gpuexec.runtime.device import Region
from gpuexec.runtime.driver import probe
from gpuexec.runtime.prepared import PreparedSegment
from gpuexec.runtime.simulator.device import SimulatorDevice
from gpuexec.spec import TensorSpec
from tests.runtime.cupy_standin import Standin, install

SOURCE = """#include <cuda_fp16.h>
struct Shift { int by[3]; };
template <typename T>
__global__ void __launch_bounds__(64) scale(const T* x, T* y, T factor, Shift shift, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) y[i] = (T)((float)x[i] * (float)factor + (float)shift.by[2]);
}
extern "C" __global__ void fault(int* x) { x[0] = 1; }
"""
EXPRESSIONS = ("scale<float>", "scale<__half>", "scale<int>", "fault")
ORDINARY, ONES = (1, 1, 1), (64, 1, 1)
SHIFT = np.array([0, 0, 5], np.int32).tobytes()


@pytest.fixture
def standin() -> Iterator[Standin]:
    below = SimulatorDevice(lambda source: EXPRESSIONS)
    yield Standin(below)
    below.close()


@pytest.fixture(params=[False, True], ids=["raw_kernel", "packed"])
def packed(request: pytest.FixtureRequest) -> Any:
    """How kernels are launched."""
    return request.param


@pytest.fixture
def device(standin: Standin, packed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[CudaDevice]:
    """A device over the stand-in."""
    install(monkeypatch, standin)
    monkeypatch.setenv("GPUEXEC_CACHE_DIR", str(tmp_path / "cache"))
    made = CudaDevice(packed_launch=packed)
    yield made
    assert getattr(standin.current, "depth", 0) == 0, "the caller's device was not put back"
    made.close()


@pytest.fixture(params=["standin", pytest.param("gpu", marks=pytest.mark.gpu)])
def any_device(request: pytest.FixtureRequest, packed: bool) -> Iterator[CudaDevice]:
    """A device over the stand-in, and the GPU where there is one."""
    if request.param == "standin":
        yield request.getfixturevalue("device")
        return
    if probe().reason:
        pytest.skip(probe().reason)
    made = CudaDevice(packed_launch=packed)
    yield made
    made.close()


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "scale.cu"
    path.write_text(SOURCE)
    return str(path)


def upload(device: CudaDevice, stream: Any, array: np.ndarray) -> Any:
    memory = device.allocate(array.nbytes)
    stream.copy_to_device(memory.address, array.view(np.uint8).reshape(-1))
    return memory


def download(device: CudaDevice, stream: Any, memory: Any, dtype: Any) -> np.ndarray:
    pinned = device.allocate_pinned(memory.nbytes)
    stream.copy_to_host(pinned.array, memory.address)
    stream.synchronize()
    result = pinned.array.view(dtype).copy()
    pinned.free()
    return result


@pytest.mark.parametrize(
    ("expression", "dtype"), [("scale<float>", np.float32), ("scale<__half>", np.float16), ("scale<int>", np.int32)]
)
def test_launch_passes_pointers_scalars_and_structs(
    any_device: CudaDevice, source: str, expression: str, dtype: Any
) -> None:
    kernel, stream = Kernel(source, expression), any_device.create_stream()
    any_device.load([kernel])
    x, y = upload(any_device, stream, np.arange(100, dtype=dtype)), any_device.allocate(100 * np.dtype(dtype).itemsize)
    arguments = PackedArguments([None, None, np.dtype(dtype).type(3), SHIFT, np.int32(100)])
    arguments.set_pointer(0, x.address)
    arguments.set_pointer(1, y.address)
    stream.launch(any_device.function(kernel), (2, 1, 1), ONES, 0, arguments)
    assert (download(any_device, stream, y, dtype) == np.arange(100) * 3 + 5).all()


@pytest.mark.parametrize("pattern", [b"\x07", b"\x01\x02", b"\x01\x02\x03\x04", b"\x01\x02\x03\x04\x05\x06\x07\x08"])
def test_fill_repeats_patterns_of_each_width(any_device: CudaDevice, pattern: bytes) -> None:
    stream, memory = any_device.create_stream(), any_device.allocate(5 * len(pattern))
    stream.fill(memory.address, pattern, 5)
    assert download(any_device, stream, memory, np.uint8).tobytes() == pattern * 5


def test_copy_and_events_order_two_streams(any_device: CudaDevice) -> None:
    first, second, event = any_device.create_stream(), any_device.create_stream(), any_device.create_event()
    assert event.is_done()
    x = upload(any_device, first, np.arange(64, dtype=np.float32))
    y = any_device.allocate(x.nbytes)
    first.record(event)
    second.wait(event)
    second.copy(y.address, x.address, x.nbytes)
    assert (download(any_device, second, y, np.float32) == np.arange(64)).all()
    assert event.synchronize() and event.synchronize(timeout_s=10) and event.is_done() and second.is_done()


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


def test_every_call_raises_device_lost_after_a_fault(device: CudaDevice, source: str) -> None:
    kernel, stream, event = Kernel(source, "fault"), device.create_stream(), device.create_event()
    device.load([kernel])
    memory, arguments = device.allocate(16), PackedArguments([None])
    stream.launch(device.function(kernel), ORDINARY, (1, 1, 1), 0, arguments)
    with pytest.raises(DeviceLostError, match="waiting for a stream"):
        stream.synchronize()
    for call in (
        stream.synchronize,
        stream.is_done,
        event.is_done,
        lambda: stream.record(event),
        lambda: stream.fill(memory.address, b"\0", 1),
        lambda: stream.launch(device.function(kernel), ORDINARY, (1, 1, 1), 0, arguments),
        lambda: device.allocate(16),
        device.create_stream,
    ):
        with pytest.raises(DeviceLostError, match="waiting for a stream"):
            call()


def test_is_done_raises_when_a_fault_is_what_ends_the_work(device: CudaDevice, standin: Standin) -> None:
    event = device.create_event()
    standin.cupy.cuda.runtime.eventQuery = lambda handle: 719
    with pytest.raises(DeviceLostError, match="asking whether work is done"):
        event.is_done()


def test_wait_holds_a_stream_until_the_other_has_done_its_work(device: CudaDevice) -> None:
    first, second, event = device.create_stream(), device.create_stream(), device.create_event()
    x, y = upload(device, first, np.zeros(64, np.float32)), device.allocate(256)
    first.synchronize()
    gate = first.stream.below.hold()
    first.fill(x.address, np.float32(1).tobytes(), 64)
    first.record(event)
    second.wait(event)
    second.copy(y.address, x.address, x.nbytes)
    assert not first.is_done() and not second.is_done() and not event.is_done()
    gate.set()
    assert (download(device, second, y, np.float32) == 1).all()


def test_allocate_says_out_of_memory_and_goes_on_once_memory_is_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = SimulatorDevice(lambda source: (), memory_bytes=4096)
    install(monkeypatch, Standin(small))
    device = CudaDevice()
    memory = device.allocate(4096)
    with pytest.raises(OutOfMemoryError, match="allocating 4096 bytes"):
        device.allocate(4096)
    memory.free()
    memory.free()
    assert device.allocate(4096).nbytes == 4096
    small.close()


def test_pinned_memory_stays_while_a_view_of_it_is_held(any_device: CudaDevice) -> None:
    pinned = any_device.allocate_pinned(100)
    assert pinned.array is not None
    view = pinned.array[10:20]
    view[...] = 7
    pinned.free()
    assert pinned.array is None and (view == 7).all()


def test_load_allows_all_the_shared_memory_of_a_block(any_device: CudaDevice, source: str) -> None:
    kernel = Kernel(source, "scale<float>")
    any_device.load([kernel])
    assert any_device.function(kernel).raw.max_dynamic_shared_size_bytes == any_device.target.shared_bytes_per_block


def test_bfloat16_scalars_become_arguments_that_cupy_takes() -> None:
    value = np.asarray(PackedArguments([ml_dtypes.bfloat16(1.5)]).items()[0])
    assert value.size == 1 and value.__array_interface__["data"][0] and value.tobytes() == b"\xc0\x3f"


def test_event_gives_up_when_time_runs_out() -> None:
    event = CudaEvent.__new__(CudaEvent)
    event._device = SimpleNamespace(cupy=SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace(eventQuery=id))))  # type: ignore[assignment]
    event._device.is_success = lambda status: False  # type: ignore[method-assign]
    event.event = SimpleNamespace(ptr=0)
    assert event.synchronize(timeout_s=0.002) is False


@pytest.mark.parametrize(
    ("architecture", "count", "ordinal", "says"),
    [
        ((7, 0), 1, 0, r"GPU 0 \(Stand-in\) is sm_70; gpuexec needs sm_75 or newer"),
        ((9, 0), 0, 0, "CUDA can't be used: cudaError 100"),
        ((9, 0), 1, 1, "There is no GPU 1; CUDA shows 1"),
    ],
)
def test_device_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, architecture: tuple[int, int], count: int, ordinal: int, says: str
) -> None:
    install(monkeypatch, Standin(None, architecture, count))
    with pytest.raises(DeviceNotFoundError, match=says):
        CudaDevice(ordinal)


def test_device_names_the_command_when_cupy_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceNotFoundError, match=r"pip install 'gpuexec\[cuda1[23]\]'"):
        CudaDevice()


FAULT = """
import sys
from gpuexec.command import Kernel
from gpuexec.errors import DeviceLostError
from gpuexec.runtime.arguments import PackedArguments
from gpuexec.runtime.cuda import CudaDevice

device = CudaDevice()
kernel, stream, event = Kernel(sys.argv[1], "fault"), device.create_stream(), device.create_event()
device.load([kernel])
stream.launch(device.function(kernel), (1, 1, 1), (1, 1, 1), 0, PackedArguments([None]))
for call in (stream.synchronize, event.is_done, lambda: stream.record(event), lambda: device.allocate(16)):
    try:
        call()
    except DeviceLostError as error:
        assert "waiting for a stream" in str(error), error
    else:
        sys.exit(f"{call} said nothing of the fault")
print("lost")
"""


@pytest.mark.gpu
def test_fault_of_a_gpu_is_reported_by_every_call(source: str) -> None:
    if probe().reason:
        pytest.skip(probe().reason)
    # A process of its own: a fault ends the context of the one that has it.
    done = subprocess.run([sys.executable, "-c", FAULT, source], capture_output=True, text=True, check=False)
    assert done.stdout == "lost\n", done.stderr
