"""Lifetime of device weights while they are replaced."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from onnx import helper, parser

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from tests.model.editing.weighted import FIRST, LOOPS, OTHER, X, expect, scaled
from tests.model.small_models import hold, make_model, ramp, two_layers


def test_weights_that_stay_lie_on_the_device_once(backend: Backend) -> None:
    wide = np.ones((3, 4096), np.float32)
    nodes = [helper.make_node("Mul", ["x", "wide"], ["a"]), helper.make_node("Add", ["a", "bias"], ["y"])]
    shape = (3, 4096)
    model = make_model(nodes, {"x": shape}, {"y": shape}, wide=wide, bias=wide)
    with (
        gx.Worker(model, backend=backend) as old,
        gx.Worker(model.with_weights({"bias": 2 * wide}), backend=backend) as new,
    ):
        old.run(wide)
        before = old.memory_stats()["weights"]
        np.testing.assert_array_equal(new.run(wide)[0], 3 * wide)
        assert new.memory_stats()["weights"] == before + wide.nbytes


def test_weights_that_are_replaced_go_from_the_device(backend: Backend) -> None:
    nodes = [helper.make_node("Mul", ["x", "wide"], ["y"])]
    model = make_model(nodes, {"x": ("n", 4096)}, {"y": ("n", 4096)}, wide=np.ones(4096, np.float32))
    x = np.ones((1, 4096), np.float32)
    with gx.Worker(model, backend=backend) as worker:
        worker.run(x)
        before = worker.memory_stats()["weights"]
        for factor in (2, 3, 4):
            worker.replace_weights({"wide": np.full(4096, factor, np.float32)})
            np.testing.assert_array_equal(worker.run(x)[0], factor * x)
        assert worker.memory_stats()["weights"] == before == 4 * 4096


def test_a_limit_on_memory_holds_for_the_moment_both_are_there(backend: Backend) -> None:
    wide = np.ones(4096, np.float32)
    nodes = [helper.make_node("Mul", ["x", "wide"], ["a"]), helper.make_node("ReduceSum", ["a"], ["y"], keepdims=0)]
    model = make_model(nodes, {"x": (4096,)}, {"y": ()}, wide=wide)
    with gx.Worker(model, backend=backend, max_bytes=6 * wide.nbytes) as worker:
        for factor in (2, 3, 4):
            worker.replace_weights({"wide": factor * wide})
            assert worker.run(wide)[0] == factor * 4096
    with gx.Worker(model, backend=backend, frames=1) as worker:
        worker.run(wide)
        needed = sum(worker.memory_stats()[name] for name in ("arena", "weights", "frames"))
    with gx.Worker(model, backend=backend, frames=1, max_bytes=needed + wide.nbytes - 1) as worker:
        assert worker.run(wide)[0] == 4096
        with pytest.raises(gx.OutOfMemoryError, match="no room for 16384 bytes more"):
            worker.replace_weights({"wide": 2 * wide})
        assert worker.run(wide)[0] == 4096


def test_what_is_worked_out_as_before_lies_on_the_device_once() -> None:
    nodes = [
        helper.make_node("Transpose", ["w"], ["turned"], perm=[1, 0]),
        helper.make_node("Gemm", ["x", "turned", "b"], ["y"]),
    ]
    model = make_model(nodes, {"x": ("n", 3)}, {"y": ("n", 2)}, w=ramp(2, 3), b=ramp(2))
    changed = model.with_weights({"b": ramp(2) + 1})
    old, new = ({value.name: array for value, array in each.graph.constants.items()} for each in (model, changed))
    assert new["turned"] is old["turned"]
    assert new["b"] is not old["b"]


def test_plans_of_shapes_before_are_let_go(backend: Backend) -> None:
    text = "(float[2, 9] x) => (float[2, n] y) <int64[1] s = {0}, int64[1] e = {9}, int64[1] a = {1}>"
    model = gx.load(
        parser.parse_model(
            f'<ir_version: 10, opset_import: ["": 18]> agraph {text} {{ z = Slice (x, s, e, a) y = Neg (z) }}'
        )
    )
    x = ramp(2, 9)
    with gx.Worker(model, backend=backend) as worker:
        for first in range(1, 9):
            worker.replace_weights({"s": np.array([first])})
            np.testing.assert_array_equal(worker.run(x)[0], -x[:, first:])
            planning = worker._engine.planning
            assert len(planning.model._plans[backend.device.target.name]) <= 1
        assert len(worker.report().plans_refused) <= 8


def test_bodies_of_weights_before_are_let_go(backend: Backend) -> None:
    with gx.Worker(gx.load(parser.parse_model(LOOPS)), backend=backend) as worker:
        for factor in (1, 2, 3):
            worker.replace_weights({"w": np.full(2, factor, np.float32)})
            assert (
                np.asarray(worker.run({"x": np.zeros(2, np.float32), "n": np.array(4)})[0]).tolist() == [4 * factor] * 2
            )
            assert len(worker._engine.planning.bodies) == 1


def test_workers_share_a_model_with_other_weights(backend: Backend) -> None:
    model = two_layers()
    changed = model.with_weights({"first": OTHER})
    with gx.Worker(model, backend=backend) as one, gx.Worker(model, backend=backend) as two:
        one.run(X)
        two.run(X)
        before = two.memory_stats()["weights"]
        one.replace_weights(changed)
        assert two.memory_stats()["weights"] == before + OTHER.nbytes
        np.testing.assert_array_equal(two.run(X)[0], expect(FIRST))
        two.replace_weights(changed)
        for worker in (one, two):
            np.testing.assert_array_equal(worker.run(X)[0], expect(OTHER))


def test_weights_that_no_worker_of_a_model_has_any_more_go(backend: Backend) -> None:
    model, x = scaled(), np.ones((1, 4096), np.float32)
    with gx.Worker(model, backend=backend) as one, gx.Worker(model, backend=backend) as two:
        one.run(x)
        for factor in (2, 3, 4):
            changed = model.with_weights({"wide": np.full(4096, factor, np.float32)})
            one.replace_weights(changed)
            np.testing.assert_array_equal(two.run(x)[0], (factor - 1) * x)
            two.replace_weights(changed)
            for worker in (one, two):
                np.testing.assert_array_equal(worker.run(x)[0], factor * x)
        assert one.memory_stats()["weights"] == 4 * 4096


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.filterwarnings("ignore:A Worker of:ResourceWarning")
def test_weights_go_with_the_worker_that_had_them(is_closed: bool, backend: Backend) -> None:
    model, x = scaled(), np.ones((1, 4096), np.float32)
    with gx.Worker(model, backend=backend) as one:
        one.run(x)
        for factor in (2, 3):
            two = gx.Worker(model.with_weights({"wide": np.full(4096, factor, np.float32)}), backend=backend)
            np.testing.assert_array_equal(two.run(x)[0], factor * x)
            assert one.memory_stats()["weights"] == 2 * 4 * 4096
            if is_closed:
                two.close()
            del two
            gc.collect()
            assert one.memory_stats()["weights"] == 4 * 4096
        np.testing.assert_array_equal(one.run(x)[0], x)


@pytest.mark.filterwarnings("ignore:A Worker of:ResourceWarning")
def test_weights_of_a_worker_let_go_of_stay_while_its_run_needs_them() -> None:
    backend = open_backend(gx.BackendType.SIMULATOR)
    model, x = scaled(), np.ones((1, 4096), np.float32)
    with gx.Worker(model, backend=backend) as one:
        one.run(x)
        two = gx.Worker(model.with_weights({"wide": 2 * x[0]}), backend=backend)
        two.prepare(x)
        go = hold(two._engine.stream)
        request = two.schedule(x).outputs["y"].readback_request()
        del two
        gc.collect()
        assert one.memory_stats()["weights"] == 2 * 4 * 4096
        go.set()
        np.testing.assert_array_equal(request.result(), 2 * x)
        assert one.memory_stats()["weights"] == 4 * 4096


def test_weights_of_a_replay_go_with_it(backend: Backend) -> None:
    x = np.ones((1, 4096), np.float32)
    with gx.Worker(scaled(), backend=backend) as worker:
        with worker.record(x) as replay:
            for factor in (2, 3, 4):
                worker.replace_weights({"wide": np.full(4096, factor, np.float32)})
                np.testing.assert_array_equal(worker.run(x)[0], factor * x)
            np.testing.assert_array_equal(replay.submit({"x": x})["y"].readback_and_clone(), x)
            assert worker.memory_stats()["weights"] == 2 * 4 * 4096
        assert worker.memory_stats()["weights"] == 4 * 4096


def test_a_replay_keeps_the_weights_it_was_recorded_with(backend: Backend) -> None:
    with gx.Worker(two_layers(), backend=backend) as worker:
        replay = worker.record(X)
        before = worker.memory_stats()["weights"]
        worker.replace_weights({"first": OTHER})
        assert worker.memory_stats()["weights"] == before + OTHER.nbytes
        np.testing.assert_array_equal(worker.run(X)[0], expect(OTHER))
        np.testing.assert_array_equal(replay.submit({"x": X})["y"].readback_and_clone(), expect(FIRST))
