"""Settlement of a size class: kept commands, shared bytes and buffer numbers common to all its sizes.

`settle` decides it once, at the upper end. Output copies and stores of host values join the unpacked plan here, since
only now it is known which are needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuexec.errors import GpuexecError, PlanError, locate
from gpuexec.ir.command import Command, Slot
from gpuexec.ir.graphs import Graph
from gpuexec.ir.plan import Role
from gpuexec.ir.spec import SymbolicValue, TensorSpec
from gpuexec.ir.target import Target
from gpuexec.planner.emitter import emit_copy, emit_store
from gpuexec.planner.lower import Lowered
from gpuexec.planner.unpacked_plan import (
    BufferOffset,
    Group,
    GroupKey,
    UnpackedBuffer,
    UnpackedPlan,
    dense,
    find_root,
    slots_of,
)

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Pick:
    """The commands taken from a group, by position in it; ``in_place`` is the request that was granted to it."""

    key: GroupKey
    origin: str
    positions: tuple[int, ...]
    in_place: Pair | None


@dataclass(frozen=True, slots=True)
class Settlement:
    """Decisions for a size class, in terms of the unpacked plan's buffers and groups.

    Attributes:
        picks: In plan order.
        promoted: For each output of the graph the buffer that is the output itself, or None: it is copied.
        outputs: For each output of the graph its buffer.
        merged: Buffers that lie in others for good; those placed by offset excluded.
        buffers: All buffers at the upper end.
        numbers: Plan buffer of each buffer of the unpacked plan that commands or outputs use.
    """

    picks: tuple[Pick, ...]
    promoted: tuple[int | None, ...]
    outputs: tuple[int, ...]
    merged: Mapping[int, BufferOffset]
    buffers: tuple[UnpackedBuffer, ...]
    numbers: Mapping[int, int]

    def enlarge(self, factor: int) -> Settlement:
        """Return the same decisions with larger buffers for the commands' results."""
        if factor == 1:
            return self
        made = {Role.TEMP, Role.OUTPUT, Role.COUNTERS}
        buffers = [replace(each, nbytes=each.nbytes * factor) if each.role in made else each for each in self.buffers]
        return replace(self, buffers=tuple(buffers))


def settle(lowered: Lowered, graph: Graph, target: Target, copies: OutputCopies) -> Settlement:
    """Decide the layout that all sizes of the class share, from the unpacked plan of its upper end."""
    unpacked = lowered.unpacked
    promoted = _promote(lowered)
    outputs = copies.add(lowered, promoted)
    names = {buffer: value.name for buffer, value in zip(outputs, graph.outputs, strict=True)}
    groups, positions = _keep_live(unpacked, set(names))
    places, granted = _merge_in_place(unpacked.buffers, groups, unpacked.placed, names)
    picks = []
    stored: set[int] = set()
    for group, kept in zip(groups, positions, strict=True):
        picks += _pick_stores(unpacked, target, (s.buffer for c in group.commands for s in c.reads_from()), stored)
        picks.append(Pick(group.key, group.origin, kept, granted.get(group.key)))
    picks += _pick_stores(unpacked, target, outputs, stored)
    roots = {find_root(slot.buffer, places)[0] for group in groups for c in group.commands for slot, _ in slots_of(c)}
    roots.update(stored, outputs)
    return Settlement(
        picks=tuple(picks),
        promoted=promoted,
        outputs=outputs,
        merged={buffer: place for buffer, place in places.items() if buffer not in unpacked.placed},
        buffers=tuple(unpacked.buffers),
        numbers={buffer: number for number, buffer in enumerate(sorted(roots))},
    )


class OutputCopies:
    """Buffers and copies of a graph's outputs, size after size; copies that do not change are the same objects."""

    def __init__(self, graph: Graph, target: Target) -> None:
        self._graph, self._target = graph, target
        self._last: dict[int, tuple[Slot, Slot, list[Command]]] = {}
        self._choices: dict[int, list[int]] = {}

    def add(self, lowered: Lowered, promoted: Sequence[int | None], *, is_symbolic: bool = False) -> tuple[int, ...]:
        """Add a buffer and a copy for every output that is not promoted; return the buffers of all outputs.

        Args:
            lowered: What has the outputs.
            promoted: The buffer that each output is itself.
            is_symbolic: Whether extents are symbolic: the last copies is not compared with, nor this one kept.

        Raises:
            PlanError: A promoted output does not lie where it lay at the upper end.
        """
        unpacked = lowered.unpacked
        outputs = []
        for position, (value, slot) in enumerate(zip(self._graph.outputs, lowered.outputs, strict=True)):
            own = promoted[position]
            if position in lowered.grown:
                # It was made in place.
                outputs.append(slot.buffer)
                continue
            if own is None:
                spec = TensorSpec(slot.shape, slot.dtype)
                own = unpacked.new_buffer(UnpackedBuffer(Role.OUTPUT, spec.nbytes, value.name))
                try:
                    commands = self._copy(unpacked, position, dense(own, spec), slot, is_symbolic=is_symbolic)
                except GpuexecError as error:
                    raise locate(error, f"Output {value}") from None
                if commands:
                    unpacked.groups.append(Group(("output", position), value.name, commands))
            elif slot.buffer != own or slot.offset_bytes or not slot.is_contiguous:
                raise PlanError(f"Output {value} lies elsewhere at this size.")
            outputs.append(own)
        return tuple(outputs)

    def _copy(
        self, unpacked: UnpackedPlan, position: int, destination: Slot, source: Slot, *, is_symbolic: bool
    ) -> list[Command]:
        last = None if is_symbolic else self._last.get(position)
        if last is None or last[0] != destination or last[1] != source:
            effects = emit_copy(self._target, unpacked, destination, source, self._choices.get(position))
            last = (destination, source, effects.commands)
            if not is_symbolic:
                self._choices.setdefault(position, effects.choices)
                self._last[position] = last
        return last[2]


def make_stores(unpacked: UnpackedPlan, target: Target, buffer: int, capacity: int) -> list[Command]:
    """Return the commands that write the content of a host value."""
    content = unpacked.buffers[buffer].content
    assert content is not None
    if isinstance(content, SymbolicValue):
        spec = TensorSpec(content.symbols.shape, content.dtype)
    else:
        spec = TensorSpec(content.array.shape, content.array.dtype)
    return emit_store(target, unpacked, dense(buffer, spec), content, capacity)


def _promote(lowered: Lowered) -> tuple[int | None, ...]:
    """Return for each output the buffer that can be the output itself: a temporary that is wholly its own."""
    promoted: list[int | None] = []
    taken: set[int] = set()
    for slot in lowered.outputs:
        held = lowered.unpacked.buffers[slot.buffer]
        is_free = held.role is Role.TEMP and slot.buffer not in taken and slot.buffer not in lowered.unpacked.placed
        is_whole = slot.offset_bytes == 0 and slot.is_contiguous and slot.spec.nbytes == held.nbytes
        promoted.append(slot.buffer if is_free and is_whole else None)
        if is_free and is_whole:
            taken.add(slot.buffer)
    return tuple(promoted)


def _keep_live(unpacked: UnpackedPlan, needed: set[int]) -> tuple[list[Group], list[tuple[int, ...]]]:
    """Return the live groups, in order and cut down to their live commands, and the indices of these."""
    wanted = {find_root(buffer, unpacked.placed)[0] for buffer in needed}
    groups, positions = [], []
    for group in reversed(unpacked.groups):
        kept: list[int] = []
        for position in range(len(group.commands) - 1, -1, -1):
            command = group.commands[position]
            written = [find_root(slot.buffer, unpacked.placed)[0] for slot in command.writes_to()]
            if any(buffer in wanted for buffer in written):
                wanted.update(find_root(slot.buffer, unpacked.placed)[0] for slot in command.reads_from())
                wanted.update(written)  # what is written may be a part, or what a kernel counts on
                kept.append(position)
        if kept:
            kept.reverse()
            groups.append(Group(group.key, group.origin, [group.commands[i] for i in kept], group.in_place))
            positions.append(tuple(kept))
    return groups[::-1], positions[::-1]


def _pick_stores(unpacked: UnpackedPlan, target: Target, buffers: Iterable[int], stored: set[int]) -> list[Pick]:
    """Return picks for the host values among these buffers that no pick stores yet."""
    picks = []
    for buffer in buffers:
        held = unpacked.buffers[buffer]
        if held.content is None or buffer in stored:
            continue
        stored.add(buffer)
        count = len(make_stores(unpacked, target, buffer, held.nbytes))
        if count:
            picks.append(Pick(("store", buffer), held.name, tuple(range(count)), None))
    return picks


def _merge_in_place(
    buffers: Sequence[UnpackedBuffer],
    groups: Sequence[Group],
    placed: Mapping[int, BufferOffset],
    outputs: Mapping[int, str],
) -> tuple[dict[int, BufferOffset], dict[GroupKey, Pair]]:
    """Grant the requests for outputs in the bytes of an input that is not read afterwards, where that is safe.

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
    """Return whether every window of the group on a buffer is the whole of it, all of them in one order."""
    windows = [
        slot
        for command in group.commands
        for slot, _ in slots_of(command)
        if find_root(slot.buffer, places)[0] == buffer
    ]
    orders = {slot.order if slot.spec.nbytes == nbytes else None for slot in windows}
    return None not in orders and len(orders) <= 1
