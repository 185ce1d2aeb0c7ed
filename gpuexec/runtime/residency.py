"""How many blocks a device holds at once: a cooperative grid must fit, or its blocks would wait for ever."""

from __future__ import annotations

from gpuexec.errors import KernelError


def check_residency(name: str, grid: tuple[int, int, int], per_multiprocessor: int, multiprocessors: int) -> None:
    """Check that all blocks of a cooperative launch have a place at the same time.

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
