"""Random sequences of calls on an append cache, against the cache fed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuexec as gx
from gpuexec.devices.backend import BackendType, open_backend
from tests.execution.state.by_hand import BACKENDS, CAPACITY, PAIR, Array, make_rows
from tests.model.state_models import cache

_CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("run"), st.integers(0, 3)),
        st.tuples(st.just("give up"), st.integers(1, 3)),
        st.tuples(st.just("set"), st.integers(0, 4)),
        st.tuples(st.just("given"), st.integers(0, 4)),
        st.tuples(st.sampled_from(["snapshot", "restore", "fork", "switch", "reset"]), st.just(0)),
    ),
    max_size=14,
)


@settings(max_examples=40, deadline=None)
@given(calls=_CALLS, axis=st.integers(0, 2), capacity=st.sampled_from([None, 6, CAPACITY]))
@pytest.mark.parametrize("type", BACKENDS, ids=lambda each: each.value)
def test_any_calls_leave_what_they_leave_by_hand(
    type: BackendType, calls: list[tuple[str, int]], axis: int, capacity: int | None
) -> None:
    backend = open_backend(type)
    empty = make_rows(axis, 0)
    states: list[tuple[gx.State, Array]] = []
    shots: list[tuple[gx.Snapshot, Array]] = []
    with gx.Worker(cache(axis).bind_state(PAIR, capacity=capacity), backend=backend) as worker:
        worker.run(make_rows(axis, 0))
        past = empty
        for number, (call, count) in enumerate(calls):
            x = make_rows(axis, count, number)
            now = np.concatenate([past, 2 * x], axis)
            if call in ("run", "given"):
                inputs = {"x": x}
                if call == "given":
                    inputs["past"] = make_rows(axis, 1, number)
                    now = np.concatenate([inputs["past"], 2 * x], axis)
                if capacity is not None and now.shape[axis] > capacity:
                    with pytest.raises(gx.InputError, match="is full"):
                        worker.schedule(inputs)
                else:
                    worker.schedule(inputs)
                    past = now
            elif call == "give up":
                if capacity is None or now.shape[axis] <= capacity:
                    next(iter(worker.schedule_iterable({"x": x})))
                    worker.cancel()
            elif call == "set":
                worker.state.set({"past": x})
                past = x
            elif call == "snapshot":
                shots.append((worker.state.snapshot(), past))
            elif call == "restore" and shots:
                shot, past = shots[len(shots) // 2]
                worker.state.restore(shot)
            elif call == "fork":
                states.append((worker.state.fork(), past))
            elif call == "switch" and states:
                (worker.state, past), states[0] = states[0], (worker.state, past)
            elif call == "reset":
                worker.state.reset()
                past = empty
        np.testing.assert_array_equal(worker.state.get(), past)
        for state, expected in states:
            np.testing.assert_array_equal(state.get(), expected)
        for shot, expected in shots:
            worker.state.restore(shot)
            np.testing.assert_array_equal(worker.state.get(), expected)
