"""Process pool for cases that crash or hang."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from functools import partial
from typing import Any

import pytest

from tests.system.conformance.judge import Outcome, Verdict
from tests.system.conformance.pool import judge_all

FAIL = partial(Verdict, Outcome.ERROR)


def judge(item: str) -> Verdict:
    """Do what the item says."""
    if item == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if item == "exit":
        os._exit(3)
    if item == "hang":
        threading.Event().wait()
    if item == "raise":
        raise ValueError("what a case raises")
    return Verdict(Outcome.PASS, item)


def judge_here(*items: str, jobs: int = 2) -> dict[str, Any]:
    # A busy machine takes its time to start a process, so only what shall hang is not waited for long.
    return dict(judge_all(items, judge, jobs, 3 if "hang" in items else 60, FAIL))


@pytest.mark.parametrize("jobs", [1, 2, 9])
def test_every_item_is_judged(jobs: int) -> None:
    verdicts = judge_here(*"abcdefg", jobs=jobs)
    assert verdicts == {item: Verdict(Outcome.PASS, item) for item in "abcdefg"}
    assert judge_here(jobs=jobs) == {}


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ("die", "crash: the process ended with SIGKILL"),
        ("exit", "crash: the process ended with exit code 3"),
        ("hang", "hang: no answer in 3 s"),
        ("raise", "ValueError: what a case raises"),
    ],
)
@pytest.mark.parametrize("jobs", [1, 2])
def test_bad_item_is_an_error_and_the_rest_passes(item: str, reason: str, jobs: int) -> None:
    verdicts = judge_here("a", item, "b", "c", jobs=jobs)
    assert verdicts.pop(item) == Verdict(Outcome.ERROR, reason)
    assert {verdict.outcome for verdict in verdicts.values()} == {Outcome.PASS}
    assert set(verdicts) == {"a", "b", "c"}


def test_items_are_judged_side_by_side() -> None:
    barrier = multiprocessing.get_context("fork").Barrier(2)

    def meet(item: str) -> Verdict:
        barrier.wait()
        return Verdict(Outcome.PASS, item)

    assert len(dict(judge_all("abcd", meet, 2, 60, FAIL))) == 4


def test_processes_end_when_nobody_asks_on() -> None:
    verdicts = judge_all(["a", "b", "c"], lambda _: Verdict(Outcome.PASS, str(os.getpid())), 1, 60, FAIL)
    process = int(next(verdicts)[1].reason)
    verdicts.close()  # type: ignore[attr-defined]
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
