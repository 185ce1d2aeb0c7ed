"""In-place assignment: outputs that reuse the bytes of an input that is not read afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuexec.ir.command import Slot
from gpuexec.ir.plan import Role
from gpuexec.planner.unpacked_plan import BufferOffset, Group, GroupKey, UnpackedBuffer, find_root, slots_of

Pair = tuple[int, int]


def merge_in_place(
    buffers: Sequence[UnpackedBuffer],
    groups: Sequence[Group],
    placed: Mapping[int, BufferOffset],
    outputs: Mapping[int, str],
) -> tuple[dict[int, BufferOffset], dict[GroupKey, Pair]]:
    """Grant the requests that are safe.

    A request is granted where both buffers are of one size, the input's is a temporary made by a command, no later
    group touches it, and the node itself reads it through no other window. Output buffers of the graph may take the
    bytes of an input, never give theirs.

    Args:
        buffers: Of the unpacked plan, by id.
        groups: In plan order.
        placed: Buffers that lie in others already.
        outputs: Buffers that are outputs of the graph.

    Returns:
        All places, those given included, and the pair (output, source) granted to each group.
    """
    places = dict(placed)
    granted: dict[GroupKey, Pair] = {}
    last_use: dict[int, int] = {}
    for position, group in enumerate(groups):
        for command in group.commands:
            for slot, _ in slots_of(command):
                last_use[find_root(slot.buffer, places)[0]] = position
    for position, group in enumerate(groups):
        for output, source in group.in_place:
            into, taken = find_root(output, places)[0], find_root(source, places)[0]
            kept, given = buffers[into], buffers[taken]
            is_free = given.role is Role.TEMP and given.content is None and taken not in outputs
            is_last = last_use.get(taken, -1) == position and kept.role is Role.TEMP and into != taken
            is_whole = kept.nbytes == given.nbytes == buffers[output].nbytes
            if not (is_free and is_last and is_whole and _reads_densely(group, taken, given.nbytes, places)):
                continue
            # The output of the graph keeps its buffer; otherwise the older buffer stays.
            gone, stays = (taken, into) if into in outputs else (into, taken)
            places[gone] = (stays, 0)
            last_use[stays] = max(last_use[into], last_use[taken])
            granted[group.key] = (output, source)
            break
    return places, granted


def _reads_densely(group: Group, buffer: int, nbytes: int, places: Mapping[int, BufferOffset]) -> bool:
    """Return whether every window of the group on a buffer is the whole of it."""

    def is_whole(slot: Slot) -> bool:
        return slot.is_contiguous and slot.spec.nbytes == nbytes

    return all(
        is_whole(slot)
        for command in group.commands
        for slot, _ in slots_of(command)
        if find_root(slot.buffer, places)[0] == buffer
    )
