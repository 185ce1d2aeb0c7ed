"""Rows on state: carried between runs, read, set, reset and saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.model.small_models import GATES, make_model, ramp, trace
from tests.model.state_models import WIDTH, cache, gated_sum, recurrent, running_sum
from tests.system.features.marks import on
from tests.system.features.programs import Array

X = ramp(2, WIDTH)


def run(worker: gx.Worker, given: object) -> Array:
    """Return the only output of a run."""
    y = worker.run(given)[0]
    assert isinstance(y, np.ndarray)
    return y


def test_b40_s28_memories_of_recurrent_layers_are_listed() -> None:
    model = gx.load(recurrent(), memories="implicit", dims={"batch": 2, "steps": 1})
    assert [(m.shape, m.dtype.name, m.is_implicit) for m in model.memories] == [
        *(((1, 2, 4), "float32", True),) * 2,  # h and c of the LSTM
        ((1, 2, 3), "float32", True),
    ]
    assert len({m.input for m in model.memories}) == len({m.output for m in model.memories}) == 3
    for memory in model.memories:
        assert memory.zeros().shape == memory.shape and not memory.zeros().any()
    assert [port.name for port in model.inputs] == ["x"]
    assert [port.name for port in model.outputs] == ["y", "h"]
    assert gx.load(recurrent()).memories == ()


def test_b40_free_extents_of_a_memory_are_told_by_the_first_run(backend: Backend) -> None:
    with gx.Worker(gx.load(recurrent(), memories="implicit"), backend=backend) as worker:
        assert [m.shape for m in worker.state.memories] == [(1, None, 4), (1, None, 4), (1, None, 3)]
        assert worker.model.memories[0].zeros(2).shape == (1, 2, 4)
        worker.run(ramp(3, 2, 5))
        assert [m.shape for m in worker.state.memories] == [(1, 2, 4), (1, 2, 4), (1, 2, 3)]


def test_b40_a_model_with_explicit_states_lists_none_and_names_what_is_missing(backend: Backend) -> None:
    model = cache()
    assert model.memories == ()
    with gx.Worker(model, backend=backend) as worker:
        with pytest.raises(gx.InputError, match="'past'") as caught:
            worker.schedule({"x": ramp(2, 1, WIDTH)})
        assert caught.value.value == "past"


def test_b40_any_pair_of_an_input_and_an_output_is_bound(backend: Backend) -> None:
    model = cache().bind_state({"present": "past"})
    (memory,) = model.memories
    assert (memory.input, memory.output, memory.axis) == ("past", "present", 1)
    assert [port.name for port in model.inputs] == ["x"]
    rows = [ramp(2, 1, WIDTH) + number for number in range(4)]
    with gx.Worker(model, backend=backend) as worker:
        for number, x in enumerate(rows, 1):
            y, _ = worker.run(x)
            np.testing.assert_array_equal(y, 2 * np.concatenate(rows[:number], 1).sum(1))
        np.testing.assert_array_equal(worker.state.get("past"), 2 * np.concatenate(rows, 1))
    for pairs, message in (
        ({"present": "passed"}, "no input 'passed'"),
        ({"y": "past"}, r"%?'?past.*y"),
        ({"gone": "past"}, "no output 'gone'"),
    ):
        with pytest.raises(gx.InputError, match=message):
            cache().bind_state(pairs)
    with pytest.raises(gx.InputError, match=r"inputs by output.*got a list"):
        cache().bind_state(["present"])  # type: ignore[arg-type]
    with pytest.raises(gx.InputError, match=r"past <- present.* is bound already"):
        model.bind_state({"before": "past"})


def test_b41_state_begins_as_zeros(backend: Backend) -> None:
    with gx.Worker(running_sum((2, WIDTH)), backend=backend) as worker:
        np.testing.assert_array_equal(worker.state.get("held"), np.zeros((2, WIDTH)))
        np.testing.assert_array_equal(run(worker, X), 2 * X)


def test_b42_e38_state_goes_on_from_run_to_run(backend: Backend) -> None:
    with gx.Worker(running_sum(), backend=backend) as worker:
        requests = [worker.schedule(X).peek_output().readback_request() for _ in range(5)]
        for number, request in enumerate(requests, 1):
            np.testing.assert_array_equal(request.result(), 2 * number * X)
        worker.trim()
        np.testing.assert_array_equal(run(worker, X), 12 * X)
        assert worker.report().plans == 1


def test_b42_state_is_committed_at_the_end_of_a_run_only(backend: Backend) -> None:
    with gx.Worker(running_sum(), backend=backend) as worker:
        run(worker, X)
        steps = worker.schedule_iterable(X)
        assert next(steps).nodes == ("add",)  # the layer that makes what will be held
        np.testing.assert_array_equal(worker.state.get(), X)
        list(steps)
        np.testing.assert_array_equal(worker.state.get(), 2 * X)


def test_b42_a_run_given_up_leaves_the_state_as_it_was(backend: Backend) -> None:
    with gx.Worker(running_sum(), backend=backend) as worker:
        run(worker, X)
        next(worker.schedule_iterable(5 * X))
        assert worker.cancel()
        np.testing.assert_array_equal(worker.state.get(), X)
        np.testing.assert_array_equal(run(worker, X), 4 * X)


def test_b42_a_run_that_fails_leaves_the_state_as_it_was(backend: Backend) -> None:
    model, number = gated_sum()
    GATES.open[number].set()
    with gx.Worker(model, backend=backend) as worker:
        run(worker, X)
        GATES.failures[number] = ValueError("on purpose")
        with pytest.raises(gx.GpuexecError, match="on purpose"):
            worker.run(5 * X)
        np.testing.assert_array_equal(worker.state.get(), X)
        np.testing.assert_array_equal(run(worker, X), 4 * X)


def test_b43_an_array_under_a_memorys_input_replaces_the_state_for_that_run(backend: Backend) -> None:
    with gx.Worker(running_sum(), backend=backend) as worker:
        (memory,) = worker.model.memories
        run(worker, X)
        np.testing.assert_array_equal(run(worker, {"x": X, memory.input: 10 * X}), 22 * X)
        # The sequence goes on from there, and what was given is not given again.
        np.testing.assert_array_equal(run(worker, X), 24 * X)
        with pytest.raises(gx.InputError, match="'held'"):
            worker.run({"x": X, memory.input: X[:, :2]})
        np.testing.assert_array_equal(run(worker, X), 26 * X)


def test_b44_state_is_read_set_and_reset_by_calls(backend: Backend, tmp_path: Path) -> None:
    with gx.Worker(running_sum(), backend=backend) as worker:
        run(worker, X)
        run(worker, X)
        np.testing.assert_array_equal(worker.state.get("held"), 2 * X)
        before = worker.state.snapshot()
        path = tmp_path / "state.safetensors"
        worker.state.save(path)
        worker.state.set({"total": 7 * X})  # by either name
        worker.state.get()[...] = 9  # a copy
        np.testing.assert_array_equal(run(worker, X), 16 * X)
        worker.state.reset()
        np.testing.assert_array_equal(run(worker, X), 2 * X)
        for go_back in (lambda: worker.state.restore(before), lambda: worker.state.load(path)):
            go_back()
            np.testing.assert_array_equal(run(worker, X), 6 * X)
        with pytest.raises(gx.InputError, match=r"no memory 'hold'.*held"):
            worker.state.set({"hold": X})


def test_b45_sequences_take_turns_on_one_worker(backend: Backend) -> None:
    with gx.Worker(running_sum(), backend=backend) as worker:
        first, second = worker.state, worker.create_state()
        for number in range(1, 4):
            for state, scale in ((first, 1), (second, -3)):
                worker.state = state
                np.testing.assert_array_equal(run(worker, scale * X), 2 * number * scale * X)
        other = first.fork()
        worker.state = other
        np.testing.assert_array_equal(run(worker, X), 8 * X)
        np.testing.assert_array_equal(first.get(), 3 * X)
        np.testing.assert_array_equal(second.get(), -9 * X)


@pytest.mark.parametrize("pieces", [(6,), (2, 4), (1, 1, 1, 1, 1, 1)])
def test_s28_a_sequence_in_pieces_gives_what_it_gives_whole(pieces: tuple[int, ...], backend: Backend) -> None:
    x = np.random.default_rng(3).standard_normal((6, 2, 5)).astype(np.float32)
    with gx.Worker(gx.load(recurrent()), backend=backend) as whole:
        expected = whole.run(x)
    with gx.Worker(gx.load(recurrent(), memories="implicit"), backend=backend) as worker:
        for _ in range(2):
            for part in np.split(x, np.cumsum(pieces)[:-1]):
                last = worker.run(part)
            for got, wanted in zip(last, expected, strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
            worker.state.reset()


def test_e38_a_state_that_grows_keeps_its_place_up_to_its_capacity(backend: Backend) -> None:
    model = cache(is_read=False).bind_state({"present": "past"}, capacity=4)
    (memory,) = model.memories
    assert (memory.form, memory.capacity) == ("append", 4)
    x = ramp(2, 1, WIDTH)
    with gx.Worker(model, backend=backend) as worker:
        for number in range(1, 5):
            np.testing.assert_array_equal(run(worker, x), 2 * number * x.sum(1))
        with pytest.raises(gx.GpuexecError, match=r"capacity|4 rows"):
            worker.run(x)
        np.testing.assert_array_equal(worker.state.get(), 2 * np.concatenate([x] * 4, 1))
        worker.state.reset()
        np.testing.assert_array_equal(run(worker, x), 2 * x.sum(1))


@on("tracer")
def test_e38_state_stays_on_the_device_and_is_copied_nowhere(backend: Backend) -> None:
    with gx.Worker(running_sum(), backend=backend) as worker:
        for _ in range(3):
            worker.schedule(X)
        before = len(trace(backend))
        for _ in range(3):
            worker.schedule(X)
        done = trace(backend)[before:]
    assert not {"copy_to_host", "copy", "allocate"} & set(done)


def test_b46_s28_a_network_of_gates_given_as_a_loop_of_ones_own_goes_on_too(backend: Backend) -> None:
    # h = tanh(x @ w + h): a recurrence that no layer of ONNX has, bound by its names.
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "h"], ["b"]),
        helper.make_node("Tanh", ["b"], ["after"]),
    ]
    w = np.eye(WIDTH, dtype=np.float32) / 2
    model = make_model(nodes, {"x": ("n", WIDTH), "h": ("n", WIDTH)}, {"after": ("n", WIDTH)}, w=w)
    h = np.zeros_like(X)
    with gx.Worker(model.bind_state({"after": "h"}), backend=backend) as worker:
        for _ in range(4):
            worker.schedule(X)
            h = np.tanh(X @ w + h)
        np.testing.assert_allclose(worker.state.get("h"), h, rtol=1e-5)
