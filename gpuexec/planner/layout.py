"""Where temporaries lie: when they live, which are kept apart, and the arena they are packed into."""

from __future__ import annotations

from collections.abc import Sequence

from gpuexec.command import Command
from gpuexec.plan import ArenaLayout, Buffer, Role
from gpuexec.planner.arena import Lifetime, pack
from gpuexec.planner.draft import slots_of
from gpuexec.planner.edges import find_edges, find_paths

# Commands that move this many bytes or more are worth running side by side, so their buffers are kept apart.
HEAVY_BYTES = 1 << 20


def lay_out(buffers: Sequence[Buffer], commands: Sequence[Command]) -> ArenaLayout:
    """Pack the temporaries among the buffers by when commands, in plan order, use them."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for position, command in enumerate(commands):
        for slot, _ in slots_of(command):
            first.setdefault(slot.buffer, position)
            last[slot.buffer] = position + 1
    apart = _find_apart(commands)
    lifetimes = [
        Lifetime(b.id, b.nbytes, first[b.id], last[b.id], frozenset(apart.get(b.id, ())))
        for b in buffers
        if b.role is Role.TEMP
    ]
    packing = pack(lifetimes)
    return ArenaLayout(tuple(sorted(packing.offsets.items())), packing.nbytes, packing.lower_bound)


def _find_apart(commands: Sequence[Command]) -> dict[int, set[int]]:
    """Return, for buffers of heavy commands that data does not order, the buffers they must not share bytes with."""
    heavy = [i for i, command in enumerate(commands) if _count_bytes(command) >= HEAVY_BYTES]
    apart: dict[int, set[int]] = {}
    if len(heavy) < 2:
        return apart
    paths = find_paths(len(commands), find_edges(commands))
    touched = {i: {slot.buffer for slot, _ in slots_of(commands[i])} for i in heavy}
    for n, later in enumerate(heavy):
        for earlier in heavy[:n]:
            if paths[later] >> earlier & 1:
                continue
            for a in touched[earlier]:
                for b in touched[later] - {a}:
                    apart.setdefault(a, set()).add(b)
                    apart.setdefault(b, set()).add(a)
    return apart


def _count_bytes(command: Command) -> int:
    return sum(high - low for slot, _ in slots_of(command) for low, high in (slot.byte_range(),))
