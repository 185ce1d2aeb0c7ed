"""Verification of a plan by its own edges and bytes, independent of the code that made it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

from gpuexec.errors import PlanError
from gpuexec.ir.command import Command, Copy, HostCall, Launch, LibraryCall, Slot
from gpuexec.ir.plan import Plan, Role, Segment, Variant, format_command

_ALIGNMENT = 256


def verify(plan: Plan, variant: Variant | None = None) -> None:
    """Check that the plan may be run in any order its edges allow.

    Holds: every slot lies within its buffer; arena places are aligned and within the arena; two commands that touch
    common bytes, one of them writing, are joined by a path; commands on two buffers that share arena bytes are joined
    by paths whatever the size; what is read of a temporary or output was written before, by a path; constants and
    inputs are not written; a command reads bytes that it writes through the same dense window only, and beside windows
    that it writes, other places of their axes; every output is written.

    Args:
        plan: The plan.
        variant: Check the commands of this size of the class in place of the plan's own.

    Raises:
        PlanError: Something of this does not hold; names the commands.
    """
    verifier = Verifier(plan)
    if variant is not None:
        verifier.check_variant(variant.commands)


class _Touch(NamedTuple):
    """A command touches bytes ``[low, high)`` of a buffer by a window: all, in this `Slot.order`, or some (None)."""

    command: int
    low: int
    high: int
    written: bool
    order: tuple[tuple[int, ...], ...] | None
    window: Slot


class _Use(NamedTuple):
    """The commands that use a buffer, with whether each writes it; sets of commands are bits of an int.

    ``behind_all`` are the writers' common predecessors, themselves included, ``behind_written`` those of the others.
    """

    users: Sequence[int]
    wrote: Sequence[bool]
    everyone: int
    written: int
    behind_all: int
    behind_written: int


class Verifier:
    """Verifier of a plan, and of the parts of its variants that differ from the commands checked last.

    Raises:
        PlanError: The plan does not hold.
    """

    def __init__(self, plan: Plan) -> None:
        _check_layout(plan)
        self._check = _SegmentCheck(plan, plan.segment)
        written = self._check.written_buffers()
        for port in plan.outputs:
            if port.buffer is None or plan.buffers[port.buffer].role is Role.STATE:
                continue  # a memory may have no rows
            if port.spec.size and port.buffer not in written:
                raise PlanError(f"Output {port.name!r} is written by no command.")

    def check_variant(self, commands: Sequence[Command]) -> None:
        """Check the commands of another size.

        Raises:
            PlanError: They don't hold; the next call compares with the commands checked before.
        """
        self._check.update(commands)

    def check_symbolic(self, commands: Sequence[Command]) -> None:
        """Check commands of symbolic sizes: they hold wherever the guards noted meanwhile hold.

        Raises:
            PlanError: They don't hold.
        """
        self._check.fork().update(commands)


class _SegmentCheck:
    """Commands checked last, with the bytes each touches."""

    def __init__(self, plan: Plan, segment: Segment) -> None:
        count = len(segment.commands)
        if len(segment.origins) != count:
            raise PlanError(f"A segment of {count} commands has {len(segment.origins)} origins.")
        self._plan, self._origins = plan, segment.origins
        self._before = _find_paths(count, segment.edges)
        self._commands: list[Command | None] = [None] * count
        self._touches: list[dict[int, list[_Touch]]] = [{}] * count
        self._users: dict[int, set[int]] = {}
        self.update(segment.commands)
        self._check_arena()

    def fork(self) -> _SegmentCheck:
        """Return the same state, to be changed apart."""
        other = copy(self)
        other._commands, other._touches = self._commands.copy(), self._touches.copy()
        other._users = {buffer: users.copy() for buffer, users in self._users.items()}
        return other

    def written_buffers(self) -> set[int]:
        """Return the buffers that some command writes."""
        return {buffer for rows in self._touches for buffer, touches in rows.items() if any(t.written for t in touches)}

    def update(self, commands: Sequence[Command]) -> None:
        """Check the commands; checks that depend only on the same objects as before are skipped."""
        if len(commands) != len(self._commands):
            raise PlanError(f"A segment of {len(self._commands)} commands got {len(commands)}.")
        changed = [i for i, (new, old) in enumerate(zip(commands, self._commands, strict=True)) if new is not old]
        fresh = {i: _list_touches(self._plan, i, commands[i]) for i in changed}
        kept = {i: (self._commands[i], self._touches[i]) for i in changed}
        stale = {buffer for i in changed for buffer in (*fresh[i], *self._touches[i])}
        try:
            for i in changed:
                self._replace(i, commands[i], fresh[i])
            for buffer in stale:
                self._check_buffer(buffer)
        except PlanError:
            for i, (command, touches) in kept.items():
                self._replace(i, command, touches)
            raise

    def _replace(self, index: int, command: Command | None, touches: dict[int, list[_Touch]]) -> None:
        for buffer in self._touches[index]:
            self._users[buffer].discard(index)
        for buffer in touches:
            self._users.setdefault(buffer, set()).add(index)
        self._commands[index], self._touches[index] = command, touches

    def _check_buffer(self, buffer: int) -> None:
        """Check the commands on a buffer; where windows on it are rows of one pitch, column by column."""
        role = self._plan.buffers[buffer].role
        if role is Role.CONSTANT or role is Role.INPUT:
            return
        touches = [touch for index in sorted(self._users.get(buffer, ())) for touch in self._touches[index][buffer]]
        columns = [_find_columns(touch) for touch in touches]
        pitches = _list_apart([pitch for _, _, pitch in columns if pitch])
        if len(pitches) != 1:
            self._check_pieces(buffer, role, touches)
            return
        (step,) = pitches
        ends = [end % step for first, width, pitch in columns for end in (first, first + width) if pitch]
        for low, high in pairwise(_list_apart([0, *ends, step])):
            # Of each touch the rows in which it touches these columns, as if each row were nothing but them.
            within = [
                touch._replace(low=((touch.low - high) // step + 1) * step, high=-((low - touch.high) // step) * step)
                for touch, (first, width, pitch) in zip(touches, columns, strict=True)
                if not pitch or (low - first) % pitch < width
            ]
            self._check_pieces(buffer, role, [touch for touch in within if touch.low < touch.high])

    def _check_pieces(self, buffer: int, role: Role, touches: Sequence[_Touch]) -> None:
        """Walk touches in plan order, keeping the last writer and readers of each piece of the buffer."""
        cuts = _list_apart([cut for touch in touches for cut in (touch.low, touch.high)])
        writer = [-1] * len(cuts)
        readers = [0] * len(cuts)
        for touch in touches:
            before = self._before[touch.command]
            for piece in range(bisect_left(cuts, touch.low), bisect_left(cuts, touch.high)):
                if writer[piece] >= 0 and writer[piece] != touch.command and not before >> writer[piece] & 1:
                    raise self._not_ordered(writer[piece], touch.command, buffer)
                if touch.written:
                    unordered = readers[piece] & ~before & ~(1 << touch.command)
                    if unordered:
                        raise self._not_ordered(unordered.bit_length() - 1, touch.command, buffer)
                    writer[piece], readers[piece] = touch.command, 0
                elif writer[piece] < 0 and (role is Role.TEMP or role is Role.OUTPUT):
                    raise PlanError(
                        f"{self._show(touch.command)} reads bytes {cuts[piece]} to {cuts[piece + 1]} of %{buffer} that "
                        "no command before it writes."
                    )
                else:
                    readers[piece] |= 1 << touch.command

    def _check_arena(self) -> None:
        """Check that buffers which share arena bytes are used one after the other, whatever windows are touched."""
        rows = []
        for buffer, offset in self._plan.layout.offsets:
            users = sorted(self._users.get(buffer, ()))
            nbytes = self._plan.buffers[buffer].nbytes
            if users and nbytes:
                rows.append((offset, offset + nbytes, buffer, self._find_use(buffer, users)))
        rows.sort(key=itemgetter(0, 1, 2))
        for n, (_, high, buffer, use) in enumerate(rows):
            for low2, _, buffer2, use2 in rows[n + 1 :]:
                if low2 >= high:
                    break
                if use.users[0] <= use2.users[0]:
                    self._check_after(use, use2, buffer, buffer2)
                else:
                    self._check_after(use2, use, buffer2, buffer)

    def _find_use(self, buffer: int, users: Sequence[int]) -> _Use:
        """Return how commands use a buffer."""
        wrote = [any(touch.written for touch in self._touches[user][buffer]) for user in users]
        everyone = written = 0
        behind_all = behind_written = -1
        for user, writes in zip(users, wrote, strict=True):
            bit = 1 << user
            everyone |= bit
            if writes:
                written |= bit
                behind_all &= self._before[user] | bit
            else:
                behind_written &= self._before[user] | bit
        return _Use(users, wrote, everyone, written, behind_all, behind_written)

    def _check_after(self, earlier: _Use, later: _Use, buffer: int, buffer2: int) -> None:
        """Check that the users of a buffer come after those of an earlier buffer in its bytes."""
        is_behind = not earlier.everyone & ~later.behind_all and not earlier.written & ~later.behind_written
        if is_behind and not earlier.everyone & later.everyone:
            return
        for user, writes in zip(later.users, later.wrote, strict=True):
            unordered = (earlier.everyone if writes else earlier.written) & ~self._before[user] & ~(1 << user)
            if unordered or earlier.everyone >> user & 1:
                other = unordered.bit_length() - 1 if unordered else user
                raise PlanError(
                    f"{self._show(other)} and {self._show(user)} use %{buffer} and %{buffer2}, which share bytes of "
                    "the arena, and no path of edges orders them."
                )

    def _not_ordered(self, first: int, second: int, buffer: int) -> PlanError:
        return PlanError(
            f"{self._show(first)} and {self._show(second)} touch the same bytes of %{buffer}, one of them writing, and "
            "no path of edges orders them."
        )

    def _show(self, index: int) -> str:
        return f"Command {index} ({self._origins[index]})"


def _list_touches(plan: Plan, index: int, command: Command) -> dict[int, list[_Touch]]:
    """Return the bytes a command touches by buffer, reads first; check the command on its own."""
    touches: dict[int, list[_Touch]] = {}
    for slot, written in _slots(command):
        if not 0 <= slot.buffer < len(plan.buffers):
            raise PlanError(f"Command {index}, {format_command(command)}: there is no buffer %{slot.buffer}.")
        buffer = plan.buffers[slot.buffer]
        low, high = slot.byte_range()
        if low < 0 or high > buffer.nbytes:
            raise PlanError(
                f"Command {index}, {format_command(command)}: bytes {low} to {high} are outside %{buffer.id} of "
                f"{buffer.nbytes} bytes."
            )
        if written and (buffer.role is Role.CONSTANT or buffer.role is Role.INPUT):
            raise PlanError(
                f"Command {index}, {format_command(command)}: writes %{buffer.id}, which is {buffer.role.value}."
            )
        if low == high:
            continue
        order = slot.order
        rows = touches.setdefault(slot.buffer, [])
        for row in rows if written else ():
            overlaps = low < row.high and row.low < high
            is_same = order is not None and (row.low, row.high, row.order) == (low, high, order)
            if overlaps and not row.written and not is_same and not _are_apart(row.window, slot):
                raise PlanError(
                    f"Command {index}, {format_command(command)}: reads bytes that it writes through another window."
                )
        rows.append(_Touch(index, low, high, written, order, slot))
    return touches


def _find_columns(touch: _Touch) -> tuple[int, int, int]:
    """Return where the rows of a window begin within a pitch, their bytes, and the pitch; 0: they have no gaps."""
    if touch.order is not None:
        return 0, 0, 0
    width, pitch = touch.window.byte_rows()
    return (0, 0, 0) if width == pitch else (touch.low % pitch, width, pitch)


def _list_apart(numbers: Sequence[int]) -> list[int]:
    """Return numbers in order, each once; they may be symbolic, which sets don't take."""
    apart: list[int] = []
    for number in sorted(numbers):
        if not apart or apart[-1] != number:
            apart.append(number)
    return apart


def _are_apart(first: Slot, second: Slot) -> bool:
    """Return whether two windows of the same strides show different places along an axis, and so no element twice.

    That is so where strides tell all places apart: each is longer than what all smaller ones reach together.
    """
    if first.offset_bytes > second.offset_bytes:
        first, second = second, first
    shift, rest = divmod(second.offset_bytes - first.offset_bytes, first.dtype.itemsize)
    if first.strides != second.strides or first.dtype != second.dtype or rest:
        return False
    extents = [max(pair) for pair in zip(first.shape, second.shape, strict=True)]
    for axis, stride in enumerate(first.strides):
        start, odd = divmod(shift, stride) if stride > 0 else (0, 1)
        if not odd and start >= first.shape[axis]:
            ends = [*extents[:axis], start + second.shape[axis], *extents[axis + 1 :]]
            if _tell_apart(ends, first.strides):
                return True
    return False


def _tell_apart(extents: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether no two places of these extents have the same offset."""
    reach = 0
    for stride, extent in sorted(zip(strides, extents, strict=True)):
        if extent > 1:
            if stride <= reach:
                return False
            reach += (extent - 1) * stride
    return True


def _check_layout(plan: Plan) -> None:
    places = plan.layout.as_dict()
    for index, buffer in enumerate(plan.buffers):
        if buffer.id != index:
            raise PlanError(f"Buffer %{buffer.id} stands at position {index}.")
        if (buffer.role is Role.TEMP) != (buffer.id in places):
            raise PlanError(
                f"Buffer %{buffer.id} ({buffer.role.value}): only temporaries, and all of them, lie in the arena."
            )
        offset = places.get(buffer.id)
        if offset is not None and (offset % _ALIGNMENT or offset < 0 or offset + buffer.nbytes > plan.layout.nbytes):
            raise PlanError(
                f"Buffer %{buffer.id} at arena+{offset} ({buffer.nbytes} bytes) is misaligned, or outside "
                f"{plan.layout.nbytes} bytes."
            )


def _slots(command: Command) -> list[tuple[Slot, bool]]:
    """Return the slots of a command with whether they are written; those read come first."""
    match command:
        case Launch():
            slots = [(a, i in command.writes) for i, a in enumerate(command.arguments) if isinstance(a, Slot)]
            return sorted(slots, key=itemgetter(1))
        case Copy():
            return [(command.source, False), (command.destination, True)]
        case LibraryCall():
            last = len(command.arguments) - 2
            return [(slot, i >= last) for i, slot in enumerate(command.arguments) if slot is not None]
        case HostCall():
            rows = [(slot, False) for slot in command.inputs]
            rows += [(slot, True) for slot in (*command.outputs, *command.scratch)]
            return [(slot, written) for slot, written in rows if slot is not None]
        case _:
            return [(command.destination, True)]


def _find_paths(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return for each command those before it by some path, as bits of an int."""
    incoming: list[list[int]] = [[] for _ in range(count)]
    for a, b in edges:
        if not 0 <= a < b < count:
            raise PlanError(f"Edge ({a}, {b}) does not lead forward among {count} commands.")
        incoming[b].append(a)
    before = [0] * count
    for b in range(count):
        for a in incoming[b]:
            before[b] |= before[a] | 1 << a
    return before
