"""The plan: what crosses from planner to runtime. Frozen data, no pointers, no callables.

    Plan    = target, buffers, layout, steps, inputs, outputs, reads, host_values
    step    = Segment | Branch | Repeat
    Segment = commands + edges + origins        (one recording; ends where the host must read)

Execution order is partial: a device may run two commands of a segment together unless a path of edges joins them. A
plan is made for the upper end of a size class; `Variant` holds the commands of one size of the class, over
the same buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from gpuexec.command import Command, Copy, Fill, HostCall, Kernel, Launch, Slot
from gpuexec.spec import TensorSpec


class Role(Enum):
    """What a buffer is for, which says who owns its bytes and whether its address is known when recording.

    TEMP lies in the arena; CONSTANT with the weights; INPUT, OUTPUT, STATE and EXCHANGE are bound at submit; OBJECT
    lives on the host (strings, containers).
    """

    INPUT = "input"
    OUTPUT = "output"
    CONSTANT = "constant"
    STATE = "state"
    TEMP = "temp"
    EXCHANGE = "exchange"
    OBJECT = "object"


BOUND_ROLES = frozenset({Role.INPUT, Role.OUTPUT, Role.STATE, Role.EXCHANGE})


@dataclass(frozen=True, slots=True)
class Buffer:
    """Bytes with a role. ``nbytes`` is the capacity at the upper end of the size class.

    ``name`` is the input, output or weight; ``data`` the content of a table computed while planning.
    """

    id: int
    role: Role
    nbytes: int
    name: str = ""
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class ArenaLayout:
    """Where TEMP buffers lie: byte offsets by buffer id, arena size, and the size no layout can go below."""

    offsets: tuple[tuple[int, int], ...]
    nbytes: int
    lower_bound: int

    def as_dict(self) -> dict[int, int]:
        """Return offsets by buffer id."""
        return dict(self.offsets)


@dataclass(frozen=True, slots=True)
class Segment:
    """Commands between two host reads. ``edges`` are pairs (before, after) of positions; ``origins`` name the nodes."""

    commands: tuple[Command, ...]
    edges: tuple[tuple[int, int], ...]
    origins: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """Run one of two plans by a one-byte condition read by the host."""

    condition: Slot
    then: Plan
    otherwise: Plan


@dataclass(frozen=True, slots=True)
class Repeat:
    """Run a planned body while a condition holds, at most ``trip_count`` times; carried buffers stay on the device."""

    body: Plan
    trip_count: Slot | None
    condition: Slot | None
    carried: tuple[tuple[int, int], ...]


Step = Segment | Branch | Repeat


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output by name. ``buffer`` is None where the device never touches it."""

    name: str
    buffer: int | None
    spec: TensorSpec


@dataclass(frozen=True, slots=True)
class Read:
    """Content of an input that planning read; part of the plan's key."""

    input: str
    node: str
    role: str


@dataclass(frozen=True, slots=True)
class KeptOnHost:
    """A value that the host knows and the device need not make: who reads it, why, how many bytes."""

    value: str
    reader: str
    why: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Commands and memory of a graph on a target, for a size class. See the module docstring."""

    target: str
    buffers: tuple[Buffer, ...]
    layout: ArenaLayout
    steps: tuple[Step, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    reads: tuple[Read, ...] = ()
    host_values: tuple[KeptOnHost, ...] = ()

    def __str__(self) -> str:
        return format_plan(self)

    def commands(self) -> Iterator[Command]:
        """Yield the commands of all segments of this plan (bodies of branches and repeats excluded)."""
        for step in self.steps:
            if isinstance(step, Segment):
                yield from step.commands

    def kernels(self) -> tuple[Kernel, ...]:
        """Return the kernels launched, each once, in order of first use; bodies included."""
        seen: dict[Kernel, None] = {}
        for step in self.steps:
            match step:
                case Segment():
                    seen.update((c.kernel, None) for c in step.commands if isinstance(c, Launch))
                case Branch():
                    seen.update(dict.fromkeys((*step.then.kernels(), *step.otherwise.kernels())))
                case Repeat():
                    seen.update(dict.fromkeys(step.body.kernels()))
        return tuple(seen)

    def host_calls(self) -> tuple[HostCall, ...]:
        """Return the host calls of the plan's segments."""
        return tuple(command for command in self.commands() if isinstance(command, HostCall))

    def host_reads(self) -> tuple[tuple[str, str], ...]:
        """Return what the host reads back to decide what to run, and why; bodies included."""
        rows: list[tuple[str, str]] = []
        for step, following in zip(self.steps, (*self.steps[1:], None), strict=True):
            match step:
                case Segment(origins=origins) if isinstance(following, Segment):
                    rows.append((origins[-1] if origins else "", "what follows depends on content"))
                case Branch():
                    rows.append((str(step.condition), "which branch to take"))
                    rows += [*step.then.host_reads(), *step.otherwise.host_reads()]
                case Repeat():
                    rows += [(str(slot), "how often to repeat") for slot in (step.trip_count, step.condition) if slot]
                    rows += step.body.host_reads()
        return tuple(rows)


@dataclass(frozen=True, slots=True)
class Variant:
    """One size of a plan's class: commands by segment position, and the specs of the ports, over the plan's buffers."""

    segments: tuple[tuple[Command, ...], ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def format_plan(plan: Plan) -> str:
    """Return the plan as a readable table: ports, arena, commands with their edges."""
    lines = [f"plan for {plan.target}"]
    for label, ports in (("input", plan.inputs), ("output", plan.outputs)):
        lines += [
            f"  {label:6} {port.name}: {port.spec}" + ("" if port.buffer is None else f" in %{port.buffer}")
            for port in ports
        ]
    arena = plan.layout
    lines.append(f"  arena  {arena.nbytes} bytes (lower bound {arena.lower_bound})")
    offsets = arena.as_dict()
    for buffer in plan.buffers:
        where = f"arena+{offsets[buffer.id]}" if buffer.id in offsets else buffer.name or "table"
        lines.append(f"    %{buffer.id:<4} {buffer.role.value:8} {buffer.nbytes:>10} bytes  {where}")
    for number, step in enumerate(plan.steps):
        if not isinstance(step, Segment):
            lines.append(f"  step {number}: {type(step).__name__.lower()}")
            continue
        lines.append(f"  segment {number}: {len(step.commands)} commands")
        before: dict[int, list[int]] = {}
        for a, b in step.edges:
            before.setdefault(b, []).append(a)
        for i, command in enumerate(step.commands):
            after = f"  after {before[i]}" if i in before else ""
            lines.append(f"    {i:>4} {format_command(command)}  # {step.origins[i]}{after}")
    for read in plan.reads:
        lines.append(f"  reads {read.input} for {read.node} ({read.role})")
    return "\n".join(lines)


def format_command(command: Command) -> str:
    """Return one command on one line."""
    match command:
        case Launch():
            grid, block = "x".join(map(str, command.grid)), "x".join(map(str, command.block))
            arguments = ", ".join("bytes" if isinstance(a, bytes) else str(a) for a in command.arguments)
            return f"launch {command.kernel} <{grid}, {block}> ({arguments})"
        case Copy():
            return f"copy {command.destination} <- {command.source}"
        case Fill():
            return f"fill {command.destination} with {command.pattern.hex()}"
        case HostCall():
            outputs = ", ".join(str(s) for s in command.outputs)
            return f"{outputs} = {command.operator}({', '.join(str(s) for s in command.inputs)})"
