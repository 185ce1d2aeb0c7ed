"""Work that threads share: all of it is done, errors reach the caller, and who comes late holds nobody up."""

from __future__ import annotations

import threading
from contextvars import ContextVar

import pytest

from gpuexec.errors import OutOfMemoryError
from gpuexec.system import threads
from gpuexec.system.threads import (
    WorkPool,
    computing,
    computing_here,
    count_sharing,
    in_threads,
    is_sharing,
    share_work,
    shared_by,
)


@pytest.fixture(autouse=True)
def three_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEXEC_CPU_THREADS", "3")
    monkeypatch.setattr(threads, "_pool", None)


def test_every_number_is_taken_once() -> None:
    taken: list[int] = []
    for count in (0, 1, 2, 100):
        taken.clear()
        share_work(count, taken.append)
        assert sorted(taken) == list(range(count))


def test_threads_work_side_by_side_up_to_the_limit() -> None:
    met = threading.Barrier(3)
    names = set()

    def meet(number: int) -> None:
        met.wait(60)
        names.add(threading.current_thread().name)

    share_work(3, meet)
    assert len(names) == 3
    names.clear()
    with shared_by(1):
        share_work(5, lambda number: names.add(threading.current_thread().name))
    assert names == {threading.current_thread().name}


def test_errors_of_any_thread_reach_the_caller_when_all_have_ended() -> None:
    met, ended = threading.Barrier(2), []

    def fail(number: int) -> None:
        met.wait(60)
        if number == 1:
            raise ValueError("one")
        ended.append(number)

    with shared_by(2), pytest.raises(ValueError, match="one"):
        share_work(2, fail)
    assert ended == [0]
    share_work(2, ended.append)
    assert sorted(ended) == [0, 0, 1]


def test_work_within_work_and_busy_threads_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[int, int]] = []
    share_work(4, lambda outer: share_work(4, lambda inner: taken.append((outer, inner))))
    assert sorted(taken) == [(outer, inner) for outer in range(4) for inner in range(4)]
    gate, busy = threading.Event(), WorkPool(1, "busy")
    monkeypatch.setattr(threads, "_pool", busy)
    busy.submit(gate.wait)
    done: list[int] = []
    share_work(6, done.append)
    gate.set()
    assert sorted(done) == list(range(6))
    share_work(2, done.append)  # who came late found nothing left
    assert len(done) == 8


def test_without_room_for_threads_the_caller_does_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: WorkPool, call: object) -> None:
        raise OutOfMemoryError("no room")

    monkeypatch.setattr(WorkPool, "submit", refuse)
    done: list[int] = []
    share_work(5, done.append)
    assert done == list(range(5))


def test_threads_see_what_is_set_in_the_callers_context() -> None:
    name: ContextVar[str] = ContextVar("name", default="none")
    met, seen = threading.Barrier(3), []

    def look(number: int) -> None:
        met.wait(60)
        seen.append(name.get())

    name.set("caller")
    share_work(3, look)
    assert seen == ["caller"] * 3


def test_work_knows_whether_it_is_shared() -> None:
    met, seen = threading.Barrier(3), []

    def look(number: int) -> None:
        met.wait(60)
        seen.append(is_sharing())

    assert count_sharing() == 3
    share_work(3, look)
    assert seen == [True] * 3 and not is_sharing()
    with shared_by(1):
        share_work(2, lambda number: seen.append(is_sharing()))
        assert count_sharing() == 1
    assert seen[3:] == [False, False]


def test_a_run_bounds_its_threads_and_what_is_within_begins_no_other() -> None:
    assert isinstance(computing_here(), type(computing(None)))
    with computing(2):
        assert count_sharing() == 2
        with computing_here():
            assert count_sharing() == 2
        assert count_sharing() == 2
        with shared_by(1):
            assert count_sharing() == 1
    assert count_sharing() == 3


def test_what_threads_make_comes_in_the_order_in_which_it_is_done() -> None:
    gates = [threading.Event() for _ in range(3)]

    def wait(number: int) -> int:
        assert gates[number].wait(60)
        return 10 * number

    made = in_threads(range(3), wait, 3, "test")
    gates[2].set()
    assert next(made) == (2, 20)
    gates[0].set()
    assert next(made) == (0, 0)
    gates[1].set()
    assert list(made) == [(1, 10)]
    assert list(in_threads([], wait, 3, "test")) == []


def test_no_more_is_begun_once_one_failed_and_nobody_waits_for_what_is_under_way() -> None:
    begun, gate = [], threading.Event()

    def work(number: int) -> None:
        begun.append(number)
        if number == 0:
            raise ValueError("the first")
        assert gate.wait(60)

    with pytest.raises(ValueError, match="the first"):
        list(in_threads(range(50), work, 2, "test"))
    gate.set()
    assert len(begun) <= 3


def test_threads_of_a_call_are_daemons_and_as_many_as_allowed() -> None:
    threads = set()
    met = threading.Barrier(2)

    def work(number: int) -> None:
        met.wait(60)
        threads.add(threading.current_thread())

    assert len(list(in_threads(range(6), work, 2, "test"))) == 6
    assert len(threads) == 2 and all(thread.daemon for thread in threads)


def test_without_room_for_a_thread_the_caller_works(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise OutOfMemoryError("no room")

    monkeypatch.setattr(threads, "start_thread", refuse)
    assert list(in_threads([1, 2], lambda number: number + 1, 2, "test")) == [(0, 2), (1, 3)]
