"""The Emitter: requests of lowerings, and the resulting commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from gpuexec.errors import KernelError, PlanError
from gpuexec.ir.command import Command, Copy, Fill, HostCall, Kernel, Launch, Slot
from gpuexec.ir.plan import Role
from gpuexec.ir.spec import HostValue, TensorSpec
from gpuexec.ir.target import Target
from gpuexec.planner import emitter
from gpuexec.planner.emitter import CommandEmitter, emit_copy, emit_store
from gpuexec.planner.unpacked_plan import UnpackedBuffer, UnpackedPlan, dense

CPU, GPU = Target.named("cpu"), Target.named("sm_90")
KERNEL = Kernel("test.cu", "k")


@dataclass
class Desk:
    """An emitter over a draft of one input and two temporaries of 16 floats."""

    emit: CommandEmitter
    input: Slot
    a: Slot
    b: Slot


def desk(target: Target = GPU, choices: list[int] | None = None, content: Any = None) -> Desk:
    spec = TensorSpec((4, 4), np.dtype(np.float32))
    unpacked = UnpackedPlan(
        [
            UnpackedBuffer(Role.INPUT, 64, "x"),
            UnpackedBuffer(Role.TEMP, 64, content=content),
            UnpackedBuffer(Role.TEMP, 64),
        ]
    )
    return Desk(CommandEmitter(target, unpacked, choices), dense(0, spec), dense(1, spec), dense(2, spec))


def launch(d: Desk, grid: tuple[int, int, int] = (1, 1, 1), threads: int = 32, shared: int = 0) -> None:
    d.emit.launch(KERNEL, grid, (threads, 1, 1), [d.input, d.a], [1], shared)


def test_launch_is_added_where_there_are_kernels() -> None:
    d = desk()
    launch(d)
    assert d.emit.effects.commands == [Launch(KERNEL, (1, 1, 1), (32, 1, 1), (d.input, d.a), (1,), 0)]
    d = desk(CPU)
    launch(d)
    assert d.emit.effects.commands == []


def test_operator_is_left_to_the_host_where_there_are_no_kernels() -> None:
    assert not desk().emit.leaves_to_host()
    assert desk(CPU).emit.leaves_to_host()


def test_launch_that_writes_nothing_is_dropped_whatever_its_grid() -> None:
    d = desk()
    empty = dense(1, TensorSpec((0, 4), np.dtype(np.float32)))
    d.emit.launch(KERNEL, (0, 1, 1), (32, 1, 1), [d.input, empty], [1])
    assert d.emit.effects.commands == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 2048}, "block 2048 is outside 1 to 1024"),
        ({"threads": 0}, "block 0"),
        ({"grid": (1, 65536, 1)}, "grid"),
        ({"grid": (0, 1, 1)}, "grid"),
        ({"shared": 1 << 20}, "shared memory"),
    ],
)
def test_launch_beyond_the_limits_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(KernelError, match=rf"test\.cu:k: .*{message}.*sm_90"):
        launch(desk(), **options)


def test_copy_of_dense_slots_is_bytes_and_of_others_elements() -> None:
    d = desk()
    d.emit.copy(d.a, d.input)
    assert d.emit.effects.commands == [Copy(d.a, d.input)]
    across = Slot(0, 0, d.a.spec, (1, 4))
    (command,) = emit_copy(GPU, UnpackedPlan(), d.a, across).commands
    assert isinstance(command, Launch)
    (command,) = emit_copy(CPU, UnpackedPlan(), d.a, across).commands
    assert command == HostCall("Identity", (), (across,), (d.a,))


def test_contiguous_copies_only_what_is_not() -> None:
    d = desk()
    assert d.emit.contiguous(d.a) is d.a
    made = d.emit.contiguous(Slot(0, 0, d.a.spec, (1, 4)))
    assert made.is_contiguous and made.buffer == 3 and len(d.emit.effects.commands) == 1


def test_fill_converts_to_the_slots_type() -> None:
    d = desk()
    d.emit.fill(d.a, 3)
    assert d.emit.effects.commands == [Fill(d.a, np.float32(3).tobytes())]


def part(start: int, extent: int = 16) -> Slot:
    return Slot(3, start, TensorSpec((extent // 4, 4), np.dtype(np.float32)), (4, 1))


@pytest.mark.parametrize(
    ("source", "window", "granted"),
    [
        ("a", part(0), True),
        ("a", part(64), True),
        ("a", part(4), False),  # kernels take 16 bytes at once
        ("a", Slot(3, 0, TensorSpec((4, 4), np.dtype(np.float32)), (8, 1)), False),
        ("input", part(0), False),
    ],
)
def test_place_is_granted_where_nothing_speaks_against_it(source: str, window: Slot, granted: bool) -> None:
    d = desk()
    assert d.emit.place(getattr(d, source), window) is granted
    assert bool(d.emit.effects.placed) is granted


def test_place_is_refused_to_parts_host_values_and_what_is_placed() -> None:
    d = desk()
    assert not d.emit.place(Slot(1, 16, TensorSpec((3, 4), np.dtype(np.float32)), (4, 1)), part(0))
    assert d.emit.place(d.a, part(0)) and not d.emit.place(d.a, part(64))
    assert not desk(content=np.zeros(16)).emit.place(d.a, part(0))


def test_choices_of_the_upper_end_are_made_again() -> None:
    d = desk(choices=[True, False, False])
    assert d.emit.index_type(d.a) == "long long"
    assert d.emit.index_type(d.a) == "int"
    assert not d.emit.place(d.a, part(0))
    assert d.emit.effects.choices == [True, False, False]


def test_number_chosen_at_the_upper_end_holds_for_the_class() -> None:
    d = desk()
    assert [d.emit.choose(2), d.emit.choose(0)] == [2, 0]
    d = desk(choices=d.emit.effects.choices)
    assert [d.emit.choose(1), d.emit.choose(4)] == [2, 0]


def test_counters_are_buffers_of_zeros_of_their_own() -> None:
    d = desk()
    first, second = d.emit.counters(3), d.emit.counters(2)
    assert (first.buffer, second.buffer) == (3, 4) and first.spec == TensorSpec((3,), np.dtype(np.uint32))
    assert [(each.role, each.nbytes, each.is_zeroed) for each in d.emit.effects.buffers] == [
        (Role.TEMP, 12, True),
        (Role.TEMP, 8, True),
    ]


def test_index_type_follows_from_the_largest_offset() -> None:
    d = desk()
    assert d.emit.index_type(d.a, Slot(0, 0, TensorSpec((2**31 + 1,), np.dtype(np.int8)), (1,))) == "long long"
    assert d.emit.index_type(d.a) == "int"


def test_store_is_as_many_commands_for_every_content_of_a_capacity() -> None:
    for target in (CPU, GPU):
        counts = set()
        for extent in (1, 8, 128):
            content = np.arange(extent)
            slot = dense(1, TensorSpec(content.shape, content.dtype))
            counts.add(len(emit_store(target, UnpackedPlan(), slot, HostValue(content), 1024)))
        assert len(counts) == 1


def test_division_is_free_at_each_size_unless_it_is_fixed() -> None:
    unpacked = UnpackedPlan()
    end, size = CommandEmitter(GPU, unpacked), CommandEmitter(GPU, unpacked, [])
    assert (end.divide(4), size.divide(7), end.effects.chosen) == (4, 7, [])
    end = CommandEmitter(GPU, unpacked, fixes_division=True)
    assert end.divide(4) == 4 and end.effects.chosen == [4]
    size = CommandEmitter(GPU, unpacked, end.effects.choices, fixes_division=True)
    assert size.divide(7) == 4


def test_what_lowerings_choose_is_told_from_what_slots_decide() -> None:
    d = desk()
    d.emit.index_type(d.a)
    d.emit.contiguous(d.a)
    d.emit.choose(3)
    assert d.emit.effects.chosen == [3] and d.emit.effects.choices == [0, 1, 3]


def join(d: Desk, costs: dict[str, float], names: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the kernels that are emitted where two launches could be one of others, each of which takes a time."""

    def predict(commands: Sequence[Command], target: Target) -> float:
        return sum(costs[command.kernel.expression] for command in commands if isinstance(command, Launch))

    def launch_both() -> None:
        launch(d)
        launch(d)

    def join_both(commands: Sequence[Command]) -> list[list[Command]]:
        assert [type(each) for each in commands] == [Launch, Launch]
        return [[Launch(Kernel("test.cu", name), (1, 1, 1), (32, 1, 1), (d.input, d.a), (1,), 0)] for name in names]

    monkeypatch.setattr(emitter, "predict_commands_us", predict)
    d.emit.join(launch_both, join_both)
    return [each.kernel.expression for each in d.emit.effects.commands if isinstance(each, Launch)]


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        ({"k": 2.0, "one": 3.0, "other": 3.5}, ["one"]),
        ({"k": 2.0, "one": 4.5, "other": 3.5}, ["other"]),
        ({"k": 2.0, "one": 4.5, "other": 4.0}, ["k", "k"]),
    ],
)
def test_commands_are_joined_where_that_is_faster(
    costs: dict[str, float], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    d = desk()
    assert join(d, costs, ["one", "other"], monkeypatch) == expected
    again = desk(choices=d.emit.effects.choices)
    assert join(again, {"k": 0.0, "one": 0.0, "other": 0.0}, ["one", "other"], monkeypatch) == expected
    assert again.emit.effects.chosen == d.emit.effects.chosen


def test_what_can_not_be_joined_as_at_the_upper_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    d = desk()
    assert join(d, {"k": 2.0, "one": 3.0}, ["one"], monkeypatch) == ["one"]
    with pytest.raises(PlanError, match="can't be joined, as they are at the upper end"):
        join(desk(choices=d.emit.effects.choices), {"k": 2.0}, [], monkeypatch)


def test_commands_of_nothing_are_not_joined() -> None:
    d = desk(choices=[1])
    d.emit.join(lambda: None, lambda commands: [])
    assert d.emit.effects.commands == []


def test_targets_without_kernels_join_nothing() -> None:
    d = desk(CPU)
    d.emit.join(lambda: launch(d), lambda commands: [[]] * 2)
    assert d.emit.effects.commands == []
