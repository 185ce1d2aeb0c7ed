"""Detection on a video's frames: what is dropped and when, by a clock of the test's."""

from __future__ import annotations

import importlib
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("video_detection")


class Time:
    """A clock that goes on where someone sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class SlowWorker:
    """A device that answers each run so many seconds after the one before; given frames are their numbers."""

    def __init__(self, time: Time, run_s: float, pauses: dict[int, float]) -> None:
        self.time, self.run_s, self.pauses = time, run_s, pauses
        self.end_s = 0.0
        self.scheduled: deque[Any] = deque()

    def schedule(self, frame: Any) -> None:
        self.end_s = max(self.end_s, self.time.now) + self.run_s
        self.scheduled.append(SlowRequest(self.time, self.end_s, frame))
        self.time.now += self.pauses.get(int(frame), 0.0)  # what holds the loop up, such as a collection of garbage

    def peek_output(self) -> SlowWorker:
        return self

    def readback_request(self) -> SlowRequest:
        return self.scheduled.pop()  # type: ignore[no-any-return]


class SlowRequest:
    """An answer that is there from a time on."""

    def __init__(self, time: Time, done_s: float, frame: Any) -> None:
        self.time, self.done_s, self.frame = time, done_s, frame

    def is_done(self) -> bool:
        return self.time.now >= self.done_s

    def wait(self) -> None:
        self.time.now = max(self.time.now, self.done_s)

    def result(self) -> Any:
        return np.full(4, self.frame)


def play(example: Any, run_frames: float, pauses: dict[int, float]) -> Any:
    """Play 12 frames on a device whose run takes some frames' time, with pauses of the loop after frames, in frames."""
    time, period_s = Time(), 1 / example.RATE_HZ
    worker = SlowWorker(time, run_frames * period_s, {frame: n * period_s for frame, n in pauses.items()})
    return example.play(worker, np.arange(12), time.clock, time.sleep)


def test_device_that_keeps_up_answers_every_frame_in_its_time(example: Any) -> None:
    played = play(example, 0.5, {})
    assert played.dropped == [] and played.boxes == {number: (number,) * 4 for number in range(12)}
    np.testing.assert_allclose(played.late_ms, 0.5e3 / example.RATE_HZ, atol=1.001)  # a step of the loop is 1 ms


def test_device_that_takes_nearly_two_frames_of_time_answers_every_second(example: Any) -> None:
    played = play(example, 1.9, {})
    assert sorted([*played.boxes, *played.dropped]) == list(range(12))
    # Two stand in line; then one is taken whenever one is answered, and is answered behind that in line.
    assert len(played.boxes) == 7 and max(played.late_ms) <= 4.1e3 / example.RATE_HZ


def test_loop_that_was_held_up_leaves_out_frames_whose_time_is_over(example: Any) -> None:
    played = play(example, 0.5, {4: 3.5})
    assert played.dropped == [5, 6]
    assert max(played.late_ms) == pytest.approx(3.5e3 / example.RATE_HZ)
