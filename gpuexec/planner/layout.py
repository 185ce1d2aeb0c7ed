"""Layout of temporaries: lifetimes, separation of concurrent buffers, and their arena."""

from __future__ import annotations

from collections.abc import Sequence

from gpuexec.errors import OutOfMemoryError
from gpuexec.ir.command import Command, HostCall
from gpuexec.ir.plan import ArenaLayout, Buffer, Role, find_lives
from gpuexec.ir.target import Target
from gpuexec.ops.reduce.statistics import is_look
from gpuexec.planner.arena import Lifetime, pack
from gpuexec.planner.edges import Conflicts
from gpuexec.planner.unpacked_plan import slots_of

# Commands that move this many bytes or more are worth running side by side, so their buffers are kept apart.
HEAVY_BYTES = 1 << 20


def lay_out(buffers: Sequence[Buffer], commands: Sequence[Command], conflicts: Conflicts) -> ArenaLayout:
    """Pack the temporaries among the buffers by when commands, in plan order, use them."""
    temporaries = [buffer for buffer in buffers if buffer.role is Role.TEMP]
    if not temporaries:
        return ArenaLayout((), 0, 0)
    lives = find_lives(commands)
    apart = _find_apart(commands, conflicts)
    lifetimes = [Lifetime(b.id, b.nbytes, *lives[b.id], frozenset(apart.get(b.id, ()))) for b in temporaries]
    packing = pack(lifetimes)
    return ArenaLayout(tuple(sorted(packing.offsets.items())), packing.nbytes, packing.lower_bound)


def check_room(
    buffers: Sequence[Buffer], commands: Sequence[Command], origins: Sequence[str], layout: ArenaLayout, target: Target
) -> None:
    """Check that the target can hold a plan's memory, before anything is allocated.

    The limit is all the memory the device has, not what is free: a plan is kept, and what is free changes. What fits
    there and is refused all the same, the allocation tells.

    Raises:
        OutOfMemoryError: One buffer is too large, or all are together; names the node that writes the largest.
    """
    largest = max([buffer.nbytes for buffer in buffers], default=0)
    held = layout.nbytes + sum([b.nbytes for b in buffers if b.role not in (Role.TEMP, Role.CONSTANT)])
    if max(held, largest) <= target.memory_bytes:
        return
    text, node, value = describe_largest(buffers, commands, origins)
    raise OutOfMemoryError(
        f"The plan needs {held} bytes for temporaries, inputs and outputs, the most of them for {text};"
        f" {target.name} has {target.memory_bytes} bytes of memory.",
        node=node,
        value=value,
    )


def describe_largest(
    buffers: Sequence[Buffer], commands: Sequence[Command], origins: Sequence[str]
) -> tuple[str, str | None, str | None]:
    """Return the largest buffer in words, the node that makes it (or else reads it), and its name."""
    largest = max(buffers, key=lambda buffer: buffer.nbytes, default=None)
    if largest is None:
        return "none", None, None
    rows = list(zip(origins, commands, strict=True))
    maker = next((o for o, c in rows if any(s.buffer == largest.id for s in c.writes_to())), None)
    reader = next((o for o, c in rows if any(s.buffer == largest.id for s in c.reads_from())), None)
    by = f"made by {maker!r}" if maker else f"read by {reader!r}" if reader else largest.role.value
    text = f"%{largest.name} ({by})" if largest.name else f"a result of {maker!r}"
    return f"{text}, which takes {largest.nbytes}", maker or reader, largest.name or None


def _find_apart(commands: Sequence[Command], conflicts: Conflicts) -> dict[int, set[int]]:
    """Return, for buffers of heavy commands that data does not order, the buffers they must not share bytes with."""
    # Observing commands may delay the next user of a value's bytes; the alternative is memory for every observed value.
    heavy = [i for i, c in enumerate(commands) if not is_look(c) and _count_bytes(c) >= HEAVY_BYTES]
    apart: dict[int, set[int]] = {}
    if len(heavy) < 2:
        return apart
    paths = conflicts.find_paths()
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
    """Return the bytes of what a command reads and writes, scratch left out."""
    scratch = command.scratch if isinstance(command, HostCall) else ()
    slots = [slot for slot, _ in slots_of(command) if slot not in scratch]
    return sum(high - low for slot in slots for low, high in (slot.byte_range(),))
