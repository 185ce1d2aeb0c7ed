"""Work of launches: bytes of slots and sectors, and the table of closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from gpuexec.ir.command import Kernel, Launch, Slot
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.work import Work, count_run_bytes, count_slot_bytes, count_warps, find_form, work_of

F32 = np.dtype(np.float32)


@pytest.mark.parametrize(
    ("shape", "strides", "nbytes"),
    [
        ((4, 8), (8, 1), 128),
        ((4, 8), (0, 1), 32),  # stretched
        ((4, 8), (16, 1), 128),  # a view of every second row
        ((3, 4), (1, 1), 24),  # windows that overlap: six elements
        ((0, 8), (8, 1), 0),
        ((), (), 4),
    ],
)
def test_bytes_of_a_slot_are_those_of_its_elements(
    shape: tuple[int, ...], strides: tuple[int, ...], nbytes: int
) -> None:
    assert count_slot_bytes(Slot(0, 0, TensorSpec(shape, F32), strides)) == nbytes


@pytest.mark.parametrize(
    ("elements", "stride", "itemsize", "nbytes"),
    [(16, 1, 4, 64), (17, 1, 4, 96), (4, 8, 4, 128), (4, 2, 4, 32), (32, 0, 4, 32), (8, -8, 4, 256), (0, 1, 4, 0)],
)
def test_bytes_of_the_sectors_of_a_run(elements: int, stride: int, itemsize: int, nbytes: int) -> None:
    assert count_run_bytes(elements, stride, itemsize) == nbytes


def test_a_form_is_found_by_file_and_kernel() -> None:
    @work_of("made_up.cu", "stir")
    def count_stir(launch: Launch) -> Work:
        return Work(flops=count_warps(launch))

    launch = Launch(Kernel("made_up.cu", "stir<float, 3>"), (5, 2, 1), (33, 1, 1), (), ())
    form = find_form(launch.kernel)
    assert form is not None and form(launch).flops == 20
    assert find_form(Kernel("made_up.cu", "stirred<float>")) is None
    assert find_form(Kernel("stir.cu", "stir")) is None
