"""Resolution of an unpacked plan's slots to slots of plan buffers.

Runs once at the upper end and once for every size; unchanged commands are the same objects as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuexec.errors import PlanError
from gpuexec.ir.command import Command, Copy, Fill, HostCall, Launch, LibraryCall, Slot
from gpuexec.ir.kernel_values import SymbolicBytes
from gpuexec.ir.spec import SymbolicValue, TensorSpec
from gpuexec.ir.target import Target
from gpuexec.planner.settle import Pick, Settlement, make_stores
from gpuexec.planner.unpacked_plan import BufferOffset, GroupKey, UnpackedPlan, find_root, map_slots


@dataclass(frozen=True, slots=True)
class _ResolvedGroup:
    """A group as it was resolved last: its commands, where the buffers they touch lie, and the outcome."""

    commands: Sequence[Command]
    places: dict[int, BufferOffset]
    resolved: list[Command]


class Resolver:
    """Resolution of the unpacked plans of one size class.

    The first, the upper end, is what later ones are compared with: commands must be alike but for grids, scalars,
    offsets and extents.
    """

    def __init__(self, settlement: Settlement, target: Target) -> None:
        self._settlement, self._target = settlement, target
        self._done: dict[GroupKey, _ResolvedGroup] = {}
        self._likeness: dict[GroupKey, list[tuple[object, ...]]] = {}
        self._stores: dict[int, tuple[bytes, list[Command]]] = {}
        self._placed: dict[int, BufferOffset] | None = None

    def resolve(self, unpacked: UnpackedPlan, *, is_symbolic: bool = False) -> tuple[Command, ...]:
        """Return the commands of an unpacked plan.

        Args:
            unpacked: The plan.
            is_symbolic: Whether extents are symbolic: the last plan is not compared with, nor this one kept.

        Raises:
            PlanError: The unpacked plan differs from the upper end in more than sizes, or needs more room.
        """
        self._check_buffers(unpacked)
        groups = {group.key: group for group in unpacked.groups}
        if len(groups) != len(unpacked.groups):
            raise AssertionError("Two groups of an unpacked plan have the same key.")
        places = {**self._settlement.merged, **unpacked.placed}
        # Most sizes place buffers as the last one did. None until all picks are done, should one fail.
        remembered: dict[GroupKey, _ResolvedGroup] = {} if is_symbolic else self._done
        is_still = not is_symbolic and unpacked.placed == self._placed
        if not is_symbolic:
            self._placed = None
        roots: dict[int, BufferOffset] = {}
        commands: list[Command] = []
        for pick in self._settlement.picks:
            if pick.key[0] == "store":
                drafted: Sequence[Command] = self._find_stores(unpacked, pick.key[1])
            else:
                group = groups.get(pick.key)
                if group is None:
                    raise PlanError(f"{pick.origin} has no commands at this size.")
                if pick.in_place is not None and pick.in_place not in group.in_place:
                    raise PlanError(f"{pick.origin} can't work in place at this size, as it does at the upper end.")
                drafted = group.commands
            done = remembered.get(pick.key)
            if done is None or done.commands is not drafted or not (is_still or self._lies_still(done, places, roots)):
                done = remembered[pick.key] = self._resolve_pick(pick, drafted, places, roots)
            commands += done.resolved
        if not is_symbolic:
            self._placed = unpacked.placed
        return tuple(commands)

    def _lies_still(
        self, done: _ResolvedGroup, places: dict[int, BufferOffset], roots: dict[int, BufferOffset]
    ) -> bool:
        """Return whether the buffers a group touches lie where they did."""
        return all(self._find_root(buffer, places, roots) == place for buffer, place in done.places.items())

    def _resolve_pick(
        self, pick: Pick, drafted: Sequence[Command], places: dict[int, BufferOffset], roots: dict[int, BufferOffset]
    ) -> _ResolvedGroup:
        if pick.positions[-1] >= len(drafted):
            raise PlanError(f"{pick.origin} has {len(drafted)} commands at this size, fewer than at the upper end.")

        touched: dict[int, BufferOffset] = {}

        def number(slot: Slot) -> Slot:
            buffer, offset = touched[slot.buffer] = self._find_root(slot.buffer, places, roots)
            spec = slot.spec
            if spec.value is not None:
                spec = TensorSpec(spec.shape, spec.dtype)
            return Slot(buffer, slot.offset_bytes + offset, spec, slot.strides)

        resolved = [map_slots(drafted[position], number) for position in pick.positions]
        self._check_alike(pick, resolved, len(drafted))
        return _ResolvedGroup(drafted, touched, resolved)

    def _find_root(self, buffer: int, places: dict[int, BufferOffset], roots: dict[int, BufferOffset]) -> BufferOffset:
        """Return plan buffer and byte offset of a buffer of the unpacked plan."""
        where = roots.get(buffer)
        if where is None:
            root, offset = find_root(buffer, places)
            number = self._settlement.numbers.get(root)
            if number is None:
                raise PlanError("A command touches a buffer at this size that none does at the upper end.")
            where = roots[buffer] = (number, offset)
        return where

    def _find_stores(self, unpacked: UnpackedPlan, buffer: int) -> list[Command]:
        content = unpacked.buffers[buffer].content
        assert content is not None
        if isinstance(content, SymbolicValue):
            return make_stores(unpacked, self._target, buffer, self._settlement.buffers[buffer].nbytes)
        key = content.array.tobytes()
        last = self._stores.get(buffer)
        if last is None or last[0] != key:
            capacity = self._settlement.buffers[buffer].nbytes
            last = self._stores[buffer] = (key, make_stores(unpacked, self._target, buffer, capacity))
        return last[1]

    def _check_buffers(self, unpacked: UnpackedPlan) -> None:
        ends = self._settlement.buffers
        if len(unpacked.buffers) != len(ends):
            raise PlanError(f"This size needs {len(unpacked.buffers)} buffers, the upper end {len(ends)}.")
        if unpacked.placed.keys() & self._settlement.merged.keys():
            raise PlanError("Buffers are placed at this size that are not at the upper end.")
        for buffer, end in zip(unpacked.buffers, ends, strict=True):
            if buffer is end:
                continue
            if buffer.role is not end.role or (buffer.content is None) != (end.content is None):
                raise PlanError(f"A buffer is {buffer.role.value} at this size, {end.role.value} at the upper end.")
            if buffer.nbytes > end.nbytes:
                raise PlanError(f"A buffer needs {buffer.nbytes} bytes at this size, {end.nbytes} at the upper end.")
            if buffer.data != end.data:
                raise PlanError("A table has another content at this size.")
            if buffer.packed != end.packed:
                raise PlanError("A weight is packed in another form at this size.")

    def _check_alike(self, pick: Pick, resolved: list[Command], count: int) -> None:
        found = [(count, *_describe(command)) for command in resolved]
        expected = self._likeness.setdefault(pick.key, found)
        if expected is not found and expected != found:
            raise PlanError(f"{pick.origin} is other commands at this size.")


def _describe(command: Command) -> tuple[object, ...]:
    """Return the part of a command that is common to all sizes of a class."""
    match command:
        case Launch():
            rows = [
                a.buffer
                if isinstance(a, Slot)
                else len(a)
                if isinstance(a, bytes | SymbolicBytes)
                else None
                if a is None
                else a.dtype
                for a in command.arguments
            ]
            return (command.kernel, command.writes, *rows)
        case Copy():
            return (Copy, command.destination.buffer, command.source.buffer)
        case Fill():
            return (Fill, command.destination.buffer, len(command.pattern))
        case LibraryCall():
            return (command.library, *(None if a is None else a.buffer for a in command.arguments))
        case HostCall():
            slots = [None if s is None else s.buffer for s in (*command.inputs, *command.outputs, *command.scratch)]
            return (command.operator, len(command.inputs), *slots)
