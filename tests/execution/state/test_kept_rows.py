"""Rows and sequences of a state: what crop and reorder leave is what runs from the beginning leave."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.devices.backend import Backend, BackendType, open_backend
from gpuexec.errors import InputError, StateError
from tests.execution.state.by_hand import BACKENDS, CAPACITY, PAIR, make_rows, run_bound
from tests.execution.state.programs import bind, force_graphs, run_program
from tests.model.small_models import make_model, make_tracer
from tests.model.state_models import WIDTH, cache, caches, masked_attention, running_sum


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
        for seed in (*range(7, 7 + 60 // calls), 2334):
            run_program(worker, random.Random(seed), calls)


@FORMS
def test_random_programs_as_graphs(monkeypatch: pytest.MonkeyPatch, capacity: int | None) -> None:
    backend = open_backend(BackendType.SIMULATOR)
    monkeypatch.setattr(backend.device, "launch_costs", backend.device.launch_costs)  # type: ignore[attr-defined]
    force_graphs(backend)
    with gx.Worker(bind(capacity), backend=backend) as worker:
        run_program(worker, random.Random(11), 90)
        assert worker.report().graphs > 0


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


@FORMS
def test_sequences_of_different_lengths_run_as_one_batch(backend: Backend, capacity: int | None) -> None:
    """They join one that is under way and leave it, and give what each gives by itself."""
    model = masked_attention().bind_state(PAIR, capacity=capacity)
    rng = np.random.default_rng(4)
    rows = [rng.standard_normal((1, 12, WIDTH)).astype(np.float32) for _ in range(3)]

    def run(worker: gx.Worker, x: np.ndarray) -> np.ndarray:
        mask = (
            worker.state.mask(x.shape[1]).astype(np.float32) if worker.state.length else np.ones(x.shape[:2], x.dtype)
        )
        return np.asarray(worker.run({"x": x, "mask": mask})[0])

    with gx.Worker(model, backend=backend) as worker, gx.Worker(model, backend=backend) as apart:
        expected = []
        for each in rows:
            apart.state.reset()
            expected.append([run(apart, each[:, at : at + 1])[0] for at in range(12)])
        under_way = {0: 0}  # rows that have been given of each, in the order of the batch
        for step in range(9):
            if step in (3, 4):  # another one joins, its first rows having been given elsewhere
                number = step - 2
                apart.state.reset()
                for at in range(2):
                    run(apart, rows[number][:, at : at + 1])
                worker.state.join(apart.state)
                under_way[number] = 2
                lengths = list(under_way.values())
                assert worker.state.length == max(lengths)
                assert list(worker.state.starts) == [max(lengths) - length for length in lengths]
                assert worker.state.positions(2).tolist() == [[length, length + 1] for length in lengths]
            if step == 7:  # the longest leaves
                under_way.pop(0)
                worker.state.reorder([1, 2])
                assert worker.state.length == max(under_way.values())
            x = np.concatenate([rows[each][:, at : at + 1] for each, at in under_way.items()])
            for got, (each, at) in zip(run(worker, x), under_way.items(), strict=True):
                np.testing.assert_allclose(got, expected[each][at], rtol=1e-5, atol=1e-6)
                under_way[each] += 1


@FORMS
def test_window_slides_along_for_longer_than_there_is_room(backend: Backend, capacity: int | None) -> None:
    """The last rows give what they give by themselves, and positions count on."""
    model = masked_attention().bind_state(PAIR, capacity=capacity)
    x = np.random.default_rng(5).standard_normal((1, 3 * CAPACITY, WIDTH)).astype(np.float32)
    window = CAPACITY // 2
    with gx.Worker(model, backend=backend) as worker, gx.Worker(model, backend=backend) as apart:
        for at in range(x.shape[1]):
            if worker.state.length == CAPACITY:
                worker.state.slide(window)
                assert worker.state.length == window
                assert worker.state.positions().tolist() == [[at]] and worker.state.mask().all()
            first, row = at - worker.state.length, x[:, at : at + 1]
            got = worker.run({"x": row, "mask": np.ones((1, worker.state.length + 1), np.float32)})[0]
            if at % 5 == 4:
                apart.state.reset()
                seen = x[:, first : at + 1]
                expected = apart.run({"x": seen, "mask": np.ones(seen.shape[:2], np.float32)})[0]
                np.testing.assert_allclose(got[:, -1], np.asarray(expected)[:, -1], rtol=1e-5, atol=1e-6)
        worker.state.slide(CAPACITY)
        for wrong in (0, -1, 1.5, True):
            with pytest.raises(InputError, match="expected a number of rows, 1 or more"):
                worker.state.slide(wrong)  # type: ignore[arg-type]


def test_sequences_join_where_the_batch_is_not_the_first_axis(backend: Backend) -> None:
    shape = ("past", "batch", WIDTH)
    nodes = [helper.make_node("Concat", ["past", "x"], ["present"], name="join", axis=0)]
    model = make_model(nodes, {"x": ("new", "batch", WIDTH), "past": shape}, {"present": ("all", "batch", WIDTH)})
    with gx.Worker(model.bind_state(PAIR), backend=backend) as worker, worker_of(model, backend) as other:
        first, second = (np.full((3, 2, WIDTH), seed, np.float32) for seed in range(2))
        worker.run(first)
        other.run(second)
        worker.state.join(other.state, axis=1)
        np.testing.assert_array_equal(worker.state.get(), np.concatenate([first, second], 1))
        other.run(second)
        with pytest.raises(InputError, match="'past' grows along axis 0, in front of the batch on axis 1"):
            worker.state.join(other.state, axis=1)


@FORMS
def test_states_join_whose_memories_were_bound_in_another_order(backend: Backend, capacity: int | None) -> None:
    model, orders = caches(2), ((0, 1), (1, 0))
    bound = [model.bind_state({f"present.{i}": f"past.{i}" for i in order}, capacity=capacity) for order in orders]
    with gx.Worker(bound[0], backend=backend) as worker, gx.Worker(bound[1], backend=backend) as other:
        with pytest.raises(StateError, match="hold nothing yet"):
            worker.state.mask()
        first, second = make_rows(1, 3), make_rows(1, 2, 1)
        worker.run({"x": first})
        other.run({"x": second})
        worker.state.join(other.state)
        padded = np.concatenate([np.zeros_like(second[:, :1]), second], 1)
        for layer in range(2):
            expected = (layer + 2) * np.concatenate([first, padded])
            np.testing.assert_array_equal(worker.state.get(f"past.{layer}"), expected)


def test_what_can_not_join_is_refused_and_changes_nothing(backend: Backend) -> None:
    model = masked_attention().bind_state(PAIR, capacity=CAPACITY)
    with gx.Worker(model, backend=backend) as worker, gx.Worker(model, backend=backend) as other:
        x = np.ones((2, 2, WIDTH), np.float32)
        worker.run({"x": x, "mask": np.ones((2, 2), np.float32)})
        before = worker.state.get()
        with pytest.raises(StateError, match="join: memory 'past' of one of the states holds nothing yet"):
            worker.state.join(other.state)
        stranger = gx.Worker(running_sum(), backend=backend)
        with stranger, pytest.raises(InputError, match="The other state holds held <- total"):
            worker.state.join(stranger.state)
        np.testing.assert_array_equal(worker.state.get(), before)


def worker_of(model: gx.Model, backend: Backend) -> gx.Worker:
    return gx.Worker(model.bind_state(PAIR), backend=backend)


def test_random_numbers_are_those_of_the_state_in_another_order(backend: Backend) -> None:
    """What random operators draw from is no batch."""
    nodes = [
        helper.make_node("RandomUniformLike", ["x"], ["noise"], name="draw"),
        helper.make_node("Add", ["noise", "held"], ["total"], name="add"),
    ]
    shape = (2, WIDTH)
    model = make_model(nodes, {"x": shape, "held": shape}, {"total": shape}).bind_state({"total": "held"})
    with gx.Worker(model, backend=backend, seed=3) as worker, gx.Worker(model, backend=backend, seed=3) as other:
        x = np.zeros(shape, np.float32)
        for each in (worker, other):
            each.run(x)
        worker.state.reorder([1, 0])
        worker.run(x)
        other.run(x)
        held = other.state.get("held")
        assert not np.array_equal(worker.state.get("held"), held)
        np.testing.assert_allclose(worker.state.get("held").sum(0), held.sum(0), rtol=1e-6)


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
