"""Layers that `Worker.prepare` times: steps of the first run with a budget, and what stays as it is."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from gpuexec.execution.runs.inputs import describe_inputs
from tests.execution.runs.counted import load
from tests.model.small_models import CPU, hold

LAYERS = 120


@pytest.fixture(params=["cpu", "simulator"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return open_backend(CPU if request.param == "cpu" else gx.BackendType.SIMULATOR)


def make_chain() -> gx.Model:
    """Return a model of 120 layers that none fuses."""
    names = ["x", *(f"v{i}" for i in range(LAYERS - 1)), "y"]
    nodes = [helper.make_node("Neg", [a], [b]) for a, b in itertools.pairwise(names)]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (8,)) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "chain", info[:1], info[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    return gx.load(model.SerializeToString(), disabled_passes=["fuse_regions", "remove_noops", "recognise_activations"])


def prepare(worker: gx.Worker, inputs: gx.Inputs | None = None) -> gx.Plan | None:
    """Prepare a Worker and time its layers, which `Worker.prepare` leaves out on the simulator."""
    with worker._engine.exclusive:
        given, _ = describe_inputs(worker._engine.input_reader, inputs)
        return worker._engine.prepare(given, times_layers=True)


def count_steps(worker: gx.Worker, x: Any, budget_ms: float) -> int:
    """Return how many steps a run takes, all of them done."""
    count = len(list(worker.schedule_iterable(x, budget_ms=budget_ms)))
    np.testing.assert_array_equal(worker.read_output(), x)
    return count


def test_first_run_with_a_budget_groups_layers_that_were_prepared(backend: Backend) -> None:
    x = np.arange(8, dtype=np.float32)
    with gx.Worker(make_chain(), backend=backend) as worker:
        assert count_steps(worker, x, 1e9) > LAYERS // 2, "layers that were never timed have a step of their own"
    with gx.Worker(make_chain(), backend=backend) as worker:
        plan = prepare(worker)
        assert plan is not None
        assert count_steps(worker, x, 1e9) == 1
        assert count_steps(worker, x, 0.0) > LAYERS // 2


def test_state_and_outputs_stay_as_they_are(backend: Backend) -> None:
    text = """(float[2] x, float[2] sum) => (float[2] y, float[2] total) { total = Add (sum, x) y = Neg (total) }"""
    x = np.ones(2, np.float32)
    with gx.Worker(load(text).bind_state({"total": "sum"}), backend=backend) as worker:
        prepare(worker)
        for count in range(1, 3):
            np.testing.assert_array_equal(worker.run(x)[0], -count * x)
        before = worker.peek_output("y")
        prepare(worker)
        np.testing.assert_array_equal(before.readback_and_clone(), -2 * x)
        np.testing.assert_array_equal(worker.state.get("sum"), 2 * x)


def test_prepare_waits_for_no_run(backend: Backend) -> None:
    with gx.Worker(make_chain(), backend=backend) as worker:
        gate = hold(worker._engine.stream)
        run = worker.schedule(np.ones(8, np.float32))
        prepare(worker)
        assert not run.is_done()
        gate.set()
        run.wait()


def test_what_zeros_make_fail_is_said_of_no_run() -> None:
    text = (
        """(float[k] x, int64[n] at) => (float[n] y) <int64 one = {1}> { near = Sub (at, one) y = Gather (x, near) }"""
    )
    with gx.Worker(load(text), backend=CPU) as worker:
        prepare(worker, {"x": (0,), "at": (2,)})
        x, at = np.arange(3, dtype=np.float32), np.array([1, 3])
        prepare(worker, {"x": x, "at": at})
        np.testing.assert_array_equal(worker.run({"x": x, "at": at})[0], [0, 2])


def test_memory_for_it_is_given_back(backend: Backend) -> None:
    text = "(float[n] x) => (float[n] y) { y = Neg (x) }"
    with gx.Worker(load(text), backend=backend) as worker:
        prepare(worker, {"x": (1 << 16,)})
        assert worker.memory_stats()["exchange"] == 0


def test_simulator_is_not_timed() -> None:
    x = np.arange(8, dtype=np.float32)
    with gx.Worker(make_chain(), backend=gx.BackendType.SIMULATOR) as worker:
        worker.prepare()
        assert count_steps(worker, x, 1e9) > LAYERS // 2
    with gx.Worker(make_chain(), backend=CPU) as worker:
        worker.prepare()
        assert count_steps(worker, x, 1e9) == 1
