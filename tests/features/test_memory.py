"""Rows on memory: planning and checking an arena, what is used again, what is kept, and what is given back."""

from __future__ import annotations

import gc
import itertools
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.cli import main
from gpuexec.command import Launch
from gpuexec.errors import PlanError
from gpuexec.plan import Plan, Role
from gpuexec.planner.arena import ALIGNMENT, Lifetime, pack
from gpuexec.planner.template import plan_graph
from gpuexec.planner.verify import verify
from gpuexec.resources.pool import ExchangePool
from gpuexec.runtime.backend import Backend
from gpuexec.spec import TensorSpec
from gpuexec.target import Target
from tests.features.held import held_worker, holding
from tests.features.marks import on
from tests.small_models import affine, expect_affine, make_model, ramp, trace, two_layers
from tests.staged_models import MODELS, inputs

FLOAT = np.dtype(np.float32)


def tower(height: int, side: int = 64) -> gx.Model:
    """A chain of products, whose results can't be made in place."""
    nodes = [
        helper.make_node(
            "MatMul", [f"v{i}" if i else "x", "w"], ["y" if i == height - 1 else f"v{i + 1}"], name=f"m{i}"
        )
        for i in range(height)
    ]
    return make_model(nodes, {"x": ("n", side)}, {"y": ("n", side)}, w=np.eye(side, dtype=np.float32))


def plan_of(model: gx.Model, shape: tuple[int, ...], target: str = "cpu") -> Plan:
    specs = {value.name: TensorSpec(shape, FLOAT) for value in model.graph.inputs}
    return plan_graph(model.graph, specs, Target.named(target), model.dims).plan


# ---- planning


def test_b49_e31_e24_bytes_are_used_again_after_the_last_reader() -> None:
    plan = plan_of(tower(12), (64, 64))
    one = 64 * 64 * 4
    temporary = sum(buffer.nbytes for buffer in plan.buffers if buffer.role is Role.TEMP)
    assert temporary >= 11 * one and plan.layout.nbytes == plan.layout.lower_bound == 2 * one


def test_b49_inputs_and_outputs_lie_outside_the_arena() -> None:
    plan = plan_of(tower(4), (64, 64))
    offsets = plan.layout.as_dict()
    for port in (*plan.inputs, *plan.outputs):
        assert port.buffer is not None and port.buffer not in offsets


def test_e29_upper_bounds_of_free_sizes_come_before_the_layout() -> None:
    model = gx.load(_tower_proto(), dims={"n": (1, 100)})
    at_bound, smaller = plan_of(model, (100, 64)), plan_of(model, (3, 64))
    assert smaller.layout == at_bound.layout
    assert smaller.layout.nbytes == 2 * 100 * 64 * 4


def _tower_proto() -> object:
    nodes = [helper.make_node("MatMul", [a, "w"], [b]) for a, b in itertools.pairwise(["x", "a", "b", "c", "y"])]
    graph = helper.make_graph(
        nodes,
        "tower",
        [helper.make_tensor_value_info("x", 1, ("n", 64))],
        [helper.make_tensor_value_info("y", 1, ("n", 64))],
        [helper.make_tensor("w", 1, (64, 64), np.eye(64, dtype=np.float32).tobytes(), raw=True)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


def test_e30_several_layouts_are_tried_and_the_smallest_taken() -> None:
    # First fit by size wastes bytes here; by start it does not, and the other way round.
    by_size = [Lifetime(0, 512, 0, 2), Lifetime(1, 256, 1, 4), Lifetime(2, 512, 3, 6), Lifetime(3, 768, 5, 7)]
    random = np.random.default_rng(5)
    starts = random.integers(0, 30, 40)
    many = [
        Lifetime(i, int(random.integers(1, 9)) * 256, int(start), int(start + random.integers(1, 8)))
        for i, start in enumerate(starts)
    ]
    found = [pack(lifetimes) for lifetimes in (by_size, many)]
    for lifetimes, packing in zip((by_size, many), found, strict=True):
        assert packing.nbytes == max(packing.offsets[each.buffer] + each.nbytes for each in lifetimes)
        assert packing.lower_bound <= packing.nbytes <= 1.1 * packing.lower_bound
        assert packing.order


def test_e31_buffers_alive_together_share_no_byte_and_lie_aligned() -> None:
    random = np.random.default_rng(2)
    lifetimes = [
        Lifetime(i, int(random.integers(1, 3000)), int(first), int(first + random.integers(1, 10)))
        for i, first in enumerate(random.integers(0, 40, 60))
    ]
    packing = pack(lifetimes)
    for one, other in itertools.combinations(lifetimes, 2):
        a, b = packing.offsets[one.buffer], packing.offsets[other.buffer]
        if one.first < other.last and other.first < one.last:
            assert a + one.nbytes <= b or b + other.nbytes <= a
    assert {offset % ALIGNMENT for offset in packing.offsets.values()} == {0} and ALIGNMENT == 256


def test_e32_the_verifier_refuses_a_layout_that_overlaps() -> None:
    plan = plan_of(tower(5), (64, 64))
    verify(plan)
    offsets = plan.layout.as_dict()
    assert len(set(offsets.values())) == 2
    for wrong in (dict.fromkeys(offsets, 0), {key: offset + 4 for key, offset in offsets.items()}):
        with pytest.raises(PlanError):
            verify(replace(plan, layout=replace(plan.layout, offsets=tuple(wrong.items()))))


def test_e34_every_buffer_has_a_role() -> None:
    plan = plan_of(tower(5), (64, 64), "sm_90")
    by_role = {role: sum(buffer.role is role for buffer in plan.buffers) for role in Role}
    assert (by_role[Role.INPUT], by_role[Role.OUTPUT], by_role[Role.CONSTANT], by_role[Role.TEMP]) == (1, 1, 1, 4)


def test_e36_one_planner_lays_out_an_arena_for_each_target() -> None:
    plans = {target: plan_of(two_layers(), (64, 3), target) for target in ("cpu", "sm_80", "sm_90")}
    for target, plan in plans.items():
        verify(plan)
        assert plan.target.startswith(target)
        assert all(isinstance(command, Launch) for command in plan.segment.commands) == (target != "cpu")
    assert plans["cpu"].layout == plans["sm_90"].layout


def test_e39_results_take_the_bytes_of_inputs_read_for_the_last_time() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Neg", ["b"], ["c"]),
        helper.make_node("MatMul", ["c", "w"], ["y"]),
    ]
    model = make_model(nodes, {"x": ("n", 64)}, {"y": ("n", 64)}, w=np.eye(64, dtype=np.float32))
    assert plan_of(model, (64, 64)).layout.nbytes == 64 * 64 * 4


def test_b48_e24_scratch_of_a_layer_is_the_next_layers() -> None:
    def sorts(count: int) -> Plan:
        # More than a tile to sort takes scratch, and so do the positions that nobody wants.
        names = ["x", *(f"v{i}" for i in range(count - 1)), "y"]
        nodes = [helper.make_node("TopK", [a, "all"], [b]) for a, b in itertools.pairwise(names)]
        return plan_of(make_model(nodes, {"x": (8, 9000)}, {"y": (8, 9000)}, all=np.array([9000])), (8, 9000), "sm_90")

    one = 8 * 9000 * 4 + ALIGNMENT
    scratch = sorts(1).layout.nbytes
    assert scratch > one
    assert sorts(2).layout.nbytes <= one + scratch and sorts(6).layout.nbytes <= 2 * one + scratch


# ---- running


def test_e37_t13_inputs_survive_runs(backend: Backend) -> None:
    x = ramp(64, 64)
    with gx.Worker(tower(6), backend=backend) as worker:
        np.testing.assert_array_equal(worker.run(x), x)
        for _ in range(3):
            np.testing.assert_array_equal(worker.run(), x)
    with gx.Worker(affine(), backend=backend) as producer, gx.Worker(tower(6, 3), backend=backend) as worker:
        y = producer.schedule(ramp(4, 3)).peek_output()
        for _ in range(3):
            np.testing.assert_array_equal(worker.run(y), expect_affine(ramp(4, 3)))
        np.testing.assert_array_equal(y.readback_and_clone(), expect_affine(ramp(4, 3)))


@on("tracer")
def test_b47_blocks_are_lent_again_the_best_fit_first(backend: Backend) -> None:
    pool = ExchangePool(backend, backend.device.create_stream())
    lent = [pool.lend(nbytes) for nbytes in (300, 5000, 70000)]
    blocks = [each.memory for each in lent]
    held = pool.nbytes
    del lent
    assert pool.lend(400).memory is blocks[0] and pool.lend(6000).memory is blocks[1]
    again = [pool.lend(500), pool.lend(4097)]
    assert [each.memory for each in again] == blocks[:2] and pool.nbytes == held
    other = pool.lend(512)  # the smallest is taken, and the next is more than twice as large
    assert other.memory not in blocks and pool.nbytes > held
    del again, other
    pool.trim()
    assert pool.nbytes == 0
    pool.close()


def test_b47_runs_of_several_plans_allocate_nothing_once_warm(backend: Backend) -> None:
    with gx.Worker(MODELS["many"].load(), backend=backend) as worker:
        for number in (0, 1, 2, 0, 1, 2):
            worker.run(inputs(number))
        held = worker.memory_stats()["exchange"]
        assert held > 0
        for number in (2, 1, 0):
            worker.run(inputs(number))
        assert worker.memory_stats()["exchange"] == held


def test_s60_trim_gives_back_what_was_outgrown(backend: Backend) -> None:
    with gx.Worker(two_layers(), backend=backend) as worker:
        worker.run(ramp(2, 3))
        answer = worker.run(ramp(5000, 3))
        before = worker.memory_stats()
        worker.trim()
        after = worker.memory_stats()
        assert after["arena"] < before["arena"]
        np.testing.assert_array_equal(worker.run(ramp(5000, 3)), answer)


@on("tracer")
def test_s60_memory_of_smaller_sizes_is_used_again(backend: Backend) -> None:
    with gx.Worker(two_layers(), backend=backend) as worker:
        for rows in (500, 500, 3, 3):
            worker.schedule(ramp(rows, 3))
        before = trace(backend).count("allocate")
        for rows in (400, 7, 500, 3):
            worker.schedule(ramp(rows, 3))
        assert trace(backend).count("allocate") == before


def test_s37_memory_goes_to_others_when_its_readers_are_done(backend: Backend) -> None:
    with held_worker(affine(), backend) as (worker, gate):
        requests = [worker.schedule(ramp(2, 3) + i).peek_output().readback_request() for i in range(5)]
        gate.set()
        for i, request in enumerate(requests):
            np.testing.assert_array_equal(request.result(), expect_affine(ramp(2, 3) + i))


# ---- sizes


def test_e63_e64_sizes_up_to_the_bound_run_without_planning(backend: Backend) -> None:
    model = gx.load(_tower_proto(), dims={"n": (1, 64)})  # type: ignore[arg-type]
    with gx.Worker(model, backend=backend) as worker:
        for rows in (64, 1, 7, 33, 64):
            y = worker.schedule(ramp(rows, 64)).peek_output()
            assert y.shape == (rows, 64)
            np.testing.assert_array_equal(y.readback_and_clone(), ramp(rows, 64))
        assert worker.report().plans == 1
        (plan,) = worker.plans
        output = plan.outputs[0].buffer
        assert output is not None and plan.buffers[output].nbytes == 64 * 64 * 4
        for wrong, why in ((ramp(65, 64), "axis 0 must be 1 to 64"), (ramp(64), "1 axes, not 2")):
            with pytest.raises(gx.InputError, match=why):
                worker.schedule(wrong)
        np.testing.assert_array_equal(worker.run(ramp(2, 64)), ramp(2, 64))


def test_e64_s40_shapes_that_depend_on_data_have_a_bound_and_then_a_value(backend: Backend) -> None:
    staged, x = MODELS["read"], inputs(0)
    expected = staged.expect(x)[0]
    with gx.Worker(staged.load(), backend=backend) as worker, holding(worker._engine.stream) as gate:
        y = worker.schedule(x).peek_output()
        assert (y.max_shape, y.dtype, y.ndim) == ((2, x.size), expected.dtype, 2)
        with pytest.raises(gx.PendingError, match=r"await y\.ready\(\)"):
            _ = y.shape
        gate.set()
        np.testing.assert_array_equal(y.readback_and_clone(), expected)
        assert y.shape == y.max_shape == expected.shape


# ---- what is told of it


def test_e40_the_arena_is_drawn_over_time(tmp_path: Path) -> None:
    source = tmp_path / "tower.onnx"
    onnx.save(_tower_proto(), source)
    page = tmp_path / "tower.html"
    assert main(["explain", str(source), "--dims", "n=8", "--target", "sm_90", "--memory", str(page)]) == 0
    plan = plan_of(gx.load(source), (8, 64), "sm_90")
    drawn = [
        tuple(int(number) for number in found)
        for found in re.findall(r'data-buffer="(\d+)" data-offset="(\d+)" data-nbytes="(\d+)"', page.read_text())
    ]
    temporary = [buffer for buffer in plan.buffers if buffer.role is Role.TEMP]
    offsets = plan.layout.as_dict()
    assert drawn == [(buffer.id, offsets[buffer.id], buffer.nbytes) for buffer in temporary] and len(drawn) == 3


MAKERS: dict[str, Callable[[gx.Worker, gx.Program], Any]] = {
    "Worker": lambda worker, _: gx.Worker(worker.model, backend=worker.backend_type),
    "Method": lambda _, program: program.load_method("forward"),
    "Replay": lambda worker, _: worker.record((2, 3)),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_s57_what_was_never_closed_is_told_of_with_its_line(kind: str, backend: Backend) -> None:
    program = gx.Program.build({"forward": affine()}, backend=backend)
    make = MAKERS[kind]
    with gx.Worker(affine(), backend=backend) as worker, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ResourceWarning)
        make(worker, program).close()
        gc.collect()
        assert [row for row in told if row.filename == __file__] == []
        make(worker, program)
        gc.collect()
    own = [row for row in told if row.filename == __file__]
    assert [row.lineno for row in own] == [make.__code__.co_firstlineno]
    assert re.match(rf"A {kind} .*made at .*test_memory\.py:\d+, was never closed", str(own[0].message))
