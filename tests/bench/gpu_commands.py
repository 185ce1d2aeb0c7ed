"""Benchmark of the commands of whole models on a GPU, one by one: which take the time, beside what is predicted.

Commands that are alike in all but their places are one row. Each is timed as a graph of many in a row over the buffers
of its plan, so its operands may lie in L2 where they fit; predictions are of that too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gpuexec.devices.device import Device, Recording, Region
from gpuexec.devices.recording import record_graph
from gpuexec.errors import GpuexecError
from gpuexec.ir.command import Command, Launch, Slot
from gpuexec.ir.plan import Plan, Segment
from tests.bench.gpu_contenders import OURS, Budget, Contender, Turns, take_turns
from tests.bench.gpu_kernels import repeat_segment
from tests.bench.gpu_prediction import fit, predict
from tests.bench.measure import percentile
from tests.bench.models import BenchModel
from tests.bench.tables import Figures
from tests.devices.execute import LoadedPlan

COLUMNS = (
    "command",
    "writes",
    "blocks",
    "times",
    "us p50",
    "p10",
    "p90",
    "us in all",
    "share",
    "predicted us",
    "measured / predicted",
    "bound by",
)
_TIMES, _IN_A_ROW, _SHOWN = 10, 3, 30


@dataclass(frozen=True, slots=True)
class Timed:
    """A command, how often its like is in the plan, and its times in microseconds, with what was predicted of it."""

    command: Command
    count: int
    times_us: Sequence[float]
    predicted_us: float | None
    bound_by: str | None
    bounds: Any
    begin_us: float

    @property
    def all_us(self) -> float:
        """Microseconds of all that are alike."""
        return self.count * percentile(self.times_us, 0.5)


def measure_commands(
    device: Device,
    makers: Mapping[str, Callable[[], BenchModel]],
    turns: Turns,
    budget: Budget,
    keep: Callable[[Sequence[Figures]], None] = lambda _: None,
) -> list[Figures]:
    """Measure models until the budget is used up, and fit the time model to all of their commands.

    Args:
        device: The GPU, or what stands for it.
        makers: Makers of models by name.
        turns: Of each command.
        budget: Seconds to use.
        keep: Called with all tables so far after each model.
    """
    tables: list[Figures] = []
    measured: list[tuple[Any, float]] = []
    for name, make in makers.items():
        figures = Figures(f"{name} on {device.name}: its commands, the {_SHOWN} that take most", COLUMNS)
        tables.append(figures)
        if budget.left_s < 0:
            figures.notes.append("Dropped, no time is left.")
            continue
        try:
            timed = _measure_plan(device, make(), turns, budget, figures)
        except GpuexecError as error:
            figures.notes.append(f"{name} failed: {error}")
            continue
        _fill(figures, timed)
        keep(tables)
        # In a row each command begins when the one before has ended.
        measured += [
            (each.bounds, percentile(each.times_us, 0.5) - each.begin_us) for each in timed if each.bounds is not None
        ]
    return [*tables, *fit(measured)]


def group_alike(commands: Sequence[Command]) -> dict[object, list[int]]:
    """Return the positions of commands that are alike in all but the places of their operands."""
    groups: dict[object, list[int]] = {}
    for position, command in enumerate(commands):
        groups.setdefault(_describe(command), []).append(position)
    return groups


def _measure_plan(device: Device, bench: BenchModel, turns: Turns, budget: Budget, figures: Figures) -> list[Timed]:
    template = bench.make_template(device.target)
    plan = bench.specialise(template)
    constants = {value.name: array for value, array in template.graph.constants.items()}
    timed: list[Timed] = []
    groups = group_alike(plan.segment.commands)
    kept: list[Mapping[int, Region]] = []
    with LoadedPlan(plan, constants, device, partial(_record_and_keep, kept)) as loaded:
        loaded.run(bench.inputs)
        for positions in groups.values():
            if budget.left_s < 0:
                left = sum(map(len, groups.values())) - sum(each.count for each in timed)
                figures.notes.append(f"{left} commands were not timed, no time was left.")
                break
            alone = _keep_only(plan, positions[0])
            recording = record_graph(device, alone.segment, kept[0])  # type: ignore[arg-type]
            submit = partial(recording.submit, loaded.stream, loaded.bindings)
            contender = Contender(OURS, submit, loaded.stream.synchronize, lambda: np.zeros(0))
            taken = take_turns([contender], Turns(turns.count, 0, _IN_A_ROW), budget)[OURS].in_a_row
            recording.close()
            predicted = predict(alone)
            timed.append(
                Timed(
                    plan.segment.commands[positions[0]],
                    len(positions),
                    [each * 1e3 / _TIMES for each in taken],
                    None if predicted is None else predicted.commands_us[-1],
                    None if predicted is None else predicted.bound_by[-1],
                    None if predicted is None else predicted.bounds[-1],
                    0.0 if predicted is None else predicted.begins_us[-1],
                )
            )
    return timed


def _fill(figures: Figures, timed: Sequence[Timed]) -> None:
    """Add a row for each command that takes most."""
    whole = sum(each.all_us for each in timed)
    for each in sorted(timed, key=lambda each: -each.all_us)[:_SHOWN]:
        p50, p10, p90 = (percentile(each.times_us, share) for share in (0.5, 0.1, 0.9))
        writes = each.command.writes_to()
        figures.add(
            _spell(each.command),
            "x".join(map(str, writes[0].spec.shape)) if writes else "",
            _count_blocks(each.command),
            each.count,
            p50,
            p10,
            p90,
            each.all_us,
            f"{each.all_us / whole:.0%}",
            each.predicted_us,
            None if each.predicted_us is None else p50 / each.predicted_us,
            each.bound_by,
        )
    predicted = [each.count * each.predicted_us for each in timed if each.predicted_us is not None]
    figures.notes.append(
        f"All {sum(each.count for each in timed)} commands, of {len(timed)} kinds: {whole:.0f} us one after the other"
        + (f", predicted {sum(predicted):.0f}." if predicted else ".")
    )


def _record_and_keep(
    kept: list[Mapping[int, Region]], device: Device, segment: Segment, memory: Mapping[int, Region]
) -> Recording:
    """Record a segment, and keep where its buffers lie."""
    kept.append(memory)
    return device.record(segment, memory)


def _keep_only(plan: Plan, position: int) -> Plan:
    """Return the plan with one of its commands, many times in a row."""
    one = Segment((plan.segment.commands[position],), (), (plan.segment.origins[position],))
    return replace(plan, segment=repeat_segment(one, _TIMES))


def _describe(command: Command) -> object:
    """Return what alike commands have in common, as a key."""
    if isinstance(command, Launch):
        arguments = tuple(
            (a.spec.shape, a.spec.dtype.str, a.strides) if isinstance(a, Slot) else (type(a).__name__, a)
            for a in command.arguments
        )
        return command.kernel, command.grid, command.block, command.shared_bytes, arguments
    operands = (*command.reads_from(), *command.writes_to())
    return type(command).__name__, tuple(slot.spec.nbytes for slot in operands)


def _spell(command: Command) -> str:
    if isinstance(command, Launch):
        return f"{command.kernel.source.removesuffix('.cu')}:{command.kernel.expression}"[:60]
    return type(command).__name__.lower()


def _count_blocks(command: Command) -> int | None:
    if not isinstance(command, Launch):
        return None
    x, y, z = command.grid
    return x * y * z
