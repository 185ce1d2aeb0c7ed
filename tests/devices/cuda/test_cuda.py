"""The CUDA device over a stand-in for CuPy and the driver: the calls it makes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpuexec.devices.arguments import PackedArguments
from gpuexec.devices.cuda.cuda import CudaDevice
from gpuexec.ir.command import Kernel, LaunchConfig
from tests.devices.cuda.launching import ONES, SHIFT, download, upload


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
    stream.launch(any_device.function(kernel), LaunchConfig((2, 1, 1), ONES), arguments)
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
