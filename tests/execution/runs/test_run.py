"""The Run: done, waited for, distinguished."""

from __future__ import annotations

import numpy as np
import pytest

import gpuexec as gx
from tests.model.small_models import CPU, affine, expect_affine, hold_worker, ramp, two_inputs


def test_runs_are_numbered_in_order() -> None:
    with gx.Worker(affine(), backend=CPU) as worker:
        assert [worker.schedule(ramp(2, 3)).number for _ in range(3)] == [0, 1, 2]


def test_run_says_its_state() -> None:
    worker, gate = hold_worker(affine())
    with worker:
        run = worker.schedule(ramp(2, 3))
        assert repr(run) == "Run(0, pending)" and not run.is_cancelled()
        gate.set()
        run.wait()
        assert repr(run) == "Run(0, done)"


def test_earlier_run_is_waited_for_after_a_later_one() -> None:
    with gx.Worker(affine(), backend=CPU) as worker:
        runs = [worker.schedule(ramp(2, 3) + number) for number in range(5)]
        assert all(run.wait() for run in runs)
        np.testing.assert_array_equal(runs[-1].peek_output().readback_and_clone(), expect_affine(ramp(2, 3) + 4))


def test_outputs_are_a_mapping_of_ones_own() -> None:
    with gx.Worker(two_inputs(), backend=CPU) as worker:
        run = worker.schedule([ramp(1, 3), ramp(1, 3)])
        run.outputs.clear()
        assert run.peek_output() is run.outputs["sum"] is worker.peek_output("sum")


def test_steps_are_plain_values() -> None:
    assert gx.Step(1, ("a",), False) == gx.Step(1, ("a",), False)
    with pytest.raises(AttributeError):
        gx.Step(1, ("a",), False).nodes = ()  # type: ignore[misc]
