"""The CPU device: asynchronous streams, commands side by side, memory, and refusals."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from gpuexec.devices.cpu.cpu import CpuDevice
from gpuexec.devices.cpu.cpu_execution import Call, Execution, Order, make_view
from gpuexec.devices.cpu.cpu_memory import CpuMemory
from gpuexec.devices.cpu.cpu_stream import CpuStream
from gpuexec.devices.device import Region
from gpuexec.devices.working_here import working_here
from gpuexec.errors import ClosedError, KernelError, PlanError
from gpuexec.ir.command import Copy, Fill, Kernel, Launch, Slot
from gpuexec.ir.spec import TensorSpec
from gpuexec.system import threads
from gpuexec.system.threads import WorkPool, share_work
from tests.devices.cpu.recorded import BYTE, LARGE, SMALL, Bench, call, window
from tests.ops.operators import CALLED, Array, meet


def test_two_unordered_long_commands_are_both_started_before_either_ends(device: CpuDevice) -> None:
    CALLED["meet"] = meet(threading.Barrier(2))
    bench = Bench(device, 3, LARGE)
    bench.run(bench.record(call("meet", 0, 1, LARGE), call("meet", 0, 2, LARGE)))
    assert bench.array(1).all() and bench.array(2).all()


def test_a_long_command_is_started_beside_one_that_uses_all_cores(device: CpuDevice) -> None:
    CALLED["meet"] = meet(threading.Barrier(2))
    bench = Bench(device, 3, LARGE)
    bench.run(bench.record(call("meet", 0, 1, LARGE, "test.CallOnAllCores"), call("meet", 0, 2, LARGE)))
    assert bench.array(1).all() and bench.array(2).all()


def test_unordered_commands_that_use_all_cores_run_in_line(device: CpuDevice) -> None:
    names: set[str] = set()

    def note(x: Array) -> Array:
        names.add(threading.current_thread().name)
        return x + 1

    CALLED["note"] = note
    bench = Bench(device, 4, LARGE)
    with working_here():
        bench.run(bench.record(*(call("note", 0, i, LARGE, "test.CallOnAllCores") for i in (1, 2, 3))))
    assert names == {threading.current_thread().name} and all(bench.array(i).all() for i in (1, 2, 3))


@pytest.mark.parametrize(
    ("last_s", "extent", "flies"), [(0.0, LARGE, True), (0.0, SMALL, False), (1e-6, LARGE, False), (1.0, SMALL, True)]
)
def test_a_command_is_worth_a_thread_by_the_time_it_took_or_else_by_its_bytes(
    device: CpuDevice, last_s: float, extent: int, flies: bool
) -> None:
    idents: list[int] = []
    met = threading.Barrier(2 if flies else 1)  # where it flies, the caller is held until another thread has taken it

    def note(x: Array) -> Array:
        met.wait(60)
        idents.append(threading.get_ident())
        return x + 1

    def hold(x: Array) -> Array:
        met.wait(60)
        return x + 1

    CALLED.update(first=note, second=hold)
    bench = Bench(device, 3, extent)
    calls = [Call(command, bench.memory) for command in (call("first", 0, 1, extent), call("second", 0, 2, extent))]
    order = Order(after=((), ()), waits=(0, 0), origins=("first", "second"), seconds=[last_s, last_s])
    Execution(calls, (), order, {}, (0, 2), None, device.threads).run()
    assert (idents != [threading.get_ident()]) == flies


def test_a_run_takes_no_more_threads_than_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    device, lock, running, peak = CpuDevice(threads=2), threading.Lock(), 0, 0
    monkeypatch.setattr(threads, "_pool", WorkPool(4, "others"))

    def count(x: Array) -> Array:
        nonlocal running, peak

        def work(number: int) -> None:
            nonlocal running, peak
            with lock:
                running += 1
                peak = max(peak, running)
            x.sum()
            with lock:
                running -= 1

        share_work(8, work)
        return x + 1

    CALLED["count"] = count
    bench = Bench(device, 6, LARGE)
    own = call("count", 0, 5, LARGE, "test.CallOnAllCores")
    recording = bench.record(*(call("count", 0, i, LARGE) for i in (1, 2, 3, 4)), own)
    for _ in range(10):
        bench.run(recording)
    assert peak == 2 and all(bench.array(i).all() for i in range(1, 6))


def test_a_command_that_no_thread_comes_to_do_is_done_by_the_caller(
    device: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, busy = threading.Event(), WorkPool(1, "busy")
    monkeypatch.setattr(threads, "_pool", busy)
    busy.submit(lambda: gate.wait(60))
    CALLED["add"] = lambda x: x + 1
    bench = Bench(device, 3, LARGE)
    bench.run(bench.record(call("add", 0, 1, LARGE), call("add", 0, 2, LARGE)))
    assert bench.array(1).all() and bench.array(2).all()
    gate.set()


def test_ordered_long_commands_run_one_after_the_other(device: CpuDevice) -> None:
    running, peak = 0, 0
    lock = threading.Lock()

    def count(x: Array) -> Array:
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        y = x + 1
        with lock:
            running -= 1
        return y

    CALLED["count"] = count
    bench = Bench(device, 3, LARGE)
    recording = bench.record(call("count", 0, 1, LARGE), call("count", 1, 2, LARGE), edges=((0, 1),))
    for _ in range(10):
        bench.run(recording)
    assert peak == 1 and (bench.array(2) == 2).all()


def test_submit_returns_before_the_commands_are_done(device: CpuDevice) -> None:
    started, go = threading.Event(), threading.Event()

    def hold(x: Array) -> Array:
        started.set()
        assert go.wait(60)
        return x + 1

    CALLED["hold"] = hold
    bench = Bench(device, 2)
    event = device.create_event()
    assert event.is_done() and bench.stream.is_done()
    bench.record(call("hold", 0, 1)).submit(bench.stream, {})
    bench.stream.record(event)
    assert started.wait(60)
    assert not event.is_done() and not bench.stream.is_done()
    assert not event.synchronize(timeout_s=0)
    go.set()
    assert event.synchronize()
    assert event.is_done() and bench.stream.is_done() and (bench.array(1) == 1).all()


def test_streams_wait_for_each_others_events(device: CpuDevice) -> None:
    go = threading.Event()

    def hold(x: Array) -> Array:
        assert go.wait(60)
        return x + 1

    CALLED.update(hold=hold, add=lambda x: x + 1)
    bench = Bench(device, 4)
    other = device.create_stream()
    first, second, last = (device.create_event() for _ in range(3))
    bench.record(call("hold", 0, 1)).submit(bench.stream, {})
    bench.stream.record(first)
    other.wait(first)
    bench.record(call("add", 1, 2)).submit(other, {})
    other.record(second)
    bench.stream.wait(second)
    bench.record(call("add", 2, 3)).submit(bench.stream, {})
    bench.stream.record(last)
    assert not second.is_done()
    go.set()
    assert last.synchronize()
    assert (bench.array(3) == 3).all()


def test_waiting_on_an_event_means_its_last_record_at_that_time(device: CpuDevice) -> None:
    go = threading.Event()

    def hold(x: Array) -> Array:
        assert go.wait(60)
        return x

    CALLED["hold"] = hold
    bench = Bench(device, 2)
    event, done = device.create_event(), device.create_event()
    other = device.create_stream()
    bench.stream.record(event)
    other.wait(event)
    other.record(done)
    bench.record(call("hold", 0, 1)).submit(bench.stream, {})
    bench.stream.record(event)
    assert done.synchronize(60), "the second record must not hold up who waited for the first"
    go.set()
    assert event.synchronize()


def test_copies_and_fills(device: CpuDevice) -> None:
    bench = Bench(device, 3)
    source = np.arange(SMALL, dtype=np.uint8)
    target = np.zeros(SMALL, np.uint8)
    bench.stream.copy_to_device(bench.memory[0].address, source)
    source[:] = 0  # taken at the call
    bench.stream.copy(bench.memory[1].address, bench.memory[0].address, SMALL)
    bench.stream.fill(bench.memory[2].address, b"\1\2\3\4", 2)
    bench.stream.copy_to_host(target, bench.memory[1].address)
    bench.stream.synchronize()
    np.testing.assert_array_equal(target, np.arange(SMALL))
    np.testing.assert_array_equal(bench.array(2), [1, 2, 3, 4] * 2 + [0] * 8)
    bench.run(bench.record(Copy(window(2, 4, 8), window(0, 4, 4)), Fill(window(1, 4), b"\7")))
    np.testing.assert_array_equal(bench.array(2)[8:12], [4, 5, 6, 7])
    np.testing.assert_array_equal(bench.array(1)[:6], [7, 7, 7, 7, 4, 5])


def test_patch_leaves_runs_already_submitted_alone(device: CpuDevice) -> None:
    started, go = threading.Event(), threading.Event()

    def hold(x: Array) -> Array:
        started.set()
        assert go.wait(60)
        return x + 1

    CALLED.update(hold=hold, add=lambda x: x + 5)
    bench = Bench(device, 3)
    recording = bench.record(call("hold", 0, 1))
    recording.submit(bench.stream, {})
    assert started.wait(60)
    recording.patch([call("add", 0, 2)])
    go.set()
    bench.stream.synchronize()
    assert (bench.array(1) == 1).all() and not bench.array(2).any()
    bench.run(recording)
    assert (bench.array(2) == 5).all()
    with pytest.raises(PlanError, match="1 commands"):
        recording.patch([])


def test_bound_buffers_are_given_at_submit(device: CpuDevice) -> None:
    CALLED["add"] = lambda x: x + 1
    bench = Bench(device, 4)
    del bench.memory[0], bench.memory[1]
    recording = bench.record(call("add", 0, 1))
    for value in (3, 4):
        source, target = CpuMemory(SMALL), CpuMemory(SMALL)
        source.array[:] = value
        recording.submit(bench.stream, {0: Region(source, 0, SMALL), 1: Region(target, 0, SMALL)})
        bench.stream.synchronize()
        assert (target.array == value + 1).all()


def test_views_follow_strides() -> None:
    memory = CpuMemory(64)
    memory.array.view(np.int32)[:] = np.arange(16)
    spec = TensorSpec((2, 3), np.dtype(np.int32))
    view = make_view(Slot(0, 8, spec, (-1, 4)), Region(memory, 16, 48))
    np.testing.assert_array_equal(view, [[6, 10, 14], [5, 9, 13]])
    assert make_view(Slot(0, 0, TensorSpec((0, 3), BYTE), (3, 1)), Region(memory, 0, 0)).shape == (0, 3)


def test_kernels_are_refused(device: CpuDevice) -> None:
    kernel = Kernel("a.cu", "k")
    with pytest.raises(KernelError):
        device.load([kernel])
    with pytest.raises(KernelError):
        device.function(kernel)
    with pytest.raises(PlanError, match=r"a\.cu:k"):
        Bench(device, 1).record(Launch(kernel, (1, 1, 1), (1, 1, 1), (), ()))


def test_closed_stream_refuses_work() -> None:
    stream = CpuStream()
    stream.synchronize()
    stream.close()
    stream.close()
    with pytest.raises(ClosedError):
        stream.synchronize()


def test_thread_of_a_stream_ends_with_it_or_when_nobody_has_it(device: CpuDevice) -> None:
    closed, dropped = device.create_stream(), device.create_stream()
    assert isinstance(closed, CpuStream) and isinstance(dropped, CpuStream)
    own = []
    for stream in (closed, dropped):
        stream.run(lambda: None)
        stream.synchronize()
        assert stream._thread._thread is not None
        own.append(stream._thread._thread)
    closed.close()
    del stream, dropped
    gc.collect()
    for thread in own:
        thread.join(60)
        assert not thread.is_alive()
