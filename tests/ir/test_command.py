"""Slots and commands."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gpuexec.ir.command import Copy, Fill, HostCall, Kernel, Launch, Slot
from gpuexec.ir.spec import TensorSpec

INT = np.dtype(np.int32)


def slot(shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 100, buffer: int = 0) -> Slot:
    return Slot(buffer, offset, TensorSpec(shape, INT), strides)


SHAPES = [
    ((2, 3), (3, 1)),
    ((2, 3), (1, 2)),
    ((2, 3), (-3, 1)),
    ((2, 3), (-3, -1)),
    ((2, 3), (0, 1)),
    ((2, 3), (6, 2)),
    ((), ()),
    ((1, 3), (7, 1)),
    ((0, 3), (3, 1)),
    ((2, 0), (1, 1)),
    ((1, 1, 1), (5, 9, 0)),
]


@pytest.mark.parametrize(("shape", "strides"), SHAPES)
def test_byte_range_is_the_hull_of_all_elements(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    starts = [
        100 + 4 * sum(i * s for i, s in zip(index, strides, strict=True))
        for index in itertools.product(*(range(extent) for extent in shape))
    ]
    expected = (min(starts), max(starts) + 4) if starts else (100, 100)
    assert slot(shape, strides).byte_range() == expected


@pytest.mark.parametrize(("shape", "strides"), SHAPES)
def test_contiguous_as_numpy_says(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    base = np.zeros(64, INT)
    view = np.lib.stride_tricks.as_strided(base[30:], shape, [4 * s for s in strides])
    assert slot(shape, strides).is_contiguous == view.flags.c_contiguous


def test_slot_prints_place_and_odd_strides() -> None:
    assert str(slot((2, 3), (3, 1), 0)) == "%0:int32[2,3]"
    assert str(slot((2, 3), (1, 2), 8)) == "%0+8:int32[2,3] strides (1, 2)"


def test_commands_report_what_they_read_and_write() -> None:
    a, b, c = (slot((2,), (1,), 0, buffer) for buffer in range(3))
    rows = [
        (Launch(Kernel("f", "k"), (1, 1, 1), (1, 1, 1), (a, np.int32(1), b, c, b"x"), (2,)), [a, c], [b]),
        (Copy(a, b), [b], [a]),
        (Fill(a, b"\0"), [], [a]),
        (HostCall("op", (), (a, None, b), (None, c)), [a, b], [c]),
    ]
    for command, reads, writes in rows:
        assert list(command.reads_from()) == reads
        assert list(command.writes_to()) == writes
