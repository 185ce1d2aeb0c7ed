"""Predictions of plans: totals, the order of commands, what they share, and what L2 keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

import gpuexec as gx
from gpuexec.ir.command import Command, Copy, Kernel, Launch, Slot
from gpuexec.ir.gpus import find_gpu
from gpuexec.ir.plan import ArenaLayout, Buffer, Plan, Role, Segment
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.planner.prediction import PlanPrediction, predict_plan
from gpuexec.planner.template import plan_graph
from gpuexec.planner.time_model import TimeModel
from tests.model.small_models import make_model

F16, F32, I32 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.int32)
MODEL = TimeModel()
BEGIN_US = MODEL.node_us + MODEL.fill_us
MIB = 1 << 20


def slot(buffer: int, nbytes: int) -> Slot:
    return Slot(buffer, 0, TensorSpec((nbytes // 4,), F32), (1,))


def launch(blocks: int, *reads: Slot, into: Slot) -> Launch:
    """Return a launch of a kernel that no form is known of."""
    arguments = (*reads, into)
    return Launch(Kernel("unknown.cu", "mix"), (blocks, 1, 1), (256, 1, 1), arguments, (len(reads),))


def make_plan(commands: Sequence[Command], edges: list[tuple[int, int]], buffers: list[int]) -> Plan:
    """Return a plan over weights of these sizes."""
    rows = tuple(Buffer(index, Role.CONSTANT, nbytes, f"w{index}") for index, nbytes in enumerate(buffers))
    segment = Segment(tuple(commands), tuple(edges), tuple(f"n{index}" for index in range(len(commands))))
    return Plan("sm_90", rows, ArenaLayout((), 0, 0), segment, (), ())


def predict(blocks: int, nbytes: int, edges: list[tuple[int, int]]) -> PlanPrediction:
    """Predict two launches, each over a buffer of its own."""
    buffers = [nbytes] * 4
    commands = [launch(blocks, slot(2 * i, nbytes), into=slot(2 * i + 1, nbytes)) for i in range(2)]
    return predict_plan(make_plan(commands, edges, buffers))


def test_a_chain_takes_the_time_of_each_and_a_node_for_each() -> None:
    chain = predict(1, 64, [(0, 1)])
    assert chain.predicted_us == pytest.approx(sum(each.predicted_us for each in chain.commands))
    assert chain.predicted_us >= 2 * BEGIN_US


def test_small_commands_that_nothing_orders_run_side_by_side() -> None:
    both = predict(1, 64, [])
    assert both.predicted_us == pytest.approx(both.commands[0].predicted_us)


def test_commands_side_by_side_get_no_more_than_the_device_has() -> None:
    nbytes = 256 * MIB
    both, chain = predict(nbytes // 4096, nbytes, []), predict(nbytes // 4096, nbytes, [(0, 1)])
    alone = both.commands[0].predicted_us
    assert 1.9 * alone < both.predicted_us < chain.predicted_us == pytest.approx(2 * alone)
    assert {each.bound_by for each in both.commands} == {"dram"}


def test_what_fits_into_l2_is_not_read_again() -> None:
    small, large = predict(64, MIB, [(0, 1)]), predict(64, 64 * MIB, [(0, 1)])
    assert [each.dram_nbytes for each in small.commands] == [0, 0]
    assert sum(each.dram_nbytes for each in large.commands) == pytest.approx(large.moved_nbytes, rel=0.01)


def test_a_command_shorter_than_its_begin_is_bound_by_it() -> None:
    (row, _) = predict(1, 64, []).commands
    assert row.bound_by == "launch"
    assert (row.kernel, row.origin, row.blocks, row.nbytes) == ("unknown.cu:mix", "n0", 1, 128)


def plan_product(rows: int, inner: int, columns: int, target: str = "sm_90", dtype: np.dtype[Any] = I32) -> Plan:
    """Return the plan of a product; those of integers have tiles of 64 x 64 and one slice."""
    x, y = (helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), None) for name in "xy")
    w = numpy_helper.from_array(np.zeros((inner, columns), dtype), "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [w])
    model = gx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    return plan_graph(model.graph, {"x": TensorSpec((rows, inner), dtype)}, Target.named(target)).plan


def test_totals_of_a_product() -> None:
    found = predict_plan(plan_product(128, 768, 768))
    nbytes = 4 * (128 * 768 + 768 * 768 + 128 * 768)
    assert (found.launches, found.flops) == (1, 2 * 128 * 768 * 768)
    assert found.moved_nbytes == found.minimum_nbytes == nbytes
    assert found.gpu == find_gpu(90)
    assert found.floor_us == pytest.approx(max(nbytes / 3.35e12, found.flops / 59.3e12) * 1e6, rel=1e-3)
    assert found.predicted_us > found.floor_us


def test_floor_of_a_product_of_halves_is_that_of_tensor_cores() -> None:
    found = predict_plan(plan_product(4096, 4096, 4096, dtype=F16))
    assert found.floor_us == pytest.approx(2 * 4096**3 / 948.9e12 * 1e6, rel=1e-3)
    assert found.floor_us < found.predicted_us < 1.7 * found.floor_us
    assert found.commands[-1].bound_by == "l2"  # from where tensor cores are fed
    older = predict_plan(plan_product(4096, 4096, 4096, dtype=F16, target="sm_80"))
    assert older.floor_us < older.predicted_us < 1.5 * older.floor_us
    assert older.commands[-1].bound_by == "tensor"


def test_few_tiles_with_a_long_sum_leave_a_gpu_idle() -> None:
    (row,) = predict_plan(plan_product(128, 768, 768)).commands
    assert (row.blocks, row.bound_by) == (24, "issue")  # few warps issue slowly
    assert row.waves < 0.1
    whole = predict_plan(plan_product(1024, 768, 768))  # eight times the work
    assert whole.predicted_us < 2 * row.predicted_us


def test_a_launch_that_waits_itself_begins_early_behind_another() -> None:
    plan = make_plan([launch(1, slot(2 * i, 64), into=slot(2 * i + 1, 64)) for i in range(2)], [(0, 1)], [64] * 4)
    early, late = predict_plan(plan, waits=lambda kernel: True), predict_plan(plan, waits=lambda kernel: False)
    assert [row.is_early for row in early.commands] == [False, True]
    assert (early.early, late.early) == (1, 0) and late == predict_plan(plan)
    assert late.predicted_us - early.predicted_us == pytest.approx(MODEL.node_us - MODEL.early_us)
    assert early.predicted_us == pytest.approx(sum(row.predicted_us for row in early.commands))


@pytest.mark.parametrize("is_copy", [False, True])
def test_a_launch_behind_anything_but_launches_begins_in_order(is_copy: bool) -> None:
    first, last = (launch(1, slot(0, 64), into=slot(each, 64)) for each in (1, 3))
    before = Copy(slot(0, 64), slot(2, 64)) if is_copy else replace(first, cooperative=True)
    found = predict_plan(make_plan([before, last], [(0, 1)], [64] * 4), waits=lambda kernel: True)
    assert found.early == 0 and found.commands[1].begin_us == MODEL.node_us


def test_a_launch_behind_both_kinds_begins_when_both_allow() -> None:
    nbytes = 64 * MIB
    commands = [
        launch(1, slot(0, 64), into=slot(1, 64)),
        Copy(slot(2, nbytes), slot(3, nbytes)),
        launch(1, slot(1, 64), into=slot(4, 64)),
    ]
    found = predict_plan(make_plan(commands, [(0, 2), (1, 2)], [64, 64, nbytes, nbytes, 64]), waits=lambda kernel: True)
    _, copy, last = found.commands
    assert last.is_early and last.begin_us == MODEL.early_us
    assert found.predicted_us == pytest.approx(
        copy.predicted_us + MODEL.node_us + last.predicted_us - last.begin_us, rel=1e-3
    )


def test_an_older_gpu_is_slower() -> None:
    times = [predict_plan(plan_product(512, 512, 512, name)).predicted_us for name in ("sm_75", "sm_80", "sm_90")]
    assert times == sorted(times, reverse=True)


def test_a_variant_is_predicted_by_its_own_commands() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = make_model(nodes, {"x": ["rows", 64]}, {"y": ["rows", 64]}, w=np.zeros((64, 64), np.float32))
    template = plan_graph(model.graph, {"x": TensorSpec((700, 64), F32)}, Target.named("sm_90"), model.dims)
    variant = template.specialise({"x": TensorSpec((520, 64), F32)})
    assert predict_plan(template.plan, variant.commands).flops == 2 * 520 * 64 * 64


def test_constants_of_the_model_change_the_time() -> None:
    plan = plan_product(128, 768, 768)
    slow = predict_plan(plan, model=TimeModel(issue=3.0))
    assert slow.predicted_us > 2 * predict_plan(plan).predicted_us
