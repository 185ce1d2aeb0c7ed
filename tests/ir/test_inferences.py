"""Inferences: specs that are kept while a graph is planned."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from gpuexec.ir import inferences
from gpuexec.ir.graphs import Graph, Value
from gpuexec.ir.inferences import Inferences
from gpuexec.ir.operator import Operator, build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.passes import AT_PLAN, run_passes
from gpuexec.planner.partitioner import find_partition
from gpuexec.planner.template import plan_graph
from tests.ir.graph_builder import GraphBuilder
from tests.ops.operators import FLOAT

_INTEGERS = np.dtype(np.int64)


@dataclass
class Calls:
    """The operators that were inferred, each as often as it was."""

    count: Counter[str]
    kept: list[Operator]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    made, infer = Calls(Counter(), []), inferences.infer_specs

    def count(operator: Operator, inputs: inferences.Specs) -> tuple[TensorSpec, ...]:
        made.count[f"{operator.name} {id(operator)}"] += 1
        made.kept.append(operator)  # so that no other has its number
        return infer(operator, inputs)

    monkeypatch.setattr(inferences, "infer_specs", count)
    return made


def spec(*shape: int) -> TensorSpec:
    return TensorSpec(shape, FLOAT)


def test_operator_is_inferred_again_for_other_specs_alone(calls: Calls) -> None:
    known, operator = Inferences(), build("Relu", {})
    assert known.infer(operator, [spec(2, 3)]) == known.infer(operator, [spec(2, 3)]) == (spec(2, 3),)
    assert calls.count.total() == 1
    assert known.infer(operator, [spec(4)]) == (spec(4),)
    assert known.infer(operator, [spec(2, 3)]) == (spec(2, 3),)
    assert calls.count.total() == 3


def test_content_is_compared_as_specs_are(calls: Calls) -> None:
    known, operator = Inferences(), build("Reshape", {})
    two, three = (TensorSpec((1,), _INTEGERS).with_value(np.array([n])) for n in (12, -1))
    again = TensorSpec((1,), _INTEGERS).with_value(np.array([12]))
    assert known.infer(operator, [spec(3, 4), two]) == known.infer(operator, [spec(3, 4), again]) == (spec(12),)
    assert calls.count.total() == 1
    known.infer(operator, [spec(3, 4), three])
    assert calls.count.total() == 2


def test_reads_that_are_noted_are_noted_each_time() -> None:
    known, operator = Inferences(), build("Reshape", {})
    reads: list[str] = []
    for _ in range(2):
        shape = TensorSpec((1,), _INTEGERS).with_value(np.array([12]), lambda role, least: reads.append(role))
        assert known.infer(operator, [spec(3, 4), shape]) == (spec(12),)
    assert len(reads) == 2


def test_nodes_are_kept_with_content_or_without() -> None:
    graph = small_graph()
    known, node, made = Inferences(), graph.nodes[0], (spec(4, 8),)
    known.keep(node, [spec(4, 8)], made, has_content=True)
    assert known.find(node, [spec(4, 8)], has_content=True) is made
    assert known.find(node, [spec(4, 8)], has_content=False) is None
    assert known.find(node, [spec(5, 8)], has_content=True) is None
    known.clear()
    assert known.find(node, [spec(4, 8)], has_content=True) is None


def small_graph() -> Graph:
    build_graph = GraphBuilder()
    x = build_graph.input("x", 4, 8)
    weight = build_graph.constant(np.ones((8, 8), np.float32))
    hidden = build_graph.node(build("Relu", {}), build_graph.node(build("MatMul", {}), x, weight))
    scaled = build_graph.node(build("Mul", {}), hidden, build_graph.node(build("Sigmoid", {}), hidden))
    return build_graph.graph(build_graph.node(build("Softmax", {}), scaled))


@pytest.mark.parametrize("target", [Target.named("cpu"), Target.named("sm_90")], ids=lambda each: each.name)
def test_partition_passes_and_analysis_infer_an_operator_once(target: Target, calls: Calls) -> None:
    graph, known = small_graph(), Inferences()
    given: dict[Value, TensorSpec] = {graph.inputs[0]: spec(4, 8)}
    ready = find_partition(graph, given, target, inferences=known).ready
    assert ready is not None
    named = {value.name: each for value, each in given.items()}
    fused = run_passes(ready, AT_PLAN, specs=named, target=target, inferences=known)
    plan_graph(fused, named, target, inferences=known)
    assert len(calls.count) > len(graph.nodes)
    assert set(calls.count.values()) == {1}
