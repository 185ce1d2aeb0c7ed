"""Occupancy: the number of blocks a device runs at once, which bounds a cooperative grid.

A larger grid would wait for itself for ever.
"""

from __future__ import annotations

from gpuexec.errors import KernelError
from gpuexec.ir.command import LaunchConfig
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.target import Target

# Limits of a multiprocessor, where no driver can be asked: those of most architectures.
_THREADS, _BLOCKS = 1536, 16


def count_resident(config: LaunchConfig, target: Target) -> int:
    """Count the blocks that a multiprocessor runs at once by threads and shared memory; registers are not counted."""
    block, shared_bytes = config.block, config.shared_bytes
    warps = ceil_div(block[0] * block[1] * block[2], target.warp_size)
    held = min(_THREADS // (warps * target.warp_size), _BLOCKS)
    return min(held, target.shared_bytes_per_block // shared_bytes) if shared_bytes else held


def check_residency(name: str, grid: tuple[int, int, int], per_multiprocessor: int, multiprocessors: int) -> None:
    """Check that all blocks of a cooperative launch fit at the same time.

    Args:
        name: The kernel, for the message.
        grid: Blocks of the launch.
        per_multiprocessor: How many of them a multiprocessor holds.
        multiprocessors: How many of those the device has.

    Raises:
        KernelError: They have not; the message has both numbers.
    """
    blocks, places = grid[0] * grid[1] * grid[2], per_multiprocessor * multiprocessors
    if blocks > places:
        raise KernelError(
            f"{name}: a cooperative grid of {blocks} blocks does not fit: the device holds {places} at once"
            f" ({per_multiprocessor} on each of {multiprocessors} multiprocessors)."
        )
