import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpuexec.devices.cpu import cpu_memory
from gpuexec.devices.cpu.cpu import CpuDevice
from gpuexec.devices.cpu.cpu_memory import LARGE_NBYTES, CpuMemory, IdleBlocks
from gpuexec.errors import OutOfMemoryError


class _Own(np.ndarray[Any, Any]):
    """Another class of arrays."""


VIEWS: dict[str, Callable[[Any], object]] = {
    "the whole": lambda array: array,
    "of another type": lambda array: array.view(np.float32),
    "a part of a part": lambda array: array.view(np.float32)[8:64][::-3].reshape(-1, 1),
    "of another class": lambda array: array[:64].view(_Own),
    "by the buffer protocol": lambda array: memoryview(array)[4:8],
    "by an interface": lambda array: np.asarray(np.from_dlpack(array[:16])),
}


def test_memory_is_aligned_and_refusals_are_named() -> None:
    idle = IdleBlocks()
    for given in (None, idle):
        assert all(CpuMemory(n, given).address % 256 == 0 for n in (0, 1, 1000, LARGE_NBYTES + 1))
        with pytest.raises(OutOfMemoryError, match="refused"):
            CpuMemory(1 << 62, given)


@pytest.mark.parametrize("view", VIEWS)
def test_large_blocks_are_lent_again_when_no_array_is_left(view: str) -> None:
    idle = IdleBlocks()
    memory = CpuMemory(LARGE_NBYTES, idle)
    address, nbytes = memory.address, memory.nbytes
    kept = VIEWS[view](memory.array)
    memory.free()
    assert idle.nbytes == 0 and CpuMemory(nbytes, idle).address != address
    idle.trim()
    del kept
    assert idle.nbytes > nbytes and CpuMemory(nbytes, idle).address == address


@pytest.mark.parametrize(
    ("nbytes", "is_same"),
    [(0, True), (-LARGE_NBYTES // 8, True), (-LARGE_NBYTES // 2, False), (4096, False)],
    ids=["as many", "few less", "much less", "more"],
)
def test_idle_blocks_serve_what_fits(nbytes: int, is_same: bool) -> None:
    idle = IdleBlocks()
    first = CpuMemory(2 * LARGE_NBYTES, idle)
    address = first.address
    first.free()
    left = idle.nbytes
    memory = CpuMemory(2 * LARGE_NBYTES + nbytes, idle)
    assert memory.array.nbytes == memory.nbytes == 2 * LARGE_NBYTES + nbytes
    assert (memory.address == address, idle.nbytes) == (is_same, 0 if is_same else left)


def test_small_blocks_are_not_kept() -> None:
    idle = IdleBlocks()
    memory = CpuMemory(LARGE_NBYTES - 1, idle)
    block = weakref.ref(memory.array.base)  # type: ignore[arg-type]
    memory.free()
    assert block() is None and idle.nbytes == 0


def test_the_oldest_of_too_many_idle_blocks_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_memory, "_MOST_IDLE_NBYTES", 3 * LARGE_NBYTES)
    idle = IdleBlocks()
    blocks = [CpuMemory(LARGE_NBYTES + 4096 * n, idle) for n in range(3)]
    addresses = [block.address for block in blocks]
    for block in blocks:
        block.free()
    assert LARGE_NBYTES < idle.nbytes <= 3 * LARGE_NBYTES
    assert CpuMemory(LARGE_NBYTES + 4096, idle).address == addresses[1]
    CpuMemory(4 * LARGE_NBYTES, idle).free()
    assert idle.nbytes == 0


def test_a_device_keeps_large_blocks_until_a_trim() -> None:
    device = CpuDevice()
    for allocate in (device.allocate, device.allocate_pinned):
        memory = allocate(LARGE_NBYTES)
        assert device.cached_nbytes == 0
        memory.free()
        cached = device.cached_nbytes
        assert cached >= LARGE_NBYTES and device.trim() == cached and device.cached_nbytes == device.trim() == 0
    device.close()
