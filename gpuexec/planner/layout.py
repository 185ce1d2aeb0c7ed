"""Where temporaries lie: when they live, which are kept apart, and the arena they are packed into."""

from __future__ import annotations

from collections.abc import Sequence

from gpuexec.command import Command
from gpuexec.errors import OutOfMemoryError
from gpuexec.plan import ArenaLayout, Buffer, Role
from gpuexec.planner.arena import Lifetime, pack
from gpuexec.planner.draft import slots_of
from gpuexec.planner.edges import find_edges, find_paths
from gpuexec.target import Target

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


def check_room(
    buffers: Sequence[Buffer], commands: Sequence[Command], origins: Sequence[str], layout: ArenaLayout, target: Target
) -> None:
    """Check that the target could hold what a plan needs, before anything is allocated.

    The limit is all the memory the device has, not what is free: a plan is kept, and what is free changes. What fits
    there and is refused all the same, the allocation tells.

    Raises:
        OutOfMemoryError: One buffer is too large, or all are together; names the node that writes the largest.
    """
    largest = max(buffers, key=lambda buffer: buffer.nbytes, default=None)
    held = layout.nbytes + sum(b.nbytes for b in buffers if b.role not in (Role.TEMP, Role.CONSTANT))
    if largest is None or max(held, largest.nbytes) <= target.memory_bytes:
        return
    rows = zip(origins, commands, strict=True)
    writer = next((o for o, c in rows if any(s.buffer == largest.id for s in c.writes_to())), None)
    where = f"%{largest.name}" if largest.name else f"a result of {writer!r}"
    raise OutOfMemoryError(
        f"The plan needs {held} bytes for temporaries, inputs and outputs, of which {where}"
        f"{f' (made by {writer!r})' if largest.name and writer else ''} takes {largest.nbytes};"
        f" {target.name} has {target.memory_bytes} bytes of memory.",
        node=writer,
        value=largest.name or None,
    )


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
