"""The core of a thread: told where the system tells it, and left for another that the thread may run on."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

import pytest

from gpuexec.system import cores, threads
from gpuexec.system.cores import current_core, leave_core

linux = pytest.mark.skipif(sys.platform != "linux", reason="other systems don't tell a thread's core")


def _in_thread(work: Callable[[], None]) -> None:
    """Call it in a thread of its own, whose cores may be chosen."""
    failed: list[BaseException] = []

    def call() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


@linux
def test_a_thread_on_one_core_is_there_and_stays() -> None:
    def stay() -> None:
        for core in os.sched_getaffinity(0):
            os.sched_setaffinity(0, {core})
            assert current_core() == core
            leave_core(core)
            assert current_core() == core and os.sched_getaffinity(0) == {core}
            os.sched_setaffinity(0, allowed)

    allowed = os.sched_getaffinity(0)
    _in_thread(stay)


@linux
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this process has one core")
def test_a_thread_that_leaves_a_core_is_on_another_and_may_come_back() -> None:
    def leave() -> None:
        core = current_core()
        assert core is not None
        left = [_leave_and_look(core) for _ in range(20)]
        assert any(now != core for now in left)  # each time, but where the system moves it at once
        assert os.sched_getaffinity(0) == allowed

    def _leave_and_look(core: int) -> int | None:
        os.sched_setaffinity(0, {core})
        os.sched_setaffinity(0, allowed)
        leave_core(core)
        return current_core()

    allowed = os.sched_getaffinity(0)
    _in_thread(leave)


@linux
def test_a_system_that_refuses_leaves_a_thread_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(who: int, allowed: set[int]) -> None:
        raise OSError("Invalid argument")

    monkeypatch.setattr(os, "sched_getaffinity", lambda who: {0, 1})
    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    leave_core(0)


def test_where_no_core_is_told_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_read_core", None)
    assert current_core() is None
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    assert cores._find_call() is None


@pytest.mark.parametrize("helper", [3, 4])
def test_a_thread_that_helps_leaves_the_core_of_its_caller(monkeypatch: pytest.MonkeyPatch, helper: int) -> None:
    caller, left, met = threading.get_ident(), [], threading.Barrier(2)
    monkeypatch.setattr(threads, "_pool", None)
    monkeypatch.setattr(threads, "current_core", lambda: 3 if threading.get_ident() == caller else helper)
    monkeypatch.setattr(threads, "leave_core", left.append)
    with threads.shared_by(2):
        threads.share_work(2, lambda number: met.wait(60))
    assert left == ([3] if helper == 3 else [])
