"""Spin-waiting: bounded by the clock, with other threads let run in between."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from gpuexec.devices.cuda.cuda_event import spin
from gpuexec.system import knobs


def count_up(step_s: float = 1e-6) -> Callable[[], float]:
    """Return a clock that goes on by so much each time it is asked."""
    now = [0.0]

    def tell() -> float:
        now[0] += step_s
        return now[0]

    return tell


def test_polls_until_done() -> None:
    polls = iter([False, False, True])
    assert spin(lambda: next(polls), limit_us=50, clock=count_up())
    assert next(polls, "none left") == "none left"


def test_gives_up_when_the_time_is_up() -> None:
    polls: list[int] = []
    assert not spin(lambda: bool(polls.append(1)), limit_us=10, clock=count_up())
    assert len(polls) == 10


def test_limit_of_0_never_polls() -> None:
    assert not spin(lambda: pytest.fail("polled"), limit_us=0, clock=lambda: pytest.fail("asked for the time"))


def test_what_a_poll_raises_comes_out() -> None:
    def fail() -> bool:
        raise ValueError("lost")

    with pytest.raises(ValueError, match="lost"):
        spin(fail, limit_us=50)


def test_another_thread_runs_while_one_spins() -> None:
    done = threading.Event()
    worker = threading.Thread(target=done.set)
    is_started = []

    def poll() -> bool:
        if not is_started:
            is_started.append(True)
            worker.start()
        return done.is_set()

    assert spin(poll, limit_us=10e6)
    worker.join()


def test_knob_says_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUEXEC_SPIN_US", raising=False)
    assert knobs.spin_us() == 50
    monkeypatch.setenv("GPUEXEC_SPIN_US", "0")
    assert knobs.spin_us() == 0
