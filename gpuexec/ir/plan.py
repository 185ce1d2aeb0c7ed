"""The Plan: buffers, layout, commands and edges that the planner gives to the runtime.

Frozen data, no pointers, no callables.

    Plan    = target, buffers, layout, segment, inputs, outputs, reads, host_values
    Segment = commands + edges + origins        (one recording)

Execution order is partial: a device may run two commands of a segment together unless a path of edges joins them. A
plan is made for the upper end of a size class; `Variant` holds the commands of one size of the class, over
the same buffers. A run goes through several plans where the host has a say in between: see `gpuexec.planner.partition`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from gpuexec.ir.arena_drawing import BufferLifetime, draw_arena
from gpuexec.ir.command import Command, Copy, Fill, HostCall, Kernel, Launch, LibraryCall
from gpuexec.ir.moving_arguments import STORE_SIZES, find_moving
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.weight_forms import PackedForm
from gpuexec.system.html import make_fragment, make_section, make_table
from gpuexec.system.records import encode_fields


class Role(Enum):
    """Purpose of a buffer, which decides who owns its bytes and whether its address is known when recording.

    TEMP lies in the arena; CONSTANT with the weights; INPUT, OUTPUT, STATE and EXCHANGE are bound at submit; OBJECT
    lives on the host (strings, containers). COUNTERS lie beside the arena: they are 0 when a run begins, and every
    launch leaves them at 0.
    """

    INPUT = "input"
    OUTPUT = "output"
    CONSTANT = "constant"
    STATE = "state"
    TEMP = "temp"
    EXCHANGE = "exchange"
    OBJECT = "object"
    COUNTERS = "counters"


BOUND_ROLES = frozenset({Role.INPUT, Role.OUTPUT, Role.STATE, Role.EXCHANGE})


@dataclass(frozen=True, slots=True)
class Buffer:
    """Bytes with a role. ``nbytes`` is the capacity at the upper end of the size class.

    ``name`` is the input, output or weight; ``data`` the content of a table computed while planning; ``form`` the form
    that a weight is packed in, None where it is as the model has it.
    """

    id: int
    role: Role
    nbytes: int
    name: str = ""
    data: bytes | None = None
    form: PackedForm | None = None


@dataclass(frozen=True, slots=True)
class ArenaLayout:
    """Placement of TEMP buffers: byte offsets by buffer id, arena size, and the lower bound of any layout."""

    offsets: tuple[tuple[int, int], ...]
    nbytes: int
    lower_bound: int

    def as_dict(self) -> dict[int, int]:
        """Return offsets by buffer id."""
        return dict(self.offsets)


@dataclass(frozen=True, slots=True)
class Segment:
    """Commands in which the host has no say. ``edges`` are pairs (before, after); ``origins`` name the nodes."""

    commands: tuple[Command, ...]
    edges: tuple[tuple[int, int], ...]
    origins: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output by name. ``buffer`` is None where the device never touches it."""

    name: str
    buffer: int | None
    spec: TensorSpec


@dataclass(frozen=True, slots=True)
class Read:
    """Content of an input that planning read; part of the plan's key.

    With ``least`` the input is one number, and all numbers up to that gave the same.
    """

    input: str
    node: str
    role: str
    least: int | None = None

    def extract(self, content: np.ndarray[Any, Any]) -> bytes:
        """Return the part of the input's content that planning read, as bytes."""
        return content.tobytes() if self.least is None else b"%d" % max(self.least, int(content.reshape(())))


@dataclass(frozen=True, slots=True)
class KeptOnHost:
    """A value that the host knows and the device need not make: its readers, the reason, and its size."""

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
    segment: Segment
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    reads: tuple[Read, ...] = ()
    host_values: tuple[KeptOnHost, ...] = ()

    def __str__(self) -> str:
        return format_plan(self)

    def _repr_html_(self) -> str:
        return _make_fragment(self)

    @property
    def counters_nbytes(self) -> int:
        """Bytes of its counters."""
        return sum(buffer.nbytes for buffer in self.buffers if buffer.role is Role.COUNTERS)

    def to_dict(self) -> dict[str, Any]:
        """Return the commands, the bytes by role, and what stays on the host, as JSON data; `plan_json` has it all."""
        before: dict[int, list[int]] = {}
        for first, second in self.segment.edges:
            before.setdefault(second, []).append(first)
        roles = {role.value: sum(each.nbytes for each in self.buffers if each.role is role) for role in Role}
        return {
            "target": self.target,
            "inputs": {port.name: str(port.spec) for port in self.inputs},
            "outputs": {port.name: str(port.spec) for port in self.outputs},
            "arena_nbytes": self.layout.nbytes,
            "arena_lower_bound": self.layout.lower_bound,
            "nbytes": {role: nbytes for role, nbytes in roles.items() if nbytes},
            "commands": [
                {"origin": origin, "command": format_command(command), "after": before.get(index, [])}
                for index, (origin, command) in enumerate(zip(self.segment.origins, self.segment.commands, strict=True))
            ],
            "host_values": [encode_fields(each) for each in self.host_values],
        }

    def kernels(self) -> tuple[Kernel, ...]:
        """Return the kernels launched, each once, in order of first use, and behind them what their graph launches."""
        kernels = dict.fromkeys(c.kernel for c in self.segment.commands if isinstance(c, Launch))
        return (*kernels, STORE_SIZES) if any(map(find_moving, kernels)) else tuple(kernels)


@dataclass(frozen=True, slots=True)
class Variant:
    """One size of a plan's class: its commands, and the specs of the ports, over the plan's buffers.

    ``reads`` is the content it depends on.
    """

    commands: tuple[Command, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    reads: tuple[Read, ...] = ()


def find_lives(commands: Sequence[Command]) -> dict[int, tuple[int, int]]:
    """Return the commands ``[first, last)`` from the first to the last that uses each buffer."""
    lives: dict[int, tuple[int, int]] = {}
    for position, command in enumerate(commands):
        for slot in (*command.reads_from(), *command.writes_to()):
            lives[slot.buffer] = (lives.get(slot.buffer, (position,))[0], position + 1)
    return lives


def list_lifetimes(plan: Plan, made_by: Mapping[str, Sequence[str]]) -> list[BufferLifetime]:
    """Return the lifetimes of a plan's temporaries.

    Args:
        plan: The plan.
        made_by: Names of the values each node makes. What no other node reads is a node's scratch memory.
    """
    commands, origins = plan.segment.commands, plan.segment.origins
    lives, offsets = find_lives(commands), plan.layout.as_dict()
    makers: dict[int, dict[str, None]] = {}
    users: dict[int, set[str]] = {}
    for command, origin in zip(commands, origins, strict=True):
        for slot in command.writes_to():
            makers.setdefault(slot.buffer, {})[origin] = None
            users.setdefault(slot.buffer, set()).add(origin)
        for slot in command.reads_from():
            users.setdefault(slot.buffer, set()).add(origin)
    lifetimes = []
    for buffer in plan.buffers:
        if buffer.role is Role.TEMP:
            nodes = tuple(makers.get(buffer.id, ()))
            values = [buffer.name] if buffer.name else []
            if not values and len(users.get(buffer.id, ())) > 1:
                values = [value for node in nodes for value in made_by.get(node, ())]
            lifetimes.append(
                BufferLifetime(buffer.id, offsets[buffer.id], buffer.nbytes, *lives[buffer.id], nodes, tuple(values))
            )
    return lifetimes


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
        where += "" if buffer.form is None else f" as {buffer.form}"
        lines.append(f"    %{buffer.id:<4} {buffer.role.value:8} {buffer.nbytes:>10} bytes  {where}")
    segment = plan.segment
    lines.append(f"  {len(segment.commands)} commands")
    before: dict[int, list[int]] = {}
    for a, b in segment.edges:
        before.setdefault(b, []).append(a)
    for i, command in enumerate(segment.commands):
        after = f"  after {before[i]}" if i in before else ""
        lines.append(f"    {i:>4} {format_command(command)}  # {segment.origins[i]}{after}")
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
        case LibraryCall():
            arguments = ", ".join(map(str, command.arguments))
            return f"call {command.library} {command.problem} ({arguments})"
        case HostCall():
            outputs = ", ".join(str(s) for s in command.outputs)
            return f"{outputs} = {command.operator}({', '.join(str(s) for s in command.inputs)})"


def _make_fragment(plan: Plan) -> str:
    """Return the plan for notebooks: ports, arena over time, commands, and what it depends on."""
    segment, layout = plan.segment, plan.layout
    ports = [
        (label, port.name, port.spec)
        for label, group in (("input", plan.inputs), ("output", plan.outputs))
        for port in group
    ]
    # Values are not in a plan: each has the name of its node.
    lifetimes = list_lifetimes(plan, {origin: (origin,) for origin in segment.origins})
    arena = draw_arena(lifetimes, len(segment.commands), layout.nbytes, layout.lower_bound)
    commands = [
        (position, origin, format_command(command))
        for position, (command, origin) in enumerate(zip(segment.commands, segment.origins, strict=True))
    ]
    return make_fragment(
        f"Plan for {plan.target}: {len(commands)} commands",
        make_table(("", "name", "spec"), ports),
        make_section("Arena", arena if lifetimes else ""),
        make_section("Commands", make_table(("", "node", "command"), commands)),
        make_section(
            "Read while planning",
            make_table(("input", "node", "for"), [(read.input, read.node, read.role) for read in plan.reads]),
        ),
        make_section(
            "Kept on the host",
            make_table(
                ("value", "reader", "why", "bytes"),
                [(row.value, row.reader, row.why, f"{row.nbytes:,}") for row in plan.host_values],
                numbers=1,
            ),
        ),
    )
