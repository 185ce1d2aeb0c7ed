"""Plans as data: printing, equality, and a JSON round trip."""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuexec.errors import PlanError
from gpuexec.ir.command import Copy, Fill, HostCall, Kernel, Launch, Slot
from gpuexec.ir.plan import ArenaLayout, Buffer, KeptOnHost, Plan, Port, Read, Role, Segment
from gpuexec.ir.plan_json import FORM, FORMS_READ, from_json, to_json
from gpuexec.ir.spec import COMPUTED, TensorSpec
from gpuexec.ir.target import Target
from gpuexec.planner.template import plan_graph
from tests.ir.random_graphs import random_graph
from tests.ops.operators import FLOAT

SPEC = TensorSpec((2, 3), FLOAT)


def slot(buffer: int, offset: int = 0, strides: tuple[int, ...] = (3, 1)) -> Slot:
    return Slot(buffer, offset, SPEC, strides)


LAUNCH = Launch(
    Kernel("a.cu", "k<float, 3>"),
    (7, 1, 1),
    (32, 1, 1),
    (slot(0), slot(2), np.int32(5), np.float32("nan"), ml_dtypes.bfloat16(1.5), np.bool_(True), b"\0struct"),
    (1,),
    48,
)
BODY = Plan(
    "sm_90",
    (Buffer(0, Role.INPUT, 24, "x"), Buffer(1, Role.OUTPUT, 24, "y")),
    ArenaLayout((), 0, 0),
    Segment((Copy(slot(1), slot(0)),), (), ("copy",)),
    (Port("x", 0, SPEC),),
    (Port("y", 1, SPEC),),
)
PLAN = Plan(
    target="sm_90",
    buffers=(
        Buffer(0, Role.INPUT, 24, "x"),
        Buffer(1, Role.CONSTANT, 4, data=b"\1\2\3\4"),
        Buffer(2, Role.TEMP, 24),
        Buffer(3, Role.OUTPUT, 48, "y"),
    ),
    layout=ArenaLayout(((2, 0),), 256, 256),
    segment=Segment(
        (
            LAUNCH,
            Fill(slot(3), b"\0\0\x80\x3f"),
            Copy(slot(3, 24, (-3, 1)), slot(2)),
            HostCall(
                "Sort",
                (("axis", -1), ("k", (1, 2)), ("f", 0.5), ("s", "up"), ("n", None)),
                (slot(2), None),
                (slot(3),),
            ),
        ),
        ((0, 2), (1, 3), (2, 3)),
        ("launch", "fill", "copy", "sort"),
    ),
    inputs=(Port("x", 0, SPEC), Port("unused", None, TensorSpec((), np.dtype(np.int64)))),
    outputs=(Port("y", 3, SPEC),),
    reads=(Read("x", "node", "axes"),),
    host_values=(KeptOnHost("shape", "reshape", "follows from shapes", 16),),
)


def test_plan_with_every_command_goes_through_json() -> None:
    back = from_json(to_json(PLAN))
    assert to_json(back) == to_json(PLAN)
    # NaN is the one scalar that is not equal to itself.
    first = back.segment.commands[0].arguments  # type: ignore[union-attr]
    other = LAUNCH.arguments
    assert [type(a) for a in first] == [type(a) for a in other]
    assert np.isnan(first[3])
    assert dataclasses.replace(back, segment=BODY.segment) == dataclasses.replace(PLAN, segment=BODY.segment)
    assert back.segment.commands[1:] == PLAN.segment.commands[1:]
    assert (back.segment.edges, back.segment.origins) == (PLAN.segment.edges, PLAN.segment.origins)


def test_text_of_a_plan_without_packed_weights_does_not_mention_them() -> None:
    assert '"form"' not in to_json(PLAN)
    assert FORM in FORMS_READ and len(FORMS_READ) == 4


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("target", ["cpu", "sm_90"])
def test_planned_graph_goes_through_json(seed: int, target: str) -> None:
    plan = plan_graph(random_graph(seed), {"x": TensorSpec((8, 4), FLOAT)}, Target.named(target)).plan
    assert from_json(to_json(plan)) == plan
    assert hash(from_json(to_json(plan))) == hash(plan)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)
scalars = st.sampled_from([row.numpy for row in COMPUTED]).flatmap(
    lambda dtype: st.integers(0, 1).map(lambda value: dtype.type(value))
)


@given(
    attributes=st.dictionaries(st.text(), values, max_size=4),
    scalar=scalars,
    offset=st.integers(0, 2**40),
    strides=st.tuples(st.integers(-9, 9), st.integers(-9, 9)),
    role=st.sampled_from(Role),
)
def test_any_content_goes_through_json(
    attributes: dict[str, Any], scalar: np.generic, offset: int, strides: tuple[int, ...], role: Role
) -> None:
    call = HostCall("op", tuple(attributes.items()), (slot(0, offset, strides),), (None,))
    launch = Launch(Kernel("a", "b"), (1, 1, 1), (1, 1, 1), (scalar,), ())
    plan = dataclasses.replace(
        BODY, segment=Segment((call, launch), (), ("a", "b")), buffers=(Buffer(0, role, 1, "n", b"d"),)
    )
    back = from_json(to_json(plan))
    assert back == plan
    assert type(back.segment.commands[1].arguments[0]) is type(scalar)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"$": "Kernel", "source": "a", "expression": "b"}', '{"$": "Nope"}']
)
def test_text_that_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="not a plan"):
        from_json(text)


def test_what_is_not_data_does_not_enter_a_file() -> None:
    bad = HostCall("op", (("call", print),), (), ())
    with pytest.raises(PlanError, match="builtin_function_or_method, which is not data"):
        to_json(dataclasses.replace(BODY, segment=Segment((bad,), (), ("a",))))


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
def test_plan_holds_data_alone(target: str) -> None:
    """No callables, no pointers, no arrays, no content: walk all of it."""
    for seed in range(10):
        plan = plan_graph(random_graph(seed), {"x": TensorSpec((8, 4), FLOAT)}, Target.named(target)).plan
        kinds = {type(item) for item in walk(plan)}
        for kind in kinds:
            plain = kind in (int, str, bytes, bool, float, type(None), tuple) or issubclass(
                kind, (np.generic, np.dtype, Enum)
            )
            assert plain or kind.__module__ in ("gpuexec.ir.plan", "gpuexec.ir.command", "gpuexec.ir.spec"), kind
        assert not any(isinstance(item, TensorSpec) and item.value is not None for item in walk(plan))


def walk(item: Any) -> list[Any]:
    parts: list[Any] = [item]
    if isinstance(item, tuple):
        parts += [part for each in item for part in walk(each)]
    elif dataclasses.is_dataclass(item):
        parts += [part for f in dataclasses.fields(item) for part in walk(getattr(item, f.name))]
    return parts


def test_plan_prints_ports_arena_and_commands_with_their_edges() -> None:
    text = str(PLAN)
    for line in (
        "plan for sm_90",
        "input  x: float32[2,3] in %0",
        "input  unused: int64[]",
        "arena  256 bytes (lower bound 256)",
        "%2    temp             24 bytes  arena+0",
        "launch a.cu:k<float, 3> <7x1x1, 32x1x1>",
        "%3+24:float32[2,3] strides (-3, 1)",
        "fill %3:float32[2,3] with 0000803f",
        "Sort(%2:float32[2,3], None)  # sort  after [1, 2]",
        "reads x for node (axes)",
    ):
        assert line in text, line


def test_kernels_come_once_in_order_of_use() -> None:
    other = Kernel("b.cu", "l")
    launches = (LAUNCH, dataclasses.replace(LAUNCH, kernel=other), LAUNCH)
    plan = dataclasses.replace(BODY, segment=Segment(launches, (), ("a", "b", "c")))
    assert plan.kernels() == (LAUNCH.kernel, other)
