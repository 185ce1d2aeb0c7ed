"""Layers of a plan at one size, as a profiler reports them, computed once for any number of runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuexec.execution.profiling.rows import CommandRow
from gpuexec.ir.arena_drawing import BufferLifetime
from gpuexec.ir.command import Command, Copy, Fill, HostCall, Launch, LibraryCall, Slot
from gpuexec.ir.graphs import Graph, Node, Value, name_values
from gpuexec.ir.plan import Plan, list_lifetimes
from gpuexec.ir.spec import TensorSpec

_NO_GRID = (0, 0, 0)
_KINDS: dict[type[Command], str] = {
    Launch: "launch",
    Copy: "copy",
    Fill: "fill",
    LibraryCall: "library call",
}


@dataclass(frozen=True, slots=True)
class Layer:
    """Consecutive commands ``[first, last)`` of one node; see `gpuexec.execution.profiling.rows` for the rest.

    Where they are no node's (an output is copied to its place, a value the host knows is stored), ``operator`` is the
    kind of command, of a CPU's its operator.
    """

    node: str
    operator: str
    commands: tuple[CommandRow, ...]
    first: int
    last: int
    flops: int | None
    arena_used: int
    values: tuple[tuple[str, int], ...]

    @property
    def bytes_read(self) -> int:
        """Bytes of all slots read."""
        return sum(command.bytes_read for command in self.commands)

    @property
    def bytes_written(self) -> int:
        """Bytes of all slots written."""
        return sum(command.bytes_written for command in self.commands)


@dataclass(frozen=True, slots=True)
class PlanLayers:
    """The layers of a plan at one size. ``number`` is the plan's, ``arena`` its arena's bytes."""

    number: int
    arena: int
    layers: tuple[Layer, ...]


def describe_layers(
    number: int, plan: Plan, commands: Sequence[Command], graph: Graph, specs: Mapping[Value, TensorSpec]
) -> PlanLayers:
    """Return the layers of a plan.

    Args:
        number: Of the plan.
        plan: At the upper end of its class.
        commands: Those of the size at hand.
        graph: The planned graph.
        specs: Of its values, at that size.
    """
    nodes = {node.name: node for node in graph.nodes}
    lifetimes = list_lifetimes(plan, name_values(graph))
    origins = plan.segment.origins
    layers: list[Layer] = []
    counted: set[str] = set()
    first = 0
    for last in range(1, len(origins) + 1):
        origin = origins[first]
        if last < len(origins) and origins[last] == origin:
            continue
        node = nodes.get(origin)
        # The work of a node whose commands are not all in a row is counted once.
        flops = count_node_flops(node, specs) if node is not None and origin not in counted else 0
        counted.add(origin)
        rows = tuple(describe_command(command) for command in commands[first:last])
        operator = rows[0].kind if node is None else node.operator.name
        layers.append(Layer(origin, operator, rows, first, last, flops, *_find_alive(lifetimes, first, last)))
        first = last
    return PlanLayers(number, plan.layout.nbytes, tuple(layers))


def describe_command(command: Command) -> CommandRow:
    """Return a command as a row."""
    grid, block, kernel = _NO_GRID, _NO_GRID, ""
    if isinstance(command, Launch):
        grid, block, kernel = command.grid, command.block, str(command.kernel)
    elif isinstance(command, LibraryCall):
        kernel = command.library
    read, written = count_bytes(command.reads_from()), count_bytes(command.writes_to())
    kind = command.operator if isinstance(command, HostCall) else _KINDS[type(command)]
    return CommandRow(kind, kernel, grid, block, read, written)


def count_bytes(slots: Iterable[Slot]) -> int:
    """Count the bytes of slots; repeated bytes within a slot count once."""
    total = 0
    for slot in slots:
        first, last = slot.byte_range()
        total += min(slot.spec.nbytes, last - first)
    return total


def count_node_flops(node: Node, specs: Mapping[Value, TensorSpec]) -> int | None:
    """Count the operations of a node; None where there is no formula, or a shape is not known."""
    wanted = [value for value in (*node.inputs, *node.outputs) if value is not None]
    if any(value not in specs for value in wanted):
        return None
    inputs, outputs = (
        [None if value is None else specs[value] for value in values] for values in (node.inputs, node.outputs)
    )
    return node.operator.count_flops(inputs, outputs)


def _find_alive(lifetimes: Sequence[BufferLifetime], first: int, last: int) -> tuple[int, tuple[tuple[str, int], ...]]:
    """Return the arena bytes that are live during commands, and the temporaries there."""
    alive = [lifetime for lifetime in lifetimes if lifetime.first < last and lifetime.last > first]
    values = tuple((", ".join(lifetime.values) or "scratch", lifetime.nbytes) for lifetime in alive)
    return sum(lifetime.nbytes for lifetime in alive), values
