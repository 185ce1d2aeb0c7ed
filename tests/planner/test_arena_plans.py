"""Arenas of planned models: layout before a run, and its verification."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.errors import PlanError
from gpuexec.ir.arena_drawing import ARENA_ALIGNMENT
from gpuexec.ir.command import Launch
from gpuexec.ir.plan import Plan, Role
from gpuexec.planner.arena import Lifetime, pack
from gpuexec.planner.verify import verify
from tests.model.small_models import make_model, two_layers
from tests.planner.towers import plan_of, tower, tower_proto

FLOAT = np.dtype(np.float32)


@pytest.mark.feature("B49", "E31", "E24")
def test_bytes_are_used_again_after_the_last_reader() -> None:
    plan = plan_of(tower(12), (64, 64))
    one = 64 * 64 * 4
    temporary = sum(buffer.nbytes for buffer in plan.buffers if buffer.role is Role.TEMP)
    assert temporary >= 11 * one and plan.layout.nbytes == plan.layout.lower_bound == 2 * one


@pytest.mark.feature("B49")
def test_inputs_and_outputs_lie_outside_the_arena() -> None:
    plan = plan_of(tower(4), (64, 64))
    offsets = plan.layout.as_dict()
    for port in (*plan.inputs, *plan.outputs):
        assert port.buffer is not None and port.buffer not in offsets


@pytest.mark.feature("E29")
def test_upper_bounds_of_free_sizes_come_before_the_layout() -> None:
    model = gx.load(tower_proto(), dims={"n": (1, 100)})
    at_bound, smaller = plan_of(model, (100, 64)), plan_of(model, (3, 64))
    assert smaller.layout == at_bound.layout
    assert smaller.layout.nbytes == 2 * 100 * 64 * 4


@pytest.mark.feature("E30")
def test_several_layouts_are_tried_and_the_smallest_taken() -> None:
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


@pytest.mark.feature("E31")
def test_buffers_alive_together_share_no_byte_and_lie_aligned() -> None:
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
    assert {offset % ARENA_ALIGNMENT for offset in packing.offsets.values()} == {0} and ARENA_ALIGNMENT == 256


@pytest.mark.feature("E32")
def test_the_verifier_refuses_a_layout_that_overlaps() -> None:
    plan = plan_of(tower(5), (64, 64))
    verify(plan)
    offsets = plan.layout.as_dict()
    assert len(set(offsets.values())) == 2
    for wrong in (dict.fromkeys(offsets, 0), {key: offset + 4 for key, offset in offsets.items()}):
        with pytest.raises(PlanError):
            verify(replace(plan, layout=replace(plan.layout, offsets=tuple(wrong.items()))))


@pytest.mark.feature("E34")
def test_every_buffer_has_a_role() -> None:
    plan = plan_of(tower(5), (64, 64), "sm_90")
    by_role = {role: sum(buffer.role is role for buffer in plan.buffers) for role in Role}
    assert (by_role[Role.INPUT], by_role[Role.OUTPUT], by_role[Role.CONSTANT], by_role[Role.TEMP]) == (1, 1, 1, 4)


@pytest.mark.feature("E36")
def test_one_planner_lays_out_an_arena_for_each_target() -> None:
    plans = {target: plan_of(two_layers(), (64, 3), target) for target in ("cpu", "sm_80", "sm_90")}
    for target, plan in plans.items():
        verify(plan)
        assert plan.target.startswith(target)
        assert all(isinstance(command, Launch) for command in plan.segment.commands) == (target != "cpu")
    assert plans["cpu"].layout == plans["sm_90"].layout


@pytest.mark.feature("E39")
def test_results_take_the_bytes_of_inputs_read_for_the_last_time() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Neg", ["b"], ["c"]),
        helper.make_node("MatMul", ["c", "w"], ["y"]),
    ]
    model = make_model(nodes, {"x": ("n", 64)}, {"y": ("n", 64)}, w=np.eye(64, dtype=np.float32))
    assert plan_of(model, (64, 64)).layout.nbytes == 64 * 64 * 4


@pytest.mark.feature("B48", "E24")
def test_scratch_of_a_layer_is_the_next_layers() -> None:
    def sorts(count: int) -> Plan:
        # More than a tile to sort takes scratch, and so do the positions that nobody wants.
        names = ["x", *(f"v{i}" for i in range(count - 1)), "y"]
        nodes = [helper.make_node("TopK", [a, "all"], [b]) for a, b in itertools.pairwise(names)]
        return plan_of(make_model(nodes, {"x": (8, 9000)}, {"y": (8, 9000)}, all=np.array([9000])), (8, 9000), "sm_90")

    one = 8 * 9000 * 4 + ARENA_ALIGNMENT
    scratch = sorts(1).layout.nbytes
    assert scratch > one
    assert sorts(2).layout.nbytes <= one + scratch and sorts(6).layout.nbytes <= 2 * one + scratch
