"""Callers that wait for a CPU stream and do its work: which thread runs what, errors, interrupts, several waiters."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from gpuexec.devices.cpu.cpu import CpuDevice
from gpuexec.devices.device import Event
from gpuexec.devices.working_here import waking_deferred, working_here
from gpuexec.errors import CancelledError, DeviceError
from gpuexec.execution.resources.fence import Fence
from tests.devices.cpu.recorded import LARGE, SMALL, Bench, call
from tests.ops.operators import CALLED, Array
from tests.system.interrupts.points import Interrupter

LIMIT_S = 60.0


class Threads:
    """Operator that adds 1 and notes who computes it."""

    def __init__(self) -> None:
        self.found: list[threading.Thread] = []
        self.called = threading.Event()

    def __call__(self, x: Array) -> Array:
        self.found.append(threading.current_thread())
        self.called.set()
        return x + 1


@pytest.fixture
def threads() -> Threads:
    CALLED["note"] = threads = Threads()
    return threads


def interrupt(x: Array) -> Array:
    raise KeyboardInterrupt


def record_end(bench: Bench) -> Event:
    event = bench.device.create_event()
    bench.stream.record(event)
    return event


def test_who_waits_does_the_work_and_no_thread_starts(
    device: CpuDevice, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading.Thread, "start", _refuse)
    bench = Bench(device, 2)
    with working_here(), waking_deferred():
        bench.record(call("note", 0, 1)).submit(bench.stream, {})
        assert not threads.found
        bench.stream.synchronize()
    assert threads.found == [threading.current_thread()] and (bench.array(1) == 1).all()


def test_records_and_waits_on_an_idle_stream_start_no_thread(
    device: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading.Thread, "start", _refuse)
    first, second = device.create_stream(), device.create_stream()
    event, end = device.create_event(), device.create_event()
    first.record(event)
    second.wait(event)
    second.record(end)
    assert event.is_done() and end.is_done() and second.is_done()


def test_work_without_a_waiter_is_done_by_the_streams_thread(device: CpuDevice, threads: Threads) -> None:
    bench = Bench(device, 2)
    bench.record(call("note", 0, 1)).submit(bench.stream, {})
    assert threads.called.wait(LIMIT_S)
    assert [thread.name for thread in threads.found] == ["gpuexec-cpu-stream"]


def test_work_left_at_the_end_of_the_context_is_done_by_the_streams_thread(device: CpuDevice, threads: Threads) -> None:
    bench = Bench(device, 2)
    with working_here(), waking_deferred():
        bench.record(call("note", 0, 1)).submit(bench.stream, {})
        assert not threads.found
    assert threads.called.wait(LIMIT_S)
    assert threads.found != [threading.current_thread()]


def test_a_caller_that_sleeps_for_something_else_wakes_the_streams_thread(device: CpuDevice) -> None:
    fence = Fence()

    def issue(x: Array) -> Array:
        fence.issue(())
        return x

    CALLED["issue"] = issue
    bench = Bench(device, 2)
    with working_here(), waking_deferred():
        bench.record(call("issue", 0, 1)).submit(bench.stream, {})
        assert fence.wait_issued(LIMIT_S)


def test_a_wait_with_a_timeout_leaves_the_work_to_the_streams_thread(device: CpuDevice, threads: Threads) -> None:
    bench, go = Bench(device, 3), threading.Event()

    def hold(x: Array) -> Array:
        assert go.wait(LIMIT_S)
        return x

    CALLED["hold"] = hold
    with working_here(), waking_deferred():
        bench.record(call("hold", 0, 1), call("note", 1, 2), edges=((0, 1),)).submit(bench.stream, {})
        event = record_end(bench)
        assert not event.synchronize(timeout_s=0)
        go.set()
        assert event.synchronize(timeout_s=LIMIT_S)
    assert threads.found != [threading.current_thread()]


def test_who_waits_does_the_work_of_other_streams_that_it_waits_for(
    device: CpuDevice, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading.Thread, "start", _refuse)
    bench, other = Bench(device, 4), device.create_stream()
    first, last = device.create_event(), device.create_event()
    with working_here(), waking_deferred():
        bench.record(call("note", 0, 1)).submit(bench.stream, {})
        bench.stream.record(first)
        bench.record(call("note", 0, 3)).submit(bench.stream, {})
        other.wait(first)
        bench.record(call("note", 1, 2)).submit(other, {})
        other.record(last)
        assert last.synchronize()
        assert threads.found == [threading.current_thread()] * 2, "no more than what is waited for"
        assert (bench.array(2) == 2).all() and not bench.stream.is_done()
        bench.stream.synchronize()
    assert (bench.array(3) == 1).all()


def test_a_long_chain_of_streams_is_waited_for(device: CpuDevice) -> None:
    count = 400
    CALLED["add"] = lambda x: x + 1
    bench = Bench(device, count + 1)
    streams = [device.create_stream() for _ in range(count)]
    event = None
    with working_here(), waking_deferred():
        for number, stream in enumerate(streams):
            if event is not None:
                stream.wait(event)
            bench.record(call("add", number, number + 1)).submit(stream, {})
            event = device.create_event()
            stream.record(event)
        assert event is not None and event.synchronize()
    assert (bench.array(count) == count % 256).all()


def test_an_error_reaches_the_events_of_its_run_alone(device: CpuDevice, threads: Threads) -> None:
    CALLED["fail"] = lambda x: 1 / 0
    bench = Bench(device, 3)
    with working_here(), waking_deferred():
        bench.record(call("fail", 0, 1)).submit(bench.stream, {})
        failed = record_end(bench)
        bench.begin(bench.record(call("note", 0, 2)))
        done = record_end(bench)
        assert done.synchronize()
        with pytest.raises(DeviceError, match="division by zero"):
            failed.synchronize()
    assert threads.found == [threading.current_thread()]


def test_an_interrupt_of_the_caller_cancels_the_run_it_works_on_and_no_other(
    device: CpuDevice, threads: Threads
) -> None:
    CALLED["interrupt"] = interrupt
    bench = Bench(device, 4)
    with working_here(), waking_deferred():
        bench.record(call("note", 0, 1)).submit(bench.stream, {})
        before = record_end(bench)
        bench.begin(bench.record(call("interrupt", 0, 2), call("note", 0, 2)))
        cancelled = record_end(bench)
        bench.begin(bench.record(call("note", 1, 3)))
        after = record_end(bench)
        with pytest.raises(KeyboardInterrupt):
            after.synchronize()
    assert before.synchronize(LIMIT_S) and after.synchronize(LIMIT_S)
    assert (bench.array(3) == 2).all() and not bench.array(2).any()
    with pytest.raises(CancelledError, match="interrupted"):
        cancelled.synchronize()


def test_an_interrupted_run_is_over_once_its_commands_on_the_pool_are(device: CpuDevice) -> None:
    started, go = threading.Event(), threading.Event()

    def hold(x: Array) -> Array:
        started.set()
        assert go.wait(LIMIT_S)
        return x + 1

    def interrupt_then(x: Array) -> Array:
        assert started.wait(LIMIT_S)
        raise KeyboardInterrupt

    CALLED.update(hold=hold, interrupt=interrupt_then)
    bench = Bench(device, 3, LARGE)
    recording = bench.record(call("hold", 0, 1, LARGE), call("interrupt", 0, 2, LARGE, "test.CallOnAllCores"))
    with working_here(), waking_deferred():
        recording.submit(bench.stream, {})
        event = record_end(bench)
        with pytest.raises(KeyboardInterrupt):
            event.synchronize()
    assert not event.is_done()
    go.set()
    with pytest.raises(CancelledError):
        event.synchronize()
    assert (bench.array(1) == 1).all()


@pytest.fixture
def no_collection() -> Iterator[None]:
    """No garbage is collected in the middle of a call: an interrupt that comes in a finalizer is lost."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_a_stream_goes_on_wherever_its_waiter_is_interrupted(device: CpuDevice) -> None:
    CALLED["add"] = lambda x: x + 1
    outcomes, kept = set(), []
    for point in range(10_000):
        bench, other = Bench(device, 3), device.create_stream()
        kept.append((bench, other))  # none is finalized within the call that is interrupted
        interrupter = Interrupter(point)

        def work(bench: Bench = bench, other: object = other) -> None:
            with working_here(), waking_deferred():
                event = device.create_event()
                bench.stream.fill(bench.memory[0].address, b"\1", SMALL)
                bench.record(call("add", 0, 1)).submit(bench.stream, {})
                bench.stream.record(event)
                other.wait(event)  # type: ignore[attr-defined]
                bench.record(call("add", 1, 2)).submit(other, {})  # type: ignore[arg-type]
                other.record(event)  # type: ignore[attr-defined]
                event.synchronize()

        was_interrupted = interrupter.call(work)
        for stream in (bench.stream, other):
            end = device.create_event()
            stream.record(end)
            try:
                assert end.synchronize(LIMIT_S), interrupter.place
                outcomes.add("done")
            except CancelledError:
                outcomes.add("cancelled")
            assert stream.is_done(), interrupter.place
        bench.run(bench.record(call("add", 0, 1)))
        assert (bench.array(1) == bench.array(0) + 1).all(), interrupter.place
        assert not was_interrupted or interrupter.place
        if not was_interrupted:
            break
    assert not was_interrupted and point > 100 and outcomes == {"done", "cancelled"}
    assert isinstance(working_here(), type(threading.Lock())), "nothing is deferred any more"


def test_two_who_wait_for_one_stream_both_go_on(device: CpuDevice, threads: Threads) -> None:
    started, go = threading.Event(), threading.Event()

    def hold(x: Array) -> Array:
        started.set()
        assert go.wait(LIMIT_S)
        return x + 1

    CALLED["hold"] = hold
    bench = Bench(device, 3)

    def wait_first() -> None:
        with working_here(), waking_deferred():
            bench.record(call("hold", 0, 1)).submit(bench.stream, {})
            record_end(bench).synchronize()

    first = threading.Thread(target=wait_first)
    first.start()
    assert started.wait(LIMIT_S)
    with working_here(), waking_deferred():
        bench.record(call("note", 1, 2)).submit(bench.stream, {})
        event = record_end(bench)
        threading.Timer(0.0, go.set).start()
        assert event.synchronize()
    first.join(LIMIT_S)
    assert not first.is_alive() and (bench.array(2) == 2).all()


def test_what_the_caller_has_set_for_numpy_is_not_seen_by_the_work(device: CpuDevice) -> None:
    found: list[dict[str, str]] = []

    def look(x: Array) -> Array:
        found.append(dict(np.geterr()))
        return x

    CALLED["look"] = look
    bench = Bench(device, 2)
    with np.errstate(all="raise"), working_here(), waking_deferred():
        bench.run(bench.record(call("look", 0, 1)))
    assert found == [dict.fromkeys(np.geterr(), "ignore")]


def test_operator_that_runs_a_stream_of_its_own_is_waited_for(device: CpuDevice) -> None:
    inner = Bench(device, 2)

    def nest(x: Array) -> Array:
        inner.record(call("add", 0, 1)).submit(inner.stream, {})
        inner.stream.synchronize()
        return x + inner.array(1)

    CALLED.update(nest=nest, add=lambda x: x + 1)
    bench = Bench(device, 2)
    with working_here(), waking_deferred():
        bench.run(bench.record(call("nest", 0, 1)))
    assert (bench.array(1) == 1).all()


def _refuse(self: threading.Thread) -> None:
    raise AssertionError(f"a thread was started: {self.name}")
