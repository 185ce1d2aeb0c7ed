"""Replacement of weights by name: in models, and in Workers between runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, parser

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.importer import to_model
from tests.model.editing.test_choosing import FUSED
from tests.model.editing.weighted import FIRST, IN_BODY, OTHER, SECOND, X, expect, sloping
from tests.model.small_models import GATES, affine, hold, make_model, ramp, two_layers
from tests.model.state_models import cache, running_sum


def test_a_model_with_other_weights_leaves_the_first_as_it_was(backend: Backend) -> None:
    model = two_layers()
    changed = model.with_weights({"first": OTHER})
    with gx.Worker(model, backend=backend) as old, gx.Worker(changed, backend=backend) as new:
        np.testing.assert_array_equal(old.run(X)[0], expect(FIRST))
        np.testing.assert_array_equal(new.run(X)[0], expect(OTHER))


def test_what_was_worked_out_from_weights_is_worked_out_anew(backend: Backend) -> None:
    model = gx.load(parser.parse_model(FUSED))
    x = ramp(1, 1, 3, 3)
    with gx.Worker(model, backend=backend) as worker:
        plain = np.asarray(worker.run(x)[0])
        worker.replace_weights({"s": np.array([4], np.float32)})
        assert [node.operator.name for node in worker.model.graph.nodes] == ["Conv"]
        np.testing.assert_allclose(worker.run(x)[0], 2 * (plain - 1) + 1, rtol=1e-5)


def test_a_worker_goes_on_with_other_weights(backend: Backend) -> None:
    model = two_layers()
    with gx.Worker(model, backend=backend) as worker:
        for _ in range(2):
            worker.run(X)
        before = worker.memory_stats()
        del before["pinned"], before["lane"]  # of all on the device; and bound anew once a size comes back
        for factor in (2, 3):
            worker.replace_weights({"first": factor * FIRST, "second": factor * SECOND})
            np.testing.assert_array_equal(worker.run()[0], expect(factor * FIRST, factor * SECOND))
        report = worker.report()
        assert (report.plans, report.plans_restored, report.plans_refused, report.host_syncs) == (3, 2, (), ())
        after = worker.memory_stats()
        assert {name: after[name] for name in before} == before
    assert model.with_weights({"first": OTHER}).graph.nodes[0].name == "first"


def test_a_run_under_way_keeps_its_weights_and_nothing_waits(backend: Backend) -> None:
    wide = np.ones(4096, np.float32)
    nodes = [helper.make_node("Mul", ["x", "wide"], ["y"])]
    model = make_model(nodes, {"x": (4096,)}, {"y": (4096,)}, wide=wide)
    with gx.Worker(model, backend=backend) as worker:
        worker.run(wide)
        go = hold(worker._engine.stream)
        request = worker.schedule(wide).outputs["y"].readback_request()
        worker.replace_weights({"wide": 2 * wide})
        after = worker.schedule(wide).outputs["y"].readback_request()
        assert not request.is_done()
        go.set()
        np.testing.assert_array_equal(request.result(), wide)
        np.testing.assert_array_equal(after.result(), 2 * wide)


def test_a_run_that_is_not_issued_yet_is_waited_for_and_that_is_counted(backend: Backend) -> None:
    number = GATES.new()
    nodes = [
        helper.make_node("Gate", ["x"], ["a"], name="gate", domain="gpuexec.test", number=number),
        helper.make_node("MatMul", ["a", "w"], ["y"], name="after"),
    ]
    model = make_model(nodes, {"x": ("n", 3)}, {"y": ("n", 3)}, w=np.eye(3, dtype=np.float32))
    with gx.Worker(model, backend=backend) as worker:
        run = worker.schedule(X)
        GATES.entered[number].wait()
        has_to_wait = backend.device.target.has_kernels  # the gate is computed between two plans then
        if has_to_wait:
            with gx.no_implicit_sync(), pytest.raises(gx.ImplicitSyncError, match="weights are replaced"):
                worker.replace_weights({"w": 2 * np.eye(3, dtype=np.float32)})
            GATES.open[number].set()
        worker.replace_weights({"w": 2 * np.eye(3, dtype=np.float32)})
        GATES.open[number].set()
        np.testing.assert_array_equal(run.outputs["y"].readback_and_clone(), X)
        np.testing.assert_array_equal(worker.run(X)[0], 2 * X)


def test_state_and_inputs_stay(backend: Backend) -> None:
    with gx.Worker(running_sum(), backend=backend) as worker:
        worker.run(X)
        worker.replace_weights({"two": np.float32(5)})
        np.testing.assert_array_equal(worker.run()[0], 5 * (X + X))


def test_layers_given_memories_go_on_from_them(backend: Backend) -> None:
    rng = np.random.default_rng(0)
    weights: dict[str, Any] = {
        name: rng.standard_normal((1, 8, 3 if name == "w" else 2)).astype(np.float32) for name in ("w", "r")
    }
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], name="lstm", hidden_size=2)
    bare = to_model(make_model([node], {"x": (4, 1, 3)}, {"y": (4, 1, 1, 2)}, **weights).graph)
    x = ramp(4, 1, 3)
    with gx.Worker(gx.load(bare, memories="implicit"), backend=backend) as worker:
        worker.run(x)
        held = {name: worker.state.get(name) for name in ("lstm.initial_h", "lstm.initial_c")}
        worker.replace_weights({"r": weights["r"] / 2})
        got = worker.run(x)[0]
    with gx.Worker(gx.load(bare, memories="implicit").with_weights({"r": weights["r"] / 2}), backend=backend) as worker:
        worker.state.set(held)
        np.testing.assert_array_equal(worker.run(x)[0], got)


def test_what_is_drawn_goes_on(backend: Backend) -> None:
    nodes = [
        helper.make_node("RandomUniformLike", ["x"], ["drawn"], name="draw"),
        helper.make_node("Mul", ["drawn", "w"], ["y"], name="scale"),
    ]
    model = make_model(nodes, {"x": (2, 3)}, {"y": (2, 3)}, w=np.ones(3, np.float32))
    with gx.Worker(model, backend=backend, seed=3) as plain, gx.Worker(model, backend=backend, seed=3) as changed:
        np.testing.assert_array_equal(plain.run(X)[0], changed.run(X)[0])
        changed.replace_weights({"w": np.full(3, 2, np.float32)})
        np.testing.assert_array_equal(2 * np.asarray(plain.run(X)[0]), changed.run(X)[0])


def test_a_cache_goes_on_growing(backend: Backend) -> None:
    model = cache().bind_state({"present": "past"}, capacity=4)
    x = np.ones((2, 1, 3), np.float32)
    with gx.Worker(model, backend=backend) as worker:
        worker.run(x)
        worker.replace_weights({"two": np.float32(3)})
        np.testing.assert_array_equal(worker.schedule(x).outputs["y"].readback_and_clone(), np.full((2, 3), 2 + 3))


def test_weights_in_bodies_are_replaced(backend: Backend) -> None:
    model = gx.load(parser.parse_model(IN_BODY))
    x = np.zeros(2, np.float32)
    with gx.Worker(model, backend=backend) as worker:
        worker.run({"x": x, "c": np.array(False)})
        worker.replace_weights({"v": np.array([7, 8], np.float32)})
        assert np.asarray(worker.run({"x": x, "c": np.array(False)})[0]).tolist() == [7, 8]
        assert np.asarray(worker.run({"x": x, "c": np.array(True)})[0]).tolist() == [1, 2]


@pytest.mark.parametrize("kind", ["fp16", "int8"])
def test_a_compressed_model_goes_on_with_another_one(kind: str, backend: Backend) -> None:
    model = two_layers()
    wanted = model.with_weights({"first": OTHER}).compress_weights(kind)
    with gx.Worker(wanted, backend=backend) as worker:
        expected = worker.run(X)[0]
    with gx.Worker(model.compress_weights(kind), backend=backend) as worker:
        assert not np.array_equal(worker.run(X)[0], expected)
        before = worker.memory_stats()["weights"]
        worker.replace_weights(wanted)
        np.testing.assert_array_equal(worker.run(X)[0], expected)
        assert worker.memory_stats()["weights"] == before


def test_a_model_loaded_anew_gives_its_weights(backend: Backend, tmp_path: Path) -> None:
    model = gx.load(parser.parse_model(IN_BODY))
    model.with_weights({"v": np.array([7, 8], np.float32)}).save(tmp_path / "other.onnx")
    model.save(tmp_path / "first.onnx")
    inputs = {"x": np.zeros(2, np.float32), "c": np.array(False)}
    with gx.Worker(gx.load(tmp_path / "first.onnx"), backend=backend) as worker:
        assert np.asarray(worker.run(inputs)[0]).tolist() == [3, 4]
        worker.replace_weights(gx.load(tmp_path / "other.onnx"))
        assert np.asarray(worker.run(inputs)[0]).tolist() == [7, 8]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"third": OTHER}, "the model has no weight 'third'. It has first, second"),
        ({"first": OTHER.T}, r"'first' is float32\[3, 5\], got float32\[5, 3\]"),
        ({"first": OTHER, "second": SECOND.astype(np.float64)}, r"'second' is float32\[5, 2\], got float64\[5, 2\]"),
        ({"first": OTHER, "no": SECOND, "second": OTHER}, "no weight 'no'; 'second' is"),
        ({}, "at least one"),
        (OTHER, "arrays by name"),
        (affine(), r"in more than weights: it takes x: float32\[n,3\]"),
        (sloping(2.0).compress_weights("fp16"), r"it computes Cast .*, expected MatMul 'first'"),
        (sloping(3.0), r"it computes LeakyRelu 'relu' \{'alpha': 3.0\} .*, expected LeakyRelu 'relu' \{'alpha': 2.0\}"),
    ],
)
def test_weights_that_do_not_fit_change_nothing(weights: Any, message: str, backend: Backend) -> None:
    with gx.Worker(sloping(2.0), backend=backend) as worker:
        before = worker.run(X)[0]
        with pytest.raises(gx.InputError, match=message):
            worker.replace_weights(weights)
        np.testing.assert_array_equal(worker.run(X)[0], before)


def test_a_name_that_two_bodies_have_is_refused() -> None:
    model = gx.load(parser.parse_model(IN_BODY.replace("v =", "w =").replace("(x, v)", "(x, w)")))
    with pytest.raises(gx.InputError, match="2 bodies have a weight 'w'"):
        model.with_weights({"w": np.zeros(2, np.float32)})


def test_weights_wait_for_a_run_that_is_half_scheduled(backend: Backend) -> None:
    with gx.Worker(two_layers(), backend=backend) as worker:
        steps = worker.schedule_iterable(X)
        next(steps)
        with pytest.raises(gx.StateError, match="Run 0 is half scheduled"):
            worker.replace_weights({"first": OTHER})
        assert list(steps)
        np.testing.assert_array_equal(worker.read_output(), expect(FIRST))


def test_the_callers_arrays_are_copied(backend: Backend) -> None:
    mine = OTHER.copy()
    with gx.Worker(two_layers(), backend=backend) as worker:
        worker.replace_weights({"first": mine})
        mine[:] = 0
        np.testing.assert_array_equal(worker.run(X)[0], expect(OTHER))


def test_weights_of_another_byte_order_are_taken(backend: Backend) -> None:
    with gx.Worker(two_layers(), backend=backend) as worker:
        worker.replace_weights({"first": OTHER.astype(">f4")})
        np.testing.assert_array_equal(worker.run(X)[0], expect(OTHER))
