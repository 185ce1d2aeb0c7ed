"""Pinned staging blocks: reused, but never too early."""

from __future__ import annotations

from gpuexec.devices.cpu.cpu import CpuDevice
from gpuexec.devices.cpu.cpu_stream import CpuEvent
from gpuexec.devices.staging import Staging


def test_block_is_used_again_once_its_event_is_done() -> None:
    staging = Staging(CpuDevice())
    block = staging.take(5000)
    assert block.nbytes == 8192 == staging.nbytes
    event = CpuEvent()
    number = event.number()
    event.announce(number)
    staging.give_back(block, event)
    other = staging.take(5000)
    assert other is not block
    event.reach(number, None)
    assert staging.take(6000) is block
    assert staging.nbytes == 2 * 8192


def test_blocks_of_other_sizes_are_left_alone() -> None:
    staging = Staging(CpuDevice())
    small = staging.take(1)
    staging.give_back(small)
    assert staging.take(5000) is not small
    assert staging.take(0) is small


def test_trim_frees_what_nobody_uses() -> None:
    staging = Staging(CpuDevice())
    event = CpuEvent()
    number = event.number()
    event.announce(number)
    free, busy, out = staging.take(1), staging.take(1), staging.take(1)
    staging.give_back(free)
    staging.give_back(busy, event)
    assert staging.trim() == 4096 and staging.nbytes == 2 * 4096
    assert out.array is not None and out.array.nbytes == 4096
    event.reach(number, None)
    assert staging.take(1) is busy
