"""Kernel mistakes: errors with line and thread."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from gpuexec.devices.simulator.library import GridError, Schedule
from gpuexec.devices.simulator.module import SimulatorFunction
from gpuexec.errors import KernelError

Kernels = Mapping[str, SimulatorFunction]
OUT = np.zeros(64, np.float32)
INTS = np.zeros(64, np.int32)


# Other CPUs answer 0 to a division by zero, as a GPU may.
DIVISION = [
    ("divide", 32, (INTS, INTS, np.int32(0)), r"integer division by zero or overflow \(thread 0 of block 0,0,0\)")
]


@pytest.mark.parametrize(
    ("name", "block", "arguments", "message"),
    [
        ("divergent_barrier", 64, (OUT,), r"mistakes.cu:7: divergent barrier: .* at mistakes.cu:4 \(thread 32"),
        ("deadlock", 32, (INTS,), r"deadlock in block 0,0,0: 32 of 32 .*; 1 in the warp operation at mistakes.cu:13 "
         r"with mask 0xffffffff; 31 in the barrier at mistakes.cu:15"),
        ("exited_lane", 32, (OUT,), r"mistakes.cu:21: the mask of this warp operation names lane 3, which has exited"),
        ("lane_outside_mask", 32, (INTS,), r"mistakes.cu:24: .* lacks the calling lane 16 \(thread 16 of block 0,0,0"),
        ("different_operations", 32, (INTS,), r"mistakes.cu:28: .* different warp operations, .* at mistakes.cu:30"),
        ("shared_overrun", 32, (OUT,), r"shared 'row' of 128 bytes was written at byte 128, past its end"),
        ("too_much_shared", 32, (OUT,), r"240000 bytes \('big' included\) exceeds the limit of 232448"),
        ("trap_at", 32, (np.int32(9),), r"mistakes.cu:61: __trap was called \(thread 9 of block 0,0,0\)"),
        ("load_shared_as_global", 32, (OUT,), r"mistakes.cu:87: an instruction for device memory alone is given an "
         r"address of shared memory \(thread 0 of block 0,0,0"),
        ("store_shared_as_global", 32, (OUT,), r"mistakes.cu:92: an instruction for device memory alone"),
        ("copy_shared_as_global", 32, (OUT,), r"an asynchronous copy of shared memory"),
        ("store", 1, (None, np.int32(2), np.int32(0)), r"illegal address 0x8 \(thread 0 of block 0,0,0\)"),
        ("overflow_stack", 1, (INTS, np.int32(100)), r"the stack of 128 KiB has overflown \(thread 0 of"),
        *(DIVISION if platform.machine() == "x86_64" else []),
    ],
)  # fmt: skip
def test_mistake_is_named(kernels: Kernels, name: str, block: int, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(GridError, match=f"^mistakes.cu:{name}: .*{message}"):
        kernels[name].launch_arrays(1, block, *arguments)


def test_exited_lane_is_found_in_every_order(kernels: Kernels, schedule: Schedule) -> None:
    with pytest.raises(GridError, match="names lane 3, which has exited"):
        kernels["exited_lane"].launch_arrays(1, 32, OUT, schedule=schedule)


@pytest.mark.parametrize("blocks", [1, 300])
def test_runner_works_on_after_a_mistake(kernels: Kernels, schedule: Schedule, blocks: int) -> None:
    for _ in range(3):
        with pytest.raises(GridError):
            kernels["deadlock"].launch_arrays(blocks, 64, INTS, schedule=schedule)
        with pytest.raises(GridError):
            kernels["store"].launch_arrays(1, 1, None, np.int32(2), np.int32(0), schedule=schedule)
        x, out = np.ones(3000, np.float32), np.zeros(1, np.float32)
        kernels["block_sum"].launch_arrays(4, 256, x, out, np.int32(3000), schedule=schedule)
        assert out[0] == 3000


def test_abandoned_launch_leaves_no_copies_behind(kernels: Kernels) -> None:
    x, y, other = np.ones(1, np.int32), np.zeros(1, np.int32), np.zeros(1, np.int32)
    with pytest.raises(GridError, match="__trap"):
        kernels["trap_with_copy_under_way"].launch_arrays(1, 1, x, y)
    kernels["store"].launch_arrays(1, 1, other, np.int32(0), np.int32(5))
    assert (y[0], other[0]) == (0, 5)


@pytest.mark.parametrize(
    ("grid", "block", "shared_bytes", "message"),
    [
        (1, 2048, 0, r"block \(2048, 1, 1\) exceeds the device limit 1024 \(sm_90\)"),
        (1, (1, 1, 65), 0, r"block \(1, 1, 65\) exceeds"),
        ((1, 65536), 32, 0, r"grid \(1, 65536, 1\) exceeds the device limit"),
        (0, 32, 0, r"grid \(0, 1, 1\) .* must be positive"),
        (1, 32, 300_000, r"300000 bytes of shared memory exceed the device limit 232448 \(sm_90\)"),
        (1, 512, 0, r"block \(512, 1, 1\) has 512 threads, its __launch_bounds__ are 256"),
    ],
)
def test_launch_beyond_a_limit_is_refused(
    kernels: Kernels, grid: Any, block: Any, shared_bytes: int, message: str
) -> None:
    function = kernels["binary<int, 1>"]
    with pytest.raises(KernelError, match=r"basic.cu:binary<int, 1>: " + message):
        function.launch_arrays(grid, block, INTS, INTS, INTS, np.int32(0), shared_bytes=shared_bytes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((OUT, OUT, OUT), "expected 4 arguments, got 3"),
        ((OUT, OUT, np.int32(4), OUT), "argument 2 must be a pointer, got an integer of 4 bytes"),
        ((OUT, OUT, OUT, OUT), "argument 3 must be an integer of 4 bytes, got a pointer"),
        ((OUT, OUT, OUT, np.int64(4)), "argument 3 must be an integer of 4 bytes, got an integer of 8 bytes"),
        ((OUT, OUT, OUT, np.float32(4)), "argument 3 must be an integer of 4 bytes, got a float of 4 bytes"),
        ((OUT, OUT, OUT, 4), "argument 3 must be .* got int; its width would be a guess"),
    ],
)
def test_argument_that_does_not_fit_is_refused(kernels: Kernels, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(KernelError, match=f"basic.cu:add: {message}"):
        kernels["add"].launch_arrays(1, 32, *arguments)


def test_struct_of_another_size_is_refused(kernels: Kernels) -> None:
    scalars = (np.float32(1), np.float64(2), np.int32(3), np.uint8(4), np.bool_(True))
    with pytest.raises(KernelError, match=r"argument 6 must be a struct of 16 bytes, got a struct of 12 bytes"):
        kernels["take"].launch_arrays(1, 1, OUT, *scalars, bytes(12), np.float16(1), np.float16(1), OUT)
