"""Watched runs: their end, later runs, and memory held."""

from __future__ import annotations

import asyncio
import pickle

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper

import gpuexec as gx
from tests.execution.held import holding
from tests.execution.runs.test_watching import LOOP
from tests.execution.runs.watched import GOOD, logarithm, on_both, with_elements
from tests.model.small_models import CPU, GATES, affine, gated, make_model, ramp
from tests.model.state_models import running_sum


@on_both
def test_a_run_that_is_watched_ends_with_the_error_and_the_next_goes_on(backend: gx.BackendType) -> None:
    with gx.Worker(logarithm(), backend=backend, watch="raise") as worker:
        run = worker.schedule(with_elements(GOOD, ((1, 2), -1)))
        with pytest.raises(gx.NonFiniteError, match="Log 'log'") as raised:
            run.wait()
        error = raised.value
        assert (error.node, error.operator, error.value, error.kind) == ("log", "Log", "b", "NaN")
        assert (error.count, error.index) == (1, (1, 2))
        assert vars(pickle.loads(pickle.dumps(error))) == vars(error)
        found = run.inspection.find_nonfinite()
        assert found is not None
        assert found.node == "log"
        with pytest.raises(gx.NonFiniteError):
            run.peek_output().readback_and_clone()
        np.testing.assert_allclose(worker.run(GOOD)[0], -np.log(2 * GOOD), rtol=1e-6, atol=1e-7)


def test_the_caller_does_not_wait_for_a_watched_run() -> None:
    model, number = gated()
    with gx.Worker(model, backend=CPU, watch="raise") as worker:
        run = worker.schedule(ramp(4, 3))
        GATES.entered[number].wait()
        assert not run.is_done()
        assert not run.inspection.is_done()
        GATES.open[number].set()
        run.wait()
        assert run.inspection.find_nonfinite() is None


@on_both
def test_state_stays_as_it_was_where_a_run_made_nan(backend: gx.BackendType) -> None:
    x = np.full((2, 3), 3e38, np.float32)
    with gx.Worker(running_sum(), backend=backend, watch="raise") as worker:
        worker.run(np.ones((2, 3), np.float32))
        with pytest.raises(gx.NonFiniteError, match="'double'"):
            worker.run(x)
        np.testing.assert_array_equal(worker.state.get("held"), np.ones((2, 3), np.float32))
        np.testing.assert_array_equal(worker.run(np.ones((2, 3), np.float32))[0], np.full((2, 3), 4, np.float32))


@on_both
def test_runs_behind_one_that_was_ended_report_that_they_did_not_run(backend: gx.BackendType) -> None:
    good = np.ones((2, 3), np.float32)
    with gx.Worker(running_sum(), backend=backend, watch="raise", frames=3) as worker:
        with holding(worker._engine.stream):  # else a run may have ended before the next is there
            runs = [worker.schedule(x) for x in (good, np.full((2, 3), 3e38, np.float32), good)]
        assert runs[0].inspection.find_nonfinite() is None
        found = runs[1].inspection.find_nonfinite()
        assert found is not None
        assert found.node == "double"
        with pytest.raises(gx.NonFiniteError, match="'double'"):
            runs[2].inspection.find_nonfinite()


@on_both
def test_steps_are_watched_and_awaited(backend: gx.BackendType) -> None:
    bad = with_elements(GOOD, ((1, 2), -1))
    with (
        gx.Worker(logarithm(), backend=backend, watch="raise") as worker,
        pytest.raises(gx.NonFiniteError, match="'log'"),
    ):
        for _ in worker.schedule_iterable(bad):
            pass
    with gx.Worker(logarithm(), backend=backend, watch="report") as worker:

        async def ask() -> gx.NonFinite | None:
            return (await worker.schedule(bad).inspection).find_nonfinite()

        found = asyncio.run(ask())
        assert found is not None
        assert found.node == "log"


@on_both
def test_what_was_looked_at_is_reported_after_the_worker_is_closed(backend: gx.BackendType) -> None:
    with gx.Worker(logarithm(), backend=backend, watch="report") as worker:
        inspections = [worker.schedule(with_elements(GOOD, ((i, 0), -1))).inspection for i in range(4)]
    found = [inspection.find_nonfinite() for inspection in inspections]
    assert [each.index for each in found if each is not None] == [(0, 0), (1, 0), (2, 0), (3, 0)]


@on_both
def test_looking_takes_no_room_of_the_arena_but_for_words(backend: gx.BackendType) -> None:
    # Each of 1 MB, and of no two that follow each other must both be there for long.
    nodes = [helper.make_node("Softmax", [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i in range(6)]
    model = make_model(nodes, {"v0": (512, 512)}, {"v6": (512, 512)})
    with gx.Worker(model, backend=backend) as plain, gx.Worker(model, backend=backend, watch="report") as watched:
        plans = [worker.prepare((512, 512)) for worker in (plain, watched)]
        sizes = [plan.layout.nbytes for plan in plans if plan is not None]
        assert sizes[0] > 1 << 20
        assert sizes[0] < sizes[1] < sizes[0] + (1 << 16)


LONG_LOOP = LOOP.replace("{4}", "{600}").replace("Log (less)", "Add (less, one)")


@on_both
@pytest.mark.parametrize("word", ["report", "raise"])
def test_a_long_loop_that_is_watched_holds_what_a_short_one_does(backend: gx.BackendType, word: str) -> None:
    with gx.Worker(gx.load(onnx.parser.parse_model(LONG_LOOP)), backend=backend, watch=word) as worker:
        worker.tap({"v_out": "max"})
        run = worker.schedule(np.array([20, 9], np.float32))
        run.wait()
        assert worker.memory_stats()["exchange"] < 600 * 256 / 2
        assert [each.max for each in run.inspection.history("v_out")] == [20] * 600
        assert run.inspection.find_nonfinite() is None


def test_watch_is_one_of_two_words_and_asked_for_beforehand() -> None:
    with pytest.raises(gx.InputError, match="'raise' or 'report', got 'always'"):
        gx.Worker(affine(), backend=CPU, watch="always")
    with gx.Worker(affine(), backend=CPU) as worker:
        run = worker.schedule(ramp(4, 3))
        with pytest.raises(gx.StateError, match=r"watch=\.\.\."):
            _ = run.inspection
        worker.tap({"y": "max"})
        with pytest.raises(gx.StateError, match="not watched"):
            worker.schedule(ramp(4, 3)).inspection.find_nonfinite()
    with gx.Worker(affine(), backend=CPU, watch="report") as worker, pytest.raises(gx.StateError, match="watches"):
        worker.record(ramp(4, 3))
