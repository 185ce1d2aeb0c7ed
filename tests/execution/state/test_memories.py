"""Memories: bound pairs of inputs and outputs, read, set, reset and saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.model.small_models import GATES, make_model, ramp
from tests.model.state_models import WIDTH, cache, gated_sum, running_sum
from tests.program.small_programs import Array

X = ramp(2, WIDTH)


def run(worker: gx.Worker, given: object) -> Array:
    """Return the only output of a run."""
    y = worker.run(given)[0]
    assert isinstance(y, np.ndarray)
    return y


@pytest.mark.feature("B40")
def test_a_model_with_explicit_states_lists_none_and_names_what_is_missing(backend: Backend) -> None:
    model = cache()
    assert model.memories == ()
    with gx.Worker(model, backend=backend) as worker:
        with pytest.raises(gx.InputError, match="'past'") as caught:
            worker.schedule({"x": ramp(2, 1, WIDTH)})
        assert caught.value.value == "past"


@pytest.mark.feature("B40")
def test_any_pair_of_an_input_and_an_output_is_bound(backend: Backend) -> None:
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


@pytest.mark.feature("B42")
def test_a_run_that_fails_leaves_the_state_as_it_was(backend: Backend) -> None:
    model, number = gated_sum()
    GATES.open[number].set()
    with gx.Worker(model, backend=backend) as worker:
        run(worker, X)
        GATES.failures[number] = ValueError("on purpose")
        with pytest.raises(gx.GpuexecError, match="on purpose"):
            worker.run(5 * X)
        np.testing.assert_array_equal(worker.state.get(), X)
        np.testing.assert_array_equal(run(worker, X), 4 * X)


@pytest.mark.feature("B44")
def test_state_is_read_set_and_reset_by_calls(backend: Backend, tmp_path: Path) -> None:
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


@pytest.mark.feature("E38")
def test_a_state_that_grows_keeps_its_place_up_to_its_capacity(backend: Backend) -> None:
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


@pytest.mark.feature("B46", "S28")
def test_a_network_of_gates_given_as_a_loop_of_ones_own_goes_on_too(backend: Backend) -> None:
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
