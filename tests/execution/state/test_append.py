"""State in append form: a cache that grows in place, against the same cache fed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from gpuexec.ir.plan import Role
from gpuexec.model.model import Model
from tests.execution.state.by_hand import BACKENDS, CAPACITY, PAIR, ByHand, make_rows, run_bound
from tests.model.small_models import CPU, make_model, make_tracer
from tests.model.state_models import WIDTH, cache, running_sum


@pytest.fixture(params=BACKENDS, ids=lambda each: each.value)
def backend(request: pytest.FixtureRequest) -> Backend:
    return open_backend(request.param)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("capacity", [CAPACITY, None], ids=["append", "swap"])
def test_runs_give_what_they_give_fed_by_hand(backend: Backend, axis: int, capacity: int | None) -> None:
    hand = ByHand(axis, backend)
    model = cache(axis).bind_state(PAIR, capacity=capacity)
    assert model.memories[0].form == ("swap" if capacity is None else "append")
    with hand.worker, gx.Worker(model, backend=backend) as worker:
        for number, count in enumerate((1, 3, 1, 0, 2, 1, 4)):
            x = make_rows(axis, count, number)
            for got, expected in zip(run_bound(worker, x), hand.run(x), strict=True):
                np.testing.assert_array_equal(got, expected)
            np.testing.assert_array_equal(worker.state.get(), hand.past)
        worker.state.reset()
        assert worker.state.get("present").shape[axis] == 0
        np.testing.assert_array_equal(run_bound(worker, x)[0], 2 * x.sum(axis))


def test_rows_that_are_copied_alone_lie_behind_those_before(backend: Backend) -> None:
    """A copy is no launch: for a size of another layout it is prepared anew."""
    rows = np.arange(64).reshape(1, 64)
    model = gx.graph(
        lambda past, x: {"present": gx.fn.concatenate([past, x], 1), "y": x + 1},
        {"past": ("int64", (1, "past")), "x": ("int64", (1, "new"))},
    ).bind_state(PAIR, capacity=64)
    with gx.Worker(model, backend=backend) as worker:
        length = 0
        for count in (3, 3, 3, 1, 1, 5, 2, 2, 2, 7, 1):
            worker.run({"x": rows[:, length : length + count]})
            length += count
            np.testing.assert_array_equal(worker.state.get(), rows[:, :length])


def test_one_plan_serves_every_length_and_nothing_is_copied_but_the_rows() -> None:
    backend = make_tracer()
    device: Any = backend.device
    with gx.Worker(cache(is_read=False).bind_state(PAIR, capacity=CAPACITY), backend=backend) as worker:
        # As many as there are frames.
        worker.schedule(make_rows(1, 1))
        worker.schedule(make_rows(1, 1))
        count, held = len(device.log), worker.memory_stats()
        for _ in range(CAPACITY - 2):
            worker.schedule(make_rows(1, 1))
        assert worker.report().plans == 1 and worker.report().host_syncs == ()
        assert worker.memory_stats() | {"pinned": 0} == held | {"pinned": 0}
        assert not {"copy", "copy_to_host", "allocate"} & {row[0] for row in device.log[count:]}
        (plan,) = worker.plans
        (state,) = [buffer for buffer in plan.buffers if buffer.role is Role.STATE]
        assert state.nbytes == 2 * CAPACITY * WIDTH * 4
        # What writes the cache writes one row of each sequence; nothing writes as much as the cache anywhere.
        written = [slot for command in plan.segment.commands for slot in command.writes_to()]
        assert [slot.shape for slot in written if slot.buffer == state.id] == [(2, 1, WIDTH)]
        assert all(slot.spec.nbytes < state.nbytes for slot in written)


def test_declared_bound_is_the_capacity() -> None:
    plain = cache()
    bounded = Model(plain.info, plain.graph, {"past": (0, 20)})
    memory = bounded.bind_state(PAIR).memories[0]
    assert (memory.form, memory.capacity, memory.axis) == ("append", 20, 1)
    assert bounded.bind_state(PAIR, capacity=5).memories[0].capacity == 5


def test_full_memory_is_refused_before_the_run(backend: Backend) -> None:
    with gx.Worker(cache().bind_state(PAIR, capacity=4), backend=backend) as worker:
        worker.run(make_rows(1, 3))
        before = worker.state.get()
        with pytest.raises(gx.InputError, match="'past' is full: it holds 3 rows, 2 more exceed its capacity of 4"):
            worker.run(make_rows(1, 2))
        assert worker.report().runs == 1
        np.testing.assert_array_equal(worker.state.get(), before)
        worker.run(make_rows(1, 1))
        with pytest.raises(gx.InputError, match="is full") as caught:
            worker.run(make_rows(1, 1))
        assert caught.value.value == "past"
        with pytest.raises(gx.InputError, match="capacity of 4 rows"):
            worker.state.set({"past": make_rows(1, 5)})


def test_given_rows_replace_the_cache_and_the_sequence_goes_on(backend: Backend) -> None:
    hand = ByHand(1, backend)
    with hand.worker, gx.Worker(cache().bind_state(PAIR, capacity=CAPACITY), backend=backend) as worker:
        worker.run(make_rows(1, 2))
        hand.past = make_rows(1, 5, 3)
        x = make_rows(1, 1, 4)
        y, before = worker.run({"x": x, "past": hand.past})
        for got, expected in zip((y, before), hand.run(x), strict=True):
            np.testing.assert_array_equal(got, expected)
        for got, expected in zip(run_bound(worker, x), hand.run(x), strict=True):
            np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(worker.state.get(), hand.past)


def test_cache_of_a_worker_on_another_stream_is_gone_on_from(backend: Backend) -> None:
    model = cache().bind_state(PAIR, capacity=CAPACITY)
    hand = ByHand(1, backend)
    with hand.worker, gx.Worker(model, backend=backend) as first, gx.Worker(model, backend=backend) as second:
        second.state = first.state
        for number in range(6):
            x = make_rows(1, 2, number)
            got = run_bound((first, second)[number % 2], x)
            for each, expected in zip(got, hand.run(x), strict=True):
                np.testing.assert_array_equal(each, expected)


def test_swap_and_append_go_on_from_each_other(backend: Backend) -> None:
    hand = ByHand(2, backend)
    with (
        hand.worker,
        gx.Worker(cache(2).bind_state(PAIR, capacity=CAPACITY), backend=backend) as appending,
        gx.Worker(cache(2).bind_state(PAIR), backend=backend) as swapping,
    ):
        swapping.state = appending.state
        for number in range(5):
            x = make_rows(2, 2, number)
            got = run_bound((appending, swapping)[number % 2], x)
            for each, expected in zip(got, hand.run(x), strict=True):
                np.testing.assert_array_equal(each, expected)


def test_rolling_back_copies_the_cache_only_while_somebody_holds_more() -> None:
    backend = make_tracer()
    device: Any = backend.device
    with gx.Worker(cache(is_read=False).bind_state(PAIR, capacity=CAPACITY), backend=backend) as worker:
        worker.schedule(make_rows(1, 2))
        start = worker.state.snapshot()
        worker.schedule(make_rows(1, 1))
        worker.state.restore(start)
        count = len(device.log)
        worker.schedule(make_rows(1, 1))
        assert "copy" not in {row[0] for row in device.log[count:]}
        longer = worker.state.snapshot()
        worker.state.restore(start)
        count = len(device.log)
        worker.schedule(make_rows(1, 1))
        assert "copy" in {row[0] for row in device.log[count:]}
        assert longer._entry is not None


def test_run_in_several_plans_goes_on_from_dense_bytes(backend: Backend) -> None:
    plain = cache(is_cut=True)
    past = make_rows(1, 0)
    with (
        gx.Worker(plain, backend=backend) as by_hand,
        gx.Worker(plain.bind_state(PAIR, capacity=CAPACITY), backend=backend) as worker,
    ):
        for number, count in enumerate((2, 1, 3, 1)):
            x = make_rows(1, count, number)
            expected = dict(zip(["y", "past", "before", "above"], by_hand.run({"x": x, "past": past}), strict=True))
            past = expected.pop("past")
            for got, each in zip(worker.run({"x": x}), expected.values(), strict=True):
                np.testing.assert_array_equal(got, each)
            np.testing.assert_array_equal(worker.state.get(), past)
        assert all(buffer.role is not Role.STATE for plan in worker.plans for buffer in plan.buffers)


def test_compared_runs_append(backend: Backend) -> None:
    with gx.Worker(cache().bind_state(PAIR, capacity=CAPACITY), backend=backend, compare_with=CPU) as worker:
        for number in range(3):
            worker.run(make_rows(1, 2, number))
        expected = np.concatenate([2 * make_rows(1, 2, number) for number in range(3)], 1)
        np.testing.assert_array_equal(worker.state.get(), expected)


@pytest.mark.parametrize(
    ("pairs", "capacity", "words"),
    [
        ({"nothing": "past"}, None, "no output 'nothing'; it has y, present, before"),
        ({"present": "nothing"}, None, "no input 'nothing'; it has x, past"),
        ({"y": "past"}, None, r"'past' \(float32\[2,past,3\]\) <- 'y' \(float32\[2,3\]\): both must have"),
        ({"present": "past"}, 0, "capacity of 'past' must be"),
        ({"present": "past"}, {"x": 3}, "names 'x', which is not bound"),
        ({"before": "past"}, {"past": 3}, "a capacity needs"),
        ({"before": "past"}, 3, "capacity=3, but none of past grows"),
        ({"present": "past", "before": "past"}, None, "is bound already"),
    ],
)
def test_bad_pairs_are_refused_naming_both(pairs: dict[str, str], capacity: Any, words: str) -> None:
    with pytest.raises(gx.InputError, match=words):
        cache().bind_state(pairs, capacity=capacity)


@pytest.mark.parametrize(
    ("inputs", "more"),
    [(["rows", "past"], []), (["past", "rows", "rows"], []), (["past", "rows"], ["Identity"])],
    ids=["in front", "twice", "made from another output"],
)
def test_capacity_is_refused_where_the_memory_grows_in_another_way(inputs: list[str], more: list[str]) -> None:
    nodes = [
        helper.make_node("Concat", inputs, ["all"], axis=0),
        *(helper.make_node(o, ["all"], ["end"]) for o in more),
    ]
    outputs = dict.fromkeys(("all", "end")[: 1 + len(more)], ("m", WIDTH))
    model = make_model(nodes, {"rows": ("k", WIDTH), "past": ("n", WIDTH)}, outputs)
    pair = {list(outputs)[-1]: "past"}
    with pytest.raises(
        gx.InputError, match=r"past <- .*a capacity needs an output that is a Concat of the input, first"
    ):
        model.bind_state(pair, capacity=3)
    assert model.bind_state(pair).memories[0].form == "swap"


def test_bound_model_shares_weights_and_leaves_the_other_as_it_was() -> None:
    plain = cache()
    bound = plain.bind_state(PAIR, capacity=CAPACITY)
    assert bound._slabs is plain._slabs and plain.memories == ()
    assert all(
        any(array is other for other in plain.graph.constants.values()) for array in bound.graph.constants.values()
    )


def test_zeros_take_free_extents() -> None:
    memory = running_sum().memories[0]
    assert memory.zeros(4).shape == memory.zeros(n=4).shape == (4, WIDTH)
    for bad in ((), (1, 2)):
        with pytest.raises(gx.InputError, match="held"):
            memory.zeros(*bad)
    with pytest.raises(gx.InputError, match="m is no free extent"):
        memory.zeros(4, m=1)
    grown = cache().bind_state(PAIR, capacity=CAPACITY).memories[0]
    assert grown.zeros().shape == (2, 0, WIDTH) and grown.zeros(past=4).shape == (2, 4, WIDTH)
