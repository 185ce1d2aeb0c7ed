"""Declared upper bounds: planned at once for every size, laid out at the upper end, without reallocation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import gpuexec as gx
from gpuexec.devices.device import align
from gpuexec.devices.recorder.tracer import TracerDevice
from gpuexec.ir.command import HostCall
from gpuexec.ir.plan import Plan
from tests.model.small_models import CPU, make_tracer, trace

DIGITS = Path(__file__).resolve().parents[2] / "examples/models/digits.onnx"
SIZES = (3, 8, 1, 5, 8, 2, 7, 4, 6, 1)
FRAMES = 2


def draw(rows: int) -> np.ndarray[Any, Any]:
    """Return pictures for the digits model."""
    return np.random.default_rng(rows).random((rows, 1, 8, 8), np.float32)


def make_joined() -> bytes:
    """Return a model of two dimensions that are tied: past ``[batch, past]`` and new ``[batch, 1]`` make a total."""
    nodes = [
        helper.make_node("Concat", ["past", "new"], ["all"], axis=1, name="join"),
        helper.make_node("Exp", ["all"], ["raised"], name="raise"),
        helper.make_node("Sub", ["raised", "mask"], ["left"], name="mask"),
        helper.make_node("Softmax", ["left"], ["y"], axis=1, name="share"),
    ]
    shapes = {"past": ["batch", "past"], "new": ["batch", 1], "mask": ["batch", "total"]}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "total"])]
    graph = helper.make_graph(nodes, "joined", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    content: bytes = model.SerializeToString()
    return content


def find_plan(model: gx.Model, inputs: Any) -> Plan:
    """Return the plan for these inputs, as a Worker of its own makes it."""
    with gx.Worker(model, backend=make_tracer()) as worker:
        plan = worker.prepare(inputs)
        assert plan is not None
        return plan


def test_what_is_planned_at_once_serves_every_size_up_to_the_bound() -> None:
    backend = make_tracer()
    exact = find_plan(gx.load(DIGITS, dims={"batch": 8}), draw(8))
    with gx.Worker(gx.load(DIGITS, dims={"batch": (1, 8)}), backend=backend, frames=FRAMES) as worker:
        planned: set[int] = set()
        for rows in SIZES:
            worker.run(draw(rows))
            assert worker.memory_stats()["arena"] == exact.layout.nbytes + exact.counters_nbytes
            planned.add(worker.report().plans)
        assert len(planned) == 1  # one for each class with kernels of its own
        assert worker.report().variants <= len(set(SIZES))
        assert max(plan.layout.nbytes for plan in worker.plans) == exact.layout.nbytes > 0


@pytest.mark.parametrize("order", [SIZES, tuple(sorted(SIZES)), tuple(sorted(SIZES, reverse=True))])
def test_nothing_is_allocated_once_every_frame_was_used(order: tuple[int, ...]) -> None:
    backend = make_tracer()
    assert isinstance(backend.device, TracerDevice)
    with gx.Worker(gx.load(DIGITS, dims={"batch": (1, 8)}), backend=backend, frames=FRAMES) as worker:
        for rows in order[:FRAMES]:
            worker.schedule(draw(rows))
        before, held = trace(backend).count("allocate"), worker.memory_stats()
        loaded = len(backend.device.loaded)
        for rows in order[FRAMES:]:
            worker.schedule(draw(rows))
        assert trace(backend).count("allocate") == before > 0
        assert len(backend.device.loaded) == loaded
        now = worker.memory_stats()
        assert {name: now[name] for name in ("arena", "frames", "weights")} == {
            name: held[name] for name in ("arena", "frames", "weights")
        }


def test_every_size_gives_what_a_plan_of_its_own_gives() -> None:
    with gx.Worker(gx.load(DIGITS, dims={"batch": (1, 8)}), backend=CPU) as worker:
        for rows in SIZES:
            with gx.Worker(gx.load(DIGITS, dims={"batch": rows}), backend=CPU) as own:
                np.testing.assert_array_equal(worker.run(draw(rows)), own.run(draw(rows)))
        assert worker.report().plans == 1


def test_batch_of_one_takes_the_plan_though_its_slots_are_dense() -> None:
    nodes = [
        helper.make_node("Split", ["x"], ["left", "right"], axis=1, num_outputs=2, name="split"),
        helper.make_node("Concat", ["right", "left"], ["turned"], axis=1, name="join"),
        helper.make_node("Exp", ["turned"], ["y"], name="raise"),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 6])]
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width])
        for name, width in (("y", 6), ("right", 3))
    ]
    graph = helper.make_graph(nodes, "turned", inputs, outputs)
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    for backend in (CPU, gx.BackendType.SIMULATOR):
        # A region would join axes of one row, and so have a plan for that.
        model = gx.load(data, dims={"batch": (1, 4)}, disabled_passes=["fuse_regions"])
        with gx.Worker(model, backend=backend) as worker:
            for rows in (4, 1, 3):
                x = np.arange(6 * rows, dtype=np.float32).reshape(rows, 6) / 16
                y, right = worker.run(x)
                np.testing.assert_allclose(y, np.exp(np.concatenate([x[:, 3:], x[:, :3]], 1)), rtol=1e-6)
                np.testing.assert_array_equal(right, x[:, 3:])
            assert worker.report().plans == 1


def test_bounds_of_tied_dimensions_hold_together() -> None:
    dims = {"batch": (1, 4), "past": (1, 300), "total": (2, 301)}
    apart = ["fuse_rows"]  # one launch would do it all, without an arena
    exact = find_plan(
        gx.load(make_joined(), dims={"batch": 4, "past": 300, "total": 301}, disabled_passes=apart),
        {"past": (4, 300), "new": (4, 1), "mask": (4, 301)},
    )
    rng = np.random.default_rng(0)
    with gx.Worker(gx.load(make_joined(), dims=dims, disabled_passes=apart), backend=CPU) as worker:
        for batch, past in ((1, 1), (4, 300), (2, 17), (3, 299), (1, 50)):
            given = {
                name: rng.random((batch, extent), np.float32)
                for name, extent in (("past", past), ("new", 1), ("mask", past + 1))
            }
            left = np.exp(np.concatenate([given["past"], given["new"]], 1)) - given["mask"]
            raised = np.exp(left - left.max(1, keepdims=True))
            np.testing.assert_allclose(worker.run(given)[0], raised / raised.sum(1, keepdims=True), rtol=1e-5)
        assert worker.report().plans == 1
        # Prepared calls of the CPU work in scratch besides.
        calls = [command for command in worker.plans[0].segment.commands if isinstance(command, HostCall)]
        scratch = sum(align(slot.spec.nbytes) for call in calls for slot in call.scratch)
        assert worker.plans[0].layout.nbytes - scratch <= exact.layout.nbytes <= worker.plans[0].layout.nbytes


@pytest.mark.parametrize("rows", [0, 9])
def test_size_beyond_the_bound_is_refused_and_the_worker_goes_on(rows: int) -> None:
    with gx.Worker(gx.load(DIGITS, dims={"batch": (1, 8)}), backend=CPU) as worker:
        expected = worker.run(draw(8))
        with pytest.raises(gx.InputError, match=rf"got float32\[{rows},1,8,8\]: axis 0 must be 1 to 8"):
            worker.run(draw(rows))
        np.testing.assert_array_equal(worker.run(draw(8)), expected)
