"""Programmatic dependent launch: which launches may begin before those that they depend on are complete.

Such a launch waits itself, before it uses memory that others write (``dependent_launch.cuh``). The order of commands
stays what it is; an edge to such a launch becomes programmatic, as CUDA calls it.

One that keeps multiprocessors busy begins when others have ended. Its blocks would be given out while some places are
taken, so that two share a multiprocessor and others have none: on an H100 BERT-base took 0.86 ms where all began early
and 0.69 where none did, and ResNet-50, of short launches, 0.38 and 0.40 (tests/bench/results).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gpuexec.devices.kernels.kernel_source import WAITING_ARCHITECTURE, waits_for_predecessors
from gpuexec.devices.prepared import PreparedCommand, PreparedLaunch
from gpuexec.ir.command import Launch
from gpuexec.ir.gpus import Gpu, find_gpu
from gpuexec.ir.target import Target
from gpuexec.ir.work import find_form
from gpuexec.system import knobs

_BUSY_SECONDS = 1.5e-6  # that L2 needs for what blocks of a launch ask


def takes_dependent_launches(target: Target) -> bool:
    """Return whether launches may begin early on a target: sm_90 and up, unless GPUEXEC_DEPENDENT_LAUNCH is off."""
    return target.kind == "cuda" and target.architecture >= WAITING_ARCHITECTURE and knobs.dependent_launch()


def find_waiting(target: Target) -> Callable[[Launch], bool] | None:
    """Return what says of a launch whether it begins early on a target; None where none does."""
    if not takes_dependent_launches(target):
        return None
    gpu = find_gpu(target.architecture)
    return lambda launch: waits_for_predecessors(launch.kernel) and is_light(launch, gpu)


def is_light(launch: Launch, gpu: Gpu) -> bool:
    """Return whether L2 gives blocks of a launch all that they ask for in so short a time that it may begin early."""
    form = find_form(launch.kernel)
    return form is None or form(launch).l2_nbytes <= _BUSY_SECONDS * gpu.l2_bytes_per_second


def find_programmatic(
    target: Target, commands: Sequence[PreparedCommand], edges: Iterable[tuple[int, int]]
) -> frozenset[tuple[int, int]]:
    """Return the edges (before, after) of a segment that are programmatic.

    Both ends are launches, neither of them cooperative, and the later one waits and is light. All that came before the
    earlier one is complete once that is: it waited for it itself, or began after it.
    """
    if not takes_dependent_launches(target):
        return frozenset()
    gpu = find_gpu(target.architecture)
    return frozenset(
        (before, after)
        for before, after in edges
        if is_plain_launch(commands[before])
        and is_plain_launch(commands[after])
        and _begins_early(commands[after], gpu)
    )


def _begins_early(command: PreparedCommand, gpu: Gpu) -> bool:
    """Return whether a launch may begin early; what it was when first asked of, whatever its size is later."""
    assert isinstance(command, PreparedLaunch)
    if command.begins_early is None:
        launch = command.arguments.command
        command.begins_early = command.function.waits and (launch is None or is_light(launch, gpu))
    return command.begins_early


def is_plain_launch(command: PreparedCommand) -> bool:
    """Return whether a command is a launch whose blocks don't wait for each other."""
    return isinstance(command, PreparedLaunch) and not command.config.cooperative


def find_early(target: Target, commands: Sequence[PreparedCommand]) -> frozenset[int]:
    """Return the positions of the launches that may begin early in a stream, where each command follows another."""
    chain = [(position - 1, position) for position in range(1, len(commands))]
    return frozenset(after for _, after in find_programmatic(target, commands, chain))
