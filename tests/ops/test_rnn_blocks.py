"""Grid size of a large recurrent layer: as many blocks as the device runs at once, with equal results."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Region
from gpuexec.devices.recorder.tracer import TracerDevice
from gpuexec.devices.recording import record_launches
from gpuexec.errors import KernelError
from gpuexec.ir.command import Launch
from gpuexec.ir.plan import Plan, Role
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.planner.template import plan_graph
from gpuexec.program.building import build_contents
from tests.devices.opening import make_simulator
from tests.model.small_models import Array, make_model

STEPS, BATCH, WIDTH, HIDDEN = 3, 2, 4, 60
SLICES = 2 * 8  # of 8 units, in both directions
SPECS = {"x": TensorSpec((STEPS, BATCH, WIDTH), np.dtype(np.float32))}
X = np.random.default_rng(0).standard_normal((STEPS, BATCH, WIDTH)).astype(np.float32)


def load_layer() -> gx.Model:
    """Return a model of one GRU, large by saying no hidden_size."""
    rng = np.random.default_rng(1)
    shapes = {"w": (2, 3 * HIDDEN, WIDTH), "r": (2, 3 * HIDDEN, HIDDEN)}
    weights: dict[str, Any] = {
        name: (rng.standard_normal(shape) * 0.1).astype(np.float32) for name, shape in shapes.items()
    }
    node = helper.make_node("GRU", ["x", "w", "r"], ["y"], name="layer", direction="bidirectional")
    return make_model([node], {"x": (STEPS, BATCH, WIDTH)}, {"y": (STEPS, 2, BATCH, HIDDEN)}, **weights)


def make_plan(multiprocessors: int | None = None) -> Plan:
    return plan_graph(load_layer().graph, SPECS, Target.named("sm_80", multiprocessors)).plan


def find_together(plan: Plan) -> Launch:
    """Return the cooperative launch of a plan."""
    (found,) = (each for each in plan.segment.commands if isinstance(each, Launch) and each.cooperative)
    return found


def make_backend(multiprocessors: int) -> Backend:
    device = make_simulator(multiprocessors=multiprocessors)
    # A graph costs less than the few launches there are.
    device.launch_costs = dataclasses.replace(device.launch_costs, launch_us=10.0)
    return Backend(device, gx.BackendType.SIMULATOR, "for a test")


@pytest.mark.parametrize(
    ("multiprocessors", "blocks"), [(1, 2), (3, 6), (7, 14), (8, SLICES), (132, SLICES), (None, SLICES)]
)
def test_blocks_follow_the_device_planned_for(multiprocessors: int | None, blocks: int) -> None:
    assert find_together(make_plan(multiprocessors)).grid == (blocks, 1, 1)


def test_small_and_large_devices_differ_in_blocks_alone() -> None:
    small, large = make_plan(3), make_plan(132)
    alike = [
        dataclasses.replace(each, grid=(1, 1, 1)) if isinstance(each, Launch) and each.cooperative else each
        for each in small.segment.commands
    ]
    assert [*map(str, alike)] != [*map(str, large.segment.commands)]
    together = find_together(large)
    assert alike == [dataclasses.replace(e, grid=(1, 1, 1)) if e is together else e for e in large.segment.commands]
    assert (small.layout, small.buffers) == (large.layout, large.buffers)


def test_targets_of_other_sizes_are_other_targets() -> None:
    assert Target.named("sm_80", 3) != Target.named("sm_80", 132)
    assert Target.named("sm_80", 14) == Target.named("sm_80"), "the smallest device of the architecture"


def run_often(multiprocessors: int) -> tuple[list[Array], gx.Report]:
    """Return what some runs gave on a device, the last of them as a graph, and the report."""
    with gx.Worker(load_layer(), backend=make_backend(multiprocessors)) as worker:
        results = []
        for _ in range(5):
            worker.schedule(X)
            results.append(worker.read_output("y"))
        return results, worker.report()


def test_every_device_computes_the_same_bits_and_launches_a_graph() -> None:
    (small, small_report), (large, large_report) = run_often(2), run_often(40)
    for result in (*small, *large):
        np.testing.assert_array_equal(result, small[0])
    assert small_report.graphs == large_report.graphs == 1
    with gx.Worker(load_layer(), backend=gx.BackendType.CPU) as worker:
        worker.schedule(X)
        np.testing.assert_allclose(small[0], worker.read_output("y"), rtol=1e-5, atol=1e-6)


def test_plan_of_a_larger_device_is_refused_by_name_where_it_is_recorded() -> None:
    plan, device = make_plan(132), TracerDevice("sm_80", multiprocessors=2)
    device.load(plan.kernels())
    places = {b.id: Region(device.allocate(b.nbytes), 0, b.nbytes) for b in plan.buffers if b.role is not Role.INPUT}
    message = rf"rnn.cu:recur<float>: a cooperative grid of {SLICES} blocks does not fit: the device holds 12 at once"
    with pytest.raises(KernelError, match=message):
        record_launches(device, plan.segment, places)
    assert Counter(row[0] for row in device.log)["cooperative launch"] == 0


@pytest.mark.parametrize(("multiprocessors", "restored"), [(2, 0), (14, 1)])
def test_stored_plan_is_made_anew_for_a_device_of_another_size(multiprocessors: int, restored: int) -> None:
    model = build_contents({"m": load_layer()}, architectures=["sm_80"]).methods["m"].model
    with gx.Worker(model, backend=make_backend(multiprocessors)) as worker:
        worker.schedule(X)
        worker.read_output("y")
        (plan,), report = worker.plans, worker.report()
    assert find_together(plan).grid == (min(2 * multiprocessors, SLICES), 1, 1)
    assert report.plans_restored == restored
    assert len(report.plans_refused) == 1 - restored
