"""Stepwise scheduling: one step per layer, progress, stale iterators, cancelling."""

from __future__ import annotations

import numpy as np
import pytest

import gpuexec as gx
from tests.model.small_models import (
    affine,
    expect_affine,
    hold_worker,
    make_tracer,
    ramp,
    trace,
)


@pytest.mark.feature("B27")
def test_steps_are_one_per_layer(worker: gx.Worker) -> None:
    x = ramp(2, 3)
    iterator = worker.schedule_iterable(x)
    steps = list(iterator)
    assert steps == [gx.Step(0, ("double",), False), gx.Step(1, ("relu",), False), gx.Step(2, ("add",), False)]
    with pytest.raises(StopIteration):
        next(iterator)
    with pytest.raises(AttributeError):
        steps[0].index = 7  # type: ignore[misc]
    np.testing.assert_array_equal(worker.read_output(), expect_affine(x))


@pytest.mark.feature("B32", "T1")
def test_progress_starts_at_zero_and_counts_finished_layers(worker: gx.Worker) -> None:
    worker.run(ramp(2, 3))
    assert worker.schedule_progress == 1.0
    steps = worker.schedule_iterable(ramp(2, 3))
    assert worker.schedule_progress == 0.0
    seen = []
    for _ in steps:
        seen.append(worker.schedule_progress)
    assert seen == pytest.approx([1 / 3, 2 / 3, 1.0])


@pytest.mark.feature("B27")
def test_layers_are_issued_only_when_asked_for() -> None:
    backend = make_tracer()
    with gx.Worker(affine(), backend=backend) as worker:
        worker.prepare({"x": (2, 3)})
        with pytest.raises(gx.InputError):
            worker.schedule_iterable(ramp(3))
        before = len(trace(backend))
        steps = worker.schedule_iterable(ramp(2, 3))
        counts = [trace(backend)[before:].count("launch")]
        for _ in steps:
            counts.append(trace(backend)[before:].count("launch"))
    assert counts == [0, 1, 2, 3]


@pytest.mark.feature("B29")
def test_stale_iterator_raises(worker: gx.Worker) -> None:
    x, other = ramp(2, 3), ramp(4, 3)
    steps = worker.schedule_iterable(x)
    next(steps)
    given_up = worker.peek_output()
    worker.schedule(other)
    with pytest.raises(gx.StaleError, match="newer run"):
        next(steps)
    with pytest.raises(gx.StaleError):
        given_up.readback_request()
    np.testing.assert_array_equal(worker.read_output(), expect_affine(other))


@pytest.mark.feature("B29")
def test_iterator_never_advanced_turns_stale(worker: gx.Worker) -> None:
    steps = worker.schedule_iterable(ramp(2, 3))
    newer = worker.schedule_iterable(ramp(2, 3))
    with pytest.raises(gx.StaleError):
        next(steps)
    assert len(list(newer)) == 3


@pytest.mark.feature("B27")
def test_refused_inputs_leave_the_iterator_alone(worker: gx.Worker) -> None:
    x = ramp(2, 3)
    steps = worker.schedule_iterable(x)
    next(steps)
    with pytest.raises(gx.InputError):
        worker.schedule(x.astype(np.float64))
    assert len(list(steps)) == 2
    np.testing.assert_array_equal(worker.read_output(), expect_affine(x))


def test_prepare_between_steps_changes_nothing(worker: gx.Worker) -> None:
    x = ramp(3, 3)
    worker.run(ramp(4, 3))
    steps = worker.schedule_iterable(x)
    next(steps)
    worker.prepare({"x": (2, 3)})
    worker.prepare({"x": (2000, 3)})
    list(steps)
    np.testing.assert_array_equal(worker.read_output(), expect_affine(x))


def test_waiting_between_steps_waits_for_what_is_issued(worker: gx.Worker) -> None:
    x = ramp(2, 3)
    for _ in worker.schedule_iterable(x):
        worker.wait_for_completion()
    np.testing.assert_array_equal(worker.read_output(), expect_affine(x))


def test_waiting_for_results_of_steps_not_taken_raises(worker: gx.Worker) -> None:
    steps = worker.schedule_iterable(ramp(2, 3))
    next(steps)
    with pytest.raises(gx.StateError, match="finish iterating"):
        worker.read_output()
    assert len(list(steps)) == 2
    assert worker.read_output().shape == (2, 3)


def test_steps_say_that_they_wait() -> None:
    producer, gate = hold_worker(affine())
    tracer = make_tracer()
    with producer, gx.Worker(affine(), backend=tracer) as consumer:
        pending = producer.schedule(ramp(2, 3)).peek_output()
        steps = consumer.schedule_iterable(pending)
        assert next(steps) == next(steps) == gx.Step(0, (), True)
        assert consumer.schedule_progress == 0.0
        gate.set()
        producer.wait_for_completion()
        taken = [step for step in steps if not step.waiting]
    assert [step.nodes for step in taken] == [("double",), ("relu",), ("add",)]


@pytest.mark.feature("S30")
def test_cancel_gives_up_a_run_half_scheduled(worker: gx.Worker) -> None:
    x = ramp(2, 3)
    steps = worker.schedule_iterable(x)
    next(steps)
    request = worker.peek_output().readback_request()
    run = worker._require_run()
    assert worker.cancel() and not worker.cancel()
    assert run.is_cancelled() and run.is_done() and "cancelled" in repr(run)
    for wait in (run.wait, request.result):
        with pytest.raises(gx.CancelledError):
            wait()
    with pytest.raises(gx.StaleError):
        next(steps)
    np.testing.assert_array_equal(worker.run(x)[0], expect_affine(x))
