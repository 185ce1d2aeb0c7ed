"""Completion callbacks on one thread."""

from __future__ import annotations

import threading

import pytest

from gpuexec.devices.completion import Completion
from gpuexec.devices.cpu.cpu_stream import CpuEvent


def pending() -> tuple[CpuEvent, int]:
    event = CpuEvent()
    number = event.number()
    event.announce(number)
    return event, number


def test_callback_comes_when_the_event_is_done_and_not_before() -> None:
    completion = Completion("test")
    event, number = pending()
    called = threading.Event()
    errors: list[BaseException | None] = []

    def callback(error: BaseException | None) -> None:
        errors.append(error)
        called.set()

    completion.call(event, callback)
    assert not called.is_set()
    event.reach(number, None)
    assert called.wait(60) and errors == [None]
    completion.close()


def test_callback_is_given_what_the_work_raised() -> None:
    completion = Completion("test")
    event, number = pending()
    event.reach(number, ValueError("bad"))
    seen: list[BaseException | None] = []
    done = threading.Event()
    completion.call(event, seen.append)
    completion.call(CpuEvent(), lambda error: done.set())
    assert done.wait(60)
    assert isinstance(seen[0], ValueError)
    completion.close()


def test_a_thousand_requests_take_one_thread() -> None:
    completion = Completion("many")
    event, number = pending()
    left = threading.Semaphore(0)
    for _ in range(1000):
        completion.call(event, lambda error: left.release())
    assert [thread.name for thread in threading.enumerate()].count("gpuexec-completion-many") == 1
    event.reach(number, None)
    for _ in range(1000):
        assert left.acquire(timeout=60)
    completion.close()


def test_callback_that_raises_does_not_silence_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[type[BaseException] | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: shown.append(args.exc_type))
    completion = Completion("test")
    done = threading.Event()

    def fail(error: BaseException | None) -> None:
        raise KeyError("callback")

    completion.call(CpuEvent(), fail)
    completion.call(CpuEvent(), lambda error: done.set())
    assert done.wait(60)
    assert shown == [KeyError]
    completion.close()


def test_close_waits_for_what_was_given_and_a_later_call_still_works() -> None:
    completion = Completion("test")
    event, number = pending()
    first, second = threading.Event(), threading.Event()
    completion.call(event, lambda error: first.set())
    completion.close()
    completion.call(CpuEvent(), lambda error: second.set())
    event.reach(number, None)
    assert first.wait(60) and second.wait(60)
    completion.close()
