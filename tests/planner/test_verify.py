"""Plan verification: invalid plans are rejected."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpuexec.errors import PlanError
from gpuexec.ir.command import Command, Copy, Fill, HostCall, Slot
from gpuexec.ir.plan import ArenaLayout, Buffer, Plan, Port, Role, Segment, Variant
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.planner.template import plan_graph
from gpuexec.planner.verify import verify
from tests.ir.random_graphs import random_graph
from tests.ops.operators import FLOAT

BYTE = np.dtype(np.uint8)


def window(buffer: int, offset: int = 0, extent: int = 8, stride: int = 1) -> Slot:
    return Slot(buffer, offset, TensorSpec((extent,), BYTE), (stride,))


def call(*slots: Slot) -> HostCall:
    """Read all slots but the last, write the last."""
    return HostCall("test", (), slots[:-1], slots[-1:])


INPUT, CONSTANT, A, B, OUTPUT = range(5)
COMMANDS: tuple[Command, ...] = (
    call(window(INPUT), window(A)),
    call(window(CONSTANT), window(B)),
    call(window(A), window(B), window(OUTPUT)),
)


def plan_of(
    commands: tuple[Command, ...] = COMMANDS,
    edges: tuple[tuple[int, int], ...] = ((0, 2), (1, 2)),
    offsets: tuple[int, int] = (0, 256),
    nbytes: int = 512,
) -> Plan:
    buffers = (
        Buffer(INPUT, Role.INPUT, 8, "x"),
        Buffer(CONSTANT, Role.CONSTANT, 8, "w"),
        Buffer(A, Role.TEMP, 8),
        Buffer(B, Role.TEMP, 8),
        Buffer(OUTPUT, Role.OUTPUT, 8, "y"),
    )
    return Plan(
        target="cpu",
        buffers=buffers,
        layout=ArenaLayout(((A, offsets[0]), (B, offsets[1])), nbytes, 0),
        segment=Segment(commands, edges, tuple(f"n{i}" for i in range(len(commands)))),
        inputs=(Port("x", INPUT, TensorSpec((8,), BYTE)),),
        outputs=(Port("y", OUTPUT, TensorSpec((8,), BYTE)),),
    )


def test_plan_that_holds_passes() -> None:
    verify(plan_of())


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (plan_of(edges=((1, 2),)), "Command 0 .n0. and Command 2|reads bytes 0 to 8 of %2"),
        (plan_of(edges=()), "no path"),
        (plan_of(edges=((0, 2), (2, 1))), r"Edge \(2, 1\) does not lead forward"),
        (plan_of(edges=((0, 2), (1, 2), (1, 7))), "Edge"),
        (plan_of(offsets=(0, 0)), "share bytes of the arena"),
        (plan_of(offsets=(0, 4)), "misaligned"),
        (plan_of(offsets=(0, 512)), "outside"),
        (plan_of(offsets=(-256, 256)), "misaligned"),
        (plan_of((*COMMANDS[:2], call(window(A, 4), window(OUTPUT)))), "bytes 4 to 12 are outside %2"),
        (plan_of((*COMMANDS[:2], call(window(A, 6, 8, -1), window(OUTPUT)))), "bytes -1 to 7 are outside"),
        (plan_of((*COMMANDS[:2], call(window(9), window(OUTPUT)))), "there is no buffer %9"),
        (plan_of((call(window(INPUT), window(A, 0, 4)), *COMMANDS[1:])), "reads bytes 4 to 8 of %2 that no command"),
        (plan_of((COMMANDS[2], *COMMANDS[:2]), edges=()), "no command before it writes"),
        (plan_of((*COMMANDS[:2], call(window(A), window(INPUT)))), "writes %0, which is input"),
        (plan_of((Fill(window(CONSTANT), b"\0"), *COMMANDS[1:])), "writes %1, which is constant"),
        (plan_of((*COMMANDS[:2], call(window(A), window(B))), edges=((0, 2), (1, 2))), "Output 'y' is written by no"),
        (
            plan_of((*COMMANDS, call(window(OUTPUT, 7, 8, -1), window(OUTPUT))), edges=((0, 2), (1, 2), (2, 3))),
            "another window",
        ),
        (
            plan_of((*COMMANDS, Copy(window(OUTPUT, 4, 4), window(OUTPUT, 2, 4))), edges=((0, 2), (1, 2), (2, 3))),
            "another window",
        ),
    ],
)
def test_plan_that_does_not_hold_is_rejected(plan: Plan, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        verify(plan)


def rows_of(start: int, *shape: int, strides: tuple[int, ...] = (4, 2, 1)) -> Slot:
    """Return a window on the output, which is two matrices of two rows of two."""
    return Slot(OUTPUT, start, TensorSpec(shape, BYTE), strides)


@pytest.mark.parametrize(
    ("read", "written", "is_held"),
    [
        (rows_of(0, 2, 1, 2), rows_of(2, 2, 1, 2), True),
        (rows_of(2, 2, 1, 2), rows_of(0, 2, 1, 2), True),
        (rows_of(0, 2, 2, 1), rows_of(1, 2, 2, 1), True),
        (rows_of(0, 2, 2, 2), rows_of(2, 2, 1, 2), False),
        (rows_of(0, 2, 1, 2), rows_of(1, 2, 1, 2), False),
        (rows_of(0, 2, 1, 2), rows_of(2, 2, 1, 2, strides=(3, 2, 1)), False),
        (rows_of(0, 3, 1, 2, strides=(2, 2, 1)), rows_of(2, 3, 1, 2, strides=(2, 2, 1)), False),
    ],
    ids=["rows behind", "rows in front", "columns", "all rows", "half a row", "other strides", "rows of the next"],
)
def test_command_reads_other_places_of_an_axis_than_it_writes(read: Slot, written: Slot, is_held: bool) -> None:
    plan = plan_of((*COMMANDS, call(read, written)), edges=((0, 2), (1, 2), (2, 3)))
    if is_held:
        verify(plan)
    else:
        with pytest.raises(PlanError, match="through another window"):
            verify(plan)


def columns_of(first: int, width: int, count: int = 2) -> Slot:
    """Return columns of A, which is two rows of four."""
    return Slot(A, first, TensorSpec((count, width), BYTE), (4, 1))


@pytest.mark.parametrize(
    ("second", "edges", "message"),
    [
        (columns_of(2, 2), ((0, 2), (1, 2)), None),
        (columns_of(1, 3), ((0, 1), (1, 2)), None),
        (columns_of(1, 3), ((0, 2), (1, 2)), r"Command 0 \(n0\) and Command 1 \(n1\) touch the same bytes"),
        (columns_of(2, 2), ((0, 2),), r"Command 1 \(n1\) and Command 2 \(n2\) touch the same bytes"),
        (columns_of(3, 1), ((0, 2), (1, 2)), "no command before it writes"),
        (columns_of(2, 2, count=1), ((0, 2), (1, 2)), "no command before it writes"),
    ],
)
def test_windows_of_one_pitch_are_checked_column_by_column(
    second: Slot, edges: tuple[tuple[int, int], ...], message: str | None
) -> None:
    plan = plan_of((call(columns_of(0, 2)), call(second), call(window(A), window(OUTPUT))), edges)
    if message is None:
        verify(plan)
    else:
        with pytest.raises(PlanError, match=message):
            verify(plan)


def test_reader_must_come_before_the_next_writer() -> None:
    commands = (*COMMANDS, Fill(window(A), b"\0"))
    verify(plan_of(commands, ((0, 2), (1, 2), (2, 3))))
    with pytest.raises(PlanError, match=r"Command 2 \(n2\) and Command 3"):
        verify(plan_of(commands, ((0, 2), (1, 2), (0, 3))))


def test_variant_is_verified_in_place_of_the_plans_own_commands() -> None:
    plan = plan_of()
    specs = (TensorSpec((8,), BYTE),)
    verify(plan, Variant(COMMANDS, specs, specs))
    for command, message in (
        (call(window(A, 4), window(B), window(OUTPUT)), "outside"),
        (call(window(A), window(A), window(OUTPUT)), ""),
    ):
        variant = Variant((*COMMANDS[:2], command), specs, specs)
        if message:
            with pytest.raises(PlanError, match=message):
                verify(plan, variant)
        else:
            verify(plan, variant)


def test_variant_whose_windows_meet_without_a_path_is_rejected() -> None:
    def commands(second: int) -> tuple[Command, ...]:
        return (
            call(window(INPUT, 0, 4), window(A, 0, 4)),
            call(window(INPUT, 0, 4), window(A, second, 4)),
            call(window(CONSTANT), window(B)),
            call(window(A, 0, second + 4), window(B), window(OUTPUT)),
        )

    plan = plan_of(commands(4), ((0, 3), (1, 3), (2, 3)))
    specs = (TensorSpec((8,), BYTE),)
    verify(plan)
    with pytest.raises(PlanError, match=r"Command 0 \(n0\) and Command 1 \(n1\) touch the same bytes of %2"):
        verify(plan, Variant(commands(3), specs, specs))


@pytest.mark.parametrize("seed", range(60))
def test_plan_whose_edge_was_removed_is_rejected(seed: int) -> None:
    plan = plan_graph(random_graph(seed), {"x": TensorSpec((8, 4), FLOAT)}, Target.named("cpu")).plan
    segment = plan.segment
    verify(plan)
    for edge in segment.edges:
        less = replace(segment, edges=tuple(e for e in segment.edges if e != edge))
        with pytest.raises(PlanError):
            verify(replace(plan, segment=less))
