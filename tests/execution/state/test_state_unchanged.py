"""State after failed, cancelled and refused runs: unchanged."""

from __future__ import annotations

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from tests.execution.state.conftest import BACKENDS
from tests.model.small_models import CPU, GATES, affine, hold_worker, ramp
from tests.model.state_models import WIDTH, gated_sum, running_sum

HELD = ramp(2, WIDTH)


def test_failed_run_changes_no_state() -> None:
    model, number = gated_sum()
    with gx.Worker(model, backend=CPU) as worker:
        GATES.open[number].set()
        worker.run(HELD)
        GATES.failures[number] = ValueError("for a test")
        with pytest.raises(gx.DeviceError, match="for a test"):
            worker.run(HELD)
        np.testing.assert_array_equal(worker.state.get(), HELD)
        np.testing.assert_array_equal(worker.run(HELD)[0], 4 * HELD)


def test_runs_that_depend_on_one_that_fails_fail_with_it() -> None:
    model, number = gated_sum()
    with gx.Worker(model, backend=CPU, frames=3) as worker:
        GATES.open[number].set()
        worker.run(HELD)
        GATES.open[number].clear()
        GATES.failures[number] = ValueError("for a test")
        snapshots = []
        runs = []
        for _ in range(3):
            runs.append(worker.schedule(HELD))
            snapshots.append(worker.state.snapshot())
        GATES.open[number].set()
        for run in runs:
            with pytest.raises(gx.DeviceError, match="for a test"):
                run.wait()
        np.testing.assert_array_equal(worker.state.get(), HELD)
        np.testing.assert_array_equal(worker.run(HELD)[0], 4 * HELD)
        worker.state.restore(snapshots[-1])
        np.testing.assert_array_equal(worker.state.get(), HELD)


def test_cancelled_run_changes_no_state(backend: Backend) -> None:
    (other,) = (each for each in BACKENDS if each is not backend.type)
    source, gate = hold_worker(affine(), open_backend(other))
    with source, gx.Worker(running_sum(), backend=backend) as worker:
        worker.run(HELD)
        # What another device has not made yet is waited for: the run can be taken back meanwhile.
        pending = source.schedule(HELD).peek_output()
        run = worker.schedule(pending)
        later = worker.schedule(HELD)
        is_cancelled = run.cancel()
        gate.set()
        assert is_cancelled
        for each in (run, later):
            with pytest.raises(gx.CancelledError):
                each.wait()
        np.testing.assert_array_equal(worker.state.get(), HELD)
        np.testing.assert_array_equal(worker.run(HELD)[0], 4 * HELD)


@pytest.mark.feature("B42")
def test_run_scheduled_piece_by_piece_counts_from_its_end(worker: gx.Worker) -> None:
    worker.run(HELD)
    steps = worker.schedule_iterable(HELD)
    next(steps)
    np.testing.assert_array_equal(worker.state.get(), HELD)
    before = worker.state.snapshot()
    for _ in steps:
        pass
    np.testing.assert_array_equal(worker.state.get(), 2 * HELD)
    worker.state.restore(before)
    np.testing.assert_array_equal(worker.state.get(), HELD)


@pytest.mark.feature("B42")
def test_run_given_up_half_scheduled_changes_no_state(worker: gx.Worker) -> None:
    worker.run(HELD)
    steps = worker.schedule_iterable(HELD)
    next(steps)
    # The newer run does not go on from the one it ends.
    np.testing.assert_array_equal(worker.run(HELD)[0], 4 * HELD)
    with pytest.raises(gx.StaleError):
        next(steps)
    steps = worker.schedule_iterable(HELD)
    next(steps)
    assert worker.cancel()
    np.testing.assert_array_equal(worker.state.get(), 2 * HELD)
    np.testing.assert_array_equal(worker.run(HELD)[0], 6 * HELD)


def test_bad_inputs_end_no_run_and_change_no_state(worker: gx.Worker) -> None:
    worker.run(HELD)
    steps = worker.schedule_iterable(HELD)
    next(steps)
    with pytest.raises(gx.InputError):
        worker.schedule({"z": HELD})
    for _ in steps:
        pass
    np.testing.assert_array_equal(worker.state.get(), 2 * HELD)


@pytest.mark.parametrize("options", [{"synchronous": True}, {"compare_with": CPU}], ids=str)
def test_state_goes_on_in_runs_that_are_watched(backend: Backend, options: dict[str, object]) -> None:
    with gx.Worker(running_sum(), backend=backend, **options) as worker:  # type: ignore[arg-type]
        for number in range(1, 4):
            np.testing.assert_array_equal(worker.run(HELD)[0], 2 * number * HELD)
