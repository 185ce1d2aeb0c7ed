"""Fused groups of a plan's commands, and the fewest bytes that must move between them.

A group is what one kernel could do at best. Its *anchor* is a command whose results need many of its inputs: a product,
a convolution, attention, a reduction, softmax or norm, a pool, a recurrent layer, or any kernel that is not known to
move or map elements one by one. Commands that do (elementwise operators, copies, fills, gathers, concatenations) join
the group that makes the last of their inputs, and where that has no anchor, the anchor that reads them joins theirs.
Groups without an anchor that such a command reads beside that one become one group with it. Commands of one node join
each other. A product whose rows a softmax normalises, that softmax, and the product that reads it are attention: one
group.

Groups exchange what one writes and another reads, each range once for each group. Beside that a plan must read its
weights and inputs, and write its outputs: together its minimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuexec.ir.command import Command, HostCall, Launch, Slot
from gpuexec.ir.plan import Plan, Role

# Kernels that make an element of a few others, or move it.
_JOINING = (
    *(
        "elementwise_",
        "flat.cu",
        "tiled.cu",
        "copy.cu",
        "pad.cu",
        "gather.cu",
        "generate.cu",
        "one_hot.cu",
        "reverse_sequence.cu",
        "trilu.cu",
    ),
    *("quantize.cu", "resize.cu", "rotary.cu", "swiglu.cu", "batch_norm.cu:normalize_channels", "affine_grid.cu"),
)
_PRODUCTS = ("matmul.cu", "simt_gemm.cu", "gemv.cu", "mma_gemm.cu")
_SOFTMAX = "softmax.cu"

_LASTING = frozenset(
    {Role.OUTPUT, Role.STATE, Role.EXCHANGE}
)  # what lasts is written, whether or not a command reads it

Range = tuple[int, int, int]  # buffer, first byte and the byte behind the last


@dataclass(slots=True)
class FusedGroup:
    """Commands that one kernel could do, by position; ``kinds`` are the sources of their anchors."""

    commands: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    reads: dict[Range, int] = field(default_factory=dict)
    writes: dict[Range, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FusedGroups:
    """The groups of a plan in order, each a tuple of positions of commands, and the bytes that must move."""

    members: tuple[tuple[int, ...], ...]
    minimum_nbytes: int


Operands = Sequence[tuple[Slot, bool, int]]


def find_fused_groups(plan: Plan, commands: Sequence[Command], operands: Sequence[Operands]) -> FusedGroups:
    """Return the groups of commands over a plan's buffers.

    Args:
        plan: Whose buffers the commands use, and whose origins they have.
        commands: In order.
        operands: For each command its slots, whether each is written, and the bytes touched of it.
    """
    grouping = _Grouping(plan)
    for position, command in enumerate(commands):
        grouping.add(position, command, plan.segment.origins[position], operands[position])
    grouping.join_attention()
    return grouping.finish()


class _Grouping:
    """Groups while they are made; a group's number is the place that its work takes in some order of all."""

    def __init__(self, plan: Plan) -> None:
        self._roles = {buffer.id: buffer.role for buffer in plan.buffers}
        self._groups: list[FusedGroup] = []
        self._writers: dict[
            int, list[tuple[int, int, int]]
        ] = {}  # by buffer: bytes, and the group that wrote them last
        self._readers: dict[tuple[int, Range], set[int]] = {}  # of what a group wrote: the groups that read it
        self._of_origin: dict[str, int] = {}

    def add(self, position: int, command: Command, origin: str, operands: Operands) -> None:
        """Put a command into a group."""
        inputs = [_range_of(slot) for slot, is_written, nbytes in operands if not is_written and nbytes]
        producers = {each for given in inputs for each, _ in self._find_writers(given)}
        latest = max(producers, default=-1)
        is_anchor = not _is_joining(command)
        own = self._of_origin.get(origin, -1)
        if latest >= 0 and own >= latest:
            number = own
        elif latest >= 0 and (not is_anchor or not self._groups[latest].kinds):
            number = latest
        else:
            number = len(self._groups)
            self._groups.append(FusedGroup())
        self._of_origin[origin] = number
        group = self._groups[number]
        group.commands.append(position)
        if is_anchor:
            group.kinds.append(command.kernel.source if isinstance(command, Launch) else "")
        self._note(number, operands)
        for producer in producers - {number}:
            if not self._groups[producer].kinds and self._read_by(producer) == {number}:
                self._merge(producer, number)

    def _note(self, number: int, operands: Operands) -> None:
        """Note what a command of a group reads from others, and what it writes."""
        group = self._groups[number]
        for slot, is_written, nbytes in operands:
            span = _range_of(slot)
            if not is_written and nbytes:
                makers = self._find_writers(span)
                if not makers or any(maker != number for maker, _ in makers):
                    group.reads[span] = max(nbytes, group.reads.get(span, 0))
                for maker, written in makers:
                    if maker != number:
                        self._readers.setdefault((maker, written), set()).add(number)
        for slot, is_written, nbytes in operands:
            if is_written and nbytes:
                span = _range_of(slot)
                group.writes[span] = nbytes
                left = [each for each in self._writers.get(span[0], []) if not _covers(span, each)]
                self._writers[span[0]] = [*left, (span[1], span[2], number)]

    def _find_writers(self, span: Range) -> list[tuple[int, Range]]:
        """Return the groups that wrote bytes of a range last, and the ranges that they wrote."""
        buffer, low, high = span
        return [
            (number, (buffer, first, last))
            for first, last, number in self._writers.get(buffer, ())
            if first < high and low < last
        ]

    def join_attention(self) -> None:
        """Join the products before and behind a softmax with it, where nothing else reads what they exchange."""
        for number, group in enumerate(self._groups):
            if group.kinds != [_SOFTMAX]:
                continue
            before = {maker for (maker, _), readers in self._readers.items() if number in readers}
            behind = {each for (maker, _), readers in self._readers.items() if maker == number for each in readers}
            if len(behind) != 1 or not self._is_product(last := max(behind)):
                continue
            makers = [each for each in before if self._is_product(each) and self._feeds_only(each, number, last)]
            if len(makers) == 1:
                for each in (number, makers[0]):
                    self._merge(each, last)

    def _feeds_only(self, maker: int, reader: int, last: int) -> bool:
        """Return whether a reader alone reads what it has of a maker, whose other readers follow ``last``."""
        readers = [each for (own, _), each in self._readers.items() if own == maker]
        return all(each == {reader} or (reader not in each and min(each, default=last) >= last) for each in readers)

    def _is_product(self, number: int) -> bool:
        kinds = self._groups[number].kinds
        return len(kinds) == 1 and kinds[0] in _PRODUCTS

    def _read_by(self, number: int) -> set[int]:
        return {each for (maker, _), readers in self._readers.items() if maker == number for each in readers}

    def _merge(self, number: int, into: int) -> None:
        """Put the commands of a group into another one."""
        group, target = self._groups[number], self._groups[into]
        exchanged = {span for (maker, span), readers in self._readers.items() if maker == number and into in readers}
        for span, nbytes in group.reads.items():
            target.reads[span] = max(nbytes, target.reads.get(span, 0))
        for span in list(target.reads):
            if any(_overlaps(span, written) for written in exchanged):
                del target.reads[span]
        target.commands = sorted(group.commands + target.commands)
        target.kinds = group.kinds + target.kinds
        target.writes |= {span: nbytes for span, nbytes in group.writes.items() if span not in exchanged}
        self._groups[number] = FusedGroup()
        moved: dict[tuple[int, Range], set[int]] = {}
        for (maker, span), readers in self._readers.items():
            kept = {into if each == number else each for each in readers} - {into if maker in (number, into) else -1}
            moved.setdefault((into if maker == number else maker, span), set()).update(kept)
        self._readers = moved
        for buffer, written in self._writers.items():
            self._writers[buffer] = [(low, high, into if each == number else each) for low, high, each in written]
        self._of_origin = {name: into if each == number else each for name, each in self._of_origin.items()}

    def finish(self) -> FusedGroups:
        """Add up what must move."""
        total = 0
        for number, group in enumerate(self._groups):
            total += sum(group.reads.values())
            for span, nbytes in group.writes.items():
                if self._roles[span[0]] in _LASTING or self._readers.get((number, span)):
                    total += nbytes
        members = tuple(tuple(group.commands) for group in self._groups if group.commands)
        return FusedGroups(members, total)


def _is_joining(command: Command) -> bool:
    if isinstance(command, Launch):
        return str(command.kernel).startswith(_JOINING)
    return not isinstance(command, HostCall)


def _range_of(slot: Slot) -> Range:
    return slot.buffer, *slot.byte_range()


def _covers(span: Range, other: tuple[int, int, int]) -> bool:
    return span[1] <= other[0] and other[1] <= span[2]


def _overlaps(a: Range, b: Range) -> bool:
    return a[0] == b[0] and a[1] < b[2] and b[1] < a[2]
