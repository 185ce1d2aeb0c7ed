"""Reuse of memory still in use: freed by the user's allocator, or an exported output released."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices import dlpack
from gpuexec.devices.backend import Backend
from gpuexec.devices.device import MemoryBlock, Stream, align
from gpuexec.devices.memory_pool import MemoryPool
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.errors import OrderError
from tests.devices.opening import make_simulator
from tests.model.small_models import affine, expect_affine, ramp, two_layers

X = ramp(2, 3)


@pytest.fixture
def backend() -> Iterator[Backend]:
    device = make_simulator()
    yield Backend(device, gx.BackendType.SIMULATOR, "for a test")
    device.close()


class Slice:
    """Bytes of an allocator."""

    array = None

    def __init__(self, owner: Allocator, address: int, nbytes: int) -> None:
        self.owner, self.address, self.nbytes = owner, address, nbytes

    def free(self) -> None:
        self.owner.free.append((self.address, self.nbytes))


class Allocator:
    """Allocator of a user, like CuPy's: freed memory serves the next request, whatever its stream."""

    def __init__(self, device: SimulatorDevice, nbytes: int = 1 << 20) -> None:
        self.block: MemoryBlock = device.allocate(nbytes)
        self.free: list[tuple[int, int]] = []
        self.used = 0

    def allocate(self, nbytes: int, stream: Stream | None = None) -> Slice:
        for row in self.free:
            if row[1] >= nbytes:
                self.free.remove(row)
                self.free.append((row[0] + align(nbytes), row[1] - align(nbytes)))
                return Slice(self, row[0], nbytes)
        self.used += align(nbytes)
        return Slice(self, self.block.address + self.used - align(nbytes), nbytes)


@pytest.mark.parametrize("is_shared", [False, True], ids=["own pool", "the user's allocator"])
def test_block_freed_by_the_user_while_his_kernel_runs_is_not_written(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, is_shared: bool
) -> None:
    device: Any = backend.device
    users, stream = Allocator(device), device.create_stream()
    block = users.allocate(1 << 16)
    gate = stream.hold()
    stream.fill(block.address, b"\1", block.nbytes)
    block.free()
    if is_shared:
        # What used to be: the runtime took its memory where the user takes his.
        monkeypatch.setattr(device, "allocate", users.allocate)
        worker = gx.Worker(affine(), backend=backend)
        with pytest.raises(OrderError, match="which fill of 65536 bytes on stream 1 writes"):
            worker.schedule(X)
        gate.set()
        worker.close()
        return
    with gx.Worker(affine(), backend=backend) as worker:
        np.testing.assert_array_equal(worker.schedule(X).peek_output().readback_and_clone(), expect_affine(X))
    assert not device.context.ordering.findings


class Consumer:
    """Another package that takes outputs for a stream of its own."""

    def __init__(self, backend: Backend, handle: int | None = None) -> None:
        device = backend.device
        self.stream = device.create_stream() if handle is None else device.external_stream(handle)
        self.handle = self.stream.handle if handle is None else handle
        self.out = device.allocate_pinned(1 << 16)

    def take_dlpack(self, tensor: gx.Tensor) -> dlpack.Import:
        capsule = tensor.__dlpack__(stream=self.handle, max_version=(1, 0))
        return dlpack.take(type("Given", (), {"__dlpack__": lambda self, **_: capsule})())

    def take_interface(self, tensor: gx.Tensor, backend: Backend) -> int:
        interface = tensor.__cuda_array_interface__
        event = backend.device.create_event()
        backend.device.external_stream(interface["stream"]).record(event)
        self.stream.wait(event)
        address: int = interface["data"][0]
        return address

    def read(self, address: int, nbytes: int) -> None:
        """Put a read of the bytes on the stream, which nobody waits for."""
        assert self.out.array is not None
        self.stream.hold()  # type: ignore[attr-defined]
        self.stream.copy_to_host(self.out.array[:nbytes], address)


def give_and_take(backend: Backend, worker: gx.Worker, consumer: Consumer, is_dlpack: bool) -> int:
    """Have a consumer read an output, and let go of it while the read is under way; return where it lay."""
    tensor = worker.schedule(X).peek_output()
    assert tensor is not None
    if is_dlpack:
        taken = consumer.take_dlpack(tensor)
        address = taken.address
    else:
        address, taken = consumer.take_interface(tensor, backend), tensor  # type: ignore[assignment]
    tensor.readback_and_clone()
    consumer.read(address, 24)
    tensor.close()
    del tensor, taken
    worker.schedule(X)
    worker.wait_for_completion()
    gc.collect()
    backend.deferred_free.prune()
    return address


@pytest.mark.parametrize(
    ("handle", "is_dlpack"),
    [(None, True), (1, True), (2, True), (1, False)],
    ids=["own", "legacy", "thread", "interface"],
)
def test_bytes_a_consumer_let_go_of_are_used_again_behind_its_work(
    backend: Backend, handle: int | None, is_dlpack: bool
) -> None:
    device: Any = backend.device
    consumer = Consumer(backend, handle)
    with gx.Worker(affine(), backend=backend) as worker:
        address = give_and_take(backend, worker, consumer, is_dlpack)
        assert device.cached_nbytes == 24
        fresh = device.allocate(24)
        assert fresh.address != address
        writer = device.create_stream()
        again = device.allocate(24, writer)
        assert again.address == address
        writer.fill(address, b"\1", 24)
        assert not device.context.ordering.findings
        for thread in device._threads:
            for gate in thread._gates:
                gate.set()


def test_reuse_that_forgets_the_consumer_is_found(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    device: Any = backend.device
    monkeypatch.setattr(MemoryPool, "_order", lambda *_: None)
    consumer = Consumer(backend)
    with gx.Worker(affine(), backend=backend) as worker:
        address = give_and_take(backend, worker, consumer, True)
        writer = device.create_stream()
        again = device.allocate(24, writer)
        assert again.address == address
        with pytest.raises(
            OrderError, match=r"^Fill of 24 bytes on stream \d writes .* copy of 24 bytes on stream 1 r"
        ):
            writer.fill(address, b"\1", 24)
        consumer.stream.thread._gates[-1].set()  # type: ignore[attr-defined]


def test_consumer_in_a_loop_takes_no_more_memory_than_it_is_behind(backend: Backend) -> None:
    device: Any = backend.device
    stream, addresses = device.create_stream(), set()
    with gx.Worker(affine(), backend=backend) as worker:
        for _ in range(20):
            tensor = worker.schedule(X).peek_output()
            assert tensor is not None
            capsule = tensor.__dlpack__(stream=stream.handle)
            addresses.add(tensor.__cuda_array_interface__["data"][0])
            stream.synchronize()
            tensor.close()
            del tensor, capsule
            worker.wait_for_completion()
    assert len(addresses) <= 8 and not device.context.ordering.findings


def test_steady_run_allocates_nothing(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    with gx.Worker(two_layers(), backend=backend) as worker:
        for _ in range(4):
            worker.schedule(X).wait()
        calls: list[int] = []
        allocate = MemoryPool.allocate

        def count(pool: MemoryPool, nbytes: int, stream: Stream | None = None) -> Any:
            calls.append(nbytes)
            return allocate(pool, nbytes, stream)

        monkeypatch.setattr(MemoryPool, "allocate", count)
        for _ in range(10):
            worker.schedule(X).wait()
    assert calls == []


def test_trim_gives_what_the_device_keeps_back(backend: Backend) -> None:
    device: Any = backend.device
    with gx.Worker(affine(), backend=backend) as worker:
        worker.schedule(X).wait()
        memory, stream = device.allocate(100), device.create_stream()
        stream.fill(memory.address, b"\1", 100)
        memory.note_stream(stream)
        memory.free()
        stream.thread.mark().wait()
        assert worker.memory_stats()["cached"] == 100
        worker.trim()
        assert worker.memory_stats()["cached"] == 0
