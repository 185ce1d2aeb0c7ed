"""Fused groups: which commands one kernel could do, and the bytes that must move between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.ir.plan import Plan
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.passes import AT_PLAN, GENERATING, run_passes
from gpuexec.planner.fused_groups import FusedGroups, find_fused_groups
from gpuexec.planner.launch_work import describe_work, list_operands
from gpuexec.planner.template import plan_graph

SIDE = 64
NBYTES = SIDE * SIDE * 4  # of each tensor


def node(operator: str, inputs: str, output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(operator, inputs.split(), [output], name=output, **attributes)


def make_plan(
    nodes: Sequence[onnx.NodeProto],
    outputs: str = "y",
    shapes: Mapping[str, list[int]] | None = None,
    *,
    is_fused: bool = False,
) -> Plan:
    """Return the plan of nodes over square inputs named by single letters up to ``h``, and weights ``w`` and ``u``."""
    given = {
        name: (shapes or {}).get(name, [SIDE, SIDE]) for each in nodes for name in each.input if name in "abcdefgh"
    }
    weights = {name for each in nodes for name in each.input if name in "wu"}
    constants = [onnx.numpy_helper.from_array(np.eye(SIDE, k=ord(name), dtype=np.float32), name) for name in weights]
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(name, 1, shape) for name, shape in given.items()],
        [helper.make_tensor_value_info(name, 1, None) for name in outputs.split()],
        constants,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    model = gx.load(made, disabled_passes=["merge_products"])
    specs = {name: TensorSpec(tuple(shape), np.dtype(np.float32)) for name, shape in given.items()}
    planned = run_passes(model.graph, AT_PLAN, () if is_fused else GENERATING | {"fuse_epilogues"}, specs)
    return plan_graph(planned, specs, Target.named("sm_90")).plan


def find_groups(plan: Plan) -> FusedGroups:
    commands = plan.segment.commands
    return find_fused_groups(plan, commands, [list_operands(each, describe_work(each)) for each in commands])


def name_groups(plan: Plan) -> list[list[str]]:
    """Return the nodes of each group."""
    return [[plan.segment.origins[each] for each in members] for members in find_groups(plan).members]


def test_elementwise_operators_are_one_group() -> None:
    plan = make_plan([node("Exp", "a", "s"), node("Add", "s b", "t"), node("Tanh", "t", "y")])
    assert name_groups(plan) == [["s", "t", "y"]]
    assert find_groups(plan).minimum_nbytes == 3 * NBYTES  # a and b are read, y is written


def test_a_region_is_in_the_group_of_its_operators() -> None:
    nodes = [node("Exp", "a", "s"), node("Add", "s b", "t"), node("Softmax", "t", "v"), node("Tanh", "v", "y")]
    plan = make_plan(nodes, is_fused=True)
    assert name_groups(plan) == [["s+t+v+y"]]
    assert find_groups(plan).minimum_nbytes == find_groups(make_plan(nodes)).minimum_nbytes == 3 * NBYTES


def test_elementwise_operators_join_the_product_before_them() -> None:
    plan = make_plan([node("MatMul", "a w", "s"), node("Exp", "s", "t"), node("Add", "t b", "y")])
    assert name_groups(plan) == [["s", "t", "y"]]
    assert find_groups(plan).minimum_nbytes == 4 * NBYTES


def test_elementwise_operators_join_the_norm_behind_them() -> None:
    plan = make_plan([node("Exp", "a", "s"), node("Softmax", "s", "y")])
    assert name_groups(plan) == [["s", "y"]]
    assert find_groups(plan).minimum_nbytes == 2 * NBYTES


def test_two_products_exchange_what_one_makes() -> None:
    plan = make_plan([node("MatMul", "a w", "s"), node("Exp", "s", "t"), node("MatMul", "t u", "y")])
    assert name_groups(plan) == [["s", "t"], ["y"]]
    # a, w and u are read, y is written, and t is written and read.
    assert find_groups(plan).minimum_nbytes == 6 * NBYTES


def test_each_group_reads_what_several_share() -> None:
    plan = make_plan([node("MatMul", "a w", "x"), node("MatMul", "a u", "y")], "x y")
    assert find_groups(plan).minimum_nbytes == 6 * NBYTES


def test_an_operator_joins_the_last_of_those_that_it_reads() -> None:
    nodes = [node("MatMul", "a w", "s"), node("MatMul", "a u", "t"), node("Add", "s t", "y")]
    assert name_groups(make_plan(nodes)) == [["s"], ["t", "y"]]


def test_groups_without_anchor_that_meet_become_one() -> None:
    nodes = [node("Exp", "a", "s"), node("Tanh", "b", "t"), node("Add", "s t", "y")]
    plan = make_plan(nodes)
    assert [sorted(each) for each in name_groups(plan)] == [["s", "t", "y"]]
    assert find_groups(plan).minimum_nbytes == 3 * NBYTES


def test_products_around_a_softmax_are_attention() -> None:
    nodes = [node("MatMul", "a b", "s"), node("Exp", "s", "t"), node("Softmax", "t", "p"), node("MatMul", "p c", "y")]
    plan = make_plan(nodes)
    assert name_groups(plan) == [["s", "t", "p", "y"]]
    assert find_groups(plan).minimum_nbytes == 4 * NBYTES


def test_scores_that_another_product_reads_are_exchanged() -> None:
    nodes = [
        node("MatMul", "a b", "s"),
        node("Softmax", "s", "p"),
        node("MatMul", "p c", "y"),
        node("MatMul", "s w", "x"),
    ]
    assert name_groups(make_plan(nodes, "x y")) == [["s"], ["p"], ["y"], ["x"]]


@pytest.mark.parametrize(("rows", "columns"), [(3, 64), (200, 64)])
def test_a_gather_reads_the_rows_it_takes(rows: int, columns: int) -> None:
    indices = onnx.numpy_helper.from_array(np.arange(rows, dtype=np.int64) % 1000, "i")
    graph = helper.make_graph(
        [node("Gather", "a i", "y")],
        "g",
        [helper.make_tensor_value_info("a", 1, [1000, columns])],
        [helper.make_tensor_value_info("y", 1, None)],
        [indices],
    )
    model = gx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    specs = {"a": TensorSpec((1000, columns), np.dtype(np.float32))}
    plan = plan_graph(model.graph, specs, Target.named("sm_90")).plan
    assert find_groups(plan).minimum_nbytes == 2 * rows * columns * 4 + rows * 8
