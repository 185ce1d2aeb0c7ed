"""Work threads that can't be started: an error that names the limit, and users that go on."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.completion import Completion
from gpuexec.devices.cpu.cpu import CpuDevice
from gpuexec.devices.work_thread import ReusableThread, WorkThread
from gpuexec.system.threads import WorkPool
from tests.system.interrupts.endless import counting, expect, feeds

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120.0


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A system that starts no thread more."""

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    ReusableThread.forget_idle()
    return monkeypatch


def test_work_is_refused_and_done_once_there_is_room(refusing: pytest.MonkeyPatch) -> None:
    done, thread = threading.Event(), WorkThread("stream")
    with pytest.raises(gx.OutOfMemoryError, match=r"refused to start a thread \(stream\).*ulimit -u"):
        thread.put(lambda: None)
    assert thread.is_done()
    refusing.undo()
    thread.put(lambda: done.set)
    done.wait()
    thread.stop()
    thread.join()
    assert thread.has_ended()


def test_callback_is_refused_and_called_once_there_is_room(refusing: pytest.MonkeyPatch) -> None:
    device, completion, called = CpuDevice(), Completion("test"), threading.Event()
    event = device.create_event()
    with pytest.raises(gx.OutOfMemoryError, match="completion"):
        completion.call(event, lambda _: called.set())
    refusing.undo()
    completion.call(event, lambda _: called.set())
    called.wait()
    completion.close()


def test_worker_that_gets_no_thread_for_its_stream_or_its_loop_goes_on(refusing: pytest.MonkeyPatch) -> None:
    worker = gx.Worker(counting(), backend=gx.BackendType.CPU)
    with pytest.raises(gx.OutOfMemoryError, match="gpuexec-driver"):
        worker.run(feeds(3))
    refusing.undo()
    np.testing.assert_array_equal(worker.run(feeds(3))[0], expect(3))
    worker.close()


def test_pool_goes_on_with_the_threads_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, gate, done = WorkPool(2, "pool"), threading.Event(), threading.Event()
    pool.submit(gate.wait)
    monkeypatch.setattr(threading.Thread, "start", _refuse)
    pool.submit(done.set)
    gate.set()
    done.wait()
    empty = WorkPool(2, "empty")
    with pytest.raises(gx.OutOfMemoryError, match="empty_0"):
        empty.submit(done.set)
    pool.close()
    with pytest.raises(gx.ClosedError):
        pool.submit(done.set)


def test_pool_starts_no_more_threads_than_it_may() -> None:
    pool, gate = WorkPool(2, "pool"), threading.Event()
    names: list[str] = []

    def call() -> None:
        gate.wait()
        names.append(threading.current_thread().name)

    for _ in range(6):
        pool.submit(call)
    gate.set()
    pool.close()
    for thread in pool._threads:
        thread.join()
    assert len(names) == 6 and set(names) <= {"pool_0", "pool_1"}


def test_thread_of_a_queue_that_ended_serves_the_next_and_ends_when_none_comes() -> None:
    served: list[threading.Thread] = []
    for number in range(3):
        thread = WorkThread(f"queue {number}")
        thread.put(lambda: served.append(threading.current_thread()))
        thread.stop()
        thread.join()
        assert thread.has_ended() and thread.is_done()
        assert not any(each.name == f"queue {number}" for each in threading.enumerate())
    assert len(set(served)) == 1
    served[0].join(60)
    assert not served[0].is_alive()


def test_two_queues_at_once_have_a_thread_each_and_few_stay_idle() -> None:
    gate, threads = threading.Event(), [WorkThread(f"busy {number}") for number in range(12)]
    names: list[str] = []

    def work() -> None:
        gate.wait()
        names.append(threading.current_thread().name)

    for thread in threads:
        thread.put(work)
    gate.set()
    for thread in threads:
        thread.stop()
        thread.join()
    assert sorted(names) == sorted(f"busy {number}" for number in range(12))
    assert 0 < len(ReusableThread._idle) < len(threads)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how many addresses a process has")
@pytest.mark.parametrize("kind", ["CPU", "SIMULATOR"])
def test_limit_of_addresses_is_named_in_place_of_a_hang(kind: str) -> None:
    """A thread that runs out of memory as it begins leaves whoever starts it waiting for good."""
    script = f"""
import resource
from pathlib import Path
import gpuexec as gx
from tests.system.interrupts.endless import counting, expect, feeds

worker = gx.Worker(counting(), backend=gx.BackendType.{kind})
worker.prepare(feeds(3))
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
_, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), hard))
try:
    worker.run(feeds(3))
except gx.OutOfMemoryError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
assert (worker.run(feeds(3))[0] == expect(3)).all()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "ulimit -v" in done.stdout, done.stdout


def _refuse(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
