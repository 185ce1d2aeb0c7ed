"""Programmatic dependent launch: which launches may begin before those that they depend on are complete.

Such a launch waits itself, before it uses memory that others write (``dependent_launch.cuh``). The order of commands
stays what it is; an edge to such a launch becomes programmatic, as CUDA calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gpuexec.devices.kernels.kernel_source import WAITING_ARCHITECTURE, waits_for_predecessors
from gpuexec.devices.prepared import PreparedCommand, PreparedLaunch
from gpuexec.ir.command import Kernel
from gpuexec.ir.target import Target
from gpuexec.system import knobs


def takes_dependent_launches(target: Target) -> bool:
    """Return whether launches may begin early on a target: sm_90 and up, unless GPUEXEC_DEPENDENT_LAUNCH is off."""
    return target.kind == "cuda" and target.architecture >= WAITING_ARCHITECTURE and knobs.dependent_launch()


def find_waiting(target: Target) -> Callable[[Kernel], bool] | None:
    """Return what says of a kernel whether its launches begin early on a target; None where none does."""
    return waits_for_predecessors if takes_dependent_launches(target) else None


def find_programmatic(
    target: Target, commands: Sequence[PreparedCommand], edges: Iterable[tuple[int, int]]
) -> frozenset[tuple[int, int]]:
    """Return the edges (before, after) of a segment that are programmatic.

    Both ends are launches, neither of them cooperative, and the later one waits. All that came before the earlier one
    is complete once that is: it waited for it itself, or began after it.
    """
    if not takes_dependent_launches(target):
        return frozenset()
    return frozenset(
        (before, after)
        for before, after in edges
        if is_plain_launch(commands[before]) and is_plain_launch(commands[after]) and commands[after].function.waits  # type: ignore[attr-defined]
    )


def is_plain_launch(command: PreparedCommand) -> bool:
    """Return whether a command is a launch whose blocks don't wait for each other."""
    return isinstance(command, PreparedLaunch) and not command.config.cooperative


def find_early(target: Target, commands: Sequence[PreparedCommand]) -> frozenset[int]:
    """Return the positions of the launches that may begin early in a stream, where each command follows another."""
    chain = [(position - 1, position) for position in range(1, len(commands))]
    return frozenset(after for _, after in find_programmatic(target, commands, chain))
