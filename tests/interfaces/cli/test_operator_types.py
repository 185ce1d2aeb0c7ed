"""Element types and blits listed by gpuexec ops, compared with the calls of all operator tests."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from examples import snake
from gpuexec.cli.operator_examples import Example, find_examples, takes
from gpuexec.cli.operator_types import PIXEL, TYPES, AcceptedTypes, list_accepted_types, list_host_calls, list_variants
from gpuexec.errors import InputError
from gpuexec.ir.containers import make_blank
from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.operator import Operator, decomposition_for, find_operator
from gpuexec.ir.spec import STRING, TensorSpec, dtype_row, is_host_object
from gpuexec.ir.target import Target
from gpuexec.passes import AT_LOAD, AT_PLAN, run_passes
from gpuexec.planner.partitioner import find_partition
from gpuexec.planner.template import plan_graph
from tests.ops.agreement import check_specs, compute
from tests.ops.calls import Call, convert
from tests.ops.every_call import list_calls
from tests.ops.test_every_operator import NAMES

FLOAT = np.dtype(np.float32)
COMPUTE = Target.named("sm_90")
LISTED = [name for name in NAMES if not name.startswith("gpuexec.")]
# Operators that refuse by content what they take by its type: why.
BY_CONTENT = {"SequenceInsert": "what the sequence holds is of another type"}
# Operators whose calls have blits, or have none, whatever the types of their inputs say; which of the two, and why.
PARTLY: Mapping[str, tuple[set[bool], str]] = {
    **dict.fromkeys(("Cast", "CastLike", "DequantizeLinear"), ({False}, "the result is bfloat16 or double")),
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow"), ({False}, "the result is bfloat16 or double")),
    "BatchNormalization": ({False}, "it trains, or its parameters are of another type"),
    "Resize": ({False}, "it blends what only the nearest can be taken of"),
    "QLinearMatMul": ({True}, "a matrix of bytes and one of floats are multiplied as floats"),
    "Einsum": ({True}, "it is a view"),
    "ai.onnx.ml.Binarizer": ({True}, "the threshold is beyond all integers, and nothing is compared"),
    "ai.onnx.ml.Imputer": ({True}, "nothing is replaced"),
}


@functools.cache
def find_accepted_types(name: str) -> AcceptedTypes:
    found = find_operator(name)
    assert found is not None
    return list_accepted_types(find_examples(found))


def choose_calls(name: str) -> list[Call]:
    """Return the calls of an operator that differ in which inputs there are and in their types."""
    chosen: dict[Any, Call] = {}
    for call in list_calls()[name]:
        chosen.setdefault(tuple(None if x is None else (x.dtype, x.size == 0) for x in call.inputs), call)
    return list(chosen.values())


def list_types(calls: list[Call]) -> Mapping[int, set[str]]:
    """Return the types that each input is taken in: alone, or together with those of its type."""
    taken = defaultdict[int, set[str]](set)
    for call in calls:
        for places in list_groups(call):
            for row in TYPES:
                if not set.intersection(*[{row.name} - taken[i] for i in places]):
                    continue
                if takes(call.operator, convert_inputs(call, places, row.numpy)):
                    for i in places:
                        taken[i].add(row.name)
    return taken


def convert_inputs(call: Call, places: tuple[int, ...], dtype: np.dtype[Any]) -> list[TensorSpec | None]:
    arrays = [x if x is None or i not in places else convert(x, dtype) for i, x in enumerate(call.inputs)]
    return [None if x is None else TensorSpec.of(x) for x in arrays]


def list_groups(call: Call) -> set[tuple[int, ...]]:
    given = {i: x.dtype for i, x in enumerate(call.inputs) if x is not None}
    return {
        places
        for i, dtype in given.items()
        for places in ((i,), tuple([j for j, other in given.items() if other == dtype]))
    }


@pytest.mark.parametrize("name", LISTED)
def test_every_type_that_an_input_takes_is_listed(name: str) -> None:
    listed = [set(types) for types in find_accepted_types(name).types]
    assert listed, f"{name} needs an example"
    for position, types in list_types(choose_calls(name)).items():
        if position >= len(listed) or not types <= listed[position]:
            assert any(types <= each for each in listed), f"input {position} of {name} takes {sorted(types)}: {listed}"


@pytest.mark.parametrize("name", LISTED)
def test_every_type_listed_is_computed(name: str) -> None:
    found = find_operator(name)
    assert found is not None
    for example in find_examples(found):
        for _, listed, variant in list_variants(example):
            arrays = tuple(None if x is None else fill(x) for x in variant.inputs)
            specs = [None if x is None else TensorSpec.of(x) for x in arrays]
            computed = compute(variant.operator, arrays)
            if computed is None:
                assert name in BY_CONTENT, f"{name} refuses {listed}"
            else:
                check_specs(variant.operator.infer(*specs), computed)


def fill(spec: TensorSpec) -> Any:
    if spec.dtype == STRING:
        return np.full(spec.shape, "1", STRING)
    return make_blank(spec.shape, spec.dtype) if spec.value is None else spec.value.array


@pytest.mark.parametrize("name", LISTED)
def test_blits_are_those_of_the_plans(name: str) -> None:
    """A call of types listed with blits has nothing on the host of a pixel target; any other has."""
    listed, differing, planned = find_accepted_types(name), set(), choose_calls(name)
    for call in list_calls()[name]:
        specs = tuple(None if x is None else TensorSpec.of(x) for x in call.inputs)
        example = Example(call.operator, specs)
        if any(x is not None and is_host_object(x.dtype) for x in specs) or list_host_calls(example, COMPUTE):
            continue
        have = [
            name in listed.drawn[i] if i < len(listed.drawn) else any(name in each for each in listed.drawn)
            for i, name in enumerate("" if x is None else dtype_row(x.dtype).name for x in specs)
            if name
        ]
        is_drawn = is_left_to_blits(call.operator, specs, is_planned=any(call is each for each in planned))
        if is_drawn != all(have):
            differing.add(is_drawn)
    assert differing == PARTLY.get(name, (set(), ""))[0]


def is_left_to_blits(op: Operator, specs: tuple[TensorSpec | None, ...], is_planned: bool) -> bool:
    """Return whether a model of one node leaves nothing to the host; if it is planned, check that it launches blits."""
    inputs = {Value(f"x{i}"): spec for i, spec in enumerate(specs) if spec is not None}
    names = {value.name: value for value in inputs}
    made = tuple([Value(f"y{i}") for i in range(count_outputs(op, specs))])
    node = Node(op, tuple([names.get(f"x{i}") for i in range(len(specs))]), made, "node")
    cut = find_partition(run_passes(Graph(tuple(inputs), made, (node,), {}), AT_LOAD), inputs, PIXEL)
    if cut.host_calls:
        return False
    if is_planned and cut.ready is not None:
        given = {value.name: inputs[value] for value in cut.ready.inputs}
        plan = plan_graph(run_passes(cut.ready, AT_PLAN, (), given), given, PIXEL, {}).plan
        assert all(kernel.source.startswith("pixel/") for kernel in plan.kernels()), plan.kernels()
    return True


def count_outputs(op: Operator, specs: tuple[TensorSpec | None, ...]) -> int:
    """Return how many outputs a node has that a composite operator can give with these inputs."""
    decomposition = decomposition_for(op.name)
    values = tuple([None if spec is None else Value(f"x{i}") for i, spec in enumerate(specs)])
    for count in range(len(op.infer(*specs)), 1, -1):
        try:
            if decomposition is not None:
                decomposition(Node(op, values, tuple([Value(f"y{i}") for i in range(count)]), "node"))
        except InputError:
            continue
        return count
    return 1


def test_example_of_ones_own_operator_is_found_or_read() -> None:
    assert find_examples(snake.Snake)[0].inputs == (TensorSpec((2, 2, 2), FLOAT), TensorSpec((2,), FLOAT))
    assert list_accepted_types(find_examples(snake.Snake)) == AcceptedTypes(
        (("float32",),) * 2, ((), ()), ("com.example.Snake",)
    )

    @dataclass(frozen=True, slots=True)
    class Listed(snake.Snake):
        name: ClassVar[str] = "com.example.Snake"
        example = "float32[3,2,5] float32[2]"

    assert [spec.shape for spec in find_examples(Listed)[0].inputs if spec is not None] == [(3, 2, 5), (2,)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("float32[1,2,3] float32[2] axis", "has 'axis'; expected an input, '-' or an attribute"),
        ("float31[1,2,3] float32[2]", "has 'float31"),
        ("float32[1,2,3] float32[3]", "does not take its own example 'float32"),
        ("float32[1,2,3] float32[2] axis=1", "has no attribute axis"),
        ("float32[1,2,3] float32[2] axis=one", "has 'axis=one'"),
        ("float32[1,2,3]=4,5 float32[2]", "has 'float32"),
        ("float32[1,2,3]=a,b,c,d,e,f float32[2]", "has 'float32"),
    ],
)
def test_example_is_refused_when_it_is_wrong(text: str, message: str) -> None:
    @dataclass(frozen=True, slots=True)
    class Listed(snake.Snake):
        name: ClassVar[str] = "com.example.Snake"
        example = text

    with pytest.raises(InputError, match=re.escape(message)):
        find_examples(Listed)
