"""Memory of the CUDA device: sources, reuse and release, over a stand-in for CuPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuexec.devices.cuda.cuda import CudaDevice
from gpuexec.devices.memory_pool import MemoryPool
from gpuexec.errors import DeviceLostError, OrderError, OutOfMemoryError
from tests.devices.cupy_standin import Standin


def test_memory_is_not_of_cupys_pools(device: CudaDevice, standin: Standin) -> None:
    assert not hasattr(standin.cupy.cuda, "alloc") and not hasattr(standin.cupy.cuda, "alloc_pinned_memory")
    memory, pinned = device.allocate(1000), device.allocate_pinned(1000)
    assert memory.address % 256 == 0 and memory.array is None and memory.nbytes == 1000
    assert pinned.array is not None and pinned.array.nbytes == 1000 and pinned.array.ctypes.data == pinned.address


def test_freed_memory_is_used_again_without_a_call_of_the_driver(device: CudaDevice, standin: Standin) -> None:
    first = device.allocate(1000)
    first.free()
    first.free()
    assert device.cached_nbytes == 1024
    held = len(standin.memory.held)
    assert device.allocate(990).address == first.address and len(standin.memory.held) == held


def test_memory_nobody_holds_comes_back_without_a_call_of_the_driver(
    device: CudaDevice, standin: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, pinned = device.allocate(1000), device.allocate_pinned(1000)
    places = memory.address, pinned.address
    with monkeypatch.context() as patch:
        for name in ("free", "freeHost", "malloc", "hostAlloc"):
            patch.setattr(standin.cupy.cuda.runtime, name, None)
        del memory, pinned
        assert (device.allocate(1000).address, device.allocate_pinned(1000).address) == places


def test_another_stream_writes_freed_memory_behind_an_event(any_device: CudaDevice) -> None:
    one, other, memory = any_device.create_stream(), any_device.create_stream(), any_device.allocate(4096)
    one.fill(memory.address, b"\1", 4096)
    memory.note_stream(one)  # type: ignore[attr-defined]
    memory.free()
    again = any_device.allocate(4096, other)
    other.fill(again.address, b"\2", 4096)
    assert again.address == memory.address
    pinned = any_device.allocate_pinned(4096)
    assert pinned.array is not None
    other.copy_to_host(pinned.array, again.address)
    other.synchronize()
    one.synchronize()
    assert (pinned.array == 2).all()


def test_wait_that_the_pool_leaves_out_is_found(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryPool, "_order", lambda *_: None)
    one, other, memory = device.create_stream(), device.create_stream(), device.allocate(4096)
    one.stream.below.hold()
    one.fill(memory.address, b"\1", 4096)
    memory.note_stream(one)  # type: ignore[attr-defined]
    memory.free()
    again: Any = device.allocate(4096, other)
    with pytest.raises(OrderError, match="on stream 2 writes"):
        other.stream.below.fill(again.address, b"\2", 4096)


def test_trim_and_close_give_memory_back_to_the_driver(device: CudaDevice, standin: Standin) -> None:
    device.allocate(1000).free()
    device.allocate_pinned(1000).free()
    assert device.trim() == 2048 and device.cached_nbytes == 0 and not standin.memory.held
    kept = device.allocate(5000)
    kept.free()
    device.close()
    assert not standin.memory.held


@pytest.mark.usefixtures("device")
def test_no_more_is_kept_than_the_knob_says(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEXEC_POOL_BYTES", "4096")
    device = CudaDevice()
    memories = [device.allocate(2048) for _ in range(5)]
    for memory in memories:
        memory.free()
    assert device.cached_nbytes == 4096 and len(standin.memory.held) == 2
    device.close()


def test_memory_that_runs_out_is_taken_from_what_is_kept(device: CudaDevice, standin: Standin) -> None:
    runtime, malloc, room = standin.cupy.cuda.runtime, standin.cupy.cuda.runtime.malloc, 8192

    def allocate(size: int) -> int:
        if sum(memory.nbytes for memory in standin.memory.held.values()) + size > room:
            raise runtime.CUDARuntimeError(2)
        return int(malloc(size))

    runtime.malloc = allocate
    stream, idle, busy = device.create_stream(), device.allocate(2048), device.allocate(4096)
    stream.fill(busy.address, b"\1", 4096)
    busy.note_stream(stream)  # type: ignore[attr-defined]
    idle.free()
    busy.free()
    held = device.allocate(8192)  # waits for the stream at last
    assert device.cached_nbytes == 0 and list(standin.memory.held) == [held.address]
    with pytest.raises(OutOfMemoryError, match="allocating 512 bytes failed: cudaError 2"):
        device.allocate(1)


def test_lost_gpu_gives_no_memory_that_it_kept(device: CudaDevice) -> None:
    device.allocate(1000).free()
    device.allocate_pinned(1000).free()
    device.context.lost = "gone"
    for call in (device.allocate, device.allocate_pinned):
        with pytest.raises(DeviceLostError, match="gone"):
            call(1000)
    assert device.trim() == 0
    device.context.lost = None


def test_stream_of_cupys_that_work_is_noted_on_is_held(device: CudaDevice, standin: Standin) -> None:
    theirs = standin.device.create_stream()
    handle = standin.handles.add(theirs)
    current = type("Stream", (), {"ptr": handle})()
    standin.current_stream = current
    assert device.external_stream(handle).owner is current
    other = device.create_stream()
    assert device.external_stream(other.handle).owner is None


def test_pinned_memory_is_aligned_for_every_dtype(any_device: CudaDevice) -> None:
    for nbytes in (0, 1, 100, 5000):
        pinned = any_device.allocate_pinned(nbytes)
        assert pinned.array is not None and pinned.array.nbytes == nbytes and pinned.address % 16 == 0
        pinned.array[...] = np.uint8(1)
