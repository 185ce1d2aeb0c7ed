"""Append: results, refusals, and writes into a memory with capacity."""

from __future__ import annotations

import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.command import Copy, HostCall, Launch
from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.plan import Role
from gpuexec.ir.spec import COMPUTED, DeclaredSpec, TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ops.tensor.append import Append
from gpuexec.ops.tensor.layout import Transpose
from gpuexec.planner.template import Template, plan_graph
from tests.ops.harness import Case, run_case

CAPACITY = 6


def arrays(axis: int, held: int, rows: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    shapes = [[2, 3, 2], [2, 3, 2]]
    shapes[0][axis], shapes[1][axis] = held, rows
    first, second = (np.arange(np.prod(shape)).reshape(shape).astype(dtype) for shape in shapes)
    return first, second


@pytest.mark.parametrize("dtype", [row.numpy for row in COMPUTED], ids=lambda each: each.name)
@pytest.mark.parametrize(("axis", "held", "rows"), [(0, 2, 1), (1, 0, 3), (-1, 4, 0), (2, 5, 1)])
def test_append_joins(checks: str, axis: int, held: int, rows: int, dtype: np.dtype) -> None:  # type: ignore[type-arg]
    inputs = arrays(axis, held, rows, dtype)
    attributes = {"axis": axis, "capacity": CAPACITY, "memory": "past"}
    run_case(
        Case("case", "gpuexec.Append", inputs, attributes, expected=(np.concatenate(inputs, axis),), oracle="expected"),
        checks,
    )


@pytest.mark.parametrize(
    ("held", "rows", "words"),
    [
        ((2, 5), (2, 2), "'past' is full: it holds 5 rows, 2 more exceed its capacity of 6"),
        ((2, 1), (3, 1), "shapes agree beside axis 1"),
        ((2, 1), (2,), "shapes agree beside axis 1"),
    ],
)
def test_append_refuses(held: tuple[int, ...], rows: tuple[int, ...], words: str) -> None:
    float32 = np.dtype(np.float32)
    with pytest.raises(InputError, match=words):
        Append(1, CAPACITY, "past").infer(TensorSpec(held, float32), TensorSpec(rows, float32))


def make_template(target: str, *, of_itself: bool = False) -> Template:
    """Plan held[2, p, 3] <- held and x[2, 1, 3], or a row of what is held."""
    spec = DeclaredSpec(np.dtype(np.float32), (2, "p", 3))
    held, x, grown = Value("held", spec), Value("x", DeclaredSpec(spec.dtype, (2, 1, 3))), Value("grown", spec)
    nodes = [Node(Append(1, CAPACITY, "held"), (held, held if of_itself else x), (grown,), "append")]
    outputs = [grown]
    if not of_itself:
        turned = Value("turned", spec)
        nodes.append(Node(Transpose((1, 0, 2)), (grown,), (turned,), "turn"))
        outputs.append(turned)
    graph = Graph((held, x), tuple(outputs), tuple(nodes), {}, "grown")
    specs = {"held": TensorSpec((2, 3, 3), spec.dtype), "x": TensorSpec((2, 1, 3), spec.dtype)}
    return plan_graph(graph, specs, Target.named(target), grows=True)


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
def test_append_writes_the_rows_alone(target: str) -> None:
    plan = make_template(target).plan
    (state,) = [buffer for buffer in plan.buffers if buffer.role is Role.STATE]
    assert (state.name, state.nbytes) == ("held", 2 * CAPACITY * 3 * 4)
    assert plan.inputs[0].buffer == plan.outputs[0].buffer == state.id
    (written,) = [s for c in plan.segment.commands for s in c.writes_to() if s.buffer == state.id]
    assert (written.shape, written.strides) == ((2, 1, 3), (CAPACITY * 3, 3, 1))
    # An output beside it that shows the same rows is a copy of them, made afterwards.
    last = plan.segment.commands[-1]
    assert [slot.buffer for slot in last.writes_to()] == [plan.outputs[1].buffer] != [state.id]
    assert plan.segment.edges == ((0, 1),)


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
def test_append_of_what_is_held_goes_by_way_of_other_bytes(target: str) -> None:
    commands = make_template(target, of_itself=True).plan.segment.commands
    assert len(commands) == 2 and all(isinstance(each, (Copy, HostCall, Launch)) for each in commands)
    for command in commands:
        assert not {s.buffer for s in command.reads_from()} & {s.buffer for s in command.writes_to()}
