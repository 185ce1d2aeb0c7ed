"""Rows and sequences of a state: what crop and reorder leave is what runs from the beginning leave."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from gpuexec.errors import InputError, StateError
from tests.execution.state.by_hand import BACKENDS, CAPACITY, PAIR, make_rows, run_bound
from tests.execution.state.programs import bind, run_program
from tests.model.small_models import make_tracer
from tests.model.state_models import cache, running_sum


@pytest.fixture(params=BACKENDS, ids=lambda each: each.value)
def backend(request: pytest.FixtureRequest) -> Backend:
    return open_backend(request.param)


FORMS = pytest.mark.parametrize("capacity", [CAPACITY, None], ids=["append", "swap"])


@FORMS
def test_cropped_state_goes_on_as_if_the_rest_had_not_run(backend: Backend, capacity: int | None) -> None:
    model = cache(1).bind_state(PAIR, capacity=capacity)
    rows = [make_rows(1, 1, seed) for seed in range(12)]
    with gx.Worker(model, backend=backend) as worker, gx.Worker(model, backend=backend) as other:
        assert worker.state.length == 0
        for x in rows[:6]:
            run_bound(worker, x)
        assert worker.state.length == 6
        worker.state.crop(4)
        assert worker.state.length == 4
        for x in rows[:4]:
            run_bound(other, x)
        np.testing.assert_array_equal(worker.state.get(), other.state.get())
        for x in rows[6:10]:
            for got, expected in zip(run_bound(worker, x), run_bound(other, x), strict=True):
                np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(worker.state.get(), other.state.get())
        worker.state.crop(0)
        assert worker.state.length == 0 and worker.state.get().shape[1] == 0


@FORMS
@pytest.mark.parametrize("calls", [60, 15])
def test_random_programs_against_lists_of_rows(backend: Backend, capacity: int | None, calls: int) -> None:
    """`programs` runs more of them."""
    with gx.Worker(bind(capacity), backend=backend) as worker:
        # The last goes on from a snapshot while rows behind it are copied in another order.
        for seed in (*range(7, 7 + 60 // calls), 274):
            run_program(worker, random.Random(seed), calls)


def test_rows_behind_a_crop_lie_where_they_lay() -> None:
    """Nobody else holds the rows that were dropped, so nothing is copied to go on."""
    backend = make_tracer()
    device: Any = backend.device
    with gx.Worker(cache(is_read=False).bind_state(PAIR, capacity=CAPACITY), backend=backend) as worker:
        for _ in range(4):
            worker.run(make_rows(1, 1))
        count = len(device.log)
        for _ in range(3):
            worker.state.crop(worker.state.length - 1)
            worker.run(make_rows(1, 1))
        assert not {"copy", "allocate"} & {row[0] for row in device.log[count:]}
        snapshot = worker.state.snapshot()
        worker.state.crop(1)
        count = len(device.log)
        worker.run(make_rows(1, 1))
        assert "copy" in {row[0] for row in device.log[count:]}, "somebody else holds the rows"
        del snapshot


@FORMS
def test_steps_go_on_from_another_order(backend: Backend, capacity: int | None) -> None:
    model = cache(1).bind_state(PAIR, capacity=capacity)
    with gx.Worker(model, backend=backend) as worker:
        run_bound(worker, make_rows(1, 3))
        before = worker.state.get()
        worker.state.reorder([1, 0])
        np.testing.assert_array_equal(worker.state.get(), before[[1, 0]])
        run_bound(worker, make_rows(1, 1, 5))
        np.testing.assert_array_equal(worker.state.get(), np.concatenate([before[[1, 0]], 2 * make_rows(1, 1, 5)], 1))


def test_what_can_not_be_is_refused_and_changes_nothing(backend: Backend) -> None:
    with gx.Worker(cache(1).bind_state(PAIR, capacity=CAPACITY), backend=backend) as worker:
        run_bound(worker, make_rows(1, 3))
        before, state = worker.state.get(), worker.state
        for call, message in (
            (lambda: state.crop(4), r"crop\(4\): memory 'past' holds 3 rows"),
            (lambda: state.crop(-1), "a number of rows, 0 or more, got -1"),
            (lambda: state.crop(1.5), "a number of rows, 0 or more, got 1.5"),  # type: ignore[arg-type]
            (lambda: state.reorder([2]), r"reorder\(\[2\], axis=0\): memory 'past' holds float32\[2,3"),
            (lambda: state.reorder([]), "memory 'past' holds"),
            (lambda: state.reorder([0], axis=3), "axis=3"),
            (lambda: state.reorder([0], axis=1), "memory 'past' grows along axis 1"),
        ):
            with pytest.raises(InputError, match=message):
                call()
        np.testing.assert_array_equal(state.get(), before)
    model, _ = running_sum(), None
    with gx.Worker(model, backend=backend) as worker:
        with pytest.raises(StateError, match="no memory of this state grows"):
            worker.state.crop(0)
        with pytest.raises(StateError, match="hold no one number of rows: none"):
            _ = worker.state.length
