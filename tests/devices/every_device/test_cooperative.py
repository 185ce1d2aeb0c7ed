"""Blocks that need each other: a barrier of a cooperative grid, a last block that finishes the work of all, signals."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpuexec.devices.device import Device, Recording, Region
from gpuexec.devices.recording import record_graph, record_launches
from gpuexec.devices.simulator.findings import Finding
from gpuexec.devices.simulator.library import Schedule
from gpuexec.errors import CheckError, KernelError
from gpuexec.ir.command import Copy, Fill, Kernel, Launch, Slot
from gpuexec.ir.plan import Segment
from gpuexec.ir.plan_json import from_json, to_json
from gpuexec.ir.spec import TensorSpec
from tests.devices.every_device.test_device import download, on_launching, upload
from tests.devices.opening import TOGETHER_SOURCE, make_simulator
from tests.ir.test_plan import PLAN

Array = np.ndarray[Any, Any]
F32, U32 = np.dtype(np.float32), np.dtype(np.uint32)
COUNT, BLOCKS = 300, 5


def slot(buffer: int, count: int, dtype: np.dtype[Any] = F32) -> Slot:
    return Slot(buffer, 0, TensorSpec((count,), dtype), (1,))


X, WORDS = slot(0, COUNT), slot(1, 3, U32)
SHARES, TURNED, PARTIAL, TOTAL = slot(2, COUNT), slot(3, COUNT), slot(4, BLOCKS + 1), slot(5, 1)


def make_share(bug: int = 0, *, cooperative: bool = True, blocks: int = BLOCKS) -> Launch:
    arguments = (X, SHARES, TURNED, PARTIAL, WORDS, np.int32(COUNT))
    kernel = Kernel(TOGETHER_SOURCE, f"share<{bug}>")
    return Launch(kernel, (blocks, 1, 1), (64, 1, 1), arguments, (1, 2, 3, 4), cooperative=cooperative)


def make_sum(bug: int = 0) -> Launch:
    arguments = (X, TOTAL, PARTIAL, WORDS, np.int32(COUNT))
    return Launch(Kernel(TOGETHER_SOURCE, f"sum_by_last<{bug}>"), (BLOCKS, 1, 1), (64, 1, 1), arguments, (1, 2, 3))


def make_turns(bug: int = 0) -> Launch:
    arguments = (X, SHARES, PARTIAL, WORDS, np.int32(COUNT))
    kernel = Kernel(TOGETHER_SOURCE, f"share_by_turns<{bug}>")
    return Launch(kernel, (2 * BLOCKS, 1, 1), (64, 1, 1), arguments, (1, 2, 3))


def run(
    device: Device, launch: Launch, output: Slot, times: int = 1, record: Callable[..., Recording] = record_launches
) -> list[Array]:
    """Run the launch over one memory for each buffer; words are 0 before the first of ``times``.

    What it reads lies elsewhere each time.
    """
    device.load([launch.kernel])
    stream = device.create_stream()
    x = (np.arange(COUNT) % 7).astype(np.float32)
    inputs = [upload(device, stream, x) for _ in range(times)]
    memory = {each.buffer: device.allocate(each.spec.nbytes) for each in (WORDS, SHARES, TURNED, PARTIAL, TOTAL)}
    places = {buffer: Region(each, 0, each.nbytes) for buffer, each in memory.items()}
    start = record_launches(device, Segment((Fill(WORDS, bytes(4)),), (), ("words",)), places)
    start.submit(stream, {})
    stream.synchronize()  # a launch that is refused leaves nothing under way
    recording = record(device, Segment((launch,), (), ("together",)), places)
    results = []
    for each in inputs:
        recording.submit(stream, {0: Region(each, 0, each.nbytes)})
        results.append(download(stream, memory[output.buffer], np.float32))
    return results


def expect_turned() -> Array:
    x = (np.arange(COUNT) % 7).astype(np.float32)
    return np.roll(x / x.sum(dtype=np.float32), -1)


@on_launching
def test_grid_barrier_orders_blocks_and_can_be_used_again(device: Device) -> None:
    for got in run(device, make_share(), TURNED, times=3):
        np.testing.assert_allclose(got, expect_turned(), rtol=1e-6)


@on_launching
def test_last_block_sees_what_all_have_written_each_time(device: Device) -> None:
    for got in run(device, make_sum(), TOTAL, times=3):
        assert got[0] == (np.arange(COUNT) % 7).sum()


@on_launching
def test_signal_lets_later_blocks_go_on_each_time(device: Device) -> None:
    for got in run(device, make_turns(), SHARES, times=3):
        np.testing.assert_allclose(got, np.roll(expect_turned(), 1), rtol=1e-6)


@on_launching
def test_cooperative_grid_that_does_not_fit_is_refused_with_both_numbers(device: Device) -> None:
    with pytest.raises(KernelError, match=r"share<0>: a cooperative grid of 1000000 blocks does not fit: .* holds \d+"):
        run(device, make_share(blocks=1_000_000), TURNED)


@on_launching
def test_graph_holds_a_cooperative_launch_and_takes_updates_of_it(device: Device) -> None:
    for got in run(device, make_share(), TURNED, times=3, record=record_graph):
        np.testing.assert_allclose(got, expect_turned(), rtol=1e-6)


@on_launching
def test_cooperative_launch_that_does_not_fit_is_refused_before_a_graph_is_made(device: Device) -> None:
    with pytest.raises(KernelError, match=r"share<0>: a cooperative grid of 1000000 blocks does not fit"):
        run(device, make_share(blocks=1_000_000), TURNED, record=record_graph)


@pytest.mark.parametrize("schedule", [Schedule("reverse"), *(Schedule("random", seed) for seed in range(4))], ids=str)
def test_check_mode_understands_all_in_every_order(schedule: Schedule) -> None:
    device = make_simulator(schedule, check_kernels=True)
    np.testing.assert_allclose(run(device, make_share(), TURNED, 2)[1], expect_turned(), rtol=1e-6)
    assert run(device, make_sum(), TOTAL, 2)[1][0] == (np.arange(COUNT) % 7).sum()
    np.testing.assert_allclose(run(device, make_turns(), SHARES, 2)[1], np.roll(expect_turned(), 1), rtol=1e-6)


@pytest.mark.parametrize("launch", [make_share(1), make_sum(1), make_turns(1)], ids=["barrier", "fence", "signal"])
def test_check_mode_finds_what_orders_blocks_missing(launch: Launch) -> None:
    device = make_simulator(check_kernels=True)
    with pytest.raises(CheckError) as caught:
        run(device, launch, TURNED)
    for finding in caught.value.findings:
        assert isinstance(finding, Finding)
        assert finding.other is not None
        assert (finding.kind, finding.file, finding.other.file) == ("race", "together.cu", "together.cu")


def test_grid_barrier_outside_of_a_cooperative_launch_is_refused() -> None:
    device = make_simulator(check_kernels=True)
    with pytest.raises(CheckError, match=r"deadlock: at together.cu:\d+ .* a barrier of the grid needs a cooperative"):
        run(device, make_share(cooperative=False), TURNED)


def test_wait_for_a_block_that_begins_later_is_refused() -> None:
    device = make_simulator(check_kernels=True)
    with pytest.raises(CheckError, match=r"deadlock: at together.cu:\d+ .* waits for a block that has not begun"):
        run(device, make_turns(2), SHARES)


def test_cooperative_launch_survives_as_text() -> None:
    copy = Copy(SHARES, TURNED)
    plan = dataclasses.replace(PLAN, segment=Segment((make_share(), copy), ((0, 1),), ("share", "copy")))
    assert from_json(to_json(plan)) == plan
