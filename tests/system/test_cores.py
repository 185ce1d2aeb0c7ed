"""The core of a thread: told where the system tells it, and left for others that the thread may run on."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

import pytest

from gpuexec.system import cores, threads
from gpuexec.system.cores import current_core, return_to, stay_off

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
            assert stay_off([core]) is None
            assert current_core() == core and os.sched_getaffinity(0) == {core}
            os.sched_setaffinity(0, allowed)

    allowed = os.sched_getaffinity(0)
    _in_thread(stay)


@linux
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this process has one core")
def test_a_thread_stays_off_cores_until_it_returns() -> None:
    def leave() -> None:
        core = current_core()
        assert core is not None
        left = stay_off([core, None])
        assert left == allowed and os.sched_getaffinity(0) == allowed - {core}
        assert all(current_core() != core for _ in range(1000))
        assert stay_off([core]) is None  # it is off already
        return_to(left)
        assert os.sched_getaffinity(0) == allowed

    allowed = os.sched_getaffinity(0)
    _in_thread(leave)


@linux
def test_a_system_that_refuses_leaves_a_thread_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(who: int, allowed: set[int]) -> None:
        raise OSError("Invalid argument")

    monkeypatch.setattr(os, "sched_getaffinity", lambda who: {0, 1})
    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    assert stay_off([0]) is None
    return_to({0, 1})


def test_where_no_core_is_told_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_read_core", None)
    assert current_core() is None
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    assert cores._find_call() is None


def test_threads_that_share_work_stay_off_each_others_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    caller, met, allowed = threading.get_ident(), threading.Barrier(2), {3, 4, 5}
    off: dict[bool, list[int | None]] = {}
    returned: list[tuple[bool, set[int] | None]] = []

    def note(others: list[int | None]) -> set[int]:
        off[threading.get_ident() == caller] = list(others)
        return allowed

    monkeypatch.setattr(threads, "_pool", None)
    monkeypatch.setattr(threads, "current_core", lambda: 3 if threading.get_ident() == caller else 4)
    monkeypatch.setattr(threads, "stay_off", note)
    monkeypatch.setattr(threads, "return_to", lambda cores: returned.append((threading.get_ident() == caller, cores)))
    with threads.shared_by(2):
        threads.share_work(10, lambda number: met.wait(60))
    assert off == {False: [3], True: [4]}
    assert sorted(returned) == [(False, allowed), (True, allowed)]
    returned.clear()
    threads.share_work(1, lambda number: None)
    assert returned == [(True, None)]  # alone, it may be anywhere


def test_where_no_core_is_told_threads_share_work_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(others: list[int | None]) -> None:
        raise AssertionError(f"moved off {others}")

    met = threading.Barrier(2)
    monkeypatch.setattr(threads, "_pool", None)
    monkeypatch.setattr(threads, "current_core", lambda: None)
    monkeypatch.setattr(threads, "stay_off", refuse)
    with threads.shared_by(2):
        threads.share_work(2, lambda number: met.wait(60))
