"""Stored plans: reuse of a layout and edges where lowering gives the same commands once more.

So packing is done once, where the plan was made. A layout taken over is not trusted: the resulting plan is
verified like any other.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuexec.errors import PlanError
from gpuexec.ir.command import Command
from gpuexec.ir.geometry import round_up
from gpuexec.ir.plan import ArenaLayout, Buffer, Plan, Role, format_command
from gpuexec.ir.plan_json import encode
from gpuexec.planner.arena import ALIGNMENT


def take_over(
    stored: Plan, buffers: Sequence[Buffer], commands: Sequence[Command]
) -> tuple[ArenaLayout, tuple[tuple[int, int], ...]]:
    """Return layout and edges of a stored plan for the buffers and commands that lowering gave now.

    Raises:
        PlanError: They are others than the stored plan's (an operator is lowered in another way than when it was
            made), or its arena is larger than all its buffers.
    """
    if len(stored.segment.commands) != len(commands) or len(stored.buffers) != len(buffers):
        raise PlanError(
            f"The stored plan has {len(stored.segment.commands)} commands on {len(stored.buffers)} buffers, lowering "
            f"gives {len(commands)} on {len(buffers)}."
        )
    for kept, buffer in zip(stored.buffers, buffers, strict=True):
        if kept != buffer:
            raise PlanError(f"The stored plan has buffer %{buffer.id} of other size, role or content than lowering.")
    for number, (kept_command, command) in enumerate(zip(stored.segment.commands, commands, strict=True)):
        # Scalars that are no number are equal only as text.
        if kept_command != command and encode(kept_command) != encode(command):
            raise PlanError(f"The stored plan has another command {number} than {format_command(command)[:80]}.")
    room = sum(round_up(buffer.nbytes, ALIGNMENT) for buffer in buffers if buffer.role is Role.TEMP)
    if not 0 <= stored.layout.nbytes <= room:
        raise PlanError(f"The stored plan has an arena of {stored.layout.nbytes} bytes for {room} of buffers.")
    if sorted(number for number, _ in stored.layout.offsets) != [b.id for b in buffers if b.role is Role.TEMP]:
        raise PlanError("The stored plan gives places to other buffers than the temporaries.")
    return stored.layout, stored.segment.edges
