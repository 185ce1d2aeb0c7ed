"""Interruptible waits: other waiters are not harmed and not missed."""

from __future__ import annotations

import threading

import pytest

from gpuexec.devices.latch import Latch, Wakeup
from tests.system.interrupts.points import Interrupter


def test_all_who_wait_are_woken_and_later_ones_do_not_wait() -> None:
    latch = Latch()
    threads = [threading.Thread(target=latch.wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert not latch.is_set()
    latch.set()
    latch.set()
    for thread in threads:
        thread.join()
    assert latch.wait() and not latch.has_waiters()


def test_time_that_runs_out_is_reported_and_leaves_no_waiter() -> None:
    latch = Latch()
    assert not latch.wait(0.0) and not latch.wait(0.001)
    assert not latch.has_waiters()


def test_change_before_the_waiter_is_there_is_seen() -> None:
    """Woken between its first look and its place in the queue, a waiter would sleep for good."""
    wakeup, looks = Wakeup(), iter([False, True, True])
    assert wakeup.wait_for(lambda: next(looks))


@pytest.mark.parametrize("point", range(40))
def test_waiter_that_is_interrupted_leaves_the_others_to_be_woken(point: int) -> None:
    latch = Latch()
    other = threading.Thread(target=latch.wait)
    other.start()
    Interrupter(point).call(lambda: latch.wait(0.001))
    latch.set()
    other.join()
    assert latch.wait()
