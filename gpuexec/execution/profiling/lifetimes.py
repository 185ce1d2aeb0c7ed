"""Lifetimes of temporaries in the arena of a plan: first and last command, offset and content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuexec.ir.graphs import Graph, walk
from gpuexec.ir.plan import Plan, Role
from gpuexec.planner.layout import find_lives


@dataclass(frozen=True, slots=True)
class BufferLifetime:
    """Lifetime of a buffer in the arena: bytes from ``offset`` on, during commands ``[first, last)``."""

    buffer: int
    offset: int
    nbytes: int
    first: int
    last: int
    nodes: tuple[str, ...]
    values: tuple[str, ...]

    def __str__(self) -> str:
        values = ", ".join(f"%{value}" for value in self.values) or "scratch"
        return (
            f"buffer %{self.buffer}: {values}, written by {', '.join(self.nodes) or 'nothing'}; {self.nbytes:,} bytes"
            f" at arena+{self.offset:,}; commands {self.first} to {self.last - 1}"
        )


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


def name_values(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Return the names of each node's values, those of bodies too, by node name."""
    rows: dict[str, tuple[str, ...]] = {}
    for each in walk(graph):
        for node in each.nodes:
            made = tuple(value.name for value in node.outputs if value is not None)
            rows[node.name] = rows.get(node.name, ()) + made
    return rows
