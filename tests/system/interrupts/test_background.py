"""Calls interrupted while kernels are compiled in the background: the Worker gives right results or is closed."""

from __future__ import annotations

import faulthandler
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.execution.runs.test_deferred_plans import PATIENCE_S, HeldCompiler, sums
from tests.model.small_models import ramp
from tests.system.interrupts.points import Interrupter

# What is tried of all points.
STEP = 197
LIMIT_S = 120.0
X = ramp(2, 6)


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """A Worker that hangs ends the process, with the stacks of all threads."""
    yield
    faulthandler.cancel_dump_traceback_later()


def open_worker() -> gx.Worker:
    """Return a Worker on a device that has compiled nothing yet, whose compiler works at once."""
    device = HeldCompiler()
    device.gate.set()
    return gx.Worker(sums(), backend=Backend(device, gx.BackendType.SIMULATOR, "for a test"), compile="background")


def run_twice(worker: gx.Worker) -> None:
    """Run by a stand-in, and by the plan that it stands for."""
    worker.run(X)
    assert worker.wait_for_kernels(PATIENCE_S)
    worker.run(X)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_worker_is_right_or_closed_wherever_it_is_interrupted() -> None:
    counter, worker = Interrupter(), open_worker()
    assert not counter.call(lambda: run_twice(worker))
    worker.close()
    outcomes: Counter[str] = Counter()
    for point in range(0, counter.count, STEP):
        faulthandler.dump_traceback_later(LIMIT_S, exit=True)
        worker, interrupter = open_worker(), Interrupter(point)
        interrupter.call(lambda worker=worker: run_twice(worker))  # type: ignore[misc]
        try:
            worker.state.reset()
            worker.run(X)
            assert worker.wait_for_kernels(PATIENCE_S)
            np.testing.assert_array_equal(worker.run(X)["y"], np.abs(4 * X))
            outcomes["right"] += 1
        except gx.ClosedError:
            assert worker.is_closed, interrupter.place
            outcomes["closed"] += 1
        except BaseException as error:
            raise AssertionError(f"point {point}, {interrupter.place}") from error
        worker.close()
    assert outcomes["closed"] and outcomes["right"], outcomes
