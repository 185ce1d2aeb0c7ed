"""Strings and containers in a partition: host nodes on every target, in no plan, no part of any key."""

from __future__ import annotations

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.ir.containers import make_sequence, to_strings
from gpuexec.ir.content_key import content_key, is_same_spec
from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.operator import build
from gpuexec.ir.spec import SEQUENCE, STRING, TensorSpec
from gpuexec.ir.target import Target
from gpuexec.planner.host_fallback import explain_call, lacks_kernel, touches_objects
from gpuexec.planner.partition import Partition
from gpuexec.planner.partitioner import find_partition
from gpuexec.planner.template import plan_graph
from tests.model.objects import parse

TARGETS = (Target.named("cpu"), Target.named("sm_90"), Target.named("pixel_90"))
F32 = TensorSpec((3,), np.dtype(np.float32))
SEQ, WORDS = TensorSpec((), SEQUENCE), TensorSpec((2,), STRING)


def partition(text: str, target: Target, specs: list[TensorSpec]) -> tuple[Graph, Partition]:
    graph = gx.load(parse(text)).graph
    return graph, find_partition(graph, dict(zip(graph.inputs, specs, strict=True)), target, host_work=-1)


def names(graph: Graph | None) -> list[str]:
    return [] if graph is None else [node.operator.name for node in graph.nodes]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_nodes_of_host_objects_are_host_calls_on_every_target(target: Target) -> None:
    text = """(float[3] x, string[2] w) => (float[3] y, string[2] v, int64 n) {
      y = Exp (x) s = SequenceConstruct (y) v = Identity (w) n = SequenceLength (s) }"""
    graph, found = partition(text, target, [F32, WORDS])
    assert names(found.ready) == ["Exp"]
    assert [value.name for value in found.ready.outputs] == ["y"] if found.ready else False
    # One step does all of them: what the host makes stays there for the next.
    assert [node.operator.name for node in found.host_nodes] == ["SequenceConstruct", "Identity", "SequenceLength"]
    # An operator's own reason comes before that of what it is given.
    reasons = {node.operator.name: why for node, why in found.host_calls.items()}
    containers = "sequences and optionals are containers on the host"
    assert reasons == {"SequenceConstruct": containers, "Identity": "host object", "SequenceLength": containers}
    assert [read.value.name for read in found.reads] == ["y"]
    assert found.rest is not None and names(found.rest) == []
    assert [value.name for value in found.rest.outputs] == ["n"]
    assert found.foreseen == dict(zip(graph.outputs, [F32, WORDS, TensorSpec((), np.dtype(np.int64))], strict=True))


def test_objects_are_passed_on_and_are_in_no_plan() -> None:
    words, row, kept = Value("words"), Value("row"), Value("kept")
    node = Node(build("Exp", {}), (row,), (Value("y"),), "exp")
    graph = Graph((words, row), (words, *node.outputs, kept), (node,), {kept: to_strings(["a"])})
    found = find_partition(graph, {words: WORDS, row: F32}, TARGETS[0], host_work=-1)
    assert found.ready is not None
    assert (found.ready.inputs, found.ready.outputs, dict(found.ready.constants)) == ((row,), node.outputs, {})
    assert list(found.constants or ()) == [kept]
    assert found.rest is None


def test_an_input_of_strings_that_nobody_reads_is_in_no_plan() -> None:
    words, row = Value("words"), Value("row")
    node = Node(build("Exp", {}), (row,), (Value("y"),), "exp")
    found = find_partition(Graph((words, row), node.outputs, (node,), {}), {words: WORDS, row: F32}, TARGETS[0])
    assert found.ready is not None and found.ready.inputs == (row,)


def test_content_of_host_objects_is_never_read_from_a_device() -> None:
    text = "(seq(float[]) s, int64 p) => (float[] y) { e = SequenceAt (s, p) y = Exp (e) }"
    _, found = partition(text, TARGETS[1], [SEQ, TensorSpec((), np.dtype(np.int64))])
    assert [read.value.name for read in found.reads] == ["p"]
    assert names(found.rest) == ["Exp"] and found.ready is None


def test_a_plan_of_host_objects_is_refused_by_name() -> None:
    graph = gx.load(parse("(string[2] w) => (string[2] v) { v = Identity (w) }")).graph
    for target in TARGETS:
        with pytest.raises(gx.UnsupportedError, match="Identity"):
            plan_graph(graph, {"w": WORDS}, target)


def test_the_one_function_says_what_touches_objects() -> None:
    words, row = Value("words"), Value("row")
    specs = {words: WORDS, row: F32}
    takes = Node(build("Shape", {}), (words,), (row,), "n")
    plain = Node(build("Exp", {}), (row,), (Value("y"),), "n")
    gives = Node(build("Cast", {"to": 8}), (row,), (words,), "n")
    assert [touches_objects(node, specs) for node in (takes, gives, plain)] == [True, True, False]
    assert [lacks_kernel(node, specs, TARGETS[0]) for node in (takes, gives, plain)] == [True, True, False]
    assert explain_call(takes, specs) == "host object"
    own = Node(build("SequenceConstruct", {}), (row,), (Value("s"),), "n")
    assert explain_call(own, specs) == "sequences and optionals are containers on the host"
    assert explain_call(plain, specs) == "no lowering for this device"


def test_content_of_host_objects_is_known_by_its_array_alone() -> None:
    first, second = (TensorSpec.of(to_strings([word])) for word in ("a", "a"))
    assert is_same_spec(first, first) and not is_same_spec(first, second)
    assert content_key([first]) == content_key([first]) != content_key([second])
    sequences = [TensorSpec.of(make_sequence([])) for _ in range(2)]
    assert not is_same_spec(sequences[0], sequences[1])
