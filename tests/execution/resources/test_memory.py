"""Ownership of memory: growing arenas, rotating frames, and running out."""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from gpuexec.devices.device import Region
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.errors import OutOfMemoryError
from gpuexec.execution.resources.exchange_pool import Lent
from gpuexec.execution.resources.fence import Fence, when_all_issued
from gpuexec.execution.resources.frames import Frame, Lease, Readers, RunCounter, SharedRunCount
from gpuexec.execution.resources.memory import Arena, BorrowedMemory
from gpuexec.ir.instances import kernel_table
from tests.model.small_models import CPU, affine, expect_affine, hold, make_tracer, ramp, trace, two_layers


def test_borrowed_memory_keeps_its_owner() -> None:
    array = ramp(2, 3)
    memory = BorrowedMemory.of(array)
    assert memory.address == array.ctypes.data and memory.nbytes == array.nbytes and memory.owner is array
    memory.free()
    assert memory.owner is None


def test_arena_grows_and_keeps_what_was_in_use() -> None:
    arena = Arena(make_tracer())
    small = arena.reserve(100)
    assert arena.reserve(50) is small and arena.generation == 1
    large = arena.reserve(1000)
    assert large is not small and arena.generation == 2 and arena.nbytes == 1100
    arena.release_retired()
    assert arena.nbytes == 1000
    arena.free()
    assert arena.nbytes == 0


def test_frame_gives_the_same_bytes_until_they_are_taken_out() -> None:
    frame = Frame(make_tracer())
    first = frame.output("y", 100)
    assert frame.output("y", 60).memory is first.memory
    frame.take_out(first.memory)
    assert frame.output("y", 60).memory is not first.memory
    assert frame.nbytes == 60


def test_frame_writes_to_memory_given_and_never_lets_go_of_it() -> None:
    frame = Frame(make_tracer())
    memory = BorrowedMemory(4096, 512, None)
    frame.give("y", Region(memory, 256, 100))
    assert frame.output("y", 60) == Region(memory, 256, 60) == Region(frame.output("y", 60).memory, 256, 60)
    frame.take_out(memory)
    assert frame.is_given("y") and frame.given("y") == Region(memory, 256, 100)
    assert frame.holds(Region(memory, 300, 1)) and not frame.holds(Region(memory, 0, 256))
    with pytest.raises(OutOfMemoryError, match="'y' needs 101 bytes, and the memory given for it has 100"):
        frame.output("y", 101)
    frame.give("y", None)
    assert frame.output("y", 101).memory is not memory


def test_arena_grows_beyond_memory_given_by_what_allocates() -> None:
    backend, taken = make_tracer(), []

    def allocate(nbytes: int) -> BorrowedMemory:
        taken.append(nbytes)
        return BorrowedMemory(8192, nbytes, None)

    given = BorrowedMemory(4096, 512, None)
    arena = Arena(backend, allocate, given)
    assert arena.reserve(512) is given and taken == []
    assert arena.reserve(513) is not given and taken == [513]
    assert trace(backend) == []


@pytest.mark.parametrize("step", [1, -1])
def test_who_waits_for_many_fences_is_called_once_all_are_issued(step: int) -> None:
    fences, calls = [Fence() for _ in range(3000)], []
    when_all_issued(fences, lambda: calls.append(all(fence.is_issued() for fence in fences)))
    for fence in fences[::step]:
        assert not calls
        fence.issue(())
    assert calls == [True]


def test_engines_that_share_a_count_end_each_others_turns() -> None:
    backend, count = make_tracer(), SharedRunCount()
    first, second = RunCounter(backend, count=count), RunCounter(backend, count=count, owner="Method")
    first.advance()
    lease = Lease(backend, Frame(backend), first)
    lease.check("y")
    second.advance()
    with pytest.raises(gx.StaleError, match="'y'"):
        lease.check("y")
    first.close()
    own = Lease(backend, Frame(backend), second)
    own.check("y")
    second.close()
    with pytest.raises(gx.ClosedError, match="its Method is closed"):
        own.check("y")


def test_lease_ends_with_the_turn() -> None:
    backend = make_tracer()
    run_counter, frame = RunCounter(backend), Frame(backend)
    run_counter.advance()
    lease = Lease(backend, frame, run_counter)
    lease.check("y")
    run_counter.advance()
    with pytest.raises(gx.StaleError, match="'y'"):
        lease.check("y")
    run_counter.close()
    with pytest.raises(gx.ClosedError, match="'y'"):
        lease.check("y")
    Lease(backend).check("y")


def test_write_waits_for_readers_announced_before_it_alone() -> None:
    backend = open_backend(CPU)
    stream = backend.device.create_stream()
    gate = hold(stream)
    event = backend.device.create_event()
    stream.record(event)
    readers = Readers(backend)
    readers.add(Fence.of(event))
    write = readers.announce_write()
    later = Fence()
    readers.add(later)
    assert readers.list_unissued(write) == []
    assert readers.list_unissued(readers.announce_write()) == [later]
    writer = backend.device.create_stream()
    readers.hold_back(writer, write)
    assert not writer.is_done()
    gate.set()
    writer.synchronize()
    assert readers.list_unissued(readers.announce_write()) == [later]


def test_readers_that_are_settled_hold_others_back_until_they_are_through() -> None:
    readers = Readers(make_tracer())
    seen: list[bool] = []

    class Slow(Fence):
        """Looks, while it is waited for, whether others would wait too."""

        def settle(self) -> None:
            seen.append(self in readers.list_unissued(readers.announce_write()))
            self.issue(())

    fence, other = Slow(), Slow()
    readers.add(fence)
    readers.settle(only_issued=True)
    assert seen == []
    readers.announce_write(other)
    readers.settle()
    assert seen == [True, True] and readers.list_unissued(readers.announce_write()) == []


def test_each_reader_is_asked_a_constant_number_of_times_however_many_there_are() -> None:
    readers, asked = Readers(make_tracer()), []

    class Counted(Fence):
        """Is never done."""

        def is_done(self) -> bool:
            asked.append(self)
            return False

    for _ in range(4000):
        readers.add(Counted())
    assert len(asked) <= 2 * 4000


def test_readers_that_are_done_are_forgotten() -> None:
    readers, fences = Readers(make_tracer()), []
    for _ in range(200):
        fence = Fence.of()
        readers.add(fence)
        fences.append(weakref.ref(fence))
    assert sum(each() is not None for each in fences) <= 16 + 1


def test_memory_that_runs_out_is_trimmed_once_then_reported_with_the_plans_sizes() -> None:
    device = SimulatorDevice(lambda source: kernel_table()[source], memory_bytes=1 << 20)
    backend = Backend(device, gx.BackendType.SIMULATOR, "for a test")
    with gx.Worker(affine(), backend=backend) as worker:
        x, large = ramp(10, 3), ramp(10000, 3)
        np.testing.assert_array_equal(worker.run(x)[0], expect_affine(x))
        # The device is large enough for the plan, but somebody else has most of it.
        held = device.allocate(1_000_000)
        with pytest.raises(OutOfMemoryError, match=r"The plan needs .* outputs in each of 2 frames"):
            worker.schedule(large)
        np.testing.assert_array_equal(worker.run(x)[0], expect_affine(x))
        held.free()
        np.testing.assert_array_equal(worker.run(large)[0], expect_affine(large))
    device.close()


def test_an_output_that_finds_no_room_is_named() -> None:
    device = SimulatorDevice(lambda source: kernel_table()[source], memory_bytes=1 << 20)
    held = device.allocate(1_000_000)
    with gx.Worker(affine(), backend=Backend(device, gx.BackendType.SIMULATOR, "for a test")) as worker:
        with pytest.raises(OutOfMemoryError, match=r"^Output 'y': .* can't allocate") as caught:
            worker.prepare((10000, 3))
        assert caught.value.value == "y"
        with pytest.raises(OutOfMemoryError, match=r"^Output 'y': .* The plan needs") as caught:
            worker.schedule(ramp(10000, 3))
        assert caught.value.value == "y"
    held.free()
    device.close()


def test_memory_outgrown_is_given_back_when_it_runs_out() -> None:
    device = SimulatorDevice(lambda source: kernel_table()[source], memory_bytes=40_000)
    backend = Backend(device, gx.BackendType.SIMULATOR, "for a test")
    with gx.Worker(affine(), backend=backend) as worker:
        for rows in (64, 128, 256, 512):
            x = ramp(rows, 3)
            np.testing.assert_array_equal(worker.run(x)[0], expect_affine(x))
            np.testing.assert_array_equal(worker.run(x)[0], expect_affine(x))
        assert [why for _, why in worker.report().host_syncs] == ["the device was out of memory"]
    device.close()


def test_trim_waits_for_the_work_that_uses_outgrown_memory() -> None:
    device = SimulatorDevice(lambda source: kernel_table()[source])
    backend = Backend(device, gx.BackendType.SIMULATOR, "for a test")
    stream = device.create_stream()
    with gx.Worker(two_layers(), backend=backend, stream=stream) as worker:
        expected = worker.run(ramp(2, 3))[0]
        gate = hold(stream)
        request = worker.schedule(ramp(2, 3)).peek_output().readback_request()
        worker.schedule(ramp(500, 3))
        trimming = threading.Thread(target=worker.trim)
        trimming.start()
        gate.set()
        trimming.join()
        np.testing.assert_array_equal(request.result(), expected)
    device.close()


def test_uploads_go_together() -> None:
    backend = make_tracer()
    with gx.Worker(affine(), backend=backend) as worker:
        worker.prepare((2, 3))
        before = trace(backend).count("copy_to_device")
        worker.schedule(ramp(2, 3))
        assert trace(backend).count("copy_to_device") == before + 1


# Modules that something holds are taken apart in the end, those imported first last: the block goes after its own.
LENT_AT_EXIT = """
import os
import gpuexec as gx
from gpuexec.execution.resources import exchange_pool
from gpuexec.devices.backend import open_backend

backend = open_backend(gx.BackendType.CPU)
os.lent = exchange_pool, exchange_pool.ExchangePool(backend, backend.device.create_stream()).lend(100)
"""


def test_block_that_is_lent_at_the_end_of_the_process_goes_quietly() -> None:
    done = subprocess.run([sys.executable, "-c", LENT_AT_EXIT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_block_whose_making_was_interrupted_is_let_go_of_quietly() -> None:
    with pytest.MonkeyPatch.context() as patch:
        lost: list[object] = []
        patch.setattr(sys, "unraisablehook", lost.append)
        Lent.__new__(Lent)
        assert not lost
