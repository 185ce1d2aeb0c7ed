"""Errors of CPU runs: raised to their own waiters only."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from gpuexec.devices.cpu.cpu import CpuDevice
from gpuexec.errors import DeviceError, PlanError
from tests.devices.cpu.recorded import LARGE, SMALL, Bench, call
from tests.ops.operators import CALLED, Array


def fail(x: Array) -> Array:
    raise ValueError("no such luck")


def test_error_reaches_the_runs_event_and_the_stream_stays_usable(device: CpuDevice) -> None:
    CALLED.update(fail=fail, add=lambda x: x + 1)
    bench = Bench(device, 3)
    bad = bench.record(call("fail", 0, 1), call("add", 1, 2), edges=((0, 1),))
    good = bench.record(call("add", 0, 1))
    failed, done = device.create_event(), device.create_event()
    bad.submit(bench.stream, {})
    bench.stream.record(failed)
    bench.begin(good)
    bench.stream.record(done)
    with pytest.raises(DeviceError, match=r"'node0' \(\w+\[.*\]\) failed on the host: ValueError: no such") as caught:
        failed.synchronize()
    assert caught.value.node == "node0"
    assert done.synchronize()
    assert (bench.array(1) == 1).all() and not bench.array(2).any(), "what follows the failed command must not run"


def test_later_parts_of_a_failed_run_do_not_run(device: CpuDevice) -> None:
    CALLED.update(fail=fail, add=lambda x: x + 1)
    bench = Bench(device, 3)
    recording = bench.record(call("fail", 0, 1), call("add", 0, 2))
    middle, end = device.create_event(), device.create_event()
    recording.submit(bench.stream, {}, 0, 1)
    bench.stream.record(middle)
    recording.submit(bench.stream, {}, 1, None)
    bench.stream.record(end)
    for event in (middle, end):
        with pytest.raises(DeviceError):
            event.synchronize()
    assert not bench.array(2).any()


def test_later_recordings_of_a_failed_run_do_not_run(device: CpuDevice) -> None:
    CALLED.update(fail=fail, add=lambda x: x + 1)
    bench = Bench(device, 3)
    end, after = device.create_event(), device.create_event()
    bench.begin(bench.record(call("fail", 0, 1)))
    bench.record(call("add", 0, 2)).submit(bench.stream, {})
    bench.stream.record(end)
    with pytest.raises(DeviceError, match="no such luck"):
        end.synchronize()
    assert not bench.array(2).any()
    bench.begin(bench.record(call("add", 0, 2)))
    bench.stream.record(after)
    assert after.synchronize() and (bench.array(2) == 1).all()


def test_event_of_a_run_that_has_no_part_yet_forgets_the_run_before(device: CpuDevice) -> None:
    CALLED.update(fail=fail)
    bench = Bench(device, 2)
    failed, begun = device.create_event(), device.create_event()
    bench.begin(bench.record(call("fail", 0, 1)))
    bench.stream.record(failed)
    bench.stream.begin_run()
    bench.stream.record(begun)
    assert begun.synchronize()
    with pytest.raises(DeviceError, match="no such luck"):
        failed.synchronize()


def test_failure_beside_a_long_command_waits_for_it(device: CpuDevice) -> None:
    barrier = threading.Barrier(2)
    finished = threading.Event()

    def fail_together(x: Array) -> Array:
        barrier.wait(60)
        raise ValueError("no")

    def finish(x: Array) -> Array:
        barrier.wait(60)
        y = x + 1
        finished.set()
        return y

    CALLED.update(fail=fail_together, finish=finish)
    bench = Bench(device, 3, LARGE)
    with pytest.raises(DeviceError):
        bench.run(bench.record(call("fail", 0, 1, LARGE), call("finish", 0, 2, LARGE)))
    assert finished.is_set()


def test_error_waited_for_is_passed_to_the_next_run_and_no_further(device: CpuDevice) -> None:
    CALLED.update(fail=fail, add=lambda x: x + 1)
    bench = Bench(device, 3)
    other = device.create_stream()
    failed, passed, after = (device.create_event() for _ in range(3))
    bench.record(call("fail", 0, 1)).submit(bench.stream, {})
    bench.stream.record(failed)
    other.wait(failed)
    add = bench.record(call("add", 0, 2))
    add.submit(other, {})
    other.record(passed)
    with pytest.raises(DeviceError, match="no such luck"):
        passed.synchronize()
    assert not bench.array(2).any()
    other.begin_run()
    add.submit(other, {})
    other.record(after)
    assert after.synchronize() and (bench.array(2) == 1).all()


def test_error_waited_for_is_passed_to_the_next_event_where_no_run_comes(device: CpuDevice) -> None:
    CALLED["fail"] = fail
    bench = Bench(device, 2)
    readback = device.create_stream()
    failed, first, second = (device.create_event() for _ in range(3))
    bench.record(call("fail", 0, 1)).submit(bench.stream, {})
    bench.stream.record(failed)
    target = np.full(SMALL, 9, np.uint8)
    readback.wait(failed)
    readback.copy_to_host(target, bench.memory[1].address)
    readback.record(first)
    readback.record(second)
    with pytest.raises(DeviceError):
        first.synchronize()
    assert second.synchronize()
    assert (target == 9).all()


def test_result_of_the_wrong_shape_is_an_error(device: CpuDevice) -> None:
    CALLED["half"] = lambda x: x[::2]
    bench = Bench(device, 2)
    with pytest.raises(PlanError, match=r"'node0' \(.*\): expected uint8\[16\] to be computed, got uint8\[8\]"):
        bench.run(bench.record(call("half", 0, 1)))
