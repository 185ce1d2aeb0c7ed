"""Access history of bytes: last write and reads since, in few cells."""

from __future__ import annotations

import random

from gpuexec.devices.simulator.operations import Access
from gpuexec.devices.simulator.ordering import ByteHistory


def is_older(first: int, second: int) -> bool:
    return first < second


def list_cells(history: ByteHistory[int], first: int, last: int) -> list[tuple[int, int, int | None, tuple[int, ...]]]:
    return [(low, high, cell.write, cell.reads) for low, high, cell in history.find(first, last)]


def test_write_stands_for_all_before_it() -> None:
    history = ByteHistory[int](100)
    for first in range(0, 60, 10):
        history.add_write(first, first + 10, first)
        history.add_read(first + 5, first + 15, first + 1, is_older)
    history.add_write(5, 55, 100)
    assert list_cells(history, 0, 100) == [
        (0, 5, 0, ()),
        (5, 55, 100, ()),
        (55, 60, 50, (51,)),
        (60, 65, None, (51,)),
        (65, 100, None, ()),
    ]


def test_read_stands_for_the_reads_before_it_alone() -> None:
    history = ByteHistory[int](8)
    for use in (3, 1, 2, 5, 4):
        history.add_read(0, 8, use, lambda first, second: second == 5 and first < 3)
    assert list_cells(history, 2, 4) == [(2, 4, None, (3, 5, 4))]


def test_copy_goes_on_apart_and_can_be_gone_back_to() -> None:
    history = ByteHistory[int](8)
    history.add_write(0, 4, 1)
    copy = history.copy()
    history.add_write(2, 8, 2)
    assert list_cells(copy, 0, 8) == [(0, 4, 1, ()), (4, 8, None, ())]
    history.restore(copy)
    assert list_cells(history, 0, 8) == [(0, 4, 1, ()), (4, 8, None, ())]


def test_cells_hold_what_a_list_of_bytes_holds() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        history, expected = ByteHistory[int](20), [(None, ())] * 20
        for use in range(40):
            first, last = sorted(rng.sample(range(21), 2))
            if rng.random() < 0.5:
                history.add_write(first, last, use)
                expected[first:last] = [(use, ())] * (last - first)  # type: ignore[list-item]
            else:
                history.add_read(first, last, use, lambda a, b: False)
                expected[first:last] = [(write, (*reads, use)) for write, reads in expected[first:last]]  # type: ignore[misc]
            low, high = sorted(rng.sample(range(21), 2))
            got = [(w, r) for a, b, w, r in list_cells(history, low, high) for _ in range(a, b)]
            assert got == expected[low:high]


def test_access_of_rows_leaves_out_what_lies_between_them() -> None:
    assert list(Access(0, 10, True, 2, 4).rows()) == [(0, 2), (4, 6), (8, 10)]
    assert list(Access(0, 10, True).rows()) == [(0, 10)]
