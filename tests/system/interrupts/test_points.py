"""Calls interrupted at each point where Python checks for signals: the Worker gives right results or is closed.

Here every so many points, another one each; ``STEP = 1`` tries all of them.
"""

from __future__ import annotations

import faulthandler
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import gpuexec as gx
from tests.system.interrupts.endless import counting, expect, feeds
from tests.system.interrupts.points import Interrupter

# What is tried of all points, by device.
STEPS = {gx.BackendType.CPU: 13, gx.BackendType.SIMULATOR: 41}
# A guard against hangs, far above what one point takes.
LIMIT_S = 60.0


def run(worker: gx.Worker) -> None:
    worker.run(feeds(3))


def run_in_steps(worker: gx.Worker) -> None:
    for _ in worker.schedule_iterable(feeds(2)):
        pass
    worker.read_output()


def trim(worker: gx.Worker) -> None:
    worker.schedule(feeds(2))
    worker.trim()


def prepare(worker: gx.Worker) -> None:
    worker.prepare({"x": (7, 4), "n": np.array(2, np.int64)})


def copy(worker: gx.Worker) -> None:
    worker.schedule(feeds(2))
    worker.copy_output().readback_and_clone()


def close(worker: gx.Worker) -> None:
    worker.schedule(feeds(2))
    worker.close()


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """A Worker that hangs ends the process, with the stacks of all threads."""
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("call", [run, run_in_steps, trim, prepare, copy, close])
@pytest.mark.parametrize("kind", STEPS)
def test_worker_is_right_or_closed_wherever_a_call_is_interrupted(
    kind: gx.BackendType, call: Callable[[gx.Worker], None]
) -> None:
    model = counting()
    with gx.Worker(model, backend=kind) as other:
        counter, worker = Interrupter(), _open(model, kind)
        assert not counter.call(lambda: call(worker))
        worker.close()
        outcomes: Counter[str] = Counter()
        for point in range(0, counter.count, STEPS[kind]):
            faulthandler.dump_traceback_later(LIMIT_S, exit=True)
            worker, interrupter = _open(model, kind), Interrupter(point)
            interrupter.call(lambda worker=worker: call(worker))  # type: ignore[misc]
            try:
                _check(worker)
                outcomes["right"] += 1
            except gx.ClosedError:
                assert worker.is_closed, interrupter.place
                outcomes["closed"] += 1
            except BaseException as error:
                raise AssertionError(f"point {point}, {interrupter.place}") from error
            worker.close()
            # What Workers share is not harmed either.
            _check(other)
        assert outcomes["closed"] and (outcomes["right"] or call is close), outcomes


def _open(model: gx.Model, kind: gx.BackendType) -> gx.Worker:
    worker = gx.Worker(model, backend=kind)
    _check(worker)
    return worker


def _check(worker: gx.Worker) -> None:
    for trips in (2, 3):
        np.testing.assert_array_equal(worker.run(feeds(trips))[0], expect(trips))
